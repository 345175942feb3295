//! What must always be true of the program's variables: `--invariant 'EXPR'`.
//!
//! An expression over globals and statics by their names in the debug info:
//! fields (`stats.total`, `list->head`), elements (`table[i].used`), what a
//! pointer points at (`*p`), `len(array)`; integers and pointers compared and
//! reckoned with as in C (64 bits, signed), `&&`, `||`, `!`.
//!
//! A state under construction is nobody's business but the writer's, so an
//! invariant is checked when a thread that has written to what it reads next
//! releases something (unlocks, posts, waits on a condition, starts a thread,
//! makes a locked access outside a lock, exits), or when the program ends;
//! with `@write` after every such write. While another thread has written and
//! not yet released, the state is that one's to answer for.
//! A violation is the last write before it, with its stack.
//! Deviation: paper 003, section 4.6, leaves such predicates to the user's own
//! code. A store that only debug info knows to be a release does not count.

use race::Moment;
use std::collections::BTreeMap;
use std::fmt;
use symbols::{Module, NamedPlace, PathStep, PlaceStep, Shape};

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--invariant: {what}\n  {text}\n  {}^", " ".repeat(*column))]
pub struct InvariantError {
    pub text: String,
    /// Characters before it.
    pub column: usize,
    pub what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    Number(i64),
    Read {
        place: NamedPlace,
        indices: Vec<Expression>,
    },
    Not(Box<Expression>),
    Negate(Box<Expression>),
    Two(Binary, Box<Expression>, Box<Expression>),
}

/// A path as it is written, before names are looked up.
struct Path {
    name: String,
    at: usize,
    /// Each with where it stands.
    steps: Vec<(PathStep, usize)>,
    indices: Vec<Expression>,
}

/// When it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Release,
    Write,
}

/// One invariant of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invariant {
    pub text: String,
    pub when: When,
    expression: Expression,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Number(i64),
    Name(String),
    Symbol(&'static str),
    End,
}

const SYMBOLS: [&str; 23] = [
    "->", "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "+", "-", "*", "/", "%", "(", ")",
    "[", "]", ".", ",", "&", "|",
];

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, usize)>,
    next: usize,
    module: &'a Module,
}

type Parsed<T> = Result<T, InvariantError>;

fn fault(text: &str, at: usize, what: impl fmt::Display) -> InvariantError {
    InvariantError {
        text: text.to_string(),
        column: text[..at.min(text.len())].chars().count(),
        what: what.to_string(),
    }
}

fn tokens(text: &str, from: usize) -> Parsed<Vec<(Token, usize)>> {
    let mut found = Vec::new();
    let mut at = from;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let rest = &text[at..];
        if first.is_ascii_digit() {
            let length = rest
                .find(|letter: char| !letter.is_ascii_alphanumeric())
                .unwrap_or(rest.len());
            let word = &rest[..length];
            let number = match word.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).map(|number| number as i64),
                None => word.parse::<i64>(),
            };
            let number =
                number.map_err(|_| fault(text, at, format!("`{word}` is not a number")))?;
            found.push((Token::Number(number), at));
            at += length;
        } else if first.is_alphabetic() || first == '_' {
            let mut length = 0;
            let mut letters = rest.char_indices().peekable();
            while let Some((index, letter)) = letters.next() {
                let scope = rest[index..].starts_with("::");
                if letter.is_alphanumeric() || letter == '_' || letter == '$' {
                    length = index + letter.len_utf8();
                } else if scope {
                    length = index + 2;
                    letters.next();
                } else {
                    break;
                }
            }
            found.push((Token::Name(rest[..length].to_string()), at));
            at += length;
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            found.push((Token::Symbol(symbol), at));
            at += symbol.len();
        } else {
            return Err(fault(text, at, format!("`{first}` means nothing here")));
        }
    }
    found.push((Token::End, text.len()));
    Ok(found)
}

