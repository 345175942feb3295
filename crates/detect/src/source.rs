//! Atomic operations that only the source text names.
//!
//! C's `__atomic_load_n` on a plain `int` and OpenMP's `#pragma omp atomic
//! read` become one `mov` and leave nothing in the debug info but their line.
//! Where the source is at hand, that line says what was meant, and with which
//! order. This is the weakest form of rule 4: it is asked last, it only makes
//! the half of a line atomic that the operation is about (`x =
//! atomic_load(&y)` loads y atomically and stores x plainly), and without the
//! file nothing follows from it. What else stands on the line is none of the
//! operation's: the column that the line table has for the instruction must be in
//! the text of the call. Rust has no such functions, its text is not asked.
//! Several operations on one line are told apart by their kind and their variable
//! as well; where that is not enough, what any of them orders counts as ordered.
//!
//! Optimisers lose lines: an atomic load that two branches share carries the
//! line of an `if` before them. For a word that other instructions use
//! atomically, a line on which no memory can be meant says nothing, and the
//! function around it is searched for an operation of the right kind.

use crate::code::Atomic;
use crate::fences::{Edges, Fences};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use symbols::{Module, Position};

/// Larger files are generated: nobody wrote atomics there by hand.
const LARGEST: u64 = 8 << 20;

#[derive(Debug)]
struct Text {
    lines: Vec<String>,
    /// Atomic types are mentioned: `load` may be one of their functions.
    atomics: bool,
    fences: Fences,
}

#[derive(Debug, Default)]
pub struct Sources {
    files: HashMap<PathBuf, Option<Text>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Load,
    Store,
    Change,
}

/// How an instruction accesses memory, as far as it tells atomic operations
/// apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    Load,
    Store,
    /// A plain change is no atomic operation.
    Change,
    /// A locked instruction or an exchange.
    Locked,
}

impl Shape {
    pub fn new(read: bool, write: bool, locked: bool) -> Shape {
        match (read, write) {
            _ if locked => Shape::Locked,
            (true, true) => Shape::Change,
            (false, true) => Shape::Store,
            _ => Shape::Load,
        }
    }
}

impl Operation {
    /// How well an instruction of this shape fits; none if it does not.
    fn fits(self, shape: Shape) -> Option<u8> {
        match (self, shape) {
            (Operation::Load, Shape::Load) | (Operation::Store, Shape::Store) => Some(2),
            (Operation::Change, Shape::Locked) => Some(2),
            // A sequentially consistent store is an exchange.
            (Operation::Store, Shape::Locked) => Some(1),
            // A change may begin with a load; one whose result nobody uses may
            // be a store.
            (Operation::Change, Shape::Load | Shape::Store) => Some(1),
            _ => None,
        }
    }
}

fn open(path: &Path) -> Option<Text> {
    let bytes = folder::read_regular(path, LARGEST).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    Some(Text {
        fences: Fences::of(&text, is_rust),
        lines: text.lines().map(str::to_string).collect(),
        atomics: ["std::atomic", "<atomic>", "sync::atomic"]
            .iter()
            .any(|sign| text.contains(sign)),
    })
}

/// The operation that a function of this name is.
fn operation(name: &str) -> Option<Operation> {
    let rest = name
        .strip_prefix("__atomic_")
        .or_else(|| name.strip_prefix("__c11_atomic_"))
        .or_else(|| name.strip_prefix("atomic_"));
    if let Some(rest) = rest {
        let rest = rest.strip_prefix("flag_").unwrap_or(rest);
        let begins = |words: &[&str]| words.iter().any(|word| rest.starts_with(word));
        return if begins(&["load"]) {
            Some(Operation::Load)
        } else if begins(&["store", "clear"]) {
            Some(Operation::Store)
        } else if begins(&[
            "fetch", "exchange", "compare", "test_and", "add", "sub", "and", "or", "xor", "nand",
        ]) {
            Some(Operation::Change)
        } else {
            None
        };
    }
    // Go's sync/atomic: `atomic.LoadInt32`.
    if let Some(rest) = name.strip_prefix("atomic.") {
        return if rest.starts_with("Load") {
            Some(Operation::Load)
        } else if rest.starts_with("Store") {
            Some(Operation::Store)
        } else {
            Some(Operation::Change)
        };
    }
    match name {
        "__sync_lock_release" => Some(Operation::Store),
        "__sync_synchronize" => None,
        _ if name.starts_with("__sync_") => Some(Operation::Change),
        _ => None,
    }
}

