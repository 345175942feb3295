//! The way of a finished report to the user, the same for every subcommand.
//!
//! [`Reporting::prepare`] is called before the program is started, so that a
//! mistake in an input file is told at once; [`Reporting::finish`] takes the
//! report when the analysis is done, shows it and says what to exit with.

use crate::store::{Sighting, Store};
use crate::suppress::{self, Suppressions, Syntax};
use crate::{Baseline, Error, Form, Options, clock, json, junit, page, sarif, write_whole};
use race::{Fingerprint, Race, Report, Standing, Verdict, exit_code};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Earlier sightings of a race that the page shows at most.
const HISTORY: usize = 20;

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
                race.suppressed.is_none()
                    && !accepted(race)
                    && race.standing != Some(Standing::Known)
                    // Nobody knows what it can do.
                    && (race.verdict.rank() <= worst.rank()
                        || race.verdict == Verdict::Unclassified)
            }
        }
    }

    /// A race that it lets pass though what comes of the changed state was not
    /// followed to the end.
    fn passes_unseen(self, race: &Race) -> bool {
        let is_open = race.verdict == Verdict::StateChange && race.k.is_none();
        is_open && race.suppressed.is_none() && self != FailOn::Never && !self.fails(race)
    }
}

/// Somebody has looked at the race and decided to live with it.
fn accepted(race: &Race) -> bool {
    race.contradicted.is_none() && race.mark.as_ref().is_some_and(race::Mark::accepts)
}

/// What the user asked for on the command line.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub print: Options,
    /// Print JSON instead of text.
    pub json: bool,
    /// Also write the JSON to this file.
    pub json_file: Option<PathBuf>,
    pub sarif_file: Option<PathBuf>,
    pub junit_file: Option<PathBuf>,
    pub html_file: Option<PathBuf>,
    pub suppressions: Vec<PathBuf>,
    /// Print suppressions for the races that have none.
    pub generate: Option<Syntax>,
    pub baseline: Option<PathBuf>,
    pub fail_on: FailOn,
    /// Exit code when races are found; 66 unless told otherwise.
    pub exit_code: Option<i32>,
    /// Folder of the store: marks come from there and the run is kept there.
    pub store: Option<PathBuf>,
    /// The report comes out of a store, or from a file: do not keep it again.
    pub shown_again: bool,
}

/// An hour of analysis shall not end in a misspelt folder.
fn check_folder(path: &Path) -> Result<(), Error> {
    match path.parent().filter(|folder| *folder != Path::new("")) {
        Some(folder) if !folder.is_dir() => Err(Error::NoFolder {
            path: path.to_path_buf(),
            folder: folder.to_path_buf(),
        }),
        _ => Ok(()),
    }
}

/// Settings whose input files have been read and found good.
#[derive(Debug)]
pub struct Reporting {
    settings: Settings,
    suppressions: Suppressions,
    baseline: Option<Baseline>,
    started: String,
}

impl Reporting {
    /// Reads and checks every file the settings name. Call it before the
    /// analysis starts.
    pub fn prepare(settings: Settings) -> Result<Self, Error> {
        let outputs = [
            &settings.json_file,
            &settings.sarif_file,
            &settings.junit_file,
            &settings.html_file,
        ];
        for path in outputs.into_iter().flatten() {
            check_folder(path)?;
        }
        let suppressions = Suppressions::read(&settings.suppressions)?;
        let baseline = settings
            .baseline
            .as_deref()
            .map(Baseline::read)
            .transpose()?;
        if let (Some(folder), false) = (&settings.store, settings.shown_again) {
            // Closed again at once: no connection is open while an analysis
            // forks.
            Store::create(folder)?;
        }
        Ok(Reporting {
            suppressions,
            baseline,
            started: clock::now(),
            settings,
        })
    }

    /// The number and folder for a recording that is about to be made; none
    /// if the user wants no store.
    pub fn begin_recording(&self, program: &[String]) -> Result<Option<(u64, PathBuf)>, Error> {
        match (&self.settings.store, self.settings.shown_again) {
            (Some(folder), false) => Store::create(folder)?.begin_recording(program).map(Some),
            _ => Ok(None),
        }
    }

    /// Judges, keeps, writes and shows `report` as asked and returns the exit
    /// code: the races-found code if a race fails the run, else the program's
    /// own (0 for a report that is only shown again).
    pub fn finish(self, mut report: Report) -> Result<i32, Error> {
        report.started.get_or_insert_with(|| self.started.clone());
        report.find_causes();
        self.judge(&mut report)?;
        // A report that cannot be kept is shown all the same.
        let kept = self.keep(&mut report);
        self.write_files(&report)?;
        let mut options = self.settings.print.clone();
        if self.settings.json {
            options.form = Form::Json;
        }
        crate::print(&report, &options)?;
        if let (Some(syntax), false) = (self.settings.generate, self.settings.json) {
            crate::print_text(&suppress::generate(&report, syntax), options.stream)?;
        }
        kept?;
        Ok(report.exit.deadheat)
    }

