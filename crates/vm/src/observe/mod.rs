//! What an analysis can see of an execution.
//!
//! An `Observer` says what it wants (`Interest`) and pays only for that:
//! without observers the cache holds bare code. Instrumented code writes
//! accesses to a ring in memory, sixteen bytes each; the vm hands them over in
//! batches, always before any other event and at every switch of threads, so
//! an observer sees one total order of events. Observing never changes the
//! execution: counts, addresses and schedules are the same with and without,
//! unless an observer of a run that is being recorded asks for a thread to be
//! held (`AfterHook`).

pub(crate) mod complex;
pub mod known;

use crate::context::Registers;
use race::Moment;
use std::ops::Range;
use std::path::Path;

/// What an observer wants to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interest {
    /// Every access to memory by an instruction, stack bookkeeping (push, pop,
    /// call, return) excepted.
    pub accesses: bool,
    /// Of those, leave out what the observer's shadow words know (`known`).
    pub only_unknown: bool,
    /// Stack bookkeeping as well.
    pub stack: bool,
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

impl AccessEvent {
    /// What the kernel does on a thread's behalf: no instruction's.
    pub fn by_kernel(moment: Moment, address: u64, size: u64, write: bool) -> Self {
        AccessEvent {
            moment,
            pc: 0,
            address,
            size: size.min(u64::from(u32::MAX)) as u32,
            read: !write,
            write,
            locked: false,
        }
    }
}

/// A call into the system, when it has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyscallEvent {
    pub moment: Moment,
    pub number: u64,
    pub arguments: [u64; 6],
    pub result: i64,
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

/// What an observer wants after a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterHook {
    Nothing,
    /// Tell me when this function returns.
    TellReturn,
    /// In a copy: the call returns at once, without being made. Anywhere else
    /// nothing, because an observer never changes a recorded execution.
    SkipCall,
    /// In a copy: the call is made with this as its first argument, and its
    /// return told. Anywhere else only its return is told.
    FirstArgument(u64),
    /// While recording: the thread waits here, before the instruction, until
    /// it is released or patience is over.
    Hold(Patience),
    /// While recording: this thread, held elsewhere, goes on, and the slice of
    /// the one that got here ends, so that the policy chooses between them.
    Release(u32),
}

/// How long a thread is held at most: what all threads execute meanwhile, and
/// virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub instructions: u64,
    pub nanoseconds: u64,
}

/// Receives the events of an execution in their one total order.
///
/// Functions are followed by address: whenever code of a file is mapped, an
/// observer names the addresses it wants to see reached (the entry of
/// `malloc`, say), and asks there to be told of the return as well.
pub trait Observer {
    fn interest(&self) -> Interest;
    fn accesses(&mut self, _batch: &[AccessEvent]) {}
    /// With `only_unknown`: of a read of sixteen bytes and more, only the granule
    /// that it begins in matters. The C library's string functions read
    /// vectors past the end of what they are about.
    fn reads_by_start(&self) -> bool {
        false
    }

    /// With `only_unknown`: the words carry epochs, which locked instructions may
    /// end. Without, they say where to look.
    fn has_epochs(&self) -> bool {
        true
    }

    /// No access of the thread means anything at present, also none of those
    /// that are always told.
    fn is_deaf(&self, _thread: u32) -> bool {
        false
    }

    /// With `only_unknown`: an access is known if the word of the granule that it
    /// begins in is zero (all of them, if it is wider than one), whoever makes it.
    fn watches(&self) -> bool {
        false
    }

    /// What accesses of a thread are known by at present (`known`).
    fn known_by(&self, _thread: u32) -> known::Compare {
        known::Compare::Nothing
    }
    /// Which accesses of the instruction at `pc` an observer of unknown ones
    /// is told.
    fn told(&mut self, _pc: u64) -> known::Told {
        known::Told::Unknown
    }
    /// `told` has other answers now: code is to be made anew. Asked after a
    /// thread has started and after code has been mapped.
    fn tells_otherwise(&mut self) -> bool {
        false
    }
    /// The kernel read or wrote guest memory on behalf of the current thread.
    fn kernel_access(&mut self, _moment: Moment, _address: u64, _size: u64, _write: bool) {}
    fn syscall(&mut self, _event: &SyscallEvent, _registers: &Registers) {}
    /// The call waits, each time it has to; others see what it has done so
    /// far (a part of what it writes, a connection to be accepted). The result
    /// is not known.
    fn syscall_waits(&mut self, _event: &SyscallEvent) {}
    fn thread(&mut self, _moment: Moment, _event: ThreadEvent) {}
    /// Executable code of a file appeared; returns the addresses to hook.
    fn code_mapped(&mut self, _range: Range<u64>, _path: &Path, _offset: u64) -> Vec<u64> {
        Vec::new()
    }
    /// A range of memory was unmapped or mapped anew.
    fn unmapped(&mut self, _moment: Moment, _range: Range<u64>) {}
    /// A hooked address is about to be executed.
    fn hook(&mut self, _moment: Moment, _registers: &Registers) -> AfterHook {
        AfterHook::Nothing
    }
    /// A thread that was held goes on, released or out of patience.
    fn released(&mut self, _thread: u32) {}
    /// Further addresses to hook, asked for after each hook and system call.
    fn more_hooks(&mut self) -> Vec<u64> {
        Vec::new()
    }
    /// The function hooked at `function` has returned.
    fn returned(&mut self, _moment: Moment, _function: u64, _registers: &Registers) {}
    /// While recording: it has nothing to say about a process that this one
    /// forks, and is not told of it.
    fn stays_behind(&self) -> bool {
        false
    }
    /// For taking the observer back with its findings.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any>;
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
