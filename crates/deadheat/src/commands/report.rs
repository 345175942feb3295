//! `deadheat report`: shows a finished report again, in any form.

use super::Failure;
use crate::reporting::ReportOptions;
use crate::runs;
use clap::Args;
use report::Stream;

/// Show a run's report again, in any form
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat report                          the latest run
  deadheat report 7 --html races.html      run 7 as a page for the browser
  deadheat report --sarif races.sarif      for code scanning
  deadheat report races.json --json        a report kept as a file")]
pub struct Arguments {
    /// The run: a number, or a file that --json=FILE wrote [default: the
    /// latest run]
    #[arg(value_name = "RUN")]
    run: Option<String>,

    /// Keep the report in the store as a new run (for a report from a file,
    /// say from another machine).
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    options: ReportOptions,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = match arguments.keep {
        true => arguments.options.prepare(Stream::Stdout)?,
        false => arguments.options.prepare_again(Stream::Stdout)?,
    };
    let mut report = runs::load(&arguments.options.store.store, arguments.run.as_deref())?;
    if arguments.keep {
        report.run = None;
    }
    Ok(reporting.finish(report)?)
}
