//! How the user names a run or a race: a run by its number in the store, by
//! the file of a JSON report, or not at all (the latest); a race by its number
//! in that run or by its fingerprint.

use crate::commands::Failure;
use crate::reporting::StoreOption;
use clap::Args;
use race::{Fingerprint, Race, Report};
use report::Store;
use std::path::{Path, PathBuf};

/// Which run a command is about.
#[derive(Args, Debug, Clone)]
pub struct RunOption {
    /// The run: a number, or a file that --json=FILE wrote [default: the
    /// latest run]
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,

    #[command(flatten)]
    pub store: StoreOption,
}

impl RunOption {
    pub fn report(&self) -> Result<Report, Failure> {
        load(&self.store.store, self.run.as_deref())
    }
}

/// The report of the run named `name`, with the marks of the store.
pub fn load(folder: &Path, name: Option<&str>) -> Result<Report, Failure> {
    match name.map(|name| (name, name.parse::<u64>())) {
        None => {
            let store = Store::open(folder)?;
            Ok(store.report(store.latest()?)?)
        }
        Some((_, Ok(number))) => Ok(Store::open(folder)?.report(number)?),
        Some((file, Err(_))) => {
            let mut report = report::read(&PathBuf::from(file))?;
            if let Ok(store) = Store::open(folder) {
                store.put_marks(&mut report)?;
            }
            Ok(report)
        }
    }
}

/// The race that `name` means in `report`.
pub fn find<'a>(report: &'a Report, name: &str) -> Result<&'a Race, Failure> {
    let number = name.strip_prefix('#').unwrap_or(name).parse::<u32>().ok();
    let by_number = report.races.iter().find(|race| Some(race.id) == number);
    let by_fingerprint = || {
        let mut like = report.races.iter().filter(|race| {
            let names = [Some(&race.fingerprint), race.former_fingerprint.as_ref()];
            let like = |known: &&Fingerprint| known.0.starts_with(name);
            names.iter().flatten().any(like)
        });
        let one = like.next().filter(|_| name.len() >= 4);
        one.filter(|_| like.next().is_none())
    };
    by_number.or_else(by_fingerprint).ok_or_else(|| {
        let run = report
            .run
            .map_or("this report".into(), |run| format!("run {run}"));
        let known = match report.races.len() {
            0 => "it has none".into(),
            number => format!("it has {}", report::count(number as u64, "race")),
        };
        Failure::usage(format!(
            "{run} has no race `{name}`; {known}: give a number or a fingerprint"
        ))
    })
}