/// Acquires and releases, by the first order that a call names, or (`numbered`)
/// by the number that its last argument is.
fn order(arguments: &str, operation: Operation, numbered: bool) -> Option<(bool, bool)> {
    let arguments = arguments.to_ascii_lowercase();
    let orders = [
        ("relaxed", (false, false)),
        ("consume", (true, false)),
        ("acquire", (true, false)),
        ("acq_rel", (true, true)),
        ("release", (false, true)),
        ("seq_cst", (true, true)),
        ("acqrel", (true, true)),
        ("seqcst", (true, true)),
    ];
    let named = orders
        .iter()
        .filter_map(|(name, edges)| Some((arguments.find(name)?, *edges)))
        .min();
    let (acquires, releases) = match named {
        Some((_, edges)) => edges,
        None if !numbered => return None,
        None => {
            const NUMBERS: [usize; 6] = [0, 1, 2, 4, 3, 5];
            let place: usize = last_argument(&arguments)?.parse().ok()?;
            orders[*NUMBERS.get(place)?].1
        }
    };
    Some(match operation {
        Operation::Load => (acquires, false),
        Operation::Store => (false, releases),
        Operation::Change => (acquires, releases),
    })
}

/// The last of at least two arguments of a call, of which `text` is what follows
/// the parenthesis.
fn last_argument(text: &str) -> Option<&str> {
    let mut depth = 0;
    let mut last = None;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => return Some(text[last?..at].trim()),
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => last = Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The expression names the variable.
fn names(expression: &str, variable: &str) -> bool {
    expression
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .any(|word| word == variable)
}

/// The first argument names the variable, if it can be seen to name any.
fn is_about(arguments: &str, variable: Option<&str>) -> bool {
    let Some(variable) = variable else {
        return true;
    };
    let first = arguments.split(',').next().unwrap_or("");
    let Some(named) = first.trim().strip_prefix('&') else {
        return true;
    };
    names(named, variable)
}

/// The object that a member function is called of names the variable, if it can
/// be seen to name any: `this` and references have other names.
fn receives(object: &str, variable: Option<&str>) -> bool {
    let simple = |letter: char| letter.is_alphanumeric() || letter == '_';
    variable.is_none_or(|variable| !object.chars().all(simple) || names(object, variable))
}

/// What is in the parentheses, of which `text` is what follows the first.
fn inside(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 0 => return &text[..=at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    text
}

struct CallText<'a> {
    /// With the object and the arguments.
    span: Range<usize>,
    name: &'a str,
    /// Of a member function, the object that it is called of.
    object: Option<&'a str>,
    /// With the parenthesis at their end.
    arguments: &'a str,
}

/// Calls on a line.
fn calls(line: &str) -> impl Iterator<Item = CallText<'_>> {
    line.match_indices('(').map(|(at, _)| {
        let before = line[..at].trim_end();
        let start = before
            .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '.')
            .map_or(0, |found| found + 1);
        let whole = &before[start..];
        let arguments = inside(&line[at + 1..]);
        let end = at + 1 + arguments.len();
        if whole.starts_with("atomic.") {
            return CallText {
                span: start..end,
                name: whole,
                object: None,
                arguments,
            };
        }
        let mut begin = start;
        let (object, name) = match whole.rsplit_once('.') {
            Some((object, name)) => (Some(object), name),
            None if before[..start].ends_with("->") => {
                let object = before[..start - 2].trim_end();
                let start = object
                    .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .map_or(0, |found| found + 1);
                begin = start;
                (Some(&object[start..]), whole)
            }
            None => (None, whole),
        };
        CallText {
            span: begin..end,
            name,
            object,
            arguments,
        }
    })
}

