//! Go programs: goroutines have the clocks, not threads.
//!
//! The Go run-time runs goroutines on whatever thread is free, so what counts
//! as "the same thread" here is the goroutine: a thread that resumes one takes
//! on its clock and gives it back when the scheduler is entered, or another
//! thread resumes it before that. The edges are those of the Go memory model: a
//! `go` statement before the goroutine, what channels order (`gochannel`),
//! `close` before a receive that sees it, semaphores (the slow paths of
//! `sync`), `sync.Pool`, notify lists, setting a timer before what it runs,
//! everything before a finalizer. Fast paths of `sync` are locked instructions
//! in the caller (rule 3).
//!
//! Accesses of the run-time itself are not looked at. Operations on maps count
//! as accesses to the map, a send as a read and `close` as a write of the
//! channel; what the run-time copies, compares and clears for the program
//! (`copy`, `append`, conversions, values sent and received) counts where the
//! program's code calls it ([`Transfer`]). Copies of structures in the middle of
//! `duffcopy` are not seen: a race there can be missed. Calls are
//! followed by return address and goroutine, because a goroutine may return on
//! another thread, on a stack that has moved.
//!
//! Functions use the register calling convention (Go 1.17 and later); in
//! older programs nothing is followed and the report says so.

use crate::clock::{Epoch, Slot, VectorClock};
use crate::gochannel::Channel;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A function of the Go run-time and what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoCall {
    /// Resumes a goroutine.
    Resume,
    /// The scheduler: the thread runs no goroutine.
    Schedule,
    New,
    Send,
    Receive,
    Close,
    Select,
    SemaphoreAcquire,
    SemaphoreRelease,
    /// Pool and notify list: releases, acquires on return.
    Release,
    Acquire,
    Allocate,
    MoveStack,
    MapRead,
    MapWrite,
    /// The same, with a key at the third argument.
    MapReadKey,
    MapWriteKey,
    /// The next step of an iteration, which points to its map.
    MapNext,
    /// Reads or writes the program's memory for it.
    Transfer(Transfer),
    /// A value is received into the second argument.
    ReceiveInto,
    /// Runs what a timer was set for, in the scheduler.
    RunTimer,
    /// The goroutine that calls finalizers begins.
    Finalizers,
    /// Calls a function by its address: a finalizer, or by reflection.
    CallBack,
}

/// What the run-time does to the program's memory when the program's own code
/// calls it; registers are RAX, RBX, RCX, RDI, RSI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// `(to, from, size)`
    Move,
    /// `(type, to, from)`
    MoveTyped,
    /// `(type, to, length, from, length)`
    CopySlice,
    /// `(to, length, from, length, size of an element)`
    CopySized,
    /// The type and the old slice: `(type, old, length, capacity, …)`, or since
    /// Go 1.20 `(old, new length, capacity, added, type)`.
    Grow,
    /// `(buffer, from, count)` of elements of this size.
    Read(u8),
    /// `(one, other, size)`
    Compare,
    /// `(to, size)`
    Clear,
    /// `(type, from)`
    Box,
    /// `(channel, from)`
    Send,
    /// The key of a map: `(type of the map, map, key)`
    Key,
}

/// Memory that a call accesses: address, size, whether it is written.
pub type Touched = (u64, u64, bool);

