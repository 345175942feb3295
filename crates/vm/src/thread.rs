//! Guest threads: registers, what they wait for, what the kernel keeps per
//! thread.

use crate::context::Registers;
use crate::kernel::process::Vforked;
use crate::kernel::signal::ThreadSignals;
use crate::kernel::{Call, Opening};
use crate::vector::VectorState;
use std::cell::Cell;
use std::hash::{Hash, Hasher};

/// A guest thread, numbered from 1 in order of creation.
pub struct Thread {
    pub id: u32,
    /// Thread id as the guest sees it.
    pub tid: i32,
    pub regs: Registers,
    pub vector: Box<VectorState>,
    /// Instructions retired.
    pub executed: u64,
    pub state: State,
    /// The system call that blocked, to be tried again when woken.
    pub call: Option<Call>,
    pub name: [u8; 16],
    /// A sleep takes this much longer than it was asked to.
    pub timer_slack: u64,
    /// Reading the time-stamp counter is a fault (PR_SET_TSC).
    pub time_stamps_fault: bool,
    pub clear_child_tid: u64,
    /// How often it has asked for the time, where that is counted.
    pub times_asked: Cell<u64>,
    pub robust_list: u64,
    pub signals: ThreadSignals,
    /// The child of a vfork that has not executed or exited yet.
    pub vforked: Option<Vforked>,
    /// A FIFO whose opening waits for the other side.
    pub opening: Option<Opening>,
}

impl Thread {
    /// What the kernel keeps of it. Its registers, and how far it has come, are
    /// told by themselves.
    pub(crate) fn hash_kernel_state<H: Hasher>(&self, state: &mut H) {
        let Thread {
            id,
            tid,
            regs: _,
            vector: _,
            executed: _,
            state: waits,
            call,
            name,
            timer_slack,
            time_stamps_fault,
            clear_child_tid,
            times_asked,
            robust_list,
            signals,
            vforked,
            opening,
        } = self;
        (id, tid, waits, call, name, timer_slack).hash(state);
        (time_stamps_fault, clear_child_tid, robust_list).hash(state);
        times_asked.get().hash(state);
        (signals, vforked, opening).hash(state);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum State {
    Runnable,
    Blocked(Wait),
    Exited,
}

/// What a blocked thread waits for. Whatever it is, the thread's system call
/// is executed again when it is woken and decides itself what happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wait {
    pub on: WaitOn,
    /// Virtual time at which to wake at the latest.
    pub deadline: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WaitOn {
    /// Only time (a sleep).
    Time,
    /// A futex word; woken by the futex code.
    Futex,
    /// Something inside the vm; woken by `Vm::wake_objects`.
    Objects,
    /// Host descriptors, and things inside the vm as well.
    Host(Vec<HostInterest>),
    /// A futex in memory shared with other processes.
    SharedFutex { slot: u32, sequence: u32 },
    /// Something outside that cannot be polled: tried again every so often.
    Retry,
    /// A child process.
    Child,
    /// Nothing but a signal.
    Signal,
}

impl WaitOn {
    /// It can only come from outside.
    pub fn is_outside(&self) -> bool {
        matches!(
            self,
            WaitOn::Host(_) | WaitOn::Child | WaitOn::SharedFutex { .. } | WaitOn::Retry
        )
    }
}

/// One host descriptor and the poll events of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostInterest {
    pub fd: i32,
    pub events: i16,
}

/// Linux's default, in nanoseconds: without it a loop of naps would go round far
/// more often than natively.
pub const TIMER_SLACK: u64 = 50_000;

impl Thread {
    pub fn new(id: u32, tid: i32, regs: Registers) -> Self {
        Thread {
            id,
            tid,
            regs,
            vector: Box::default(),
            executed: 0,
            state: State::Runnable,
            call: None,
            name: [0; 16],
            timer_slack: TIMER_SLACK,
            time_stamps_fault: false,
            clear_child_tid: 0,
            times_asked: Cell::new(0),
            robust_list: 0,
            signals: ThreadSignals::default(),
            vforked: None,
            opening: None,
        }
    }
}
