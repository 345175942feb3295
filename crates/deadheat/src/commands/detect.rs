//! `deadheat detect`: finds the races of a recording.

use super::Failure;
use crate::phase;
use crate::reporting::ReportOptions;
use report::Stream;
use std::path::PathBuf;

/// Find the data races of a recording
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat detect .deadheat/7              the races of recording 7
  deadheat detect rec --json               the same as JSON")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    #[command(flatten)]
    report: ReportOptions,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let recording = &arguments.recording;
    let report = phase::detecting(recording, || {
        detect::detect(recording, &detect::Options::default())
    })?;
    Ok(reporting.finish(report)?)
}
