//! A race with all that is known about it, and the report that carries many.

use crate::site::hex;
use crate::{
    Access, Cause, Consequence, Difference, Fingerprint, Frame, Mark, Moment, Object, Order,
    Played, Standing, States, Suppressed, Verdict, causes, labels,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The number of the published JSON form.
pub const SCHEMA: u32 = 1;

/// One dynamic occurrence of a race: the two accesses that met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The access that came first in the recorded execution.
    pub first: Moment,
    pub second: Moment,
    pub address: u64,
    pub size: u32,
}

/// What a racy address is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// `stats.total`, `heap block of 64 bytes`, `stack of thread 2`.
    pub description: String,
    /// Where a heap block was allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocated_at: Vec<Frame>,
}

/// One observation that supports a verdict, with the command that shows it
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub id: u32,
    /// One sentence: what was run and what was seen.
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// Two static sites, in their callers, that raced on one object; over all
/// instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Race {
    pub id: u32,
    pub fingerprint: Fingerprint,
    /// What the first form of fingerprints called it, by its two sites alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_fingerprint: Option<Fingerprint>,
    /// What raced, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Object>,
    /// The number of the cause that it is one of the races of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<u32>,
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consequence: Option<Consequence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// Executions, paths and schedules behind a k-witness verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_model: Option<String>,
    #[serde(default)]
    pub labels: Vec<String>,
    /// Dynamic occurrences seen.
    pub instances: u64,
    /// The first of them, in the order in which they happened; a bounded
    /// number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occurrences: Vec<Instance>,
    /// The process of the recording that it is in, if not the first: its
    /// occurrences are moments of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// In how many of the report's recordings it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recordings_seen: Option<u32>,
    pub accesses: [Access; 2],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
    /// What, if anything, orders the accesses, where the detector has more to
    /// say than "nothing does".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
    /// Instances that were played in both orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub played: Option<Played>,
    /// Rules of memory and invariants that are broken in one order only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorFinding>,
    /// What is not the same in the two orders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// The two orders, event by event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Order>,
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    #[serde(default)]
    pub replay: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<Suppressed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// What was found since the mark was given and speaks against it; the
    /// mark then decides nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
}

impl Race {
    /// A race as a detector finds it: two accesses, no verdict yet.
    pub fn new(id: u32, instances: u64, accesses: [Access; 2]) -> Self {
        Race {
            id,
            fingerprint: Fingerprint::of(&accesses, None),
            former_fingerprint: Some(Fingerprint::former(&accesses)),
            object: None,
            cause: None,
            verdict: Verdict::Unclassified,
            consequence: None,
            states: None,
            k: None,
            paths: None,
            schedules: None,
            memory_model: None,
            labels: Vec::new(),
            instances,
            occurrences: Vec::new(),
            process: None,
            recordings_seen: None,
            accesses,
            place: None,
            explanation: None,
            ordering: None,
            played: None,
            errors: Vec::new(),
            differences: Vec::new(),
            orders: Vec::new(),
            evidence: Vec::new(),
            replay: Vec::new(),
            suppressed: None,
            mark: None,
            contradicted: None,
            standing: None,
        }
    }
}

impl Race {
    /// The race is on the word of a lock that the program has made itself, and
    /// what the lock guards is in order: in a group of its own, below all else.
    pub fn is_home_made_lock(&self) -> bool {
        self.labels
            .iter()
            .any(|label| label == labels::HOME_MADE_LOCK)
    }

    /// The call that asked for the memory, where it raced on the heap: the one
    /// that knows what it is for, else the allocator.
    pub fn allocator(&self) -> Option<&Frame> {
        let frames = &self.place.as_ref()?.allocated_at;
        let knows = self
            .object
            .as_ref()
            .and_then(|object| object.allocated.as_ref());
        let is_it = |frame: &&Frame| {
            knows.is_some_and(|site| {
                (&site.module, &site.function, site.line)
                    == (&frame.module, &frame.function, frame.line)
            })
        };
        frames.iter().find(is_it).or(frames.first())
    }

    /// Says what it is that raced.
    pub fn set_object(&mut self, object: Object) {
        self.fingerprint = Fingerprint::of(&self.accesses, Some(&object));
        self.object = Some(object);
    }

    /// Takes in on what else the same race was seen.
    pub fn join_objects(&mut self, other: &Race) {
        if let (Some(object), Some(more)) = (&mut self.object, &other.object) {
            object.join(more);
        }
    }

