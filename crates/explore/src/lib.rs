//! What a race can do: the four-way classification of Portend+ (paper 003,
//! sections 3, 4.1, 4.2, 4.4, 4.6, 4.7 and 5) as far as it needs no symbolic
//! values.
//!
//! For each race some of its occurrences are taken as primaries (`paths`). A
//! copy of the world is brought to the race point, both accesses poised
//! (`point`); from there both orders are run to their ends under one schedule
//! after another (`policy`, `pair`), and only what differs inside such a pair
//! is put down to the race. `verdict` makes one answer of all pairs:
//! - **spec violated**: one order crashes, aborts, deadlocks or never ends;
//! - **output differs**: the two can be told apart from outside;
//! - **k-witness harmless**: k pairs, and nothing told them apart;
//! - **single ordering**: the second access cannot come first, and why.
//!
//! Deviations: the paper compares every alternate with the primary; here an
//! alternate is compared with the same schedule in the other order, so that
//! output that depends on the schedule alone is not blamed on the race (it is
//! labelled). Schedules decide at events rather than at instruction counts.
//! The race point is behind both threads' causal pasts (design), so accesses
//! far apart can be swapped.
//! Occurrences may also be of other executions (`origin`): under another
//! schedule from the start on, which the paper left out, or after a race that
//! was swapped.
//! Guarantee: spec violated and output differs are only said of executions
//! that were run and can be run again (`witness`). Harmless means: not seen to
//! do harm in k executions.

mod alone;
mod compare;
mod consequence;
mod locks;
mod model;
mod names;
mod origin;
mod pair;
mod paths;
mod point;
mod policy;
mod run;
mod spin;
mod verdict;
mod volatile;
mod waits;
mod witness;

pub use compare::{Bytes, OutputComparison, OutputDifference};
pub use consequence::{
    AllocatorError, CheckError, Checks, ErrorKind, Finding, InvariantError, Mixed,
};
pub use consequence::{guarded_functions, program_of};
pub use model::{MemoryModel, SequentialConsistency};
pub use names::{is_own, modules, own_frame, own_place, place, stack};
pub use origin::Origin;
pub use pair::{Outcome, Pair, Poised};
pub use paths::{MOST_LEADS, PathSource, Recorded};
pub use point::{Barrier, Occurrence};
pub use policy::Schedule;
pub use run::{Ending, Run, ended, finish, signal_name};
pub use verdict::{Conclusion, conclude};
pub use volatile::LeftOut;
pub use witness::{Replayed, Scripted, Witness, read_evidence, write_evidence};

use consequence::Watching;
use pair::Plan;
use race::{Instance, Moment};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::rc::Rc;
use vm::copy::InputIndex;
use vm::record::{RecordError, Recording};
use vm::snapshot::{CopyError, Failed, Limits, Running};
use vm::{Stop, Vm, interruption};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("replaying to classify races: {0}")]
    Replay(Failed),
    #[error("cannot keep the evidence in {path}: {error}")]
    Evidence {
        path: std::path::PathBuf,
        error: std::io::Error,
    },
    #[error("there is no evidence {number} in {path}; `deadheat classify` lists it")]
    NoEvidence {
        number: u32,
        path: std::path::PathBuf,
    },
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Recording(error) => error.exit_code(),
            Error::Replay(failed) => failed.exit_code,
            Error::NoEvidence { .. } => race::exit_code::USAGE,
            Error::Copy(_) | Error::Evidence { .. } => race::exit_code::FAILURE,
        }
    }
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Pairs of executions per race.
    pub k: u32,
    /// Schedules per primary; primaries are k divided by this, rounded up.
    pub schedules: u32,
    pub seed: u64,
    /// Show how far it is, if standard error is a terminal.
    pub progress: bool,
    /// Orders that leave the same state are run on from there as well, and must
    /// do the same: a test of the comparison of states.
    pub audit: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            k: 10,
            schedules: 5,
            seed: 0,
            progress: false,
            audit: false,
        }
    }
}

