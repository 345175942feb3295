//! The small kernel: what the guest's system calls do.
//!
//! Threads, futexes, clocks, pipes and the like live inside the vm as ordinary
//! state; only what really comes from outside goes through `Io`. One file per
//! family of calls. A call that cannot finish yet says what it waits for
//! (`Halt::Block`) and is executed again from the start when that may have
//! come; it decides itself whether it has. So there are no continuations to
//! save, and a snapshot of the vm is a snapshot of every blocked call.

mod advice;
mod clone;
mod digest;
mod dispatch;
mod epoll;
mod eventfd;
mod exec;
mod fcntl;
mod fd;
mod file;
mod futex;
mod in_copy;
mod ioctl;
mod limits;
pub(crate) mod mapped_files;
mod memory_map;
mod misc;
pub mod names;
mod opening;
pub mod outside;
mod path;
mod pipe;
mod poll;
mod proc_files;
pub mod process;
mod process_memory;
mod sending;
mod shared_memory;
pub mod signal;
mod signal_frame;
mod signalfd;
mod socket;
mod socketpair;
mod splice;
mod system_v;
mod time;
mod timer;
mod timerfd;
mod vforked;

use crate::machine::Vm;
use crate::memory::BadAddress;
use crate::observe::SyscallEvent;
use crate::record::RecordError;
use crate::schedule::SliceEnd;
use crate::thread::{State, Wait};
use crate::{Error, context::reg, host_signals, protection};

pub use digest::{KernelState, Part};
pub use fd::Descriptors;
pub(crate) use file::WOULD_BLOCK;
pub use opening::Opening;

/// A system call being executed, first or again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub number: u64,
    pub arguments: [u64; 6],
    /// It has blocked before.
    pub again: bool,
    /// Virtual time at which it gives up; fixed when it first blocks.
    pub deadline: Option<u64>,
    /// Set by whoever wakes the thread on purpose (a futex wake, say).
    pub woken: bool,
    /// A signal handler is to run: give up with EINTR if nothing has come.
    pub interrupted: bool,
    /// Virtual time at which a call with a time-out of its own gives up; it
    /// may wake before, for a timer among what it waits for.
    pub limit: Option<u64>,
    /// What it has transferred before it blocked.
    pub done: u64,
}

/// Why a system call did not just return a number.
#[derive(Debug)]
pub enum Halt {
    /// It fails with this errno (positive).
    Errno(i32),
    /// It has to wait.
    Block(Wait),
    /// The thread does not return from it: it exited, or its registers were
    /// set by the call (sigreturn, exec).
    NoReturn,
    /// The thread gives way after the call, with this result.
    Yield(i64),
    /// This is the new process of a fork: it goes on behind the call with 0.
    Forked,
    /// The vm cannot go on.
    Fatal(Error),
}

impl From<BadAddress> for Halt {
    fn from(_: BadAddress) -> Self {
        Halt::Errno(libc::EFAULT)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Fatal(error)
    }
}

impl From<RecordError> for Halt {
    fn from(error: RecordError) -> Self {
        Halt::Fatal(error.into())
    }
}

/// What a system call's handler returns: the kernel's own convention, with
/// negative numbers for errors passed through from the host.
pub type Outcome = Result<i64, Halt>;

/// State of the kernel for one guest process.
#[derive(Default)]
pub struct Kernel {
    pub fds: Descriptors,
    pub futexes: futex::Futexes,
    pub signals: signal::Signals,
    pub process: process::Process,
    pub machine: misc::Machine,
    pub limits: limits::Limits,
    /// While replaying: stand-ins for files that are mapped shared.
    pub shared_files: mapped_files::SharedFiles,
    pub shared_memory: shared_memory::SharedMemory,
    pub timers: timer::Timers,
    /// How many streams of each origin were made.
    made: std::collections::BTreeMap<u64, u32>,
    /// What the user was told already.
    said: std::collections::BTreeSet<String>,
}