/// The operation that a member function of an atomic object is.
fn member_operation(name: &str) -> Option<Operation> {
    Some(match name {
        "load" | "test" | "wait" => Operation::Load,
        "store" | "clear" => Operation::Store,
        "exchange" | "swap" | "test_and_set" | "fetch_update" => Operation::Change,
        _ if name.starts_with("fetch_") || name.starts_with("compare_exchange") => {
            Operation::Change
        }
        _ => return None,
    })
}

/// No expression on the line can be an access to this variable: it is not named,
/// and nothing is followed, indexed or assigned.
fn means_no_memory(line: &str, variable: Option<&str>) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    let assigns = code
        .replace("==", "")
        .replace("<=", "")
        .replace(">=", "")
        .replace("!=", "")
        .contains('=');
    let follows = ["*", "->", "[", ".", "&", "++", "--"]
        .iter()
        .any(|sign| code.contains(sign));
    let calls = calls(code).any(|call| {
        let keywords = ["if", "while", "switch", "for", "return", ""];
        !keywords.contains(&call.name)
    });
    !assigns && !follows && !calls && variable.is_none_or(|variable| !names(code, variable))
}

/// Lines of a function looked at, either way.
const NEAR: usize = 60;

impl Text {
    /// The line, with those that follow as far as its parentheses reach.
    fn statement(&self, line: usize) -> Option<String> {
        /// A call with one argument to a line is no longer.
        const LONGEST: usize = 8;
        let mut text = String::new();
        for next in self.lines.iter().skip(line.checked_sub(1)?).take(LONGEST) {
            text.push_str(next);
            let count = |letter| text.matches(letter).count();
            if count('(') <= count(')') {
                break;
            }
            text.push(' ');
        }
        (!text.is_empty()).then_some(text)
    }

    /// What the operations on a line say that fit best; none if none fits. If
    /// a column is given (from 1), only the calls that it is in.
    fn on_line(
        &self,
        text: &str,
        column: Option<usize>,
        shape: Shape,
        variable: Option<&str>,
    ) -> Option<Atomic> {
        let mut best: Option<(u8, Atomic)> = None;
        for CallText {
            span,
            name,
            object,
            arguments,
        } in calls(text)
        {
            if column.is_some_and(|column| !span.contains(&(column - 1))) {
                continue;
            }
            let explicit = ["__atomic_", "__c11_atomic_"]
                .iter()
                .any(|beginning| name.starts_with(beginning))
                || name.ends_with("_explicit");
            let found = match (operation(name), object) {
                (Some(operation), _) if is_about(arguments, variable) => operation,
                (None, Some(object)) if self.atomics && receives(object, variable) => {
                    match member_operation(name) {
                        Some(operation) => operation,
                        None => continue,
                    }
                }
                _ => continue,
            };
            let Some(fit) = found.fits(shape) else {
                continue;
            };
            let numbered = explicit && !name.contains("compare");
            let edges = match order(arguments, found, numbered) {
                Some(edges) => Some(edges),
                None if explicit => None,
                None => Some((true, true)),
            };
            let atomic = meaning(edges, found);
            best = Some(match best {
                Some((known, merged)) if known == fit => (
                    fit,
                    Atomic {
                        acquires: merged.acquires || atomic.acquires,
                        releases: merged.releases || atomic.releases,
                        order_unknown: merged.order_unknown || atomic.order_unknown,
                        stores: merged.stores && atomic.stores,
                        typed: false,
                    },
                ),
                Some(better) if better.0 > fit => better,
                _ => (fit, atomic),
            });
        }
        best.map(|(_, atomic)| atomic)
    }

    fn atomic(
        &self,
        line: usize,
        column: Option<usize>,
        shape: Shape,
        variable: Option<&str>,
    ) -> Option<Atomic> {
        let statement = self.statement(line)?;
        if let Some(atomic) = self.on_line(&statement, column, shape, variable) {
            return Some(atomic);
        }
        let pragma = (1..=3)
            .filter_map(|above| self.lines.get(line.checked_sub(above + 1)?))
            .take_while(|above| !above.contains(';'))
            .find(|above| above.contains("omp atomic"))?;
        let clauses = pragma.split("omp atomic").nth(1).unwrap_or("");
        let operation = if clauses.contains("read") {
            Operation::Load
        } else if clauses.contains("write") {
            Operation::Store
        } else {
            Operation::Change
        };
        operation.fits(shape)?;
        let edges = order(clauses, operation, false).unwrap_or((false, false));
        Some(meaning(Some(edges), operation))
    }

