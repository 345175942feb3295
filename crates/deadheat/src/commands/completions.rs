//! `deadheat completions`: what a shell needs to complete command lines.

use super::Failure;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat completions bash > ~/.local/share/bash-completion/completions/deadheat
  deadheat completions zsh > ~/.zfunc/_deadheat
  deadheat completions fish > ~/.config/fish/completions/deadheat.fish")]
pub struct Arguments {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let mut text = Vec::new();
    let mut line = crate::CommandLine::command();
    clap_complete::generate(arguments.shell, &mut line, "deadheat", &mut text);
    let text = String::from_utf8_lossy(&text);
    report::print_text(&text, report::Stream::Stdout).map_err(report::Error::from)?;
    Ok(0)
}
