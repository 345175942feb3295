//! Open files of the holder: what may run out of them and what must not.
//!
//! Every thread of the program can take half a dozen. Those make sampling
//! cheaper or see more; without the memory of a process, or its entry in
//! `/proc`, the holder could not put the program right. So the former get half
//! of what this process may open.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors below this one are for what may be done without.
static SPARE: AtomicI32 = AtomicI32::new(512);

/// Allows this process all it may open. To be called when no other program
/// will inherit that.
pub fn raise_limit() {
    let mut files = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads and writes one rlimit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) != 0 {
            return;
        }
        let soft = files.rlim_cur;
        files.rlim_cur = files.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files) != 0 {
            files.rlim_cur = soft;
        }
    }
    let half = i32::try_from(files.rlim_cur / 2).unwrap_or(i32::MAX);
    SPARE.store(half, Ordering::Relaxed);
}

/// Gives back a file that has just been opened and can be done without, if
/// there is no room for it.
pub fn spare<F: AsRawFd>(file: F) -> io::Result<F> {
    if file.as_raw_fd() < SPARE.load(Ordering::Relaxed) {
        Ok(file)
    } else {
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }
}
