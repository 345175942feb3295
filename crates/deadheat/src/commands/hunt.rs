//! `deadheat hunt`: runs a test under many schedules until it fails, makes the
//! failing schedule small and names the race that decides it.

use super::Failure;
use super::record;
use crate::reporting::StoreOption;
use folder::Place;
use hunt::{Doing, Flip, Found, Hunt, Kind, Scene, Settings};
use race::{AccessKind, Consequence, Evidence, Race, Report, RunFailure, Verdict};
use regex_lite::Regex;
use report::{Options, Progress, Store, Stream};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vm::interruption;

/// Run a test under many schedules until it fails, and say why it did
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat hunt -- ./test                          look for a failure for a minute
  deadheat hunt --time 600 --until-failures 5 -- ./test arg
  deadheat hunt --fail-if 'lost [0-9]+ items' -- ./test

Exit code: 66 if a failure was found, 0 if none was.")]
pub struct Arguments {
    /// How long to look for a failure; making its schedule small comes on top
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    time: f64,
    /// Come to an end after this many seconds, whatever is under way: what was
    /// found until then is told, its schedule perhaps not made small
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Go on until so many runs have failed; failures of different kinds are
    /// told apart
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    until_failures: u64,
    /// A run also fails if what it writes to standard output or error matches
    /// this
    #[arg(long, value_name = "REGEX")]
    fail_if: Option<Regex>,
    /// Seed of the row of schedules
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Runs at once [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=512))]
    jobs: Option<u64>,
    /// Run the test this many times without deadheat first, to say how often
    /// it fails by itself
    #[arg(long, default_value_t = 0, value_name = "N")]
    native_runs: u32,
    /// Directory for the recording of the failing run [default: in the store]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOption,
    /// The test and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "TEST"
    )]
    command: Vec<OsString>,
}

impl From<hunt::Error> for Failure {
    fn from(error: hunt::Error) -> Self {
        let code = match &error {
            hunt::Error::Recording(error) => error.exit_code(),
            hunt::Error::Run(_) | hunt::Error::Folder { .. } => race::exit_code::USAGE,
            _ => race::exit_code::FAILURE,
        };
        Failure {
            code,
            message: error.to_string(),
        }
    }
}

/// How often the test fails without deadheat.
#[derive(Clone, Copy)]
struct Native {
    runs: u32,
    failed: u32,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let program = record::program(&arguments.command)?;
    if !arguments.time.is_finite() || arguments.time <= 0.0 {
        return Err(Failure::usage("--time wants a number of seconds above 0"));
    }
    if let Some(output) = &arguments.output
        && output.exists()
    {
        return Err(vm::record::RecordError::Exists(output.clone()).into());
    }
    let scratch = crate::temporary::folder()?;
    let time = arguments.budget.map(Duration::from_secs);
    let _budget = time.map(interruption::Budget::of);
    let native = native(arguments);
    let defaults = Settings::default();
    let settings = Settings {
        time: Duration::from_secs_f64(arguments.time.min(1e9)),
        until: arguments.until_failures,
        seed: arguments.seed,
        jobs: arguments.jobs.map_or(defaults.jobs, |jobs| jobs as usize),
        fail_if: arguments.fail_if.clone(),
        known: known_races(arguments),
    };
    let mut line = Line::new();
    let mut found = hunt::hunt(&program, &settings, &scratch, &mut |doing| {
        line.show(doing);
    })?;
    drop(line);
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut runs = Vec::new();
    for (index, one) in found.found.iter_mut().enumerate() {
        let (directory, number) = keep(arguments, one, index, &words)?;
        settle(one, &directory);
        if number.is_some() && arguments.output.is_none() {
            let mut report = one.report.clone();
            tell_failure(&mut report, one)?;
            report.exit.deadheat = race::exit_code::RACES;
            Store::create(&arguments.store.store)?.keep(&mut report)?;
        }
        runs.push(number);
    }
    let text = if arguments.json {
        report::json_text(&as_json(&words, &found, native))
    } else {
        report::plain_lines(&story(&words, &found, native)).into_owned()
    };
    interruption::reporting();
    report::print_text(&text, Stream::Stdout).map_err(|error| Failure {
        code: race::exit_code::FAILURE,
        message: format!("cannot print: {error}"),
    })?;
    Ok(if found.found.is_empty() {
        0
    } else {
        race::exit_code::RACES
    })
}

