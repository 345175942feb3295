//! One race told as a story, for someone who has never met the tool.
//!
//! It says what a data race is on this very example, what each thread did,
//! why nothing kept them apart, what came of it, how sure that is, and what
//! to do next. Everything in it is in the report already; only the telling
//! differs.

use crate::source::Sources;
use crate::terminal::wrap;
use crate::words::{
    access_words, earlier, executions, location, ordering, plain, stack, thread_words, value_words,
};
use race::{Access, AccessKind, Race, Report, States, Verdict, labels};
use std::fmt::Write;

const LINES_AROUND: usize = 5;
const WIDTH: usize = 80;

/// The story of `race` of `report`.
pub fn render(report: &Report, race: &Race) -> String {
    let mut story = Story {
        text: String::new(),
        sources: Sources::default(),
    };
    story.heading(&format!("Data race #{}", race.id));
    story.what(race);
    let [first, second] = match earlier(race) {
        Some(1) => [&race.accesses[1], &race.accesses[0]],
        _ => [&race.accesses[0], &race.accesses[1]],
    };
    story.heading("What the two threads did");
    story.side(first);
    story.side(second);
    story.heading("Why nothing keeps them apart");
    story.apart(report, race, first, second);
    story.heading("What it can do");
    story.does(race);
    story.heading("How sure this is");
    story.sure(report, race);
    if race.verdict != Verdict::NotARace {
        story.heading("What you can do");
        story.advice(race);
    }
    story.next(race);
    story.text
}

struct Story {
    text: String,
    sources: Sources,
}

