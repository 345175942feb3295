//! The rest of a recorded schedule, followed as far as it applies.
//!
//! In a copy of the world some thread is held back or goes another way, so the
//! recorded slices can only be a guide: a slice of a thread that cannot run is
//! passed over, and when the recording is used up the threads take turns.
//! It is read as it is needed: most copies end long before the recording does.

use super::{Choice, Policy, SliceEnd, next_in_turn};
use crate::record::{Step, StepReader};
use std::collections::VecDeque;

pub struct Recorded {
    slices: VecDeque<Choice>,
    rest: Option<StepReader>,
    quantum: u64,
}

impl Recorded {
    pub fn new(slices: VecDeque<Choice>, quantum: u64) -> Self {
        Recorded {
            slices,
            rest: None,
            quantum,
        }
    }

    /// What a recording has from here on follows.
    pub fn then(self, rest: StepReader) -> Self {
        Recorded {
            rest: Some(rest),
            ..self
        }
    }

    /// The next recorded slice. Where the recording cannot be read it ends: it
    /// is only a guide, and whoever replays it says what is wrong with it.
    fn next(&mut self) -> Option<Choice> {
        if let Some(slice) = self.slices.pop_front() {
            return Some(slice);
        }
        while let Ok(Some(step)) = self.rest.as_mut()?.next_step() {
            if let Step::Slice {
                thread,
                instructions,
                ..
            } = step
            {
                return Some(Choice {
                    thread,
                    instructions,
                });
            }
        }
        self.rest = None;
        None
    }
}

impl Policy for Recorded {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        while let Some(slice) = self.next() {
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