/// The races that the store knows of this program and these arguments, the worst
/// first.
fn known_races(arguments: &Arguments) -> Vec<String> {
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    // A store that is not there or cannot be read knows nothing.
    let known = || -> Result<Vec<String>, report::Error> {
        let store = Store::open(&arguments.store.store)?;
        let runs = store.runs()?;
        let Some(run) = runs
            .iter()
            .find(|run| run.program == words && run.races() > 0)
        else {
            return Ok(Vec::new());
        };
        let mut races = store.report(run.number)?.races;
        races.sort_by_key(|race| race.verdict.rank());
        Ok(races.into_iter().map(|race| race.fingerprint.0).collect())
    };
    known().unwrap_or_default()
}

/// The failure becomes one of the report's, so that `report` and `explain` know
/// it.
fn tell_failure(report: &mut Report, found: &Found) -> Result<(), Failure> {
    let directory = &found.recording;
    crate::failures::tell(report, directory)?;
    let kind = match found.failure.signature.kind {
        Kind::Exit(_) => "exit",
        Kind::Output => "output",
        // Told already, unless it was cut off without a proof that it hangs.
        _ if !report.failures.is_empty() => return Ok(()),
        Kind::Signal(_) => "crash",
        Kind::Deadlock => "deadlock",
        Kind::Hang => "hang",
    };
    report.failures.push(RunFailure {
        kind: kind.into(),
        text: found.failure.text.clone(),
        at: found.failure.signature.place.iter().cloned().collect(),
        replay: vec![format!("deadheat replay {}", directory.display())],
        ..RunFailure::default()
    });
    Ok(())
}

/// The progress line, on a terminal.
struct Line {
    wanted: bool,
    shown: Option<Instant>,
}

impl Line {
    fn new() -> Self {
        Line {
            wanted: Progress::wanted(),
            shown: None,
        }
    }

    fn show(&mut self, doing: &Doing) {
        let pace = Duration::from_millis(200);
        let late = self.shown.is_none_or(|shown| shown.elapsed() > pace);
        if !self.wanted || !late {
            return;
        }
        self.shown = Some(Instant::now());
        let runs = report::count(doing.coverage.runs, "run");
        let rest = match doing.switches {
            Some(switches) => plural(switches, "switch", "switches"),
            None => format!(
                "{} interleavings, {}, {} s left (Ctrl-C keeps what is found)",
                doing.coverage.interleavings,
                report::count(doing.coverage.races, "race"),
                doing.left.as_secs()
            ),
        };
        let failing = match doing.failing {
            0 => String::new(),
            number => format!(", {number} failed"),
        };
        // A line that does not show is no reason to stop.
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{}: {runs}{failing}, {rest}",
            doing.phase
        );
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Runs the test as it is.
fn native(arguments: &Arguments) -> Option<Native> {
    const PATIENCE: Duration = Duration::from_secs(10);
    if arguments.native_runs == 0 {
        return None;
    }
    let mut native = Native { runs: 0, failed: 0 };
    for _ in 0..arguments.native_runs {
        if interruption::is_over() {
            break;
        }
        let mut command = Command::new(&arguments.command[0]);
        command
            .args(&arguments.command[1..])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let wants_output = arguments.fail_if.is_some();
        command.stdout(if wants_output {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        let Ok(mut child) = command.spawn() else {
            return None;
        };
        native.runs += 1;
        let begun = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if begun.elapsed() < PATIENCE && !interruption::is_over() => {
                    std::thread::sleep(Duration::from_micros(500));
                }
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        let mut text = String::new();
        if let Some(mut output) = child.stdout.take() {
            let _ = std::io::Read::read_to_string(&mut output, &mut text);
        }
        let matches = arguments
            .fail_if
            .as_ref()
            .is_some_and(|pattern| pattern.is_match(&text));
        if matches || !status.is_some_and(|status| status.success()) {
            native.failed += 1;
        }
    }
    Some(native)
}

/// Puts the recording where it stays.
fn keep(
    arguments: &Arguments,
    found: &Found,
    index: usize,
    words: &[String],
) -> Result<(PathBuf, Option<u64>), Failure> {
    let (directory, number) = match (&arguments.output, index) {
        (Some(output), 0) => (output.clone(), None),
        (Some(output), index) => {
            let mut name = output.clone().into_os_string();
            name.push(format!("-{}", index + 1));
            (PathBuf::from(name), None)
        }
        (None, _) => {
            let (number, directory) =
                Store::create(&arguments.store.store)?.begin_recording(words)?;
            (directory, Some(number))
        }
    };
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "cannot keep the recording in {}: {error}",
            directory.display()
        ))
    };
    // The store has made its folder already.
    if number.is_none() {
        folder::make(&directory).map_err(|error| cannot(&error))?;
    }
    let to = Place::of(&directory);
    Place::of(&found.recording)
        .copy_into(&to)
        .map_err(|error| cannot(&error))?;
    let output = found.recording.with_extension("output");
    // What the run wrote is in the recording's replay as well.
    if let (Ok(from), Ok(copy)) = (std::fs::File::open(output), to.join("output").create()) {
        let _ = folder::copy_contents(&from, &copy);
    }
    Ok((directory, number))
}

