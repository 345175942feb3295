//! `deadheat mark`: what people decided about a race, kept by fingerprint.

use super::Failure;
use crate::runs::{self, RunOption};
use clap::{Args, ValueEnum};
use race::Mark;
use report::Store;

/// Say what you decided about a race
///
/// The mark is kept in the store by the race's fingerprint, so it holds in
/// every later run. A race marked harmless, accepted or ignore is still shown
/// and no longer fails a run, unless something is found that speaks against the
/// mark: then it comes back with both.
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat mark 3 harmless --reason \"either value of the hint will do\"
  deadheat mark 3 accepted --reason \"the total is advisory\"
  deadheat mark 3 bug --reason \"ticket 1234\"
  deadheat mark 3 none                     take the mark back")]
pub struct Arguments {
    /// Number of the race in the run, or its fingerprint.
    #[arg(value_name = "RACE")]
    race: String,

    #[arg(value_name = "STATE")]
    state: State,

    /// Why; needed for everything but `none`.
    #[arg(long, value_name = "TEXT", required_if_eq_any = [("state", "harmless"), ("state", "harmful"), ("state", "ignore"), ("state", "accepted"), ("state", "bug"), ("state", "fixed"), ("state", "question")])]
    reason: Option<String>,

    /// Who says so [default: the user's name]
    #[arg(long, value_name = "NAME")]
    author: Option<String>,

    #[command(flatten)]
    run: RunOption,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// Whatever it does is right; it no longer fails a run
    Harmless,
    /// It does harm and is to be fixed
    Harmful,
    /// It no longer fails a run, whatever is found about it
    Ignore,
    /// It may stay; it no longer fails a run
    Accepted,
    /// It is a bug to be fixed
    Bug,
    /// It was fixed; if it is seen again, that was wrong
    Fixed,
    /// Somebody should look at it
    Question,
    /// Take earlier marks back
    None,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let state = match arguments.state {
        State::Harmless => "harmless",
        State::Harmful => "harmful",
        State::Ignore => "ignore",
        State::Accepted => "accepted",
        State::Bug => "bug",
        State::Fixed => "fixed",
        State::Question => "question",
        State::None => "none",
    };
    let report = arguments.run.report()?;
    let race = runs::find(&report, &arguments.race)?;
    let author = arguments.author.clone().or_else(|| {
        let names = ["DEADHEAT_AUTHOR", "USER", "LOGNAME"];
        names
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    });
    let mark = Mark {
        state: state.into(),
        author: author.unwrap_or_else(|| "unknown".into()),
        date: report::clock::now(),
        reason: arguments.reason.clone().unwrap_or_default(),
    };
    Store::create(&arguments.run.store.store)?.mark(&race.fingerprint, &mark)?;
    let [one, two] = report::between(race);
    tell!(
        "race {} ({} / {}) is marked {state}",
        race.fingerprint,
        report::plain(&one),
        report::plain(&two)
    );
    Ok(0)
}