impl Settings {
    /// Occurrences of each race that are looked at.
    pub fn primaries(&self) -> usize {
        self.k.div_ceil(self.schedules.max(1)).max(1) as usize
    }
}

/// One race to look at.
pub struct Subject {
    pub source: Box<dyn PathSource>,
}

/// What was found out about one primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    pub occurrence: Occurrence,
    /// The accesses as they were swapped, if they could be.
    pub poised: Option<Poised>,
    pub pairs: Vec<Pair>,
    /// Both orders left the same state when each thread had come to its next
    /// sequencer. The pairs are run all the same: another schedule may switch
    /// before that.
    pub equal_states: bool,
    /// What the orders did that had left the same state, if they then went
    /// different ways (`Settings::audit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parted: Option<String>,
    /// Why the second access cannot come first.
    pub barrier: Option<Barrier>,
    /// What went wrong, if it could not be looked at.
    pub failed: Option<String>,
    pub limit: u64,
    /// Where threads could be preempted besides synchronisation.
    pub racy: Vec<u64>,
    /// What was watched.
    #[serde(default)]
    pub checks: Checks,
    /// What the reads of the race can see besides what was written.
    #[serde(default)]
    pub mixed: Vec<Mixed>,
}

impl Looked {
    fn new(occurrence: Occurrence) -> Self {
        Looked {
            occurrence,
            poised: None,
            pairs: Vec::new(),
            equal_states: false,
            parted: None,
            barrier: None,
            failed: None,
            limit: 0,
            racy: Vec::new(),
            checks: Checks::default(),
            mixed: Vec::new(),
        }
    }

    fn failed(occurrence: Occurrence, why: String) -> Self {
        Looked {
            failed: Some(why),
            ..Looked::new(occurrence)
        }
    }

    pub fn violates(&self) -> bool {
        matches!(self.barrier, Some(Barrier::Violates(_)))
            || self
                .pairs
                .iter()
                .any(|pair| matches!(pair.outcome, Outcome::Violation { .. }))
    }
}

/// All that was looked at, race by race.
pub struct Exploration {
    pub looked: Vec<Vec<Looked>>,
    /// Occurrences of each race that were not looked at, because the work was
    /// over (`vm::interruption`).
    pub left: Vec<usize>,
    /// What could not be watched, in sentences.
    pub not_checked: Vec<String>,
}

/// What one replay tells before anything is tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Survey {
    inputs: InputIndex,
    /// Instructions of the whole recorded run.
    instructions: u64,
    /// Program counters of the racy accesses: of the first occurrence of each race,
    /// where threads can be preempted, and of all that were looked at.
    racy: Vec<u64>,
    sites: Vec<u64>,
    /// First accesses that find memory without a value.
    unborn: BTreeSet<Moment>,
}

/// Occurrences whose instructions are looked at: a stop costs microseconds, and there
/// are few instructions.
const LOOKED_AT: usize = 1000;

/// Replays the recording once; threads can be preempted where they are at
/// these moments, and these occurrences will be looked at.
pub fn survey(
    recording: &Recording,
    moments: &[Moment],
    occurrences: &[Occurrence],
) -> Result<Survey, Error> {
    let step = occurrences.len().div_ceil(LOOKED_AT).max(1);
    let others = occurrences.iter().step_by(step);
    let others = others.flat_map(|other| [other.instance.first, other.instance.second]);
    let all: Vec<Moment> = moments.iter().copied().chain(others).collect();
    let stops: Vec<Instance> = all
        .iter()
        .map(|moment| Instance {
            first: *moment,
            second: *moment,
            address: 0,
            size: 0,
        })
        .collect();
    let order = reorder::in_recorded_order(recording, &stops)?;
    let answer = vm::snapshot::isolated(|| {
        let mut vm = Vm::replay(recording)?;
        vm.may_read_files();
        vm.mute();
        vm.log_inputs();
        let unborn = consequence::watch_births(&mut vm, occurrences).ok();
        let (mut racy, mut sites) = (BTreeSet::new(), BTreeSet::new());
        for index in order {
            let moment = stops[index].first;
            if let Stop::Reached(_) = vm.run(Some(moment))?
                && vm.executed(moment.thread) == moment.count
                && let Some(regs) = vm.registers(moment.thread)
            {
                sites.insert(regs.rip);
                if index < moments.len() {
                    racy.insert(regs.rip);
                }
            }
        }
        vm.run(None)?;
        vm.take_observers();
        Ok(Survey {
            unborn: unborn.map(|unborn| unborn.take()).unwrap_or_default(),
            instructions: vm.instructions(),
            inputs: vm.take_input_index(),
            racy: racy.into_iter().collect(),
            sites: sites.into_iter().collect(),
        })
    })?;
    answer.join()?.map_err(Error::Replay)
}

