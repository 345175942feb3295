//! From a system call's number to its handler.

use super::names::syscall_name;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;

impl Vm {
    pub(super) fn dispatch(&mut self, call: &mut Call) -> Outcome {
        let [a, b, c, ..] = call.arguments;
        match call.number as i64 {
            libc::SYS_read => self.sys_read(call),
            libc::SYS_write => self.sys_write(call),
            libc::SYS_openat => self.sys_openat(call),
            libc::SYS_close => {
                self.kernel.fds.close(a as i32)?;
                Ok(0)
            }
            libc::SYS_mmap => self.sys_mmap(call),
            libc::SYS_munmap => self.sys_munmap(a, b),
            libc::SYS_mprotect => self.sys_mprotect(a, b, c),
            libc::SYS_mremap => self.sys_mremap(call),
            libc::SYS_brk => self.sys_brk(a),
            libc::SYS_madvise => self.sys_madvise(a, b, c),
            libc::SYS_futex => self.sys_futex(call),
            libc::SYS_clone => self.sys_clone(call),
            libc::SYS_exit => self.sys_exit(a),
            libc::SYS_exit_group => self.sys_exit_group(a),
            libc::SYS_sched_yield => Err(Halt::Yield(0)),
            libc::SYS_nanosleep => self.sys_nanosleep(call, a, b),
            libc::SYS_clock_nanosleep => self.sys_clock_nanosleep(call),
            libc::SYS_clock_gettime => self.sys_clock_gettime(a, b),
            libc::SYS_clock_getres => self.sys_clock_getres(a, b),
            libc::SYS_gettimeofday => self.sys_gettimeofday(a, b),
            libc::SYS_time => self.sys_time(a),
            libc::SYS_rt_sigaction => self.sys_rt_sigaction(call),
            libc::SYS_rt_sigprocmask => self.sys_rt_sigprocmask(call),
            libc::SYS_rt_sigreturn => self.sys_rt_sigreturn(),
            libc::SYS_rt_sigpending => self.sys_rt_sigpending(a),
            libc::SYS_rt_sigsuspend => self.sys_rt_sigsuspend(call),
            libc::SYS_rt_sigtimedwait => self.sys_rt_sigtimedwait(call),
            libc::SYS_rt_sigqueueinfo => self.sys_rt_sigqueueinfo(call, false),
            libc::SYS_rt_tgsigqueueinfo => self.sys_rt_sigqueueinfo(call, true),
            libc::SYS_sigaltstack => self.sys_sigaltstack(a, b),
            libc::SYS_pause => self.sys_pause(),
            libc::SYS_kill => self.sys_kill(call),
            libc::SYS_tkill => self.sys_tkill(call),
            libc::SYS_tgkill => self.sys_tgkill(call),
            libc::SYS_alarm => self.sys_alarm(a),
            libc::SYS_getitimer => self.sys_getitimer(a, b),
            libc::SYS_setitimer => self.sys_setitimer(a, b, c),
            libc::SYS_timer_create => self.sys_timer_create(a, b, c),
            libc::SYS_timer_settime => self.sys_timer_settime(call),
            libc::SYS_timer_gettime => self.sys_timer_gettime(a, b),
            libc::SYS_timer_getoverrun => self.sys_timer_getoverrun(a),
            libc::SYS_timer_delete => self.sys_timer_delete(a),
            libc::SYS_fork => self.sys_fork(call),
            libc::SYS_vfork => self.sys_vfork(call),
            libc::SYS_execve => self.sys_execve(call),
            libc::SYS_execveat => self.sys_execveat(call),
            libc::SYS_wait4 => self.sys_wait4(call),
            libc::SYS_waitid => self.sys_waitid(call),
            libc::SYS_getppid
            | libc::SYS_getpgid
            | libc::SYS_getpgrp
            | libc::SYS_getsid
            | libc::SYS_setpgid
            | libc::SYS_setsid => self.host_call(call.number as i64, call.arguments),
            libc::SYS_arch_prctl => self.sys_arch_prctl(a, b),
            libc::SYS_getrandom => self.sys_getrandom(call),
            libc::SYS_set_tid_address => self.sys_set_tid_address(a),
            libc::SYS_set_robust_list => self.sys_set_robust_list(a),
            libc::SYS_gettid => Ok(i64::from(self.current_tid())),
            libc::SYS_getpid => Ok(i64::from(self.kernel.process.pid)),
            // Refused in a way that makes libraries fall back.
            libc::SYS_rseq | libc::SYS_clone3 => Err(Halt::Errno(libc::ENOSYS)),
            _ => self.unsupported(call.number),
        }
    }

    /// Says once per call number that the vm does not have it.
    fn unsupported(&mut self, number: u64) -> Outcome {
        if self.kernel.reported.insert(number) {
            let name = syscall_name(number).unwrap_or("unknown");
            eprintln!(
                "deadheat: system call {name} ({number}) is not supported; the program is told so (ENOSYS)"
            );
        }
        Err(Halt::Errno(libc::ENOSYS))
    }
}
