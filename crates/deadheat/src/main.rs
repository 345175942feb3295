//! The command line of deadheat: parses arguments and hands them to one file
//! per subcommand under `commands/`. Nothing clever lives here.
//!
//! Exit codes: 0 or the program's own, 66 races found, 2 usage, 70 deadheat
//! itself failed.

use clap::{Parser, Subcommand};

mod commands;
mod failure;
mod monitored_build;
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
    /// Run a program and write a recording of it
    Record(commands::record::Arguments),
    /// Run a recorded execution again, identical to the last register
    Replay(commands::replay::Arguments),
    Report(commands::report::Arguments),
    /// Compile C with monitors that find races while the program runs
    Cc(commands::cc::Arguments),
    /// Compile C++ with monitors that find races while the program runs
    #[command(name = "c++")]
    Cxx(commands::cc::Arguments),
    /// Build, run or test a Rust package with monitors
    Cargo(commands::cargo::Arguments),
    /// Name the races in the log of a program with monitors
    #[command(hide = true)]
    IfrReport(commands::ifr_report::Arguments),
}

fn main() {
    let line = CommandLine::parse();
    let result = match &line.command {
        Command::Record(arguments) => commands::record::run(arguments),
        Command::Replay(arguments) => commands::replay::run(arguments),
        Command::Report(arguments) => commands::report::run(arguments),
        Command::Cc(arguments) => commands::cc::run(arguments, commands::cc::Language::C),
        Command::Cxx(arguments) => commands::cc::run(arguments, commands::cc::Language::Cxx),
        Command::Cargo(arguments) => commands::cargo::run(arguments),
        Command::IfrReport(arguments) => commands::ifr_report::run(arguments),
    };
    let code = result.unwrap_or_else(|failure| {
        eprintln!("deadheat: {}", failure.message);
        failure.code
    });
    std::process::exit(code);
}
