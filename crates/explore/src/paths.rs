//! Where primaries come from: executions that experience the race.
//!
//! Paper 003, section 4.3, finds them by symbolic execution; a source for that
//! implements the same trait. `Recorded` takes the occurrences of the race in
//! one recording. What is known of them decides which: first those that were
//! seen to change the state, one on each object (the elements of an array are
//! one race, and only one of them may be the pointer that somebody follows);
//! then the last of these, then the others, so that no such change is left
//! without an end; then the first, the last and some between, because a race may
//! do harm in its last occurrence only.

use crate::point::Occurrence;
use race::Instance;
use std::collections::BTreeSet;

pub trait PathSource {
    /// The occurrences to look at, most promising first: `count`, and more where
    /// something is known to be worth it.
    fn primaries(&self, count: usize) -> Vec<Occurrence>;
}

/// Leads that are followed of each race: as many instances as are played in both
/// orders, unless all are asked for. What goes beyond the number of primaries that
/// was asked for is followed under one schedule: that costs as much as three or
/// four primaries more.
pub const MOST_LEADS: usize = 20;

/// The occurrences that were recorded, in order.
pub struct Recorded {
    pub occurrences: Vec<Occurrence>,
    /// Those of which both orders left different states.
    pub leads: Vec<Instance>,
}

impl Recorded {
    /// Of which nothing else is known.
    pub fn without_leads(occurrences: Vec<Occurrence>) -> Recorded {
        Recorded {
            occurrences,
            leads: Vec::new(),
        }
    }

    /// Indices of leads: the first on each object, then the last on each, then
    /// the others.
    fn leading(&self) -> Vec<usize> {
        let all = &self.occurrences;
        let leads: Vec<usize> = (0..all.len())
            .filter(|index| self.leads.contains(&all[*index].instance))
            .collect();
        let once = |order: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            let mut objects = BTreeSet::new();
            order
                .filter(|index| objects.insert(all[*index].instance.address))
                .collect()
        };
        let mut order = once(&mut leads.iter().copied());
        order.extend(once(&mut leads.iter().rev().copied()));
        order.extend(leads);
        let mut seen = BTreeSet::new();
        order.retain(|index| seen.insert(*index));
        order
    }

    /// The first, the last, the middle, then the middles of the halves.
    fn spread(&self) -> Vec<usize> {
        let Some(last) = self.occurrences.len().checked_sub(1) else {
            return Vec::new();
        };
        let mut chosen = vec![0, last];
        let mut parts = 1;
        while parts <= 2 * self.occurrences.len() {
            parts *= 2;
            chosen.extend((1..parts).step_by(2).map(|part| last * part / parts));
        }
        chosen
    }
}

impl PathSource for Recorded {
    fn primaries(&self, count: usize) -> Vec<Occurrence> {
        let leading = self.leading();
        let most = count.max(leading.len().min(MOST_LEADS));
        let mut chosen: Vec<usize> = Vec::new();
        for index in leading.into_iter().chain(self.spread()) {
            if chosen.len() < most && !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        let more = |number: usize| (number >= count).then_some(1);
        chosen
            .into_iter()
            .enumerate()
            .map(|(number, index)| Occurrence {
                schedules: more(number),
                ..self.occurrences[index]
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Instance, Moment};

    fn occurrence(count: u64) -> Occurrence {
        Occurrence {
            instance: Instance {
                first: Moment::new(1, count),
                second: Moment::new(2, count),
                address: 0x1000 + count % 10 * 4,
                size: 4,
            },
            first_writes: true,
            second_by_moment: false,
            before: None,
            distance: None,
            schedules: None,
        }
    }

    fn counts(chosen: &[Occurrence]) -> Vec<u64> {
        let count = |occurrence: &Occurrence| occurrence.instance.first.count;
        chosen.iter().map(count).collect()
    }

    #[test]
    fn first_and_last_come_first() {
        let all = Recorded::without_leads((0..100).map(occurrence).collect());
        let counts = |count| counts(&all.primaries(count));
        assert_eq!(counts(1), [0]);
        assert_eq!(counts(3), [0, 99, 49]);
        assert_eq!(counts(500).len(), 100);
        let none = Recorded::without_leads(Vec::new());
        assert!(none.primaries(3).is_empty());
    }

    #[test]
    fn what_was_seen_to_change_leads_and_is_followed_to_the_end() {
        let leads = |numbers: &[u64]| Recorded {
            occurrences: (0..100).map(occurrence).collect(),
            leads: numbers
                .iter()
                .map(|number| occurrence(*number).instance)
                .collect(),
        };
        // 17, 27 and 57 are on one object.
        let all = leads(&[17, 27, 57]);
        assert_eq!(counts(&all.primaries(2)), [17, 57, 27]);
        assert_eq!(counts(&all.primaries(4)), [17, 57, 27, 0]);
        let all = leads(&[17, 18, 19, 20]);
        let chosen = all.primaries(2);
        assert_eq!(counts(&chosen), [17, 18, 19, 20]);
        // What goes beyond is followed under one schedule.
        let schedules: Vec<_> = chosen.iter().map(|one| one.schedules).collect();
        assert_eq!(schedules, [None, None, Some(1), Some(1)]);
        let many: Vec<u64> = (0..100).collect();
        assert_eq!(leads(&many).primaries(2).len(), MOST_LEADS);
    }
}
