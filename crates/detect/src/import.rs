//! Candidate races from the reports of other tools.
//!
//! Reads ThreadSanitizer's text (clang, gcc, Rust and Go), Helgrind's and
//! DRD's text and XML, and a plain list of pairs of sites, so that static
//! detectors and lockset tools can feed the same road: find the pair in a
//! recording, then classify it. What a report says about values and threads of
//! its own run is not taken over; sites, kinds of access and stacks are.
//!
//! Guarantee: a report is understood completely or refused with the line that
//! could not be. Other kinds of messages in the same log (leaks, lock orders)
//! are passed over.

use race::{Access, AccessKind, Frame, Race, Site};

/// A report that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ImportError {
    pub line: usize,
    pub what: String,
}

fn error<T>(line: usize, what: impl Into<String>) -> Result<T, ImportError> {
    Err(ImportError {
        line,
        what: what.into(),
    })
}

/// What a file holds.
#[derive(Debug)]
pub struct Imported {
    /// `import:tsan`, `import:helgrind`, `import:drd`, `import:pairs`.
    pub tool: &'static str,
    pub races: Vec<Race>,
}

/// One access of a candidate while it is being read.
#[derive(Debug)]
struct Side {
    kind: AccessKind,
    atomic: bool,
    size: u32,
    stack: Vec<Frame>,
}

impl Side {
    fn unknown() -> Side {
        Side {
            kind: AccessKind::Unknown,
            atomic: false,
            size: 0,
            stack: Vec::new(),
        }
    }

    fn into_access(self) -> Access {
        // The innermost frame with a line is the user's; interceptors and
        // library code above it mostly have none.
        let frame = self
            .stack
            .iter()
            .find(|frame| frame.line.is_some())
            .or(self.stack.first())
            .cloned()
            .unwrap_or_default();
        let site = Site {
            module: frame.module,
            offset: frame.offset,
            function: frame.function,
            file: frame.file,
            line: frame.line,
            function_line: None,
            function_offset: None,
        };
        let mut access = Access::new(self.kind, self.size, site);
        access.atomic = self.atomic;
        access.stack = self.stack;
        access
    }
}

fn race(sides: Vec<Side>) -> Option<Race> {
    let mut sides = sides.into_iter();
    let one = sides.next()?;
    let other = sides.next().unwrap_or_else(Side::unknown);
    Some(Race::new(0, 1, [one.into_access(), other.into_access()]))
}