impl Invariant {
    /// Reads an expression; names are those of `module`.
    pub fn parse(text: &str, module: &Module) -> Result<Invariant, InvariantError> {
        let trimmed = text.trim_start();
        let mut from = text.len() - trimmed.len();
        let mut when = When::Release;
        if let Some(rest) = trimmed.strip_prefix('@') {
            let length = rest
                .find(|letter: char| !letter.is_alphanumeric())
                .unwrap_or(rest.len());
            if &rest[..length] != "write" {
                let what = format!("`@{}` is not known; there is `@write`", &rest[..length]);
                return Err(fault(text, from, what));
            }
            when = When::Write;
            from += 1 + length;
        }
        let mut parser = Parser {
            text,
            tokens: tokens(text, from)?,
            next: 0,
            module,
        };
        let expression = parser.binary(0)?;
        let (token, at) = parser.peek();
        if token != Token::End {
            return Err(fault(text, at, "the expression should end here"));
        }
        if !expression.reads() {
            return Err(fault(
                text,
                from,
                "it reads no variable, so it never changes",
            ));
        }
        Ok(Invariant {
            text: text.trim().to_string(),
            when,
            expression,
        })
    }
}

/// Operators by how strongly they bind, weakest first.
const LEVELS: [&[(&str, Binary)]; 6] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[("==", Binary::Equal), ("!=", Binary::NotEqual)],
    &[
        ("<=", Binary::LessEqual),
        (">=", Binary::GreaterEqual),
        ("<", Binary::Less),
        (">", Binary::Greater),
    ],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[
        ("*", Binary::Multiply),
        ("/", Binary::Divide),
        ("%", Binary::Remainder),
    ],
];

/// Parentheses and signs in one another.
const DEEPEST: usize = 100;

impl Parser<'_> {
    fn peek(&self) -> (Token, usize) {
        self.tokens
            .get(self.next)
            .cloned()
            .unwrap_or((Token::End, self.text.len()))
    }

    fn take(&mut self) -> (Token, usize) {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let (token, _) = self.peek();
        let is = matches!(token, Token::Symbol(found) if found == symbol);
        if is {
            self.next += 1;
        }
        is
    }

    fn expect(&mut self, symbol: &'static str) -> Parsed<()> {
        let (_, at) = self.peek();
        if self.takes(symbol) {
            Ok(())
        } else {
            Err(fault(self.text, at, format!("`{symbol}` is missing here")))
        }
    }

    fn binary(&mut self, level: usize) -> Parsed<Expression> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary(0);
        };
        let mut left = self.binary(level + 1)?;
        loop {
            let (token, _) = self.peek();
            let found = operators
                .iter()
                .find(|(symbol, _)| token == Token::Symbol(symbol));
            let Some((_, operator)) = found else {
                return Ok(left);
            };
            self.next += 1;
            let right = self.binary(level + 1)?;
            left = Expression::Two(*operator, Box::new(left), Box::new(right));
        }
    }

    fn unary(&mut self, depth: usize) -> Parsed<Expression> {
        let (_, at) = self.peek();
        if depth > DEEPEST {
            return Err(fault(self.text, at, "the expression is nested too deeply"));
        }
        if self.takes("!") {
            return Ok(Expression::Not(Box::new(self.unary(depth + 1)?)));
        }
        if self.takes("-") {
            return Ok(Expression::Negate(Box::new(self.unary(depth + 1)?)));
        }
        if self.takes("*") {
            let mut stars = 1;
            while self.takes("*") {
                stars += 1;
            }
            let mut path = self.path()?;
            path.steps
                .extend((0..stars).map(|_| (PathStep::Target, at)));
            return self.read(path);
        }
        if self.takes("(") {
            if self.next > 4 * DEEPEST {
                return Err(fault(self.text, at, "the expression is too long"));
            }
            let inner = self.binary(0)?;
            self.expect(")")?;
            return Ok(inner);
        }
        match self.peek() {
            (Token::Number(number), _) => {
                self.next += 1;
                Ok(Expression::Number(number))
            }
            (Token::Name(name), _) if name == "null" || name == "NULL" || name == "nullptr" => {
                self.next += 1;
                Ok(Expression::Number(0))
            }
            (Token::Name(name), at) if name == "len" => {
                self.next += 1;
                self.expect("(")?;
                let path = self.path()?;
                self.expect(")")?;
                let place = self.resolve(&path)?;
                match place.shape {
                    Shape::Array {
                        length: Some(length),
                    } => Ok(Expression::Number(length as i64)),
                    _ => Err(fault(
                        self.text,
                        at,
                        format!("`{}` is not an array of known length", path.name),
                    )),
                }
            }
            (Token::Name(_), _) => {
                let path = self.path()?;
                self.read(path)
            }
            (Token::End, at) => Err(fault(self.text, at, "the expression ends too early")),
            (Token::Symbol(symbol), at) => Err(fault(
                self.text,
                at,
                format!("a value is missing before `{symbol}`"),
            )),
        }
    }

    fn path(&mut self) -> Parsed<Path> {
        let (token, at) = self.take();
        let Token::Name(name) = token else {
            return Err(fault(
                self.text,
                at,
                "the name of a variable is missing here",
            ));
        };
        let mut path = Path {
            name,
            at,
            steps: Vec::new(),
            indices: Vec::new(),
        };
        loop {
            let (_, at) = self.peek();
            if self.takes(".") || self.takes("->") {
                let (token, at) = self.take();
                let field = match token {
                    Token::Name(field) => field,
                    // Fields of Rust's tuples are numbers.
                    Token::Number(number) => number.to_string(),
                    _ => return Err(fault(self.text, at, "the name of a field is missing here")),
                };
                path.steps.push((PathStep::Field(field), at));
            } else if self.takes("[") {
                let index = self.binary(0)?;
                self.expect("]")?;
                path.steps.push((PathStep::Element, at));
                path.indices.push(index);
            } else {
                return Ok(path);
            }
        }
    }

    fn resolve(&self, path: &Path) -> Parsed<NamedPlace> {
        let steps: Vec<PathStep> = path.steps.iter().map(|(step, _)| step.clone()).collect();
        self.module
            .place_named(&path.name, &steps)
            .map_err(|error| {
                let at = error
                    .step()
                    .and_then(|step| path.steps.get(step))
                    .map_or(path.at, |(_, at)| *at);
                fault(
                    self.text,
                    at,
                    format!("`{}` in {}: {error}", path.name, self.module.name()),
                )
            })
    }

    fn read(&self, path: Path) -> Parsed<Expression> {
        let place = self.resolve(&path)?;
        let what = match place.shape {
            Shape::Integer { .. } | Shape::Pointer => None,
            Shape::Array { .. } => Some("an array; name an element, or its length with `len(…)`"),
            Shape::Float => Some("a floating-point number; integers and pointers can be compared"),
            Shape::Other => Some("a structure; name a field of it"),
        };
        if let Some(what) = what {
            return Err(fault(
                self.text,
                path.at,
                format!("`{}` is {what}", path.name),
            ));
        }
        Ok(Expression::Read {
            place,
            indices: path.indices,
        })
    }
}