impl Transfer {
    /// The memory, by the registers of the arguments. `word` reads memory and
    /// `is_type` says whether an address can be a type's.
    pub fn touches(
        self,
        arguments: &[u64; 5],
        word: impl Fn(u64) -> Option<u64>,
        is_type: impl Fn(u64) -> bool,
    ) -> [Option<Touched>; 2] {
        // A type begins with its size.
        let size_of = |kind: u64| word(kind).filter(|size| *size <= 1 << 32);
        let [first, second, third, fourth, fifth] = *arguments;
        match self {
            Transfer::Move => [Some((second, third, false)), Some((first, third, true))],
            Transfer::MoveTyped => {
                let size = size_of(first);
                [
                    size.map(|size| (third, size, false)),
                    size.map(|size| (second, size, true)),
                ]
            }
            Transfer::CopySlice => {
                let size = size_of(first).map(|size| size.saturating_mul(third.min(fifth)));
                [
                    size.map(|size| (fourth, size, false)),
                    size.map(|size| (second, size, true)),
                ]
            }
            Transfer::CopySized => {
                let size = second.min(fourth).saturating_mul(fifth);
                [Some((third, size, false)), Some((first, size, true))]
            }
            Transfer::Grow => {
                let (kind, old, length) = if is_type(first) && third <= fourth {
                    (first, second, third)
                } else {
                    (fifth, first, second.saturating_sub(fourth))
                };
                let size = size_of(kind).map(|size| size.saturating_mul(length));
                [size.map(|size| (old, size, false)), None]
            }
            Transfer::Read(size) => [
                Some((second, third.saturating_mul(size.into()), false)),
                None,
            ],
            Transfer::Compare => [Some((first, third, false)), Some((second, third, false))],
            Transfer::Clear => [Some((first, second, true)), None],
            Transfer::Box => [size_of(first).map(|size| (second, size, false)), None],
            Transfer::Key => {
                // struct maptype: a type of 48 bytes, then the type of the key.
                let size = first.checked_add(48).and_then(&word).and_then(size_of);
                [size.map(|size| (third, size, false)), None]
            }
            Transfer::Send => [element(first, word).map(|size| (second, size, false)), None],
        }
    }
}

/// Size of the values of a channel (struct hchan: values, room, buffer, size).
pub fn element(channel: u64, word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    word(channel.checked_add(24)?).map(|size| size & 0xffff)
}

/// What a function of this name does.
pub fn known(name: &str) -> Option<GoCall> {
    use GoCall::*;
    Some(match name {
        "runtime.gogo" | "runtime.gogo.abi0" => Resume,
        "runtime.schedule" => Schedule,
        "runtime.newproc1" => New,
        "runtime.chansend" => Send,
        "runtime.chanrecv" => Receive,
        "runtime.closechan" => Close,
        "runtime.selectgo" => Select,
        "runtime.semacquire1" => SemaphoreAcquire,
        "runtime.semrelease1" => SemaphoreRelease,
        "sync.(*Pool).Put"
        | "sync.runtime_notifyListNotifyOne"
        | "sync.runtime_notifyListNotifyAll" => Release,
        "sync.(*Pool).Get" | "sync.runtime_notifyListWait" => Acquire,
        "runtime.mallocgc" => Allocate,
        "runtime.copystack" => MoveStack,
        "time.startTimer" | "time.resetTimer" | "time.modTimer" => Release,
        "runtime.runOneTimer" | "runtime.(*timer).unlockAndRun" => RunTimer,
        "runtime.runfinq" | "runtime.runFinalizers" => Finalizers,
        "runtime.reflectcall" | "runtime.reflectcall.abi0" => CallBack,
        "runtime.mapiterinit" | "runtime.mapIterStart" => MapRead,
        "runtime.mapiternext" => MapNext,
        "runtime.mapclear" => MapWrite,
        "runtime.mapaccess1" | "runtime.mapaccess2" => MapReadKey,
        "runtime.mapassign" | "runtime.mapdelete" => MapWriteKey,
        "runtime.memmove" => Transfer(self::Transfer::Move),
        "runtime.typedmemmove" => Transfer(self::Transfer::MoveTyped),
        "runtime.typedslicecopy" => Transfer(self::Transfer::CopySlice),
        "runtime.slicecopy" => Transfer(self::Transfer::CopySized),
        "runtime.growslice" => Transfer(self::Transfer::Grow),
        "runtime.slicebytetostring" => Transfer(self::Transfer::Read(1)),
        "runtime.slicerunetostring" => Transfer(self::Transfer::Read(4)),
        "runtime.memequal" => Transfer(self::Transfer::Compare),
        "runtime.memclrNoHeapPointers" | "runtime.memclrHasPointers" => {
            Transfer(self::Transfer::Clear)
        }
        "runtime.convT" | "runtime.convTnoptr" => Transfer(self::Transfer::Box),
        "runtime.chansend1" => Transfer(self::Transfer::Send),
        "runtime.chanrecv1" | "runtime.chanrecv2" => ReceiveInto,
        _ => {
            let rest = name.strip_prefix("runtime.map")?;
            if rest.starts_with("access") {
                MapRead
            } else if rest.starts_with("assign") || rest.starts_with("delete") {
                MapWrite
            } else {
                return None;
            }
        }
    })
}

