//! Opening a FIFO waits for its other side. The vm must not wait with it, and
//! a FIFO opened without waiting does not tell when somebody has opened the
//! other end. So a helper process opens it and hands the descriptor over.
//!
//! The helper is no child that the guest could wait for (it has no exit
//! signal), has no other descriptors, and dies with the vm.

use crate::{host, host_signals};
use std::ffi::CStr;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A FIFO being opened.
pub struct Opening {
    helper: i32,
    line: OwnedFd,
}

impl Hash for Opening {
    /// Which helper process opens it does not matter; that one does, does.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Opening { helper: _, line: _ } = self;
        "opening".hash(state);
    }
}

impl Opening {
    /// True if opening this path may wait for somebody else.
    pub fn may_wait(directory: i32, path: &CStr, flags: i32) -> bool {
        if flags & (libc::O_NONBLOCK | libc::O_PATH) != 0 || flags & libc::O_ACCMODE == libc::O_RDWR
        {
            return false;
        }
        // SAFETY: plain out-parameter; the path lives across the call.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstatat(directory, path.as_ptr(), &mut stat, 0) == 0
                && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
        }
    }

    /// Starts the helper.
    pub fn start(directory: i32, path: &CStr, flags: i32, mode: u64) -> Option<Opening> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, owned by nobody else afterwards.
        let (ours, theirs) = unsafe {
            let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        let arguments = [
            directory as u64,
            path.as_ptr() as u64,
            (flags | libc::O_CLOEXEC) as u64,
            mode,
            0,
            0,
        ];
        let line = theirs.as_raw_fd();
        // All signals stay blocked in the helper.
        let helper = host_signals::held(|| {
            // SAFETY: a fork without exit signal; the child makes system calls
            // only and never returns.
            unsafe {
                let helper = host::syscall(libc::SYS_clone, [0; 6]);
                if helper == 0 {
                    help(arguments, line);
                }
                helper
            }
        });
        (helper > 0).then_some(Opening {
            helper: helper as i32,
            line: ours,
        })
    }

    /// The descriptor where the answer arrives.
    pub fn line(&self) -> i32 {
        self.line.as_raw_fd()
    }

    /// The opened descriptor or a negative errno; `None` while it waits.
    pub fn answer(&self) -> Option<i64> {
        receive(self.line.as_raw_fd())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: our own helper, not waited for before.
        unsafe {
            libc::kill(self.helper, libc::SIGKILL);
            libc::waitpid(self.helper, &mut status, libc::__WCLONE);
        }
    }
}

/// Room for one descriptor in a control message.
const CONTROL: usize = 24;

/// The life of the helper.
unsafe fn help(arguments: [u64; 6], line: i32) -> ! {
    // SAFETY: system calls on values of this process; the message and all it
    // points to live across the call.
    unsafe {
        host::syscall(libc::SYS_prctl, [1 /* PDEATHSIG */, 9, 0, 0, 0, 0]);
        // Whoever waits for the end of a pipe must not wait for us.
        let directory = arguments[0] as i32;
        let (low, high) = if directory >= 0 {
            (line.min(directory), line.max(directory))
        } else {
            (line, line)
        };
        for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
            if first <= last {
                let range = [first as u64, last as u64, 0, 0, 0, 0];
                host::syscall(libc::SYS_close_range, range);
            }
        }
        let mut result = host::syscall(libc::SYS_openat, arguments);
        let mut vector = libc::iovec {
            iov_base: (&raw mut result).cast(),
            iov_len: 8,
        };
        let mut control = [0u64; CONTROL / 8];
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        if result >= 0 {
            // Length, level and type, then the descriptor.
            control[0] = 20;
            control[1] = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
            control[2] = result as u64;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = CONTROL;
        }
        let at = &raw const message as u64;
        host::syscall(libc::SYS_sendmsg, [line as u64, at, 0, 0, 0, 0]);
        host::exit(0)
    }
}

/// Takes the helper's answer, if there is one.
fn receive(line: i32) -> Option<i64> {
    let mut result = 0i64;
    let mut control = [0u64; CONTROL / 8];
    let mut vector = libc::iovec {
        iov_base: (&raw mut result).cast(),
        iov_len: 8,
    };
    // SAFETY: the message and all it points to live across the call.
    let got = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        libc::recvmsg(
            line,
            &mut message,
            libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
        )
    };
    match got {
        8 if result >= 0 => Some(i64::from(control[2] as i32)),
        8 => Some(result),
        0 => Some(-i64::from(libc::EINTR)),
        _ => None,
    }
}
