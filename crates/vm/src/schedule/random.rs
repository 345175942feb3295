//! A random thread for a random number of instructions.
//!
//! Lengths are spread over orders of magnitude (an eighth of the slices are
//! shorter than a sixteenth of the quantum), because bugs need both long
//! undisturbed runs and short ones; the mean is about the quantum.
//!
//! Small programs are over within one quantum, and large ones are most alive
//! where threads have just been made. So slices begin short and double every
//! `GROWTH` choices among several threads until they reach the quantum: ten
//! million instructions or so, which cost a few milliseconds of switching. A
//! new thread makes them short again, the first `RENEWALS` times. How short
//! depends on the seed, so that a row of seeds tries several grains.

use super::{Choice, Policy, Random64, SliceEnd};

/// Choices until slices double.
const GROWTH: u32 = 64;

/// New threads that make slices short again: programs that make threads for
/// ever get their quantum in the end.
const RENEWALS: u32 = 32;

/// Slices at first, by seed.
const OPENINGS: [u64; 4] = [500, 80, 3_000, 20_000];

pub struct Random {
    random: Random64,
    quantum: u64,
    opening: u64,
    /// Choices among several threads.
    choices: u32,
    newest: u32,
    renewals: u32,
}

impl Random {
    pub fn new(seed: u64, quantum: u64) -> Self {
        Random {
            random: Random64::new(seed),
            quantum: quantum.max(1),
            opening: OPENINGS[(seed % OPENINGS.len() as u64) as usize],
            choices: 0,
            newest: 1,
            renewals: 0,
        }
    }

    /// The mean length of a slice by now.
    fn grain(&mut self, runnable: &[u32]) -> u64 {
        let newest = runnable.last().copied().unwrap_or(0);
        if newest > self.newest {
            self.newest = newest;
            if self.renewals < RENEWALS {
                self.renewals += 1;
                self.choices = 0;
            }
        }
        if runnable.len() > 1 {
            self.choices = self.choices.saturating_add(1);
        }
        let doublings = (self.choices / GROWTH).min(32);
        self.quantum.min(self.opening << doublings)
    }
}

impl Policy for Random {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let thread = choose_other_than_yielded(&mut self.random, runnable, last);
        let grain = match runnable {
            [_] => self.quantum,
            _ => self.grain(runnable),
        };
        let span = match self.random.below(8) {
            0 => grain / 16,
            1..=3 => grain,
            _ => grain * 5 / 2,
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
        Some((thread, SliceEnd::Yielded)) => runnable.binary_search(&thread).ok(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_short_while_threads_are_young() {
        let mut policy = Random::new(0, 200_000);
        let mean = |policy: &mut Random, runnable: &[u32]| {
            let total: u64 = (0..50)
                .map(|_| policy.choose(runnable, None).instructions)
                .sum();
            total / 50
        };
        assert!(mean(&mut policy, &[1, 2]) < 2_000);
        for _ in 0..1000 {
            policy.choose(&[1, 2], None);
        }
        assert!(mean(&mut policy, &[1, 2]) > 50_000);
        assert!(mean(&mut policy, &[1, 2, 3]) < 2_000, "a thread was made");
    }
}
