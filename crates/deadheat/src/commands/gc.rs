//! `deadheat gc`: drops old recordings and the details of old runs.

use super::Failure;
use crate::reporting::StoreOption;
use clap::Args;
use report::{Store, count};

/// Drop old recordings and the details of old runs
///
/// Verdict histories and marks stay.
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat gc                              keep the newest twenty
  deadheat gc --keep 5 --dry-run           what would go")]
pub struct Arguments {
    /// How many of the newest recordings and runs to keep.
    #[arg(long, value_name = "N", default_value_t = 20)]
    keep: usize,

    /// Only say what would go.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    store: StoreOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let collected =
        Store::open(&arguments.store.store)?.collect(arguments.keep, arguments.dry_run)?;
    for path in &collected.recordings {
        tell!("{}", report::plain(&path.display().to_string()));
    }
    tell!(
        "{} {} ({:.1} MB) and the details of {}",
        if arguments.dry_run {
            "would drop"
        } else {
            "dropped"
        },
        count(collected.recordings.len() as u64, "recording"),
        collected.bytes as f64 / 1e6,
        count(collected.runs.len() as u64, "run"),
    );
    Ok(0)
}