/// Reads a file of any of the forms.
///
/// # Errors
/// With the line that could not be understood.
pub fn read(text: &str) -> Result<Imported, ImportError> {
    let has = |needle: &str| text.contains(needle);
    // A report that was cut or edited is still no list of sites.
    let is_xml = text.trim_start().starts_with('<');
    let imported = if has("<valgrindoutput>") || is_xml {
        valgrind_xml(text)?
    } else if has("WARNING: ThreadSanitizer") || has("WARNING: DATA RACE") {
        Imported {
            tool: "import:tsan",
            races: tsan(text)?,
        }
    } else if text.lines().any(|line| valgrind_line(line).is_some()) {
        valgrind_text(text)?
    } else {
        Imported {
            tool: "import:pairs",
            races: pairs(text)?,
        }
    };
    Ok(imported)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `file.c:12` or `file.c:12:7`.
fn place(text: &str) -> Option<(String, u32)> {
    let (rest, last) = text.rsplit_once(':')?;
    let last: u32 = last.parse().ok()?;
    if let Some((file, line)) = rest.rsplit_once(':')
        && let Ok(line) = line.parse()
    {
        return Some((file.to_string(), line));
    }
    (!rest.is_empty()).then(|| (rest.to_string(), last))
}

/// `(module+0x1234)`, with what follows it.
fn module(text: &str) -> Option<(String, u64)> {
    let inner = text.strip_prefix('(')?.split(')').next()?;
    let inner = inner.split_whitespace().next()?;
    let (name, offset) = inner.rsplit_once('+')?;
    let name = name.rsplit('/').next().unwrap_or(name);
    Some((name.to_string(), number(offset)?))
}

/// `#0 add table.c:52:7 (prog+0x4c1)`; the function may contain blanks.
fn tsan_frame(text: &str) -> Option<Frame> {
    let rest = text.strip_prefix('#')?;
    let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
    let mut rest = rest[digits..].trim();
    let mut frame = Frame::default();
    if let Some(at) = rest.rfind(" (")
        && let Some((name, offset)) = module(&rest[at + 1..])
    {
        frame.module = Some(name);
        frame.offset = Some(offset);
        rest = rest[..at].trim();
    }
    // A build id may stand after the module.
    if let Some(at) = rest.find(" (")
        && frame.module.is_none()
        && let Some((name, offset)) = module(&rest[at + 1..])
    {
        frame.module = Some(name);
        frame.offset = Some(offset);
        rest = rest[..at].trim();
    }
    match rest.rsplit_once(' ') {
        Some((function, at)) => match place(at) {
            Some((file, line)) => {
                frame.function = Some(function.to_string());
                frame.file = Some(file);
                frame.line = Some(line);
            }
            // `<null>`: no debug info.
            None if at == "<null>" => frame.function = Some(function.to_string()),
            None => frame.function = Some(rest.to_string()),
        },
        None if rest.is_empty() => return None,
        None => frame.function = Some(rest.to_string()),
    }
    Some(frame)
}

/// The head of an access: `Previous atomic write of size 8 at 0x7b04 by
/// thread T1 (mutexes: write M1):`, Go's `Write at 0x00c0 by goroutine 7:`.
fn tsan_access(text: &str) -> Option<Side> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("previous ").unwrap_or(&lower);
    let (atomic, rest) = match rest.strip_prefix("atomic ") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (kind, rest) = if let Some(rest) = rest.strip_prefix("write ") {
        (AccessKind::Write, rest)
    } else if let Some(rest) = rest.strip_prefix("read ") {
        (AccessKind::Read, rest)
    } else {
        return None;
    };
    if !rest.contains(" by ") || !rest.trim_end().ends_with(':') {
        return None;
    }
    let size = rest
        .strip_prefix("of size ")
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    Some(Side {
        kind,
        atomic,
        size,
        stack: Vec::new(),
    })
}

fn tsan(text: &str) -> Result<Vec<Race>, ImportError> {
    let mut races = Vec::new();
    // Line of the warning and its accesses.
    let mut open: Option<(usize, Vec<Side>)> = None;
    // Frames belong to an access, or to something else (a thread's creation).
    let mut reading = false;
    let mut close = |open: Option<(usize, Vec<Side>)>| -> Result<(), ImportError> {
        let Some((line, sides)) = open else {
            return Ok(());
        };
        if sides.iter().any(|side| side.stack.is_empty()) || sides.is_empty() {
            return error(line, "a race report without the stacks of its accesses");
        }
        races.extend(race(sides));
        Ok(())
    };
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim();
        if trimmed.starts_with("WARNING: ") {
            close(open.take())?;
            reading = false;
            let is_race = trimmed.starts_with("WARNING: DATA RACE")
                || trimmed.contains("ThreadSanitizer: data race")
                || trimmed.contains("ThreadSanitizer: heap-use-after-free");
            if is_race {
                open = Some((number, Vec::new()));
            }
            continue;
        }
        let Some((_, sides)) = &mut open else {
            continue;
        };
        if trimmed.starts_with("==================") || trimmed.starts_with("SUMMARY:") {
            close(open.take())?;
            reading = false;
        } else if let Some(side) = tsan_access(trimmed) {
            if sides.len() == 2 {
                return error(number, "a third access in one race report");
            }
            sides.push(side);
            reading = true;
        } else if trimmed.is_empty() {
            reading = false;
        } else if reading && let Some(side) = sides.last_mut() {
            if trimmed.starts_with('#') {
                match tsan_frame(trimmed) {
                    Some(frame) => side.stack.push(frame),
                    None => return error(number, format!("`{trimmed}` is no frame of a stack")),
                }
            } else if let Some(function) = trimmed.strip_suffix("()") {
                // Go: the function, then its place on a line of its own.
                side.stack.push(Frame {
                    function: Some(function.to_string()),
                    ..Frame::default()
                });
            } else if let Some((file, line)) = trimmed.split_whitespace().next().and_then(place) {
                match side.stack.last_mut() {
                    Some(frame) if frame.line.is_none() => {
                        frame.file = Some(file);
                        frame.line = Some(line);
                    }
                    _ => return error(number, "a place without its function"),
                }
            } else if !trimmed.ends_with(':') && !trimmed.starts_with('[') {
                return error(
                    number,
                    format!("`{trimmed}` is neither a frame nor an access"),
                );
            }
        }
    }
    close(open)?;
    Ok(races)
}

