//! Both orders of a race: the Record/Replay Analyzer (paper 000, section 4).
//!
//! For each instance the recording is replayed to just before its first
//! access. A copy of the world holds that thread there and runs the others, in
//! recorded order, until the second access is poised as well: the race point.
//! Two copies of the race point play the accesses in either order and go on,
//! each thread to its next sequencer, and what they leave behind (registers of
//! both threads, every byte written) is compared.
//!
//! Deviations: the paper replays a thread alone inside its virtual processor
//! and fails where the alternative needs an address or an instruction that was
//! not logged; here the vm simply runs on, so Replay-Failure means that the
//! other order could not be reached. One pass over the recording serves all
//! instances: it forks at race points on the way. The others run to the race
//! point in recorded order, not each to where the vector clock of the second
//! access has it: what they do beyond that cannot keep the second access from
//! coming, because whatever it needs from them (a lock given back, say) is in
//! its past, which has nothing of the first thread from the first access on,
//! and comes in recorded order. That holds as long as they do what they did;
//! one that goes another way because the first thread is held (a `trylock`
//! that fails now) could still stand in the way.
//! Guarantee: No-State-Change is said only of executions that were both run
//! and left the same registers and memory (bytes below the stack pointers
//! excepted) and the same state of the kernel (time excepted).

mod after;
mod compare;
pub mod conflicts;
mod pages;
mod play;
mod script;

pub use after::Fate;
pub use compare::{Difference, Location};
pub use play::make_access;
pub use script::{Order, Script, script, show};

use play::RacePoint;
use race::{Instance, Moment, States};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use vm::record::{RecordError, Recording, Step, StepReader};
use vm::snapshot::{CopyError, Failed, Limits};
use vm::{Stop, Vm, interruption};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("replaying for both orders: {0}")]
    Replay(Failed),
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Recording(error) => error.exit_code(),
            Error::Replay(failed) => failed.exit_code,
            Error::Copy(_) => race::exit_code::FAILURE,
        }
    }
}

/// What became of one instance in both orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    NoStateChange,
    /// The places that differ, at most `MOST_DIFFERENCES` of them.
    StateChange(Vec<Difference>),
    /// The other order cannot be run; why.
    ReplayFailure(String),
}

impl Outcome {
    pub fn states(&self) -> States {
        match self {
            Outcome::NoStateChange => States::NoStateChange,
            Outcome::StateChange(_) => States::StateChange,
            Outcome::ReplayFailure(_) => States::ReplayFailure,
        }
    }
}

/// Begins the reasons why the second access cannot be made before the first.
const BLOCKED: &str = "blocked";

/// Why two accesses of one thread (of two tasks or goroutines that it ran)
/// cannot be swapped: whoever holds the thread back holds back both.
pub const ONE_THREAD: &str = "blocked: one thread ran both tasks, one after the other; another \
     schedule may give them to two";

/// State-changing instances at one address that are followed further: what
/// becomes of them is the same again and again.
const FOLLOWED: usize = 3;

/// Differences of an instance that are named.
const NAMED: usize = 16;

/// How far the orders are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Instructions the other threads may take to reach the second access, at
    /// most; five times what they took in the recorded run is enough.
    pub approach: u64,
    /// Instructions of each thread after the accesses, if no sequencer comes
    /// before.
    pub remainder: u64,
    /// Instructions for which a changed state is followed; 0 for none.
    pub run_on: u64,
}

impl Budget {
    /// Instructions of one instance from its race point on, at most.
    pub fn at_race_point(&self) -> u64 {
        // Two orders, two threads.
        4 * self.remainder
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            approach: 200_000_000,
            remainder: 100_000,
            run_on: 300_000,
        }
    }
}

/// The paper's verdict over all instances of a race: one changed state makes
/// the race state-changing; a failure only counts where nothing else was seen.
pub fn verdict<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<States> {
    outcomes
        .map(Outcome::states)
        .max_by_key(|states| match states {
            States::NoStateChange => 0,
            States::ReplayFailure => 1,
            States::StateChange => 2,
        })
}

