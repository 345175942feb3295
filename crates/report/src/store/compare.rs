//! Two runs against each other: which races are new, gone, changed.

use crate::worse;
use race::{Fingerprint, Race, Report, Verdict};
use std::collections::{HashMap, HashSet};

/// A race that both runs saw, with different verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub race: Race,
    pub before: Verdict,
    pub worse: bool,
}

/// What changed from one run to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    pub new: Vec<Race>,
    pub gone: Vec<Race>,
    pub changed: Vec<Changed>,
    pub same: usize,
}

impl Comparison {
    /// Of two reports that need not be in a store.
    pub fn of(before: &Report, after: &Report) -> Self {
        let verdicts = |report: &Report| -> HashMap<Fingerprint, Verdict> {
            report
                .races
                .iter()
                .map(|race| (race.fingerprint.clone(), race.verdict))
                .collect()
        };
        let then = verdicts(before);
        // A run of an older deadheat knew races by their lines alone.
        let names = |race: &'_ Race| {
            let former = race.former_fingerprint.clone();
            [Some(race.fingerprint.clone()), former]
        };
        let mut comparison = Comparison::default();
        for race in &after.races {
            match names(race).iter().flatten().find_map(|name| then.get(name)) {
                None => comparison.new.push(race.clone()),
                Some(verdict) if *verdict != race.verdict => comparison.changed.push(Changed {
                    race: race.clone(),
                    before: *verdict,
                    worse: worse(race.verdict, *verdict),
                }),
                Some(_) => comparison.same += 1,
            }
        }
        let now: HashSet<Fingerprint> = after.races.iter().flat_map(names).flatten().collect();
        let gone = before
            .races
            .iter()
            .filter(|race| !now.contains(&race.fingerprint));
        comparison.gone = gone.cloned().collect();
        comparison
    }
}
