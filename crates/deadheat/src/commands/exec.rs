//! `deadheat exec`: runs a program in the vm and writes nothing down; the
//! baseline against which recording and detection are measured.

use super::record::{ScheduleArguments, program};
use super::{Failure, end_like};
use std::ffi::OsString;
use vm::{Stop, Vm};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat exec -- ./prog arg              does the program run in the vm, and how fast
  deadheat exec --schedule pct --seed 3 -- ./prog  one schedule, nothing kept")]
pub struct Arguments {
    #[command(flatten)]
    schedule: ScheduleArguments,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG"
    )]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let program = program(&arguments.command)?;
    let mut vm = Vm::live(&program, arguments.schedule.choice())?;
    match vm.run(None)? {
        Stop::Ended(status) => Ok(end_like(status)),
        _ => Ok(race::exit_code::FAILURE),
    }
}