impl Survey {
    /// Instructions of the whole recorded run.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Another execution of the recorded program, from its start: the same
    /// each time. Nothing of it reaches the outside.
    pub fn start(&self, recording: &Recording, origin: Origin) -> Result<Vm, vm::Error> {
        let limit = run::limit_for(self.instructions);
        origin.start(recording, &self.inputs, &self.racy, limit)
    }
}

/// Looks at every race.
pub fn explore(
    recording: &Recording,
    subjects: &[Subject],
    survey: &Survey,
    settings: Settings,
    checks: &Checks,
) -> Result<Exploration, Error> {
    let primaries: Vec<Vec<Occurrence>> = subjects
        .iter()
        .map(|subject| subject.source.primaries(settings.primaries()))
        .collect();
    let mut exploration = Exploration {
        looked: subjects.iter().map(|_| Vec::new()).collect(),
        left: subjects.iter().map(|_| 0).collect(),
        not_checked: Vec::new(),
    };
    if primaries.iter().all(Vec::is_empty) {
        return Ok(exploration);
    }
    let journal = Journal::open(recording, settings, checks);
    let total: usize = primaries.iter().map(Vec::len).sum();
    let mut done = 0;
    for round in 0..=settings.primaries() {
        let mut todo = Vec::new();
        for (subject, occurrences) in primaries.iter().enumerate() {
            let (own, _) = parts(occurrences, round, settings.primaries());
            // Worse than a violated specification it cannot get.
            if exploration.looked[subject].iter().any(Looked::violates) {
                done += own.len();
                continue;
            }
            for occurrence in own {
                match journal.find(occurrence) {
                    Some(looked) => {
                        exploration.looked[subject].push(looked.clone());
                        done += 1;
                    }
                    None => todo.push((subject, *occurrence)),
                }
            }
        }
        if todo.is_empty() {
            continue;
        }
        let count = todo.len();
        let subjects_todo: Vec<usize> = todo.iter().map(|(subject, _)| *subject).collect();
        let work = Work {
            recording,
            survey,
            settings,
            journal: &journal,
            progress: (done, total),
            checks,
        };
        let (found, not_checked) = match work.rounds(todo) {
            Err(_) if interruption::is_over() => Default::default(),
            found => found?,
        };
        for sentence in not_checked {
            if !exploration.not_checked.contains(&sentence) {
                exploration.not_checked.push(sentence);
            }
        }
        done += count;
        for subject in subjects_todo {
            exploration.left[subject] += 1;
        }
        for (subject, looked) in found {
            exploration.left[subject] -= 1;
            exploration.looked[subject].push(looked);
        }
        if interruption::is_over() {
            let rest = |own: &Vec<Occurrence>| parts(own, round, settings.primaries()).1.len();
            for (left, own) in exploration.left.iter_mut().zip(&primaries) {
                *left += rest(own);
            }
            break;
        }
    }
    if settings.progress && std::io::stderr().is_terminal() {
        // A line that does not show is no reason to stop.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    for (left, looked) in exploration.left.iter_mut().zip(&exploration.looked) {
        // Worse than a violated specification it cannot get.
        if looked.iter().any(Looked::violates) {
            *left = 0;
        }
    }
    match tell_allocations(recording, &mut exploration, checks) {
        // The findings stand without these stacks.
        Err(Error::Copy(CopyError::Interrupted)) => {}
        told => told?,
    }
    Ok(exploration)
}