impl Expression {
    fn reads(&self) -> bool {
        match self {
            Expression::Number(_) => false,
            Expression::Read { .. } => true,
            Expression::Not(inner) | Expression::Negate(inner) => inner.reads(),
            Expression::Two(_, one, other) => one.reads() || other.reads(),
        }
    }
}

/// Memory that was read, address and size.
type Reads = Vec<(u64, u64)>;

/// Evaluates with the variables of a module at this bias. None where memory
/// cannot be read or an index lies outside its array: no answer.
struct Evaluation<'a> {
    bias: u64,
    read: &'a dyn Fn(u64, &mut [u8]) -> bool,
    reads: Reads,
    /// Values of what was read, in words.
    values: Vec<i64>,
}

impl Evaluation<'_> {
    fn word(&mut self, address: u64, size: u64, signed: bool) -> Option<i64> {
        let mut bytes = [0; 8];
        self.reads.push((address, size));
        let part = bytes.get_mut(..size as usize)?;
        if !(self.read)(address, part) {
            return None;
        }
        let number = u64::from_le_bytes(bytes);
        let unused = 64 - 8 * size as u32;
        Some(if signed {
            ((number << unused) as i64) >> unused
        } else {
            number as i64
        })
    }

    fn value(&mut self, expression: &Expression) -> Option<i64> {
        match expression {
            Expression::Number(number) => Some(*number),
            Expression::Not(inner) => Some(i64::from(self.value(inner)? == 0)),
            Expression::Negate(inner) => Some(self.value(inner)?.wrapping_neg()),
            Expression::Read { place, indices } => {
                let mut address = place.start.wrapping_add(self.bias);
                let mut indices = indices.iter();
                for step in &place.steps {
                    match step {
                        PlaceStep::Offset(offset) => address = address.wrapping_add(*offset),
                        PlaceStep::Load => address = self.word(address, 8, false)? as u64,
                        PlaceStep::Element { size, length } => {
                            let index = self.value(indices.next()?)?;
                            if length.is_some_and(|length| index < 0 || index as u64 >= length) {
                                return None;
                            }
                            address = address.wrapping_add((index as u64).wrapping_mul(*size));
                        }
                    }
                }
                let value = match place.shape {
                    Shape::Integer { size, signed } => self.word(address, size, signed)?,
                    _ => self.word(address, 8, false)?,
                };
                self.values.push(value);
                Some(value)
            }
            Expression::Two(operator, one, other) => {
                let left = self.value(one)?;
                match (operator, left) {
                    (Binary::And, 0) => return Some(0),
                    (Binary::Or, value) if value != 0 => return Some(1),
                    _ => {}
                }
                let right = self.value(other)?;
                Some(match operator {
                    Binary::And | Binary::Or => i64::from(right != 0),
                    Binary::Equal => i64::from(left == right),
                    Binary::NotEqual => i64::from(left != right),
                    Binary::Less => i64::from(left < right),
                    Binary::LessEqual => i64::from(left <= right),
                    Binary::Greater => i64::from(left > right),
                    Binary::GreaterEqual => i64::from(left >= right),
                    Binary::Add => left.wrapping_add(right),
                    Binary::Subtract => left.wrapping_sub(right),
                    Binary::Multiply => left.wrapping_mul(right),
                    Binary::Divide => left.checked_div(right)?,
                    Binary::Remainder => left.checked_rem(right)?,
                })
            }
        }
    }
}

