//! What can go wrong between a finished analysis and what people see of it.

use std::path::PathBuf;

/// An error of this crate; the message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot print the report: {0}")]
    Print(#[from] std::io::Error),
    #[error(
        "{}: not a deadheat report: {source}; give a file that `deadheat … --json=FILE` wrote",
        path.display()
    )]
    NotAReport {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{}: report schema {found}, this deadheat reads up to {}; use the deadheat that wrote it or a newer one",
        path.display(),
        race::SCHEMA
    )]
    NewerReport { path: PathBuf, found: u32 },
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Read { .. } | Error::NotAReport { .. } | Error::NewerReport { .. } => {
                race::exit_code::USAGE
            }
            Error::Write { .. } | Error::Print(_) => race::exit_code::FAILURE,
        }
    }
}
