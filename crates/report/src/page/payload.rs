//! The data of the page: the report with repeated things kept once.

use crate::source::Sources;
use crate::store::Sighting;
use crate::words::{
    access_words, between, consequence_words, earlier, executions, location, ordering, plain,
    stack, thread_words, title, value_words, verdict_words,
};
use race::{
    Access, CutShort, DifferenceKind, EventKind, Fingerprint, Frame, Race, Report, Standing,
    Verdict,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Lines of source around a racing line and around a caller's line.
const AROUND_RACE: usize = 9;
const AROUND_CALL: usize = 3;
/// What is spent on source at most; the racing lines are taken first.
const SOURCE_BYTES: usize = 1_200_000;
/// Longest line of source and longest value shown.
const LINE: usize = 240;
const VALUE: usize = 4_000;
const FRAMES: usize = 64;
const EVENTS: usize = 200;

pub fn build(report: &Report, histories: &HashMap<Fingerprint, Vec<Sighting>>) -> Value {
    let mut tables = Tables::default();
    let races: Vec<Value> = report
        .races
        .iter()
        .map(|race| tables.race(report, race, histories))
        .collect();
    let problems = report
        .locks
        .iter()
        .map(|finding| (&finding.kind, &finding.text, &finding.stacks));
    let errors = report
        .errors
        .iter()
        .map(|finding| (&finding.kind, &finding.text, &finding.stacks));
    let locks: Vec<Value> = problems
        .chain(errors)
        .map(|(kind, text, stacks)| {
            let calls: Vec<Value> = stacks
                .iter()
                .map(|call| {
                    json!({
                        "what": plain(&call.what),
                        "thread": call.moment.thread,
                        "stack": tables.stack(&call.stack, false),
                    })
                })
                .collect();
            json!({
                "kind": plain(kind).replace('-', " "),
                "text": plain(text),
                "calls": calls,
            })
        })
        .collect();
    let source = tables.source();
    let dates: BTreeMap<u64, &str> = histories
        .values()
        .flatten()
        .map(|sighting| (sighting.run, sighting.started.as_str()))
        .collect();
    let dates: Map<String, Value> = dates
        .into_iter()
        .map(|(run, date)| (run.to_string(), date.into()))
        .collect();
    let mut not_checked: Vec<String> = report
        .cut_short
        .iter()
        .flat_map(CutShort::sentences)
        .collect();
    not_checked.extend(report.not_checked.iter().cloned());
    json!({
        "tool": plain(&report.tool),
        "program": each(&report.program),
        "root": std::env::current_dir().ok(),
        "run": report.run,
        "started": report.started,
        "exit": report.exit,
        "recordings": each(&report.recordings),
        "notChecked": each(&not_checked),
        "unused": each(&report.unused_suppressions),
        "locks": locks,
        "verdicts": Verdict::REPORT_ORDER.map(|verdict| json!({
            "name": verdict.name(),
            "words": verdict_words(verdict),
        })),
        "strings": tables.strings.list,
        "frames": tables.frames.list,
        "source": source,
        "dates": dates,
        "races": races,
    })
}

/// A list without repetitions.
struct Once<K> {
    list: Vec<Value>,
    known: HashMap<K, usize>,
}

impl<K> Default for Once<K> {
    fn default() -> Self {
        Once {
            list: Vec::new(),
            known: HashMap::new(),
        }
    }
}

impl<K: std::hash::Hash + Eq> Once<K> {
    fn number(&mut self, key: K, value: impl FnOnce() -> Value) -> usize {
        let next = self.list.len();
        let number = *self.known.entry(key).or_insert(next);
        if number == next {
            self.list.push(value());
        }
        number
    }
}

#[derive(Default)]
struct Tables {
    strings: Once<String>,
    frames: Once<Frame>,
    /// Racing lines first, then callers' lines, each once.
    racing: Vec<(String, u32)>,
    calling: Vec<(String, u32)>,
}

impl Tables {
    fn string(&mut self, text: &Option<String>) -> Value {
        match text {
            None => (-1).into(),
            Some(text) => {
                let safe = plain(text).into_owned();
                self.strings.number(safe.clone(), || safe.into()).into()
            }
        }
    }

    fn frame(&mut self, frame: &Frame) -> usize {
        let function = self.string(&frame.function);
        let file = self.string(&frame.file);
        let place = match frame.file {
            Some(_) => Value::Null,
            None => location(frame).into(),
        };
        self.frames.number(frame.clone(), || {
            let line = frame.line.map_or(Value::Null, Value::from);
            json!([function, file, line, place, u8::from(frame.inlined)])
        })
    }

    fn stack(&mut self, frames: &[Frame], racing: bool) -> Vec<usize> {
        let mut numbers = Vec::new();
        for (index, frame) in frames.iter().take(FRAMES).enumerate() {
            numbers.push(self.frame(frame));
            if let (Some(file), Some(line)) = (&frame.file, frame.line) {
                let wanted = (file.clone(), line);
                match racing && index == 0 {
                    true => self.racing.push(wanted),
                    false => self.calling.push(wanted),
                }
            }
        }
        numbers
    }

    fn access(&mut self, access: &Access) -> Value {
        let frames = stack(access);
        compact(json!({
            "what": access_words(access),
            "thread": thread_words(access),
            "number": access.thread,
            "value": value_words(access).map(|value| clip(&value, VALUE)),
            "address": access.address.map(|address| format!("{address:#x}")),
            "moment": access.moment,
            "locks": each(&access.locks),
            "stack": self.stack(&frames, true),
            "more": frames.len().saturating_sub(FRAMES),
            "created": self.stack(&access.thread_created_at, false),
        }))
    }

    fn race(
        &mut self,
        report: &Report,
        race: &Race,
        histories: &HashMap<Fingerprint, Vec<Sighting>>,
    ) -> Value {
        let place = race.place.as_ref().map(|place| {
            compact(json!({
                "what": plain(&place.description),
                "address": place.address.map(|address| format!("{address:#x}")),
                "from": self.stack(&place.allocated_at, false),
            }))
        });
        let differences: Vec<Value> = race
            .differences
            .iter()
            .map(|difference| {
                let kind = match difference.kind {
                    DifferenceKind::Output => "output",
                    DifferenceKind::Memory => "memory",
                    DifferenceKind::Register => "register",
                    DifferenceKind::Kernel => "kernel",
                    DifferenceKind::File => "file",
                    DifferenceKind::Exit => "end",
                };
                compact(json!({
                    "kind": kind,
                    "what": plain(&difference.what),
                    "at": difference.at.as_ref().map(|frame| self.frame(frame)),
                    "recorded": clip(&lines(&difference.recorded), VALUE),
                    "swapped": clip(&lines(&difference.swapped), VALUE),
                }))
            })
            .collect();
        let orders: Vec<Value> = race
            .orders
            .iter()
            .map(|order| {
                let events: Vec<Value> = order
                    .events
                    .iter()
                    .take(EVENTS)
                    .map(|event| {
                        let kind = match event.kind {
                            EventKind::Access => "access",
                            EventKind::Acquire => "acquire",
                            EventKind::Release => "release",
                            EventKind::Switch => "switch",
                            EventKind::Block => "block",
                            EventKind::Output => "output",
                            EventKind::Signal => "signal",
                            EventKind::End => "end",
                        };
                        let access = event.access.map_or(-1, i32::from);
                        let text = clip(&plain(&event.text), LINE);
                        json!([event.thread, kind, text, access])
                    })
                    .collect();
                compact(json!({
                    "name": plain(&order.name),
                    "events": events,
                    "more": order.events.len().saturating_sub(EVENTS),
                    "outcome": order.outcome.as_deref().map(plain),
                }))
            })
            .collect();
        let evidence: Vec<Value> = race
            .evidence
            .iter()
            .map(|evidence| {
                compact(json!({
                    "text": plain(&evidence.text),
                    "replay": evidence.replay.as_deref().map(plain),
                }))
            })
            .collect();
        let history: Vec<Value> = histories
            .get(&race.fingerprint)
            .into_iter()
            .flatten()
            .map(|one| json!([one.run, one.verdict.rank(), one.instances]))
            .collect();
        let accesses = race.accesses.each_ref().map(|access| self.access(access));
        compact(json!({
            "id": race.id,
            "fingerprint": race.fingerprint,
            "verdict": race.verdict.rank(),
            "title": title(race),
            "between": between(race),
            "seen": race.instances,
            "recordings": race.recordings_seen,
            "consequence": race.consequence.map(consequence_words),
            "states": race.states.map(|states| states.to_string()),
            "tried": executions(race),
            "labels": each(&race.labels),
            "earlier": earlier(race),
            "accesses": accesses,
            "place": place,
            "cause": report.shared_cause(race).map(|cause| json!({
                "head": cause.head,
                "races": cause.races,
                "missing": plain(&cause.missing),
            })),
            "explanation": race.explanation.as_deref().map(plain),
            "ordering": ordering(race, &report.tool),
            "differences": differences,
            "orders": orders,
            "evidence": evidence,
            "replay": each(&race.replay),
            "mark": race.mark.as_ref().map(|mark| json!({
                "state": plain(&mark.state),
                "author": plain(&mark.author),
                "date": plain(&mark.date),
                "reason": plain(&mark.reason),
            })),
            "suppressed": race.suppressed.as_ref().map(|one| json!({
                "by": plain(&one.by),
                "reason": one.reason.as_deref().map(plain),
            })),
            "standing": race.standing.map(|standing| match standing {
                Standing::New => "new",
                Standing::Worse => "worse",
                Standing::Known => "known",
            }),
            "history": history,
        }))
    }

    /// `{"file number": {"line": "text", …}}` for the lines that frames need.
    fn source(&mut self) -> Value {
        let mut sources = Sources::default();
        let mut left = SOURCE_BYTES;
        let mut files: BTreeMap<usize, BTreeMap<u32, String>> = BTreeMap::new();
        let mut done: HashSet<(String, u32, usize)> = HashSet::new();
        let racing = std::mem::take(&mut self.racing)
            .into_iter()
            .map(|want| (want, AROUND_RACE));
        let calling = std::mem::take(&mut self.calling)
            .into_iter()
            .map(|want| (want, AROUND_CALL));
        for ((file, line), around) in racing.chain(calling) {
            if !done.insert((file.clone(), line, around)) {
                continue;
            }
            let Some(snippet) = sources.snippet(&file, line, around) else {
                continue;
            };
            let safe = plain(&file).into_owned();
            let Some(number) = self.strings.known.get(&safe) else {
                continue;
            };
            let lines = files.entry(*number).or_default();
            for (text, number) in snippet.lines.iter().zip(snippet.first..) {
                if left == 0 || lines.contains_key(&number) {
                    continue;
                }
                let text = clip(&plain(text), LINE);
                left = left.saturating_sub(text.len() + 8);
                lines.insert(number, text);
            }
        }
        json!(files)
    }
}

fn each(texts: &[String]) -> Vec<std::borrow::Cow<'_, str>> {
    texts.iter().map(|text| plain(text)).collect()
}

/// Output of the program: its line breaks are kept, all else that could steer
/// is made visible.
fn lines(text: &str) -> String {
    each(&text.split('\n').map(String::from).collect::<Vec<_>>()).join("\n")
}

/// Without the fields that say nothing.
fn compact(value: Value) -> Value {
    let Value::Object(fields) = value else {
        return value;
    };
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Number(number) => number.as_u64() != Some(0),
        _ => true,
    };
    // The two numbers for which zero means something.
    let keep = |name: &str, value: &Value| {
        says(value) || (matches!(name, "verdict" | "earlier" | "number" | "at") && !value.is_null())
    };
    Value::Object(
        fields
            .into_iter()
            .filter(|(name, value)| keep(name, value))
            .collect(),
    )
}

fn clip(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_string();
    }
    let mut short: String = text.chars().take(longest).collect();
    short.push('…');
    short
}
