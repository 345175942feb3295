//! The way of a finished report to the user, the same for every subcommand.
//!
//! [`Reporting::prepare`] is called before the program is started, so that a
//! mistake in an input file is told at once; [`Reporting::finish`] takes the
//! report when the analysis is done, shows it and says what to exit with.

use crate::{Error, Form, Options, json};
use race::{Race, Report, Verdict, exit_code};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which races make deadheat exit with the races-found code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailOn {
    /// This verdict and every worse one.
    Verdict(Verdict),
    /// No race does.
    Never,
}

impl Default for FailOn {
    fn default() -> Self {
        FailOn::Verdict(Verdict::KWitnessHarmless)
    }
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "any" => return Ok(FailOn::default()),
            "never" => return Ok(FailOn::Never),
            _ => {}
        }
        let known = Verdict::REPORT_ORDER;
        if let Some(verdict) = known.into_iter().find(|verdict| verdict.name() == text) {
            return Ok(FailOn::Verdict(verdict));
        }
        let names: Vec<_> = known.iter().map(|verdict| verdict.name()).collect();
        Err(format!(
            "no class `{text}`; the classes are {}, any and never",
            names.join(", ")
        ))
    }
}

impl FailOn {
    fn fails(self, race: &Race) -> bool {
        match self {
            FailOn::Never => false,
            FailOn::Verdict(worst) => {
                race.suppressed.is_none() && race.verdict.rank() <= worst.rank()
            }
        }
    }
}

/// What the user asked for on the command line.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub print: Options,
    /// Print JSON instead of text.
    pub json: bool,
    /// Also write the JSON to this file.
    pub json_file: Option<PathBuf>,
    pub fail_on: FailOn,
    /// Exit code when races are found; 66 unless told otherwise.
    pub exit_code: Option<i32>,
}

/// Settings whose input files have been read and found good.
#[derive(Debug)]
pub struct Reporting {
    settings: Settings,
}

impl Reporting {
    /// Reads and checks every file the settings name. Call it before the
    /// analysis starts.
    pub fn prepare(settings: Settings) -> Result<Self, Error> {
        Ok(Reporting { settings })
    }

    /// Shows and writes `report` as asked and returns the exit code: the
    /// races-found code if a race fails the run, else the program's own.
    pub fn finish(self, mut report: Report) -> Result<i32, Error> {
        report.exit.deadheat = self.exit_code(&report);
        if let Some(path) = &self.settings.json_file {
            write_file(path, &json::render(&report))?;
        }
        let mut options = self.settings.print;
        if self.settings.json {
            options.form = Form::Json;
        }
        crate::print(&report, &options)?;
        Ok(report.exit.deadheat)
    }

    fn exit_code(&self, report: &Report) -> i32 {
        let fails = |race: &Race| self.settings.fail_on.fails(race);
        if report.races.iter().any(fails) {
            self.settings.exit_code.unwrap_or(exit_code::RACES)
        } else {
            report.exit.program.unwrap_or(0)
        }
    }
}

/// Reads a report that `--json=FILE` wrote.
pub fn read(path: &Path) -> Result<Report, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_path_buf(),
        source,
    })?;
    parse(&text, path)
}

/// Reads a report from `text`, which came from `path`.
pub fn parse(text: &str, path: &Path) -> Result<Report, Error> {
    let bad = |source| Error::NotAReport {
        path: path.to_path_buf(),
        source,
    };
    let value: serde_json::Value = serde_json::from_str(text).map_err(bad)?;
    let found = value.get("schema").and_then(serde_json::Value::as_u64);
    if let Some(found @ 2..) = found {
        return Err(Error::NewerReport {
            path: path.to_path_buf(),
            found: u32::try_from(found).unwrap_or(u32::MAX),
        });
    }
    serde_json::from_value(value).map_err(bad)
}

fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::Write {
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Access, Suppressed};

    fn exit_with(fail_on: &str, verdict: Verdict, suppressed: bool, program: i32) -> i32 {
        let mut report = Report::new("vm", vec![]);
        let mut race = Race::new(1, 1, [Access::unseen(), Access::unseen()]);
        race.verdict = verdict;
        race.suppressed = suppressed.then(|| Suppressed {
            by: "a:1".into(),
            reason: None,
        });
        report.races.push(race);
        report.exit.program = Some(program);
        let settings = Settings {
            fail_on: fail_on.parse().unwrap(),
            ..Settings::default()
        };
        Reporting::prepare(settings).unwrap().exit_code(&report)
    }

    #[test]
    fn exit_codes() {
        use Verdict::*;
        assert_eq!(exit_with("any", Unclassified, false, 0), 66);
        assert_eq!(exit_with("any", KWitnessHarmless, false, 0), 66);
        assert_eq!(exit_with("any", NotARace, false, 3), 3);
        assert_eq!(exit_with("any", SpecViolated, true, 0), 0);
        assert_eq!(exit_with("never", SpecViolated, false, 0), 0);
        assert_eq!(exit_with("output-differs", SpecViolated, false, 0), 66);
        assert_eq!(exit_with("output-differs", StateChange, false, 1), 1);
        assert_eq!(exit_with("not-a-race", NotARace, false, 1), 66);
    }

    #[test]
    fn a_newer_or_broken_report_is_refused_by_name() {
        let path = Path::new("old.json");
        let error = parse(r#"{"schema": 9}"#, path).unwrap_err().to_string();
        assert!(error.contains("old.json: report schema 9"), "{error}");
        let error = parse(r#"{"schema": 1}"#, path).unwrap_err().to_string();
        assert!(error.contains("old.json: not a deadheat report"), "{error}");
        assert!(parse("[", path).is_err());
    }
}