/// What follows `==1234== ` on a line of Valgrind's.
fn valgrind_line(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("==")?;
    let (digits, rest) = rest.split_once("==")?;
    (!digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
        .then(|| rest.strip_prefix(' ').unwrap_or(rest))
}

/// `at 0x10915B: child (race.c:6)`, `by 0x…: ??? (in /lib/libc.so.6)`.
fn valgrind_frame(text: &str) -> Option<Frame> {
    let rest = text
        .strip_prefix("at ")
        .or_else(|| text.strip_prefix("by "))?;
    let (address, rest) = rest.split_once(": ")?;
    number(&address.to_ascii_lowercase())?;
    let mut frame = Frame::default();
    let function = match rest.rsplit_once(" (") {
        Some((function, at)) => {
            let at = at.strip_suffix(')')?;
            match (at.strip_prefix("in "), place(at)) {
                (Some(object), _) => {
                    let name = object.rsplit('/').next().unwrap_or(object);
                    frame.module = Some(name.to_string());
                }
                (None, Some((file, line))) => {
                    frame.file = Some(file);
                    frame.line = Some(line);
                }
                (None, None) => {}
            }
            function
        }
        None => rest,
    };
    if function != "???" {
        frame.function = Some(function.to_string());
    }
    Some(frame)
}

/// The kind and size in a sentence of Helgrind's or DRD's.
fn valgrind_access(sentence: &str) -> Option<Side> {
    let lower = sentence.to_ascii_lowercase();
    let kind = if lower.contains("write of size") || lower.starts_with("conflicting store") {
        AccessKind::Write
    } else if lower.contains("read of size") || lower.starts_with("conflicting load") {
        AccessKind::Read
    } else {
        return None;
    };
    let size = lower
        .split("size ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    Some(Side {
        kind,
        atomic: false,
        size,
        stack: Vec::new(),
    })
}

