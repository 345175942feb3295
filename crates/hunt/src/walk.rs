//! A random walk over steps: at each of them a coin says whether the thread
//! gives way, and to whom is drawn as well.
//!
//! After random walks and partial order sampling, which find what takes many
//! switches between few accesses sooner than PCT does. Steps are those of
//! `plan`; how likely each place gives way is part of the plan.
//! Guarantee: the same seed and chances are the same walk, as long as the
//! program does the same.

use crate::plan::Place;
use crate::switches::{Row, TURN};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use vm::schedule::{Choice, Here, Policy, Random64, SliceEnd};

/// How likely a thread gives way at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chance {
    pub place: Place,
    /// One time in so many.
    pub one_in: u64,
}

pub struct Walk {
    random: Random64,
    chances: HashMap<Place, u64>,
    sequencers: bool,
    row: Row,
    gives_way: bool,
}

impl Walk {
    pub fn new(seed: u64, chances: &[Chance]) -> Self {
        Walk {
            random: Random64::new(seed),
            chances: chances
                .iter()
                .map(|chance| (chance.place, chance.one_in.max(1)))
                .collect(),
            sequencers: chances.iter().any(|chance| chance.place.is_sequencer()),
            row: Row::default(),
            gives_way: false,
        }
    }
}

impl Policy for Walk {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let stays = last
            .filter(|(thread, end)| {
                !std::mem::take(&mut self.gives_way)
                    && *end != SliceEnd::Yielded
                    && self.row.of(*thread) < TURN
                    && runnable.contains(thread)
            })
            .map(|(thread, _)| thread);
        let thread = stays.unwrap_or_else(|| {
            let others: Vec<u32> = runnable
                .iter()
                .copied()
                .filter(|thread| last.is_none_or(|(last, _)| last != *thread))
                .collect();
            let among = if others.is_empty() { runnable } else { &others };
            among[self.random.below(among.len() as u64) as usize]
        });
        if self.row.thread != thread || self.row.count >= TURN {
            self.row = Row { thread, count: 0 };
        }
        Choice {
            thread,
            instructions: TURN,
        }
    }

    fn at_sequencers(&self) -> bool {
        self.sequencers
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        self.row.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let Some(one_in) = self.chances.get(&Place::of(here)) else {
            return false;
        };
        self.gives_way = self.random.below(*one_in) == 0;
        self.gives_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(walk: &mut Walk, runnable: &[u32], last: u32, end: SliceEnd) -> u32 {
        walk.choose(runnable, Some((last, end))).thread
    }

    #[test]
    fn a_thread_goes_on_unless_it_gives_way() {
        let mut walk = Walk::new(1, &[]);
        for _ in 0..20 {
            assert_eq!(choose(&mut walk, &[1, 2, 3], 2, SliceEnd::Expired), 2);
            assert_ne!(choose(&mut walk, &[1, 2, 3], 2, SliceEnd::Yielded), 2);
            assert_ne!(choose(&mut walk, &[1, 3], 2, SliceEnd::Blocked), 2);
            walk.gives_way = true;
            assert_ne!(choose(&mut walk, &[1, 2, 3], 2, SliceEnd::Expired), 2);
        }
        assert_eq!(choose(&mut walk, &[2], 2, SliceEnd::Yielded), 2);
    }

    #[test]
    fn nobody_runs_for_ever() {
        let mut walk = Walk::new(1, &[]);
        assert_eq!(choose(&mut walk, &[1, 2], 1, SliceEnd::Expired), 1);
        walk.ran(1, TURN);
        assert_eq!(choose(&mut walk, &[1, 2], 1, SliceEnd::Expired), 2);
    }

    #[test]
    fn the_same_seed_is_the_same_walk() {
        let chances = [Chance {
            place: Place::Access(0x10),
            one_in: 2,
        }];
        let here = Here {
            moment: race::Moment::new(1, 5),
            pc: 0x10,
            stack: 0,
            sequencer: false,
        };
        let coins = |seed| {
            let mut walk = Walk::new(seed, &chances);
            (0..64).map(|_| walk.ends_here(&here)).collect::<Vec<_>>()
        };
        assert_eq!(coins(7), coins(7));
        assert!(coins(7).contains(&true) && coins(7).contains(&false));
    }
}
