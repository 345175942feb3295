//! `deadheat detect`: finds the races of a recording.

use super::Failure;
use crate::reporting::ReportOptions;
use crate::{ending, failures, phase};
use report::Stream;
use std::path::PathBuf;
use vm::interruption;

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
    /// Which channels through the kernel order what threads do before they
    /// send and after they receive: all, inside (not sockets whose other end
    /// may be another program) or none
    #[arg(long, value_name = "WHICH", default_value = "all")]
    kernel_edges: Edges,
    /// Tell every access to the detector, also those that translated code
    /// notes by itself: slower, with the same answer
    #[arg(long, hide = true)]
    tell_all: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Order {
    VectorClock,
    Sequencer,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Edges {
    All,
    Inside,
    None,
}

impl OrderArguments {
    pub fn options(&self) -> detect::Options {
        detect::Options {
            happens_before: match self.hb {
                Order::VectorClock => detect::HappensBefore::VectorClock,
                Order::Sequencer => detect::HappensBefore::Sequencer,
            },
            kernel_edges: match self.kernel_edges {
                Edges::All => detect::KernelEdges::All,
                Edges::Inside => detect::KernelEdges::Inside,
                Edges::None => detect::KernelEdges::None,
            },
            tell_all: self.tell_all,
            ..detect::Options::default()
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let recording = &arguments.recording;
    let report = ending::finding(|| {
        let mut report = phase::detecting(recording, || {
            detect::detect_tree(recording, &arguments.order.options(), None)
        })?;
        failures::tell(&mut report, recording)?;
        Ok::<_, Failure>(report)
    })?;
    let go_on = format!("deadheat detect {}", recording.display());
    ending::finish(reporting, report, Some(go_on))
}
