//! The command line of deadheat: parses arguments and hands them to one file
//! per subcommand under `commands/`. Nothing clever lives here.
//!
//! Exit codes: 0 or the program's own, 66 races found, 2 usage, 70 deadheat
//! itself failed, 130 ended by SIGINT (Ctrl-C), 143 by SIGTERM.

use clap::{Parser, Subcommand};

#[macro_use]
mod output;

mod candidates;
mod commands;
mod ending;
mod exploration;
mod failures;
mod inputs;
mod monitored_build;
mod orders;
mod phase;
mod plain_objects;
mod reporting;
mod response_files;
mod runs;
mod temporary;

/// Finds the data races in a Linux x86-64 program and says what each can do.
#[derive(Parser)]
#[command(name = "deadheat", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Arguments),
    Detect(commands::detect::Arguments),
    Import(commands::import::Arguments),
    Classify(commands::classify::Arguments),
    Hunt(commands::hunt::Arguments),
    Whatif(commands::whatif::Arguments),
    /// Run a program and write a recording of it
    Record(commands::record::Arguments),
    /// Run a program in the vm without recording it
    Exec(commands::exec::Arguments),
    /// Run a recorded execution again, identical to the last register
    Replay(commands::replay::Arguments),
    /// Tell what a recording holds, in words
    Dump(commands::dump::Arguments),
    /// Copy into a recording all files it needs, so that it replays elsewhere
    Pack(commands::pack::Arguments),
    Export(commands::export::Arguments),
    Sample(commands::sample::Arguments),
    Report(commands::report::Arguments),
    Explain(commands::explain::Arguments),
    Show(commands::show::Arguments),
    List(commands::list::Arguments),
    Compare(commands::compare::Arguments),
    Mark(commands::mark::Arguments),
    Baseline(commands::baseline::Arguments),
    Gc(commands::gc::Arguments),
    Doctor(commands::doctor::Arguments),
    /// Compile C with monitors that find races while the program runs
    Cc(commands::cc::Arguments),
    /// Compile C++ with monitors that find races while the program runs
    #[command(name = "c++")]
    Cxx(commands::cc::Arguments),
    /// Build, run or test a Rust package with monitors
    Cargo(commands::cargo::Arguments),
    #[command(name = "cargo-deadheat", hide = true)]
    CargoDeadheat(commands::cargo_deadheat::Arguments),
    #[command(hide = true)]
    CargoRunner(commands::cargo_deadheat::RunnerArguments),
    /// Name the races in the log of a program with monitors
    #[command(hide = true)]
    IfrReport(commands::ifr_report::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

fn main() {
    vm::interruption::begin();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(answer) => std::process::exit(told(&answer)),
    };
    let result = match &line.command {
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Detect(arguments) => commands::detect::run(arguments),
        Command::Import(arguments) => commands::import::run(arguments),
        Command::Classify(arguments) => commands::classify::run(arguments),
        Command::Hunt(arguments) => commands::hunt::run(arguments),
        Command::Whatif(arguments) => commands::whatif::run(arguments),
        Command::Record(arguments) => commands::record::run(arguments),
        Command::Exec(arguments) => commands::exec::run(arguments),
        Command::Replay(arguments) => commands::replay::run(arguments),
        Command::Dump(arguments) => commands::dump::run(arguments),
        Command::Pack(arguments) => commands::pack::run(arguments),
        Command::Export(arguments) => commands::export::run(arguments),
        Command::Sample(arguments) => commands::sample::run(arguments),
        Command::Report(arguments) => commands::report::run(arguments),
        Command::Explain(arguments) => commands::explain::run(arguments),
        Command::Show(arguments) => commands::show::run(arguments),
        Command::List(arguments) => commands::list::run(arguments),
        Command::Compare(arguments) => commands::compare::run(arguments),
        Command::Mark(arguments) => commands::mark::run(arguments),
        Command::Baseline(arguments) => commands::baseline::run(arguments),
        Command::Gc(arguments) => commands::gc::run(arguments),
        Command::Doctor(arguments) => commands::doctor::run(arguments),
        Command::Cc(arguments) => commands::cc::run(arguments, commands::cc::Language::C),
        Command::Cxx(arguments) => commands::cc::run(arguments, commands::cc::Language::Cxx),
        Command::Cargo(arguments) => commands::cargo::run(arguments),
        Command::CargoDeadheat(arguments) => commands::cargo_deadheat::run(arguments),
        Command::CargoRunner(arguments) => commands::cargo_deadheat::run_one(arguments),
        Command::IfrReport(arguments) => commands::ifr_report::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments),
        Command::Man(arguments) => commands::man::run(arguments),
    };
    let code = ending::exit_code(result);
    temporary::clean();
    std::process::exit(code);
}

/// Prints help, or what is wrong with the command line.
fn told(answer: &clap::Error) -> i32 {
    let is_closed = !answer.use_stderr() && report::is_closed(report::Stream::Stdout);
    match answer.print() {
        Ok(()) if !is_closed => answer.exit_code(),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => answer.exit_code(),
        _ => {
            say!("deadheat: cannot print: standard output cannot be written");
            race::exit_code::FAILURE
        }
    }
}
