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

mod error;
mod json;
mod options;
mod reporting;
mod source;
mod terminal;
mod words;

pub use error::Error;
pub use options::{Color, Form, Options, Stream};
pub use reporting::{FailOn, Reporting, Settings, parse, read};
pub use words::verdict_words;

use std::io::{self, Write};

/// Prints `report` as `options` say: on standard output or standard error, as
/// text or JSON.
pub fn print(report: &race::Report, options: &Options) -> io::Result<()> {
    match options.stream {
        Stream::Stdout => write(report, options, &mut io::stdout().lock()),
        Stream::Stderr => write(report, options, &mut io::stderr().lock()),
    }
}

/// The text of one race of `report`, as [`print`] shows it.
pub fn race_text(report: &race::Report, race: &race::Race, options: &Options) -> String {
    terminal::render_race(report, race, options)
}

/// Writes `report` to `out` in the form `options` ask for.
pub fn write(report: &race::Report, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let text = match options.form {
        Form::Text => terminal::render(report, options),
        Form::Json => json::render(report),
    };
    out.write_all(text.as_bytes())?;
    out.flush()
}
