//! `deadheat detect`: finds the races of a recording.

use super::Failure;
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
    order: OrderArguments,
    #[command(flatten)]
    report: ReportOptions,
}

/// What orders accesses.
#[derive(clap::Args)]
pub struct OrderArguments {
    /// What orders two accesses: vector-clock (the rules of synchronisation,
    /// exactly) or sequencer (regions between locked instructions and system
    /// calls; reports only what really overlapped)
    #[arg(long, value_name = "ORDER", default_value = "vector-clock")]
    hb: Order,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Order {
    VectorClock,
    Sequencer,
}

impl OrderArguments {
    pub fn options(&self) -> detect::Options {
        detect::Options {
            happens_before: match self.hb {
                Order::VectorClock => detect::HappensBefore::VectorClock,
                Order::Sequencer => detect::HappensBefore::Sequencer,
            },
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let report = detect::detect(&arguments.recording, &arguments.order.options())?;
    show_locks(&report);
    Ok(reporting.finish(report)?)
}

/// Lock problems stand beside the races; the text goes to standard error, the
/// JSON has them as well.
pub fn show_locks(report: &race::Report) {
    for finding in &report.locks {
        eprintln!("==================\n{}: {}", finding.kind, finding.text);
        for call in &finding.stacks {
            eprintln!("  {} (at {})", call.what, call.moment);
            for (number, frame) in call.stack.iter().take(8).enumerate() {
                let function = frame.function.as_deref().unwrap_or("?");
                match (&frame.file, frame.line) {
                    (Some(file), Some(line)) => {
                        eprintln!("    #{number} {function} {file}:{line}");
                    }
                    _ => eprintln!("    #{number} {function}"),
                }
            }
        }
    }
}
