//! `deadheat whatif`: what would become of a recorded program without a lock,
//! or with one more?

use super::Failure;
use crate::ending;
use crate::exploration::{self, ExploreOptions};
use hunt::whatif::{self, Answer, Change, Lines, Settings, Tried};
use race::{Race, Report};
use report::Stream;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use vm::interruption;
use vm::record::Recording;

/// Ask what a recorded program would do without a lock, or with one more
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat whatif .deadheat/7 --remove-sync table.c:52       is this lock needed?
  deadheat whatif .deadheat/7 --add-lock table.c:60-64       would a lock here cure the race?

The program of the recording is run again, with and without the change.
Exit code: 66 if the lock is needed, or the added lock does not cure the races
or stops the program; 0 if no harm was seen.")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Leave out the lock taken at this line, and the unlocks that belong to it
    #[arg(long, value_name = "FILE:LINE", required_unless_present = "add_lock")]
    remove_sync: Option<Place>,
    /// Let one thread at a time into these lines
    #[arg(long, value_name = "FILE:LINE-LINE", conflicts_with = "remove_sync")]
    add_lock: Option<Place>,
    /// Schedules to try, each with and without the change
    #[arg(long, default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Seed of the schedules
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    #[command(flatten)]
    explore: ExploreOptions,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// `FILE:LINE` or `FILE:LINE-LINE`.
#[derive(Debug, Clone)]
struct Place(Lines);

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not FILE:LINE or FILE:LINE-LINE");
        let (file, lines) = text.rsplit_once(':').ok_or_else(bad)?;
        let (first, last) = lines.split_once('-').unwrap_or((lines, lines));
        let first: u32 = first.parse().map_err(|_| bad())?;
        let last: u32 = last.parse().map_err(|_| bad())?;
        if file.is_empty() || first == 0 || last < first {
            return Err(bad());
        }
        Ok(Place(Lines {
            file: file.trim_start_matches("./").to_string(),
            lines: first..last.saturating_add(1),
        }))
    }
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let recording = Recording::open(&arguments.recording)?;
    let (change, lines) = match (&arguments.remove_sync, &arguments.add_lock) {
        (Some(Place(lines)), _) => (Change::RemoveSync(lines.clone()), lines),
        (None, Some(Place(lines))) => (Change::AddLock(lines.clone()), lines),
        (None, None) => return Err(Failure::usage("give --remove-sync or --add-lock")),
    };
    let _budget = arguments.explore.begin_budget();
    let folder = crate::temporary::folder()?;
    let settings = Settings {
        runs: arguments.runs,
        seed: arguments.seed,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let answer = whatif::ask(&recording, &change, settings, &folder).map_err(Failure::from);
    let result = ending::unless_over(answer)
        .map(|answer| {
            answer.unwrap_or_else(|| Answer {
                left: settings.runs,
                ..Answer::default()
            })
        })
        .and_then(|answer| {
            if interruption::is_over() && (answer.changed.is_empty() || answer.control.is_empty()) {
                return Ok(nothing(&answer, lines));
            }
            if answer.changed.is_empty() || answer.control.is_empty() {
                let why = answer.lost.first().cloned().unwrap_or_default();
                return Err(Failure::usage(format!("no run could be made: {why}")));
            }
            match &change {
                Change::RemoveSync(_) => removed(&answer, lines, arguments),
                Change::AddLock(_) => added(&answer, lines),
            }
        });
    let told = result?;
    let text = if arguments.json {
        report::json_text(&told.json)
    } else {
        report::plain_lines(&told.text).into_owned()
    };
    interruption::reporting();
    report::print_text(&text, Stream::Stdout).map_err(|error| Failure {
        code: race::exit_code::FAILURE,
        message: format!("cannot print: {error}"),
    })?;
    Ok(if told.harm { race::exit_code::RACES } else { 0 })
}

struct Told {
    harm: bool,
    text: String,
    json: Value,
}

/// It was ended before there was anything to compare.
fn nothing(answer: &Answer, lines: &Lines) -> Told {
    let place = format!("{}:{}", lines.file, lines.lines.start);
    let mut text = format!("nothing is known about the lock at {place}\n");
    lost(&mut text, answer);
    let json = json!({
        "schema": 1,
        "tool": "whatif",
        "place": place,
        "runs": 0,
        "lost": answer.lost,
        "runs_left": answer.left,
    });
    Told {
        harm: false,
        text,
        json,
    }
}

/// Every race of these runs once, by fingerprint.
fn races(tried: &[Tried]) -> BTreeMap<String, Race> {
    let mut races = BTreeMap::new();
    for report in tried.iter().filter_map(|one| one.report.as_ref()) {
        for race in &report.races {
            races
                .entry(race.fingerprint.0.clone())
                .or_insert_with(|| race.clone());
        }
    }
    races
}

/// Failures that the control does not have, in words.
fn new_failures(answer: &Answer) -> BTreeSet<String> {
    let usual: BTreeSet<String> = answer
        .control
        .iter()
        .filter_map(|one| Some(one.failure.as_ref()?.signature.to_string()))
        .collect();
    answer
        .changed
        .iter()
        .filter_map(|one| one.failure.as_ref())
        .filter(|failure| !usual.contains(&failure.signature.to_string()))
        .map(|failure| failure.text.clone())
        .collect()
}

fn between(race: &Race) -> String {
    report::between(race).join(" / ")
}

