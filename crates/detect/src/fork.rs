//! Passes in processes of their own.
//!
//! A vm has its guest at fixed addresses, so there is one per process: each
//! pass runs in a forked child and sends what it found back through a pipe,
//! as JSON.

use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("cannot start a process for the analysis: {0}")]
    Start(std::io::Error),
    #[error("the process of the analysis ended early ({0}); please report this with the recording")]
    Died(String),
    #[error("{message}")]
    Failed { message: String, code: i32 },
}

/// Runs `work` in a child and returns its result.
///
/// # Errors
/// What `work` failed with, as text and exit code, or how its process ended.
pub fn in_child<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<T, ForkError>
where
    T: Serialize + DeserializeOwned,
    E: Into<(String, i32)>,
{
    let mut ends = [0; 2];
    // SAFETY: plain out-parameter.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(ForkError::Start(std::io::Error::last_os_error()));
    }
    // SAFETY: both descriptors were just made and belong to nobody else.
    let (mut reader, mut writer) =
        unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: there are no other host threads; the child only runs `work` and
    // leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => Err(ForkError::Start(std::io::Error::last_os_error())),
        0 => {
            drop(reader);
            // The guest must not get the pipe's number among its descriptors.
            writer = high_descriptor(writer);
            let answer: Result<T, (String, i32)> = work().map_err(Into::into);
            let sent = serde_json::to_vec(&answer)
                .map_err(std::io::Error::from)
                .and_then(|bytes| writer.write_all(&bytes));
            // SAFETY: ends this child without running the parent's exit
            // handlers.
            unsafe { libc::_exit(i32::from(sent.is_err())) }
        }
        child => {
            drop(writer);
            let mut bytes = Vec::new();
            let read = reader.read_to_end(&mut bytes);
            let mut status = 0;
            // SAFETY: waiting for our own child.
            while unsafe { libc::waitpid(child, &mut status, 0) } == -1
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
            {
            }
            let how = if libc::WIFSIGNALED(status) {
                format!("signal {}", libc::WTERMSIG(status))
            } else {
                format!("exit code {}", libc::WEXITSTATUS(status))
            };
            read.map_err(|_| ForkError::Died(how.clone()))?;
            let answer: Result<T, (String, i32)> =
                serde_json::from_slice(&bytes).map_err(|_| ForkError::Died(how))?;
            answer.map_err(|(message, code)| ForkError::Failed { message, code })
        }
    }
}

/// What the program wrote while it was recorded is not written again: the
/// standard streams of this process lead nowhere from now on.
pub fn silence_output() {
    // SAFETY: opening and duplicating descriptors of this process; failures
    // leave the streams as they were.
    unsafe {
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if nowhere >= 0 {
            libc::dup2(nowhere, 1);
            libc::dup2(nowhere, 2);
            libc::close(nowhere);
        }
    }
}

fn high_descriptor(file: File) -> File {
    use std::os::fd::AsRawFd;
    // SAFETY: duplicating a descriptor we own; the result is ours.
    unsafe {
        let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900);
        if high < 0 {
            file
        } else {
            File::from_raw_fd(high)
        }
    }
}
