//! `deadheat pack`: makes a recording self-contained.

use super::Failure;
use std::path::PathBuf;
use vm::record::{Files, Recording};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat pack .deadheat/7                then copy the folder to another machine")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
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
    Ok(0)
}
