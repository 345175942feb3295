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
    #[error(
        "cannot write {}: there is no folder {}; make it, or give another file",
        path.display(), folder.display()
    )]
    NoFolder { path: PathBuf, folder: PathBuf },
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
    #[error(
        "{}: no such baseline; `deadheat baseline update {}` writes one from the latest run",
        path.display(), path.display()
    )]
    NoBaseline { path: PathBuf },
    #[error("{}: not a baseline that deadheat can read: {what}", path.display())]
    Baseline { path: PathBuf, what: String },
    #[error(
        "no store in {}; `deadheat run -- PROG` makes one, `--store DIR` names another",
        path.display()
    )]
    NoStore { path: PathBuf },
    #[error("the store in {} has no runs yet; `deadheat run -- PROG` makes one", path.display())]
    NoRuns { path: PathBuf },
    #[error("the store in {} has no run {run}; `deadheat list` shows what it has", path.display())]
    NoRun { path: PathBuf, run: u64 },
    #[error(
        "the details of run {run} were dropped by `deadheat gc`; its verdicts are still in the histories"
    )]
    Collected { run: u64 },
    #[error(
        "the store in {} is of version {found}, this deadheat knows up to {known}; use the newer deadheat that wrote it, or another --store",
        path.display()
    )]
    NewerStore {
        path: PathBuf,
        found: usize,
        known: usize,
    },
    #[error("the store {} cannot be used: {source}; --no-store does without one", path.display())]
    Store {
        path: PathBuf,
        source: rusqlite::Error,
    },
    #[error("{}:{line}: {what}", path.display())]
    Suppression {
        path: PathBuf,
        line: usize,
        what: String,
    },
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Read { .. }
            | Error::NoFolder { .. }
            | Error::NotAReport { .. }
            | Error::NewerReport { .. }
            | Error::NoBaseline { .. }
            | Error::NoStore { .. }
            | Error::NoRuns { .. }
            | Error::NoRun { .. }
            | Error::Collected { .. }
            | Error::NewerStore { .. }
            | Error::Baseline { .. }
            | Error::Suppression { .. } => race::exit_code::USAGE,
            Error::Write { .. } | Error::Print(_) | Error::Store { .. } => race::exit_code::FAILURE,
        }
    }
}
