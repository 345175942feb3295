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
//! channel; copies that the run-time makes for the program (`copy`, `append`)
//! are not seen: a race there can be missed. Calls are
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
    /// Runs what a timer was set for, in the scheduler.
    RunTimer,
    /// The goroutine that calls finalizers begins.
    Finalizers,
    /// Calls a function by its address: a finalizer, or by reflection.
    CallBack,
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
        assert_eq!(known("main.mapassign"), None);
        assert_eq!(package("runtime.mallocgc"), Package::Runtime);
        assert_eq!(package("sync.(*Mutex).Lock"), Package::Sync);
        assert_eq!(package("main.main"), Package::Other);
    }
}
