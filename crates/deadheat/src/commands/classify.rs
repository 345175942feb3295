//! `deadheat classify`: finds the races of recordings and plays both orders of
//! each.

use super::Failure;
use crate::orders;
use crate::phase;
use crate::reporting::ReportOptions;
use report::Stream;
use std::path::PathBuf;

/// Find the races of recordings and play both orders of each
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat classify .deadheat/7            what each race of recording 7 leaves behind
  deadheat classify rec --all-instances    every instance, not only twenty of each race")]
pub struct Arguments {
    /// The recordings
    #[arg(required = true, value_name = "DIR")]
    recordings: Vec<PathBuf>,
    /// Try every instance that was listed, however long it takes
    #[arg(long)]
    all_instances: bool,
    #[command(flatten)]
    report: ReportOptions,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let limit = if arguments.all_instances {
        usize::MAX
    } else {
        orders::INSTANCES
    };
    let mut reports = Vec::new();
    for recording in &arguments.recordings {
        let mut report = phase::detecting(recording, || {
            detect::detect(recording, &detect::Options::default())
        })?;
        orders::play(&mut report, recording, limit)?;
        reports.push(report);
    }
    let report = detect::merge(reports).ok_or_else(|| Failure::usage("no recording given"))?;
    Ok(reporting.finish(report)?)
}