/// Plays both orders of every instance, in one pass over the recording.
/// Answers come in the order of `instances`; none for those that were left when
/// the work was over (`vm::interruption`).
pub fn both_orders(
    recording: &Recording,
    instances: &[Instance],
    budget: Budget,
) -> Result<Vec<Option<Outcome>>, Error> {
    let timed = both_orders_timed(recording, instances, budget)?;
    let outcome = |timed: Option<Timed>| timed.map(|(outcome, _)| outcome);
    Ok(timed.into_iter().map(outcome).collect())
}

/// An answer, and the microseconds that it took from the first access on.
pub type Timed = (Outcome, u64);

/// The same with times.
pub fn both_orders_timed(
    recording: &Recording,
    instances: &[Instance],
    budget: Budget,
) -> Result<Vec<Option<Timed>>, Error> {
    let chronology = Chronology::of_recording(recording)?;
    let order = chronology.sort(instances);
    let recording = recording.clone();
    let todo: Vec<Instance> = order.iter().map(|index| instances[*index]).collect();
    let answers = vm::snapshot::isolated(move || {
        let mut vm = Vm::replay(&recording)?;
        vm.may_read_files();
        vm.mute();
        // Copies stop at sequencers: they go on with the code they find.
        vm.tell_sequencers();
        let mut outcomes = Vec::new();
        let mut times = Vec::new();
        let mut followed: HashMap<u64, usize> = HashMap::new();
        for instance in todo {
            let mut budget = budget;
            let recorded = chronology.between(instance.first, instance.second);
            budget.approach = budget.approach.min(approach_limit(recorded));
            let seen = followed.entry(instance.address).or_default();
            if *seen >= FOLLOWED {
                budget.run_on = 0;
            }
            let played = at_instance(&mut vm, instance, budget);
            // What was not finished then says nothing.
            if interruption::is_over() {
                break;
            }
            let (outcome, took) = played?;
            *seen += usize::from(matches!(outcome, Outcome::StateChange(_)));
            outcomes.push(outcome);
            times.push(took);
        }
        name_places(&vm, &mut outcomes);
        Ok(outcomes.into_iter().zip(times).collect::<Vec<_>>())
    })?;
    let answers = match answers.join() {
        Err(CopyError::Interrupted) => Vec::new(),
        answers => answers?.map_err(Error::Replay)?,
    };
    let mut outcomes = vec![None; instances.len()];
    for (index, outcome) in order.into_iter().zip(answers) {
        outcomes[index] = Some(outcome);
    }
    Ok(outcomes)
}

/// Instructions the other threads may take to the second access while the
/// first is held, if all took `recorded` from one to the other: five times as
/// many (paper 003, section 5), and some for short distances.
pub fn approach_limit(recorded: u64) -> u64 {
    const SLACK: u64 = 500_000;
    recorded.saturating_mul(5).saturating_add(SLACK)
}

fn at_instance(
    vm: &mut Vm,
    instance: Instance,
    budget: Budget,
) -> Result<(Outcome, u64), vm::Error> {
    if instance.first.thread == instance.second.thread {
        return Ok((Outcome::ReplayFailure(ONE_THREAD.into()), 0));
    }
    match vm.run(Some(instance.first))? {
        Stop::Reached(moment) if vm.executed(moment.thread) == instance.first.count => {}
        _ => {
            let why = "the first access is not reached in the recording";
            return Ok((Outcome::ReplayFailure(why.into()), 0));
        }
    }
    let start = std::time::Instant::now();
    let outcome = from_first_access(vm, instance, budget)?;
    Ok((outcome, start.elapsed().as_micros() as u64))
}

