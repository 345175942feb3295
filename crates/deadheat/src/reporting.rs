//! The options that every subcommand with a report shares, and the one way a
//! finished report takes from there.
//!
//! A subcommand flattens [`ReportOptions`] into its arguments, calls
//! [`ReportOptions::prepare`] before it starts the program, and
//! [`report::Reporting::finish`] with the finished report:
//!
//! ```ignore
//! let reporting = arguments.report.prepare(Stream::Stderr)?;
//! let report = analyse(…)?;
//! let code = reporting.finish(report)?;
//! ```

use clap::Args;
use report::{Color, FailOn, Options, Reporting, Settings, Stream};
use std::path::PathBuf;

/// How the races are shown, kept and judged.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Report")]
pub struct ReportOptions {
    /// Print the report as JSON (docs/report.schema.json); with =FILE, write
    /// it there and print the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,

    /// Exit with the races-found code only for races of this class or worse
    /// (spec-violated, output-differs, state-change, unclassified,
    /// single-ordering, k-witness-harmless, not-a-race; any, never).
    #[arg(long, value_name = "CLASS", default_value = "any")]
    pub fail_on: FailOn,

    /// Exit code when races are found.
    #[arg(long, value_name = "N", default_value_t = race::exit_code::RACES, value_parser = clap::value_parser!(i32).range(0..=255))]
    pub exitcode: i32,

    /// Colour the text: auto, always or never.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// Lines of source around each racing line; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub source_lines: usize,

    /// Show suppressed races, all frames and all evidence.
    #[arg(long, short)]
    pub verbose: bool,
}

impl ReportOptions {
    /// How to print on `stream` without any further step.
    pub fn print_options(&self, stream: Stream) -> Options {
        Options {
            stream,
            color: self.color,
            source_lines: self.source_lines,
            verbose: self.verbose,
            ..Options::default()
        }
    }

    /// Reads and checks every file named by the options. Text goes to
    /// `stream`; JSON without a file always to standard output.
    pub fn prepare(&self, stream: Stream) -> Result<Reporting, report::Error> {
        let json_here = self
            .json
            .as_ref()
            .is_some_and(|file| file.as_os_str() == "-");
        let stream = if json_here { Stream::Stdout } else { stream };
        Reporting::prepare(Settings {
            print: self.print_options(stream),
            json: json_here,
            json_file: self.json.clone().filter(|_| !json_here),
            fail_on: self.fail_on,
            exit_code: Some(self.exitcode),
        })
    }
}
