//! The report as text: TSan's order, Miri's clarity, KCSAN's values.
//!
//! Per race: what it does to the program first (the verdict), then both
//! accesses with stacks, values and source, what was held, what orders them,
//! what was seen with the accesses swapped, what the verdict rests on, and
//! the command that shows it again. The report ends with counts and with what
//! was not checked.

use crate::Options;
use crate::source::Sources;
use crate::words::{
    access_words, count, earlier, executions, location, ordering, plain, stack, thread_words,
    title, value_words, verdict_words,
};
use race::{
    Access, AccessKind, CutShort, DifferenceKind, ErrorFinding, Frame, LockCall, LockFinding, Race,
    Report, Site, Standing, Verdict,
};
use std::fmt::Write;
use std::path::PathBuf;

const RULE: &str = "==================";
/// Frames and pieces of evidence shown before "and n more"; `--verbose` shows
/// all.
const FRAMES: usize = 16;
const EVIDENCE: usize = 4;
const DIFFERENCES: usize = 6;
/// Longest command line that the summary names.
const PROGRAM: usize = 60;
/// Column at which values begin beside a thread or a frame.
const VALUE_COLUMN: usize = 44;

/// The whole report.
pub fn render(report: &Report, options: &Options) -> String {
    let mut page = Page::new(report, options);
    let shown: Vec<&Race> = report
        .races
        .iter()
        .filter(|race| options.verbose || race.suppressed.is_none())
        .collect();
    for race in &shown {
        page.race(race);
    }
    for finding in &report.locks {
        page.lock_finding(finding);
    }
    for finding in &report.errors {
        page.line(RULE);
        page.error_finding(finding);
    }
    if !shown.is_empty() || !report.locks.is_empty() || !report.errors.is_empty() {
        page.line(RULE);
    }
    page.summary();
    page.text
}

/// One race in the same form, for `deadheat show`.
pub fn render_race(report: &Report, race: &Race, options: &Options) -> String {
    let mut page = Page::new(report, options);
    page.race(race);
    page.line(RULE);
    page.text
}

/// Every race of the report by itself, for forms that embed the text.
pub fn render_each(report: &Report, options: &Options) -> Vec<String> {
    let mut page = Page::new(report, options);
    let each = report.races.iter().map(|race| {
        page.race(race);
        page.line(RULE);
        std::mem::take(&mut page.text)
    });
    each.collect()
}

#[derive(Clone, Copy)]
enum Ink {
    Bold,
    Faint,
    Red,
    Yellow,
    Green,
    Blue,
    Cyan,
}

/// Puts text in colour, or leaves it alone.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn ink(self, ink: Ink, text: &str) -> String {
        if !self.0 || text.is_empty() {
            return text.to_string();
        }
        let code = match ink {
            Ink::Bold => "1",
            Ink::Faint => "2",
            Ink::Red => "1;31",
            Ink::Yellow => "1;33",
            Ink::Green => "32",
            Ink::Blue => "1;34",
            Ink::Cyan => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    fn verdict(self, verdict: Verdict, text: &str) -> String {
        let ink = match verdict {
            Verdict::SpecViolated | Verdict::OutputDiffers => Ink::Red,
            Verdict::StateChange | Verdict::Unclassified => Ink::Yellow,
            Verdict::SingleOrdering => Ink::Blue,
            Verdict::KWitnessHarmless | Verdict::NotARace => Ink::Green,
        };
        self.ink(ink, text)
    }
}

struct Page<'a> {
    text: String,
    paint: Paint,
    columns: usize,
    here: Option<PathBuf>,
    sources: Sources,
    report: &'a Report,
    options: &'a Options,
}

