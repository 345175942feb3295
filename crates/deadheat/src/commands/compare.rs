//! `deadheat compare`: what changed from one run to another.

use super::Failure;
use crate::reporting::StoreOption;
use crate::runs;
use clap::Args;
use race::Race;
use report::{Comparison, Stream, between, title, verdict_words};
use serde_json::json;
use std::fmt::Write;

/// Compare two runs: new, gone and changed races
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat compare 6 7                     what run 7 has that run 6 had not, and the other way
  deadheat compare main.json mine.json     two reports that --json=FILE wrote")]
pub struct Arguments {
    /// The earlier run: a number or a JSON report.
    #[arg(value_name = "A")]
    before: String,

    /// The later run: a number or a JSON report.
    #[arg(value_name = "B")]
    after: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let load = |name: &str| runs::load(&arguments.store.store, Some(name));
    let comparison = Comparison::of(&load(&arguments.before)?, &load(&arguments.after)?);
    let text = if arguments.json {
        report::json_text(&as_json(&comparison))
    } else {
        report::plain_lines(&as_text(&comparison)).into_owned()
    };
    report::print_text(&text, Stream::Stdout).map_err(report::Error::from)?;
    Ok(0)
}

fn as_text(comparison: &Comparison) -> String {
    let mut text = String::new();
    let mut section = |name: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = writeln!(text, "{name}: {}", lines.len());
            for line in lines {
                let _ = writeln!(text, "  {line}");
            }
        }
    };
    let named = |race: &Race| {
        let [one, two] = between(race);
        format!("{}  {}: {one} / {two}", race.fingerprint, title(race))
    };
    section("new", comparison.new.iter().map(named).collect());
    section("gone", comparison.gone.iter().map(named).collect());
    let (worse, other): (Vec<_>, Vec<_>) = comparison.changed.iter().partition(|one| one.worse);
    let changed = |list: Vec<&report::Changed>| {
        let line = |one: &report::Changed| {
            format!("{} (was {})", named(&one.race), verdict_words(one.before))
        };
        list.into_iter().map(line).collect::<Vec<_>>()
    };
    section("changed for the worse", changed(worse));
    section("changed", changed(other));
    let _ = writeln!(text, "unchanged: {}", comparison.same);
    text
}

fn as_json(comparison: &Comparison) -> serde_json::Value {
    let changed: Vec<_> = comparison
        .changed
        .iter()
        .map(|one| json!({ "before": one.before, "worse": one.worse, "race": one.race }))
        .collect();
    json!({
        "new": comparison.new,
        "gone": comparison.gone,
        "changed": changed,
        "unchanged": comparison.same,
    })
}