impl Story {
    fn heading(&mut self, text: &str) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
        let _ = writeln!(self.text, "{text}\n{}", "-".repeat(text.chars().count()));
    }

    fn say(&mut self, text: &str) {
        for row in wrap(text, WIDTH) {
            self.text.push_str(&row);
            self.text.push('\n');
        }
    }

    fn item(&mut self, text: &str) {
        for (index, row) in wrap(text, WIDTH - 4).iter().enumerate() {
            let lead = if index == 0 { "  - " } else { "    " };
            let _ = writeln!(self.text, "{lead}{row}");
        }
    }

    fn what(&mut self, race: &Race) {
        let thing = match &race.place {
            Some(place) => format!("the same memory ({})", plain(&place.description)),
            None => "the same memory".into(),
        };
        let writes = race
            .accesses
            .iter()
            .filter(|a| a.kind != AccessKind::Read)
            .count();
        let who = match writes {
            2 => "both of them change it",
            _ => "at least one of them changes it",
        };
        let times = match race.instances {
            1 => "once".into(),
            number => format!("{number} times"),
        };
        self.say(&match race.verdict {
            Verdict::NotARace => format!(
                "Two threads use {thing}, {who}, and at first sight nothing decides which of them \
                 comes first. It was seen {times}."
            ),
            _ => format!(
                "Two threads use {thing} at the same time, {who}, and nothing in the program \
                 decides which of them comes first. That is a data race. It happened {times} \
                 while deadheat watched."
            ),
        });
        if let Some(frame) = race.allocator() {
            let function = frame
                .function
                .as_deref()
                .map(plain)
                .unwrap_or("code".into());
            self.say(&format!(
                "The memory was allocated by {function} ({}).",
                location(frame)
            ));
        }
    }

    fn side(&mut self, access: &Access) {
        if access.kind == AccessKind::Unknown {
            self.say(
                "The other side was not caught in the act: the value changed while the first \
                 thread's access was being watched, so some other thread must have written it.",
            );
            return;
        }
        let who = thread_words(access).unwrap_or_else(|| "one thread".into());
        let article = if access.atomic { "an" } else { "a" };
        let mut sentence = format!("{} does {article} {}", capital(&who), access_words(access));
        let frames = stack(access);
        if let Some(frame) = frames.first() {
            if let Some(function) = &frame.function {
                let _ = write!(sentence, " in {}", plain(function));
            }
            let place = location(frame);
            if !place.is_empty() {
                let _ = write!(sentence, " ({place})");
            }
        }
        if let Some(value) = value_words(access) {
            let _ = write!(sentence, ", {value}");
        }
        let callers: Vec<_> = frames
            .iter()
            .skip(1)
            .take(3)
            .filter_map(|frame| Some(plain(frame.function.as_deref()?).into_owned()))
            .collect();
        if !callers.is_empty() {
            let _ = write!(sentence, ", called from {}", callers.join(", from "));
        }
        sentence.push('.');
        self.say(&sentence);
        if let Some(frame) = frames.first()
            && let (Some(file), Some(line)) = (&frame.file, frame.line)
            && let Some(snippet) = self.sources.snippet(file, line, LINES_AROUND)
        {
            for (source, number) in snippet.lines.iter().zip(snippet.first..) {
                let sign = if number == line { '>' } else { ' ' };
                let row = format!("  {sign}{number:5} | {}", plain(source));
                let _ = writeln!(self.text, "{}", row.trim_end());
            }
        }
        self.text.push('\n');
    }

    fn apart(&mut self, report: &Report, race: &Race, first: &Access, second: &Access) {
        if let Some(text) = ordering(race, &report.tool) {
            self.say(&format!("{}.", capital(text.trim_end_matches('.'))));
        }
        let who =
            |access: &Access| thread_words(access).unwrap_or_else(|| "the other thread".into());
        let held = |access: &Access| {
            let names: Vec<_> = access
                .locks
                .iter()
                .map(|lock| plain(lock).into_owned())
                .collect();
            names.join(", ")
        };
        let sentence = match (first.locks.is_empty(), second.locks.is_empty()) {
            (true, true) => "No lock is known to be held at either access.".into(),
            (false, true) => one_sided(&who(first), &held(first), &who(second)),
            (true, false) => one_sided(&who(second), &held(second), &who(first)),
            (false, false) => format!(
                "{} holds {}, and {} holds {}: a lock keeps threads apart only if both take the same one.",
                capital(&who(first)),
                held(first),
                who(second),
                held(second)
            ),
        };
        self.say(&sentence);
        if first.atomic != second.atomic {
            self.say(
                "One of the accesses is atomic and the other is not. Atomicity is an agreement: \
                 it only works if every access to that memory takes part.",
            );
        }
    }

    fn does(&mut self, race: &Race) {
        self.say(match race.verdict {
            Verdict::SpecViolated => {
                "deadheat ran the program from the race on in both orders. In one of them the \
                 program breaks: this is a bug that waits for unlucky timing."
            }
            Verdict::OutputDiffers => {
                "deadheat ran the program from the race on in both orders, and what the program \
                 writes depends on which thread wins."
            }
            Verdict::StateChange => {
                "deadheat ran both orders and compared what they left in memory and registers: \
                 it is not the same. Whether users can see the difference was not explored."
            }
            Verdict::SingleOrdering => {
                "deadheat tried to make the threads go the other way round and could not: \
                 something orders them after all, though it is not proper synchronisation, so \
                 the compiler and the processor need not respect it."
            }
            Verdict::KWitnessHarmless => {
                "deadheat ran both orders, in several executions, and saw no harm. That is not a \
                 proof: other inputs, schedules or compilers may do otherwise, and in C and C++ \
                 it is undefined behaviour whatever it does today."
            }
            Verdict::NotARace => {
                "On closer examination something does order the two accesses, so this is not a race."
            }
            Verdict::Unclassified => {
                "What the race can do was not examined yet: `deadheat classify` plays both orders \
                 and says."
            }
        });
        if let Some(text) = &race.explanation {
            self.say(&format!("{}.", capital(plain(text).trim_end_matches('.'))));
        }
        for difference in &race.differences {
            self.item(&format!("{}:", plain(&difference.what)));
            let _ = writeln!(
                self.text,
                "      as recorded: {}",
                plain(&difference.recorded)
            );
            let _ = writeln!(
                self.text,
                "      swapped:     {}",
                plain(&difference.swapped)
            );
        }
        for order in &race.orders {
            let _ = writeln!(
                self.text,
                "\n  Order \"{}\", step by step:",
                plain(&order.name)
            );
            for (event, step) in order.events.iter().zip(1..) {
                let sign = if event.access.is_some() { '*' } else { ' ' };
                let _ = writeln!(
                    self.text,
                    "   {sign}{step:3}. thread {}: {}",
                    event.thread,
                    plain(&event.text)
                );
            }
            if let Some(outcome) = &order.outcome {
                let _ = writeln!(self.text, "        => {}", plain(outcome));
            }
        }
    }

    fn sure(&mut self, report: &Report, race: &Race) {
        if let Some(text) = executions(race) {
            self.item(&format!("tried: {text}"));
        }
        if let Some(states) = race.states {
            self.item(match states {
                States::NoStateChange => "both orders left the same state behind (No-State-Change)",
                States::StateChange => "the two orders left different states behind (State-Change)",
                States::ReplayFailure => {
                    "the other order could not be followed to its end (Replay-Failure), which \
                     usually means that it does something quite different"
                }
            });
        }
        for evidence in &race.evidence {
            self.item(&plain(&evidence.text));
        }
        if race.verdict == Verdict::Unclassified && race.evidence.is_empty() {
            let seen = race
                .accesses
                .iter()
                .filter(|a| a.kind != AccessKind::Unknown)
                .count();
            self.item(match seen {
                2 => "both accesses were observed; nothing else was tried",
                _ => "one access was observed, and that the value changed; nothing else was tried",
            });
        }
        for sentence in &report.not_checked {
            self.item(&format!("not checked: {}", plain(sentence)));
        }
    }

    fn advice(&mut self, race: &Race) {
        let has = |label: &str| race.labels.iter().any(|one| one == label);
        if has(labels::MIXED_ATOMIC) {
            self.item("make the plain access atomic too, with the order the other side relies on");
        }
        if has(labels::STATISTICS_COUNTER) || has(labels::REFERENCE_COUNT) {
            self.item(
                "this looks like a counter: an atomic add costs little (relaxed order suffices \
                 for statistics; a reference count needs release on the way down and acquire \
                 before the last one frees)",
            );
        }
        if has(labels::AD_HOC_SYNC) || has(labels::DOUBLE_CHECK) {
            self.item(
                "this looks like a hand-made flag: make it atomic, store with release and load \
                 with acquire, or use call_once, a condition variable or a channel",
            );
        }
        if race
            .accesses
            .iter()
            .any(|access| access.kind == AccessKind::Free)
        {
            self.item(
                "one side frees the memory: make sure the other thread is done first (join it, \
                 or count references)",
            );
        }
        self.item("if both threads need the data: take the same lock around both accesses");
        self.item("if they need it at different times: hand it over (join, channel, barrier)");
    }

    fn next(&mut self, race: &Race) {
        let mut commands = race.replay.clone();
        commands.extend(
            race.evidence
                .iter()
                .filter_map(|evidence| evidence.replay.clone()),
        );
        commands.dedup();
        if !commands.is_empty() {
            self.heading("See it yourself");
            for command in commands {
                let _ = writeln!(self.text, "  {}", plain(&command));
            }
        }
        self.heading("If you decide to live with it");
        let _ = writeln!(
            self.text,
            "  deadheat mark {} accepted --reason \"why it may stay\"",
            race.id
        );
        if let Some(mark) = &race.mark {
            self.say(&format!(
                "({} marked it {} on {}: {})",
                plain(&mark.author),
                plain(&mark.state),
                plain(&mark.date),
                match &race.contradicted {
                    Some(against) => format!("{}; {}", plain(&mark.reason), plain(against)),
                    None => plain(&mark.reason).to_string(),
                }
            ));
        }
    }
}

fn one_sided(holder: &str, lock: &str, other: &str) -> String {
    format!(
        "{} holds {lock}, but {other} holds no lock that is known: a lock keeps threads apart \
         only if both take it.",
        capital(holder)
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|c| c.to_uppercase().to_string())
        .unwrap_or_default();
    format!("{first}{}", letters.as_str())
}