/// Whose code a function is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Package {
    Runtime,
    /// Locked instructions make edges; plain accesses are part of them.
    Sync,
    Other,
}

pub fn package(function: &str) -> Package {
    let runtime = [
        "runtime.",
        "runtime/",
        "internal/runtime/",
        "internal/bytealg.",
        // In assembly, without a package.
        "gogo",
        "gosave_systemstack_switch",
        "setg_gcc",
        "callRet",
        "debugCall",
        "_rt0",
        // Of the run-time, under the names of those who call them.
        "time.now",
        "time.runtimeN",
        "time.Sleep",
        "time.startTimer",
        "time.stopTimer",
        "time.resetTimer",
        "time.modTimer",
        "time.newTimer",
        "os.runtime_",
        "os/signal.signal_",
        "syscall.runtime_",
        "internal/poll.runtime_",
    ];
    let sync = ["sync.", "sync/", "internal/sync."];
    // Bodies in assembly have no package: indexbytebody, memeqbody.
    let body = function.ends_with("body") && !function.contains('.');
    if body || runtime.iter().any(|begin| function.starts_with(begin)) {
        Package::Runtime
    } else if sync.iter().any(|begin| function.starts_with(begin)) {
        Package::Sync
    } else {
        Package::Other
    }
}

/// A call that has not returned.
#[derive(Debug, Clone)]
pub struct Pending {
    pub back: u64,
    pub call: GoCall,
    /// Registers of the first arguments.
    pub arguments: [u64; 5],
    /// Operations on channels that it stands for.
    pub tokens: Vec<u64>,
}

/// A goroutine that no thread runs at the moment, or what a thread was before
/// it ran one.
#[derive(Debug)]
pub struct Routine {
    pub slot: Slot,
    pub clock: VectorClock,
    pub epoch: Epoch,
    pub pending: Vec<Pending>,
}

#[derive(Debug, Default)]
pub struct Goroutines {
    parked: HashMap<u64, Routine>,
    channels: BTreeMap<u64, Channel>,
    /// Calls finalizers.
    pub finalizing: Option<u64>,
}

impl Goroutines {
    /// The channel at an address; its capacity is asked for once.
    pub fn channel(&mut self, address: u64, capacity: impl FnOnce() -> u64) -> &mut Channel {
        self.channels
            .entry(address)
            .or_insert_with(|| Channel::new(capacity()))
    }

    /// The memory is something else from now on.
    pub fn forget_channels(&mut self, range: Range<u64>) {
        while let Some((address, _)) = self.channels.range(range.clone()).next() {
            let address = *address;
            self.channels.remove(&address);
        }
    }

    pub fn parked(&mut self) -> impl Iterator<Item = &mut Routine> {
        self.parked.values_mut()
    }

    pub fn park(&mut self, routine: u64, state: Routine) {
        self.parked.insert(routine, state);
    }

    pub fn take(&mut self, routine: u64) -> Option<Routine> {
        self.parked.remove(&routine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_name() {
        assert_eq!(known("runtime.chansend"), Some(GoCall::Send));
        assert_eq!(known("runtime.mapassign_fast64"), Some(GoCall::MapWrite));
        assert_eq!(known("runtime.mapaccess2_faststr"), Some(GoCall::MapRead));
        assert_eq!(known("runtime.chansend.func1"), None);
        assert_eq!(
            known("runtime.memmove"),
            Some(GoCall::Transfer(Transfer::Move))
        );
        assert_eq!(known("main.mapassign"), None);
        assert_eq!(package("runtime.mallocgc"), Package::Runtime);
        assert_eq!(package("sync.(*Mutex).Lock"), Package::Sync);
        assert_eq!(package("main.main"), Package::Other);
    }

    #[test]
    fn a_growing_slice_is_read_in_either_convention() {
        // At 100 is a type of eight bytes.
        let word = |address: u64| (address == 100).then_some(8);
        let is_type = |address: u64| address == 100;
        let read = Some((5000, 24, false));
        for arguments in [[100, 5000, 3, 3, 4], [5000, 4, 3, 1, 100]] {
            assert_eq!(
                Transfer::Grow.touches(&arguments, word, is_type),
                [read, None]
            );
        }
        assert_eq!(
            Transfer::CopySlice.touches(&[100, 1, 9, 2, 4], word, is_type),
            [Some((2, 32, false)), Some((1, 32, true))]
        );
    }
}
