//! `deadheat show`: one race in full, with its history.

use super::Failure;
use crate::runs::{self, RunOption};
use clap::Args;
use report::{Color, Options, Store, Stream, plain, verdict_words};
use std::fmt::Write;

/// Show one race in full, with its history
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat show 3                          race 3 of the latest run
  deadheat show 3 --run 7 --json           as run 7 saw it, for a script")]
pub struct Arguments {
    /// Number of the race in the run, or its fingerprint.
    #[arg(value_name = "RACE")]
    race: String,

    #[command(flatten)]
    run: RunOption,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Colour the text: auto, always or never.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Color,

    /// Lines of source around each racing line; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 5)]
    source_lines: usize,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let report = arguments.run.report()?;
    let race = runs::find(&report, &arguments.race)?;
    let text = if arguments.json {
        report::json_text(race)
    } else {
        let options = Options {
            color: arguments.color,
            source_lines: arguments.source_lines,
            verbose: true,
            ..Options::default()
        };
        report::race_text(&report, race, &options) + &past(arguments, race)?
    };
    report::print_text(&text, Stream::Stdout).map_err(report::Error::from)?;
    Ok(0)
}

/// What earlier runs and people said about the race.
fn past(arguments: &Arguments, race: &race::Race) -> Result<String, Failure> {
    let mut text = format!("fingerprint {}\n", race.fingerprint);
    let Ok(store) = Store::open(&arguments.run.store.store) else {
        return Ok(text);
    };
    let history = store.past(race)?;
    if !history.is_empty() {
        text.push_str("history:\n");
    }
    for sighting in history {
        let _ = writeln!(
            text,
            "  run {:4}  {}  {:18}  seen {}x",
            sighting.run,
            sighting.started.replace('T', " ").trim_end_matches('Z'),
            verdict_words(sighting.verdict),
            sighting.instances
        );
    }
    for mark in store.all_said(race)? {
        let _ = writeln!(
            text,
            "  {}  {} marked it {}: {}",
            mark.date.replace('T', " ").trim_end_matches('Z'),
            plain(&mark.author),
            plain(&mark.state),
            plain(&mark.reason)
        );
    }
    Ok(text)
}
