//! Why a subcommand could not do its work, and what deadheat exits with then.
//!
//! Each crate's error type becomes a `Failure` by a `From` here, which is the
//! one place that decides between "the user's input is wrong" (2) and
//! "deadheat failed" (70).

/// A message for the user and an exit code.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub code: i32,
}

impl Failure {
    /// The command line or an input file is wrong.
    pub fn usage(message: impl ToString) -> Self {
        Failure {
            message: message.to_string(),
            code: race::exit_code::USAGE,
        }
    }
}

impl From<report::Error> for Failure {
    fn from(error: report::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

impl From<vm::Error> for Failure {
    fn from(error: vm::Error) -> Self {
        let code = match &error {
            vm::Error::Program(_) | vm::Error::Record(_) => race::exit_code::USAGE,
            _ => race::exit_code::FAILURE,
        };
        Failure {
            code,
            message: error.to_string(),
        }
    }
}

impl From<vm::record::RecordError> for Failure {
    fn from(error: vm::record::RecordError) -> Self {
        vm::Error::from(error).into()
    }
}

impl From<detect::Error> for Failure {
    fn from(error: detect::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

/// For the way through a pipe, from a process that did the work.
impl From<Failure> for (String, i32) {
    fn from(failure: Failure) -> Self {
        (failure.message, failure.code)
    }
}
