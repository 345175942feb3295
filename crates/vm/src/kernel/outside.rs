//! Waiting for the outside: host descriptors and child processes.

/// What became ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ready {
    /// A child may have changed state.
    pub child: bool,
}

/// Polls `descriptors` for at most `timeout` nanoseconds (for ever with
/// `None`) and says whether a child changed state, if asked.
pub fn wait(descriptors: &mut [libc::pollfd], children: bool, timeout: Option<u64>) -> Ready {
    // Children end asynchronously; look every few milliseconds while one is
    // awaited beside descriptors.
    const CHILD_POLL: u64 = 2_000_000;
    let mut left = timeout;
    loop {
        let step = if children {
            Some(left.map_or(CHILD_POLL, |left| left.min(CHILD_POLL)))
        } else {
            left
        };
        let time = step.map(|nanoseconds| libc::timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as i64,
        });
        // SAFETY: the slice and the optional timespec live across the call.
        let count = unsafe {
            libc::ppoll(
                descriptors.as_mut_ptr(),
                descriptors.len() as u64,
                time.as_ref().map_or(std::ptr::null(), |time| time),
                std::ptr::null(),
            )
        };
        let child = children && child_changed();
        if count != 0 || child || !children {
            return Ready { child };
        }
        if let (Some(remaining), Some(step)) = (left, step) {
            if remaining <= step {
                return Ready { child };
            }
            left = Some(remaining - step);
        }
    }
}

/// True if some child can be waited for; takes nothing away.
fn child_changed() -> bool {
    // SAFETY: plain out-parameter; WNOWAIT leaves the child waitable.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(
            libc::P_ALL,
            0,
            &mut info,
            libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT,
        );
        result != 0 || info.si_pid() != 0
    }
}