/// A write to something that an invariant reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub moment: Moment,
    pub pc: u64,
    pub address: u64,
    pub size: u64,
}

/// A violation: which invariant, its values, and the write that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub text: String,
    pub values: Vec<i64>,
    pub written: Written,
}

/// An invariant and what the execution has done to it.
pub struct Watched {
    pub invariant: Invariant,
    /// What it read when it was last evaluated.
    reads: Reads,
    /// Threads that have written to that and not released since.
    writers: BTreeMap<u32, Written>,
    last: Option<Written>,
    /// Said once.
    violated: bool,
}

fn read_guest(address: u64, bytes: &mut [u8]) -> bool {
    vm::memory::read(address, bytes).is_ok()
}

impl Watched {
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    pub fn new(invariant: Invariant) -> Watched {
        Watched {
            invariant,
            reads: Vec::new(),
            writers: BTreeMap::new(),
            last: None,
            violated: false,
        }
    }

    /// Evaluates now; notes what is read.
    fn holds(&mut self, bias: u64) -> (Option<bool>, Vec<i64>) {
        let mut evaluation = Evaluation {
            bias,
            read: &read_guest,
            reads: Vec::new(),
            values: Vec::new(),
        };
        let value = evaluation.value(&self.invariant.expression);
        self.reads = evaluation.reads;
        (value.map(|value| value != 0), evaluation.values)
    }

    /// Memory whose change may matter.
    pub fn reads(&self) -> &[(u64, u64)] {
        &self.reads
    }

    /// From here on violations count.
    pub fn begin(&mut self) {
        self.violated = false;
    }

    /// Evaluates to see what is read, and says nothing.
    pub fn look(&mut self, bias: u64) {
        self.holds(bias);
    }

    /// A write; true if it concerns this invariant.
    pub fn wrote(&mut self, written: Written) -> bool {
        let end = written.address + written.size;
        let concerned = self
            .reads
            .iter()
            .any(|(start, size)| written.address < start + size && *start < end);
        if concerned {
            self.writers.insert(written.moment.thread, written);
            self.last = Some(written);
        }
        concerned
    }

    fn check(&mut self, bias: u64, written: Written) -> Option<Violation> {
        let (holds, values) = self.holds(bias);
        if holds != Some(false) || self.violated {
            return None;
        }
        self.violated = true;
        Some(Violation {
            text: self.invariant.text.clone(),
            values,
            written,
        })
    }

