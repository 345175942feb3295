//! `deadheat pack`: makes a recording self-contained.

use super::Failure;
use report::{count, plain};
use std::path::{Path, PathBuf};
use vm::record::{Files, Recording, redact, secrets, variables};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat pack .deadheat/7                          then copy the folder to another machine
  deadheat pack .deadheat/7 --redact API_TOKEN       without this variable's value

A recording holds the program's environment, its arguments and everything it read. \
--redact replaces a variable's value by as many `x`, wherever it is in memory, and replays \
once to see that the program does not use it. If it does, nothing is changed (exit code 2).")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    #[command(flatten)]
    redaction: Redaction,
}

/// What is left out of a recording that is handed on.
#[derive(clap::Args)]
pub struct Redaction {
    /// Take the value of this environment variable out (can be repeated)
    #[arg(long, value_name = "NAME")]
    redact: Vec<String>,
}

impl Redaction {
    /// Takes values out of the recording and says which variables it carries.
    pub fn apply(&self, recording: Recording) -> Result<Recording, Failure> {
        if self.redact.is_empty() {
            return Ok(recording);
        }
        redact(&recording, &self.redact).map_err(|error| Failure {
            code: error.exit_code(),
            message: error.to_string(),
        })
    }
}

/// Says which variables go along.
pub fn tell_environment(recording: &Recording, directory: &Path) -> Result<(), Failure> {
    let manifest = &recording.manifest;
    let redacted = &manifest.redacted;
    let carried = variables(manifest).len().saturating_sub(redacted.len());
    tell!(
        "{} carries {} of the program's environment, its arguments and all that it read",
        directory.display(),
        count(carried as u64, "variable")
    );
    if !redacted.is_empty() {
        tell!("without values: {}", plain(&redacted.join(", ")));
    }
    let secrets = secrets(manifest);
    if !secrets.is_empty() {
        tell!(
            "these look like secrets: {}; `deadheat pack {} --redact NAME` takes a value out",
            plain(&secrets.join(", ")),
            directory.display()
        );
    }
    Ok(())
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let recording = Recording::open(&arguments.recording)?;
    let (mut packed, mut all) = (0, 0);
    for process in recording.processes() {
        let mut files = Files::open(&recording.directory, process)?;
        packed += files.pack()?;
        all += files.list().len();
    }
    tell!(
        "{packed} files copied into {}; {all} in all",
        arguments.recording.display()
    );
    let recording = arguments.redaction.apply(recording)?;
    tell_environment(&recording, &arguments.recording)?;
    Ok(0)
}
