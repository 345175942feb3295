//! Stand-alone fences that leave no instruction behind.
//!
//! C++20 (31.11, atomics.fences): a release fence makes later relaxed stores of
//! its thread publish what was done before the fence; an acquire fence lets what
//! earlier relaxed loads have seen happen before what follows. So it matters
//! where in the code a fence is. On x86-64 all but the strongest are no
//! instruction. Their calls are looked up in the source text and their places
//! in the line tables, in one of two ways:
//!
//! - gcc writes a row for the call itself, at the address of the instruction
//!   that follows.
//! - LLVM writes none. There the fence is where the code goes on from what
//!   stands before the call in its block to what stands behind it: no
//!   optimiser moves accesses over a fence.
//!
//! A macro or a function that consists of a fence is a fence by its name in the
//! same file. Without the source nothing is found. What is found wrongly only
//! adds order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use symbols::{CodeRow, Position};

/// What an operation or a fence does with order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    pub acquires: bool,
    pub releases: bool,
}

impl Edges {
    pub const BOTH: Edges = Edges {
        acquires: true,
        releases: true,
    };

    /// Of a memory order by its name in C, C++, Rust or OpenMP, or by its
    /// number in the compilers' built-in functions.
    fn named(text: &str) -> Option<Edges> {
        let text = text.trim().to_ascii_lowercase();
        // The longer names first: they contain the shorter ones.
        const NAMES: [(&str, bool, bool); 8] = [
            ("acq_rel", true, true),
            ("acqrel", true, true),
            ("seq_cst", true, true),
            ("seqcst", true, true),
            ("relaxed", false, false),
            ("consume", true, false),
            ("acquire", true, false),
            ("release", false, true),
        ];
        if let Some((_, acquires, releases)) = NAMES.iter().find(|name| text.contains(name.0)) {
            return Some(Edges {
                acquires: *acquires,
                releases: *releases,
            });
        }
        let (acquires, releases) = match text.parse() {
            Ok(0) => (false, false),
            Ok(1 | 2) => (true, false),
            Ok(3) => (false, true),
            Ok(4 | 5) => (true, true),
            _ => return None,
        };
        Some(Edges { acquires, releases })
    }
}

impl From<Ordering> for Edges {
    fn from(order: Ordering) -> Edges {
        Edges {
            acquires: matches!(
                order,
                Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst
            ),
            releases: matches!(
                order,
                Ordering::Release | Ordering::AcqRel | Ordering::SeqCst
            ),
        }
    }
}

/// Functions that are fences between threads, whatever the file says.
const FENCES: [&str; 4] = [
    "atomic_thread_fence",
    "__atomic_thread_fence",
    "__c11_atomic_thread_fence",
    "__sync_synchronize",
];

#[derive(Debug, Clone, PartialEq, Eq)]
struct FenceCall {
    /// From the first letter of the name to behind the parenthesis.
    span: Range<usize>,
    /// The block around it, without its braces.
    block: Range<usize>,
    edges: Edges,
}

