//! The race point: both accesses poised (paper 003, algorithm 1, lines 1 to 7).
//!
//! From just before the first access its thread is held and the others go on
//! as recorded until the second access is next. The second access may come at
//! another instruction than the recorded one (section 4.3): what counts is
//! that it touches the same bytes in conflict with the first. If it never
//! comes, something orders the accesses that the detector did not know; the
//! first thread is released to see what, or whether the program hangs.

use crate::names;
use crate::policy::Schedule;
use crate::run::{self, Ending};
use crate::spin::{self, Doing};
use crate::waits;
use race::{Instance, Moment};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::snapshot::Limits;
use vm::{Error, Stop, Vm};

/// One occurrence of a race to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occurrence {
    pub instance: Instance,
    /// The first access writes (or frees).
    pub first_writes: bool,
    /// The second access is no instruction of its own that touches the bytes
    /// (a call of `free`): it is known by its moment alone.
    pub second_by_moment: bool,
    /// The schedule from the program's start on, if the occurrence is not one
    /// of the recorded execution: moments are those of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Schedule>,
}

impl Occurrence {
    fn touches(&self, address: u64, size: u64, write: bool) -> bool {
        let instance = &self.instance;
        let end = instance.address + u64::from(instance.size.max(1));
        address < end && instance.address < address + size && (write || self.first_writes)
    }
}

/// Accesses in conflict with the first one.
struct Conflicts {
    occurrence: Occurrence,
    found: Rc<RefCell<Vec<Moment>>>,
}