/// The occurrences of a race that are looked at in this round, and those that come
/// later: one in each round, because one that does harm saves the others; those
/// beyond the number of primaries all at once, because a round costs a replay.
fn parts(own: &[Occurrence], round: usize, primaries: usize) -> (&[Occurrence], &[Occurrence]) {
    let begin = round.min(own.len());
    let end = match round < primaries {
        true => (round + 1).min(own.len()),
        false => own.len(),
    };
    (&own[begin..end], &own[end..])
}

/// Reads the stacks of what was allocated, freed or written before the race
/// points.
fn tell_allocations(
    recording: &Recording,
    exploration: &mut Exploration,
    checks: &Checks,
) -> Result<(), Error> {
    let mut findings: Vec<&mut Finding> = Vec::new();
    // Moments of other executions are none of the recording's.
    for pair in exploration
        .looked
        .iter_mut()
        .flatten()
        .filter(|looked| looked.occurrence.before.is_none())
        .flat_map(|looked| &mut looked.pairs)
    {
        if let Outcome::Violation {
            ending: Ending::Erred(finding),
            ..
        } = &mut pair.outcome
        {
            findings.push(finding);
        }
        findings.extend(pair.errors.iter_mut().flatten());
        findings.extend(&mut pair.common_errors);
    }
    let mut list: Vec<Finding> = findings.iter().map(|finding| (*finding).clone()).collect();
    if list.is_empty() {
        return Ok(());
    }
    let wanted = consequence::wanted(&list);
    let stacks = consequence::recorded(recording, wanted, &checks.custom_functions())?;
    consequence::fill(&mut list, &stacks);
    for (finding, told) in findings.into_iter().zip(list) {
        *finding = told;
    }
    Ok(())
}

struct Work<'a> {
    recording: &'a Recording,
    survey: &'a Survey,
    settings: Settings,
    journal: &'a Journal,
    progress: (usize, usize),
    checks: &'a Checks,
}

/// What was found, by subject, and what could not be watched.
type Round = (Vec<(usize, Looked)>, Vec<String>);

/// Indices of occurrences as their first accesses come, their distances, and
/// the instructions of the whole execution.
type Order = (Vec<usize>, Vec<u64>, Option<u64>);

type InFlight = (usize, Occurrence, Running<Result<Looked, String>>);