fn valgrind_text(text: &str) -> Result<Imported, ImportError> {
    let mut tool = "import:helgrind";
    let mut races = Vec::new();
    let mut open: Option<(usize, Vec<Side>)> = None;
    let mut reading = false;
    let mut close = |open: Option<(usize, Vec<Side>)>| -> Result<(), ImportError> {
        let Some((line, sides)) = open else {
            return Ok(());
        };
        if sides.first().is_none_or(|side| side.stack.is_empty()) {
            return error(line, "a race report without a stack");
        }
        let whole = sides.into_iter().filter(|side| !side.stack.is_empty());
        races.extend(race(whole.collect()));
        Ok(())
    };
    for (number, line) in (1..).zip(text.lines()) {
        let Some(rest) = valgrind_line(line) else {
            continue;
        };
        let trimmed = rest.trim();
        if trimmed.starts_with("Possible data race during")
            || trimmed.starts_with("Conflicting store by")
            || trimmed.starts_with("Conflicting load by")
        {
            close(open.take())?;
            if trimmed.starts_with("Conflicting") {
                tool = "import:drd";
            }
            let Some(side) = valgrind_access(trimmed) else {
                return error(number, format!("`{trimmed}` names no access"));
            };
            open = Some((number, vec![side]));
            reading = true;
            continue;
        }
        let Some((_, sides)) = &mut open else {
            continue;
        };
        if trimmed.starts_with("This conflicts with a previous") {
            let Some(side) = valgrind_access(trimmed) else {
                return error(number, format!("`{trimmed}` names no access"));
            };
            sides.push(side);
            reading = true;
        } else if trimmed.starts_with("at 0x") || trimmed.starts_with("by 0x") {
            if reading && let Some(side) = sides.last_mut() {
                match valgrind_frame(trimmed) {
                    Some(frame) => side.stack.push(frame),
                    None => return error(number, format!("`{trimmed}` is no frame of a stack")),
                }
            }
        } else if trimmed.is_empty() || trimmed.starts_with("Locks held") {
            // The stack of the second access follows its sentence at once.
        } else {
            reading = false;
        }
    }
    close(open)?;
    Ok(Imported { tool, races })
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

fn valgrind_xml(text: &str) -> Result<Imported, ImportError> {
    let mut tool = "import:helgrind";
    let mut races = Vec::new();
    let mut path: Vec<(String, usize)> = Vec::new();
    let mut sides: Vec<Side> = Vec::new();
    let mut frame = Frame::default();
    let mut is_race = false;
    let mut is_valgrind = false;
    let mut content = String::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(open) = rest.find('<') {
        content.push_str(&rest[..open]);
        line += rest[..open].matches('\n').count();
        rest = &rest[open..];
        let Some(end) = rest.find('>') else {
            return error(line, "a tag that does not end");
        };
        let tag = &rest[1..end];
        let tag_line = line;
        line += rest[..=end].matches('\n').count();
        rest = &rest[end + 1..];
        if tag.starts_with('?') || tag.starts_with('!') || tag.ends_with('/') {
            content.clear();
            continue;
        }
        let Some(name) = tag.strip_prefix('/') else {
            let name = tag.split_whitespace().next().unwrap_or("");
            match name {
                "error" => {
                    sides.clear();
                    is_race = false;
                }
                "frame" => frame = Frame::default(),
                _ => {}
            }
            if path.is_empty() && name == "valgrindoutput" {
                is_valgrind = true;
            }
            path.push((name.to_string(), tag_line));
            content.clear();
            continue;
        };
        match path.pop() {
            Some((opened, _)) if opened == name => {}
            Some((opened, at)) => {
                return error(
                    tag_line,
                    format!("`</{name}>` where `<{opened}>` of line {at} is open"),
                );
            }
            None => return error(tag_line, format!("`</{name}>` was never opened")),
        }
        let value = unescape(content.trim());
        content.clear();
        let in_frame = path.last().is_some_and(|(tag, _)| tag == "frame");
        let in_error = path.iter().any(|(tag, _)| tag == "error");
        match name {
            "tool" | "protocoltool" if value == "drd" => tool = "import:drd",
            "kind" if in_error => is_race = matches!(value.as_str(), "Race" | "ConflictingAccess"),
            "text" | "what" | "auxwhat" if in_error => sides.extend(valgrind_access(&value)),
            "fn" if in_frame => frame.function = Some(value),
            "file" if in_frame => frame.file = Some(value),
            "obj" if in_frame => {
                frame.module = Some(value.rsplit('/').next().unwrap_or_default().to_string());
            }
            "line" if in_frame => match value.parse() {
                Ok(number) => frame.line = Some(number),
                Err(_) => return error(tag_line, format!("`{value}` is no line number")),
            },
            "frame" => {
                if let Some(side) = sides.last_mut() {
                    side.stack.push(std::mem::take(&mut frame));
                }
            }
            "error" if is_race => {
                if sides.first().is_none_or(|side| side.stack.is_empty()) {
                    return error(tag_line, "a race without a stack");
                }
                let mut whole: Vec<Side> = std::mem::take(&mut sides);
                whole.retain(|side| !side.stack.is_empty());
                whole.truncate(2);
                races.extend(race(whole));
            }
            _ => {}
        }
    }
    if let Some((name, at)) = path.last() {
        return error(*at, format!("`<{name}>` is not closed"));
    }
    if !is_valgrind {
        return error(
            1,
            "XML, but no report of Valgrind's: there is no <valgrindoutput>",
        );
    }
    Ok(Imported { tool, races })
}

/// `table.c:52` or `prog+0x1234`.
fn listed_site(word: &str) -> Option<Frame> {
    if let Some((module, offset)) = word.split_once("+0x") {
        return Some(Frame {
            module: (!module.is_empty()).then(|| module.to_string()),
            offset: Some(u64::from_str_radix(offset, 16).ok()?),
            ..Frame::default()
        })
        .filter(|frame| frame.module.is_some());
    }
    let (file, line) = place(word)?;
    Some(Frame {
        file: Some(file),
        line: Some(line),
        ..Frame::default()
    })
}

/// Lines such as `table.c:52 main.c:77`, with `read` or `write` before a site
/// if it is known; `#` begins a comment.
fn pairs(text: &str) -> Result<Vec<Race>, ImportError> {
    let mut races = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let mut sides = Vec::new();
        let mut kind = AccessKind::Unknown;
        let words = line.split(|letter: char| letter.is_whitespace() || letter == ',');
        for word in words.filter(|word| !word.is_empty()) {
            match word {
                "read" => kind = AccessKind::Read,
                "write" => kind = AccessKind::Write,
                "<>" | "--" | "with" => {}
                _ => match listed_site(word) {
                    Some(frame) => sides.push(Side {
                        kind: std::mem::replace(&mut kind, AccessKind::Unknown),
                        stack: vec![frame],
                        ..Side::unknown()
                    }),
                    None => {
                        return error(
                            number,
                            format!(
                                "`{word}` is no site; write `file.c:12 other.c:34` or, of a \
                                 program without debug info, `prog+0x1234 prog+0x5678`"
                            ),
                        );
                    }
                },
            }
        }
        if sides.len() != 2 {
            return error(number, "a pair has two sites: `file.c:12 other.c:34`");
        }
        races.extend(race(sides));
    }
    if races.is_empty() {
        return error(1, "no report of a known tool, and no pair of sites");
    }
    Ok(races)
}

