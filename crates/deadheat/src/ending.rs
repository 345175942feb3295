//! What a command does when it is to end before it is done: by Ctrl-C, by
//! SIGTERM, or because its time is up (`vm::interruption` tells all processes).
//!
//! The way is the same for every command: the phase under way stops or is
//! stopped, what it leaves is said in the report (`Report::leave`), the phases
//! after it leave what they would have done, and the report is shown.

use crate::commands::Failure;
use race::Report;
use report::Reporting;
use std::path::Path;
use std::time::Duration;
use vm::interruption::{self, Allowance};

/// After the signal races are looked for as long as this: without it the report
/// of a short run would be empty. What comes after, the report among it, has the
/// rest of the two seconds.
const FINDING: Duration = Duration::from_millis(1_100);

/// Looks for races. When the end is asked for it goes on for a moment.
pub fn finding<T>(work: impl FnOnce() -> T) -> T {
    let _allowance = Allowance::of(FINDING);
    work()
}

/// `result`, or nothing if the work was over: then what it says is left.
pub fn unless_over<T>(result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(_) if interruption::is_over() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The name of a signal that ends commands.
pub fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGTERM => "SIGTERM",
        _ => "SIGINT",
    }
}

/// How to go on with recordings that are kept; none if there are none.
pub fn classify_again<'a>(recordings: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = recordings.into_iter().collect();
    (!names.is_empty()).then(|| format!("deadheat classify {}", names.join(" ")))
}

/// How to go on with these recordings.
pub fn classify_again_in<'a>(directories: impl IntoIterator<Item = &'a Path>) -> Option<String> {
    let names: Vec<String> = directories
        .into_iter()
        .map(|directory| directory.display().to_string())
        .collect();
    classify_again(names.iter().map(String::as_str))
}

/// The last step of every command with a report: says by what it was cut short
/// and how to go on, and shows it.
pub fn finish(
    reporting: Reporting,
    mut report: Report,
    go_on: Option<String>,
) -> Result<i32, Failure> {
    let signal = interruption::signal();
    if signal.is_some() {
        report.cut_short.get_or_insert_default();
    }
    if let Some(cut_short) = &mut report.cut_short {
        cut_short.signal = signal;
        cut_short.by = signal.map_or("budget", name).to_string();
        cut_short.go_on = go_on.filter(|_| !cut_short.left.is_empty());
    }
    interruption::reporting();
    Ok(reporting.finish(report)?)
}

/// What the process exits with after `result`, whose failure it says.
pub fn exit_code(result: Result<i32, Failure>) -> i32 {
    let signal = interruption::signal();
    if let Err(failure) = &result
        && (signal.is_none() || failure.message != vm::Error::Interrupted.to_string())
    {
        say!("deadheat: {}", race::plain_lines(&failure.message));
    }
    match (signal, result) {
        (Some(signal), Err(_)) => {
            say!("deadheat: ended by {}", name(signal));
            128 + signal
        }
        (Some(signal), Ok(_)) => 128 + signal,
        (None, Ok(code)) => code,
        (None, Err(failure)) => failure.code,
    }
}
