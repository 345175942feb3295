//! The race point: both accesses poised (paper 003, algorithm 1, lines 1 to 7).
//!
//! From just before the first access its thread is held and the others go on
//! as recorded until the second access is next. The second access may come at
//! another instruction than the recorded one (section 4.3): what counts is
//! that it touches the same bytes in conflict with the first. If it never
//! comes, something orders the accesses that the detector did not know; the
//! first thread is released to see what, or whether the program hangs.

use crate::names;
use crate::origin::Origin;
use crate::run::{self, Ending};
use crate::spin::{self, Doing};
use crate::waits;
use race::{Instance, Moment};
use reorder::conflicts;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use symbols::ModuleMap;
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
    /// The execution that it is of, if that is not the recorded one: moments
    /// are those of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Origin>,
    /// Instructions of all threads from the first access to the second, if
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<u64>,
    /// Schedules to go on under, if not as many as the settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules: Option<u32>,
}

impl Occurrence {
    /// Instructions the others may take to the second access while the first
    /// is held.
    fn approach(&self, limit: u64) -> u64 {
        self.distance
            .map_or(limit, |distance| limit.min(run::limit_for(distance)))
    }

    fn watch(&self, vm: &mut Vm) -> conflicts::Found {
        conflicts::watch(vm, self.instance, self.first_writes)
    }
}

/// Whether the next instruction of `thread` is an access in conflict with the
/// first one.
fn is_poised(vm: &mut Vm, occurrence: Occurrence, thread: u32) -> bool {
    let copy = vm.copy(Limits::default(), |vm| {
        let found = occurrence.watch(vm);
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
    vm.limit(occurrence.approach(limit));
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
    let limit = occurrence.approach(limit);
    conflicts::other_access(vm, occurrence.instance, occurrence.first_writes, limit)
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

/// What the others do while the first access is held.
enum Meanwhile {
    /// Something keeps them from the second access, in words; and the words
    /// of memory they wait for.
    Kept(String, BTreeSet<u64>),
    /// They are busy, and the second access does not come.
    Busy,
    /// They ended, or cannot be followed.
    Known(Barrier),
}

fn meanwhile(
    vm: &mut Vm,
    occurrence: Occurrence,
    limit: u64,
    modules: &ModuleMap,
) -> Result<Meanwhile, Error> {
    let Instance { first, second, .. } = occurrence.instance;
    vm.limit(limit);
    let signals = vm.signals_to_come();
    let stop = vm.run(None)?;
    let known = |barrier| Ok(Meanwhile::Known(barrier));
    let kept = |why| Ok(Meanwhile::Kept(why, BTreeSet::new()));
    match stop {
        Stop::Ended(_) if vm.signals_to_come() < signals => known(Barrier::Unknown(format!(
            "a signal from outside ended the program while thread {} was held before its access",
            first.thread
        ))),
        Stop::Ended(_) => known(Barrier::Ordered(format!(
            "thread {} makes its access only if thread {} has gone past its own: with that \
             one held back the program ends without it (a flag tested by `if`)",
            second.thread, first.thread
        ))),
        Stop::Stuck { .. } => {
            let waiting = waits::waiting(vm, modules);
            let of_second = waiting.iter().find(|wait| wait.thread == second.thread);
            kept(match of_second.or(waiting.first()) {
                Some(wait) => wait.describe(modules),
                None if vm.threads.contains_key(&second.thread) => {
                    format!("thread {} waits", second.thread)
                }
                None => format!(
                    "thread {} is only started after the access of thread {}",
                    second.thread, first.thread
                ),
            })
        }
        Stop::Limit => match spin::look(vm, modules)? {
            Doing::Spinning(spinners) => {
                let words = spinners
                    .iter()
                    .flat_map(|spinner| spinner.reads.iter().map(|(address, _)| address & !7))
                    .collect();
                let of_second = spinners
                    .iter()
                    .find(|spinner| spinner.thread == second.thread);
                let why = match of_second.or(spinners.first()) {
                    Some(spinner) => spinner.describe(modules),
                    None => "every thread loops".to_string(),
                };
                Ok(Meanwhile::Kept(why, words))
            }
            Doing::Working => Ok(Meanwhile::Busy),
            Doing::Stopped(stop) => kept(format!("the other threads stop ({stop:?})")),
        },
        Stop::Reached(_) | Stop::RecordingEnds => {
            known(Barrier::Unknown("the recording ends".to_string()))
        }
    }
}

/// Where a thread is, in the program's own code.
fn place_of(vm: &Vm, thread: u32, modules: &ModuleMap) -> String {
    vm.registers(thread).map_or_else(
        || "somewhere else".to_string(),
        |regs| names::own_place(&names::stack(modules, &regs)),
    )
}

/// The second access does not come while the first is held: finds out why, and
/// whether the program goes on when the first is released.
pub fn barrier(vm: &mut Vm, occurrence: Occurrence, limit: u64) -> Result<Barrier, Error> {
    let Instance { first, second, .. } = occurrence.instance;
    vm.freeze(first.thread, true);
    let modules = names::modules(vm);
    let approach = occurrence.approach(limit);
    let mut found = meanwhile(vm, occurrence, approach, &modules)?;
    if matches!(found, Meanwhile::Busy) && approach < limit {
        // Somebody else may have had much to do.
        found = meanwhile(vm, occurrence, limit - approach, &modules)?;
    }
    // Released, the first thread must let the others go on.
    let conflicts = matches!(found, Meanwhile::Busy).then(|| occurrence.watch(vm));
    let (why, words) = match found {
        Meanwhile::Known(barrier) => return Ok(barrier),
        Meanwhile::Kept(why, words) => (why, words),
        Meanwhile::Busy => {
            let at = place_of(vm, second.thread, &modules);
            let why = format!(
                "thread {} goes its own way at {at} and does not come to it in five times the \
                 instructions that it took in the recorded run",
                second.thread
            );
            (why, BTreeSet::new())
        }
    };
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
    if let Some(conflicts) = conflicts {
        // Only if it comes once the first thread goes on, that is what it
        // waits for.
        let comes = conflicts
            .borrow()
            .iter()
            .any(|moment| moment.thread != first.thread);
        if !comes {
            return Ok(Barrier::Unknown(format!(
                "{why}, nor when thread {} goes on",
                first.thread
            )));
        }
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
            names::variable(&modules, address, 1),
            names::own_place(&modules.frames(pc, false))
        ),
        None => format!(", until thread {} goes on", first.thread),
    };
    Ok(Barrier::Ordered(format!("{why}{until}")))
}
