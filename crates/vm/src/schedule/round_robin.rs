//! Every thread in turn, for the same number of instructions.

use super::{Choice, Policy, SliceEnd, next_in_turn};

pub struct RoundRobin {
    quantum: u64,
}

impl RoundRobin {
    pub fn new(quantum: u64) -> Self {
        RoundRobin {
            quantum: quantum.max(1),
        }
    }
}

impl Policy for RoundRobin {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        Choice {
            thread: next_in_turn(runnable, last.map(|(thread, _)| thread)),
            instructions: self.quantum,
        }
    }
}
