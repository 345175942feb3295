//! What can go wrong while travelling.

use std::io;
use vm::record::RecordError;
use vm::snapshot::CopyError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the replay stopped: {0}")]
    Replay(String),
    #[error("a process of the replay is gone: {0}")]
    Lost(io::Error),
    #[error("cannot serve gdb at `{address}`: {error}")]
    Address { address: String, error: io::Error },
    #[error("talking to gdb: {0}")]
    Connection(String),
}
