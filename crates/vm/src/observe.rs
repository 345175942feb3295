//! What an analysis can see of an execution.
//!
//! An `Observer` says what it wants (`Interest`) and pays only for that:
//! without observers the cache holds bare code. Instrumented code writes
//! accesses to a ring in memory, sixteen bytes each; the vm hands them over in
//! batches, always before any other event and at every switch of threads, so
//! an observer sees one total order of events. Observing never changes the
//! execution: counts, addresses and schedules are the same with and without.

use crate::context::Registers;
use race::Moment;

/// What an observer wants to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interest {
    /// Every access to memory by an instruction, stack bookkeeping (push, pop,
    /// call, return) excepted.
    pub accesses: bool,
    /// Calls of the malloc family, found by symbol.
    pub allocations: bool,
}

/// One access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessEvent {
    pub moment: Moment,
    pub pc: u64,
    pub address: u64,
    pub size: u32,
    pub read: bool,
    pub write: bool,
    /// A locked instruction or `xchg`.
    pub locked: bool,
}

/// A call into the system, when it has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyscallEvent {
    pub moment: Moment,
    pub number: u64,
    pub arguments: [u64; 6],
    pub result: i64,
}

/// One call of an allocator, when it has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationEvent {
    Allocated {
        address: u64,
        size: u64,
    },
    /// Told when the call is made, before the allocator touches the block.
    Freed {
        address: u64,
    },
}

/// Everything that happens between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadEvent {
    Started {
        thread: u32,
        parent: u32,
    },
    Exited {
        thread: u32,
    },
    Switched {
        from: Option<u32>,
        to: u32,
    },
    /// `waker` woke `woken` from a wait on the futex word at `address`.
    FutexWake {
        waker: u32,
        woken: u32,
        address: u64,
    },
}

/// Receives the events of an execution in their one total order.
pub trait Observer {
    fn interest(&self) -> Interest;
    fn accesses(&mut self, _batch: &[AccessEvent]) {}
    fn syscall(&mut self, _event: &SyscallEvent, _registers: &Registers) {}
    fn allocation(&mut self, _moment: Moment, _event: AllocationEvent) {}
    fn thread(&mut self, _moment: Moment, _event: ThreadEvent) {}
}

/// A static access in translated code; ring records name it by index.
#[derive(Debug, Clone, Copy)]
pub struct AccessSite {
    pub pc: u64,
    pub size: u32,
    pub read: bool,
    pub write: bool,
    pub locked: bool,
    /// What to add to the counter to have the instructions that really
    /// remained before this one.
    pub correction: i32,
}

/// All sites of the code in the cache.
#[derive(Default)]
pub struct Sites {
    list: Vec<AccessSite>,
}

impl Sites {
    pub fn add(&mut self, site: AccessSite) -> u32 {
        self.list.push(site);
        (self.list.len() - 1) as u32
    }

    pub fn get(&self, index: u32) -> AccessSite {
        self.list[index as usize]
    }

    /// Forgets all sites; only valid together with a flush of the cache and
    /// an empty ring.
    pub fn clear(&mut self) {
        self.list.clear();
    }
}

/// Works out the accesses of an instruction whose addresses or extent depend
/// on the machine's state.
pub(crate) fn complex_access(_vm: &mut crate::machine::Vm) {}
