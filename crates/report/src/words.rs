//! The words every form of the report shares: how a verdict, an access, a
//! frame and a count are said, and how text from the program is made safe to
//! show on a terminal.

pub(crate) use race::plain;
use race::{Access, AccessKind, Consequence, Frame, Race, Site, Verdict};
use std::borrow::Cow;
use std::fmt::Write;

/// A verdict as people read it.
pub fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::SpecViolated => "spec violated",
        Verdict::OutputDiffers => "output differs",
        Verdict::StateChange => "state change",
        Verdict::SingleOrdering => "single ordering",
        Verdict::KWitnessHarmless => "k-witness harmless",
        Verdict::NotARace => "not a race",
        Verdict::Unclassified => "unclassified",
    }
}

/// What a consequence is called after a verdict.
pub fn consequence_words(consequence: Consequence) -> &'static str {
    match consequence {
        Consequence::Crash => "crash",
        Consequence::Deadlock => "deadlock",
        Consequence::Hang => "hang",
        Consequence::MemoryError => "memory error",
        Consequence::Assert => "failed assertion",
        Consequence::Invariant => "invariant broken",
        Consequence::Output => "output",
    }
}

/// The title of a race: `spec violated: crash`, `k-witness harmless (k = 10;
/// 5 paths, 2 schedules, sequential consistency)`.
pub fn title(race: &Race) -> String {
    let mut text = verdict_words(race.verdict).to_string();
    match (race.verdict, race.consequence) {
        (Verdict::KWitnessHarmless, _) => {
            if let Some(basis) = witness_basis(race) {
                let _ = write!(text, " ({basis})");
            }
        }
        (Verdict::OutputDiffers, Some(Consequence::Output)) | (_, None) => {}
        (_, Some(consequence)) => {
            let _ = write!(text, ": {}", consequence_words(consequence));
        }
    }
    text
}

fn memory_model_words(model: &str) -> Cow<'_, str> {
    match model {
        "sc" => "sequential consistency".into(),
        "tso" => "x86 store buffers (TSO)".into(),
        other => plain(other),
    }
}

/// `k = 10; 5 paths, 2 schedules, sequential consistency`, as far as known.
fn witness_basis(race: &Race) -> Option<String> {
    let mut parts = Vec::new();
    parts.extend(race.paths.map(|n| count(u64::from(n), "path")));
    parts.extend(race.schedules.map(|n| count(u64::from(n), "schedule")));
    parts.extend(
        race.memory_model
            .as_deref()
            .map(|m| memory_model_words(m).into_owned()),
    );
    let k = race.k.map(|k| format!("k = {k}"));
    match (k, parts.is_empty()) {
        (None, true) => None,
        (None, false) => Some(parts.join(", ")),
        (Some(k), true) => Some(k),
        (Some(k), false) => Some(format!("{k}; {}", parts.join(", "))),
    }
}

