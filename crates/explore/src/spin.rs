//! Loops that wait for memory to change: ad hoc synchronisation, or for ever.
//!
//! Paper 003, section 4.2, calls a loop infinite if its exit condition cannot
//! change any more. Here every thread that can run is watched for a while: a
//! thread spins if nothing it reads and does not write itself is written by
//! any other thread meanwhile, and if it touches nothing in the second half of
//! the time that it did not touch in the first: whoever works through memory
//! comes to an end some day. If all that can run spin, nobody is left to end
//! the loops. A thread that sleeps may still come: it is let go first, with
//! the spinning ones held.

use crate::names;
use race::Frame;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use symbols::ModuleMap;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::schedule::PolicyName;
use vm::thread::State;
use vm::{Error, Stop, Vm};

/// How long the threads are watched, and how long each runs at a time.
const WINDOW: u64 = 300_000;
const TURN: u64 = 3_000;

/// A thread that has run less than this in the window is not judged.
const ENOUGH: u64 = 20;

/// A thread in a loop that ends only if somebody else writes.
pub struct Spinner {
    pub thread: u32,
    pub stack: Vec<Frame>,
    /// What it reads outside its stack and nobody writes, by address and size;
    /// first what somebody could write.
    pub reads: Vec<(u64, u32)>,
}

impl Spinner {
    pub fn describe(&self, modules: &ModuleMap) -> String {
        let at = names::own_place(&self.stack);
        match self.reads.first() {
            Some((address, size)) => format!(
                "thread {} loops at {at}, reading {}",
                self.thread,
                names::variable(modules, *address, u64::from(*size))
            ),
            None => format!("thread {} loops at {at}", self.thread),
        }
    }
}

#[derive(Default)]
struct Seen {
    /// What was read, by address and size, and every byte of it.
    reads: BTreeSet<(u64, u32)>,
    bytes_read: HashSet<u64>,
    bytes_written: HashSet<u64>,
    /// Something was touched for the first time in the second half.
    goes_on: bool,
}

impl Seen {
    fn add(&mut self, access: &AccessEvent, second_half: bool) {
        let is_new = |seen: &mut HashSet<u64>| {
            // All of them: one may be new behind others that are not.
            bytes_of(access.address, access.size).fold(false, |new, byte| seen.insert(byte) | new)
        };
        let mut new = false;
        if access.read {
            self.reads.insert((access.address, access.size));
            new |= is_new(&mut self.bytes_read);
        }
        if access.write {
            new |= is_new(&mut self.bytes_written);
        }
        self.goes_on |= new && second_half;
    }

    /// What it reads and does not write itself. Bytes, not words: a loop may count
    /// in one field and wait for the one beside it.
    fn waits_for(&self) -> Vec<(u64, u32)> {
        let is_foreign = |(address, size): &&(u64, u32)| {
            bytes_of(*address, *size).all(|byte| !self.bytes_written.contains(&byte))
        };
        self.reads.iter().filter(is_foreign).copied().collect()
    }

    fn writes_any(&self, places: &[(u64, u32)]) -> bool {
        places.iter().any(|(address, size)| {
            bytes_of(*address, *size).any(|byte| self.bytes_written.contains(&byte))
        })
    }
}

/// The bytes of an access; of a long one the first say enough.
fn bytes_of(address: u64, size: u32) -> std::ops::Range<u64> {
    const MOST: u32 = 512;
    address..address.saturating_add(u64::from(size.clamp(1, MOST)))
}

/// What each thread touched.
struct Watch {
    threads: Rc<RefCell<BTreeMap<u32, Seen>>>,
    second_half: Rc<Cell<bool>>,
}

impl Observer for Watch {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let mut threads = self.threads.borrow_mut();
        let second_half = self.second_half.get();
        for access in batch {
            let seen = threads.entry(access.moment.thread).or_default();
            seen.add(access, second_half);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What a copy that does not come to an end is doing.
pub enum Doing {
    /// All that can run spin.
    Spinning(Vec<Spinner>),
    /// Somebody makes progress.
    Working,
    /// It stopped while it was watched.
    Stopped(Stop),
}

/// Watches the threads for a while.
pub fn look(vm: &mut Vm, modules: &ModuleMap) -> Result<Doing, Error> {
    let seen = Rc::new(RefCell::new(BTreeMap::new()));
    let second_half = Rc::new(Cell::new(false));
    vm.observe(Box::new(Watch {
        threads: seen.clone(),
        second_half: second_half.clone(),
    }));
    vm.schedule_by(PolicyName::RoundRobin.build(0, TURN));
    let executed = |vm: &Vm| -> BTreeMap<u32, u64> {
        let threads = vm.threads.keys();
        threads
            .map(|thread| (*thread, vm.executed(*thread)))
            .collect()
    };
    let before = executed(vm);
    vm.limit(WINDOW / 2);
    let mut stop = vm.run(None)?;
    let halfway = executed(vm);
    if stop == Stop::Limit {
        second_half.set(true);
        vm.limit(WINDOW / 2);
        stop = vm.run(None)?;
    }
    vm.take_observers();
    if stop != Stop::Limit {
        return Ok(Doing::Stopped(stop));
    }
    let seen = seen.take();
    let mut spinners = Vec::new();
    for thread in vm.threads.keys() {
        let began = before.get(thread).copied().unwrap_or(0);
        if vm.executed(*thread) - began < ENOUGH {
            continue;
        }
        // Who only came in the second half has shown nothing.
        let first_half = halfway.get(thread).copied().unwrap_or(began) - began;
        let empty = Seen::default();
        let own = seen.get(thread).unwrap_or(&empty);
        let waits_for = own.waits_for();
        let written = seen
            .iter()
            .filter(|(other, _)| *other != thread)
            .any(|(_, other)| other.writes_any(&waits_for));
        if written || (own.goes_on && first_half >= ENOUGH) {
            return Ok(Doing::Working);
        }
        let Some(regs) = vm.registers(*thread) else {
            continue;
        };
        let stack_range = vm
            .space
            .find(regs.gpr[vm::context::reg::RSP])
            .map(|(range, _)| range);
        let mut reads: Vec<(u64, u32)> = waits_for
            .into_iter()
            .filter(|(address, _)| {
                !stack_range
                    .as_ref()
                    .is_some_and(|range| range.contains(address))
            })
            .collect();
        // What nobody can write, nobody waits for: tables of the linker, constants.
        let is_fixed = |address: u64| {
            let mapping = vm.space.find(address);
            modules.is_linked_table(address)
                || mapping.is_none_or(|(_, mapping)| mapping.protection & libc::PROT_WRITE == 0)
        };
        reads.sort_by_key(|(address, _)| is_fixed(*address));
        spinners.push(Spinner {
            thread: *thread,
            stack: names::stack(modules, &regs),
            reads,
        });
    }
    // A program that counts to a large number writes and reads only its own.
    if spinners.is_empty() || spinners.iter().all(|spinner| spinner.reads.is_empty()) {
        return Ok(Doing::Working);
    }
    Ok(Doing::Spinning(spinners))
}

/// Some thread sleeps that has not been seen running.
pub fn has_sleepers(vm: &Vm, spinners: &[Spinner]) -> bool {
    vm.threads.values().any(|thread| {
        matches!(&thread.state, State::Blocked(wait) if wait.deadline.is_some())
            && !spinners.iter().any(|spinner| spinner.thread == thread.id)
    })
}
