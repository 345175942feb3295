//! The command line of deadheat: parses arguments and hands them to one file
//! per subcommand under `commands/`. Nothing clever lives here.
//!
//! Exit codes: 0 or the program's own, 66 races found, 2 usage, 70 deadheat
//! itself failed.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod commands;
mod failure;
mod reporting;

/// Finds the data races in a Linux x86-64 program and says what each can do.
#[derive(Parser)]
#[command(name = "deadheat", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Report(commands::report::Arguments),
    Sample(commands::sample::Arguments),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let answer = match &line.command {
        Command::Report(arguments) => commands::report::run(arguments),
        Command::Sample(arguments) => commands::sample::run(arguments),
    };
    let code = answer.unwrap_or_else(|failure| {
        eprintln!("deadheat: {}", failure.message);
        failure.code
    });
    ExitCode::from(u8::try_from(code).unwrap_or(race::exit_code::FAILURE as u8))
}
