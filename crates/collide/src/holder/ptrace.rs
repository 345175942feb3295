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

/// The next task that changed state, if any has; does not wait. `Ok(None)`
/// also stands for "there is nobody left to wait for", told apart by the
/// flag.
pub fn next_change() -> (Option<(Tid, Change)>, bool) {
    change(libc::WNOHANG)
}

/// The same, but sleeps until a task changes state or a signal arrives.
pub fn await_change() -> (Option<(Tid, Change)>, bool) {
    change(0)
}

fn change(how: i32) -> (Option<(Tid, Change)>, bool) {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | how) };
        if tid == 0 {
            return (None, true);
        }
        if tid < 0 {
            let interrupted = io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
            return (None, interrupted);
        }
        let change = if libc::WIFEXITED(status) {
            Change::Exited(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Change::Killed(libc::WTERMSIG(status))
        } else if libc::WIFSTOPPED(status) {
            match status >> 16 {
                0 => Change::Signal(libc::WSTOPSIG(status)),
                event => Change::Event(event, libc::WSTOPSIG(status)),
            }
        } else {
            continue;
        };
        return (Some((tid, change)), true);
    }
}
