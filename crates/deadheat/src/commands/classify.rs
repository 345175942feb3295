//! `deadheat classify`: finds the races of recordings and says what each can
//! do.

use super::Failure;
use crate::exploration::{self, ExploreOptions};
use crate::inputs;
use crate::orders::{self, Effort};
use crate::reporting::ReportOptions;
use crate::{ending, failures, phase};
use race::Report;
use report::Stream;
use std::path::PathBuf;
use vm::interruption;

/// Find the races of recordings and say what each can do
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat classify .deadheat/7            what each race of recording 7 can do
  deadheat classify rec --k 50 --schedules 10
                                           more occurrences, more schedules
  deadheat classify rec --budget 60        as much as a minute allows
  deadheat classify rec --all-instances    every instance, not only twenty of each race
  deadheat classify rec --input inputs/    the recorded program with other inputs as well
  deadheat classify rec --invariant 'queue.count <= len(queue.items)'
                                           does a race break what must always hold?
  deadheat classify rec --invariant '@write balance >= 0'
                                           the same, looked at after every write
  deadheat classify rec --allocator alloc=pool_get:2,free=pool_put:2
                                           follow an allocator of the program's own")]
pub struct Arguments {
    /// The recordings
    #[arg(required = true, value_name = "DIR")]
    recordings: Vec<PathBuf>,
    /// Try every instance that was listed, however long it takes
    #[arg(long)]
    all_instances: bool,
    /// Instructions to spend on playing instances in both orders, all races
    /// together: the first of each race, then the last, then some between
    #[arg(long, value_name = "N", default_value_t = orders::INSTRUCTIONS,
          conflicts_with = "all_instances")]
    order_instructions: u64,
    /// Record the program of the first recording again with another input, and
    /// classify the races of that run as well: a file is a standard input; one
    /// that ends in `.args` holds an argument vector per line (`-n 3 'two
    /// words' < FILE`); a folder holds such files
    #[arg(long, value_name = "PATH")]
    input: Vec<PathBuf>,
    /// Schedules tried after each occurrence of a race
    #[arg(long, default_value_t = exploration::SCHEDULES, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    schedules: u32,
    /// Do not believe that this function synchronises (its symbol, for instance
    /// pthread_mutex_lock): what it orders is reported as a race, and should
    /// end as single ordering
    #[arg(long, value_name = "SYMBOL")]
    forget_sync: Vec<String>,
    #[command(flatten)]
    order: super::detect::OrderArguments,
    #[command(flatten)]
    explore: ExploreOptions,
    #[command(flatten)]
    report: ReportOptions,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let _budget = arguments.explore.begin_budget();
    let effort = if arguments.all_instances {
        Effort::all()
    } else {
        Effort {
            instructions: arguments.order_instructions,
            ..Effort::default()
        }
    };
    let options = detect::Options {
        forget_sync: arguments.forget_sync.clone(),
        ..arguments.order.options()
    };
    let mut recordings = arguments.recordings.clone();
    for recording in &recordings {
        let recorded = vm::record::Recording::open(recording)?;
        arguments.explore.verify(&explore::program_of(&recorded))?;
    }
    let mut inputs_left = 0;
    if let Some(first) = arguments.recordings.first() {
        let mut all = Vec::new();
        for path in &arguments.input {
            all.extend(inputs::read(path)?);
        }
        for (number, input) in (1..).zip(&all) {
            if interruption::is_over() {
                inputs_left += 1;
                continue;
            }
            let label = format!("recording input {number} of {}", all.len());
            recordings.push(phase::counting(&label, None, || {
                inputs::record(first, input)
            })?);
        }
    }
    let mut reports = Vec::new();
    for (number, recording) in recordings.iter().enumerate() {
        if interruption::is_over() {
            let left = (recordings.len() - number) as u64;
            let mut rest = Report::new("vm", Vec::new());
            rest.leave(report::count(left, "recording"));
            reports.push(rest);
            break;
        }
        let found = ending::finding(|| {
            let mut report =
                phase::detecting(recording, || detect::detect_tree(recording, &options, None))?;
            failures::tell(&mut report, recording)?;
            Ok::<_, Failure>(report)
        });
        let mut report = found?;
        exploration::play_and_classify(
            &mut report,
            recording,
            exploration::Work {
                effort,
                schedules: arguments.schedules,
            },
            &arguments.explore,
            Some(&options),
        )?;
        reports.push(report);
    }
    let mut report = detect::merge(reports).ok_or_else(|| Failure::usage("no recording given"))?;
    if inputs_left > 0 {
        report.leave(report::count(inputs_left, "other input"));
    }
    let given = arguments.recordings.iter().map(PathBuf::as_path);
    ending::finish(reporting, report, ending::classify_again_in(given))
}
