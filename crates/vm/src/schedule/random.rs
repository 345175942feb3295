//! A random thread for a random number of instructions.
//!
//! Lengths are spread over orders of magnitude (an eighth of the slices are
//! shorter than a sixteenth of the quantum), because bugs need both long
//! undisturbed runs and short ones; the mean is about the quantum.

use super::{Choice, Policy, Random64, SliceEnd};

pub struct Random {
    random: Random64,
    quantum: u64,
}

impl Random {
    pub fn new(seed: u64, quantum: u64) -> Self {
        Random {
            random: Random64::new(seed),
            quantum: quantum.max(1),
        }
    }
}

impl Policy for Random {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let thread = choose_other_than_yielded(&mut self.random, runnable, last);
        let span = match self.random.below(8) {
            0 => self.quantum / 16,
            1..=3 => self.quantum,
            _ => self.quantum * 5 / 2,
        };
        Choice {
            thread,
            instructions: 1 + self.random.below(span.max(1)),
        }
    }
}

/// Uniform among the runnable threads, without the one that just gave way if
/// there is another.
pub fn choose_other_than_yielded(
    random: &mut Random64,
    runnable: &[u32],
    last: Option<(u32, SliceEnd)>,
) -> u32 {
    let yielded = match last {
        Some((thread, SliceEnd::Yielded)) => runnable.iter().position(|id| *id == thread),
        _ => None,
    };
    match yielded {
        Some(position) if runnable.len() > 1 => {
            let pick = random.below(runnable.len() as u64 - 1) as usize;
            runnable[pick + usize::from(pick >= position)]
        }
        _ => runnable[random.below(runnable.len() as u64) as usize],
    }
}
