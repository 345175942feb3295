//! Suppressions for the races of a report, to be edited and kept.

use crate::words::{location, stack, title};
use race::{Frame, Race, Report};
use std::fmt::Write;
use std::str::FromStr;

/// In which syntax to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Tsan,
    Valgrind,
}

impl FromStr for Syntax {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tsan" => Ok(Syntax::Tsan),
            "valgrind" => Ok(Syntax::Valgrind),
            _ => Err(format!("`{text}` is neither tsan nor valgrind")),
        }
    }
}

/// Frames in a generated Valgrind block: enough to be specific, few enough to
/// survive changes in the callers.
const FRAMES: usize = 4;

/// One suppression for each race that is not suppressed yet, with a comment
/// that says which race it is for. A race of which nothing is known that a
/// pattern could name has none, and a comment says so.
pub fn generate(report: &Report, syntax: Syntax) -> String {
    let mut text = String::new();
    for race in report.races.iter().filter(|race| race.suppressed.is_none()) {
        let stacks = race.accesses.each_ref().map(|access| stack(access));
        let known = stacks
            .iter()
            .find(|stack| stack.first().is_some_and(nameable));
        let _ = writeln!(text, "# data race #{}: {}", race.id, one_line(&title(race)));
        let _ = writeln!(text, "# REASON: say here why this race may stay");
        match (known, syntax) {
            (None, _) => text.push_str("# (no function, file or module is known to name it by)\n"),
            (Some(stack), Syntax::Tsan) => {
                let _ = writeln!(text, "race_top:{}", tsan_pattern(&stack[0]));
            }
            (Some(stack), Syntax::Valgrind) => text.push_str(&block(race, stack)),
        }
        text.push('\n');
    }
    text
}

fn nameable(frame: &Frame) -> bool {
    frame.function.is_some() || frame.file.is_some() || frame.module.is_some()
}

/// Line breaks, which no suppression file can hold, and what would steer a
/// terminal, as the wildcard.
fn one_line(text: &str) -> String {
    race::plain_pattern(text)
}

fn tsan_pattern(frame: &Frame) -> String {
    let pinned = |name: &str| format!("^{}$", one_line(name));
    match (&frame.function, &frame.module, frame.offset) {
        (Some(function), _, _) => pinned(function),
        (None, Some(module), Some(offset)) => pinned(&format!("{module}+{offset:#x}")),
        _ => pinned(
            frame
                .file
                .as_ref()
                .or(frame.module.as_ref())
                .map_or("*", String::as_str),
        ),
    }
}

fn block(race: &Race, stack: &[Frame]) -> String {
    let mut text = format!("{{\n   deadheat-{}\n   Helgrind:Race\n", race.fingerprint);
    for frame in stack.iter().take(FRAMES) {
        let line = match (&frame.function, &frame.module) {
            (Some(function), _) => format!("fun:{}", one_line(function)),
            (None, Some(module)) => format!("obj:*{}", one_line(module)),
            (None, None) => match &frame.file {
                Some(_) => format!("src:{}", one_line(&location(frame))),
                None => "fun:*".into(),
            },
        };
        let _ = writeln!(text, "   {line}");
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::Suppressions;
    use super::*;
    use race::{Access, AccessKind, Site};
    use std::path::Path;

    fn race(function: Option<&str>, file: Option<&str>, module: Option<&str>) -> Race {
        let site = Site {
            module: module.map(Into::into),
            offset: module.map(|_| 0x8c31),
            function: function.map(Into::into),
            file: file.map(Into::into),
            line: file.map(|_| 7),
            function_line: None,
            function_offset: None,
        };
        Race::new(
            1,
            1,
            [Access::unseen(), Access::new(AccessKind::Write, 4, site)],
        )
    }

    #[test]
    fn what_is_generated_suppresses_its_race() {
        for syntax in [Syntax::Tsan, Syntax::Valgrind] {
            for one in [
                race(Some("add"), Some("a.c"), Some("prog")),
                race(
                    Some("std::vector<int*>::operator[](unsigned long) const"),
                    None,
                    None,
                ),
                race(Some("odd\nname $ ^ * ?"), None, None),
                race(None, None, Some("libfoo.so.1")),
                race(None, Some("/src/a.c"), None),
            ] {
                let mut report = Report::new("vm", vec![]);
                report.races = vec![one];
                let text = generate(&report, syntax);
                let mut read = Suppressions::default();
                read.parse(&text, Path::new("gen"))
                    .unwrap_or_else(|e| panic!("{e}\n{text}"));
                read.apply(&mut report);
                assert!(report.races[0].suppressed.is_some(), "{text}");
            }
        }
    }

    #[test]
    fn a_race_without_names_is_said_to_have_none() {
        let mut report = Report::new("vm", vec![]);
        report.races = vec![race(None, None, None)];
        assert!(generate(&report, Syntax::Tsan).contains("no function, file or module"));
    }
}
