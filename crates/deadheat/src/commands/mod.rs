//! One file per subcommand.

pub mod baseline;
pub mod compare;
pub mod detect;
pub mod explain;
pub mod gc;
pub mod list;
pub mod mark;
pub mod record;
pub mod replay;
pub mod report;
pub mod run;
pub mod show;

use vm::record::ProcessStatus;

/// Ends this process the way the guest ended: same code, or the same signal.
pub fn end_like(status: ProcessStatus) -> i32 {
    match status {
        ProcessStatus::Exited(code) => code,
        ProcessStatus::Killed(signal) => {
            // SAFETY: restoring the default action and raising the signal; no
            // core file of the vm, the guest's state is in the recording.
            unsafe {
                let none = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::signal(signal, libc::SIG_DFL);
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
                libc::raise(signal);
            }
            128 + signal
        }
    }
}
