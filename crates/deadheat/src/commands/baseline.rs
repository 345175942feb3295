//! `deadheat baseline`: the file of races a project lives with for now.

use super::Failure;
use crate::reporting::StoreOption;
use crate::runs;
use clap::{Args, Subcommand};
use report::Baseline;
use std::path::PathBuf;

/// Write the file that --baseline reads
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat baseline update races.baseline      take the latest run in
  deadheat baseline update races.baseline 7 --forget   exactly the races of run 7")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Take the races of a run into the baseline
    Update(Update),
}

#[derive(Args)]
struct Update {
    /// The baseline file; made if there is none.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The run: a number, or a file that --json=FILE wrote [default: the
    /// latest run]
    #[arg(value_name = "RUN")]
    run: Option<String>,

    /// Also forget the races that this run did not see.
    #[arg(long)]
    forget: bool,

    #[command(flatten)]
    store: StoreOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let Action::Update(update) = &arguments.action;
    let report = runs::load(&update.store.store, update.run.as_deref())?;
    let mut baseline = match Baseline::read(&update.file) {
        Err(report::Error::NoBaseline { .. }) => Baseline::default(),
        other => other?,
    };
    let changes = baseline.update(&report, update.forget);
    baseline.write(&update.file)?;
    tell!(
        "{}: {} (added {}, changed {}, forgotten {})",
        update.file.display(),
        report::count(baseline.len() as u64, "race"),
        changes.added,
        changes.changed,
        changes.removed
    );
    if changes.carried > 0 {
        tell!(
            "{} of an older deadheat carried over: races are now told apart by what they are on, \
             not by their lines alone",
            report::count(changes.carried as u64, "race")
        );
    }
    Ok(0)
}