/// The fences of one source file.
#[derive(Debug, Default)]
pub struct Fences {
    calls: Vec<FenceCall>,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl Fences {
    /// The fences in the text of a file.
    pub fn of(source: &str, is_rust: bool) -> Fences {
        if !source.contains("fence") && !source.contains("__sync_synchronize") {
            return Fences::default();
        }
        let text = without_comments(source);
        let mut names: HashMap<String, Option<Edges>> =
            FENCES.iter().map(|name| (name.to_string(), None)).collect();
        if is_rust {
            names.insert("fence".into(), None);
        }
        let mut calls = Vec::new();
        // A name for a fence may be used before it is known; a name for such a
        // name is not followed.
        for _ in 0..2 {
            calls.clear();
            for call in find_calls(&text, &names) {
                match Meant::of(&text, &call) {
                    Meant::Fence => calls.push(call),
                    Meant::Name(name) => {
                        names.entry(name).or_insert(Some(call.edges));
                    }
                    Meant::Nothing => {}
                }
            }
        }
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Fences {
            calls,
            lines: std::iter::once(0).chain(starts).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn offset(&self, position: Position) -> Option<usize> {
        let line = usize::try_from(position.line).ok()?.checked_sub(1)?;
        let column = usize::try_from(position.column).ok()?.saturating_sub(1);
        Some(*self.lines.get(line)? + column)
    }

    /// Where in one function the fences of this file are: addresses before
    /// whose instruction one is passed. `number` is the file's number in the
    /// rows.
    pub fn places(&self, rows: &[CodeRow], number: usize) -> Vec<(u64, Edges)> {
        let offsets: Vec<(u64, Vec<usize>)> = rows
            .iter()
            .map(|row| {
                let own = row.places.iter().filter(|(file, _)| *file == number);
                let offsets = own.filter_map(|(_, position)| self.offset(*position));
                (row.address, offsets.collect())
            })
            .collect();
        let mut found = Vec::new();
        for call in &self.calls {
            let exact: Vec<u64> = offsets
                .iter()
                .filter(|(_, offsets)| offsets.iter().any(|at| call.span.contains(at)))
                .map(|(address, _)| *address)
                .collect();
            let places = match exact.is_empty() {
                false => exact,
                true => call.passed(&offsets),
            };
            found.extend(places.into_iter().map(|address| (address, call.edges)));
        }
        found.sort_by_key(|(address, _)| *address);
        found.dedup();
        found
    }
}

/// Where code is, seen from a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    After,
    /// Behind the block that the fence is in.
    Beyond,
}

impl FenceCall {
    fn side(&self, offsets: &[usize]) -> Option<Side> {
        let inside = offsets.iter().find(|at| self.block.contains(at));
        match inside {
            Some(at) if *at < self.span.start => Some(Side::Before),
            Some(_) => Some(Side::After),
            None if offsets.iter().any(|at| *at >= self.block.end) => Some(Side::Beyond),
            None => offsets.first().map(|_| Side::Before),
        }
    }

    /// Addresses where the code goes on from one side of the fence to the
    /// other.
    fn passed(&self, rows: &[(u64, Vec<usize>)]) -> Vec<u64> {
        let inside = |offsets: &[usize]| offsets.iter().any(|at| self.block.contains(at));
        if !rows.iter().any(|(_, offsets)| inside(offsets)) {
            return Vec::new();
        }
        let sides: Vec<(u64, Side)> = rows
            .iter()
            .filter_map(|(address, offsets)| Some((*address, self.side(offsets)?)))
            .collect();
        // A fence at the end of its block is passed with the block.
        let goal = match sides.iter().any(|(_, side)| *side == Side::After) {
            true => Side::After,
            false => Side::Beyond,
        };
        let mut last = Side::Before;
        let mut found = Vec::new();
        for (address, side) in sides {
            if side == goal && last != goal {
                found.push(address);
            }
            last = side;
        }
        found
    }
}

/// What the call of a fence stands for.
enum Meant {
    Fence,
    /// All of a macro or function of this name.
    Name(String),
    /// The definition of a fence itself.
    Nothing,
}

impl Meant {
    fn of(text: &str, call: &FenceCall) -> Meant {
        let line = text[..call.span.start].rfind('\n').map_or(0, |at| at + 1);
        let before = text[line..call.span.start].trim_start();
        if let Some(definition) = before.strip_prefix('#') {
            let definition = definition.trim_start().strip_prefix("define");
            let name = definition.map(|rest| identifier(rest.trim_start()));
            return name.map_or(Meant::Nothing, |name| Meant::Name(name.to_string()));
        }
        let alone = |part: &str| {
            part.chars()
                .all(|letter| letter.is_whitespace() || letter == ';')
        };
        let prefix = text[call.block.start..call.span.start].trim();
        if !(prefix.is_empty() || prefix == "return")
            || !alone(&text[call.span.end..call.block.end])
        {
            return Meant::Fence;
        }
        let Some(name) = function_of(text, call.block.start) else {
            return Meant::Fence;
        };
        match FENCES.contains(&name) {
            true => Meant::Nothing,
            false => Meant::Name(name.to_string()),
        }
    }
}

/// The function whose body begins at `body`.
fn function_of(text: &str, body: usize) -> Option<&str> {
    let head = text[..body].trim_end().strip_suffix('{')?.trim_end();
    let start = head.rfind([';', '}', '{']).map_or(0, |at| at + 1);
    let head = &head[start..];
    // Nothing ends a line for the preprocessor but the line.
    let directive = head
        .rmatch_indices('#')
        .find_map(|(at, _)| Some(at + head[at..].find('\n')? + 1));
    let head = &head[directive.unwrap_or(0)..];
    let name = head[..head.find('(')?].trim_end();
    let name = &name[name.trim_end_matches(is_word).len()..];
    // A block after a condition is no function.
    const CONDITIONS: [&str; 7] = ["if", "while", "for", "switch", "match", "else", ""];
    let first = identifier(head.trim_start());
    (!CONDITIONS.contains(&name) && !CONDITIONS.contains(&first)).then_some(name)
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn identifier(text: &str) -> &str {
    let end = text.find(|letter| !is_word(letter)).unwrap_or(text.len());
    &text[..end]
}

/// Calls of these names, with what is known of their order.
fn find_calls(text: &str, names: &HashMap<String, Option<Edges>>) -> Vec<FenceCall> {
    let mut found = Vec::new();
    let mut blocks: Vec<usize> = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => blocks.push(at + 1),
            '}' => {
                let begin = blocks.pop().unwrap_or(0);
                // Calls found in this block end here.
                let inside = open.iter().position(|(start, _)| *start >= begin);
                for (_, call) in open.drain(inside.unwrap_or(open.len())..) {
                    let call: &mut FenceCall = &mut found[call];
                    call.block = begin..at;
                }
            }
            '(' => {
                let before = text[..at].trim_end();
                let start = before.trim_end_matches(is_word).len();
                let Some(known) = names.get(&before[start..]) else {
                    continue;
                };
                // Somebody else's `fence`.
                if text[..start].ends_with('.') || text[..start].ends_with("->") {
                    continue;
                }
                let arguments = inside_parentheses(&text[at + 1..]);
                let end = at + 1 + arguments.len() + 1;
                let in_name = |letter| is_word(letter) || letter == ':';
                let scope = text[..start].trim_end_matches(in_name).len();
                if is_declared(&text[..scope]) {
                    continue;
                }
                open.push((scope, found.len()));
                found.push(FenceCall {
                    span: scope..end.min(text.len()),
                    block: blocks.last().copied().unwrap_or(0)..text.len(),
                    edges: known
                        .or_else(|| Edges::named(arguments))
                        .unwrap_or(Edges::BOTH),
                });
            }
            _ => {}
        }
    }
    found
}

/// What follows is a declaration: a type stands before the name.
fn is_declared(before: &str) -> bool {
    let before = before.trim_end();
    let word = &before[before.trim_end_matches(is_word).len()..];
    // A macro's own name is followed by what it stands for.
    let in_macro = before
        .lines()
        .next_back()
        .is_some_and(|line| line.trim_start().starts_with('#'));
    !in_macro && !matches!(word, "" | "return" | "else" | "do" | "unsafe")
}

/// The arguments of a call, of which `text` is what follows the parenthesis.
fn inside_parentheses(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 0 => return &text[..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    text
}

/// The text with blanks for comments and strings: every offset stays.
pub fn without_comments(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut text = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n'),
            [b'/', b'*', ..] => rest
                .windows(2)
                .position(|two| two == b"*/")
                .map(|end| end + 2),
            [b'"', ..] => string_end(rest),
            [b'\'', b'\\', ..] => rest[2..]
                .iter()
                .position(|byte| *byte == b'\'')
                .map(|end| end + 3),
            [b'\'', _, b'\'', ..] => Some(3),
            _ => {
                at += 1;
                continue;
            }
        };
        let end = at + length.unwrap_or(rest.len());
        for byte in &mut text[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: u64, line: u32, column: u32) -> CodeRow {
        CodeRow {
            address,
            places: vec![(0, Position { line, column })],
        }
    }

    const ACQUIRES: Edges = Edges {
        acquires: true,
        releases: false,
    };
    const RELEASES: Edges = Edges {
        acquires: false,
        releases: true,
    };

    #[test]
    fn a_row_of_the_call_is_the_place() {
        let source = "void f(void) {\n  d = 1;\n  atomic_thread_fence(memory_order_release);\n  \
                      atomic_store_explicit(&a, 1, memory_order_relaxed);\n}\n";
        let rows = [row(0x10, 2, 5), row(0x18, 3, 3), row(0x18, 4, 3)];
        let fences = Fences::of(source, false);
        assert_eq!(fences.places(&rows, 0), [(0x18, RELEASES)]);
        // No part of the function: not passed.
        assert!(fences.places(&[row(0x10, 7, 1)], 0).is_empty());
    }

    #[test]
    fn without_a_row_it_is_where_the_code_passes_it() {
        let source = "fn con() -> u64 {\n  while A.load(Relaxed) != 1 {}\n  \
                      fence(Ordering::Acquire);\n  unsafe { D }\n}\n";
        let rows = [
            row(0x10, 2, 9),
            row(0x14, 2, 3),
            row(0x19, 4, 12),
            row(0x23, 5, 2),
        ];
        let fences = Fences::of(source, true);
        assert_eq!(fences.places(&rows, 0), [(0x19, ACQUIRES)]);
        assert!(Fences::of(source, false).is_empty(), "`fence` is Rust's");
    }

    #[test]
    fn a_fence_that_ends_its_block_is_passed_behind_it() {
        let source = "fn f() {\n  if ok() {\n    note();\n    fence(Acquire);\n  }\n  go();\n}\n";
        let rows = [row(0x10, 2, 6), row(0x14, 3, 5), row(0x19, 6, 3)];
        assert_eq!(
            Fences::of(source, true).places(&rows, 0),
            [(0x19, ACQUIRES)]
        );
    }

    #[test]
    fn two_closures_on_a_line_have_fences_of_their_own() {
        let source = "fn main() { a(|| { V = 1; fence(Release); S.store(1) }); b(|| { S.load(); \
                      fence(Acquire); V }); }";
        let at = |text: &str| source.find(text).map_or(0, |at| at as u32 + 1);
        let fences = Fences::of(source, true);
        let first = [row(0x10, 1, at("V = 1")), row(0x17, 1, at("S.store"))];
        assert_eq!(fences.places(&first, 0), [(0x17, RELEASES)]);
        let second = [row(0x30, 1, at("S.load")), row(0x3f, 1, at("V });"))];
        assert_eq!(fences.places(&second, 0), [(0x3f, ACQUIRES)]);
    }

    #[test]
    fn macros_and_functions_that_are_fences_have_their_order() {
        let source = "#define wmb() __atomic_thread_fence(3)\nstatic void rmb(void) {\n  \
                      __atomic_thread_fence(__ATOMIC_ACQUIRE);\n}\nvoid f(void) {\n  d = 1;\n  \
                      wmb();\n  rmb();\n}\n";
        let fences = Fences::of(source, false);
        let rows = [row(0x10, 6, 5), row(0x18, 7, 3), row(0x20, 8, 3)];
        let places = fences.places(&rows, 0);
        assert_eq!(places, [(0x18, RELEASES), (0x20, ACQUIRES)]);
    }

    #[test]
    fn comments_strings_and_declarations_are_no_fences() {
        for source in [
            "// atomic_thread_fence(memory_order_acquire)\nvoid f() {}",
            "/* atomic_thread_fence(5) */ void f() { puts(\"atomic_thread_fence(5)\"); }",
            "namespace std {\nvoid f();\ninline void\natomic_thread_fence(int __m)\n{ \
             __atomic_thread_fence(__m); }\nint g();\n}",
        ] {
            let fences = Fences::of(source, false);
            let rows = [
                row(0x10, 1, 1),
                row(0x18, 1, 50),
                row(0x20, 2, 1),
                row(0x28, 6, 1),
            ];
            assert!(fences.places(&rows, 0).is_empty(), "{source}");
        }
    }
}
