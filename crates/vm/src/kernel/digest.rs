//! What the kernel keeps for the guest, as a few numbers: two worlds with the
//! same numbers, the same registers and the same memory go on alike.
//!
//! Paper 000, section 4.2, compares registers and memory, because a replay
//! there stops at every system call. Here an access may be a system call, and
//! an equal state is claimed to mean an equal future: so descriptors and what
//! is behind them, queues of futexes, pending signals, timers, mappings, waits
//! of threads, what was read and what was written count as well.
//!
//! Each kind of state hashes itself where it is defined, and names all its
//! fields, so that a new one is not forgotten. What the guest cannot tell is
//! left out there (host descriptors, what was translated). Guarantee: equal
//! digests are of equal states, but for collisions of 64-bit hashes; equal
//! states may have different digests (a descriptor made, closed and made again
//! has another number inside).

use super::Kernel;
use crate::machine::Vm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::Xxh3;

/// A part of the state beside registers and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    Descriptors,
    Futexes,
    Signals,
    Timers,
    Mappings,
    Threads,
    Process,
    InputTaken,
    OutputWritten,
    FilesWritten,
    /// Virtual time and the instructions that threads have executed: what it
    /// reads, and where slices end.
    Time,
}

impl Part {
    /// As a report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Descriptors => "descriptors and what is behind them",
            Part::Futexes => "queues of futexes",
            Part::Signals => "pending signals and their handlers",
            Part::Timers => "timers",
            Part::Mappings => "memory mappings",
            Part::Threads => "waits, names and signal masks of threads",
            Part::Process => "the process's own settings",
            Part::InputTaken => "input taken so far",
            Part::OutputWritten => "output written so far",
            Part::FilesWritten => "files written so far",
            Part::Time => "time",
        }
    }
}

/// The parts and their digests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState(BTreeMap<Part, u64>);

impl KernelState {
    fn add(&mut self, part: Part, tell: impl FnOnce(&mut Xxh3)) {
        let mut hash = Xxh3::new();
        tell(&mut hash);
        self.0.insert(part, hash.finish());
    }

    /// Without time: whoever compares what two orders of different length have
    /// left does not ask for it.
    pub fn without_time(mut self) -> KernelState {
        self.0.remove(&Part::Time);
        self
    }

    /// Parts that differ, with their digests here and there.
    pub fn differences(&self, other: &KernelState) -> Vec<(Part, [u64; 2])> {
        self.0
            .iter()
            .zip(other.0.values())
            .filter(|((_, one), other)| one != other)
            .map(|((part, one), other)| (*part, [*one, *other]))
            .collect()
    }
}

impl Vm {
    /// Everything but registers and memory that decides how the guest goes on.
    pub fn kernel_state(&self) -> KernelState {
        let Kernel {
            fds,
            futexes,
            signals,
            process,
            machine,
            limits,
            shared_files,
            shared_memory,
            timers,
            made,
            said: _,
        } = &self.kernel;
        let mut state = KernelState::default();
        state.add(Part::Descriptors, |hash| fds.hash(hash));
        state.add(Part::Futexes, |hash| futexes.hash(hash));
        state.add(Part::Signals, |hash| signals.hash(hash));
        state.add(Part::Timers, |hash| timers.hash(hash));
        state.add(Part::Mappings, |hash| {
            (&self.space, shared_files, shared_memory).hash(hash);
        });
        state.add(Part::Threads, |hash| {
            for thread in self.threads.values() {
                thread.hash_kernel_state(hash);
            }
        });
        state.add(Part::Process, |hash| {
            (process, machine, limits, made, self.ended).hash(hash);
        });
        if let Some(copy) = self.io.as_copy() {
            state.add(Part::InputTaken, |hash| {
                (&copy.known_inputs, &copy.random).hash(hash);
            });
            state.add(Part::OutputWritten, |hash| copy.outputs.hash(hash));
            state.add(Part::FilesWritten, |hash| copy.overlay.hash(hash));
        }
        state.add(Part::Time, |hash| {
            (self.clock, self.instructions()).hash(hash);
            for id in self.threads.keys() {
                (id, self.executed(*id)).hash(hash);
            }
        });
        state
    }
}
