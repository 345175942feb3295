//! Scheduling policies: who runs next, and for how many instructions.
//!
//! A policy is one small trait and one file. It sees only which threads can
//! run and why the last one stopped, and draws on nothing but its own seed: the
//! same policy with the same seed makes the same choices. What it chose is
//! written to the recording, so a replay needs no policy at all.

mod pct;
mod random;
mod recorded;
mod round_robin;
mod script;
mod sequencer;

pub use recorded::Recorded;
pub use script::Script;

use race::Moment;
use std::fmt;
use std::str::FromStr;

/// Why a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceEnd {
    /// Its instructions were used up.
    Expired,
    /// The thread gave way: `pause`, `sched_yield`, a sleep of nothing.
    Yielded,
    /// A sequencer was passed (only for policies that ask for it).
    Sequencer,
    /// A signal came from outside, or a timer's time after a system call.
    Interrupted,
    Blocked,
    Exited,
}

/// Who runs next and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub thread: u32,
    pub instructions: u64,
}

/// A place where a slice may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    pub moment: Moment,
    /// The instruction that comes next.
    pub pc: u64,
    pub stack: u64,
    /// A locked instruction or a system call has just been executed; otherwise
    /// the next instruction is one of `Vm::preempt_at`.
    pub sequencer: bool,
}

pub trait Policy {
    /// Chooses among `runnable` (never empty, ascending). `last` is the thread
    /// that ran before and why it stopped; nothing at the very start.
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice;

    /// Slices must end at every locked instruction and system call.
    fn at_sequencers(&self) -> bool {
        false
    }

    /// Its choices are to be taken to the letter: not made longer where only
    /// one thread can run, nor shorter for a timer.
    fn is_exact(&self) -> bool {
        false
    }

    /// A slice is over: a thread has executed this many instructions.
    fn ran(&mut self, _thread: u32, _instructions: u64) {}

    /// The slice ends here.
    fn ends_here(&mut self, _here: &Here) -> bool {
        true
    }

    /// The thread is not to run for now, even if it could: others go on, and
    /// time passes. A policy that holds threads may choose nobody (a slice of
    /// no instructions); it is then asked again.
    fn holds(&self, _thread: u32) -> bool {
        false
    }

    /// Nobody else can go on: gives up holding a thread. False if it holds
    /// none.
    fn lets_go(&mut self) -> bool {
        false
    }
}

/// A policy by name, as the command line gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    RoundRobin,
    Random,
    Pct,
    Sequencer,
}

impl PolicyName {
    pub const ALL: [PolicyName; 4] = [
        PolicyName::RoundRobin,
        PolicyName::Random,
        PolicyName::Pct,
        PolicyName::Sequencer,
    ];

    pub fn build(self, seed: u64, quantum: u64) -> Box<dyn Policy> {
        match self {
            PolicyName::RoundRobin => Box::new(round_robin::RoundRobin::new(quantum)),
            PolicyName::Random => Box::new(random::Random::new(seed, quantum)),
            PolicyName::Pct => Box::new(pct::Pct::new(seed, quantum)),
            PolicyName::Sequencer => Box::new(sequencer::Sequencer::new(seed, quantum)),
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyName::RoundRobin => "round-robin",
            PolicyName::Random => "random",
            PolicyName::Pct => "pct",
            PolicyName::Sequencer => "sequencer",
        })
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|name| name.to_string() == text)
            .ok_or_else(|| {
                format!(
                    "there is no schedule `{text}`; choose round-robin, random, pct or sequencer"
                )
            })
    }
}

/// SplitMix64: small, seedable, good enough to pick schedules.
#[derive(Hash)]
pub struct Random64(u64);

impl Random64 {
    pub fn new(seed: u64) -> Self {
        Random64(seed)
    }

    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The thread after `last` in cyclic order.
pub(crate) fn next_in_turn(runnable: &[u32], last: Option<u32>) -> u32 {
    last.and_then(|last| runnable.iter().find(|thread| **thread > last))
        .or(runnable.first())
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: PolicyName, seed: u64) -> Vec<Choice> {
        let mut policy = name.build(seed, 1000);
        let mut last = None;
        (0..200)
            .map(|round| {
                let choice = policy.choose(&[1, 2, 5], last);
                assert!([1, 2, 5].contains(&choice.thread) && choice.instructions > 0);
                let end = if round % 7 == 0 {
                    SliceEnd::Yielded
                } else {
                    SliceEnd::Expired
                };
                last = Some((choice.thread, end));
                choice
            })
            .collect()
    }

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        for name in PolicyName::ALL {
            assert_eq!(run(name, 7), run(name, 7), "{name}");
        }
    }

    #[test]
    fn another_seed_makes_others() {
        for name in [PolicyName::Random, PolicyName::Pct, PolicyName::Sequencer] {
            assert_ne!(run(name, 7), run(name, 8), "{name}");
        }
    }

    #[test]
    fn a_thread_that_yields_is_not_chosen_again_at_once() {
        for name in PolicyName::ALL {
            let mut policy = name.build(3, 1000);
            let first = policy.choose(&[1, 2], None).thread;
            for _ in 0..20 {
                let next = policy
                    .choose(&[1, 2], Some((first, SliceEnd::Yielded)))
                    .thread;
                assert_ne!(next, first, "{name}");
                let back = policy
                    .choose(&[1, 2], Some((next, SliceEnd::Yielded)))
                    .thread;
                assert_eq!(back, first, "{name}");
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for name in PolicyName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!("fifo".parse::<PolicyName>().unwrap_err().contains("`fifo`"));
    }
}