impl Vm {
    /// The current thread has executed a `syscall` instruction.
    pub(crate) fn system_call(&mut self) -> Result<Option<SliceEnd>, Error> {
        self.clock.call();
        let gpr = &mut self.regs().gpr;
        let call = Call {
            number: gpr[reg::RAX],
            arguments: [
                gpr[reg::RDI],
                gpr[reg::RSI],
                gpr[reg::RDX],
                gpr[reg::R10],
                gpr[reg::R8],
                gpr[reg::R9],
            ],
            again: false,
            deadline: None,
            woken: false,
            interrupted: false,
            limit: None,
            done: 0,
        };
        // The instruction itself leaves rip and flags there.
        let (rip, flags) = (self.regs().rip, self.regs().rflags);
        self.regs().gpr[reg::RCX] = rip;
        self.regs().gpr[reg::R11] = flags;
        if points_to_vm(&call) {
            self.regs().gpr[reg::RAX] = -i64::from(libc::EFAULT) as u64;
            return self.deliver_after(None);
        }
        if !is_about_mappings(&call) {
            for address in call.arguments {
                self.grow_down(address);
                // What is written to may be code.
                if protection::any() {
                    self.space_for_writing(address, crate::layout::PAGE);
                }
            }
        }
        self.perform(call)
    }

    /// Tries a blocked call again, if there is one.
    pub(crate) fn resume_call(&mut self) -> Result<Option<SliceEnd>, Error> {
        let current = self.current;
        let Some(thread) = self.threads.get_mut(&current) else {
            return Ok(Some(SliceEnd::Exited));
        };
        match thread.call.take() {
            Some(call) => self.perform(call),
            None => self.deliver_signals(),
        }
    }

    fn perform(&mut self, mut call: Call) -> Result<Option<SliceEnd>, Error> {
        if call.again {
            // Another thread may have taken the signal meanwhile.
            call.interrupted = self.must_interrupt();
        }
        let minds = self.io.minds_streams();
        if minds {
            let asking = self.asking(&call);
            self.io.ask(asking);
        }
        let imagined = if self.io.is_copy() {
            self.imagine(&call)
        } else {
            None
        };
        let mut outcome = match imagined {
            Some(outcome) => outcome,
            None => self.dispatch(&mut call),
        };
        if minds {
            self.io.ask(Default::default());
        }
        self.settle();
        if matches!(outcome, Err(Halt::Block(_))) && self.must_interrupt() {
            self.kernel.futexes.forget(self.current);
            call.interrupted = true;
            outcome = Err(Halt::Errno(libc::EINTR));
        }
        let (result, end) = match outcome {
            Ok(result) => (result, None),
            Err(Halt::Errno(errno)) => (-i64::from(errno), None),
            Err(Halt::Yield(result)) => (result, self.give_way(SliceEnd::Yielded)),
            Err(Halt::NoReturn) => {
                let exited = self.ended.is_some()
                    || self
                        .threads
                        .get(&self.current)
                        .is_none_or(|thread| thread.state == State::Exited);
                if exited {
                    return Ok(Some(SliceEnd::Exited));
                }
                return self.deliver_signals();
            }
            Err(Halt::Block(wait)) => {
                call.again = true;
                call.deadline = wait.deadline;
                call.woken = false;
                if self.observed() {
                    let event = self.syscall_event(&call, 0);
                    self.tell_observers(|observer, _| observer.syscall_waits(&event));
                }
                let current = self.current;
                if let Some(thread) = self.threads.get_mut(&current) {
                    thread.call = Some(call);
                    thread.state = State::Blocked(wait);
                }
                return Ok(Some(SliceEnd::Blocked));
            }
            Err(Halt::Forked) => {
                self.regs().gpr[reg::RAX] = 0;
                return Ok(Some(SliceEnd::Exited));
            }
            Err(Halt::Fatal(error)) => return Err(error),
        };
        if result == -i64::from(libc::EPIPE) && breaks_pipe(&call) {
            self.raise_signal(libc::SIGPIPE)?;
        }
        self.regs().gpr[reg::RAX] = result as u64;
        self.leave_trail(&[
            call.number,
            call.arguments[0],
            call.arguments[1],
            call.arguments[2],
            result as u64,
        ]);
        self.tell_syscall(&call, result);
        let broken_off = call.interrupted && result == -i64::from(libc::EINTR);
        let interrupted = broken_off.then(|| signal::Interrupted::new(&call));
        if let Some(delivered) = self.deliver_after(interrupted)? {
            return Ok(Some(delivered));
        }
        Ok(end
            .or_else(|| self.timer_after_call())
            .or_else(|| self.signal_after_call())
            .or_else(|| self.sequencer_after_call()))
    }

    /// The time that calls have taken may bring a timer's.
    fn timer_after_call(&mut self) -> Option<SliceEnd> {
        let due = self.next_timer()? <= self.now();
        due.then(|| self.give_way(SliceEnd::Interrupted)).flatten()
    }

