//! Passes in processes of their own.
//!
//! A vm has its guest at fixed addresses, so there is one per process: each
//! pass runs in a forked child and sends what it found back through a pipe,
//! as JSON.

use serde::{Serialize, de::DeserializeOwned};
use vm::interruption;
use vm::snapshot::{self, CopyError, Running};

#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("cannot start a process for the analysis: {0}")]
    Start(std::io::Error),
    #[error("the process of the analysis ended early ({0}); please report this with the recording")]
    Died(String),
    #[error("{message}")]
    Failed { message: String, code: i32 },
    /// The work was over before it was done.
    #[error("interrupted")]
    Interrupted,
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
    let answer = start(work)?.join().map_err(died)?;
    answer.map_err(|(message, code)| match interruption::is_over() {
        true => ForkError::Interrupted,
        false => ForkError::Failed { message, code },
    })
}

/// The same for work that records a program: when it is interrupted the program
/// is brought to its end, and what was recorded until then is whole.
///
/// # Errors
/// What `work` failed with, as text and exit code, or how its process ended.
pub fn in_recorder<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<T, ForkError>
where
    T: Serialize + DeserializeOwned,
    E: Into<(String, i32)>,
{
    let answer = start(work)?.join_recording().map_err(died)?;
    answer.map_err(|(message, code)| ForkError::Failed { message, code })
}

type Answer<T> = Result<T, (String, i32)>;

fn start<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<Running<Answer<T>>, ForkError>
where
    T: Serialize,
    E: Into<(String, i32)>,
{
    snapshot::in_fork(|| work().map_err(Into::into)).map_err(|error| match error {
        CopyError::Fork(error) => ForkError::Start(error),
        other => ForkError::Died(other.to_string()),
    })
}

fn died(error: CopyError) -> ForkError {
    ForkError::Died(match error {
        CopyError::Interrupted => return ForkError::Interrupted,
        CopyError::Refused(_) => {
            return ForkError::Failed {
                message: error.to_string(),
                code: race::exit_code::FAILURE,
            };
        }
        CopyError::Died(signal) => format!("signal {signal}"),
        CopyError::Silent(code) => format!("exit code {code}"),
        other => other.to_string(),
    })
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