fn from_first_access(
    vm: &mut Vm,
    instance: Instance,
    budget: Budget,
) -> Result<Outcome, vm::Error> {
    let limits = Limits {
        instructions: budget.approach,
        ..Limits::default()
    };
    let stacks = stacks(vm);
    let mut instance = instance;
    let play = |vm: &mut Vm, instance: Instance| {
        let copy = vm.copy(limits, |vm| {
            Ok(match RacePoint::reach(vm, instance)? {
                Ok(point) => point.both_orders(vm, budget.remainder)?,
                Err(why) => Outcome::ReplayFailure(why),
            })
        });
        match copy.and_then(|running| running.join()) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Outcome::ReplayFailure(error),
            Err(error) => Outcome::ReplayFailure(error.to_string()),
        }
    };
    let mut outcome = play(vm, instance);
    if let Outcome::ReplayFailure(why) = &outcome
        && why.starts_with(BLOCKED)
    {
        // With the first access held back its thread goes another way: any
        // access in conflict with the first will do.
        let first_writes = play::may_write(vm, instance.first.thread);
        let other = vm.copy(limits, |vm| {
            conflicts::other_access(vm, instance, first_writes, budget.approach)
        });
        if let Ok(Ok(Some(second))) = other.and_then(|running| running.join()) {
            instance.second = second;
            outcome = play(vm, instance);
        }
    }
    if let Outcome::StateChange(differences) = &mut outcome
        && budget.run_on > 0
    {
        let copy = vm.copy(limits, |vm| {
            let mut followed = differences.clone();
            if let Ok(point) = RacePoint::reach(vm, instance)? {
                point.follow(vm, instance, budget, &mut followed)?;
            }
            Ok(followed)
        });
        // What cannot be followed is not known; the answer stands.
        if let Ok(Ok(followed)) = copy.and_then(|running| running.join()) {
            *differences = followed;
        }
    }
    name_stacks(&stacks, &mut outcome);
    Ok(outcome)
}

/// The mappings that threads have their stacks in.
fn stacks(vm: &Vm) -> Vec<(std::ops::Range<u64>, u32)> {
    vm.threads
        .keys()
        .filter_map(|thread| {
            let stack = vm.registers(*thread)?.gpr[vm::context::reg::RSP];
            let (range, _) = vm.space.find(stack)?;
            Some((range, *thread))
        })
        .collect()
}

fn name_stacks(stacks: &[(std::ops::Range<u64>, u32)], outcome: &mut Outcome) {
    let Outcome::StateChange(differences) = outcome else {
        return;
    };
    for difference in differences {
        if let Location::Memory(address) = difference.location
            && let Some((_, thread)) = stacks.iter().find(|(range, _)| range.contains(&address))
        {
            difference.name = Some(format!("stack of thread {thread} at {address:#x}"));
        }
    }
}

/// Gives differing memory the names of the variables there.
fn name_places(vm: &Vm, outcomes: &mut [Outcome]) {
    let mut modules = None;
    let mut known: HashMap<u64, Option<String>> = HashMap::new();
    for outcome in outcomes {
        let Outcome::StateChange(differences) = outcome else {
            continue;
        };
        for difference in differences.iter_mut().take(NAMED) {
            let Location::Memory(start) = difference.location else {
                continue;
            };
            if difference.name.is_some() {
                continue;
            }
            let address = start + u64::from(difference.first);
            let modules = modules.get_or_insert_with(|| loaded(vm));
            let name = known
                .entry(address)
                .or_insert_with(|| modules.variable_at(address).map(|variable| variable.path));
            difference.name = name.clone();
        }
    }
}

fn loaded(vm: &Vm) -> symbols::ModuleMap {
    let mut map = symbols::ModuleMap::new();
    for (range, mapping) in vm.space.mappings() {
        if let vm::space::Backing::File { path, offset } = &mapping.backing {
            map.insert(range, path, *offset);
        }
    }
    map
}

