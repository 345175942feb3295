//! `deadheat man`: writes the manual pages, one per subcommand, out of the
//! same descriptions that `--help` shows.

use super::Failure;
use clap::{Args, CommandFactory};
use std::path::PathBuf;

/// Write the manual pages into a folder
#[derive(Args)]
#[command(after_help = "\
Examples:
  deadheat man ~/.local/share/man/man1     then: man deadheat-run")]
pub struct Arguments {
    /// Where to; for instance /usr/local/share/man/man1.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let written = std::fs::create_dir_all(&arguments.folder)
        .and_then(|()| clap_mangen::generate_to(crate::CommandLine::command(), &arguments.folder));
    match written {
        Ok(()) => Ok(0),
        Err(source) => Err(report::Error::Write {
            path: arguments.folder.clone(),
            source,
        }
        .into()),
    }
}
