//! `cargo deadheat test|run`: the binaries that cargo runs, under the vm, one
//! report.
//!
//! Cargo itself builds and starts everything, so packages, features, working
//! folders and environment are exactly those of `cargo test`: deadheat is only
//! named as the runner (`target.….runner`). Each run of the runner records one
//! binary, finds its races and leaves a report in a folder; when cargo is
//! done the reports are merged.

use super::Failure;
use super::record::{self, ScheduleArguments};
use super::run::{How, find_and_play, record_run};
use crate::exploration::ExploreOptions;
use crate::reporting::ReportOptions;
use crate::{ending, temporary};
use report::{Store, Stream};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use vm::interruption;

/// Run a Rust package's tests or program under deadheat, with one report
///
/// Options of deadheat come before test or run, options of cargo after it.
/// Nothing is compiled differently: the vm watches the binaries as they are.
#[derive(clap::Args)]
#[command(
    override_usage = "cargo deadheat [OPTIONS] <test|run> [ARGUMENT]...",
    after_help = "\
Examples:
  cargo deadheat test                            all tests of the package
  cargo deadheat test --workspace -- --skip slow
  cargo deadheat --html races.html test --lib    and a page
  cargo deadheat run --example demo -- 10 20     one program, with its arguments"
)]
pub struct Arguments {
    #[command(flatten)]
    schedule: ScheduleArguments,
    #[command(flatten)]
    explore: ExploreOptions,
    #[command(flatten)]
    report: ReportOptions,
    /// What cargo shall do: test or run
    #[arg(value_name = "test|run", value_parser = ["test", "run"])]
    action: String,
    /// Options of cargo test or cargo run
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<OsString>,
}

/// Record one binary that cargo runs and leave its report in a folder
#[derive(clap::Args)]
pub struct RunnerArguments {
    /// Where the reports are collected
    #[arg(long, value_name = "DIR")]
    collect: PathBuf,
    /// Where recordings are kept; none are without
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    #[command(flatten)]
    schedule: ScheduleArguments,
    #[command(flatten)]
    explore: ExploreOptions,
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG"
    )]
    command: Vec<OsString>,
}

fn failed(message: String) -> Failure {
    Failure {
        code: race::exit_code::FAILURE,
        message,
    }
}

/// The cargo that called us, or the one in the PATH.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The triple that cargo builds for unless told otherwise.
fn host() -> Result<String, Failure> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc).arg("-vV").output().map_err(|error| {
        failed(format!(
            "cannot run {}: {error}; cargo deadheat needs a Rust toolchain",
            rustc.display()
        ))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from)
        .ok_or_else(|| failed(format!("`{} -vV` names no host", rustc.display())))
}

/// A word of the runner's command line, as cargo's configuration has it.
fn toml_word(word: &OsStr) -> Result<String, Failure> {
    let text = word.to_str().ok_or_else(|| {
        Failure::usage(format!(
            "{} cannot be passed to cargo, whose configuration is text",
            word.display()
        ))
    })?;
    // JSON's escapes are TOML's.
    serde_json::to_string(text).map_err(|error| failed(error.to_string()))
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stderr)?;
    let me = std::env::current_exe()
        .map_err(|error| failed(format!("cannot find my own executable: {error}")))?;
    let collect = temporary::folder()?;
    let absolute = |path: &Path| {
        std::path::absolute(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    };
    let mut words: Vec<OsString> = vec![me.into(), "cargo-runner".into()];
    words.extend(["--collect".into(), collect.clone().into_os_string()]);
    if !arguments.report.no_store {
        let store = absolute(&arguments.report.store.store)?;
        words.extend(["--store".into(), store.into_os_string()]);
    }
    words.extend(arguments.schedule.words());
    words.extend(arguments.explore.words());
    words.push("--".into());
    let words: Vec<String> = words
        .iter()
        .map(|word| toml_word(word))
        .collect::<Result<_, _>>()?;
    let mut command = Command::new(cargo());
    command
        .arg("--config")
        .arg(format!("target.{}.runner=[{}]", host()?, words.join(",")))
        .arg(&arguments.action)
        .args(&arguments.arguments);
    // Atomics and their orders are told apart by debug info.
    if std::env::var_os("CARGO_PROFILE_RELEASE_DEBUG").is_none() {
        command.env("CARGO_PROFILE_RELEASE_DEBUG", "2");
    }
    interruption::be_patient();
    let status = run_cargo(&mut command).map_err(|error| {
        failed(format!(
            "cannot run cargo: {error}; cargo deadheat needs a Rust toolchain"
        ))
    });
    let reports = collected(&collect);
    let status = status?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(race::exit_code::FAILURE);
    let binaries = reports.len();
    let Some(mut report) = detect::merge(reports) else {
        // Cargo has said why, or there is nothing to run.
        if code == 0 {
            say!("deadheat: cargo {} ran no program", arguments.action);
        }
        return Ok(code);
    };
    report.program = ["cargo".to_string(), arguments.action.clone()]
        .into_iter()
        .chain(
            arguments
                .arguments
                .iter()
                .map(|word| word.to_string_lossy().into_owned()),
        )
        .collect();
    report.exit.program = Some(code);
    if binaries > 1 {
        report.not_checked.push(format!(
            "inputs and schedules other than those of the one run of each of {binaries} binaries"
        ));
    }
    let again = format!("cargo deadheat {}", arguments.action);
    ending::finish(reporting, report, Some(again))
}