impl Work<'_> {
    /// One primary of each race, in one pass over each execution that has
    /// some.
    fn rounds(&self, todo: Vec<(usize, Occurrence)>) -> Result<Round, Error> {
        let mut executions: Vec<Option<Origin>> = Vec::new();
        for (_, occurrence) in &todo {
            if !executions.contains(&occurrence.before) {
                executions.push(occurrence.before);
            }
        }
        let (mut found, mut not_checked) = (Vec::new(), Vec::new());
        for before in executions {
            let own = todo
                .iter()
                .filter(|(_, occurrence)| occurrence.before == before)
                .copied()
                .collect();
            let (more, sentences) = self.round(before, own)?;
            found.extend(more);
            not_checked.extend(sentences);
        }
        Ok((found, not_checked))
    }

    /// The execution that occurrences with this origin are of.
    fn execution(&self, before: Option<Origin>) -> Result<Vm, vm::Error> {
        match before {
            None => {
                let mut vm = Vm::replay(self.recording)?;
                vm.may_read_files();
                vm.mute();
                vm.know_inputs(Rc::new(self.survey.inputs.clone()));
                Ok(vm)
            }
            Some(origin) => self.survey.start(self.recording, origin),
        }
    }

    /// In which order the first accesses come, how far each is from the second,
    /// and how many instructions the whole execution has, if it comes to its end.
    fn order(&self, before: Option<Origin>, instances: &[Instance]) -> Result<Order, Error> {
        let distances = |order: &reorder::Chronology| -> Vec<u64> {
            instances
                .iter()
                .map(|instance| order.between(instance.first, instance.second))
                .collect()
        };
        if before.is_none() {
            let order = reorder::Chronology::of_recording(self.recording)?;
            let sorted = order.sort(instances);
            return Ok((sorted, distances(&order), Some(self.survey.instructions)));
        }
        let answer = vm::snapshot::isolated(|| {
            let mut vm = self.execution(before)?;
            let stop = vm.run(None)?;
            // Up to a swapped race it is the recorded one.
            let mut order = match before {
                Some(Origin::Swapped { first, .. }) => {
                    reorder::Chronology::of_recording_until(self.recording, first)?
                }
                _ => reorder::Chronology::default(),
            };
            for slice in vm.slices() {
                order.add(slice.thread, slice.instructions);
            }
            let length = matches!(stop, Stop::Ended(_)).then(|| vm.instructions());
            Ok((order.sort(instances), distances(&order), length))
        })?;
        answer.join()?.map_err(Error::Replay)
    }

    fn round(
        &self,
        before: Option<Origin>,
        todo: Vec<(usize, Occurrence)>,
    ) -> Result<Round, Error> {
        let instances: Vec<Instance> = todo.iter().map(|(_, todo)| todo.instance).collect();
        let order = match self.order(before, &instances) {
            Err(Error::Copy(CopyError::Interrupted)) => return Ok((Vec::new(), Vec::new())),
            order => order?,
        };
        let (order, distances, length) = order;
        // Each primary keeps two processors busy.
        let at_once =
            std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let answer = vm::snapshot::isolated(|| {
            let mut vm = self.execution(before)?;
            let watching = Watching::begin(&mut vm, self.checks, self.recording)?;
            let mut flying: VecDeque<InFlight> = VecDeque::new();
            let mut found = Vec::new();
            for index in order {
                let (subject, mut occurrence) = todo[index];
                occurrence.distance = Some(distances[index]);
                if interruption::is_over() {
                    break;
                }
                while flying.len() >= at_once {
                    self.land(&mut flying, &mut found);
                }
                let first = occurrence.instance.first;
                if first.thread == occurrence.instance.second.thread {
                    let why = reorder::ONE_THREAD.to_string();
                    found.push((subject, Looked::failed(occurrence, why)));
                    continue;
                }
                let stop = match vm.run(Some(first)) {
                    Err(vm::Error::Interrupted) => break,
                    stop => stop?,
                };
                let there =
                    matches!(stop, Stop::Reached(_)) && vm.executed(first.thread) == first.count;
                if !there {
                    let why = "the first access is not reached again".to_string();
                    found.push((subject, Looked::failed(occurrence, why)));
                    continue;
                }
                names::read_ahead(&vm);
                // One that was cut off at a limit is no measure for its rest.
                let rest = length.map_or(self.survey.instructions, |length| {
                    length.saturating_sub(vm.instructions())
                });
                let limit = run::limit_for(rest);
                let limits = Limits {
                    instructions: u64::MAX / 2,
                    ..Limits::default()
                };
                let copy = vm.copy(limits, |vm| {
                    Ok(self.look(vm, occurrence, limit, watching.as_ref()))
                });
                match copy {
                    Ok(running) => flying.push_back((subject, occurrence, running)),
                    Err(error) => {
                        found.push((subject, Looked::failed(occurrence, error.to_string())));
                    }
                }
            }
            while !flying.is_empty() {
                self.land(&mut flying, &mut found);
            }
            let not_checked = watching.map(|watching| watching.not_checked());
            Ok((found, not_checked.unwrap_or_default()))
        })?;
        match answer.join() {
            // What has landed is in the journal.
            Err(CopyError::Interrupted) => Ok((self.journal.landed(&todo), Vec::new())),
            answer => answer?.map_err(Error::Replay),
        }
    }

    /// Waits for the oldest primary under way.
    fn land(&self, flying: &mut VecDeque<InFlight>, found: &mut Vec<(usize, Looked)>) {
        let Some((subject, occurrence, running)) = flying.pop_front() else {
            return;
        };
        let answer = running.join();
        let violates = matches!(&answer, Ok(Ok(looked)) if looked.violates());
        if interruption::is_over() && !violates {
            // Parts of it may have been cut off: it is looked at again. Only
            // what was seen to happen has happened.
            return;
        }
        let looked = match answer {
            Ok(Ok(looked)) => looked,
            Ok(Err(why)) => Looked::failed(occurrence, why),
            Err(error) => Looked::failed(occurrence, error.to_string()),
        };
        self.journal.add(&looked);
        found.push((subject, looked));
        if self.settings.progress && std::io::stderr().is_terminal() {
            let (before, total) = self.progress;
            let done = before + found.len();
            let width = 30;
            let bar = "#".repeat(width * done / total.max(1));
            // A bar that does not show is no reason to stop.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[Kclassifying [{bar:<width$}] {done} of {total} (Ctrl-C keeps what is done)"
            );
        }
    }

    /// In a copy, just before the first access.
    fn look(
        &self,
        vm: &mut Vm,
        occurrence: Occurrence,
        limit: u64,
        watching: Option<&Watching>,
    ) -> Looked {
        let mut looked = Looked {
            limit,
            racy: self.survey.racy.clone(),
            checks: self.checks.clone(),
            ..Looked::new(occurrence)
        };
        let copies = || Limits {
            instructions: u64::MAX / 2,
            ..Limits::default()
        };
        let recorded = occurrence.instance.second;
        if self.pairs_from(vm, &mut looked, recorded, watching) {
            return looked;
        }
        // Another access may do as well.
        let other = vm
            .copy(copies(), |vm| point::probe(vm, occurrence, limit))
            .and_then(|running| running.join());
        if let Ok(Ok(Some(second))) = other
            && self.pairs_from(vm, &mut looked, second, watching)
        {
            return looked;
        }
        let barrier = vm
            .copy(copies(), |vm| point::barrier(vm, occurrence, limit))
            .and_then(|running| running.join());
        looked.barrier = Some(match barrier {
            Ok(Ok(barrier)) => barrier,
            Ok(Err(why)) => Barrier::Unknown(why),
            Err(error) => Barrier::Unknown(error.to_string()),
        });
        looked
    }

    /// Runs the pairs with this second access; false if it cannot be reached
    /// with the first one held.
    fn pairs_from(
        &self,
        vm: &mut Vm,
        looked: &mut Looked,
        second: Moment,
        watching: Option<&Watching>,
    ) -> bool {
        let occurrence = looked.occurrence;
        let (limit, settings) = (looked.limit, self.settings);
        let limits = Limits {
            instructions: u64::MAX / 2,
            ..Limits::default()
        };
        let racy = &self.survey.racy;
        let answer = vm.copy(limits, |vm| {
            if !point::reach(vm, occurrence, second, limit)? {
                return Ok(None);
            }
            let poised = Poised {
                first: occurrence.instance.first,
                second,
            };
            let plan = Plan {
                poised,
                racy,
                sites: &self.survey.sites,
                comparison: &Bytes,
                model: &SequentialConsistency,
                watching,
            };
            let unborn = occurrence.before.is_none() && self.survey.unborn.contains(&poised.first);
            let mixed = consequence::look_for_torn(vm, poised, occurrence, unborn);
            if let Some(watching) = watching {
                watching.judge(vm);
            }
            let equal_states = pair::leave_equal_states(vm, &plan);
            let parted = (equal_states && settings.audit)
                .then(|| pair::go_different_ways(vm, &plan, settings.seed, limit))
                .flatten();
            let mut pairs: Vec<Pair> = Vec::new();
            let count = occurrence.schedules.unwrap_or(settings.schedules).max(1);
            for schedule in Schedule::list(count, settings.seed) {
                let pair = pair::both(vm, &plan, schedule, limit);
                let violates = matches!(pair.outcome, Outcome::Violation { .. });
                pairs.push(pair);
                if violates || interruption::is_over() {
                    break;
                }
            }
            Ok(Some((poised, equal_states, parted, pairs, mixed)))
        });
        match answer.and_then(|running| running.join()) {
            Ok(Ok(Some((poised, equal_states, parted, pairs, mixed)))) => {
                looked.parted = parted;
                looked.poised = Some(poised);
                looked.mixed = mixed;
                looked.equal_states = equal_states;
                looked.pairs = pairs;
                true
            }
            Ok(Ok(None)) => false,
            Ok(Err(why)) => {
                looked.failed = Some(why);
                false
            }
            Err(error) => {
                looked.failed = Some(error.to_string());
                false
            }
        }
    }
}

