//! Which race's order decides whether the run fails.
//!
//! After the alternate orders of papers 000 and 003, with the failing run as
//! the primary: the order of two racing accesses is flipped by holding the
//! thread of the first back until the other has made the second, everything
//! else as before. If the failure goes, and comes back when the recorded order
//! is enforced in the same way, that race decides. Where no data race does, the
//! accesses are ordered by locks that are given up between them: then the pair
//! nearest to a switch is named that would race without the locks, and what
//! proves it is that the failure goes with that switch (`minimise`).

use crate::switches::{Precedence, Switch};
use race::{Instance, Race, Report};
use serde::{Deserialize, Serialize};

/// Races that are flipped at most, and occurrences of each.
const RACES: usize = 12;
const OCCURRENCES: usize = 2;

/// What became of a flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flip {
    /// The failure goes, and comes back in the old order.
    Decides,
    /// The failure goes, but did not come back when the old order was enforced.
    Goes,
    /// It fails all the same.
    Stays,
    /// The accesses cannot be made in the other order.
    Impossible,
}

/// How a race was found to decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Index in the report's races.
    pub race: usize,
    pub instance: Instance,
    pub flip: Flip,
    /// How the run ends in the other order.
    pub otherwise: String,
}

/// An occurrence worth a flip, nearest to a switch first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub race: usize,
    pub instance: Instance,
    distance: u64,
}

impl Candidate {
    /// A switch has to do with it.
    pub fn is_near(&self) -> bool {
        self.distance < u64::MAX
    }

    pub fn flipped(&self) -> Precedence {
        Precedence {
            before: self.instance.second,
            after: self.instance.first,
        }
    }

    pub fn as_recorded(&self) -> Precedence {
        Precedence {
            before: self.instance.first,
            after: self.instance.second,
        }
    }
}

/// How far an occurrence is from the nearest switch, in instructions of the
/// thread that is switched away from: it made the first access just before, or
/// is about to make the second.
fn distance(instance: &Instance, switches: &[Switch]) -> u64 {
    let near = |switch: &Switch| {
        let (first, second) = (instance.first, instance.second);
        let before = (first.thread == switch.at.thread && first.count < switch.at.count)
            .then(|| switch.at.count - first.count);
        let after = (second.thread == switch.at.thread && second.count >= switch.at.count)
            .then(|| second.count - switch.at.count);
        before.into_iter().chain(after).min()
    };
    switches.iter().filter_map(near).min().unwrap_or(u64::MAX)
}

/// What to flip, in order: what the program does itself first.
pub fn candidates(report: &Report, switches: &[Switch]) -> Vec<Candidate> {
    let mut races: Vec<Vec<Candidate>> = report
        .races
        .iter()
        .enumerate()
        .map(|(race, found)| {
            let mut near: Vec<Candidate> = occurrences(found)
                .map(|instance| Candidate {
                    race,
                    instance,
                    distance: distance(&instance, switches),
                })
                .collect();
            near.sort_by_key(|candidate| candidate.distance);
            near.truncate(OCCURRENCES);
            near
        })
        .filter(|near| !near.is_empty())
        .collect();
    races.sort_by_key(|near| {
        near.first().map(|candidate| {
            (
                is_foreign(&report.races[candidate.race]),
                candidate.distance,
            )
        })
    });
    races.truncate(RACES);
    races.into_iter().flatten().collect()
}

/// One side never comes from the program's own code: what a run-time does when
/// a thread starts, ends or panics.
pub fn is_foreign(race: &Race) -> bool {
    race.accesses.iter().any(|access| {
        let stack = &access.stack;
        !stack.is_empty() && !stack.iter().any(explore::is_own)
    })
}

fn occurrences(race: &Race) -> impl Iterator<Item = Instance> + '_ {
    let only = match (race.accesses[0].moment, race.accesses[1].moment) {
        (Some(one), Some(other)) if race.occurrences.is_empty() => Some(Instance {
            first: one,
            second: other,
            address: race.accesses[0].address.unwrap_or(0),
            size: race.accesses[0].size,
        }),
        _ => None,
    };
    race.occurrences.iter().copied().chain(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Access, Moment};

    fn race(first: (u32, u64), second: (u32, u64)) -> Race {
        let mut race = Race::new(1, 1, [Access::unseen(), Access::unseen()]);
        race.occurrences.push(Instance {
            first: Moment::new(first.0, first.1),
            second: Moment::new(second.0, second.1),
            address: 8,
            size: 8,
        });
        race
    }

    #[test]
    fn the_race_at_the_switch_comes_first() {
        let mut report = Report::new("vm", Vec::new());
        report.races = vec![
            race((1, 10), (2, 900)),
            race((3, 50), (2, 105)),
            race((2, 97), (3, 51)),
        ];
        let switch = Switch {
            at: Moment::new(2, 100),
            to: 3,
            held: false,
        };
        let order: Vec<usize> = candidates(&report, &[switch])
            .iter()
            .map(|candidate| candidate.race)
            .collect();
        assert_eq!(order, [2, 1, 0]);
    }
}
