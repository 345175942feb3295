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
pub mod vector;
pub mod watch;

mod cache;
mod clock;
mod confinement;
pub mod copy;
mod emit;
mod emulate;
mod extended_state;
mod fault;
mod flags;
pub mod guard;
mod host;
mod host_signals;
mod io;
mod layout;
mod loader;
mod machine;
mod processor;
mod recorder;
mod session;
pub mod snapshot;
pub mod state;
mod translate;
mod tree;

pub use host::end_like;
pub use loader::Program;
pub use machine::{GuestFault, Stop, Vm};
pub use session::{DEFAULT_QUANTUM, ScheduleChoice};

use context::Registers;
use race::Moment;
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
#[derive(Debug, Clone)]
pub struct Divergence {
    pub what: String,
    pub path: Option<PathBuf>,
    pub moment: Option<Moment>,
    pub regs: Option<Registers>,
    /// What may be the reason, though everything was replayed.
    pub reason: Option<String>,
}

impl Divergence {
    fn new(what: String) -> Box<Self> {
        Box::new(Divergence {
            what,
            path: None,
            moment: None,
            regs: None,
            reason: None,
        })
    }
}

impl std::error::Error for Divergence {}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the replay diverged from the recording")?;
        if let Some(moment) = self.moment {
            write!(f, " at {moment}")?;
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
        Ok(())
    }
}
