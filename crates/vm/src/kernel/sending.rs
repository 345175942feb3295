//! Signals to other processes: to one, to a process group, and SIGKILL.
//!
//! A process of the recording that gets SIGKILL would lose what it has not
//! written to its recording yet, and robust mutexes that it holds in shared
//! memory would stay locked: the host's kernel knows nothing of them. So it is
//! asked to die instead (`host_signals::ask_to_die`). It ends its recording,
//! gives its mutexes up and dies of SIGKILL; the signal is a step of its
//! recording like any other from outside. Processes that are not of the
//! recording, or stopped, get the host's SIGKILL.
//!
//! A signal to a group is sent to its members one by one, because the vm's own
//! process takes its part inside, and deadheat's processes around the
//! recording are no part of the program.

use super::signal::{SI_USER, Target};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::tree::Tree;
use crate::{host, host_signals};
use std::os::unix::fs::MetadataExt;

impl Vm {
    pub(super) fn sys_kill(&mut self, call: &Call) -> Outcome {
        let [pid, signal, ..] = call.arguments;
        let (pid, signal) = (pid as i32, signal as i32);
        if !(0..=64).contains(&signal) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if pid == self.kernel.process.pid || self.is_own_thread(pid) {
            return self.kill_self(signal);
        }
        if pid > 0 || pid == -1 {
            return self.kill_other(call, pid, signal);
        }
        let mut group = -pid;
        let mut own = true;
        if group != 0 {
            let ours = self.host_call(libc::SYS_getpgrp, [0; 6])?;
            own = i64::from(group) == ours;
        }
        if !own && signal != libc::SIGKILL {
            return self.host_call(libc::SYS_kill, call.arguments);
        }
        let result = if self.io.is_live() {
            let tree = self.tree.as_ref();
            self.io.external(libc::SYS_kill as u32, || {
                if group == 0 {
                    // SAFETY: no preconditions.
                    group = unsafe { libc::getpgrp() };
                }
                (signal_group(tree, group, signal), Vec::new())
            })?
        } else {
            self.host_call(libc::SYS_kill, call.arguments)?
        };
        if own {
            self.kill_self(signal)
        } else {
            Ok(result)
        }
    }

    fn kill_self(&mut self, signal: i32) -> Outcome {
        if signal != 0 {
            let info = self.user_signal(signal, SI_USER);
            self.send_signal(Target::Process, info)?;
        }
        Ok(0)
    }

    /// A thread's id stands for its process. The ids of threads are the vm's
    /// invention, so a child may have the same one: then the child is meant.
    pub(super) fn is_own_thread(&self, tid: i32) -> bool {
        !self.kernel.process.children.contains(&tid)
            && self.threads.values().any(|thread| thread.tid == tid)
    }

    /// A call that sends `signal` to the process `pid`, not this one.
    pub(super) fn kill_other(&mut self, call: &Call, pid: i32, signal: i32) -> Outcome {
        if signal != libc::SIGKILL || pid <= 0 || !self.io.is_live() {
            return self.host_call(call.number as i64, call.arguments);
        }
        let tree = self.tree.as_ref();
        Ok(self.io.external(call.number as u32, || {
            (signal_one(tree, pid, signal), Vec::new())
        })?)
    }
}

/// Sends a signal to one process; the kernel's convention for errors.
fn signal_one(tree: Option<&Tree>, pid: i32, signal: i32) -> i64 {
    if signal == libc::SIGKILL
        && tree.is_some_and(|tree| tree.has_process(pid))
        && stat(pid).is_some_and(|stat| stat.state != 'T')
    {
        return host_signals::ask_to_die(pid);
    }
    // SAFETY: plain values.
    unsafe { host::syscall(libc::SYS_kill, [pid as u64, signal as u64, 0, 0, 0, 0]) }
}

/// Sends a signal to every member of a group but this process and deadheat's
/// own; the kernel's convention for errors.
fn signal_group(tree: Option<&Tree>, group: i32, signal: i32) -> i64 {
    let own = std::process::id() as i32;
    let program = identity("/proc/self/exe");
    let is_deadheat = |pid: i32| {
        program.is_some()
            && identity(&format!("/proc/{pid}/exe")) == program
            && !tree.is_some_and(|tree| tree.has_process(pid))
    };
    let mut result = -i64::from(libc::ESRCH);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid: &i32| *pid != own) else {
            continue;
        };
        if stat(pid).is_none_or(|stat| stat.group != group) || is_deadheat(pid) {
            continue;
        }
        // One that may be signalled is enough.
        let sent = signal_one(tree, pid, signal);
        if result != 0 {
            result = sent;
        }
    }
    result
}

fn identity(path: &str) -> Option<(u64, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

/// What `/proc/PID/stat` says of a process.
struct Stat {
    state: char,
    group: i32,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name may hold anything, brackets too.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some(Stat { state, group })
}
