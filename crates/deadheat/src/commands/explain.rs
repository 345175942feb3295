//! `deadheat explain`: one race told as a story.

use super::Failure;
use crate::runs::{self, RunOption};
use clap::Args;
use report::Stream;

/// Tell one race as a story, for someone new to the tool
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat explain 3                       race 3 of the latest run
  deadheat explain 900f64b1 --run 7        by fingerprint, as run 7 saw it")]
pub struct Arguments {
    /// Number of the race in the run, or its fingerprint.
    #[arg(value_name = "RACE")]
    race: String,

    #[command(flatten)]
    run: RunOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let report = arguments.run.report()?;
    let race = runs::find(&report, &arguments.race)?;
    report::print_text(&report::explain(&report, race), Stream::Stdout)
        .map_err(report::Error::from)?;
    Ok(0)
}
