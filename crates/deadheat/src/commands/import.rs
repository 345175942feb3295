//! `deadheat import`: candidates from other tools' reports, looked for in
//! recordings of the program or in runs that are steered to them.

use super::Failure;
use super::record::ScheduleArguments;
use super::sample::duration;
use crate::candidates::{self, Outcome, Search};
use crate::exploration::{self, ExploreOptions};
use crate::reporting::ReportOptions;
use crate::{ending, phase};
use detect::import::{self, Imported};
use detect::steer::Fate;
use race::{Race, Report};
use report::Stream;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vm::interruption;

/// Read the report of another detector and find its races in recordings
#[derive(clap::Args)]
#[command(after_help = "\
Reads ThreadSanitizer (clang, gcc, Rust, Go), Helgrind and DRD (text or XML), plain lists of pairs
such as `table.c:52 main.c:77`, and reports of deadheat itself (--json=FILE). Given a program, runs it as it is and then under schedules
that are steered: a thread that arrives at one site of a pair is held until another thread arrives
at the other. Runs in which a race of the report happened are kept and replay like any recording.

Examples:
  deadheat import tsan.log                       the races of the log as a report
  deadheat import tsan.log --recording rec       which of them happen in a recording
  deadheat import pairs.txt -- ./prog            run schedules until all have happened, 20 at most
  deadheat import tsan.log --then-classify -- ./prog   and say what each of them can do")]
pub struct Arguments {
    /// The report to read
    file: PathBuf,
    /// A recording to find the races in; can be given several times
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    recording: Vec<PathBuf>,
    /// Schedules to try at most until every race has happened; one is given up
    /// earlier if six steered runs could not bring two threads to its sites
    #[arg(long, default_value_t = 20, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// End a run that takes longer (10, 90s, 5m): the program gets SIGTERM
    #[arg(long, value_name = "TIME", value_parser = duration)]
    limit: Option<Duration>,
    /// Play both orders of the races that happened and say what each can do
    #[arg(long)]
    then_classify: bool,
    #[command(flatten)]
    schedule: ScheduleArguments,
    #[command(flatten)]
    explore: ExploreOptions,
    #[command(flatten)]
    report: ReportOptions,
    /// The program to run and its arguments
    #[arg(last = true, value_name = "PROG")]
    command: Vec<OsString>,
}

/// What tools print about races has some megabytes.
const LARGEST: u64 = 256 << 20;

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let reporting = arguments.report.prepare(Stream::Stdout)?;
    let _budget = arguments.explore.begin_budget();
    let name = arguments.file.display();
    let bytes = folder::read_named(&arguments.file, LARGEST)
        .map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    let imported = read(&String::from_utf8_lossy(&bytes), &arguments.file)?;
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut report = Report::new(imported.tool, words.clone());
    let candidates = imported.races;
    let outcome = if arguments.command.is_empty() {
        in_recordings(arguments, &candidates)?
    } else {
        let search = Search {
            program: &super::record::program(&arguments.command)?,
            words: &words,
            folder: None,
            schedule: &arguments.schedule,
            schedules: arguments.schedules,
            limit: arguments.limit,
            shows_output: true,
            classify: arguments.then_classify.then_some(&arguments.explore),
        };
        search.run(&candidates, &reporting)?
    };
    candidates::put_into(&mut report, candidates, outcome, |race, sentence| {
        race.explanation = Some(match arguments.tries() {
            true => format!("named in {name}, but {sentence}"),
            false => format!("named in {name}"),
        });
    });
    let again = format!("deadheat import {name}");
    let names = report.recordings.clone();
    let kept = ending::classify_again(names.iter().map(String::as_str));
    ending::finish(reporting, report, Some(kept.unwrap_or(again)))
}

/// The candidates of a report: another tool's, or one that `--json=FILE` wrote.
fn read(text: &str, path: &Path) -> Result<Imported, Failure> {
    if !text.trim_start().starts_with('{') {
        return import::read(text)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())));
    }
    let own = report::parse(text, path)?;
    let mut races = own.races;
    for race in &mut races {
        // What was found about them was found in other executions.
        let mut accesses = race.accesses.clone();
        for access in &mut accesses {
            access.moment = None;
        }
        *race = Race::new(race.id, race.instances, accesses);
    }
    Ok(Imported {
        tool: "import:deadheat",
        races,
    })
}

impl Arguments {
    /// There is something to find the candidates in.
    fn tries(&self) -> bool {
        !self.command.is_empty() || !self.recording.is_empty()
    }
}

/// Which of the candidates happen in the recordings that were named.
fn in_recordings(arguments: &Arguments, candidates: &[Race]) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    for recording in &arguments.recording {
        if interruption::is_over() {
            outcome.leave(format!("looking in {}", recording.display()));
            continue;
        }
        outcome.runs += 1;
        let mut found = ending::finding(|| {
            phase::detecting(recording, || {
                detect::detect(recording, &detect::Options::default())
            })
        })?;
        let mut kept: Vec<Race> = Vec::new();
        left.retain(|index| {
            let matches = |race: &&Race| import::is_candidate(&candidates[*index], race);
            let Some(race) = found.races.iter().find(matches) else {
                return true;
            };
            let known = |other: &Race| other.fingerprint == race.fingerprint;
            if !outcome.seen.iter().any(known) && !kept.iter().any(known) {
                kept.push(race.clone());
            }
            false
        });
        found.races = kept;
        if arguments.then_classify {
            exploration::play_and_classify(
                &mut found,
                recording,
                exploration::Work::default(),
                &arguments.explore,
                None,
            )?;
        }
        outcome.leave_all(found.cut_short.take());
        outcome.seen.append(&mut found.races);
        outcome.recordings.append(&mut found.recordings);
    }
    outcome.missed = left
        .into_iter()
        .map(|index| (index, Fate::default()))
        .collect();
    Ok(outcome)
}
