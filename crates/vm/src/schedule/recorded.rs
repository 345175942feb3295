//! The rest of a recorded schedule, followed as far as it applies.
//!
//! In a copy of the world some thread is held back or goes another way, so the
//! recorded slices can only be a guide: a slice of a thread that cannot run is
//! passed over, and when the recording is used up the threads take turns.

use super::{Choice, Policy, SliceEnd, next_in_turn};
use std::collections::VecDeque;

pub struct Recorded {
    slices: VecDeque<Choice>,
    quantum: u64,
}

impl Recorded {
    pub fn new(slices: VecDeque<Choice>, quantum: u64) -> Self {
        Recorded { slices, quantum }
    }
}

impl Policy for Recorded {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        while let Some(slice) = self.slices.pop_front() {
            if runnable.contains(&slice.thread) && slice.instructions > 0 {
                return slice;
            }
        }
        Choice {
            thread: next_in_turn(runnable, last.map(|(thread, _)| thread)),
            instructions: self.quantum,
        }
    }
}