pub(crate) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The access of a recording is the one the candidate means: some frame of
/// its stack (library code may lie above the user's) is at the same line.
fn same_side(candidate: &Access, found: &Access) -> bool {
    let kinds = match (candidate.kind, found.kind) {
        (AccessKind::Unknown, _) | (_, AccessKind::Unknown) => true,
        // An increment is shown as its write.
        (AccessKind::Read, AccessKind::Write) => true,
        (one, other) => one == other || other == AccessKind::Free,
    };
    let (Some(file), Some(line)) = (&candidate.site.file, candidate.site.line) else {
        // Stripped code: the instruction, where both say it, else the function.
        let instruction = |site: &Site| Some((site.module.clone()?, site.offset?));
        let same = match (instruction(&candidate.site), instruction(&found.site)) {
            (Some(one), Some(other)) if one == other => true,
            _ => {
                candidate.site.function.is_some() && candidate.site.function == found.site.function
            }
        };
        return kinds && same;
    };
    let here = |other: Option<&String>, at: Option<u32>| {
        other.is_some_and(|other| base(other) == base(file)) && at == Some(line)
    };
    kinds
        && (here(found.site.file.as_ref(), found.site.line)
            || found
                .stack
                .iter()
                .any(|frame| here(frame.file.as_ref(), frame.line)))
}