/// `k = 10 executions, 5 paths, 2 schedules each, sequential consistency`.
pub fn executions(race: &Race) -> Option<String> {
    let mut parts = Vec::new();
    parts.extend(
        race.k
            .map(|k| format!("k = {k} {}", plural(u64::from(k), "execution"))),
    );
    parts.extend(race.paths.map(|n| count(u64::from(n), "path")));
    parts.extend(race.schedules.map(|n| {
        let each = if race.paths.is_some_and(|paths| paths != 1) {
            " each"
        } else {
            ""
        };
        format!("{}{each}", count(u64::from(n), "schedule"))
    }));
    parts.extend(
        race.memory_model
            .as_deref()
            .map(|m| memory_model_words(m).into_owned()),
    );
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `1 race`, `3 races`.
pub fn count(number: u64, word: &str) -> String {
    format!("{number} {}", plural(number, word))
}

fn plural(number: u64, word: &str) -> String {
    if number == 1 {
        word.to_string()
    } else {
        format!("{word}s")
    }
}

/// `write of 8 bytes`, `atomic read`, `free`, `access that was not seen`.
pub fn access_words(access: &Access) -> String {
    let atomic = if access.atomic { "atomic " } else { "" };
    let kind = match access.kind {
        AccessKind::Read => "read",
        AccessKind::Write => "write",
        AccessKind::Free => "free",
        AccessKind::Unknown => return "access that was not seen".into(),
    };
    match access.size {
        0 => format!("{atomic}{kind}"),
        size => format!("{atomic}{kind} of {}", count(u64::from(size), "byte")),
    }
}

/// `thread 2 "worker"`.
pub fn thread_words(access: &Access) -> Option<String> {
    match (access.thread, access.thread_name.as_deref()) {
        (Some(number), Some(name)) => Some(format!("thread {number} \"{}\"", plain(name))),
        (Some(number), None) => Some(format!("thread {number}")),
        (None, Some(name)) => Some(format!("thread \"{}\"", plain(name))),
        (None, None) => None,
    }
}

/// `value 17 -> 18`, `value 17`.
pub fn value_words(access: &Access) -> Option<String> {
    match (&access.value_before, &access.value_after) {
        (Some(before), Some(after)) if access.kind != AccessKind::Read => {
            Some(format!("value {} -> {}", plain(before), plain(after)))
        }
        (None, Some(after)) if access.kind != AccessKind::Read => {
            Some(format!("value -> {}", plain(after)))
        }
        (Some(value), _) | (None, Some(value)) => Some(format!("value {}", plain(value))),
        (None, None) => None,
    }
}

/// Where a frame is: `table.c:52`, `libz.so.1+0x8c31`, or nothing.
pub fn location(frame: &Frame) -> String {
    match (&frame.file, frame.line, &frame.module, frame.offset) {
        (Some(file), Some(line), _, _) => format!("{}:{line}", plain(file)),
        (Some(file), None, _, _) => plain(file).into_owned(),
        (None, _, Some(module), Some(offset)) => format!("{}+{offset:#x}", plain(module)),
        (None, _, Some(module), None) => plain(module).into_owned(),
        (None, _, None, Some(offset)) => format!("{offset:#x}"),
        (None, _, None, None) => String::new(),
    }
}

/// The site of an access as the frame it stands in.
pub fn site_frame(site: &Site) -> Frame {
    Frame {
        function: site.function.clone(),
        file: site.file.clone(),
        line: site.line,
        module: site.module.clone(),
        offset: site.offset,
        inlined: false,
    }
}

/// The stack of an access; its site alone where no stack was taken.
pub fn stack(access: &Access) -> Cow<'_, [Frame]> {
    if !access.stack.is_empty() {
        Cow::Borrowed(&access.stack)
    } else if access.site == Site::default() {
        Cow::Borrowed(&[])
    } else {
        Cow::Owned(vec![site_frame(&access.site)])
    }
}

/// The two sides in a few words each: `write add table.c:52`.
pub fn between(race: &Race) -> [String; 2] {
    race.accesses.each_ref().map(|access| {
        let kind = match access.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Free => "free",
            AccessKind::Unknown => return "an access that was not seen".into(),
        };
        let frames = stack(access);
        let Some(frame) = frames.first() else {
            return kind.into();
        };
        let function = frame.function.as_deref().map(plain);
        let parts = [Some(kind.into()), function, Some(location(frame).into())];
        let parts: Vec<Cow<str>> = parts
            .into_iter()
            .flatten()
            .filter(|part: &Cow<str>| !part.is_empty())
            .collect();
        parts.join(" ")
    })
}

/// Which of the two accesses came first in the recorded execution, as far as
/// the evidence or the recorded order tells.
pub fn earlier(race: &Race) -> Option<usize> {
    let recorded = race.orders.iter().find(|order| order.name == "recorded");
    let by_order = recorded.and_then(|order| order.events.iter().find_map(|event| event.access));
    if let Some(index @ (0 | 1)) = by_order {
        return Some(usize::from(index));
    }
    let instance = race
        .evidence
        .iter()
        .find_map(|evidence| evidence.instance)?;
    race.accesses
        .iter()
        .position(|access| access.moment == Some(instance.first))
}

/// The line about what orders the accesses.
pub fn ordering(race: &Race, tool: &str) -> Option<String> {
    if let Some(text) = &race.ordering {
        return Some(plain(text).into_owned());
    }
    match race.verdict {
        Verdict::NotARace | Verdict::SingleOrdering => None,
        _ if tool == "collide" => Some("both were in progress at the same time".into()),
        _ => Some("not ordered by any lock, atomic or join".into()),
    }
}

