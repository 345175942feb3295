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
            libc::SYS_tgkill => self.sys_tgkill(call),
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
