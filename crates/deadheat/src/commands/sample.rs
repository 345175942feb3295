//! `deadheat sample`: finds races in a native process by sampling with
//! breakpoints.

use super::Failure;
use super::record::ScheduleArguments;
use crate::candidates::{self, Search};
use crate::ending;
use crate::exploration::ExploreOptions;
use crate::reporting::ReportOptions;
use clap::Args;
use collide::{Bias, Goal, Options, Pattern, Scope, Status, Target};
use report::Stream;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vm::{Program, interruption};

/// Sample a running or new process for races, with little overhead
///
/// Works on any native program, as it is: stripped, static, in production. The
/// program is unharmed when sampling ends, in whatever way.
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat sample --pid 4711 --duration 5m     a running server, for five minutes
  deadheat sample -- ./prog arg                a program from its start on
  deadheat sample --overhead 1 --include 'cache_*' --pid 4711
  deadheat sample --then-classify -- ./prog    and what the races found can do")]
pub struct Arguments {
    /// Sample this running process; can be given several times for processes
    /// that share memory.
    #[arg(
        long,
        value_name = "PID",
        conflicts_with = "command",
        required_unless_present = "command"
    )]
    pid: Vec<i32>,

    /// Stop sampling after this time (10, 90s, 5m, 2h); the program goes on.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,

    /// Keep the slowdown at this share of the program's time.
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    overhead: f64,

    /// Take this many samples a second, whatever they cost.
    #[arg(long, value_name = "N", conflicts_with = "overhead")]
    rate: Option<u32>,

    /// Longest time a thread is held at an access (500us, 15ms); threads in
    /// code that runs often are held shorter.
    #[arg(long, value_name = "TIME", default_value = "15ms", value_parser = duration)]
    delay: Duration,

    /// Sample only modules, functions or source files that match (* stands
    /// for any text); can be given several times.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,

    /// Do not sample modules, functions or source files that match.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// Prefer the sites in this report or list (MODULE+0xOFFSET, FILE:LINE or
    /// FUNCTION, one to a line).
    #[arg(long, value_name = "FILE")]
    bias: Option<PathBuf>,

    /// File with names of variables on which races are expected, one to a
    /// line; races on them are labelled and come last.
    #[arg(long, value_name = "FILE")]
    special_variables: Option<PathBuf>,

    /// Write a core file of the process at the first catch of a race into this
    /// folder; the race names it.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    core: Option<PathBuf>,

    /// Use data breakpoints per thread even if per CPU is allowed.
    #[arg(long)]
    unprivileged: bool,

    /// Afterwards run the program again under the vm, steer it to the sites of
    /// the races found, and say what each can do. A process given by --pid is
    /// started once more as it was started: same arguments, environment and
    /// folder.
    #[arg(long, help_heading = "Classification")]
    then_classify: bool,

    /// Runs under the vm at most, until every race has happened there too.
    #[arg(long, default_value_t = 10, value_name = "N", requires = "then_classify",
          help_heading = "Classification", value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,

    /// End a run under the vm that takes longer: the program gets SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration,
          requires = "then_classify", help_heading = "Classification")]
    limit: Duration,

    #[command(flatten, next_help_heading = "Classification")]
    schedule: ScheduleArguments,

    #[command(flatten, next_help_heading = "Classification")]
    explore: ExploreOptions,

    /// Do not show the status line.
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    report: ReportOptions,

    /// Program to run and its arguments.
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<String>,
}

/// The terminal is gone: sampling is over, and the report is made all the same.
static HUNG_UP: AtomicBool = AtomicBool::new(false);