/// The report speaks of the recording where it is now, and the races that
/// decide get their verdict.
fn settle(found: &mut Found, directory: &Path) {
    let old = found.recording.display().to_string();
    let new = directory.display().to_string();
    found.recording = directory.to_path_buf();
    found.report.recordings = vec![new.clone()];
    for race in &mut found.report.races {
        for command in &mut race.replay {
            *command = command.replace(&old, &new);
        }
    }
    if found.between_locks {
        return;
    }
    let consequence = match found.failure.signature.kind {
        Kind::Exit(_) | Kind::Output => Consequence::Output,
        Kind::Signal(libc::SIGABRT) => Consequence::Assert,
        Kind::Signal(_) => Consequence::Crash,
        Kind::Deadlock => Consequence::Deadlock,
        Kind::Hang => Consequence::Hang,
    };
    for decided in &found.decided {
        let Some(race) = found.report.races.get_mut(decided.race) else {
            continue;
        };
        if decided.flip != Flip::Decides {
            continue;
        }
        race.verdict = match consequence {
            Consequence::Output => Verdict::OutputDiffers,
            _ => Verdict::SpecViolated,
        };
        race.consequence = Some(consequence);
        let text = format!(
            "in this order the program {}; with the accesses swapped it {}",
            found.failure.text, decided.otherwise
        );
        race.explanation = Some(text.clone());
        race.evidence.push(Evidence {
            id: 1,
            text,
            instance: Some(decided.instance),
            replay: Some(format!("deadheat replay {new}")),
        });
    }
}

/// Innermost frames of the program's own that are shown of a switch.
fn place(frames: &[race::Frame]) -> String {
    if frames.is_empty() {
        return "its beginning".into();
    }
    explore::own_place(frames)
}

fn switch_words(scene: &Scene) -> String {
    format!(
        "thread {} stops at {} (moment {}){}, thread {} goes on at {}",
        scene.switch.at.thread,
        place(&scene.from),
        scene.switch.at,
        if scene.switch.held {
            " until all others wait, sleepers included"
        } else {
            ""
        },
        scene.switch.to,
        place(&scene.onto)
    )
}

/// Both accesses of a race in a few words each.
fn between(race: &Race) -> [String; 2] {
    race.accesses.each_ref().map(|access| {
        let kind = match access.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Free => "free",
            AccessKind::Unknown => "access",
        };
        match explore::own_frame(&access.stack) {
            Some(frame) => format!("{kind} {}", explore::place(frame)),
            None => kind.to_string(),
        }
    })
}

