//! Suppressions: races that people have decided not to hear of.
//!
//! Two syntaxes are read, also mixed in one file: ThreadSanitizer's
//! `race:PATTERN` lines and Valgrind's blocks in braces, so that the files a
//! project already has keep working. Comment lines directly above a
//! suppression are its reason; `until: 2027-01-31` in them ends it on that
//! day. A suppressed race stays in the report, with the suppression that
//! matched; it only stops being printed and counted.
//!
//! Where it differs from the originals: both accesses of a race are tried
//! (Helgrind knows only the stack of the later one); C++ names are the
//! demangled ones; modules are known by file name, so the folder part of an
//! `obj:` pattern is not looked at; `module+0xoffset` can be named where there
//! are no symbols.

mod generate;
mod pattern;
mod tsan;
mod valgrind;

pub use generate::{Syntax, generate};

use crate::{Error, clock};
use race::{Race, Report, Suppressed};
use std::cell::Cell;
use std::path::Path;

/// One suppression of a file.
#[derive(Debug)]
struct Suppression {
    /// `team.supp:12`.
    at: String,
    /// The line or the name of the block, to recognise it by.
    said: String,
    reason: Option<String>,
    /// Day after which it no longer holds, `2027-01-31`.
    until: Option<String>,
    rule: Rule,
    hits: Cell<u64>,
}

#[derive(Debug)]
enum Rule {
    Tsan(tsan::Rule),
    Valgrind(valgrind::Rule),
    /// Well-formed, but about something other than races (a leak, a lock
    /// order): kept quiet about.
    Elsewhere,
}

/// A mistake in a suppression file, before it has a file name.
struct Mistake {
    line: usize,
    what: String,
}

/// The suppressions of all files given, in order; the first that matches a
/// race is the one that is told.
#[derive(Debug, Default)]
pub struct Suppressions {
    list: Vec<Suppression>,
}

impl Suppressions {
    /// Reads every file; a mistake in any of them is an error with file and
    /// line.
    pub fn read(files: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let mut all = Suppressions::default();
        for file in files {
            let path = file.as_ref();
            let bytes =
                folder::read_named(path, crate::LARGEST_INPUT).map_err(|source| Error::Read {
                    path: path.to_path_buf(),
                    source,
                })?;
            all.parse(&String::from_utf8_lossy(&bytes), path)?;
        }
        Ok(all)
    }

    fn parse(&mut self, text: &str, path: &Path) -> Result<(), Error> {
        let name = path.display();
        let mut comments: Vec<&str> = Vec::new();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                comments.push(comment.trim());
                continue;
            }
            if line.is_empty() {
                comments.clear();
                continue;
            }
            let parsed = if line == "{" {
                valgrind::block(number, &mut lines)
            } else {
                tsan::line(line).map_err(|what| Mistake { line: number, what })
            };
            let (said, rule) = parsed.map_err(|mistake| Error::Suppression {
                path: path.to_path_buf(),
                line: mistake.line,
                what: mistake.what,
            })?;
            let (reason, until) = reason(&comments, path, number)?;
            comments.clear();
            self.list.push(Suppression {
                at: format!("{name}:{number}"),
                said,
                reason,
                until,
                rule,
                hits: Cell::new(0),
            });
        }
        Ok(())
    }

    /// Marks the races of `report` that a suppression matches and tells the
    /// report which suppressions matched nothing or have run out.
    pub fn apply(&self, report: &mut Report) {
        let today = clock::now();
        let today = &today[..10];
        for race in &mut report.races {
            race.suppressed = self.matching(race, today).map(|suppression| {
                suppression.hits.set(suppression.hits.get() + 1);
                Suppressed {
                    by: suppression.at.clone(),
                    reason: suppression.reason.clone(),
                }
            });
        }
        report.unused_suppressions = self
            .list
            .iter()
            .filter(|one| one.hits.get() == 0 && !matches!(one.rule, Rule::Elsewhere))
            .map(|one| match &one.until {
                Some(day) if one.ended(today) => {
                    format!("{} {} (ended on {day})", one.at, one.said)
                }
                _ => format!("{} {}", one.at, one.said),
            })
            .collect();
    }

    fn matching(&self, race: &Race, today: &str) -> Option<&Suppression> {
        self.list.iter().find(|one| {
            !one.ended(today)
                && match &one.rule {
                    Rule::Tsan(rule) => rule.matches(race),
                    Rule::Valgrind(rule) => rule.matches(race),
                    Rule::Elsewhere => false,
                }
        })
    }
}