/// The race found is the candidate.
pub fn is_candidate(candidate: &Race, found: &Race) -> bool {
    let [one, other] = &candidate.accesses;
    let [first, second] = &found.accesses;
    let known = |access: &Access| {
        let site = &access.site;
        site.file.is_some() || site.function.is_some() || site.offset.is_some()
    };
    let matches = |one: &Access, first: &Access| !known(one) || same_side(one, first);
    (matches(one, first) && matches(other, second))
        || (matches(one, second) && matches(other, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(race: &Race) -> [Option<u32>; 2] {
        race.accesses.each_ref().map(|access| access.site.line)
    }

    const CLANG: &str = "\
==================
WARNING: ThreadSanitizer: data race (pid=19219)
  Write of size 4 at 0x7fcf47b21bc0 by thread T1:
    #0 Thread1 tiny_race.c:4:10 (exe+0x00000000a360)

  Previous write of size 4 at 0x7fcf47b21bc0 by main thread:
    #0 main /src/tiny_race.c:10:10 (exe+0x00000000a3b4) (BuildId: abc)

  Thread T1 (running) created at:
    #0 pthread_create tsan_interceptors.cc:683 (exe+0x00000001108b)

SUMMARY: ThreadSanitizer: data race tiny_race.c:4 in Thread1
==================
";

    #[test]
    fn thread_sanitizer_is_read() {
        let imported = read(CLANG).unwrap();
        assert_eq!(imported.tool, "import:tsan");
        assert_eq!(lines(&imported.races[0]), [Some(4), Some(10)]);
        assert_eq!(imported.races[0].accesses[0].site.offset, Some(0xa360));
    }

    #[test]
    fn go_is_read() {
        let text = "\
==================
WARNING: DATA RACE
Read at 0x00c0000b4010 by goroutine 7:
  main.main.func1()
      /tmp/a.go:8 +0x3a

Previous write at 0x00c0000b4010 by main goroutine:
  main.main()
      /tmp/a.go:12 +0x90

Goroutine 7 (running) created at:
  main.main()
      /tmp/a.go:7 +0x7a
==================
Found 1 data race(s)
";
        let imported = read(text).unwrap();
        assert_eq!(lines(&imported.races[0]), [Some(8), Some(12)]);
        assert_eq!(imported.races[0].accesses[0].kind, AccessKind::Read);
    }

    #[test]
    fn helgrind_and_drd_are_read() {
        let text = "\
==7== Possible data race during write of size 4 at 0x601038 by thread #1
==7== Locks held: none
==7==    at 0x400606: main (simple_race.c:13)
==7==
==7== This conflicts with a previous write of size 4 by thread #2
==7== Locks held: none
==7==    at 0x4005DC: child_fn (simple_race.c:6)
==7==    by 0x4C2B5DE: ??? (in /lib/libpthread.so)
";
        let imported = read(text).unwrap();
        assert_eq!(imported.tool, "import:helgrind");
        assert_eq!(lines(&imported.races[0]), [Some(13), Some(6)]);
        let text = "\
==9== Conflicting load by thread 1 at 0x51cba3c0 size 8
==9==    at 0x4015: f (t.cpp:55)
==9== Other segment start (thread 2)
==9==    at 0x4016: g (t.cpp:99)
";
        let imported = read(text).unwrap();
        assert_eq!(imported.tool, "import:drd");
        assert_eq!(lines(&imported.races[0]), [Some(55), None]);
    }

    #[test]
    fn xml_is_read() {
        let text = "<?xml version=\"1.0\"?>\n<valgrindoutput>\n<error>\n<kind>Race</kind>\n\
<xwhat><text>Possible data race during read of size 4 at 0x1 by thread #1</text></xwhat>\n\
<stack><frame><ip>0x1</ip><fn>f&lt;int&gt;</fn><file>a.cpp</file><line>3</line></frame></stack>\n\
<xauxwhat><text>This conflicts with a previous write of size 4 by thread #2</text></xauxwhat>\n\
<stack><frame><ip>0x2</ip><fn>g</fn><file>a.cpp</file><line>9</line></frame></stack>\n\
</error>\n</valgrindoutput>\n";
        let imported = read(text).unwrap();
        assert_eq!(lines(&imported.races[0]), [Some(3), Some(9)]);
        let damaged = text.replace("</error>\n", "");
        assert_eq!(read(&damaged).unwrap_err().line, 9);
    }

    #[test]
    fn pairs_are_read_and_damage_is_named_by_line() {
        let imported = read("# static findings\nwrite a.c:3 read b.c:4\na.c:5 <> a.c:6\n").unwrap();
        assert_eq!(imported.races.len(), 2);
        assert_eq!(imported.races[0].accesses[1].kind, AccessKind::Read);
        assert_eq!(read("a.c:3 b.c:4\nnonsense here\n").unwrap_err().line, 2);
        assert_eq!(read("").unwrap_err().line, 1);
        let damaged = CLANG.replace("    #0 Thread1 tiny_race.c:4:10", "    Thread1 ???");
        assert_eq!(read(&damaged).unwrap_err().line, 4);
        let cut: String = CLANG
            .lines()
            .take(4)
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(read(&cut).is_ok(), "one access is known, the other is not");
        let cut: String = CLANG
            .lines()
            .take(3)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(read(&cut).unwrap_err().line, 2);
    }
}
