//! `deadheat run`: records a program, finds its races and reports them.

use super::Failure;
use super::record::{self, ScheduleArguments};
use crate::ending;
use crate::exploration::{self, ExploreOptions};
use crate::failures;
use crate::inputs::{self, Input};
use crate::phase;
use crate::reporting::ReportOptions;
use crate::temporary;
use detect::FirstLook;
use race::RunFailure;
use report::Stream;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use vm::{Program, ScheduleChoice, Vm, interruption};

/// Run a program, find its data races and report them
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat run -- ./prog arg               the races of one run
  deadheat run --output rec -- ./prog      and keep the recording in rec
  deadheat run --invariant 'used <= len(slots)' -- ./prog
                                           does a race break what must always hold?")]
pub struct Arguments {
    /// Directory for the recording [default: in the store]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Run this many times, with seeds that follow on one another, varying
    /// policies and team sizes (OMP_NUM_THREADS, unless set), and merge what
    /// is found; output of the first run only
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    #[command(flatten)]
    schedule: ScheduleArguments,
    /// Run again with another input and merge what is found: a file is a
    /// standard input; one that ends in `.args` holds an argument vector per
    /// line (`-n 3 'two words' < FILE`); a folder holds such files
    #[arg(long, value_name = "PATH")]
    input: Vec<PathBuf>,
    /// Look for races after the run instead of while it is recorded: takes
    /// longer, but the program itself runs about three times as fast meanwhile
    #[arg(long)]
    detect_later: bool,
    /// Only find the races: play no orders and say of none what it can do
    #[arg(long)]
    no_classify: bool,
    #[command(flatten)]
    order: super::detect::OrderArguments,
    #[command(flatten)]
    explore: ExploreOptions,
    #[command(flatten)]
    report: ReportOptions,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG"
    )]
    command: Vec<OsString>,
}

/// A run that has been recorded.
pub struct Recorded {
    pub code: i32,
    pub look: Option<FirstLook>,
}

/// Records one run in a process of its own, and looks for races meanwhile if
/// `look` says how.
pub fn record_run(
    directory: &Path,
    program: &Program,
    schedule: ScheduleChoice,
    silent: bool,
    input: Option<&Path>,
    look: Option<&detect::Options>,
) -> Result<Recorded, Failure> {
    let input = input
        .map(|path| {
            std::fs::File::open(path)
                .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
        })
        .transpose()?;
    let recording = record::create(directory, program, schedule, None)?;
    let recorded = detect::in_recorder(|| -> Result<(i32, Option<FirstLook>), Failure> {
        if silent {
            detect::silence_output();
        }
        if let Some(input) = &input {
            // SAFETY: both are descriptors of this child.
            unsafe { libc::dup2(input.as_raw_fd(), 0) };
        }
        let mut vm = Vm::record(&recording, program, schedule)?;
        if let Some(options) = look {
            FirstLook::begin(&mut vm, options);
        }
        let stop = failures::run_to_its_end(&mut vm, &recording)?;
        let code = detect::exit_code(stop).unwrap_or(race::exit_code::FAILURE);
        Ok((code, FirstLook::end(&mut vm, stop)))
    });
    match recorded {
        Ok((code, look)) => Ok(Recorded { code, look }),
        // It had to be killed; what it did until then is on disk.
        Err(_) if interruption::is_over() => Ok(Recorded {
            code: 128 + libc::SIGKILL,
            look: None,
        }),
        Err(error) => Err(detect::Error::from(error).into()),
    }
}