/// Where the program itself called a lock function: the innermost frame that is
/// not the C library's.
pub fn calling_frame(stack: &[Frame]) -> Option<&Frame> {
    let library = |frame: &&Frame| {
        frame.module.as_deref().is_some_and(|module| {
            ["libc.", "libpthread", "ld-linux"]
                .iter()
                .any(|begin| module.starts_with(begin))
        })
    };
    stack
        .iter()
        .find(|frame| !library(frame))
        .or_else(|| stack.first())
}

/// A way to use a lock wrongly.
pub struct LockKind {
    /// As in `LockFinding::kind`.
    pub name: &'static str,
    pub short: &'static str,
    pub full: &'static str,
    /// Of the Common Weakness Enumeration.
    pub weakness: &'static str,
}

/// All of them.
pub fn lock_kinds() -> &'static [LockKind] {
    &[
        LockKind {
            name: "lock-order-inversion",
            short: "Locks taken in opposite orders",
            full: "Two threads take the same locks in opposite orders. If each has its first one \
                   when it asks for its second, neither ever goes on.",
            weakness: "cwe-833",
        },
        LockKind {
            name: "unlock-not-held",
            short: "Lock released by a thread that does not hold it",
            full: "A thread unlocks a lock that it does not hold: undefined behaviour, and \
                   whoever relied on the lock is no longer protected.",
            weakness: "cwe-832",
        },
        LockKind {
            name: "destroy-held",
            short: "Lock destroyed while it is held",
            full: "A lock is destroyed, or its memory given back, while a thread holds it: \
                   undefined behaviour.",
            weakness: "cwe-667",
        },
        LockKind {
            name: "destroy-awaited",
            short: "Condition or barrier destroyed while it is waited for",
            full: "A condition variable or a barrier is destroyed while a thread is blocked on \
                   it: undefined behaviour, and nobody can wake that thread any more.",
            weakness: "cwe-667",
        },
        LockKind {
            name: "end-holding",
            short: "Thread ends while it holds a lock",
            full: "A thread ends without releasing a lock that it holds. Nobody else can release \
                   it: whoever asks for it next waits for ever.",
            weakness: "cwe-772",
        },
    ]
}

/// How a program can fail by itself.
pub fn failure_kinds() -> &'static [LockKind] {
    &[
        LockKind {
            name: "crash",
            short: "Program that crashes",
            full: "The program dies of a fault of its own in the recorded run. The recording \
                   replays it to the same instruction.",
            weakness: "cwe-755",
        },
        LockKind {
            name: "abort",
            short: "Program that aborts",
            full: "The program ends itself in the recorded run: a failed assertion, an exception \
                   that nobody caught, a check of the C library.",
            weakness: "cwe-617",
        },
        LockKind {
            name: "deadlock",
            short: "Program that deadlocks",
            full: "Threads of the recorded run wait for one another in a circle: none of them \
                   ever goes on.",
            weakness: "cwe-833",
        },
        LockKind {
            name: "exit",
            short: "Test that fails",
            full: "The program ends with an exit code other than 0 under this schedule.",
            weakness: "cwe-362",
        },
        LockKind {
            name: "output",
            short: "Output that must not be",
            full: "The program writes under this schedule what `deadheat hunt --fail-if` names.",
            weakness: "cwe-362",
        },
        LockKind {
            name: "hang",
            short: "Program that hangs",
            full: "All threads of the recorded run wait or loop for something that nobody is \
                   left to do.",
            weakness: "cwe-835",
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn witness_titles_say_what_they_rest_on() {
        let mut race = Race::new(1, 1, [Access::unseen(), Access::unseen()]);
        race.verdict = Verdict::KWitnessHarmless;
        race.k = Some(10);
        race.paths = Some(5);
        race.schedules = Some(2);
        race.memory_model = Some("sc".into());
        assert_eq!(
            title(&race),
            "k-witness harmless (k = 10; 5 paths, 2 schedules, sequential consistency)"
        );
    }
}
