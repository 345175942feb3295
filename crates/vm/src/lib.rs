//! The deterministic vm: runs an unmodified Linux x86-64 program so that every
//! run can be repeated to the last register.
//!
//! After papers 000 (record, replay) and 003 (checkpoints, schedules). Guest
//! code is translated instruction by instruction to the same instruction set
//! (`translate`), all guest threads of a process run on one host thread under
//! a deterministic scheduler (`schedule`), a small kernel (`kernel`) answers
//! system calls, and only what comes from outside is written down (`record`).
//! Deviation from paper 000: no load values are logged, because with one host
//! thread and exact instruction counts the schedule and the outside inputs
//! determine everything; the price is no parallel speed-up while recording.
//! Guarantee: same recording, same execution; a divergence is reported at the
//! next switch.

pub mod context;
pub mod interruption;
pub mod kernel;
pub mod memory;
pub mod observe;
pub mod record;
pub mod schedule;
pub mod space;
pub mod thread;
pub mod threads;
pub mod vector;
pub mod watch;

mod cache;
mod clock;
mod confinement;
pub mod copy;
mod emit;
mod emulate;
mod extended_state;
mod far;
mod fault;
mod flags;
pub mod guard;
mod host;
mod host_signals;
mod io;
mod layout;
mod loader;
mod lock_waits;
mod machine;
mod processor;
mod protection;
mod recorder;
mod session;
mod shared_futexes;
pub mod snapshot;
pub mod state;
mod translate;
mod tree;
mod vdso;

pub use host::end_like;
pub use loader::Program;
pub use machine::{GuestFault, Stop, Vm};
pub use session::{DEFAULT_QUANTUM, ScheduleChoice};

use context::Registers;
use race::Moment;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What can go wrong in the vm itself (a fault of the guest is not an error).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine or its kernel cannot run the vm.
    #[error("{0}")]
    Machine(String),
    /// The guest needs something the vm does not have.
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Record(#[from] record::RecordError),
    /// Another process of a replayed tree failed, and has said why.
    #[error("a process of the recording did not replay, see above")]
    ProcessFailed,
    #[error(transparent)]
    Divergence(#[from] Box<Divergence>),
    /// The work was over before it was done (`interruption`).
    #[error("interrupted")]
    Interrupted,
    /// It failed in a process of its own.
    #[error(transparent)]
    Elsewhere(#[from] snapshot::Failed),
}

impl Error {
    /// What the command line exits with: the same for the same cause,
    /// whichever command meets it.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Record(error) => error.exit_code(),
            Error::Program(_) => race::exit_code::USAGE,
            Error::Elsewhere(failed) => failed.exit_code,
            Error::Machine(_)
            | Error::Unsupported(_)
            | Error::ProcessFailed
            | Error::Interrupted
            | Error::Divergence(_) => race::exit_code::FAILURE,
        }
    }
}

/// The program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("there is no program `{0}` in PATH")]
    NotFound(String),
    #[error("cannot open {path}: {error}")]
    CannotOpen {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("cannot run {path}: {what}")]
    NotExecutable { path: PathBuf, what: String },
    #[error("arguments and environment do not fit on the program's stack")]
    TooManyArguments,
}

/// A replay did not do what the recording says.
#[derive(Debug, Clone, Default)]
pub struct Divergence {
    pub what: String,
    pub path: Option<PathBuf>,
    pub moment: Option<Moment>,
    /// Instructions of all threads at the last check that agreed, and at this
    /// one.
    pub since: Option<u64>,
    pub until: Option<u64>,
    pub regs: Option<Registers>,
    /// What of the state differs, where that is known.
    pub difference: Option<Difference>,
    /// What may be the reason, though everything was replayed.
    pub reason: Option<String>,
    pub recording: Option<PathBuf>,
}

/// Where the state of a replay is not the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Difference {
    Registers {
        thread: u32,
        /// Empty if marks of four bits do not tell which.
        names: Vec<String>,
    },
    Pages {
        /// In the order of addresses, eight at most.
        first: Vec<PageDifference>,
        count: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDifference {
    pub address: u64,
    /// What lies there, in words.
    pub what: String,
    /// The replay has nothing there, or only zeros.
    pub missing: bool,
}

impl std::fmt::Display for PageDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} ({})", self.address, self.what)?;
        match self.missing {
            true => write!(f, ", which is empty in the replay"),
            false => Ok(()),
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Difference::Registers { thread, names } if names.is_empty() => {
                write!(f, "a register of thread {thread} differs")
            }
            Difference::Registers { thread, names } => {
                write!(f, "of thread {thread}, {} ", names.join(", "))?;
                f.write_str(if names.len() == 1 {
                    "differs"
                } else {
                    "differ"
                })
            }
            Difference::Pages { first, count } => {
                match count {
                    1 => write!(f, "one page of memory differs")?,
                    count => write!(f, "{count} pages of memory differ, the first")?,
                }
                first.first().map_or(Ok(()), |page| write!(f, ": {page}"))
            }
        }
    }
}

impl Divergence {
    fn new(what: String) -> Box<Self> {
        Box::new(Divergence {
            what,
            ..Divergence::default()
        })
    }
}

impl std::error::Error for Divergence {}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the replay diverged from the recording")?;
        match (self.moment, self.since, self.until) {
            (Some(moment), ..) => write!(f, " at {moment}")?,
            (None, Some(since), Some(until)) => {
                write!(f, " between instruction {since} and {until} of all threads")?
            }
            (None, None, Some(until)) => write!(f, " at instruction {until} of all threads")?,
            _ => {}
        }
        if let Some(difference) = &self.difference {
            write!(f, ": {difference}")?;
        }
        write!(f, ": {}", self.what)?;
        if let Some(regs) = &self.regs {
            write!(f, "; replayed registers: rip {:#x}", regs.rip)?;
            for (name, value) in context::reg::NAMES.iter().zip(regs.gpr) {
                write!(f, " {name} {value:#x}")?;
            }
        }
        if let Some(reason) = &self.reason {
            write!(f, "; {reason}")?;
        }
        if let Some(recording) = &self.recording {
            write!(
                f,
                "; `deadheat replay {} --diagnose` looks for more",
                recording.display()
            )?;
        }
        Ok(())
    }
}