/// Teams of other sizes in later runs: where an array is cut into shares
/// decides which accesses meet.
pub fn with_threads(program: &Program, number: u64) -> Program {
    const SIZES: [u64; 8] = [4, 3, 8, 2, 5, 16, 7, 36];
    let mut program = program.clone();
    for variable in ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"] {
        let begin = format!("{variable}=");
        let set = |entry: &Vec<u8>| entry.starts_with(begin.as_bytes());
        if number > 0 && !program.environment.iter().any(set) {
            let size = SIZES[(number as usize - 1) % SIZES.len()];
            program
                .environment
                .push(format!("{begin}{size}").into_bytes());
        }
    }
    program
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    interruption::be_patient();
    let program = record::program(&arguments.command)?;
    arguments.explore.verify(&program.path)?;
    let reporting = arguments.report.prepare(Stream::Stderr)?;
    let _budget = arguments.explore.begin_budget();
    let words: Vec<String> = arguments
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut reports = Vec::new();
    let mut inputs = vec![Input::default()];
    for path in &arguments.input {
        inputs.extend(inputs::read(path)?);
    }
    let runs = (inputs.len() as u64).saturating_mul(arguments.schedules);
    let (mut left, mut kept) = (0, Vec::new());
    let mut failed: Vec<RunFailure> = Vec::new();
    for number in 0..runs {
        if interruption::is_over() {
            left = runs - number;
            break;
        }
        let input = &inputs[(number / arguments.schedules) as usize];
        let stdin = input.stdin.as_deref();
        let program = match &input.arguments {
            None => program.clone(),
            Some(words) => {
                let name = arguments.command.iter().take(1);
                record::program(&name.chain(words).cloned().collect::<Vec<_>>())?
            }
        };
        let (directory, temporary) = match &arguments.output {
            Some(directory) if runs > 1 => {
                // The folder of several recordings may be there already.
                let _ = std::fs::create_dir(directory);
                (directory.join(number.to_string()), false)
            }
            Some(directory) => (directory.clone(), false),
            None => match reporting.begin_recording(&words)? {
                Some((_, directory)) => (directory, false),
                None => (temporary::folder()?, true),
            },
        };
        let row = number % arguments.schedules;
        let schedule = arguments.schedule.choice_of_row(row);
        let program = with_threads(&program, row);
        let options = arguments.order.options();
        let look = (!arguments.detect_later).then_some(&options);
        let recorded = if number == 0 {
            record_run(&directory, &program, schedule, false, stdin, look)?
        } else {
            let label = format!("recording run {} of {runs}", number + 1);
            phase::counting(&label, None, || {
                record_run(&directory, &program, schedule, true, stdin, look)
            })?
        };
        let classify = !arguments.no_classify;
        let explore = &arguments.explore;
        let how = How {
            explore,
            classify,
            options: &options,
            failed: &failed,
        };
        let result = find_and_play(&directory, &how, recorded.look);
        if temporary {
            // What cannot be removed is in the way of nobody.
            let _ = std::fs::remove_dir_all(&directory);
        }
        let mut report = result?;
        failed.extend(report.failures.iter().cloned());
        if !temporary {
            kept.push(directory);
        } else {
            report.forget_recordings();
        }
        reports.push(report);
    }
    let report = detect::merge(reports);
    let mut report = report.unwrap_or_else(|| race::Report::new("vm", words.clone()));
    if report.program.is_empty() {
        report.program.clone_from(&words);
    }
    if left > 0 {
        report.leave(format!("{left} of {}", report::count(runs, "run")));
    }
    let keeping = || format!("deadheat run --output DIR -- {}", words.join(" "));
    let go_on = ending::classify_again_in(kept.iter().map(PathBuf::as_path));
    ending::finish(reporting, report, Some(go_on.unwrap_or_else(keeping)))
}

/// What `find_and_play` does.
pub struct How<'a> {
    pub explore: &'a ExploreOptions,
    /// Both orders of each race are played and followed.
    pub classify: bool,
    pub options: &'a detect::Options,
    /// How other runs have failed.
    pub failed: &'a [RunFailure],
}

/// The races of a recording, how it failed, and what both can do.
pub fn find_and_play(
    directory: &Path,
    how: &How,
    look: Option<FirstLook>,
) -> Result<race::Report, Failure> {
    let How {
        explore, options, ..
    } = *how;
    let found = ending::finding(|| {
        let mut report =
            phase::detecting(directory, || detect::detect_tree(directory, options, look))?;
        failures::tell(&mut report, directory)?;
        failures::take_known(&mut report, how.failed);
        Ok(report)
    });
    let Some(mut report) = ending::unless_over(found)? else {
        let mut report = race::Report::new("vm", Vec::new());
        report.leave("all races: nothing was looked for".into());
        return Ok(report);
    };
    if !how.classify && exploration::is_searched_around(&report) {
        exploration::search_around(&mut report, directory, explore, options)?;
    } else if how.classify {
        let work = exploration::Work::default();
        exploration::play_and_classify(&mut report, directory, work, explore, Some(options))?;
    }
    Ok(report)
}