    /// The race fits a pattern that is harmless more often than not (paper
    /// 002, section 3.3): shown after the others, never hidden.
    pub fn is_set_aside(&self) -> bool {
        self.labels.iter().any(|label| {
            [
                labels::STATISTICS_COUNTER,
                labels::DISJOINT_BITS,
                labels::SPECIAL_VARIABLE,
            ]
            .contains(&label.as_str())
        })
    }
}

/// How the program and deadheat ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code of the program, 128 + signal if it died of one; absent when
    /// it was still running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<i32>,
    pub deadheat: i32,
}

/// What was not done, because somebody ended the work or its time was up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutShort {
    /// `SIGINT`, `SIGTERM` or `budget`.
    pub by: String,
    /// Its number, if it was a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What is left to do, in words without a verb: `3 of 7 races: what they
    /// can do`.
    pub left: Vec<String>,
    /// The command that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub go_on: Option<String>,
}

impl CutShort {
    /// One sentence for each thing there is to say.
    pub fn sentences(&self) -> Vec<String> {
        let why = match self.by.as_str() {
            "budget" => "its time was up".to_string(),
            signal => format!("{signal} came"),
        };
        if self.left.is_empty() {
            return vec![format!("{why} when all was done")];
        }
        let mut said = vec![format!("this report is not complete, because {why}")];
        said.extend(self.left.iter().map(|what| format!("left: {what}")));
        said.extend(
            self.go_on
                .iter()
                .map(|command| format!("go on with: {command}")),
        );
        said
    }
}

/// A lock used against its rules, or in an order that can deadlock; reported
/// beside the races.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockFinding {
    /// `lock-order-inversion`, `unlock-not-held`, `destroy-held`,
    /// `destroy-awaited` or `end-holding`.
    pub kind: String,
    /// One sentence.
    pub text: String,
    /// Addresses of the locks.
    pub locks: Vec<String>,
    /// The calls concerned, with what each is.
    pub stacks: Vec<LockCall>,
}

/// One call of a lock function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockCall {
    pub what: String,
    pub moment: Moment,
    pub stack: Vec<Frame>,
}

/// A rule of memory or an invariant that was broken, without the program
/// having to end for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorFinding {
    /// `use-after-free`, `heap-overflow`, `invariant-violated`, …
    pub kind: String,
    /// One sentence.
    pub text: String,
    /// The access or call, and those that allocated and freed the block.
    pub stacks: Vec<LockCall>,
}

/// How a run of the program failed by itself, races or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// `crash`, `abort`, `deadlock` or `hang`; of a hunt also `exit` and `output`.
    pub kind: String,
    /// One sentence without a subject: `crashes with SIGSEGV …`.
    pub text: String,
    /// The process of the recording that it is in, if not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Where in the program's own code, without a line for a loop.
    pub at: Vec<String>,
    /// What each thread concerned was doing.
    pub stacks: Vec<LockCall>,
    /// In how many of the report's recordings it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recordings_seen: Option<u32>,
    /// What became of the program under schedules other than the recorded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<String>,
    #[serde(default)]
    pub replay: Vec<String>,
}

impl RunFailure {
    /// The same failure, in whichever run.
    pub fn same_as(&self, other: &RunFailure) -> bool {
        self.kind == other.kind && self.at == other.at
    }
}

/// One report: what `--json` prints, what the page and CI read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// `vm`, `collide`, `ifr`, `import:tsan`, …
    pub tool: String,
    pub program: Vec<String>,
    #[serde(default)]
    pub recordings: Vec<String>,
    /// Number of the run in the store that keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// When the run began, UTC, `2026-11-15T21:40:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    pub races: Vec<Race>,
    /// What the races come from, in the order of their first races.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Crashes, deadlocks and hangs of the recorded runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<RunFailure>,
    /// Locks used wrongly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockFinding>,
    /// Rules of memory and invariants that are broken whichever access of a
    /// race comes first: errors of the program beside its races.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorFinding>,
    /// What this run did not look at, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
    /// The work was ended before it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<CutShort>,
    /// Suppressions that matched no race, `team.supp:12 race:add`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_suppressions: Vec<String>,
    pub exit: Exit,
}

impl Report {
    pub fn new(tool: &str, program: Vec<String>) -> Self {
        Report {
            schema: SCHEMA,
            tool: tool.to_string(),
            program,
            recordings: Vec::new(),
            run: None,
            started: None,
            races: Vec::new(),
            causes: Vec::new(),
            failures: Vec::new(),
            locks: Vec::new(),
            errors: Vec::new(),
            not_checked: Vec::new(),
            cut_short: None,
            unused_suppressions: Vec::new(),
            exit: Exit::default(),
        }
    }

