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
use report::{Color, FailOn, Options, Reporting, Settings, Stream, Syntax};
use std::path::PathBuf;

/// How the races are shown, kept and judged.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Report")]
pub struct ReportOptions {
    /// Print the report as JSON (docs/report.schema.json); with =FILE, write
    /// it there and print the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,

    /// Also write the report as SARIF 2.1.0, for code scanning.
    #[arg(long, value_name = "FILE")]
    pub sarif: Option<PathBuf>,

    /// Also write the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,

    /// Also write the report as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Leave out the races that this file names (ThreadSanitizer lines or
    /// Valgrind blocks); can be given several times.
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,

    /// Print suppressions for the races found, in the syntax of tsan or
    /// valgrind.
    #[arg(long, value_name = "SYNTAX", num_args = 0..=1, require_equals = true, default_missing_value = "tsan")]
    pub gen_suppressions: Option<Syntax>,

    /// Fail only on races that this file does not have, or has with a less
    /// bad verdict (`deadheat baseline update` writes it).
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,

    /// Exit with the races-found code only for races of this class or worse
    /// (spec-violated, output-differs, state-change, unclassified,
    /// single-ordering, k-witness-harmless, not-a-race; any, never). Unless
    /// told otherwise `report` never does, and all else does for any race.
    #[arg(long, value_name = "CLASS")]
    pub fail_on: Option<FailOn>,

    /// Exit code when races are found.
    #[arg(long, value_name = "N", default_value_t = race::exit_code::RACES, value_parser = clap::value_parser!(i32).range(0..=255))]
    pub exitcode: i32,

    /// Colour the text: auto, always or never.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: Color,

    /// Lines of source around each racing line; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub source_lines: usize,

    #[command(flatten)]
    pub store: StoreOption,

    /// Keep nothing in the store and read nothing from it, whatever store is named
    /// (also by DEADHEAT_STORE).
    #[arg(long)]
    pub no_store: bool,

    /// Show suppressed races, all frames and all evidence.
    #[arg(long, short)]
    pub verbose: bool,
}

/// Where the store is.
#[derive(Args, Debug, Clone)]
pub struct StoreOption {
    /// Folder of the store.
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".deadheat",
        env = "DEADHEAT_STORE"
    )]
    pub store: PathBuf,
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

    /// Reads and checks every file named by the options, before an analysis
    /// starts. Text goes to `stream`; JSON without a file always to standard
    /// output.
    pub fn prepare(&self, stream: Stream) -> Result<Reporting, report::Error> {
        Reporting::prepare(Settings {
            fail_on: self.fail_on.unwrap_or_default(),
            ..self.settings(stream)
        })
    }

    /// The same for a report that is shown again: it is not kept once more,
    /// and fails nothing unless the user asks for it.
    pub fn prepare_again(&self, stream: Stream) -> Result<Reporting, report::Error> {
        let asked = self.baseline.is_some();
        let usual = if asked {
            FailOn::default()
        } else {
            FailOn::Never
        };
        Reporting::prepare(Settings {
            shown_again: true,
            fail_on: self.fail_on.unwrap_or(usual),
            ..self.settings(stream)
        })
    }

    fn settings(&self, stream: Stream) -> Settings {
        let json_here = self
            .json
            .as_ref()
            .is_some_and(|file| file.as_os_str() == "-");
        let stream = if json_here { Stream::Stdout } else { stream };
        Settings {
            print: self.print_options(stream),
            store: (!self.no_store).then(|| self.store.store.clone()),
            json: json_here,
            json_file: self.json.clone().filter(|_| !json_here),
            sarif_file: self.sarif.clone(),
            junit_file: self.junit.clone(),
            html_file: self.html.clone(),
            suppressions: self.suppressions.clone(),
            generate: self.gen_suppressions,
            baseline: self.baseline.clone(),
            exit_code: Some(self.exitcode),
            ..Settings::default()
        }
    }
}