extern "C" fn hang_up(_signal: libc::c_int) {
    HUNG_UP.store(true, Ordering::Relaxed);
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let reporting = arguments.report.prepare(Stream::Stderr)?;
    let options = options(arguments)?;
    // A process may be gone when sampling is over.
    let origin = match arguments.then_classify {
        true => Some(origin(arguments)?),
        false => None,
    };
    interruption::be_patient();
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGHUP, hang_up as *const () as libc::sighandler_t) };
    let show = !arguments.quiet && std::io::stderr().is_terminal();
    let is_over = || interruption::is_over() || HUNG_UP.load(Ordering::Relaxed);
    let finished = collide::run(&options, is_over, |status| {
        if show {
            print_status(status);
        }
    });
    if show {
        // A line that does not show is no reason to stop.
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let finished = finished?;
    let mut report = finished.report;
    if finished.stopped && interruption::signal().is_some() {
        report.leave(left_of(arguments.duration, finished.totals.seconds));
    }
    if let Some(origin) = origin
        && !report.races.is_empty()
    {
        if interruption::is_over() {
            let races = report::count(report.races.len() as u64, "race");
            report.leave(format!("what {races} can do"));
        } else {
            // SAFETY: the default action.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            let _budget = arguments.explore.begin_budget();
            classify(arguments, &origin, &mut report, &reporting)?;
        }
    }
    // Races are caught: the next step is to see what they can do.
    let is_sampled = arguments.then_classify && !report.races.is_empty();
    let kept = ending::classify_again(report.recordings.clone().iter().map(String::as_str));
    let go_on = kept.unwrap_or_else(|| again(arguments, is_sampled));
    ending::finish(reporting, report, Some(go_on))
}

/// What was not sampled, when somebody ended it after `seconds`.
fn left_of(duration: Option<Duration>, seconds: f64) -> String {
    match duration {
        Some(all) => format!(
            "sampling: it was ended after {seconds:.1} of {:.1} s",
            all.as_secs_f64()
        ),
        None => format!("sampling: it was ended after {seconds:.1} s"),
    }
}

/// The command line that goes on: with the report, if it is kept in a file and
/// only the second run is left to do, else it samples once more.
fn again(arguments: &Arguments, is_sampled: bool) -> String {
    let kept = arguments.report.json.as_ref();
    if let (true, Some(report)) = (is_sampled, kept.filter(|path| *path != Path::new("-"))) {
        let program = match &arguments.command[..] {
            [] => "PROGRAM".to_string(),
            words => words.join(" "),
        };
        let report = report.display();
        return format!("deadheat import {report} --then-classify -- {program}");
    }
    let mut words = vec!["deadheat".to_string(), "sample".to_string()];
    if arguments.then_classify {
        words.push("--then-classify".into());
    }
    if let Some(duration) = arguments.duration {
        words.push(format!("--duration {}s", duration.as_secs_f64()));
    }
    words.extend(arguments.pid.iter().map(|pid| format!("--pid {pid}")));
    if !arguments.command.is_empty() {
        words.push("--".into());
        words.extend(arguments.command.iter().cloned());
    }
    words.join(" ")
}

/// What to run under the vm.
struct Origin {
    program: Program,
    words: Vec<String>,
    folder: Option<PathBuf>,
}

/// The program of the command line, or of the process that is sampled.
fn origin(arguments: &Arguments) -> Result<Origin, Failure> {
    if let [pid, ..] = arguments.pid[..] {
        return process_origin(pid).map_err(|what| {
            Failure::usage(format!(
                "process {pid} cannot be started again for --then-classify: {what}; leave the \
                 option out, and give the report (--json=FILE) to `deadheat import FILE -- PROGRAM` later"
            ))
        });
    }
    let command: Vec<_> = arguments.command.iter().map(Into::into).collect();
    Ok(Origin {
        program: super::record::program(&command)?,
        words: arguments.command.clone(),
        folder: None,
    })
}

fn process_origin(pid: i32) -> Result<Origin, String> {
    let entry = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let read = |name: &str| {
        std::fs::read(entry(name)).map_err(|error| format!("its {name} cannot be read ({error})"))
    };
    let strings = |bytes: Vec<u8>| -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        if parts.last().is_some_and(Vec::is_empty) {
            parts.pop();
        }
        parts
    };
    let link = |name: &str| {
        std::fs::read_link(entry(name))
            .map_err(|error| format!("its {name} cannot be found ({error})"))
    };
    let path = link("exe")?;
    if path.as_os_str().as_bytes().ends_with(b" (deleted)") {
        return Err("its program has been deleted or replaced since it was started".into());
    }
    let arguments = strings(read("cmdline")?);
    if arguments.is_empty() {
        return Err("it has no command line".into());
    }
    Ok(Origin {
        words: arguments
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
        program: Program {
            path,
            arguments,
            environment: strings(read("environ")?),
        },
        folder: Some(link("cwd")?).filter(|folder| folder != Path::new("/")),
    })
}

