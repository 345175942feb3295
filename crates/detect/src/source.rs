//! Atomic operations that only the source text names.
//!
//! C's `__atomic_load_n` on a plain `int` and OpenMP's `#pragma omp atomic
//! read` become one `mov` and leave nothing in the debug info but their line.
//! Where the source is at hand, that line says what was meant, and with which
//! order. This is the weakest form of rule 4: it is asked last, it only makes
//! the half of a line atomic that the operation is about (`x =
//! atomic_load(&y)` loads y atomically and stores x plainly), and without the
//! file nothing follows from it.

use crate::code::Atomic;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Larger files are generated: nobody wrote atomics there by hand.
const LARGEST: u64 = 8 << 20;

#[derive(Debug)]
struct Text {
    lines: Vec<String>,
    /// Stand-alone fences: a relaxed access can be half of an edge.
    fences: bool,
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

impl Operation {
    fn covers(self, read: bool, write: bool) -> bool {
        match self {
            Operation::Load => read && !write,
            Operation::Store => write && !read,
            Operation::Change => true,
        }
    }
}

fn open(path: &Path) -> Option<Text> {
    let size = path.metadata().ok()?.len();
    if size > LARGEST {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let fences = ["thread_fence", "__sync_synchronize", "omp flush", "mfence"]
        .iter()
        .any(|fence| text.contains(fence));
    Some(Text {
        lines: text.lines().map(str::to_string).collect(),
        fences,
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

/// The first argument names the variable, if it can be seen to name any.
fn is_about(arguments: &str, variable: Option<&str>) -> bool {
    let Some(variable) = variable else {
        return true;
    };
    let first = arguments.split(',').next().unwrap_or("");
    let Some(named) = first.trim().strip_prefix('&') else {
        return true;
    };
    named
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .any(|word| word == variable)
}

/// Calls on a line: name and what follows the parenthesis.
fn calls(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.match_indices('(').map(|(at, _)| {
        let before = line[..at].trim_end();
        let start = before
            .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '.')
            .map_or(0, |found| found + 1);
        let name = &before[start..];
        let name = match name.starts_with("atomic.") {
            true => name,
            false => name.rsplit('.').next().unwrap_or(name),
        };
        (name, &line[at + 1..])
    })
}

impl Text {
    fn atomic(
        &self,
        line: usize,
        read: bool,
        write: bool,
        variable: Option<&str>,
    ) -> Option<Atomic> {
        let text = self.lines.get(line.checked_sub(1)?)?;
        for (name, arguments) in calls(text) {
            let Some(operation) = operation(name) else {
                continue;
            };
            if !operation.covers(read, write) || !is_about(arguments, variable) {
                continue;
            }
            let explicit = ["__atomic_", "__c11_atomic_"]
                .iter()
                .any(|beginning| name.starts_with(beginning))
                || name.ends_with("_explicit");
            let numbered = explicit && !name.contains("compare");
            let edges = match order(arguments, operation, numbered) {
                Some((false, false)) if self.fences => None,
                Some(edges) => Some(edges),
                None if explicit => None,
                None => Some((true, true)),
            };
            return Some(meaning(edges));
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
        if !operation.covers(read, write) {
            return None;
        }
        // A flush makes an edge out of relaxed operations.
        Some(meaning(match order(clauses, operation, false) {
            Some((false, false)) | None if self.fences => None,
            Some(edges) => Some(edges),
            None => Some((false, false)),
        }))
    }
}

fn meaning(edges: Option<(bool, bool)>) -> Atomic {
    let (acquires, releases) = edges.unwrap_or((true, true));
    Atomic {
        acquires,
        releases,
        order_unknown: edges.is_none(),
    }
}

impl Sources {
    /// What the line says about an access of this kind to this variable.
    pub fn atomic(
        &mut self,
        file: &Path,
        line: u32,
        (read, write): (bool, bool),
        variable: Option<&str>,
    ) -> Option<Atomic> {
        if !self.files.contains_key(file) {
            self.files.insert(file.to_path_buf(), open(file));
        }
        let text = self.files.get(file)?.as_ref()?;
        text.atomic(line as usize, read, write, variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(
        source: &str,
        line: usize,
        read: bool,
        write: bool,
        variable: &str,
    ) -> Option<(bool, bool)> {
        let text = Text {
            lines: source.lines().map(str::to_string).collect(),
            fences: source.contains("flush"),
        };
        text.atomic(line, read, write, Some(variable))
            .map(|atomic| (atomic.acquires, atomic.releases))
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
        let source = "#pragma omp atomic read\n  t = y;\n#pragma omp flush";
        assert_eq!(ask(source, 2, true, false, "y"), Some((true, true)));
    }
}