    /// A thread releases something, or ends.
    pub fn released(&mut self, thread: u32, bias: u64) -> Option<Violation> {
        let written = self.writers.remove(&thread)?;
        // Somebody else is still at it.
        if !self.writers.is_empty() {
            return None;
        }
        self.check(bias, written)
    }

    /// Right after a write.
    pub fn after_write(&mut self, bias: u64) -> Option<Violation> {
        let written = self.last?;
        self.check(bias, written)
    }

    /// The program ends.
    pub fn ended(&mut self, bias: u64) -> Option<Violation> {
        let written = self.last?;
        self.writers.clear();
        self.check(bias, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(shape: Shape, steps: Vec<PlaceStep>) -> NamedPlace {
        NamedPlace {
            start: 0x1000,
            steps,
            shape,
        }
    }

    fn value(expression: &Expression, memory: &[(u64, u64)]) -> Option<i64> {
        let read = |address: u64, bytes: &mut [u8]| {
            let found = memory.iter().find(|(start, _)| *start == address);
            if let Some((_, word)) = found {
                let length = bytes.len();
                bytes.copy_from_slice(&word.to_le_bytes()[..length]);
            }
            found.is_some()
        };
        let mut evaluation = Evaluation {
            bias: 0,
            read: &read,
            reads: Vec::new(),
            values: Vec::new(),
        };
        evaluation.value(expression)
    }

    #[test]
    fn signs_sizes_elements_and_pointers_are_respected() {
        let int = |signed| Shape::Integer { size: 4, signed };
        let plain = |shape, steps, indices| Expression::Read {
            place: place(shape, steps),
            indices,
        };
        let minus = [(0x1000, 0xffff_ffffu64)];
        assert_eq!(value(&plain(int(true), vec![], vec![]), &minus), Some(-1));
        assert_eq!(
            value(&plain(int(false), vec![], vec![]), &minus),
            Some(0xffff_ffff)
        );
        let element = vec![PlaceStep::Element {
            size: 4,
            length: Some(3),
        }];
        let third = plain(int(true), element.clone(), vec![Expression::Number(2)]);
        assert_eq!(value(&third, &[(0x1008, 7)]), Some(7));
        let fourth = plain(int(true), element, vec![Expression::Number(3)]);
        assert_eq!(value(&fourth, &[(0x100c, 7)]), None);
        let behind = plain(
            int(true),
            vec![PlaceStep::Load, PlaceStep::Offset(8)],
            vec![],
        );
        assert_eq!(value(&behind, &[(0x1000, 0x2000), (0x2008, 5)]), Some(5));
        assert_eq!(value(&behind, &[(0x1000, 0)]), None);
    }

    #[test]
    fn errors_say_where() {
        let module = Module::without_file(std::path::Path::new("prog"));
        for (text, column, what) in [
            ("1 +", 3, "ends too early"),
            ("(1 + 2", 6, "`)` is missing"),
            ("1 ? 2", 2, "`?` means nothing"),
            ("@often 1", 0, "`@often` is not known"),
            ("1 < 2", 0, "reads no variable"),
            ("1 < counter", 4, "no debug info"),
            ("1 2", 2, "should end here"),
            ("0xzz == 1", 0, "is not a number"),
            ("* == 1", 2, "the name of a variable is missing"),
        ] {
            let error = Invariant::parse(text, &module).expect_err(text);
            assert_eq!(error.column, column, "{error}");
            assert!(error.what.contains(what), "{error}");
        }
    }

    #[test]
    fn operators_bind_as_in_c() {
        let module = Module::without_file(std::path::Path::new("prog"));
        let evaluate = |text: &str| {
            let mut parser = Parser {
                text,
                tokens: tokens(text, 0).expect("tokens"),
                next: 0,
                module: &module,
            };
            value(&parser.binary(0).expect(text), &[])
        };
        assert_eq!(evaluate("1 + 2 * 3"), Some(7));
        assert_eq!(evaluate("10 - 4 - 3"), Some(3));
        assert_eq!(evaluate("1 + 1 == 2 && 3 <= 2 || !0"), Some(1));
        assert_eq!(evaluate("-(2 + 3) % 3"), Some(-2));
        assert_eq!(evaluate("1 / 0 == 1"), None);
        assert_eq!(evaluate("0 && 1 / 0"), Some(0));
        assert_eq!(evaluate("null == 0x0"), Some(1));
    }
}
