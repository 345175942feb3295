//! What can go wrong while travelling.

use std::io;
use vm::record::RecordError;
use vm::snapshot::{CopyError, Failed};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the replay stopped: {0}")]
    Replay(Failed),
    #[error("a process of the replay is gone: {0}")]
    Lost(io::Error),
    #[error("cannot serve gdb at `{address}`: {error}")]
    Address { address: String, error: io::Error },
    #[error("talking to gdb: {0}")]
    Connection(String),
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Recording(error) => error.exit_code(),
            Error::Replay(failed) => failed.exit_code,
            Error::Address { .. } => race::exit_code::USAGE,
            Error::Copy(_) | Error::Lost(_) | Error::Connection(_) => race::exit_code::FAILURE,
        }
    }
}