    /// Its recordings are not kept: there is nothing that could be replayed.
    pub fn forget_recordings(&mut self) {
        self.recordings.clear();
        for race in &mut self.races {
            race.replay.clear();
            for evidence in &mut race.evidence {
                evidence.replay = None;
            }
        }
        for failure in &mut self.failures {
            failure.replay.clear();
        }
        if !self.races.is_empty() || !self.failures.is_empty() {
            self.not_checked.push(
                "no recording was kept, so nothing of this can be replayed: `--output DIR` keeps it"
                    .into(),
            );
        }
    }

    /// Something is left to do, in words without a verb.
    pub fn leave(&mut self, what: String) {
        let cut_short = self.cut_short.get_or_insert_default();
        if !cut_short.left.contains(&what) {
            cut_short.left.push(what);
        }
    }

    /// What is left of another report is left of this one.
    pub fn leave_all(&mut self, other: Option<CutShort>) {
        for what in other.into_iter().flat_map(|other| other.left) {
            self.leave(what);
        }
    }

    /// Puts the races in report order (worst verdict first, what is set aside
    /// last among equals, then most seen), numbers them from 1 and says which of
    /// them have one cause.
    pub fn sort_and_number(&mut self) {
        self.races.sort_by_key(|race| {
            (
                race.is_home_made_lock(),
                race.verdict.rank(),
                race.is_set_aside(),
                u64::MAX - race.instances,
            )
        });
        for (race, id) in self.races.iter_mut().zip(1..) {
            race.id = id;
        }
        self.find_causes();
    }

    /// Causes of which some race is not suppressed.
    pub fn causes_that_count(&self) -> usize {
        let shown = self.races.iter().filter(|race| race.suppressed.is_none());
        let causes: BTreeSet<u32> = shown.filter_map(|race| race.cause).collect();
        causes.len()
    }

    /// The cause of a race, if it has others to it.
    pub fn shared_cause(&self, race: &Race) -> Option<&Cause> {
        let own = |cause: &&Cause| Some(cause.id) == race.cause && cause.races.len() > 1;
        self.causes.iter().find(own)
    }

    /// Says which races have one cause.
    pub fn find_causes(&mut self) {
        self.causes = causes(&self.races);
        for race in &mut self.races {
            let own = |cause: &&Cause| cause.races.contains(&race.id);
            race.cause = self.causes.iter().find(own).map(|cause| cause.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessKind, Site};

    fn race() -> Race {
        let mut access = Access::new(
            AccessKind::Write,
            8,
            Site {
                module: Some("prog".into()),
                offset: Some(0x1234),
                function: Some("add".into()),
                file: Some("table.c".into()),
                line: Some(52),
                function_line: None,
                function_offset: None,
            },
        );
        access.moment = Some(Moment::new(2, 18234));
        Race::new(3, 41, [access, Access::unseen()])
    }

    #[test]
    fn json_has_the_published_names() {
        let value = serde_json::to_value(race()).unwrap();
        assert_eq!(value["verdict"], "unclassified");
        assert_eq!(value["accesses"][0]["kind"], "write");
        assert_eq!(value["accesses"][0]["offset"], "0x1234");
        assert_eq!(value["accesses"][0]["moment"], "2:18234");
        assert_eq!(value["accesses"][1]["kind"], "unknown");
        assert!(value.get("states").is_none(), "unknown things are absent");
    }

    #[test]
    fn json_round_trips() {
        let mut report = Report::new("vm", vec!["./prog".into()]);
        report.races.push(race());
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn what_is_left_is_said_once() {
        let mut report = Report::new("vm", vec![]);
        report.leave("what 2 races can do".into());
        report.leave("what 2 races can do".into());
        let mut cut_short = report.cut_short.clone().unwrap();
        cut_short.by = "SIGINT".into();
        cut_short.go_on = Some("deadheat classify rec".into());
        assert_eq!(
            cut_short.sentences(),
            [
                "this report is not complete, because SIGINT came",
                "left: what 2 races can do",
                "go on with: deadheat classify rec",
            ]
        );
        cut_short.left.clear();
        assert_eq!(cut_short.sentences(), ["SIGINT came when all was done"]);
    }

    #[test]
    fn worst_comes_first() {
        let mut report = Report::new("vm", vec![]);
        for verdict in Verdict::REPORT_ORDER.iter().rev() {
            let mut race = race();
            race.verdict = *verdict;
            report.races.push(race);
        }
        report.sort_and_number();
        let order: Vec<_> = report.races.iter().map(|race| race.verdict).collect();
        assert_eq!(order, Verdict::REPORT_ORDER);
        assert_eq!(report.races[6].id, 7);
    }
}
