//! `deadheat doctor`: what will work on this machine and with this binary,
//! and the exact remedy for what will not.
//!
//! Nothing is guessed from version numbers where it can be tried: breakpoints
//! are set on a variable of this process, a child is attached to. Each finding
//! says what it is good for, so that a missing gdb does not look like a broken
//! machine.

mod binary;
mod machine;
mod trial;

use super::Failure;
use crate::reporting::StoreOption;
use clap::Args;
use report::plain;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Say what works on this machine, and the remedy for what does not
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat doctor                          this machine
  deadheat doctor ./prog                   and what can be said about ./prog")]
pub struct Arguments {
    /// Also examine this program or library.
    #[arg(value_name = "BINARY")]
    binary: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreOption,
}

/// What a finding means for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    /// Something optional is missing or slower.
    Limited,
    /// The part it belongs to does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone)]
struct Finding {
    /// Which part of deadheat it is for.
    part: &'static str,
    state: State,
    what: String,
    remedy: Option<String>,
}

impl Finding {
    fn good(part: &'static str, what: impl Into<String>) -> Self {
        Finding {
            part,
            state: State::Good,
            what: what.into(),
            remedy: None,
        }
    }

    fn limited(part: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding {
            part,
            state: State::Limited,
            what: what.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn missing(part: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding {
            part,
            state: State::Missing,
            what: what.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// The parts, in the order in which they are told; the names say which
/// subcommands they are for.
const VM: &str = "vm (run, record, replay, detect, classify)";
const SAMPLING: &str = "sampling of native processes (sample)";
const COMPILED: &str = "compiled-in monitors (ifr)";
const TOOLS: &str = "tools";
const STORE: &str = "store";
const BINARY: &str = "binary";

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let mut findings = machine::examine(&arguments.store.store);
    if let Some(path) = &arguments.binary {
        findings.extend(binary::examine(path)?);
    }
    let text = if arguments.json {
        as_json(&findings)
    } else {
        report::plain_lines(&as_text(&findings)).into_owned()
    };
    report::print_text(&text, report::Stream::Stdout).map_err(report::Error::from)?;
    let vital = |one: &Finding| one.state == State::Missing && [VM, BINARY].contains(&one.part);
    Ok(if findings.iter().any(vital) {
        race::exit_code::FAILURE
    } else {
        0
    })
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for part in [VM, SAMPLING, COMPILED, TOOLS, STORE, BINARY] {
        let mut of_part = findings.iter().filter(|one| one.part == part).peekable();
        if of_part.peek().is_some() {
            let _ = writeln!(text, "{part}");
        }
        for one in of_part {
            let sign = match one.state {
                State::Good => "ok     ",
                State::Limited => "limited",
                State::Missing => "MISSING",
            };
            let _ = writeln!(text, "  {sign}  {}", plain(&one.what));
            if let Some(remedy) = &one.remedy {
                let _ = writeln!(text, "           -> {}", plain(remedy));
            }
        }
    }
    text
}

fn as_json(findings: &[Finding]) -> String {
    let list: Vec<_> = findings
        .iter()
        .map(|one| {
            let state = match one.state {
                State::Good => "ok",
                State::Limited => "limited",
                State::Missing => "missing",
            };
            let mut value = json!({ "part": one.part, "state": state, "what": one.what });
            if let Some(remedy) = &one.remedy {
                value["remedy"] = remedy.as_str().into();
            }
            value
        })
        .collect();
    report::json_text(&list)
}
