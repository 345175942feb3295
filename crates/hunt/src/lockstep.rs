//! Threads side by side: each gives way after every so many steps of its own.
//!
//! Threads that run the same code, as most do, are then at the same place: all
//! hold their first lock, all have looked before anybody acts. Steps are those
//! of `plan`, counted for each thread by itself.
//! Guarantee: the same pace is the same schedule, as long as the program does
//! the same.

use crate::plan::Place;
use crate::switches::{Row, TURN};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use vm::schedule::{Choice, Here, Policy, SliceEnd};

/// Which steps count, and how many a thread makes in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    pub every: u64,
    pub accesses: bool,
    pub sequencers: bool,
    /// The first thread goes on as long as it can: the others begin together.
    pub together: bool,
}

impl Pace {
    const STEPS: [u64; 4] = [1, 2, 3, 5];
    /// Both accesses and sequencers, sequencers, accesses.
    const KINDS: [(bool, bool); 3] = [(true, true), (false, true), (true, false)];
    pub const ALL: u64 = 2 * (Self::STEPS.len() * Self::KINDS.len()) as u64;

    /// The `number`th, short steps first.
    pub fn of_number(number: u64) -> Pace {
        let number = number as usize;
        let kinds = Self::KINDS.len();
        let (accesses, sequencers) = Self::KINDS[number % kinds];
        Pace {
            every: Self::STEPS[number / kinds % Self::STEPS.len()],
            accesses,
            sequencers,
            together: number / kinds / Self::STEPS.len() == 0,
        }
    }
}

pub struct Lockstep {
    pace: Pace,
    counts: HashMap<u32, u64>,
    first: Option<u32>,
    row: Row,
    gives_way: bool,
}

impl Lockstep {
    pub fn new(pace: Pace) -> Self {
        Lockstep {
            pace,
            counts: HashMap::new(),
            first: None,
            row: Row::default(),
            gives_way: false,
        }
    }
}

impl Policy for Lockstep {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let first = *self.first.get_or_insert(runnable[0]);
        let gives_way = std::mem::take(&mut self.gives_way);
        let tired = self.row.count >= TURN;
        let last = last.map(|(thread, end)| (thread, gives_way || end == SliceEnd::Yielded));
        let thread = match last {
            Some((thread, false)) if !tired && runnable.contains(&thread) => thread,
            _ if self.pace.together && !tired && runnable.contains(&first) => {
                match last {
                    // It gave way by itself.
                    Some((thread, true)) if thread == first => next(runnable, thread),
                    _ => first,
                }
            }
            Some((thread, _)) => next(runnable, thread),
            None => first,
        };
        if self.row.thread != thread || tired {
            self.row = Row { thread, count: 0 };
        }
        Choice {
            thread,
            instructions: TURN,
        }
    }

    fn at_sequencers(&self) -> bool {
        self.pace.sequencers
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        self.row.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let counts = match Place::of(here) {
            Place::Access(_) => self.pace.accesses,
            Place::Locked | Place::Call => self.pace.sequencers,
        };
        let thread = here.moment.thread;
        if !counts || (self.pace.together && self.first == Some(thread)) {
            return false;
        }
        let count = self.counts.entry(thread).or_default();
        *count += 1;
        self.gives_way = count.is_multiple_of(self.pace.every);
        self.gives_way
    }
}

/// The thread after this one, in the order of their creation.
fn next(runnable: &[u32], thread: u32) -> u32 {
    runnable
        .iter()
        .find(|other| **other > thread)
        .or(runnable.first())
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::Moment;

    fn step(policy: &mut Lockstep, thread: u32) -> bool {
        policy.ends_here(&Here {
            moment: Moment::new(thread, 1),
            pc: 0x10,
            stack: 0,
            sequencer: false,
        })
    }

    #[test]
    fn every_pace_is_another() {
        let mut seen = Vec::new();
        for number in 0..Pace::ALL {
            let pace = Pace::of_number(number);
            assert!(!seen.contains(&pace), "{pace:?}");
            seen.push(pace);
        }
    }

    #[test]
    fn threads_take_turns_once_the_first_waits() {
        let mut policy = Lockstep::new(Pace::of_number(0));
        assert_eq!(policy.choose(&[1], None).thread, 1);
        assert!(!step(&mut policy, 1), "the first thread goes on");
        let mut order = vec![policy.choose(&[2, 3], Some((1, SliceEnd::Blocked))).thread];
        for _ in 0..3 {
            let thread = order[order.len() - 1];
            assert!(step(&mut policy, thread));
            let choice = policy.choose(&[2, 3], Some((thread, SliceEnd::Sequencer)));
            order.push(choice.thread);
        }
        assert_eq!(order, [2, 3, 2, 3]);
    }
}