    /// Marks, suppressions, baseline and the exit code that follows.
    fn judge(&self, report: &mut Report) -> Result<(), Error> {
        if let (Some(folder), false) = (&self.settings.store, self.settings.shown_again) {
            Store::create(folder)?.put_marks(report)?;
        }
        if !self.settings.suppressions.is_empty() {
            self.suppressions.apply(report);
        }
        if let Some(baseline) = &self.baseline {
            baseline.apply(report);
        }
        let fail_on = self.settings.fail_on;
        let unseen = report.races.iter().filter(|race| {
            fail_on.passes_unseen(race) && !accepted(race) && race.standing != Some(Standing::Known)
        });
        let unseen = unseen.count();
        if unseen > 0 {
            report.not_checked.push(format!(
                "{} changed the state, and what comes of it was not followed to the end; \
                 `--fail-on` lets it pass",
                crate::count(unseen as u64, "race")
            ));
        }
        report.exit.deadheat = self.exit_code(report);
        Ok(())
    }

    fn keep(&self, report: &mut Report) -> Result<(), Error> {
        if let (Some(folder), false) = (&self.settings.store, self.settings.shown_again) {
            Store::create(folder)?.keep(report)?;
        }
        Ok(())
    }

    fn write_files(&self, report: &Report) -> Result<(), Error> {
        if let Some(path) = &self.settings.json_file {
            write_whole(path, &json::render(report))?;
        }
        if let Some(path) = &self.settings.sarif_file {
            let root = std::env::current_dir().ok();
            write_whole(path, &sarif::render(report, root.as_deref()))?;
        }
        if let Some(path) = &self.settings.junit_file {
            let fails = |race: &Race| self.settings.fail_on.fails(race);
            write_whole(path, &junit::render(report, &fails))?;
        }
        if let Some(path) = &self.settings.html_file {
            write_whole(path, &page::render(report, &self.histories(report)?))?;
        }
        Ok(())
    }

    /// What the store knows of the past of the report's races.
    fn histories(&self, report: &Report) -> Result<HashMap<Fingerprint, Vec<Sighting>>, Error> {
        match (&self.settings.store, report.run) {
            (Some(folder), Some(run)) => match Store::open(folder) {
                Err(Error::NoStore { .. }) => Ok(HashMap::new()),
                store => store?.histories(run, HISTORY),
            },
            _ => Ok(HashMap::new()),
        }
    }

    fn exit_code(&self, report: &Report) -> i32 {
        let ended_by = report.cut_short.as_ref().and_then(|cut| cut.signal);
        if let (Some(signal), false) = (ended_by, self.settings.shown_again) {
            return 128 + signal;
        }
        let fails = |race: &Race| self.settings.fail_on.fails(race);
        // No baseline, mark or class makes a program that died one that did not.
        let failed = !report.failures.is_empty() && self.settings.fail_on != FailOn::Never;
        if failed || report.races.iter().any(fails) {
            self.settings.exit_code.unwrap_or(exit_code::RACES)
        } else if self.settings.shown_again {
            0
        } else {
            report.exit.program.unwrap_or(0)
        }
    }
}

/// Reads a report that `--json=FILE` wrote.
pub fn read(path: &Path) -> Result<Report, Error> {
    let text = crate::read_text(path).map_err(|source| Error::Read {
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
        assert_eq!(exit_with("spec-violated", Unclassified, false, 1), 66);
        assert_eq!(exit_with("never", Unclassified, false, 1), 1);
        assert_eq!(exit_with("not-a-race", NotARace, false, 1), 66);
    }

    #[test]
    fn a_failure_of_the_program_counts_whatever_its_races_are() {
        let exit_with = |fail_on: &str, shown_again| {
            let mut report = Report::new("vm", vec![]);
            report.failures.push(race::RunFailure {
                kind: "deadlock".into(),
                ..race::RunFailure::default()
            });
            report.exit.program = Some(137);
            let settings = Settings {
                fail_on: fail_on.parse().unwrap(),
                shown_again,
                ..Settings::default()
            };
            Reporting::prepare(settings).unwrap().exit_code(&report)
        };
        assert_eq!(exit_with("any", false), 66);
        assert_eq!(exit_with("spec-violated", false), 66);
        assert_eq!(exit_with("never", false), 137);
        assert_eq!(exit_with("never", true), 0);
    }

    #[test]
    fn a_signal_decides_the_exit_code_but_not_when_the_report_is_shown_again() {
        let mut report = Report::new("vm", vec![]);
        report.cut_short = Some(race::CutShort {
            by: "SIGTERM".into(),
            signal: Some(15),
            ..Default::default()
        });
        for (shown_again, code) in [(false, 143), (true, 0)] {
            let settings = Settings {
                shown_again,
                ..Settings::default()
            };
            let reporting = Reporting::prepare(settings).unwrap();
            assert_eq!(reporting.exit_code(&report), code);
        }
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
