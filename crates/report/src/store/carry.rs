//! What is kept about races under fingerprints of the first form.
//!
//! That form knew the two lines and not the object: what is one race to it may
//! be several now. A mark is a person's word about one thing, so it is carried
//! over only where it is clear which race is meant: no other race of the report
//! is on the same lines, and the variable is the one that was reported when the
//! mark was given. Otherwise it is refused with a sentence that says so. A mark
//! that was carried over is written anew with the run, under the race's own
//! fingerprint. Verdicts over time are shown from both.

use super::{Sighting, Store, unpack};
use crate::Error;
use crate::words::plain;
use race::{Fingerprint, Mark, Race, Report};
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::HashMap;

/// What becomes of old marks on the races of a report.
pub(super) struct Carried {
    /// By race, in the order of the report.
    pub(super) marks: Vec<Option<Mark>>,
    pub(super) refused: Vec<String>,
}

/// The variable that a description begins with: `table` of `table[3].next`.
fn variable(race: &Race) -> Option<&str> {
    let description = &race.place.as_ref()?.description;
    description.split(['.', '[', '+', ' ', ',']).next()
}

impl Store {
    pub(super) fn carried(
        &self,
        report: &Report,
        said: &HashMap<Fingerprint, Mark>,
    ) -> Result<Carried, Error> {
        let mut carried = Carried {
            marks: Vec::new(),
            refused: Vec::new(),
        };
        for race in &report.races {
            let mark = match &race.former_fingerprint {
                Some(former) if !said.contains_key(&race.fingerprint) => {
                    said.get(former).filter(|mark| mark.state != "none")
                }
                _ => None,
            };
            let (Some(mark), Some(former)) = (mark, &race.former_fingerprint) else {
                carried.marks.push(None);
                continue;
            };
            let like = report
                .races
                .iter()
                .filter(|other| other.former_fingerprint.as_ref() == Some(former));
            let numbers: Vec<String> = like.map(|other| format!("#{}", other.id)).collect();
            let what = format!(
                "the mark `{}` by {} was given when races were told apart by their lines alone",
                plain(&mark.state),
                plain(&mark.author)
            );
            let refused = if numbers.len() > 1 {
                Some(format!(
                    "{what}; races {} are on those lines: mark those that are meant again",
                    numbers.join(" and ")
                ))
            } else if self.was_on_another_variable(former, race)? {
                Some(format!(
                    "{what}, and about another variable than race #{} is on: mark that again if it \
                     is meant",
                    race.id
                ))
            } else {
                None
            };
            carried.marks.push(match &refused {
                None => Some(mark.clone()),
                Some(_) => None,
            });
            if let Some(sentence) = refused
                && !carried.refused.contains(&sentence)
            {
                carried.refused.push(sentence);
            }
        }
        Ok(carried)
    }

    /// What was last seen under the old name is something else, as far as the
    /// store still has it.
    fn was_on_another_variable(&self, former: &Fingerprint, race: &Race) -> Result<bool, Error> {
        let body = self.read(|database| {
            database
                .query_row(
                    "SELECT body FROM sightings WHERE fingerprint = ?1 AND body IS NOT NULL
                     ORDER BY run DESC LIMIT 1",
                    [&former.0],
                    |row| row.get::<_, Vec<u8>>(0),
                )
                .optional()
        })?;
        let Some(body) = body else {
            return Ok(false);
        };
        let then = self.read(|_| unpack(&body))?;
        // Memory without a name is no variable.
        let named = |race: &Race| {
            race.object
                .as_ref()
                .is_none_or(|object| object.allocated.is_none())
        };
        Ok(named(race) && variable(&then) != variable(race))
    }

    /// The verdicts of a race over time, oldest run first, those under its old
    /// name included.
    pub fn past(&self, race: &Race) -> Result<Vec<Sighting>, Error> {
        let mut past = self.history(&race.fingerprint)?;
        if let Some(former) = &race.former_fingerprint {
            past.extend(self.history(former)?);
            past.sort_by_key(|sighting| sighting.run);
        }
        Ok(past)
    }

    /// Everything that was ever said about a race, oldest first, under its old
    /// name included.
    pub fn all_said(&self, race: &Race) -> Result<Vec<Mark>, Error> {
        let mut said = Vec::new();
        if let Some(former) = &race.former_fingerprint {
            said.extend(self.mark_history(former)?);
        }
        for mark in self.mark_history(&race.fingerprint)? {
            // It was written anew.
            if !said.contains(&mark) {
                said.push(mark);
            }
        }
        Ok(said)
    }
}

/// Keeps marks that were carried over under the races' own names.
pub(super) fn write_anew(transaction: &Transaction, report: &Report) -> rusqlite::Result<()> {
    let mut known = transaction.prepare("SELECT count(*) FROM marks WHERE fingerprint = ?1")?;
    let mut insert = transaction.prepare(
        "INSERT INTO marks (fingerprint, state, author, date, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for race in &report.races {
        let Some(mark) = &race.mark else { continue };
        let count: u64 = known.query_row([&race.fingerprint.0], |row| row.get(0))?;
        if count == 0 {
            insert.execute(params![
                race.fingerprint.0,
                mark.state,
                mark.author,
                mark.date,
                mark.reason
            ])?;
        }
    }
    Ok(())
}
