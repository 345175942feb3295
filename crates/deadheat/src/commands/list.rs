//! `deadheat list`: the runs of the store.

use super::Failure;
use crate::reporting::StoreOption;
use clap::Args;
use report::{Run, Store, plain, verdict_words};
use serde_json::json;

/// List the runs in the store
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat list -n 10                      the ten newest runs
  deadheat list --json                     for a script")]
pub struct Arguments {
    /// Show only the newest N.
    #[arg(short = 'n', long, value_name = "N")]
    newest: Option<usize>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreOption,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let mut runs = Store::open(&arguments.store.store)?.runs()?;
    runs.truncate(arguments.newest.unwrap_or(usize::MAX));
    let mut text = String::new();
    if arguments.json {
        let list: Vec<_> = runs.iter().map(as_json).collect();
        text = report::json_text(&list);
    } else {
        for run in &runs {
            text.push_str(&line(run));
        }
    }
    report::print_text(&text, report::Stream::Stdout).map_err(report::Error::from)?;
    Ok(0)
}

fn line(run: &Run) -> String {
    let counts: Vec<String> = run
        .counts
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(verdict, number)| format!("{number} {}", verdict_words(*verdict)))
        .collect();
    let mut found = match counts.is_empty() {
        true => "no races".to_string(),
        false => counts.join(", "),
    };
    if let Some(causes) = run.causes.filter(|causes| *causes < run.races()) {
        let causes = report::count(causes, "cause");
        let races = report::count(run.races(), "race");
        found = format!("{causes}, {races}: {found}");
    }
    if run.suppressed > 0 {
        found.push_str(&format!(" ({} suppressed)", run.suppressed));
    }
    format!(
        "{:5}  {}  {:8}  {}\n         {}\n",
        run.number,
        run.started.replace('T', " ").trim_end_matches('Z'),
        plain(&run.tool),
        plain(&run.program.join(" ")),
        found
    )
}

fn as_json(run: &Run) -> serde_json::Value {
    let counts: serde_json::Map<_, _> = run
        .counts
        .iter()
        .map(|(verdict, number)| (verdict.name().to_string(), json!(number)))
        .collect();
    json!({
        "run": run.number,
        "started": run.started,
        "tool": run.tool,
        "program": run.program,
        "exit": run.exit,
        "causes": run.causes,
        "races": counts,
        "suppressed": run.suppressed,
    })
}
