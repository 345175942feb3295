//! Valgrind's suppression blocks:
//!
//! ```text
//! {
//!    name
//!    Helgrind:Race
//!    fun:add
//!    ...
//!    obj:/usr/lib/*/libfoo.so*
//! }
//! ```

use super::Mistake;
use super::pattern::describes;
use crate::words::stack;
use race::{Frame, Race};

#[derive(Debug)]
enum Line {
    Function(String),
    Module(String),
    Source {
        file: String,
        line: Option<u32>,
    },
    /// `...`: any number of frames.
    Any,
}

#[derive(Debug)]
pub struct Rule {
    lines: Vec<Line>,
}

/// The rest of a block whose `{` stood on line `opened`.
pub fn block<'a>(
    opened: usize,
    lines: &mut impl Iterator<Item = (&'a str, usize)>,
) -> Result<(String, super::Rule), Mistake> {
    let mut next = || {
        lines
            .by_ref()
            .map(|(text, line)| (text.trim(), line))
            .find(|(text, _)| !text.is_empty() && !text.starts_with('#'))
            .ok_or(Mistake {
                line: opened,
                what: "the block that begins here has no closing `}`".into(),
            })
    };
    let wrong = |line, what: String| Err(Mistake { line, what });
    let (name, line) = next()?;
    if name == "}" {
        return wrong(line, "the block has no name in its first line".into());
    }
    let (kind, line) = next()?;
    if kind == "}" {
        return wrong(
            line,
            "the block has no kind, for instance `Helgrind:Race`".into(),
        );
    }
    let Some((tools, kind)) = kind.split_once(':') else {
        return wrong(
            line,
            format!("`{kind}` is not TOOL:KIND, for instance `Helgrind:Race`"),
        );
    };
    let said = format!("{{{name}}}");
    if !about_races(tools, kind.trim()) {
        while next()?.0 != "}" {}
        return Ok((said, super::Rule::Elsewhere));
    }
    let mut frames = Vec::new();
    let end = loop {
        let (text, line) = next()?;
        if text == "}" {
            break line;
        }
        frames.push(frame(text).map_err(|what| Mistake { line, what })?);
    };
    if frames.iter().all(|frame| matches!(frame, Line::Any)) {
        return wrong(
            end,
            "the block has no frame line; it would suppress every race".into(),
        );
    }
    Ok((said, super::Rule::Valgrind(Rule { lines: frames })))
}

/// Whether `TOOL,TOOL:KIND` is how Helgrind or DRD name a race.
fn about_races(tools: &str, kind: &str) -> bool {
    let named = |wanted: &str| {
        tools
            .split(',')
            .any(|tool| tool.trim().eq_ignore_ascii_case(wanted))
    };
    (named("helgrind") && kind == "Race") || (named("drd") && kind == "ConflictingAccess")
}

fn frame(text: &str) -> Result<Line, String> {
    if text == "..." {
        return Ok(Line::Any);
    }
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let rest = rest.trim();
    if !matches!(kind, "fun" | "obj" | "src") {
        return Err(format!(
            "`{text}` is no frame line; write fun:…, obj:…, src:… or ..."
        ));
    }
    if rest.is_empty() {
        return Err(format!("`{kind}:` has no pattern after the colon"));
    }
    Ok(match kind {
        "fun" => Line::Function(rest.to_string()),
        "obj" => Line::Module(rest.rsplit('/').next().unwrap_or(rest).to_string()),
        _ => {
            let (file, line) = match rest.rsplit_once(':') {
                Some((file, digits)) => match digits.parse() {
                    Ok(number) => (file, Some(number)),
                    Err(_) => (rest, None),
                },
                None => (rest, None),
            };
            let file = file.rsplit('/').next().unwrap_or(file).to_string();
            Line::Source { file, line }
        }
    })
}

impl Line {
    fn matches(&self, frame: &Frame) -> bool {
        let base = |path: &Option<String>| {
            path.as_deref()
                .map(|path| path.rsplit('/').next().unwrap_or(path).to_string())
        };
        match self {
            Line::Any => true,
            // A frame without symbols matches `fun:*`, as in Valgrind, where
            // it is called ???.
            Line::Function(pattern) => {
                describes(pattern, frame.function.as_deref().unwrap_or("???"))
            }
            Line::Module(pattern) => {
                base(&frame.module).is_some_and(|module| describes(pattern, &module))
            }
            Line::Source { file, line } => {
                base(&frame.file).is_some_and(|name| describes(file, &name))
                    && line.is_none_or(|line| frame.line == Some(line))
            }
        }
    }
}

impl Rule {
    pub fn matches(&self, race: &Race) -> bool {
        race.accesses
            .iter()
            .any(|access| stack_matches(&self.lines, &stack(access)))
    }
}

/// Whether the innermost frames are as the lines say; frames beyond the last
/// line do not matter. `...` keeps one point to fall back to, as a glob does.
fn stack_matches(lines: &[Line], frames: &[Frame]) -> bool {
    let (mut l, mut f) = (0, 0);
    let mut fall_back: Option<(usize, usize)> = None;
    while l < lines.len() {
        if matches!(lines[l], Line::Any) {
            fall_back = Some((l + 1, f));
            l += 1;
        } else if frames.get(f).is_some_and(|frame| lines[l].matches(frame)) {
            l += 1;
            f += 1;
        } else {
            match fall_back {
                Some((after, taken)) if taken < frames.len() => {
                    fall_back = Some((after, taken + 1));
                    l = after;
                    f = taken + 1;
                }
                _ => return false,
            }
        }
    }
    true
}
