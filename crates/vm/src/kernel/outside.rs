//! Waiting for the outside: host descriptors, child processes and signals.

use crate::host_signals;

/// What became ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    /// A child may have changed state.
    pub child: bool,
}

/// Polls `descriptors` for at most `timeout` nanoseconds (for ever with
/// `None`) and says whether a child changed state, if asked. A signal from
/// outside ends the wait.
pub fn wait(descriptors: &mut [libc::pollfd], children: bool, timeout: Option<u64>) -> Ready {
    // A child that changes state sends SIGCHLD, which ends the wait, unless
    // the guest ignores that: then look every few milliseconds.
    const CHILD_POLL: u64 = 2_000_000;
    let mut left = timeout;
    loop {
        let child = children && child_changed();
        let step = if child {
            Some(0)
        } else if children {
            Some(left.map_or(CHILD_POLL, |left| left.min(CHILD_POLL)))
        } else {
            left
        };
        let time = step.map(|nanoseconds| libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        });
        let count = host_signals::poll(descriptors, time.as_ref());
        if count < 0 {
            // The entries were not filled in.
            for entry in descriptors.iter_mut() {
                entry.revents = 0;
            }
        }
        if count != 0 || child || !children {
            return Ready { child };
        }
        if let (Some(remaining), Some(step)) = (left, step) {
            if remaining <= step {
                return Ready {
                    child: child_changed(),
                };
            }
            left = Some(remaining - step);
        }
    }
}

/// True if some child can be waited for, or none is left; takes nothing away.
fn child_changed() -> bool {
    // SAFETY: plain out-parameter; WNOWAIT leaves the child waitable.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(
            libc::P_ALL,
            0,
            &mut info,
            libc::WEXITED
                | libc::WSTOPPED
                | libc::WCONTINUED
                | libc::WNOHANG
                | libc::WNOWAIT
                | libc::__WALL,
        );
        result != 0 || info.si_pid() != 0
    }
}
