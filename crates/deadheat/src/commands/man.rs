//! `deadheat man`: writes the manual pages, one per subcommand, out of the
//! same descriptions that `--help` shows.

use super::Failure;
use clap::{Args, CommandFactory};
use std::path::{Path, PathBuf};

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

/// `cargo help deadheat` looks for this page.
fn cargo_page(folder: &Path) -> std::io::Result<()> {
    let line = crate::CommandLine::command();
    let Some(command) = line.find_subcommand("cargo-deadheat") else {
        return Ok(());
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().hide(false)).render(&mut page)?;
    std::fs::write(folder.join("cargo-deadheat.1"), page)
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let written = std::fs::create_dir_all(&arguments.folder)
        .and_then(|()| clap_mangen::generate_to(crate::CommandLine::command(), &arguments.folder))
        .and_then(|()| cargo_page(&arguments.folder));
    match written {
        Ok(()) => Ok(0),
        Err(source) => Err(report::Error::Write {
            path: arguments.folder.clone(),
            source,
        }
        .into()),
    }
}