/// Makes the sampled races happen under the vm and says what they can do.
fn classify(
    arguments: &Arguments,
    origin: &Origin,
    report: &mut race::Report,
    reporting: &report::Reporting,
) -> Result<(), Failure> {
    if let ([pid, ..], false) = (&arguments.pid[..], arguments.quiet) {
        let folder = match &origin.folder {
            Some(folder) => folder.display().to_string(),
            None => "/".to_string(),
        };
        say!(
            "deadheat: to see what the races can do, a second copy of process {pid} is started under \
             the vm, beside it: `{}` with its environment, in {}; process {pid} itself is left \
             alone from here on",
            report::plain(&origin.words.join(" ")),
            report::plain(&folder)
        );
    }
    let candidates = std::mem::take(&mut report.races);
    let search = Search {
        program: &origin.program,
        words: &origin.words,
        folder: origin.folder.clone(),
        schedule: &arguments.schedule,
        schedules: arguments.schedules,
        limit: Some(arguments.limit),
        shows_output: false,
        classify: Some(&arguments.explore),
    };
    let outcome = search.run(&candidates, reporting)?;
    candidates::put_into(report, candidates, outcome, |race, sentence| {
        let sentence = format!("caught in the running process, but {sentence}");
        race.explanation = Some(match race.explanation.take() {
            Some(known) => format!("{known}; {sentence}"),
            None => sentence,
        });
    });
    Ok(())
}

fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text)).collect();
    let bias = match &arguments.bias {
        Some(path) => Bias::read(path).map_err(|error| Failure {
            message: error.to_string(),
            code: race::exit_code::USAGE,
        })?,
        None => Bias::default(),
    };
    Ok(Options {
        target: if arguments.command.is_empty() {
            Target::Attach(arguments.pid.clone())
        } else {
            Target::Launch(arguments.command.clone())
        },
        goal: match arguments.rate {
            Some(rate) => Goal::Rate(f64::from(rate)),
            None => Goal::Overhead(arguments.overhead),
        },
        delay: arguments.delay,
        scope: Scope {
            include: patterns(&arguments.include),
            exclude: patterns(&arguments.exclude),
        },
        bias,
        special: special_variables(arguments)?,
        duration: arguments.duration,
        core: arguments.core.clone(),
        per_thread: arguments.unprivileged,
    })
}

fn special_variables(arguments: &Arguments) -> Result<Vec<Pattern>, Failure> {
    let Some(path) = &arguments.special_variables else {
        return Ok(Vec::new());
    };
    let text = std::fs::read_to_string(path).map_err(|error| Failure {
        message: format!("{}: {error}", path.display()),
        code: race::exit_code::USAGE,
    })?;
    Ok(text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(Pattern::new)
        .collect())
}

fn print_status(status: &Status) {
    let phase = if status.sweeping { ", learning" } else { "" };
    // A status line that cannot be shown is no failure.
    let _ = write!(
        std::io::stderr(),
        "\r\x1b[K{:.0} samples/s, overhead {:.1} %, {} of {} sites live{phase}, {} sampled, {} samples, {} races, {} s",
        status.rate,
        status.overhead * 100.0,
        status.counts.live,
        status.counts.sites,
        status.counts.sampled_sites,
        status.counts.samples,
        status.races,
        status.elapsed.as_secs(),
    );
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a percentage, such as 5 or 0.5%"))?;
    if !(0.01..=100.0).contains(&number) {
        return Err("the overhead must lie between 0.01 and 100 percent".into());
    }
    Ok(number / 100.0)
}

/// A time as users write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time, such as 50us, 15ms, 10s, 5m");
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let unit = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}
