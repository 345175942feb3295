//! Things that are tried rather than looked up: breakpoints and attaching.

use std::io;
use std::ptr;

/// `struct perf_event_attr` up to its fifth published size (112 bytes), as far
/// as a breakpoint needs it.
#[repr(C)]
#[derive(Default)]
struct BreakpointEvent {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    rest: [u64; 5],
}

const PERF_TYPE_BREAKPOINT: u32 = 5;
const HW_BREAKPOINT_W: u32 = 2;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// Debug registers of an x86 processor.
const SLOTS: usize = 4;

/// How many variables of this thread can be watched at once through
/// perf_event_open, each watch tried with one write that must be counted.
pub fn perf_breakpoints() -> io::Result<usize> {
    let mut watched = [0u64; SLOTS];
    let mut open = Vec::new();
    for variable in &mut watched {
        match open_breakpoint(ptr::from_mut(variable)) {
            Ok(descriptor) => open.push(descriptor),
            Err(error) if open.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    for variable in &mut watched {
        // SAFETY: a plain write to a live local; volatile so that it happens.
        unsafe { ptr::write_volatile(variable, 1) };
    }
    let counted = open
        .iter()
        .filter(|descriptor| count(**descriptor) == Some(1))
        .count();
    for descriptor in open {
        // SAFETY: the descriptor was opened above and is closed once.
        unsafe { libc::close(descriptor) };
    }
    Ok(counted)
}

fn open_breakpoint(address: *mut u64) -> io::Result<libc::c_int> {
    let event = BreakpointEvent {
        kind: PERF_TYPE_BREAKPOINT,
        size: size_of::<BreakpointEvent>() as u32,
        sample_period: 1,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        bp_type: HW_BREAKPOINT_W,
        bp_addr: address as u64,
        bp_len: 8,
        ..BreakpointEvent::default()
    };
    let (this_thread, any_cpu, no_group, flags) = (0, -1, -1, 8 /* PERF_FLAG_FD_CLOEXEC */);
    // SAFETY: the kernel reads `size` bytes of the event, which lives through
    // the call, and returns a descriptor or an error.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &event,
            this_thread,
            any_cpu,
            no_group,
            flags,
        )
    };
    match libc::c_int::try_from(answer) {
        Ok(descriptor @ 0..) => Ok(descriptor),
        _ => Err(io::Error::last_os_error()),
    }
}

fn count(descriptor: libc::c_int) -> Option<u64> {
    let mut number = 0u64;
    // SAFETY: reads at most eight bytes into a live u64.
    let got = unsafe { libc::read(descriptor, ptr::from_mut(&mut number).cast(), 8) };
    (got == 8).then_some(number)
}

/// What attaching to a child of this process came to.
pub struct Attached {
    /// The debug registers of the child could be written through ptrace.
    pub debug_registers: bool,
}

/// Attaches to a child made for the purpose, as the sampler and gdb would.
pub fn attach_to_child() -> io::Result<Attached> {
    // SAFETY: this process has one thread here, so the child may run any code;
    // it only sleeps until it is killed.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => loop {
            // SAFETY: no pointers involved; the first call makes sure that the
            // child does not outlive a parent that dies here.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::pause();
            }
        },
        child => {
            let answer = attach(child);
            // SAFETY: the child is ours and is waited for once.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, ptr::null_mut(), 0);
            }
            answer
        }
    }
}

fn attach(child: libc::pid_t) -> io::Result<Attached> {
    let none = ptr::null_mut::<libc::c_void>();
    // SAFETY: ptrace on our own child with the argument forms that the man
    // page gives for each request; no memory of ours is passed.
    unsafe {
        if libc::ptrace(libc::PTRACE_SEIZE, child, none, none) == -1
            || libc::ptrace(libc::PTRACE_INTERRUPT, child, none, none) == -1
        {
            return Err(io::Error::last_os_error());
        }
        let mut status = 0;
        if libc::waitpid(child, &mut status, 0) != child {
            return Err(io::Error::last_os_error());
        }
        let first = std::mem::offset_of!(libc::user, u_debugreg);
        let written = libc::ptrace(libc::PTRACE_POKEUSER, child, first, 0x1000);
        Ok(Attached {
            debug_registers: written == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_has_the_size_the_kernel_knows() {
        assert_eq!(size_of::<BreakpointEvent>(), 112);
        assert_eq!(std::mem::offset_of!(BreakpointEvent, bp_addr), 56);
    }
}
