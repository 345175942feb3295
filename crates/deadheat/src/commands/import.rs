//! `deadheat import`: candidates from other tools' reports, looked for in
//! recordings of the program.

use super::Failure;
use super::record::ScheduleArguments;
use super::run::{record_run, temporary_directory, with_threads};
use crate::reporting::ReportOptions;
use detect::import;
use race::{Race, Report};
use report::Stream;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Read the report of another detector and find its races in recordings
#[derive(clap::Args)]
#[command(after_help = "\
Reads ThreadSanitizer (clang, gcc, Rust, Go), Helgrind and DRD (text or XML), and plain lists of
pairs such as `table.c:52 main.c:77`.

Examples:
  deadheat import tsan.log                       the races of the log as a report
  deadheat import tsan.log --recording rec       which of them happen in a recording
  deadheat import pairs.txt -- ./prog            run schedules until all have happened, 20 at most")]
pub struct Arguments {
    /// The report to read
    file: PathBuf,
    /// A recording to find the races in; can be given several times
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    recording: Vec<PathBuf>,
    /// Schedules to try at most until every race has happened
    #[arg(long, default_value_t = 20, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    #[command(flatten)]
    schedule: ScheduleArguments,
    #[command(flatten)]
    report: ReportOptions,
    /// The program to run and its arguments
    #[arg(last = true, value_name = "PROG")]
    command: Vec<OsString>,
}

/// Puts what a recording shows into the candidates; returns those not seen
/// yet.
fn look_for(candidates: &mut [Option<Race>], seen: &mut Vec<Race>, found: &Report) -> usize {
    for candidate in candidates.iter_mut() {
        let matching = candidate.as_ref().and_then(|wanted| {
            found
                .races
                .iter()
                .find(|race| import::is_candidate(wanted, race))
        });
        if let Some(race) = matching {
            *candidate = None;
            if !seen
                .iter()
                .any(|known| known.fingerprint == race.fingerprint)
            {
                seen.push(race.clone());
            }
        }
    }
    candidates.iter().flatten().count()
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let name = arguments.file.display();
    let bytes = std::fs::read(&arguments.file)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    let imported = import::read(&String::from_utf8_lossy(&bytes))
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let words = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut report = Report::new(imported.tool, words);
    let mut candidates: Vec<Option<Race>> = imported.races.into_iter().map(Some).collect();
    let mut seen = Vec::new();
    let mut tried = 0;
    for recording in &arguments.recording {
        tried += 1;
        let found = detect::detect(recording, &detect::Options::default())?;
        report.recordings.extend(found.recordings.iter().cloned());
        look_for(&mut candidates, &mut seen, &found);
    }
    if !arguments.command.is_empty() {
        let program = super::record::program(&arguments.command)?;
        for number in 0..arguments.schedules {
            tried += 1;
            let directory = temporary_directory()?;
            let schedule = arguments.schedule.choice_of_row(number);
            let run = with_threads(&program, number);
            let found = record_run(&directory, &run, schedule, number > 0, None)
                .and_then(|_| Ok(detect::detect(&directory, &detect::Options::default())?));
            remove(&directory);
            let mut found = found?;
            for race in &mut found.races {
                race.replay.clear();
            }
            if look_for(&mut candidates, &mut seen, &found) == 0 {
                break;
            }
        }
    }
    report.races = seen;
    for mut race in candidates.into_iter().flatten() {
        if tried > 0 {
            race.explanation = Some(format!(
                "named in {name}, but it did not happen in {}",
                report::count(tried, "recording")
            ));
        }
        report.races.push(race);
    }
    report.sort_and_number();
    Ok(reporting.finish(report)?)
}

fn remove(directory: &Path) {
    // What cannot be removed is in the way of nobody.
    let _ = std::fs::remove_dir_all(directory);
}
