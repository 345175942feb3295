//! What `cargo deadheat …` finds: hands over to the deadheat beside it, or in
//! the PATH (`commands/cargo_deadheat.rs` does the work).

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    let mut arguments = std::env::args_os().skip(1).peekable();
    // Cargo gives its subcommands their own name first.
    arguments.next_if(|word| word == "deadheat");
    let beside = std::env::current_exe()
        .ok()
        .map(|me| me.with_file_name("deadheat"))
        .filter(|path| path.is_file());
    let deadheat = beside.unwrap_or_else(|| PathBuf::from("deadheat"));
    let error = Command::new(&deadheat)
        .arg("cargo-deadheat")
        .args(arguments)
        .exec();
    eprintln!(
        "cargo-deadheat: cannot start {}: {error}; install deadheat beside cargo-deadheat",
        deadheat.display()
    );
    exit(70);
}
