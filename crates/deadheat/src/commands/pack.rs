//! `deadheat pack`: makes a recording self-contained.

use super::Failure;
use std::path::PathBuf;
use vm::record::{Files, Recording};

#[derive(clap::Args)]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let recording = Recording::open(&arguments.recording)?;
    let mut files = Files::open(&recording.directory)?;
    let packed = files.pack()?;
    println!(
        "{packed} files copied into {}; {} in all",
        arguments.recording.display(),
        files.list().len()
    );
    Ok(0)
}
