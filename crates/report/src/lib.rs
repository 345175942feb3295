//! Everything people see of a finished analysis.
//!
//! A [`race::Report`] comes in; out go the terminal report, the JSON object
//! and the other forms. This crate knows only `race`: whichever analysis found
//! the races, they are shown, kept and compared in one way.
//!
//! Three rules hold in every form:
//! - what came from the program (names, values, output) is escaped for the
//!   medium it is shown in, so a hostile program cannot steer a terminal, a
//!   browser or a CI system;
//! - what is unknown is left out, never made up;
//! - no race is ever called harmless without saying what that rests on.

mod baseline;
pub mod clock;
mod error;
mod explain;
mod json;
mod junit;
mod options;
mod output;
mod page;
mod progress;
mod reporting;
mod sarif;
mod source;
mod store;
mod suppress;
mod terminal;
mod words;

pub use baseline::{Baseline, Update, worse};
pub use error::Error;
pub use json::render as json_text;
pub use options::{Color, Form, Options, Stream};
pub use output::{is_closed, print_text, say};
pub use progress::{Progress, Unit};
pub use race::{plain, plain_lines};
pub use reporting::{FailOn, Reporting, Settings, parse, read};
pub use store::{Changed, Collected, Comparison, Run, Sighting, Store};
pub use suppress::{Suppressions, Syntax, generate as generate_suppressions};
pub use words::{between, count, title, verdict_words};

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Prints `report` as `options` say: on standard output or standard error, as
/// text or JSON.
pub fn print(report: &race::Report, options: &Options) -> io::Result<()> {
    print_text(&text(report, options), options.stream)
}

/// `report` in the form `options` ask for.
pub fn text(report: &race::Report, options: &Options) -> String {
    match options.form {
        Form::Text => terminal::render(report, options),
        Form::Json => json::render(report),
    }
}

/// The report as SARIF 2.1.0; files under `root` are named relative to it.
pub fn sarif(report: &race::Report, root: Option<&Path>) -> String {
    sarif::render(report, root)
}

/// The report as JUnit XML; `fails` says which races fail the run.
pub fn junit(report: &race::Report, fails: &dyn Fn(&race::Race) -> bool) -> String {
    junit::render(report, fails)
}

/// The report as one HTML file; `histories` has what earlier runs said about
/// each race (see [`Store::histories`]).
pub fn page(
    report: &race::Report,
    histories: &HashMap<race::Fingerprint, Vec<Sighting>>,
) -> String {
    page::render(report, histories)
}

/// One race of `report` told as a story.
pub fn explain(report: &race::Report, race: &race::Race) -> String {
    explain::render(report, race)
}

/// The text of one race of `report`, as [`print`] shows it.
pub fn race_text(report: &race::Report, race: &race::Race, options: &Options) -> String {
    terminal::render_race(report, race, options)
}

/// Reports, baselines and suppressions are texts of some megabytes.
const LARGEST_INPUT: u64 = 256 << 20;

/// A text that the user named.
fn read_text(path: &Path) -> std::io::Result<String> {
    let bytes = folder::read_named(path, LARGEST_INPUT)?;
    String::from_utf8(bytes)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

/// Writes a file whole or not at all: beside its place first, then renamed.
/// What is not a regular file (`/dev/stdout`, a pipe) is written directly.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Error> {
    let fail = |source| Error::Write {
        path: path.to_path_buf(),
        source,
    };
    if fs::metadata(path).is_ok_and(|facts| !facts.is_file()) {
        return fs::write(path, text).map_err(fail);
    }
    let mut beside = path.as_os_str().to_os_string();
    beside.push(format!(".{}.part", std::process::id()));
    // A file made for it: what somebody has put under this name, a link say, is
    // not written through. A process of the same number may have left one.
    let _ = fs::remove_file(&beside);
    let written = fs::File::create_new(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Best effort: the error that matters is the one returned.
        let _ = fs::remove_file(&beside);
    }
    written.map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_not_written_through_a_link_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        let half = format!("report.{}.part", std::process::id());
        symlink(&theirs, folder.path().join(half)).unwrap();
        let report = folder.path().join("report");
        write_whole(&report, "ours").unwrap();
        assert_eq!(fs::read(&report).unwrap(), b"ours");
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
