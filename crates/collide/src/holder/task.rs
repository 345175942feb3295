//! What `/proc` says about one task.

use super::descriptors;
use super::ptrace::Tid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::{fs, io};

/// The thread group (process) of a task.
pub fn group(tid: Tid) -> Option<Tid> {
    status_field(tid, "Tgid:")?.parse().ok()
}

/// The process that traces a task already, if any.
pub fn tracer(tid: Tid) -> Option<Tid> {
    status_field(tid, "TracerPid:")?
        .parse()
        .ok()
        .filter(|tracer| *tracer != 0)
}

fn status_field(tid: Tid, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line[field.len()..].trim().to_string())
}

/// How often a thread has given up its CPU or been pushed aside.
pub fn switches(tid: Tid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    text.lines()
        .filter_map(|line| line.split_once("voluntary_ctxt_switches:"))
        .map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

/// SIGTRAP has been raised and not been taken yet.
pub fn trap_pending(tid: Tid) -> bool {
    has_trap(tid, "SigPnd:")
}

/// The process handles or ignores SIGTRAP itself.
pub fn uses_traps(pid: Tid) -> bool {
    has_trap(pid, "SigCgt:") || has_trap(pid, "SigIgn:")
}

/// The thread has SIGTRAP blocked.
pub fn blocks_traps(tid: Tid) -> bool {
    has_trap(tid, "SigBlk:")
}

fn has_trap(tid: Tid, field: &str) -> bool {
    status_field(tid, field)
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask & (1 << (libc::SIGTRAP - 1)) != 0)
}

/// The state letter of `/proc/TID/stat`.
pub fn state(tid: Tid) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    text[text.rfind(')')? + 1..].trim_start().chars().next()
}

pub fn name(tid: Tid) -> String {
    fs::read_to_string(format!("/proc/{tid}/comm"))
        .map(|name| name.trim_end().to_string())
        .unwrap_or_default()
}

/// All threads of a process.
pub fn threads(pid: Tid) -> io::Result<Vec<Tid>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Some(tid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            threads.push(tid);
        }
    }
    Ok(threads)
}

/// `/proc/TID/syscall`, kept open: what a thread waits for, in one system call.
pub struct SystemCall {
    file: Option<File>,
}

impl SystemCall {
    pub fn open(tid: Tid) -> SystemCall {
        SystemCall {
            file: File::open(format!("/proc/{tid}/syscall"))
                .and_then(descriptors::spare)
                .ok(),
        }
    }

    /// Whether the thread is blocked and waits for another thread of its own
    /// program (a futex) rather than for time or the outside world.
    pub fn waits_for_a_thread(&self) -> bool {
        self.number() == Some(libc::SYS_futex)
    }

    /// Whether the thread is blocked in a call that leaves the program's memory
    /// alone: waits for another thread, for time or for a signal.
    pub fn sleeps(&self) -> bool {
        self.number().is_some_and(|number| {
            matches!(
                number,
                libc::SYS_futex
                    | libc::SYS_nanosleep
                    | libc::SYS_clock_nanosleep
                    | libc::SYS_pause
                    | libc::SYS_rt_sigsuspend
                    | libc::SYS_rt_sigtimedwait
            )
        })
    }

    /// Whether the thread is blocked in any call.
    pub fn blocks(&self) -> bool {
        self.number().is_some()
    }

    /// The system call the thread is blocked in.
    fn number(&self) -> Option<i64> {
        let mut text = [0; 24];
        let got = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        // A thread that runs says `running`.
        let word = text[..got].split(|byte| *byte == b' ').next()?;
        std::str::from_utf8(word).ok()?.parse().ok()
    }
}

/// Nanoseconds of CPU time a process has used.
pub fn cpu_time(pid: Tid) -> u64 {
    // The kernel's encoding of "CPU clock of that process" (CPUCLOCK_SCHED).
    clock(((!pid) << 3) | 2)
}

/// Nanoseconds of CPU time this process has used.
pub fn own_cpu_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes one timespec.
    if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
        return 0;
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether two tasks share their memory; `None` if the kernel does not say.
pub fn share_memory(one: Tid, other: Tid) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp takes integers only.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    match answer {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}
