//! Folders for what nobody is to see: recordings that are not kept, a socket.
//!
//! All of a process lie in one folder of its own among the temporary files. It
//! is gone when the process is, whatever ended it: `clean` removes it at a
//! normal end, and after Ctrl-C or `kill -9` a small process that waits for
//! nothing else does.

use crate::commands::Failure;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The folder of this process, and how many are in it.
static OWN: Mutex<Option<(PathBuf, u32)>> = Mutex::new(None);
/// Processes that end with this one may be about to write their last.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// A fresh folder.
pub fn folder() -> Result<PathBuf, Failure> {
    let base = std::env::temp_dir();
    let refused = |error: io::Error| {
        Failure::usage(format!(
            "cannot make a directory in {}: {error} (set TMPDIR)",
            base.display()
        ))
    };
    let mut own = OWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (folder, count) = match own.take() {
        Some((folder, count)) => (folder, count),
        None => (begin(&base).map_err(refused)?, 0),
    };
    let path = folder.join(count.to_string());
    *own = Some((folder, count + 1));
    make(&path).map_err(refused)?;
    Ok(path)
}

/// Removes them all.
pub fn clean() {
    let own = OWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take();
    if let Some((folder, _)) = own {
        // What cannot be removed is in the way of nobody.
        let _ = std::fs::remove_dir_all(folder);
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn begin(base: &Path) -> io::Result<PathBuf> {
    let pid = std::process::id();
    for number in 0.. {
        let folder = std::path::absolute(base.join(format!("deadheat-{pid}-{number}")))?;
        match make(&folder) {
            Ok(()) => {
                leave_cleaner(&folder);
                return Ok(folder);
            }
            // Of a process that had this number before.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Starts the process that outlives this one, if it can be had. It is nobody's
/// child, so that nobody who waits for children finds it, and of no terminal.
fn leave_cleaner(folder: &Path) {
    // SAFETY: the children run until `_exit` and touch nothing of this process
    // but `folder`.
    unsafe {
        let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
        if own < 0 {
            return;
        }
        let own = OwnedFd::from_raw_fd(own as i32);
        let child = libc::fork();
        if child == 0 {
            libc::setsid();
            if libc::fork() == 0 {
                clean_after(&own, folder);
            }
            libc::_exit(0);
        }
        if child > 0 {
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
}

fn clean_after(process: &OwnedFd, folder: &Path) {
    let fd = process.as_raw_fd();
    // SAFETY: closes what this process has inherited, so that nobody who reads
    // from a pipe waits for it, and waits for what is left.
    unsafe {
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, u32::MAX, 0);
        libc::chdir(c"/".as_ptr());
        // Who ends everything called deadheat leaves this one to its task.
        libc::prctl(libc::PR_SET_NAME, c"dh-cleaner".as_ptr());
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let mut ended = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        while libc::poll(&raw mut ended, 1, -1) < 0 {}
    }
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(STEP),
            _ => break,
        }
    }
}