/// Is the lock needed?
fn removed(answer: &Answer, lines: &Lines, arguments: &Arguments) -> Result<Told, Failure> {
    let usual = races(&answer.control);
    let failures = new_failures(answer);
    let mut appeared: BTreeMap<String, Race> = races(&answer.changed);
    appeared.retain(|fingerprint, _| !usual.contains_key(fingerprint));
    // What the new races can do is asked in a run that has them.
    let mut left: BTreeSet<String> = appeared.keys().cloned().collect();
    for one in &answer.changed {
        let Some(report) = &one.report else {
            continue;
        };
        let mut mine = Report {
            races: report
                .races
                .iter()
                .filter(|race| left.contains(&race.fingerprint.0))
                .cloned()
                .collect(),
            ..report.clone()
        };
        if mine.races.is_empty() {
            continue;
        }
        exploration::classify_all(&mut mine, &one.recording, &arguments.explore)?;
        for race in mine.races {
            left.remove(&race.fingerprint.0);
            appeared.insert(race.fingerprint.0.clone(), race);
        }
    }
    let harm = !appeared.is_empty() || !failures.is_empty();
    let place = format!("{}:{}", lines.file, lines.lines.start);
    let mut text = String::new();
    let runs = answer.changed.len();
    if harm {
        let _ = writeln!(
            text,
            "the lock at {place} is needed: without it, in {runs} runs,"
        );
    } else {
        let _ = writeln!(
            text,
            "no harm seen without the lock at {place} in {runs} runs (and as many with it)"
        );
    }
    for failure in &failures {
        let _ = writeln!(text, "  the program {failure}");
    }
    let mut worst: Vec<&Race> = appeared.values().collect();
    worst.sort_by_key(|race| race.verdict.rank());
    for race in &worst {
        let _ = writeln!(text, "  {}: {}", report::title(race), between(race));
        if let Some(explanation) = &race.explanation {
            let _ = writeln!(text, "    {explanation}");
        }
    }
    if !appeared.is_empty() {
        let _ = writeln!(
            text,
            "  ({} with the lock in place)",
            match usual.len() {
                0 => "no race is seen".to_string(),
                1 => "another race is seen also".to_string(),
                number => format!("{number} other races are seen also"),
            }
        );
    }
    lost(&mut text, answer);
    let json = json!({
        "schema": 1,
        "tool": "whatif",
        "change": "remove-sync",
        "place": place,
        "needed": harm,
        "runs": runs,
        "races": worst,
        "failures": failures,
        "races_with_lock": usual.len(),
        "lost": answer.lost,
        "runs_left": answer.left,
    });
    Ok(Told { harm, text, json })
}

/// Does the lock cure the races of its lines, and does the program still end?
fn added(answer: &Answer, lines: &Lines) -> Result<Told, Failure> {
    let here: BTreeMap<String, Race> = races(&answer.control)
        .into_iter()
        .filter(|(_, race)| lines.touch(race))
        .collect();
    let now = races(&answer.changed);
    let failures = new_failures(answer);
    let fails = |tried: &[Tried]| tried.iter().filter(|one| one.failure.is_some()).count();
    let (before, after) = (fails(&answer.control), fails(&answer.changed));
    let (left, cured): (Vec<&Race>, Vec<&Race>) = here
        .values()
        .partition(|race| now.contains_key(&race.fingerprint.0));
    let runs = answer.changed.len();
    let place = format!(
        "{}:{}-{}",
        lines.file,
        lines.lines.start,
        lines.lines.end - 1
    );
    let mut text = String::new();
    let harm = !failures.is_empty() || !left.is_empty();
    let verdict = match (failures.is_empty(), here.is_empty(), left.is_empty()) {
        (false, ..) => format!("a lock around {place} does harm:"),
        (true, true, _) => {
            format!("no race at {place} was seen in {runs} runs, with or without a lock around it")
        }
        (true, false, true) => format!(
            "a lock around {place} cures {}: not seen again in {runs} runs",
            match cured.len() {
                1 => "the race there".to_string(),
                number => format!("the {number} races there"),
            }
        ),
        (true, false, false) => format!("a lock around {place} is not enough, in {runs} runs:"),
    };
    let _ = writeln!(text, "{verdict}");
    for failure in &failures {
        let _ = writeln!(text, "  the program {failure}");
    }
    for race in &left {
        let _ = writeln!(text, "  still there: {}", between(race));
    }
    for race in &cured {
        let _ = writeln!(text, "  gone: {}", between(race));
    }
    if failures.is_empty() {
        let _ = writeln!(
            text,
            "  no deadlock; {before} of {} runs failed without it, {after} of {runs} with it",
            answer.control.len()
        );
    }
    lost(&mut text, answer);
    let json = json!({
        "schema": 1,
        "tool": "whatif",
        "change": "add-lock",
        "place": place,
        "cured": failures.is_empty() && !here.is_empty() && left.is_empty(),
        "runs": runs,
        "left": left,
        "gone": cured,
        "failures": failures,
        "failed_without": before,
        "failed_with": after,
        "lost": answer.lost,
        "runs_left": answer.left,
    });
    Ok(Told { harm, text, json })
}

fn lost(text: &mut String, answer: &Answer) {
    if answer.left > 0 {
        let runs = report::count(answer.left, "run");
        let _ = writeln!(text, "  left, because it was ended before: {runs} each way");
    }
    if let Some(why) = answer.lost.first() {
        let _ = writeln!(
            text,
            "  {} runs could not be made or looked at: {why}",
            answer.lost.len()
        );
    }
}