/// When the end was asked for, reports of runners are waited for as long as this.
const RUNNERS: Duration = Duration::from_millis(1_500);

/// Runs cargo to its end. When the end is asked for cargo dies of the signal, and
/// its runners make their reports of what they know.
fn run_cargo(command: &mut Command) -> std::io::Result<ExitStatus> {
    const STEP: Duration = Duration::from_millis(10);
    // Cargo and its runners hold the other end while they run.
    let (ended, held) = std::io::pipe()?;
    // SAFETY: clears the flags of a descriptor of ours.
    unsafe { libc::fcntl(held.as_raw_fd(), libc::F_SETFD, 0) };
    let mut cargo = command.spawn()?;
    drop(held);
    let mut told = false;
    let status = loop {
        if let Some(status) = cargo.try_wait()? {
            break status;
        }
        if let (Some(signal), false) = (interruption::signal(), told) {
            told = true;
            // SAFETY: our own child, not yet waited for.
            unsafe { libc::kill(cargo.id() as i32, signal) };
        }
        std::thread::sleep(STEP);
    };
    while let Some((_, ago)) = interruption::asked()
        && let Some(left) = RUNNERS.checked_sub(ago)
    {
        let mut polled = libc::pollfd {
            fd: ended.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the structure lives through the call.
        let answer = unsafe { libc::poll(&raw mut polled, 1, left.as_millis() as i32) };
        if answer > 0 {
            break;
        }
    }
    Ok(status)
}

/// The reports that runners left, in the order in which they ended.
fn collected(folder: &Path) -> Vec<race::Report> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    let mut reports = Vec::new();
    for file in files {
        match report::read(&file) {
            Ok(report) => reports.push(report),
            Err(error) => say!("deadheat: {error}"),
        }
    }
    reports
}

/// Cargo calls this for every binary.
pub fn run_one(arguments: &RunnerArguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let _budget = arguments.explore.begin_budget();
    // Cargo dies of the signal that asks for the end; this is told so.
    // SAFETY: a request about this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
    let program = record::program(&arguments.command)?;
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let (directory, temporary) = match &arguments.store {
        Some(folder) => (Store::create(folder)?.begin_recording(&words)?.1, false),
        None => (temporary::folder()?, true),
    };
    let options = detect::Options::default();
    let schedule = arguments.schedule.choice();
    let recorded = record_run(&directory, &program, schedule, false, None, Some(&options))?;
    let how = How {
        explore: &arguments.explore,
        classify: true,
        options: &options,
        failed: &[],
    };
    let found = find_and_play(&directory, &how, recorded.look);
    let mut report = found?;
    if temporary {
        report.forget_recordings();
    }
    let name = format!("{:020}-{}.json", nanoseconds(), std::process::id());
    let text = serde_json::to_string(&report).map_err(|error| failed(error.to_string()))?;
    let file = arguments.collect.join(name);
    std::fs::write(&file, text)
        .map_err(|error| failed(format!("cannot write {}: {error}", file.display())))?;
    Ok(recorded.code)
}

fn nanoseconds() -> u128 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos())
}
