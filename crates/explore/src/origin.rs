//! Executions other than the recorded one in which races are looked at.
//!
//! Paper 003, section 4.4, queues races that it meets while it explores others.
//! They are met in two ways: under another schedule from the program's start
//! on, and after a race whose accesses were swapped. Either is told by a few
//! numbers and comes out the same each time, so whatever is found there can be
//! run again.

use crate::policy::Schedule;
use crate::run;
use race::Moment;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::rc::Rc;
use vm::copy::InputIndex;
use vm::record::Recording;
use vm::schedule::Choice;
use vm::snapshot::Limits;
use vm::{Error, Stop, Vm};

/// The execution that an occurrence is of, if it is not the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Another schedule from the program's start on.
    Schedule(Schedule),
    /// The recorded one up to the first access of a race; the second is made
    /// before it; then another schedule.
    Swapped {
        first: Moment,
        second: Moment,
        schedule: Schedule,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Schedule(schedule) => schedule.fmt(f),
            Origin::Swapped {
                first,
                second,
                schedule,
            } => write!(
                f,
                "the recorded schedule to {first}, the access at {second} before it, then \
                 {schedule}"
            ),
        }
    }
}

impl Origin {
    /// The execution at its start. Nothing of it reaches the outside.
    pub fn start(
        self,
        recording: &Recording,
        inputs: &InputIndex,
        racy: &[u64],
        limit: u64,
    ) -> Result<Vm, Error> {
        match self {
            Origin::Schedule(schedule) => {
                let mut vm = replay(recording, inputs)?;
                if recording.subject() > 0 {
                    // Its ancestors run as recorded, up to the fork.
                    vm.run(Some(Moment::new(1, 0)))?;
                }
                vm.detach(Limits {
                    instructions: limit,
                    ..Limits::default()
                })?;
                run::schedule(&mut vm, schedule, racy);
                Ok(vm)
            }
            Origin::Swapped { first, .. } => {
                let slices = self.slices(recording, inputs, racy, limit)?;
                let mut vm = replay(recording, inputs)?;
                vm.depart_at(first, slices);
                Ok(vm)
            }
        }
    }

    /// What runs from the swapped race on.
    fn slices(
        self,
        recording: &Recording,
        inputs: &InputIndex,
        racy: &[u64],
        limit: u64,
    ) -> Result<Vec<Choice>, Error> {
        let Origin::Swapped {
            first,
            second,
            schedule,
        } = self
        else {
            return Ok(Vec::new());
        };
        let answer = vm::snapshot::isolated(|| {
            let mut vm = replay(recording, inputs)?;
            vm.run(Some(first))?;
            vm.detach(Limits {
                instructions: limit,
                ..Limits::default()
            })?;
            vm.freeze(first.thread, true);
            let stop = vm.run(Some(second))?;
            vm.freeze(first.thread, false);
            if !matches!(stop, Stop::Reached(_)) {
                return Err(Error::Unsupported(format!("{self} cannot be run again")));
            }
            for thread in [second.thread, first.thread] {
                reorder::make_access(&mut vm, thread)?;
            }
            run::schedule(&mut vm, schedule, racy);
            vm.limit(limit);
            vm.run(None)?;
            let slices = vm.slices();
            Ok(slices
                .into_iter()
                .map(|choice| (choice.thread, choice.instructions))
                .collect::<Vec<(u32, u64)>>())
        });
        let slices = answer
            .and_then(|running| running.join())
            .map_err(|error| Error::Machine(error.to_string()))??;
        Ok(slices
            .into_iter()
            .map(|(thread, instructions)| Choice {
                thread,
                instructions,
            })
            .collect())
    }
}

fn replay(recording: &Recording, inputs: &InputIndex) -> Result<Vm, Error> {
    let mut vm = Vm::replay(recording)?;
    vm.may_read_files();
    vm.mute();
    vm.know_inputs(Rc::new(inputs.clone()));
    Ok(vm)
}
