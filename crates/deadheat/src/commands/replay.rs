//! `deadheat replay`: runs a recorded execution again.

use super::{Failure, end_like};
use race::Moment;
use std::path::PathBuf;
use vm::record::Recording;
use vm::{Stop, Vm};

#[derive(clap::Args)]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Stop before this moment (THREAD:COUNT) and show the thread there
    #[arg(long, value_name = "THREAD:COUNT")]
    until: Option<Moment>,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let recording = Recording::open(&arguments.recording)?;
    let mut vm = Vm::replay(&recording)?;
    match vm.run(arguments.until)? {
        Stop::Ended(status) => Ok(end_like(status)),
        Stop::Reached(moment) => {
            println!("stopped at {moment}");
            Ok(0)
        }
        Stop::RecordingEnds => {
            eprintln!("deadheat: the recording ends here, before the program did");
            Ok(race::exit_code::FAILURE)
        }
    }
}