impl Suppression {
    fn ended(&self, today: &str) -> bool {
        self.until.as_deref().is_some_and(|until| until < today)
    }
}

/// Reason and last day out of the comment lines above a suppression.
fn reason(
    comments: &[&str],
    path: &Path,
    number: usize,
) -> Result<(Option<String>, Option<String>), Error> {
    let mut words = Vec::new();
    let mut until = None;
    for comment in comments {
        let Some(day) = comment.strip_prefix("until:") else {
            words.push(*comment);
            continue;
        };
        let day = day.trim();
        let shape: String = day
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        if shape != "0000-00-00" {
            return Err(Error::Suppression {
                path: path.to_path_buf(),
                line: number,
                what: format!("`until: {day}` is no day; write it like `until: 2027-01-31`"),
            });
        }
        until = Some(day.to_string());
    }
    let text = words.join(" ").trim().to_string();
    Ok(((!text.is_empty()).then_some(text), until))
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Access, AccessKind, Frame, Place, Site};

    fn frame(function: &str, file: &str, module: &str, offset: u64) -> Frame {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Frame {
            function: some(function),
            file: some(file),
            line: Some(52),
            module: some(module),
            offset: Some(offset),
            inlined: false,
        }
    }

    fn race() -> Race {
        let mut write = Access::new(AccessKind::Write, 8, Site::default());
        write.stack = vec![
            frame("table::add(int*)", "/src/table.cpp", "prog", 0x1234),
            frame("worker", "/src/main.cpp", "prog", 0x2000),
        ];
        write.thread_created_at = vec![frame("spawn_all", "/src/main.cpp", "prog", 0x3000)];
        let mut read = Access::new(AccessKind::Read, 8, Site::default());
        read.stack = vec![
            frame("", "", "libfoo.so.1", 0x8c31),
            frame("poll_loop", "", "libfoo.so.1", 0x9000),
        ];
        let mut race = Race::new(1, 1, [write, read]);
        race.place = Some(Place {
            address: None,
            description: "stats.total".into(),
            allocated_at: vec![],
        });
        race
    }

    fn suppressed(text: &str) -> bool {
        let mut all = Suppressions::default();
        all.parse(text, Path::new("a.supp"))
            .unwrap_or_else(|error| panic!("{error}"));
        let mut report = Report::new("vm", vec![]);
        report.races.push(race());
        all.apply(&mut report);
        let hit = report.races[0].suppressed.is_some();
        assert_eq!(report.unused_suppressions.is_empty(), hit);
        hit
    }

    #[test]
    fn tsan_lines() {
        for yes in [
            "race:add",
            "race:^table::add(int*)$",
            "race:table::*",
            "race:main.cpp",
            "race:/src/*.cpp",
            "race:worker",
            "race:spawn_all",
            "race:stats.total",
            "race:libfoo",
            "race:libfoo.so.1+0x8c31",
            "race_top:table::add",
            "race_top:libfoo.so.1+0x8c31",
            "called_from_lib:libfoo.so",
            "# why\nrace:add",
        ] {
            assert!(suppressed(yes), "{yes}");
        }
        for no in [
            "race:^add",
            "race:add$",
            "race:subtract",
            "race:0x1234",
            "race_top:worker",
            "race:libfoo.so.1+0x8c3$",
            "called_from_lib:libbar.so",
        ] {
            assert!(!suppressed(no), "{no}");
        }
    }

    #[test]
    fn valgrind_blocks() {
        let block = |kind: &str, frames: &[&str]| {
            format!(
                "{{\n   a name\n   {kind}\n   {}\n}}\n",
                frames.join("\n   ")
            )
        };
        let race = "Helgrind:Race";
        for yes in [
            block(race, &["fun:table::add*"]),
            block(race, &["fun:*", "fun:worker"]),
            block(race, &["...", "fun:poll_loop"]),
            block(race, &["...", "fun:worker", "..."]),
            block(race, &["obj:/usr/lib/x86_64-linux-gnu/libfoo.so*"]),
            block(race, &["obj:*libfoo*", "fun:poll_????"]),
            block(race, &["src:table.cpp:52"]),
            block(race, &["src:table.cpp"]),
            block("drd:ConflictingAccess", &["fun:*", "obj:*prog"]),
            block("Memcheck,Helgrind:Race", &["fun:table*"]),
        ] {
            assert!(suppressed(&yes), "{yes}");
        }
        for no in [
            block(race, &["fun:worker"]),
            block(race, &["fun:table::add"]),
            block(race, &["fun:*", "fun:*", "fun:*"]),
            block(race, &["fun:table*", "...", "fun:main"]),
            block(race, &["src:table.cpp:53"]),
            block(race, &["obj:*libbar*"]),
        ] {
            assert!(!suppressed(&no), "{no}");
        }
    }

    #[test]
    fn other_tools_blocks_are_neither_used_nor_reported() {
        let mut all = Suppressions::default();
        let text = "{\n leak\n Memcheck:Param\n write(buf)\n fun:x\n}\nmutex:foo\ndeadlock:bar\n";
        all.parse(text, Path::new("a.supp")).unwrap();
        let mut report = Report::new("vm", vec![]);
        report.races.push(race());
        all.apply(&mut report);
        assert_eq!(report.races[0].suppressed, None);
        assert_eq!(report.unused_suppressions, Vec::<String>::new());
    }

    #[test]
    fn reasons_ends_and_places_are_kept() {
        let text = "# vendored code,\n# reported upstream\n# until: 2999-12-31\nrace:add\n\n# until: 2001-01-01\nrace:worker\nrace:nothing\n";
        let mut all = Suppressions::default();
        all.parse(text, Path::new("a.supp")).unwrap();
        let mut report = Report::new("vm", vec![]);
        report.races.push(race());
        all.apply(&mut report);
        assert_eq!(
            report.races[0].suppressed,
            Some(Suppressed {
                by: "a.supp:4".into(),
                reason: Some("vendored code, reported upstream".into()),
            })
        );
        assert_eq!(
            report.unused_suppressions,
            [
                "a.supp:7 race:worker (ended on 2001-01-01)",
                "a.supp:8 race:nothing"
            ]
        );
    }

    #[test]
    fn mistakes_name_file_and_line() {
        for (text, place, word) in [
            ("race:a\nracer:b", "a.supp:2", "racer"),
            ("race:", "a.supp:1", "pattern"),
            ("no colon", "a.supp:1", "no colon"),
            ("\n{\n name\n Helgrind:Race\n fun:a\n", "a.supp:2", "`}`"),
            ("{\n}", "a.supp:2", "name"),
            ("{\n name\n}", "a.supp:3", "kind"),
            ("{\n name\n Race\n fun:a\n}", "a.supp:3", "Race"),
            ("{\n name\n Helgrind:Race\n}", "a.supp:4", "frame"),
            ("{\n name\n Helgrind:Race\n funn:a\n}", "a.supp:4", "funn"),
            ("{\n name\n Helgrind:Race\n fun:\n}", "a.supp:4", "fun:"),
            ("{\n name\n Helgrind:Race\n ...\n}", "a.supp:5", "frame"),
            ("}\n", "a.supp:1", "}"),
            ("# until: soon\nrace:a", "a.supp:2", "soon"),
        ] {
            let error = Suppressions::default()
                .parse(text, Path::new("a.supp"))
                .expect_err(text)
                .to_string();
            assert!(
                error.contains(place) && error.contains(word),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn no_input_makes_the_reader_fall_over() {
        let pieces = [
            "{",
            "}",
            "race:",
            "fun:",
            "...",
            "\n",
            "#",
            "Helgrind:Race",
            "*",
            "$",
            "^",
            "é",
            " ",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
            }
            let mut all = Suppressions::default();
            if all.parse(&text, Path::new("a")).is_ok() {
                let mut report = Report::new("vm", vec![]);
                report.races.push(race());
                all.apply(&mut report);
            }
        }
    }
}