    /// The line cannot be where the access is: somewhere in the function around
    /// it is an operation that the access may be.
    fn atomic_around(&self, line: usize, shape: Shape, variable: Option<&str>) -> Option<Atomic> {
        let here = line.checked_sub(1)?;
        let text = self.lines.get(here)?;
        if !means_no_memory(text, variable) {
            return None;
        }
        let outside = |line: &&String| line.starts_with('}');
        let above = self.lines[..here].iter().rev().take(NEAR);
        let below = self.lines[here..].iter().take(NEAR);
        above
            .take_while(|line| !outside(line))
            .chain(below.take_while(|line| !outside(line)))
            .any(|line| self.on_line(line, None, shape, variable).is_some())
            .then(|| meaning(None, Operation::Load))
    }
}

fn meaning(edges: Option<(bool, bool)>, operation: Operation) -> Atomic {
    let (acquires, releases) = edges.unwrap_or((true, true));
    Atomic {
        acquires,
        releases,
        order_unknown: edges.is_none(),
        stores: operation == Operation::Store,
        typed: false,
    }
}

impl Sources {
    /// What the line says about an access of this kind to this variable, and,
    /// of a word that is known to be used atomically (`word`), what the lines
    /// around it say.
    pub fn atomic(
        &mut self,
        file: &Path,
        place: Position,
        shape: Shape,
        variable: Option<&str>,
        word: bool,
    ) -> Option<Atomic> {
        if file.extension().is_some_and(|extension| extension == "rs") {
            return None;
        }
        let text = self.text(file)?;
        let line = place.line as usize;
        let column = (place.column > 0).then_some(place.column as usize);
        text.atomic(line, column, shape, variable)
            .or_else(|| text.atomic_around(line, shape, variable).filter(|_| word))
    }

    fn text(&mut self, file: &Path) -> Option<&Text> {
        if !self.files.contains_key(file) {
            self.files.insert(file.to_path_buf(), open(file));
        }
        self.files.get(file)?.as_ref()
    }