impl Observer for Conflicts {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch {
            if self
                .occurrence
                .touches(access.address, u64::from(access.size), access.write)
            {
                self.found.borrow_mut().push(access.moment);
            }
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        if self.occurrence.touches(address, size, write) {
            self.found.borrow_mut().push(moment);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn watch(vm: &mut Vm, occurrence: Occurrence) -> Rc<RefCell<Vec<Moment>>> {
    let found = Rc::new(RefCell::new(Vec::new()));
    vm.observe(Box::new(Conflicts {
        occurrence,
        found: found.clone(),
    }));
    found
}

/// Whether the next instruction of `thread` is an access in conflict with the
/// first one.
fn is_poised(vm: &mut Vm, occurrence: Occurrence, thread: u32) -> bool {
    let copy = vm.copy(Limits::default(), |vm| {
        let found = watch(vm, occurrence);
        vm.run_thread(thread, 1, false)?;
        vm.take_observers();
        let poised = !found.borrow().is_empty();
        Ok(poised)
    });
    matches!(copy.and_then(|running| running.join()), Ok(Ok(true)))
}

/// Holds the first thread and runs the others until `second` is next; false
/// if that does not come.
pub fn reach(
    vm: &mut Vm,
    occurrence: Occurrence,
    second: Moment,
    limit: u64,
) -> Result<bool, Error> {
    let first = occurrence.instance.first.thread;
    vm.freeze(first, true);
    vm.limit(limit);
    let stop = vm.run(Some(second))?;
    let there = matches!(stop, Stop::Reached(_))
        && vm.executed(second.thread) == second.count
        && (occurrence.second_by_moment || is_poised(vm, occurrence, second.thread));
    vm.freeze(first, false);
    Ok(there)
}

/// Looks for another access in conflict with the first, while that is held:
/// by the same thread if there is one, else by any.
pub fn probe(vm: &mut Vm, occurrence: Occurrence, limit: u64) -> Result<Option<Moment>, Error> {
    let Instance { first, second, .. } = occurrence.instance;
    let found = watch(vm, occurrence);
    vm.freeze(first.thread, true);
    // Portions that grow: most conflicts come soon.
    let mut portion = 50_000;
    let mut left = limit;
    loop {
        vm.limit(portion.min(left));
        let stop = vm.run(None)?;
        let candidate = found
            .borrow()
            .iter()
            .find(|moment| moment.thread == second.thread)
            .copied();
        if candidate.is_some() {
            return Ok(candidate);
        }
        left = left.saturating_sub(portion);
        if stop != Stop::Limit || left == 0 {
            vm.take_observers();
            let any = found
                .borrow()
                .iter()
                .find(|moment| moment.thread != first.thread)
                .copied();
            return Ok(any);
        }
        portion *= 2;
    }
}

/// Why the second access cannot come first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Barrier {
    /// It waits for what the first thread does after its access; in words.
    Ordered(String),
    /// With the first access held back for a while the program does not come
    /// to an end any more.
    Violates(Ending),
    /// It could not be found out.
    Unknown(String),
}

/// Who writes to any of these words.
struct Writers {
    words: BTreeSet<u64>,
    found: Rc<RefCell<Vec<(Moment, u64, u64)>>>,
}

impl Observer for Writers {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch.iter().filter(|access| access.write) {
            let word = access.address / 8 * 8;
            if self.words.contains(&word) {
                self.found
                    .borrow_mut()
                    .push((access.moment, access.pc, access.address));
            }
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The second access does not come while the first is held: finds out why, and
/// whether the program goes on when the first is released.
pub fn barrier(vm: &mut Vm, occurrence: Occurrence, limit: u64) -> Result<Barrier, Error> {
    let Instance { first, second, .. } = occurrence.instance;
    vm.freeze(first.thread, true);
    vm.limit(limit);
    let stop = vm.run(None)?;
    let modules = names::modules(vm);
    let mut words = BTreeSet::new();
    let why = match stop {
        Stop::Ended(_) => {
            return Ok(Barrier::Ordered(format!(
                "thread {} makes its access only if thread {} has gone past its own: with that \
                 one held back the program ends without it (a flag tested by `if`)",
                second.thread, first.thread
            )));
        }
        Stop::Stuck { .. } => {
            let waiting = waits::waiting(vm, &modules);
            let of_second = waiting.iter().find(|wait| wait.thread == second.thread);
            match of_second.or(waiting.first()) {
                Some(wait) => wait.describe(&modules),
                None if vm.threads.contains_key(&second.thread) => {
                    format!("thread {} waits", second.thread)
                }
                None => format!(
                    "thread {} is only started after the access of thread {}",
                    second.thread, first.thread
                ),
            }
        }
        Stop::Limit => match spin::look(vm, &modules)? {
            Doing::Spinning(spinners) => {
                words = spinners
                    .iter()
                    .flat_map(|spinner| spinner.reads.iter().copied())
                    .collect();
                let of_second = spinners
                    .iter()
                    .find(|spinner| spinner.thread == second.thread);
                match of_second.or(spinners.first()) {
                    Some(spinner) => spinner.describe(&modules),
                    None => "every thread loops".to_string(),
                }
            }
            Doing::Working => {
                return Ok(Barrier::Unknown(
                    "the second access was not reached in five times the instructions of the \
                     recorded run"
                        .to_string(),
                ));
            }
            Doing::Stopped(stop) => format!("the other threads stop ({stop:?})"),
        },
        Stop::Reached(_) | Stop::RecordingEnds => {
            return Ok(Barrier::Unknown("the recording ends".to_string()));
        }
    };
    // Released, the first thread must let the others go on.
    vm.freeze(first.thread, false);
    let found = Rc::new(RefCell::new(Vec::new()));
    if !words.is_empty() {
        vm.observe(Box::new(Writers {
            words,
            found: found.clone(),
        }));
    }
    let ending = run::finish(vm, limit)?;
    vm.take_observers();
    if ending.violation().is_some() && !matches!(ending, Ending::Killed { .. }) {
        return Ok(Barrier::Violates(ending));
    }
    let writer = found
        .borrow()
        .iter()
        .find(|(moment, ..)| moment.thread == first.thread)
        .copied();
    let until = match writer {
        Some((moment, pc, address)) => format!(
            ", until thread {} writes {} at {}",
            moment.thread,
            names::variable(&modules, address),
            names::own_place(&modules.frames(pc, false))
        ),
        None => format!(", until thread {} goes on", first.thread),
    };
    Ok(Barrier::Ordered(format!("{why}{until}")))
}