/// A line has some kilobytes; more than so many were never explored.
const LARGEST_JOURNAL: u64 = 256 << 20;

/// What is done with an occurrence; what was done by other rules is done anew.
/// 2: pairs are run also where both orders leave the same state. 3: equal states
/// are those of the kernel as well.
const RULES: u32 = 3;

/// What earlier calls have found out about this recording: a call that was
/// interrupted goes on where it stopped.
struct Journal {
    place: folder::Place,
    /// Open from the beginning: those who write to it may open nothing. A recording
    /// on a medium that cannot be written is explored anew.
    file: Option<File>,
    key: String,
    known: HashMap<String, Looked>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    key: String,
    looked: Looked,
}

impl Journal {
    fn open(recording: &Recording, settings: Settings, checks: &Checks) -> Journal {
        let place = recording.place("explored.jsonl");
        let key = format!(
            "{} rules {RULES} schedules {} seed {} audit {} {checks:?}",
            env!("CARGO_PKG_VERSION"),
            settings.schedules,
            settings.seed,
            settings.audit
        );
        let known = Journal::read(&place);
        let file = place.append().ok();
        Journal {
            place,
            file,
            key,
            known,
        }
    }

    fn read(place: &folder::Place) -> HashMap<String, Looked> {
        // Without it everything is explored anew.
        let text = place.read(LARGEST_JOURNAL).unwrap_or_default();
        // A line that was cut off with the process that wrote it is left out.
        text.split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice::<Entry>(line).ok())
            .map(|entry| (entry.key, entry.looked))
            .collect()
    }

    fn key(&self, occurrence: &Occurrence) -> String {
        let Instance {
            first,
            second,
            address,
            ..
        } = occurrence.instance;
        let before = occurrence
            .before
            .map_or_else(String::new, |origin| format!(" {origin}"));
        let schedules = occurrence
            .schedules
            .map_or_else(String::new, |count| format!(" under {count}"));
        format!(
            "{} {first} {second} {address:#x}{before}{schedules}",
            self.key
        )
    }

    fn find(&self, occurrence: &Occurrence) -> Option<&Looked> {
        self.known.get(&self.key(occurrence))
    }

    /// What is known by now of these, other processes' part included.
    fn landed(&self, todo: &[(usize, Occurrence)]) -> Vec<(usize, Looked)> {
        let known = Journal::read(&self.place);
        let landed = |(subject, occurrence): &(usize, Occurrence)| {
            Some((*subject, known.get(&self.key(occurrence))?.clone()))
        };
        todo.iter().filter_map(landed).collect()
    }

    fn add(&self, looked: &Looked) {
        let entry = Entry {
            key: self.key(&looked.occurrence),
            looked: looked.clone(),
        };
        let Ok(mut line) = serde_json::to_vec(&entry) else {
            return;
        };
        line.push(b'\n');
        if let Some(mut file) = self.file.as_ref() {
            // A line that cannot be written is explored anew.
            let _ = file.write_all(&line);
        }
    }
}
