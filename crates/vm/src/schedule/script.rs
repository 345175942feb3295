//! Slices written down in another copy of the same world, followed to the
//! letter.
//!
//! What a copy did (`Vm::slices`) is done again by a copy of the same world
//! that follows its slices: nothing else decides in a copy. Where the script
//! ends the threads take turns.

use super::{Choice, Policy, SliceEnd, next_in_turn};
use std::collections::VecDeque;

pub struct Script {
    slices: VecDeque<Choice>,
    /// The last choice came from the script.
    exact: bool,
}

impl Script {
    pub fn new(slices: impl IntoIterator<Item = Choice>) -> Self {
        Script {
            slices: slices.into_iter().collect(),
            exact: false,
        }
    }
}

impl Policy for Script {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let next = self.slices.pop_front();
        self.exact = next.is_some();
        next.unwrap_or_else(|| Choice {
            thread: next_in_turn(runnable, last.map(|(thread, _)| thread)),
            instructions: crate::DEFAULT_QUANTUM,
        })
    }

    fn is_exact(&self) -> bool {
        self.exact
    }
}
