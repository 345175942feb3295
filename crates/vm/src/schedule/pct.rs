//! Probabilistic concurrency testing: random priorities, few random changes.
//!
//! The runnable thread of highest priority runs; at random points its priority
//! drops below all others. Programs run longer than any bound known in
//! advance, so instead of d change points in k steps there is one change per
//! ten quanta on average, for ever. A thread that gives way is demoted, or a
//! spin lock would never be released.

use super::{Choice, Policy, Random64, SliceEnd};
use std::collections::BTreeMap;

pub struct Pct {
    random: Random64,
    quantum: u64,
    priorities: BTreeMap<u32, u64>,
    /// Demoted threads count down from here, below every random priority.
    floor: u64,
}

/// Random priorities lie above this; demotions below.
const DEMOTED: u64 = 1 << 62;

impl Pct {
    pub fn new(seed: u64, quantum: u64) -> Self {
        Pct {
            random: Random64::new(seed),
            quantum: quantum.max(1),
            priorities: BTreeMap::new(),
            floor: DEMOTED,
        }
    }

    fn demote(&mut self, thread: u32) {
        self.floor -= 1;
        self.priorities.insert(thread, self.floor);
    }
}

impl Policy for Pct {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        match last {
            Some((thread, SliceEnd::Yielded)) => self.demote(thread),
            Some((thread, SliceEnd::Expired)) if self.random.below(10) == 0 => self.demote(thread),
            Some((thread, SliceEnd::Exited)) => {
                self.priorities.remove(&thread);
            }
            _ => {}
        }
        for thread in runnable {
            if !self.priorities.contains_key(thread) {
                let priority = DEMOTED + self.random.below(DEMOTED);
                self.priorities.insert(*thread, priority);
            }
        }
        let thread = runnable
            .iter()
            .copied()
            .max_by_key(|thread| self.priorities.get(thread))
            .unwrap_or(0);
        Choice {
            thread,
            instructions: 1 + self.random.below(2 * self.quantum),
        }
    }
}