fn plural(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Everything in words.
fn story(words: &[String], hunt: &Hunt, native: Option<Native>) -> String {
    let mut text = String::new();
    for found in &hunt.found {
        tell(&mut text, found);
    }
    let coverage = &hunt.coverage;
    if hunt.found.is_empty() {
        let _ = writeln!(text, "no failure of {} was found", words.join(" "));
    }
    let _ = writeln!(
        text,
        "covered: {} in {:.1} s, {} different interleavings, {} threads, {} seen, preemption at {} and {}",
        plural(coverage.runs as usize, "schedule", "schedules"),
        coverage.seconds,
        coverage.interleavings,
        coverage.threads,
        plural(coverage.races as usize, "race", "races"),
        plural(
            coverage.racy_accesses as usize,
            "racy instruction",
            "racy instructions"
        ),
        plural(
            coverage.sequencers as usize,
            "synchronisation step",
            "synchronisation steps"
        ),
    );
    if coverage.unfinished > 0 {
        let _ = writeln!(
            text,
            "{} cut off while still working",
            plural(coverage.unfinished as usize, "run was", "runs were")
        );
    }
    if let Some(why) = &coverage.lost_because {
        let _ = writeln!(
            text,
            "{} could not be made: {why}",
            plural(coverage.lost as usize, "run", "runs")
        );
    }
    if coverage.interrupted {
        let _ = writeln!(
            text,
            "the hunt was ended before it was done{}; go on with other schedules: \
             `deadheat hunt --seed {} -- {}`",
            match hunt.found.iter().any(|found| !found.minimal) {
                true => " (left: the smallest schedules)",
                false => "",
            },
            coverage.runs + 1,
            words.join(" ")
        );
    }
    if let Some(native) = native {
        let _ = writeln!(
            text,
            "without deadheat: {} of {} runs failed",
            native.failed, native.runs
        );
    }
    text
}

fn tell(text: &mut String, found: &Found) {
    let line = "==================";
    let _ = writeln!(text, "{line}\nfailure: {}", found.failure.signature);
    let _ = writeln!(text, "  the program {}", found.failure.text);
    let _ = writeln!(
        text,
        "  found by run {} after {:.1} s ({}), {} failed like this",
        found.run + 1,
        found.seconds,
        found.plan,
        plural(found.seen as usize, "run", "runs"),
    );
    let _ = writeln!(
        text,
        "  schedule: {} of {} left{}; every other turn goes on until its thread waits or ends",
        plural(found.switches.len(), "switch", "switches"),
        found.switches_before,
        if found.minimal {
            ", none of which can be left out"
        } else {
            " (not brought down to the last)"
        }
    );
    for (number, scene) in (1..).zip(&found.switches) {
        let _ = writeln!(text, "    {number}. {}", switch_words(scene));
    }
    let options = Options {
        stream: Stream::Stdout,
        ..Options::default()
    };
    match found.decided.first() {
        None if found.failure.signature.kind == Kind::Deadlock => {
            let _ = writeln!(
                text,
                "  decided by the order in which these locks are taken"
            );
            for lock in &found.report.locks {
                let _ = writeln!(text, "    {}: {}", lock.kind, lock.text);
            }
        }
        None => {
            let _ = writeln!(text, "  no race of this run decides it");
        }
        Some(decided) => {
            let Some(race) = found.report.races.get(decided.race) else {
                return;
            };
            let [one, other] = between(race);
            let _ = match decided.flip {
                Flip::Decides => writeln!(
                    text,
                    "  decided by the order of: {one} / {other}\n    swapped, the failure goes: the program {}; back, it returns",
                    decided.otherwise
                ),
                Flip::Goes => writeln!(
                    text,
                    "  probably decided by the order of: {one} / {other}\n    swapped, the failure goes: the program {}",
                    decided.otherwise
                ),
                _ => writeln!(
                    text,
                    "  decided by the order of: {one} / {other}\n    no data race: locks keep these accesses apart, but are given up between accesses that belong together; without the switches above the failure goes"
                ),
            };
            for also in &found.decided[1..] {
                if let Some(race) = found.report.races.get(also.race) {
                    let [one, other] = between(race);
                    let _ = writeln!(text, "    and by: {one} / {other}");
                }
            }
            if decided.flip != Flip::Impossible {
                text.push_str(&report::race_text(&found.report, race, &options));
                if !text.ends_with('\n') {
                    text.push('\n');
                }
            } else {
                stacks(text, race);
            }
        }
    }
    let _ = writeln!(
        text,
        "  replay: deadheat replay {0}\n          deadheat replay {0} --gdb\n{line}",
        found.recording.display()
    );
}

/// Both stacks of a pair that is no race.
fn stacks(text: &mut String, race: &Race) {
    for (access, words) in race.accesses.iter().zip(between(race)) {
        let thread = access.thread.unwrap_or(0);
        let _ = writeln!(text, "  {words}, by thread {thread}");
        for (number, frame) in access.stack.iter().enumerate().take(8) {
            let _ = writeln!(text, "    #{number} {}", explore::place(frame));
        }
    }
}

fn as_json(words: &[String], hunt: &Hunt, native: Option<Native>) -> Value {
    let failures: Vec<Value> = hunt
        .found
        .iter()
        .map(|found| {
            let decided: Vec<Value> = found
                .decided
                .iter()
                .filter_map(|decided| {
                    let race = found.report.races.get(decided.race)?;
                    Some(json!({
                        "flip": decided.flip,
                        "instance": decided.instance,
                        "otherwise": decided.otherwise,
                        "race": race,
                    }))
                })
                .collect();
            json!({
                "signature": found.failure.signature,
                "text": found.failure.text,
                "run": found.run + 1,
                "seconds": found.seconds,
                "seen": found.seen,
                "plan": found.plan,
                "switches_before": found.switches_before,
                "switches": found.switches,
                "minimal": found.minimal,
                "minimising_runs": found.minimising_runs,
                "decided": decided,
                "between_locks": found.between_locks,
                "races": found.report.races.len(),
                "recording": found.recording,
                "replay": [
                    format!("deadheat replay {}", found.recording.display()),
                    format!("deadheat replay {} --gdb", found.recording.display()),
                ],
            })
        })
        .collect();
    let mut value = json!({
        "schema": 1,
        "tool": "hunt",
        "program": words,
        "found": !hunt.found.is_empty(),
        "failures": failures,
        "covered": hunt.coverage,
    });
    if let (Some(native), Some(object)) = (native, value.as_object_mut()) {
        object.insert(
            "native".into(),
            json!({ "runs": native.runs, "failed": native.failed }),
        );
    }
    value
}
