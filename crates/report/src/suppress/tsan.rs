//! ThreadSanitizer's suppression lines, `race:PATTERN`.

use super::pattern::contains;
use crate::words::stack;
use race::{Frame, Race};

/// Which frames a pattern is tried on.
#[derive(Debug)]
enum Reach {
    /// Every frame of both accesses and of their threads' creation, and the
    /// name of the variable (`race:`).
    Anywhere,
    /// The racing frames (`race_top:`).
    Top,
    /// The library the access was made in or called from
    /// (`called_from_lib:`).
    Library,
}

#[derive(Debug)]
pub struct Rule {
    reach: Reach,
    pattern: String,
}

/// One line, known to be neither empty nor a comment.
pub fn line(text: &str) -> Result<(String, super::Rule), String> {
    let Some((kind, pattern)) = text.split_once(':') else {
        return Err(format!(
            "`{text}` is no suppression; write race:PATTERN, or a Valgrind block in braces"
        ));
    };
    let pattern = pattern.trim();
    let reach = match kind {
        "race" => Some(Reach::Anywhere),
        "race_top" => Some(Reach::Top),
        "called_from_lib" => Some(Reach::Library),
        "thread" | "mutex" | "signal" | "deadlock" => None,
        _ => {
            return Err(format!(
                "unknown kind `{kind}`; deadheat reads race, race_top and called_from_lib, \
                 and leaves thread, mutex, signal and deadlock alone"
            ));
        }
    };
    if pattern.is_empty() {
        return Err(format!("`{kind}:` has no pattern after the colon"));
    }
    let rule = match reach {
        Some(reach) => super::Rule::Tsan(Rule {
            reach,
            pattern: pattern.to_string(),
        }),
        None => super::Rule::Elsewhere,
    };
    Ok((text.to_string(), rule))
}

impl Rule {
    pub fn matches(&self, race: &Race) -> bool {
        let [first, second] = &race.accesses;
        let (one, two) = (stack(first), stack(second));
        match self.reach {
            Reach::Anywhere => {
                let created = first
                    .thread_created_at
                    .iter()
                    .chain(&second.thread_created_at);
                let variable = race.place.as_ref().map(|place| place.description.as_str());
                one.iter()
                    .chain(two.iter())
                    .chain(created)
                    .any(|frame| self.frame(frame))
                    || variable.is_some_and(|name| contains(&self.pattern, name))
            }
            Reach::Top => [&one, &two]
                .iter()
                .any(|s| s.first().is_some_and(|f| self.frame(f))),
            Reach::Library => [&one, &two].iter().any(|stack| {
                let modules = stack
                    .iter()
                    .take(2)
                    .filter_map(|frame| frame.module.as_deref());
                modules
                    .into_iter()
                    .any(|module| contains(&self.pattern, module))
            }),
        }
    }

    fn frame(&self, frame: &Frame) -> bool {
        let whole = |text: &Option<String>| {
            text.as_deref()
                .is_some_and(|text| contains(&self.pattern, text))
        };
        // Only for patterns that mean an offset, or `race:x` would match the
        // x of every 0x.
        let with_offset = || match (&frame.module, frame.offset) {
            (Some(module), Some(offset)) if self.pattern.contains("+0x") => {
                contains(&self.pattern, &format!("{module}+{offset:#x}"))
            }
            _ => false,
        };
        whole(&frame.function) || whole(&frame.file) || whole(&frame.module) || with_offset()
    }
}
