//! Passes in processes of their own.
//!
//! A vm has its guest at fixed addresses, so there is one per process: each
//! pass runs in a forked child and sends what it found back through a pipe,
//! as JSON.

use serde::{Serialize, de::DeserializeOwned};
use vm::snapshot::{self, CopyError};

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
    let child = snapshot::in_fork(|| work().map_err(Into::into)).map_err(|error| match error {
        CopyError::Fork(error) => ForkError::Start(error),
        other => ForkError::Died(other.to_string()),
    })?;
    let answer: Result<T, (String, i32)> = child.join().map_err(|error| {
        if matches!(error, CopyError::Refused(_)) {
            return ForkError::Failed {
                message: error.to_string(),
                code: race::exit_code::FAILURE,
            };
        }
        ForkError::Died(match error {
            CopyError::Died(signal) => format!("signal {signal}"),
            CopyError::Silent(code) => format!("exit code {code}"),
            other => other.to_string(),
        })
    })?;
    answer.map_err(|(message, code)| ForkError::Failed { message, code })
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
