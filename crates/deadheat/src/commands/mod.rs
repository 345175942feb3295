//! One file per subcommand.

pub mod baseline;
pub mod cargo;
pub mod cargo_deadheat;
pub mod cc;
pub mod classify;
pub mod compare;
pub mod completions;
pub mod detect;
pub mod doctor;
pub mod dump;
pub mod exec;
pub mod explain;
pub mod export;
pub mod gc;
pub mod hunt;
pub mod ifr_report;
pub mod import;
pub mod list;
pub mod man;
pub mod mark;
pub mod pack;
pub mod record;
pub mod replay;
pub mod report;
pub mod run;
pub mod sample;
pub mod show;
pub mod whatif;

use std::fmt;

pub use vm::end_like;

/// Why a command could not do what it was asked: a sentence and an exit code.
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    /// The command line or a file given by the user is wrong.
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure {
            code: race::exit_code::USAGE,
            message: message.to_string(),
        }
    }

    /// deadheat cannot do its work: a tool or a folder it needs is missing.
    pub fn own(message: impl fmt::Display) -> Self {
        Failure {
            code: race::exit_code::FAILURE,
            message: message.to_string(),
        }
    }
}

impl From<vm::Error> for Failure {
    fn from(error: vm::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

impl From<vm::snapshot::Failed> for Failure {
    fn from(failed: vm::snapshot::Failed) -> Self {
        Failure {
            code: failed.exit_code,
            message: failed.message,
        }
    }
}

impl From<collide::SampleError> for Failure {
    fn from(error: collide::SampleError) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

impl From<::report::Error> for Failure {
    fn from(error: ::report::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

impl From<vm::record::RecordError> for Failure {
    fn from(error: vm::record::RecordError) -> Self {
        vm::Error::from(error).into()
    }
}

impl From<::detect::Error> for Failure {
    fn from(error: ::detect::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

/// For the way through a pipe, from the process that did the work.
impl From<Failure> for (String, i32) {
    fn from(failure: Failure) -> Self {
        (failure.message, failure.code)
    }
}
