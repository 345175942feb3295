//! The race point, and what each order does from there.

use crate::after;
use crate::compare::{self, Difference, Left};
use crate::{Budget, Outcome};
use race::Instance;
use std::any::Any;
use std::collections::BTreeSet;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::snapshot::Limits;
use vm::{Error, Stop, Vm};

/// Both accesses poised, in this copy of the world.
pub struct RacePoint {
    first: u32,
    second: u32,
}

impl RacePoint {
    /// From just before the first access: holds its thread and runs the others
    /// until the second access is about to be made. The inner error says why
    /// that cannot be.
    pub fn reach(vm: &mut Vm, instance: Instance) -> Result<Result<RacePoint, String>, Error> {
        let (first, second) = (instance.first.thread, instance.second.thread);
        vm.freeze(first, true);
        let why = match vm.run(Some(instance.second))? {
            Stop::Reached(_) => {
                vm.freeze(first, false);
                return Ok(Ok(RacePoint { first, second }));
            }
            Stop::Stuck { input: true } => {
                "input-exhausted: the second access waits for input that was not recorded"
            }
            Stop::Stuck { input: false } => {
                "blocked: the second access cannot be made before the first"
            }
            Stop::Ended(_) | Stop::RecordingEnds => {
                "blocked: the program ends before the second access when the first is held back"
            }
            Stop::Limit => "limit: the second access was not reached in time",
        };
        Ok(Err(why.to_string()))
    }

    /// Plays both orders in copies and compares what they leave.
    pub fn both_orders(&self, vm: &mut Vm, remainder: u64) -> Result<Outcome, Error> {
        let mut left = Vec::new();
        for order in [[self.first, self.second], [self.second, self.first]] {
            let limits = Limits {
                instructions: 4 * remainder + 2,
                ..Limits::default()
            };
            let copy = vm.copy(limits, |vm| self.play(vm, order, remainder));
            match copy.and_then(|running| running.join()) {
                Ok(Ok(state)) => left.push(state),
                Ok(Err(error)) => return Ok(Outcome::ReplayFailure(error)),
                Err(error) => return Ok(Outcome::ReplayFailure(error.to_string())),
            }
        }
        let differences = compare::differences(&left[0], &left[1]);
        Ok(if differences.is_empty() {
            Outcome::NoStateChange
        } else {
            Outcome::StateChange(differences)
        })
    }

    /// Plays both orders again and runs on, to see what becomes of the
    /// differences.
    pub fn follow(
        &self,
        vm: &mut Vm,
        instance: Instance,
        budget: Budget,
        differences: &mut [Difference],
    ) -> Result<(), Error> {
        let mut seen = Vec::new();
        for (order, swapped) in [
            ([self.first, self.second], false),
            ([self.second, self.first], true),
        ] {
            let limits = Limits {
                instructions: 4 * budget.remainder + budget.run_on,
                ..Limits::default()
            };
            let list = &*differences;
            let copy = vm.copy(limits, |vm| {
                self.advance(vm, order, budget.remainder)?;
                after::look_on(vm, instance, list, swapped)
            });
            // What cannot be followed is not known; the answer stands.
            match copy.and_then(|running| running.join()) {
                Ok(Ok(one)) => seen.push(one),
                Ok(Err(_)) | Err(_) => return Ok(()),
            }
        }
        after::judge(differences, instance, [&seen[0], &seen[1]]);
        Ok(())
    }

    /// The two accesses in this order, then each thread to its next sequencer.
    fn play(&self, vm: &mut Vm, order: [u32; 2], remainder: u64) -> Result<Left, Error> {
        vm.observe(Box::new(Written::default()));
        self.advance(vm, order, remainder)?;
        let written = vm
            .take_observers()
            .into_iter()
            .filter_map(|observer| observer.into_any().downcast::<Written>().ok())
            .flat_map(|written| written.bytes)
            .collect();
        Ok(Left::behind(vm, [self.first, self.second], written))
    }
}

impl RacePoint {
    fn advance(&self, vm: &mut Vm, order: [u32; 2], remainder: u64) -> Result<(), Error> {
        for thread in order {
            vm.run_thread(thread, 1, false)?;
        }
        for thread in [self.first, self.second] {
            vm.run_thread(thread, remainder, true)?;
        }
        Ok(())
    }
}

/// Every byte written.
#[derive(Default)]
struct Written {
    bytes: BTreeSet<u64>,
}

impl Observer for Written {
    fn interest(&self) -> Interest {
        Interest { accesses: true }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch.iter().filter(|access| access.write) {
            let end = access.address.saturating_add(u64::from(access.size));
            self.bytes.extend(access.address..end);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
