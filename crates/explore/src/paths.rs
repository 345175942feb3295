//! Where primaries come from: executions that experience the race.
//!
//! Paper 003, section 4.3, finds them by symbolic execution; a source for that
//! implements the same trait. `Recorded` takes the occurrences of the race in
//! one recording: the first, the last and some between, because a race may do
//! harm in its last occurrence only.

use crate::point::Occurrence;

pub trait PathSource {
    /// The occurrences to look at, most promising first, at most `count`.
    fn primaries(&self, count: usize) -> Vec<Occurrence>;
}

/// The occurrences that were recorded, in order.
pub struct Recorded(pub Vec<Occurrence>);

impl PathSource for Recorded {
    fn primaries(&self, count: usize) -> Vec<Occurrence> {
        let all = &self.0;
        let Some(last) = all.len().checked_sub(1) else {
            return Vec::new();
        };
        let mut chosen: Vec<usize> = Vec::new();
        // First, last, middle, then the middles of the halves.
        let mut parts = 1;
        for index in [0, last] {
            if !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        while chosen.len() < count.min(all.len()) {
            parts *= 2;
            for part in (1..parts).step_by(2) {
                let index = last * part / parts;
                if !chosen.contains(&index) {
                    chosen.push(index);
                }
            }
            if parts > 4 * all.len() {
                break;
            }
        }
        chosen.truncate(count);
        chosen.into_iter().map(|index| all[index]).collect()
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
                address: 0,
                size: 4,
            },
            first_writes: true,
            second_by_moment: false,
            before: None,
            distance: None,
        }
    }

    #[test]
    fn first_and_last_come_first() {
        let all: Vec<Occurrence> = (0..100).map(occurrence).collect();
        let counts = |count| -> Vec<u64> {
            Recorded(all.clone())
                .primaries(count)
                .iter()
                .map(|occurrence| occurrence.instance.first.count)
                .collect()
        };
        assert_eq!(counts(1), [0]);
        assert_eq!(counts(3), [0, 99, 49]);
        assert_eq!(counts(500).len(), 100);
        assert!(Recorded(Vec::new()).primaries(3).is_empty());
    }
}
