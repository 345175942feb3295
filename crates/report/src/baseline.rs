//! Baselines: the races a project lives with for now, in a file under
//! version control. Against a baseline only new races and worse verdicts
//! fail a run.
//!
//! The file is JSON with one race per line, sorted by fingerprint, so that a
//! change to it reads well in a diff:
//!
//! ```json
//! {"baseline": 2, "races": [
//! {"fingerprint":"2-…","verdict":"state-change","between":["write add table.c:52","read report main.c:77"]}
//! ]}
//! ```
//!
//! The first form knew races by their two lines alone. Its entries are read: a
//! race is known if its lines were, whatever object it is on (all of them were
//! that entry then), and the next update writes it anew under its own
//! fingerprint. Entries that no run meets stay as they are.

use crate::Error;
use crate::words::between;
use race::{Fingerprint, Race, Report, Standing, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const VERSION: u32 = 2;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    fingerprint: Fingerprint,
    verdict: Verdict,
    /// For people who read the file.
    #[serde(default)]
    between: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    baseline: u32,
    races: Vec<Entry>,
}

/// The races of a baseline file.
#[derive(Debug, Clone, Default)]
pub struct Baseline {
    races: BTreeMap<Fingerprint, Entry>,
}

/// What an update of a baseline changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Update {
    pub added: usize,
    pub changed: usize,
    pub removed: usize,
    /// Entries of the first form that have been replaced.
    pub carried: usize,
}

impl Baseline {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = crate::read_text(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::NoBaseline {
                path: path.to_path_buf(),
            },
            _ => Error::Read {
                path: path.to_path_buf(),
                source,
            },
        })?;
        let bad = |what: String| Error::Baseline {
            path: path.to_path_buf(),
            what,
        };
        let file: File = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if file.baseline > VERSION {
            return Err(bad(format!(
                "baseline version {}, this deadheat reads up to {VERSION}; use a newer deadheat",
                file.baseline
            )));
        }
        let races = file
            .races
            .into_iter()
            .map(|entry| (entry.fingerprint.clone(), entry));
        Ok(Baseline {
            races: races.collect(),
        })
    }

    /// Writes the file whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let lines: Vec<String> = self
            .races
            .values()
            .map(|entry| serde_json::to_string(entry).expect("an entry is plain data"))
            .collect();
        let mut text = format!("{{\"baseline\": {VERSION}, \"races\": [\n");
        text.push_str(&lines.join(",\n"));
        text.push_str("\n]}\n");
        crate::write_whole(path, &text)
    }

    /// Says of every race of `report` how it stands against this baseline.
    pub fn apply(&self, report: &mut Report) {
        for race in &mut report.races {
            race.standing = Some(self.standing(race));
        }
    }

    fn standing(&self, race: &Race) -> Standing {
        match self.known(race) {
            None => Standing::New,
            Some(known) if worse(race.verdict, known.verdict) => Standing::Worse,
            Some(_) => Standing::Known,
        }
    }

    fn known(&self, race: &Race) -> Option<&Entry> {
        let former = || self.races.get(race.former_fingerprint.as_ref()?);
        self.races.get(&race.fingerprint).or_else(former)
    }

    /// Takes the races of `report` in, with their verdicts. Races that this
    /// run did not see stay (it may not have met them) unless `forget`.
    pub fn update(&mut self, report: &Report, forget: bool) -> Update {
        let mut update = Update::default();
        let seen = |known: &Fingerprint| {
            report.races.iter().any(|race| {
                race.fingerprint == *known || race.former_fingerprint.as_ref() == Some(known)
            })
        };
        if forget {
            let before = self.races.len();
            self.races.retain(|known, _| seen(known));
            update.removed = before - self.races.len();
        }
        let mut replaced: Vec<Fingerprint> = Vec::new();
        for race in report.races.iter().filter(|race| race.suppressed.is_none()) {
            match self.known(race) {
                None => update.added += 1,
                Some(known) => {
                    update.changed += usize::from(known.verdict != race.verdict);
                    if known.fingerprint != race.fingerprint {
                        replaced.push(known.fingerprint.clone());
                    }
                }
            }
            let entry = Entry {
                fingerprint: race.fingerprint.clone(),
                verdict: race.verdict,
                between: between(race).to_vec(),
            };
            self.races.insert(race.fingerprint.clone(), entry);
        }
        for former in replaced {
            update.carried += usize::from(self.races.remove(&former).is_some());
        }
        update
    }

    pub fn len(&self) -> usize {
        self.races.len()
    }

    pub fn is_empty(&self) -> bool {
        self.races.is_empty()
    }
}