/// Indices of the instances in the order in which their first accesses come in
/// the recorded schedule.
pub fn in_recorded_order(
    recording: &Recording,
    instances: &[Instance],
) -> Result<Vec<usize>, RecordError> {
    Ok(Chronology::of_recording(recording)?.sort(instances))
}

/// Which moment of an execution comes before which, from its slices.
#[derive(Default)]
pub struct Chronology {
    /// For each thread: its count at the end of each of its slices, and the
    /// number of the slice.
    ends: BTreeMap<u32, Vec<(u64, usize)>>,
    /// Instructions of all threads at the end of each slice.
    ticks: Vec<u64>,
}

impl Chronology {
    pub fn of_recording(recording: &Recording) -> Result<Self, RecordError> {
        Self::of_recording_until(recording, Moment::new(0, u64::MAX))
    }

    /// The recorded execution up to a moment.
    pub fn of_recording_until(recording: &Recording, end: Moment) -> Result<Self, RecordError> {
        let mut steps = StepReader::open(&recording.process(0).join("schedule"))?;
        let mut order = Chronology::default();
        while let Some(step) = steps.next_step()? {
            let Step::Slice {
                thread,
                instructions,
                ..
            } = step
            else {
                continue;
            };
            let left = match thread == end.thread {
                true => end.count.saturating_sub(order.count(thread)),
                false => u64::MAX,
            };
            order.add(thread, instructions.min(left));
            if left < instructions {
                break;
            }
        }
        Ok(order)
    }

    fn count(&self, thread: u32) -> u64 {
        let own = self.ends.get(&thread).and_then(|own| own.last());
        own.map_or(0, |(count, _)| *count)
    }

    /// The next slice.
    pub fn add(&mut self, thread: u32, instructions: u64) {
        let own = self.ends.entry(thread).or_default();
        let before = own.last().map_or(0, |(count, _)| *count);
        own.push((before + instructions, self.ticks.len()));
        let now = self.ticks.last().copied().unwrap_or(0);
        self.ticks.push(now + instructions);
    }

    /// The slice that a moment is in, and where that ends for its thread.
    fn slice(&self, moment: Moment) -> Option<(usize, u64)> {
        let own = self.ends.get(&moment.thread)?;
        let index = own.partition_point(|(end, _)| *end <= moment.count);
        own.get(index).map(|(end, number)| (*number, *end))
    }

    fn position(&self, moment: Moment) -> (usize, u64) {
        let slice = self.slice(moment);
        (slice.map_or(usize::MAX, |(number, _)| number), moment.count)
    }

    /// Instructions of all threads up to a moment.
    fn tick(&self, moment: Moment) -> u64 {
        match self.slice(moment) {
            Some((number, end)) => self.ticks[number] - (end - moment.count),
            None => self.ticks.last().copied().unwrap_or(0),
        }
    }

    /// Instructions of all threads from one moment to a later one.
    pub fn between(&self, first: Moment, second: Moment) -> u64 {
        self.tick(second).saturating_sub(self.tick(first))
    }

    /// Indices of the instances in the order of their first accesses.
    pub fn sort(&self, instances: &[Instance]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..instances.len()).collect();
        order.sort_by_key(|index| self.position(instances[*index].first));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chronology_knows_order_and_distance() {
        let mut order = Chronology::default();
        for (thread, instructions) in [(1, 100), (2, 50), (1, 10), (2, 5)] {
            order.add(thread, instructions);
        }
        let (first, second) = (Moment::new(1, 90), Moment::new(2, 52));
        assert_eq!(order.between(first, second), 10 + 50 + 10 + 2);
        assert_eq!(order.between(second, first), 0);
        assert_eq!(order.between(first, Moment::new(1, 105)), 10 + 50 + 5);
        let instance = |first| Instance {
            first,
            second: first,
            address: 0,
            size: 1,
        };
        let list = [second, Moment::new(1, 105), first].map(instance);
        assert_eq!(order.sort(&list), [2, 1, 0]);
    }
}
