//! One order of a race from start to end, as a schedule that can be followed
//! again: for replaying it, or for a debugger.
//!
//! The order is run once in a copy, up to the program's end, and its slices
//! are written down. A copy of the same world that follows them does the same.

use crate::Error;
use crate::play::{RacePoint, make_access};
use race::Instance;
use serde::{Deserialize, Serialize};
use vm::record::Recording;
use vm::snapshot::Limits;
use vm::{Stop, Vm};

/// Which of the two accesses is made first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Recorded,
    Swapped,
}

/// An order that has been run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// Instructions of all threads when the recording is left: before the
    /// first access, whose thread is held there.
    pub left_at: u64,
    /// The same at the race point: the first of the two accesses to be made
    /// is next.
    pub point: u64,
    /// The same where the other one is next.
    pub between: u64,
    /// Thread and instructions of each slice from `left_at` on.
    pub slices: Vec<(u32, u64)>,
    /// How it ended, in words.
    pub ending: String,
}

/// Runs one order of an instance to its end, at most `limit` instructions
/// after the race point. The inner error says why the order cannot be run.
pub fn script(
    recording: &Recording,
    instance: Instance,
    order: Order,
    limit: u64,
) -> Result<Result<Script, String>, Error> {
    let recording = recording.clone();
    vm::snapshot::isolated(move || {
        let mut vm = Vm::replay(&recording)?;
        vm.may_read_files();
        vm.mute();
        match vm.run(Some(instance.first))? {
            Stop::Reached(moment) if vm.executed(moment.thread) == instance.first.count => {}
            _ => {
                return Ok(Err(
                    "the first access is not reached in the recording".into()
                ));
            }
        }
        let limits = Limits {
            instructions: limit,
            ..Limits::default()
        };
        let copy = vm.copy(limits, |vm| in_order(vm, instance, order));
        Ok(match copy.and_then(|running| running.join()) {
            Ok(Ok(script)) => script,
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error.to_string()),
        })
    })?
    .join()?
    .map_err(Error::Replay)
}

fn in_order(
    vm: &mut Vm,
    instance: Instance,
    order: Order,
) -> Result<Result<Script, String>, vm::Error> {
    let left_at = vm.instructions();
    if let Err(why) = RacePoint::reach(vm, instance)? {
        return Ok(Err(why));
    }
    let point = vm.instructions();
    let (first, second) = (instance.first.thread, instance.second.thread);
    let accesses = match order {
        Order::Recorded => [first, second],
        Order::Swapped => [second, first],
    };
    let mut between = point;
    for thread in accesses {
        between = vm.instructions();
        make_access(vm, thread)?;
    }
    // As exploration goes on from here: both orders meet the same decisions,
    // and what is shown is what was judged.
    vm.forget_last_slice();
    let ending = match vm.run(None)? {
        Stop::Ended(status) => format!("the program ends: {status}"),
        Stop::Stuck { input: true } => {
            "all threads wait, one for input that was not recorded".into()
        }
        Stop::Stuck { input: false } => "all threads wait for one another: a deadlock".into(),
        Stop::Limit | Stop::Reached(_) | Stop::RecordingEnds => {
            "not followed further: the limit of instructions is reached".into()
        }
    };
    Ok(Ok(Script {
        left_at,
        point,
        between,
        slices: vm
            .slices()
            .into_iter()
            .map(|choice| (choice.thread, choice.instructions))
            .collect(),
        ending,
    }))
}

/// Runs an order again in this process, with the program's output shown; how
/// it ended.
pub fn show(recording: &Recording, instance: Instance, script: &Script) -> Result<Stop, vm::Error> {
    let mut vm = Vm::replay(recording)?;
    vm.may_read_files();
    vm.run(Some(instance.first))?;
    let slices = script
        .slices
        .iter()
        .map(|(thread, instructions)| vm::schedule::Choice {
            thread: *thread,
            instructions: *instructions,
        })
        .collect();
    let length: u64 = script
        .slices
        .iter()
        .map(|(_, instructions)| instructions)
        .sum();
    vm.follow_script(slices)?;
    vm.unmute();
    vm.run_to(script.left_at + length)
}