/// Whether `now` is a worse verdict than `then`. Not knowing is not worse
/// than knowing: a run that did not classify says nothing new about a race
/// that an earlier one did.
pub fn worse(now: Verdict, then: Verdict) -> bool {
    now != Verdict::Unclassified && now.rank() < then.rank()
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Access, AccessKind, Site};

    fn race(function: &str, verdict: Verdict) -> Race {
        let site = Site {
            function: Some(function.into()),
            ..Site::default()
        };
        let mut race = Race::new(
            1,
            1,
            [Access::new(AccessKind::Write, 4, site), Access::unseen()],
        );
        race.verdict = verdict;
        race
    }

    fn report(races: Vec<Race>) -> Report {
        let mut report = Report::new("vm", vec![]);
        report.races = races;
        report
    }

    #[test]
    fn only_new_races_and_worse_verdicts_stand_out() {
        use Verdict::*;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.json");
        let mut baseline = Baseline::default();
        let update = baseline.update(
            &report(vec![
                race("a", StateChange),
                race("b", SpecViolated),
                race("c", OutputDiffers),
            ]),
            false,
        );
        assert_eq!((update.added, update.changed, update.removed), (3, 0, 0));
        baseline.write(&path).unwrap();
        let mut baseline = Baseline::read(&path).unwrap();
        let mut now = report(vec![
            race("a", OutputDiffers),
            race("b", StateChange),
            race("c", Unclassified),
            race("d", NotARace),
        ]);
        baseline.apply(&mut now);
        let standing: Vec<_> = now
            .races
            .iter()
            .map(|race| race.standing.unwrap())
            .collect();
        use Standing::*;
        assert_eq!(standing, [Worse, Known, Known, New]);
        let update = baseline.update(&report(vec![race("a", OutputDiffers)]), true);
        assert_eq!((update.added, update.changed, update.removed), (0, 1, 2));
        assert_eq!(baseline.len(), 1);
    }

    #[test]
    fn entries_of_the_first_form_are_met_and_written_anew() {
        use Verdict::*;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.json");
        let on = |name: &str, verdict| {
            let mut race = race("a", verdict);
            race.set_object(race::Object::variable(name, name, 0x10));
            race
        };
        let former = on("hits", StateChange).former_fingerprint.unwrap();
        let gone = race("b", StateChange).former_fingerprint.unwrap();
        let old = format!(
            "{{\"baseline\": 1, \"races\": [\n\
             {{\"fingerprint\":\"{former}\",\"verdict\":\"state-change\",\"between\":[]}},\n\
             {{\"fingerprint\":\"{gone}\",\"verdict\":\"state-change\",\"between\":[]}}\n]}}\n"
        );
        std::fs::write(&path, old).unwrap();
        let mut baseline = Baseline::read(&path).unwrap();
        let mut now = report(vec![on("hits", StateChange), on("misses", OutputDiffers)]);
        baseline.apply(&mut now);
        let standing: Vec<_> = now.races.iter().map(|race| race.standing).collect();
        assert_eq!(standing, [Some(Standing::Known), Some(Standing::Worse)]);
        let update = baseline.update(&now, false);
        assert_eq!((update.added, update.changed, update.carried), (0, 1, 1));
        baseline.write(&path).unwrap();
        let mut baseline = Baseline::read(&path).unwrap();
        assert_eq!(baseline.len(), 3, "the one that was not met stays");
        let mut now = report(vec![on("others", StateChange), on("hits", StateChange)]);
        baseline.apply(&mut now);
        let standing: Vec<_> = now.races.iter().map(|race| race.standing).collect();
        assert_eq!(standing, [Some(Standing::New), Some(Standing::Known)]);
        assert_eq!(baseline.update(&now, true).removed, 2);
    }

    #[test]
    fn a_missing_or_newer_file_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("base.json");
        let error = Baseline::read(&path).unwrap_err().to_string();
        assert!(error.contains("deadheat baseline update"), "{error}");
        std::fs::write(&path, r#"{"baseline": 9, "races": []}"#).unwrap();
        let error = Baseline::read(&path).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
        std::fs::write(&path, "{").unwrap();
        assert!(Baseline::read(&path).is_err());
    }
}
