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

impl From<report::Error> for Failure {
    fn from(error: report::Error) -> Self {
        Failure {
            code: error.exit_code(),
            message: error.to_string(),
        }
    }
}
