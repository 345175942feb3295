//! `deadheat report`: shows a finished report again, in any form.

use crate::failure::Failure;
use crate::reporting::ReportOptions;
use clap::Args;
use report::Stream;
use std::path::PathBuf;

/// Show a report again, in any form
#[derive(Args)]
pub struct Arguments {
    /// A report that `--json=FILE` wrote.
    #[arg(value_name = "FILE")]
    report: PathBuf,

    #[command(flatten)]
    options: ReportOptions,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.options.prepare(Stream::Stdout)?;
    Ok(reporting.finish(report::read(&arguments.report)?)?)
}
