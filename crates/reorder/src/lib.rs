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
//! instances: it forks at race points on the way.
//! Guarantee: No-State-Change is said only of executions that were both run
//! and left the same registers and memory (bytes below the stack pointers
//! excepted).

mod compare;
mod play;

pub use compare::{Difference, Location};

use play::RacePoint;
use race::{Instance, Moment, States};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vm::record::{RecordError, Recording, Step, StepReader};
use vm::snapshot::{CopyError, Limits};
use vm::{Stop, Vm};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("replaying for both orders: {0}")]
    Replay(String),
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

/// How far the orders are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Instructions the other threads may take to reach the second access.
    pub approach: u64,
    /// Instructions of each thread after the accesses, if no sequencer comes
    /// before.
    pub remainder: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            approach: 200_000_000,
            remainder: 100_000,
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
/// Answers come in the order of `instances`.
pub fn both_orders(
    recording: &Recording,
    instances: &[Instance],
    budget: Budget,
) -> Result<Vec<Outcome>, Error> {
    let order = in_recorded_order(recording, instances)?;
    let recording = recording.clone();
    let todo: Vec<Instance> = order.iter().map(|index| instances[*index]).collect();
    let answers = vm::snapshot::isolated(move || {
        let mut vm = Vm::replay(&recording)?;
        vm.mute();
        let mut outcomes = Vec::new();
        for instance in todo {
            outcomes.push(at_instance(&mut vm, instance, budget)?);
        }
        Ok(outcomes)
    })?
    .join()?
    .map_err(Error::Replay)?;
    let mut outcomes = vec![Outcome::ReplayFailure(String::new()); instances.len()];
    for (index, outcome) in order.into_iter().zip(answers) {
        outcomes[index] = outcome;
    }
    Ok(outcomes)
}

fn at_instance(vm: &mut Vm, instance: Instance, budget: Budget) -> Result<Outcome, vm::Error> {
    let failed = |why: &str| Ok(Outcome::ReplayFailure(why.to_string()));
    match vm.run(Some(instance.first))? {
        Stop::Reached(moment) if vm.executed(moment.thread) == instance.first.count => {}
        _ => return failed("the first access is not reached in the recording"),
    }
    let limits = Limits {
        instructions: budget.approach,
        ..Limits::default()
    };
    let copy = vm.copy(limits, |vm| {
        Ok(match RacePoint::reach(vm, instance)? {
            Ok(point) => point.both_orders(vm, budget.remainder)?,
            Err(why) => Outcome::ReplayFailure(why),
        })
    });
    match copy.and_then(|running| running.join()) {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error.to_string()),
    }
}

/// Indices of the instances in the order in which their first accesses come in
/// the recorded schedule.
pub fn in_recorded_order(
    recording: &Recording,
    instances: &[Instance],
) -> Result<Vec<usize>, RecordError> {
    // For each thread: its count at the end of each of its slices, and the
    // number of the slice.
    let mut ends: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
    let mut steps = StepReader::open(&recording.process(0).join("schedule"))?;
    let mut number = 0;
    while let Some(step) = steps.next_step()? {
        if let Step::Slice {
            thread,
            instructions,
            ..
        } = step
        {
            let slices = ends.entry(thread).or_default();
            let before = slices.last().map_or(0, |(count, _)| *count);
            slices.push((before + instructions, number));
            number += 1;
        }
    }
    let position = |moment: Moment| {
        let slices = ends.get(&moment.thread).map(Vec::as_slice).unwrap_or(&[]);
        let index = slices.partition_point(|(end, _)| *end <= moment.count);
        let slice = slices.get(index).map_or(usize::MAX, |(_, number)| *number);
        (slice, moment.count)
    };
    let mut order: Vec<usize> = (0..instances.len()).collect();
    order.sort_by_key(|index| position(instances[*index].first));
    Ok(order)
}