    /// Where the stand-alone fences of a module are, in link-time addresses.
    pub fn fences_of(&mut self, module: &Module) -> Vec<(u64, Edges)> {
        let rows = module.rows_of_files(&mut |file| {
            let text = self.text(Path::new(file));
            text.is_some_and(|text| !text.fences.is_empty())
        });
        let mut found = Vec::new();
        for (number, file) in rows.files.iter().enumerate() {
            let Some(text) = self.text(Path::new(file)) else {
                continue;
            };
            for function in &rows.functions {
                found.extend(text.fences.places(function, number));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> Text {
        Text {
            lines: source.lines().map(str::to_string).collect(),
            fences: Fences::default(),
            atomics: source.contains("std::atomic"),
        }
    }

    fn ask(
        source: &str,
        line: usize,
        read: bool,
        write: bool,
        variable: &str,
    ) -> Option<(bool, bool)> {
        text(source)
            .atomic(line, None, Shape::new(read, write, false), Some(variable))
            .map(|atomic| (atomic.acquires, atomic.releases))
    }

    fn ask_locked(source: &str, line: usize, variable: &str) -> Option<(bool, bool)> {
        text(source)
            .atomic(line, None, Shape::Locked, Some(variable))
            .map(|atomic| (atomic.acquires, atomic.releases))
    }

    #[test]
    fn operations_on_one_line_are_told_apart() {
        let line = "while (atomic_flag_test_and_set_explicit(&l, memory_order_acquire)); n++; \
                    atomic_flag_clear_explicit(&l, memory_order_release);";
        assert_eq!(ask(line, 1, false, true, "l"), Some((false, true)));
        assert_eq!(ask_locked(line, 1, "l"), Some((true, false)));
        assert_eq!(ask(line, 1, true, true, "n"), None);
        // The order of another call is none of its own.
        let line = "while (__sync_lock_test_and_set(&l, 1)) \
                    while (__atomic_load_n(&l, __ATOMIC_RELAXED));";
        assert_eq!(ask_locked(line, 1, "l"), Some((true, true)));
        assert_eq!(ask(line, 1, true, false, "l"), Some((false, false)));
    }

    #[test]
    fn what_stands_beside_a_call_is_none_of_it() {
        let line = "*n += 1; atomic_fetch_add(&ok, 1); *n = atomic_load(p);";
        let at = |part: &str| line.find(part).map(|at| at + 1);
        let ask = |column, shape| text(line).on_line(line, column, shape, None).is_some();
        assert!(!ask(at("n += 1"), Shape::Load));
        assert!(!ask(at("+= 1"), Shape::Store));
        assert!(ask(at("atomic_fetch"), Shape::Locked));
        assert!(ask(at("atomic_load"), Shape::Load));
        assert!(!ask(at("= atomic_load"), Shape::Store));
    }

    #[test]
    fn a_call_may_have_several_lines() {
        let source = "atomic_store_explicit(\n  &flag,\n  1,\n  memory_order_relaxed);";
        assert_eq!(ask(source, 1, false, true, "flag"), Some((false, false)));
    }

    #[test]
    fn functions_of_atomic_objects_are_known_by_name() {
        let source = "std::atomic<int> x;\nt([&]{d = 3; x.store(1, std::memory_order_release);});";
        assert_eq!(ask(source, 2, false, true, "x"), Some((false, true)));
        assert_eq!(ask(source, 2, false, true, "d"), None);
        assert_eq!(ask(source, 2, true, false, "x"), None);
        assert_eq!(ask("table.store(1);", 1, false, true, "table"), None);
    }

    #[test]
    fn a_line_without_memory_says_nothing() {
        let source = "void f(int* p, int which) {\n  if (which)\n    sink = __atomic_load_n(p, 5);\n  else\n    sink = *p;\n}\n\nint g() {\n  if (h)\n    return 1;\n}";
        let around = |line, shape| {
            text(source)
                .atomic_around(line, shape, Some("data"))
                .is_some()
        };
        assert!(around(2, Shape::Load));
        assert!(!around(2, Shape::Store));
        assert!(!around(5, Shape::Load), "the line itself reads memory");
        assert!(!around(9, Shape::Load), "another function");
    }

    #[test]
    fn only_the_named_half_of_a_line_is_atomic() {
        let line = "x = __atomic_load_n(&flag, __ATOMIC_ACQUIRE) + y;";
        assert_eq!(ask(line, 1, true, false, "flag"), Some((true, false)));
        assert_eq!(ask(line, 1, false, true, "x"), None);
        assert_eq!(ask(line, 1, true, false, "y"), None);
        let line = "atomic_store_explicit(&s->flag, x, memory_order_relaxed);";
        assert_eq!(ask(line, 1, false, true, "flag"), Some((false, false)));
        assert_eq!(ask(line, 1, true, false, "x"), None);
        assert_eq!(
            ask("__sync_lock_release(&l);", 1, false, true, "l"),
            Some((true, true))
        );
        assert_eq!(ask("flag = 1; // atomic", 1, false, true, "flag"), None);
    }

    #[test]
    fn an_order_may_be_a_number() {
        let line = "__c11_atomic_store(&flag, f(1, 3), 0);";
        assert_eq!(ask(line, 1, false, true, "flag"), Some((false, false)));
        let line = "__atomic_load_n(&flag, 2)";
        assert_eq!(ask(line, 1, true, false, "flag"), Some((true, false)));
        let line = "atomic_store(&flag, 0);";
        assert_eq!(ask(line, 1, false, true, "flag"), Some((true, true)));
    }

    #[test]
    fn a_pragma_is_about_the_statement_below_it() {
        let source = "#pragma omp atomic write release\n  y = 1;\n  y = 2;";
        assert_eq!(ask(source, 2, false, true, "y"), Some((false, true)));
        assert_eq!(ask(source, 2, true, false, "z"), None);
        assert_eq!(ask(source, 3, false, true, "y"), None);
        let source = "#pragma omp atomic read\n  t = y;";
        assert_eq!(ask(source, 2, true, false, "y"), Some((false, false)));
    }
}
