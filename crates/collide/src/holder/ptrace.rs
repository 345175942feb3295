//! The few ptrace requests the holder makes, as functions that cannot be
//! called with a wrong argument.
//!
//! Everything here is meant for tasks held with `PTRACE_SEIZE`: attaching does
//! not stop anybody, group stops stay transparent (`listen`), and when the
//! holder exits the kernel lets go of every task by itself, without waking
//! those that sleep in a system call.

use std::io;
use std::mem::MaybeUninit;

pub type Tid = i32;
pub use libc::user_regs_struct as Registers;

/// `siginfo.si_code` of the signal an `int3` raises.
pub const SI_KERNEL: i32 = 0x80;
/// si_code of `int1`, and of a debug exception whose cause is not known.
pub const TRAP_BRKPT: i32 = 1;
/// si_code of a data breakpoint.
pub const TRAP_HWBKPT: i32 = 4;
/// The event of a stop that is not tied to a system call or signal: the first
/// stop of a new task, an interrupt, a group stop.
pub const EVENT_STOP: i32 = 128;

const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;

fn request(request: libc::c_uint, tid: Tid, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests made through here take integers only; those with
    // memory behind them have functions of their own below.
    let answer = unsafe { libc::ptrace(request, tid, address, data) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes hold of a task without stopping it.
pub fn seize(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize)
}

/// Lets a stopped task run on, delivering `signal` (0 for none).
pub fn resume(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Leaves a task in its group stop but wakes the holder when that ends.
pub fn listen(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Stops a running task as soon as it is about to return to user code.
pub fn interrupt(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Lets go of a stopped task, delivering `signal` (0 for none).
pub fn detach(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

pub fn registers(tid: Tid) -> io::Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::uninit();
    // SAFETY: PTRACE_GETREGS fills exactly one user_regs_struct.
    let answer = unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr()) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it, as the call succeeded.
    Ok(unsafe { registers.assume_init() })
}

/// Sets the instruction pointer of a stopped task and nothing else.
pub fn set_rip(tid: Tid, rip: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(Registers, rip);
    request(libc::PTRACE_POKEUSER, tid, offset, rip as usize)
}

/// `si_code` of the signal a task is stopped for.
pub fn signal_code(tid: Tid) -> io::Result<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: PTRACE_GETSIGINFO fills exactly one siginfo_t.
    let answer = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0, info.as_mut_ptr()) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it, as the call succeeded.
    Ok(unsafe { info.assume_init() }.si_code)
}

/// The floating-point state of a stopped task as `NT_FPREGSET` wants it.
pub fn float_registers(tid: Tid) -> io::Result<[u8; 512]> {
    let mut area = [0u8; 512];
    const _: () = assert!(size_of::<libc::user_fpregs_struct>() == 512);
    // SAFETY: PTRACE_GETFPREGS fills one user_fpregs_struct, which is 512
    // bytes long (checked above).
    let answer = unsafe { libc::ptrace(libc::PTRACE_GETFPREGS, tid, 0, area.as_mut_ptr()) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(area)
}

/// Blocked signals of a stopped task, bit n-1 for signal n.
pub fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes as many bytes as `address` says: 8.
    let answer =
        unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, tid, 8usize, &raw mut mask as usize) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(mask)
}

pub fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: PTRACE_SETSIGMASK reads as many bytes as `address` says: 8.
    let answer = unsafe {
        libc::ptrace(
            libc::PTRACE_SETSIGMASK,
            tid,
            8usize,
            &raw const mask as usize,
        )
    };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What `waitpid` said about one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Exited(i32),
    Killed(i32),
    /// About to receive this signal.
    Signal(i32),
    /// A ptrace event, with the signal number that comes with it.
    Event(i32, i32),
}

/// What the kernel has to tell, and keeps until it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nobody has changed state, or a signal ended the wait.
    Nothing,
    /// There is nobody left to wait for.
    NobodyLeft,
    /// This task has; `trap` if it is about to receive SIGTRAP.
    Of { tid: Tid, trap: bool },
}

/// The next task that changed state, if any has; does not wait.
pub fn look() -> Told {
    look_at(libc::WNOHANG)
}

/// The same, but sleeps until a task changes state or a signal arrives.
pub fn await_change() -> Told {
    look_at(0)
}

fn look_at(how: i32) -> Told {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | how;
    // SAFETY: waitid fills at most one siginfo_t, for which all-zero is valid
    // and says that nobody has changed state; the fields read are those of a
    // child's change.
    unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), how) != 0 {
            return match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => Told::Nothing,
                _ => Told::NobodyLeft,
            };
        }
        let info = info.assume_init();
        match info.si_pid() {
            0 => Told::Nothing,
            tid => Told::Of {
                tid,
                trap: info.si_code == libc::CLD_TRAPPED && info.si_status() == libc::SIGTRAP,
            },
        }
    }
}

/// Takes what `look` has told of a task. From then on the signal that it is
/// stopped for is lost if this process dies. `None` if the task has gone on
/// meanwhile: it was killed, and its end is told next.
pub fn take(tid: Tid) -> Option<Change> {
    let mut status = 0;
    // SAFETY: waitpid writes one int.
    let taken = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
    if taken != tid {
        return None;
    }
    if libc::WIFEXITED(status) {
        Some(Change::Exited(libc::WEXITSTATUS(status)))
    } else if libc::WIFSIGNALED(status) {
        Some(Change::Killed(libc::WTERMSIG(status)))
    } else if libc::WIFSTOPPED(status) {
        Some(match status >> 16 {
            0 => Change::Signal(libc::WSTOPSIG(status)),
            event => Change::Event(event, libc::WSTOPSIG(status)),
        })
    } else {
        None
    }
}