    /// A signal from outside has come meanwhile, perhaps sent by the call.
    fn signal_after_call(&mut self) -> Option<SliceEnd> {
        let noted = self.io.is_live() && host_signals::noted();
        noted
            .then(|| self.give_way(SliceEnd::Interrupted))
            .flatten()
    }

    fn syscall_event(&self, call: &Call, result: i64) -> SyscallEvent {
        SyscallEvent {
            moment: self.moment(),
            number: call.number,
            arguments: call.arguments,
            result,
        }
    }

    fn tell_syscall(&mut self, call: &Call, result: i64) {
        if self.observed() {
            let event = self.syscall_event(call, result);
            self.tell_observers(|observer, regs| observer.syscall(&event, regs));
            self.take_more_hooks();
            for (address, length) in std::mem::take(&mut self.kernel_writes) {
                self.tell_kernel_access(address, length as u64, true);
            }
        }
    }
}

/// Its addresses say where memory is or shall be; nothing is read or written there.
fn is_about_mappings(call: &Call) -> bool {
    matches!(
        call.number as i64,
        libc::SYS_mmap
            | libc::SYS_munmap
            | libc::SYS_mprotect
            | libc::SYS_mremap
            | libc::SYS_madvise
            | libc::SYS_msync
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_munlock
            | libc::SYS_brk
            | libc::SYS_shmat
            | libc::SYS_shmdt
    )
}

/// A pointer that goes to the host as it is lies in the vm's own memory: to
/// the guest there is nothing. (What the vm reads and writes itself is vetted
/// in `memory`.)
fn points_to_vm(call: &Call) -> bool {
    // The arguments, by bit, that are such pointers.
    let pointers: u8 = match call.number as i64 {
        libc::SYS_getcwd
        | libc::SYS_uname
        | libc::SYS_sysinfo
        | libc::SYS_getrandom
        | libc::SYS_memfd_create
        | libc::SYS_mq_unlink => 0b1,
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_fstat
        | libc::SYS_statfs
        | libc::SYS_fstatfs
        | libc::SYS_readlink
        | libc::SYS_getdents
        | libc::SYS_getdents64
        | libc::SYS_connect
        | libc::SYS_bind
        | libc::SYS_getrusage
        | libc::SYS_getgroups
        | libc::SYS_setgroups
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_prctl
        | libc::SYS_semop
        | libc::SYS_msgsnd
        | libc::SYS_msgrcv
        | libc::SYS_listxattr
        | libc::SYS_llistxattr
        | libc::SYS_flistxattr => 0b10,
        libc::SYS_capget | libc::SYS_capset => 0b11,
        libc::SYS_newfstatat
        | libc::SYS_readlinkat
        | libc::SYS_ioctl
        | libc::SYS_fcntl
        | libc::SYS_utimensat
        | libc::SYS_sched_getaffinity
        | libc::SYS_sendfile
        | libc::SYS_msgctl
        | libc::SYS_shmctl
        | libc::SYS_pidfd_send_signal => 0b100,
        libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_mq_getsetattr
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_fgetxattr
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_fsetxattr => 0b110,
        libc::SYS_getresuid | libc::SYS_getresgid => 0b111,
        libc::SYS_semctl | libc::SYS_setsockopt => 0b1000,
        libc::SYS_copy_file_range | libc::SYS_splice => 0b1010,
        libc::SYS_mq_timedsend | libc::SYS_mq_timedreceive => 0b1010,
        libc::SYS_mq_open => 0b1001,
        libc::SYS_statx => 0b1_0000,
        libc::SYS_getsockopt => 0b1_1000,
        libc::SYS_sendto => 0b1_0010,
        libc::SYS_recvfrom => 0b11_0010,
        _ => 0,
    };
    call.arguments
        .iter()
        .enumerate()
        .any(|(bit, pointer)| pointers & (1 << bit) != 0 && crate::memory::is_vm(*pointer))
}

/// A call whose EPIPE comes with SIGPIPE.
fn breaks_pipe(call: &Call) -> bool {
    let flags = match call.number as i64 {
        libc::SYS_sendto => call.arguments[3],
        libc::SYS_sendmsg => call.arguments[2],
        libc::SYS_sendmmsg => call.arguments[3],
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendfile
        | libc::SYS_splice
        | libc::SYS_tee
        | libc::SYS_vmsplice => 0,
        _ => return false,
    };
    flags as i32 & libc::MSG_NOSIGNAL == 0
}
