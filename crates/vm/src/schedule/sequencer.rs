//! Preempts after sequencers: locked instructions and system calls.
//!
//! Paper 000 numbers an execution by its sequencers; races live between them.
//! Switching right after them puts the regions of different threads next to
//! each other in many combinations.

use super::random::choose_other_than_yielded;
use super::{Choice, Policy, Random64, SliceEnd};

pub struct Sequencer {
    random: Random64,
    quantum: u64,
}

impl Sequencer {
    pub fn new(seed: u64, quantum: u64) -> Self {
        Sequencer {
            random: Random64::new(seed),
            quantum: quantum.max(1),
        }
    }
}

impl Policy for Sequencer {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        // Half of the sequencers do not switch: a region may span several.
        let stay = match last {
            Some((thread, SliceEnd::Sequencer)) if self.random.below(2) == 0 => {
                runnable.contains(&thread).then_some(thread)
            }
            _ => None,
        };
        Choice {
            thread: stay
                .unwrap_or_else(|| choose_other_than_yielded(&mut self.random, runnable, last)),
            instructions: self.quantum,
        }
    }

    fn at_sequencers(&self) -> bool {
        true
    }
}