impl<'a> Page<'a> {
    fn new(report: &'a Report, options: &'a Options) -> Self {
        Page {
            text: String::new(),
            paint: Paint(options.colored()),
            columns: options.columns(),
            here: std::env::current_dir().ok(),
            sources: Sources::default(),
            report,
            options,
        }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    /// `  label     sentence`, wrapped with the sentence's left edge kept.
    fn labelled(&mut self, label: &str, sentence: &str) {
        let edge = label.chars().count();
        let mut lead = self.paint.ink(Ink::Bold, label.trim_end());
        lead.push_str(&" ".repeat(edge - label.trim_end().chars().count()));
        for (index, row) in wrap(sentence, self.columns.saturating_sub(edge))
            .iter()
            .enumerate()
        {
            if index > 0 {
                lead = " ".repeat(edge);
            }
            self.line(&format!("{lead}{row}"));
        }
    }

    fn race(&mut self, race: &Race) {
        self.line(RULE);
        self.headline(race);
        let (first, second, joint) = match earlier(race) {
            Some(0) => (&race.accesses[1], &race.accesses[0], "previous "),
            Some(_) => (&race.accesses[0], &race.accesses[1], "previous "),
            None => (&race.accesses[0], &race.accesses[1], "races with "),
        };
        self.first_access(race, first);
        self.second_access(second, joint);
        if let Some(sentence) = ordering(race, &self.report.tool) {
            self.labelled("  ", &sentence);
        }
        self.threads(first, second);
        self.object(race);
        self.consequences(race);
        self.evidence(race);
        self.people(race);
        self.replays(race);
    }

    fn headline(&mut self, race: &Race) {
        let said = format!("data race #{}: {}", race.id, title(race));
        let mut seen = format!("seen {}", times(race.instances));
        if let Some(number) = race.recordings_seen {
            let total = (self.report.recordings.len() as u64).max(u64::from(number));
            let _ = write!(seen, "; {number} of {}", count(total, "recording"));
        }
        let seen = self.paint.ink(Ink::Faint, &format!("({seen})"));
        let gap = " ".repeat(36usize.saturating_sub(said.chars().count()).max(2));
        let said = self.paint.verdict(race.verdict, &said);
        self.line(&format!("{said}{gap}{seen}"));
    }

    fn first_access(&mut self, race: &Race, access: &Access) {
        let place = race.place.as_ref();
        let address = access.address.or(place.and_then(|place| place.address));
        let mut head = format!("  {}", self.paint.ink(Ink::Bold, &access_words(access)));
        if let Some(address) = address {
            let _ = write!(head, " at {address:#x}");
        }
        if let Some(place) = place {
            let mut what = plain(&place.description).into_owned();
            if let Some(frame) = place.allocated_at.first() {
                let _ = write!(what, " from {}", self.frame_words(frame));
            }
            let _ = write!(head, "  ({what})");
        }
        self.line(&head);
        let value = value_words(access);
        let by = thread_words(access).map(|thread| format!("by {thread}"));
        match (by, value) {
            (None, value) => self.stack(access, value.as_deref()),
            (Some(by), value) => {
                self.beside(&format!("    {by}"), value.as_deref());
                self.stack(access, None);
            }
        }
        self.locks(access);
    }

    fn second_access(&mut self, access: &Access, joint: &str) {
        let said = access_words(access);
        if access.kind == AccessKind::Unknown {
            let article = if joint == "races with " { "an " } else { "" };
            self.line(&format!(
                "  {joint}{article}{}: the value changed while it was watched",
                self.paint.ink(Ink::Bold, &said)
            ));
        } else {
            let mut head = format!("  {joint}{}", self.paint.ink(Ink::Bold, &said));
            if let Some(thread) = thread_words(access) {
                let _ = write!(head, " by {thread}");
            }
            self.line(&head);
        }
        self.stack(access, value_words(access).as_deref());
        self.locks(access);
    }

    /// `left` and, at the value column, `value`.
    fn beside(&mut self, left: &str, value: Option<&str>) {
        let Some(value) = value else {
            return self.line(left);
        };
        let gap = " ".repeat(VALUE_COLUMN.saturating_sub(left.chars().count()).max(2));
        let value = self.paint.ink(Ink::Cyan, value);
        self.line(&format!("{left}{gap}{value}"));
    }

    fn stack(&mut self, access: &Access, value: Option<&str>) {
        let frames = stack(access);
        if frames.is_empty() {
            if let Some(value) = value {
                self.beside("   ", Some(value));
            }
            return;
        }
        self.frames(&frames, value, Some(&access.site));
    }

    /// The frames of a stack, numbered, with the source line of the racing
    /// one.
    fn frames(&mut self, frames: &[Frame], value: Option<&str>, racing: Option<&Site>) {
        let shown = if self.options.verbose {
            frames.len()
        } else {
            FRAMES
        };
        let width = frames
            .iter()
            .take(shown)
            .map(|frame| function_words(frame).chars().count())
            .filter(|width| *width <= 40)
            .max()
            .unwrap_or(0)
            .max(12);
        for (index, frame) in frames.iter().take(shown).enumerate() {
            let mut row = format!(
                "    #{index} {:width$} {}",
                function_words(frame),
                self.shortened(frame)
            );
            if frame.inlined {
                row.push_str(" (inlined)");
            }
            self.beside(&row, value.filter(|_| index == 0));
            if index == 0 && racing.is_some() {
                self.snippet(frame);
            }
        }
        if frames.len() > shown {
            self.line(&format!(
                "       … and {} more frames",
                frames.len() - shown
            ));
        }
    }

    fn snippet(&mut self, frame: &Frame) {
        let (Some(file), Some(line)) = (&frame.file, frame.line) else {
            return;
        };
        let Some(snippet) = self.sources.snippet(file, line, self.options.source_lines) else {
            return;
        };
        for (source, number) in snippet.lines.iter().zip(snippet.first..) {
            let sign = if number == line && snippet.lines.len() > 1 {
                '>'
            } else {
                ' '
            };
            let source = clip(&plain(source), self.columns.saturating_sub(18));
            let row = format!("      {sign}{number:6} | {source}");
            let row = self.paint.ink(Ink::Faint, row.trim_end());
            self.line(&row);
        }
    }

    fn locks(&mut self, access: &Access) {
        if !access.locks.is_empty() {
            let held: Vec<_> = access.locks.iter().map(|lock| plain(lock)).collect();
            self.line(&format!("    holding {}", held.join(", ")));
        }
    }

    /// Where the threads came from, each once.
    fn threads(&mut self, first: &Access, second: &Access) {
        let mut told: Vec<Option<String>> = Vec::new();
        for access in [first, second] {
            let name = thread_words(access);
            if access.thread_created_at.is_empty() || told.contains(&name) {
                continue;
            }
            let said = name.clone().unwrap_or_else(|| "the thread".into());
            self.line(&format!("  {said} was created by"));
            self.frames(&access.thread_created_at, None, None);
            told.push(name);
        }
    }

    /// On what else it was seen, and what it comes from.
    fn object(&mut self, race: &Race) {
        if let Some(object) = race.object.as_ref().filter(|object| object.seen > 1) {
            let said = match object.names.len() {
                0 | 1 => count(object.seen, "such object"),
                _ => plain(&object.words()).into_owned(),
            };
            self.labelled("  seen on:  ", &said);
        }
        if let Some(cause) = self.report.shared_cause(race) {
            let said = if cause.head == race.id {
                let others = cause.races.iter().filter(|other| **other != race.id);
                let others: Vec<String> = others.map(|other| format!("#{other}")).collect();
                let missing = plain(&cause.missing);
                format!("{missing}; also behind {}", others.join(", "))
            } else {
                format!("the same as of #{}", cause.head)
            };
            self.labelled("  cause:    ", &said);
        }
    }

    fn consequences(&mut self, race: &Race) {
        if let Some(text) = &race.explanation {
            self.labelled("  what it does: ", &plain(text));
        }
        for finding in &race.errors {
            self.calls(&finding.stacks);
        }
        for difference in race.differences.iter().take(self.limit(DIFFERENCES)) {
            let kind = match difference.kind {
                DifferenceKind::Output => "output",
                DifferenceKind::Memory => "memory",
                DifferenceKind::Register => "register",
                DifferenceKind::Kernel => "kernel",
                DifferenceKind::File => "file",
                DifferenceKind::Exit => "end",
            };
            let mut said = format!("{kind} {}", plain(&difference.what));
            if let Some(frame) = &difference.at {
                let _ = write!(said, " ({})", self.frame_words(frame));
            }
            self.line(&format!("    {said}"));
            for (order, value) in [
                ("recorded", &difference.recorded),
                ("swapped", &difference.swapped),
            ] {
                let value = clip(&plain(value), self.columns.saturating_sub(17));
                self.line(&format!("      {order:8}  {value}"));
            }
        }
        self.more(race.differences.len(), DIFFERENCES, "difference");
        if race.verdict == Verdict::KWitnessHarmless {
            self.labelled(
                "  note:     ",
                "not seen to do harm in the executions above; still undefined behaviour in C and C++",
            );
        }
    }

    fn evidence(&mut self, race: &Race) {
        let mut lines: Vec<String> = Vec::new();
        lines.extend(executions(race));
        lines.extend(
            race.states
                .map(|states| format!("states after both orders: {states}")),
        );
        lines.extend(
            race.evidence
                .iter()
                .take(self.limit(EVIDENCE))
                .map(|evidence| plain(&evidence.text).into_owned()),
        );
        for (index, line) in lines.iter().enumerate() {
            self.labelled(
                if index == 0 {
                    "  evidence: "
                } else {
                    "            "
                },
                line,
            );
        }
        self.more(race.evidence.len(), EVIDENCE, "observation");
        if !race.labels.is_empty() {
            self.labelled("  labels:   ", &plain(&race.labels.join(", ")));
        }
    }

    fn people(&mut self, race: &Race) {
        if let Some(mark) = &race.mark {
            let text = format!(
                "{} by {} on {}: {}",
                plain(&mark.state),
                plain(&mark.author),
                plain(mark.date.split('T').next().unwrap_or(&mark.date)),
                plain(&mark.reason)
            );
            self.labelled("  marked:   ", &text);
            if let Some(against) = &race.contradicted {
                let text = format!("the mark no longer holds: {}", plain(against));
                self.labelled("            ", &text);
            }
        }
        if let Some(suppressed) = &race.suppressed {
            let mut text = format!("by {}", plain(&suppressed.by));
            if let Some(reason) = &suppressed.reason {
                let _ = write!(text, ": {}", plain(reason));
            }
            self.labelled("  suppressed ", &text);
        }
        match race.standing {
            Some(Standing::New) => self.labelled("  baseline: ", "new"),
            Some(Standing::Worse) => {
                self.labelled("  baseline: ", "known, with a less bad verdict")
            }
            Some(Standing::Known) => self.labelled("  baseline: ", "known"),
            None => {}
        }
    }

    /// Commands are never wrapped: they are there to be copied.
    fn replays(&mut self, race: &Race) {
        for (index, command) in race.replay.iter().enumerate() {
            let label = if index == 0 { "replay:  " } else { "         " };
            let label = self.paint.ink(Ink::Bold, label);
            self.line(&format!("  {label} {}", plain(command)));
        }
    }

    /// A lock used wrongly, with the calls concerned.
    fn lock_finding(&mut self, finding: &LockFinding) {
        self.line(RULE);
        let kind = plain(&finding.kind).replace('-', " ");
        self.line(&self.paint.ink(Ink::Yellow, &kind));
        self.labelled("  ", &plain(&finding.text));
        self.calls(&finding.stacks);
    }

    /// A rule of memory or an invariant that was broken, with the stacks
    /// concerned.
    fn error_finding(&mut self, finding: &ErrorFinding) {
        let kind = plain(&finding.kind).replace('-', " ");
        self.line(&self.paint.ink(Ink::Yellow, &kind));
        self.labelled("  ", &plain(&finding.text));
        self.calls(&finding.stacks);
    }

    fn calls(&mut self, calls: &[LockCall]) {
        for call in calls {
            let head = format!("  thread {}: {}", call.moment.thread, plain(&call.what));
            self.line(&self.paint.ink(Ink::Bold, &head));
            let limit = self.limit(FRAMES);
            for (number, frame) in call.stack.iter().take(limit).enumerate() {
                self.line(&format!("    #{number} {}", self.frame_words(frame)));
            }
            self.more(call.stack.len(), FRAMES, "frame");
        }
    }

    fn summary(&mut self) {
        let program = match self.report.program.is_empty() {
            true => "the program".to_string(),
            false => command_words(&self.report.program),
        };
        let suppressed = self
            .report
            .races
            .iter()
            .filter(|race| race.suppressed.is_some())
            .count();
        let races: Vec<&Race> = self
            .report
            .races
            .iter()
            .filter(|race| race.suppressed.is_none())
            .collect();
        let mut said = match races.len() {
            0 => format!("no data races found in {program}"),
            number => {
                let counts: Vec<String> = Verdict::REPORT_ORDER
                    .into_iter()
                    .filter_map(|verdict| {
                        let number = races.iter().filter(|race| race.verdict == verdict).count();
                        let text = format!("{number} {}", verdict_words(verdict));
                        (number > 0).then(|| self.paint.verdict(verdict, &text))
                    })
                    .collect();
                let races = count(number as u64, "data race");
                let found = match self.report.causes_that_count() {
                    causes @ 1.. if causes < number => {
                        format!("{}, {races}", count(causes as u64, "cause"))
                    }
                    _ => races,
                };
                format!("{found} in {program}: {}", counts.join(", "))
            }
        };
        if suppressed > 0 {
            let _ = write!(said, " ({suppressed} suppressed)");
        }
        if !self.report.locks.is_empty() {
            let number = count(self.report.locks.len() as u64, "lock problem");
            let _ = write!(said, "; {number}");
        }
        if !self.report.errors.is_empty() {
            let number = count(self.report.errors.len() as u64, "error beside the races");
            let _ = write!(said, "; {number}");
        }
        self.line(&said);
        if let Some(code @ 1..) = self.report.exit.program {
            self.line(&match code {
                129..=192 => format!("{program} was killed by signal {}", code - 128),
                _ => format!("{program} exited with code {code}"),
            });
        }
        if let Some(run) = self.report.run {
            let hint = match races.is_empty() {
                true => String::new(),
                false => format!(
                    ": `deadheat explain {}` tells a race as a story",
                    races[0].id
                ),
            };
            self.line(&format!("this is run {run}{hint}"));
        }
        for sentence in self.report.cut_short.iter().flat_map(CutShort::sentences) {
            self.line(&plain(&sentence));
        }
        self.line("not checked:");
        for sentence in &self.report.not_checked {
            self.labelled("  - ", &plain(sentence));
        }
        if self.report.not_checked.is_empty() {
            self.labelled(
                "  - ",
                "inputs and schedules other than those that were run",
            );
        }
        if !self.report.unused_suppressions.is_empty() {
            self.line("suppressions that matched nothing:");
        }
        for one in &self.report.unused_suppressions {
            self.line(&format!("  - {}", plain(one)));
        }
    }

    fn limit(&self, usual: usize) -> usize {
        if self.options.verbose {
            usize::MAX
        } else {
            usual
        }
    }

    fn more(&mut self, number: usize, usual: usize, word: &str) {
        if number > self.limit(usual) {
            let rest = count((number - usual) as u64, word);
            self.line(&format!(
                "            … and {rest} more (--verbose shows all)"
            ));
        }
    }

    fn frame_words(&self, frame: &Frame) -> String {
        match frame.function {
            Some(_) => format!("{} {}", function_words(frame), self.shortened(frame)),
            None => self.shortened(frame),
        }
    }

    /// The frame's location, files under the current folder named from there.
    fn shortened(&self, frame: &Frame) -> String {
        let full = location(frame);
        let here = self.here.as_ref().and_then(|here| here.to_str());
        match here.and_then(|here| full.strip_prefix(here)?.strip_prefix('/')) {
            Some(short) => short.to_string(),
            None => full,
        }
    }
}

/// A command line as people say it: as it is, or the program's name alone
/// where that is long.
fn command_words(words: &[String]) -> String {
    let line = words.join(" ");
    if line.chars().count() <= PROGRAM {
        return plain(&line).into_owned();
    }
    let program = words.first().map_or("", String::as_str);
    let name = program.rsplit('/').next().unwrap_or(program);
    format!("{} …", clip(&plain(name), PROGRAM))
}

/// `once`, `41 times`.
fn times(number: u64) -> String {
    match number {
        1 => "once".into(),
        _ => format!("{number} times"),
    }
}

fn function_words(frame: &Frame) -> String {
    frame
        .function
        .as_deref()
        .map_or("??".into(), |name| plain(name).into_owned())
}

/// At most `columns` characters, with an ellipsis where something was cut.
fn clip(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_string();
    }
    let mut short: String = text.chars().take(columns.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Breaks `text` at spaces into rows of at most `columns` characters; a word
/// longer than a row has a row of its own.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > columns {
            rows.push(String::new());
            used = 0;
        }
        let row = rows.last_mut().expect("there is always a row");
        if used > 0 {
            row.push(' ');
            used += 1;
        }
        row.push_str(word);
        used += length;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_keeps_words_whole() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a verylongword b", 5), ["a", "verylongword", "b"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn clipping_counts_characters() {
        assert_eq!(clip("ünïcödé", 7), "ünïcödé");
        assert_eq!(clip("ünïcödé!", 7), "ünïcöd…");
    }
}
