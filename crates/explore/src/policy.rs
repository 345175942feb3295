//! Schedules after the race: decisions at events, not at instruction counts.
//!
//! Paper 003, section 4.4, decides at random at every preemption point. Both
//! orders of a pair must meet the same decisions although one of them executes
//! some instructions more; so a decision belongs to an event of a thread (its
//! n-th synchronisation, system call or racy access) and is drawn from that
//! thread's own sequence. What one thread does differently does not shift the
//! decisions of the others.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use vm::schedule::{Choice, Policy, Random64, SliceEnd};

/// A thread that meets no event for this long (a loop without
/// synchronisation) gives way all the same, or a spin loop would never end.
const PATIENCE: u64 = 50_000;

/// Seeds of schedules before the race lie this far from those after it.
const BEFORE: u64 = 1000;

/// How the threads are scheduled from the race point on, or up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// As recorded, as far as that applies.
    Recorded,
    /// Priorities that change at random events.
    Random(u64),
    /// Random priorities that rarely change (PCT).
    Pct(u64),
    /// Every event lets the others go first: threads meet between their locks.
    Alternating,
}

impl Schedule {
    /// The schedules to try: the recorded one, the one that switches most, then
    /// random ones and PCT in turn.
    pub fn list(count: u32, seed: u64) -> Vec<Schedule> {
        (0..u64::from(count))
            .map(|number| match number {
                0 => Schedule::Recorded,
                1 => Schedule::Alternating,
                odd if odd % 2 == 1 => Schedule::Random(seed.wrapping_add(odd)),
                even => Schedule::Pct(seed.wrapping_add(even)),
            })
            .collect()
    }

    /// The schedules to try from the program's start on, up to the race:
    /// random ones and PCT in turn, others than those of `list`.
    pub fn before(count: u32, seed: u64) -> Vec<Schedule> {
        (0..u64::from(count))
            .map(|number| {
                let seed = seed.wrapping_add(BEFORE + number);
                match number % 2 {
                    0 => Schedule::Random(seed),
                    _ => Schedule::Pct(seed),
                }
            })
            .collect()
    }

    /// The policy; none for the recorded schedule, which the vm has already.
    pub fn policy(self) -> Option<Box<dyn Policy>> {
        match self {
            Schedule::Recorded => None,
            // Two of five events let another thread go first.
            Schedule::Random(seed) => Some(Box::new(AtEvents::new(seed, 5, 2))),
            // A change every thirty events or so: few preemptions, well spread.
            Schedule::Pct(seed) => Some(Box::new(AtEvents::new(seed, 30, 1))),
            Schedule::Alternating => Some(Box::new(AtEvents {
                gives_way: true,
                ..AtEvents::new(0, 1, 1)
            })),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Recorded => f.write_str("the recorded schedule"),
            Schedule::Random(seed) => write!(f, "random schedule {seed}"),
            Schedule::Pct(seed) => write!(f, "PCT schedule {seed}"),
            Schedule::Alternating => f.write_str("the alternating schedule"),
        }
    }
}

struct Lane {
    random: Random64,
    priority: u64,
}

struct AtEvents {
    seed: u64,
    /// A priority changes at `changes` of `of` events.
    of: u64,
    changes: u64,
    /// A change is always for the worse: the thread gives way.
    gives_way: bool,
    lanes: BTreeMap<u32, Lane>,
    /// Threads that gave way count down from here.
    floor: u64,
}

/// Random priorities lie above this, those of threads that gave way below.
const GAVE_WAY: u64 = 1 << 62;

impl AtEvents {
    fn new(seed: u64, of: u64, changes: u64) -> Self {
        AtEvents {
            seed,
            of,
            changes,
            gives_way: false,
            lanes: BTreeMap::new(),
            floor: GAVE_WAY,
        }
    }

    fn lane(&mut self, thread: u32) -> &mut Lane {
        let seed = self.seed;
        self.lanes.entry(thread).or_insert_with(|| {
            // One number decides the whole sequence: neighbouring seeds must
            // not give the same one shifted.
            let mut mixer = Random64::new(seed.wrapping_mul(1 << 20) + u64::from(thread));
            let mut random = Random64::new(mixer.next());
            let priority = GAVE_WAY + random.below(GAVE_WAY);
            Lane { random, priority }
        })
    }
}

impl Policy for AtEvents {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        match last {
            Some((thread, SliceEnd::Sequencer)) if !self.gives_way => {
                let (of, changes) = (self.of, self.changes);
                let lane = self.lane(thread);
                if lane.random.below(of) < changes {
                    lane.priority = GAVE_WAY + lane.random.below(GAVE_WAY);
                }
            }
            Some((thread, SliceEnd::Sequencer | SliceEnd::Yielded | SliceEnd::Expired)) => {
                self.floor -= 1;
                let floor = self.floor;
                self.lane(thread).priority = floor;
            }
            _ => {}
        }
        let thread = runnable
            .iter()
            .copied()
            .max_by_key(|thread| self.lane(*thread).priority)
            .unwrap_or(0);
        Choice {
            thread,
            instructions: PATIENCE,
        }
    }

    fn at_sequencers(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which thread follows which, when each thread meets `events` in turn.
    fn run(schedule: Schedule, events: &[(u32, SliceEnd)]) -> Vec<u32> {
        let mut policy = schedule.policy().expect("a policy");
        let mut last = None;
        let mut order = Vec::new();
        for _ in events {
            let thread = policy.choose(&[1, 2, 3], last).thread;
            order.push(thread);
            last = Some((thread, SliceEnd::Sequencer));
        }
        order
    }

    #[test]
    fn the_same_seed_makes_the_same_choices_and_another_makes_others() {
        let events = [(1, SliceEnd::Sequencer); 200];
        for make in [Schedule::Random, Schedule::Pct] {
            assert_eq!(run(make(1), &events), run(make(1), &events));
            assert_ne!(run(make(1), &events), run(make(2), &events));
        }
    }

    #[test]
    fn what_one_thread_does_does_not_shift_the_decisions_of_another() {
        let priority_after = |disturbance: usize| {
            let mut policy = AtEvents::new(9, 5, 2);
            for _ in 0..disturbance {
                policy.choose(&[1, 2], Some((2, SliceEnd::Sequencer)));
            }
            for _ in 0..50 {
                policy.choose(&[1, 2], Some((1, SliceEnd::Sequencer)));
            }
            policy.lane(1).priority
        };
        assert_eq!(priority_after(3), priority_after(4));
    }

    #[test]
    fn a_thread_that_gives_way_is_not_chosen_again_at_once() {
        for schedule in [Schedule::Random(3), Schedule::Pct(3)] {
            let mut policy = schedule.policy().expect("a policy");
            let first = policy.choose(&[1, 2], None).thread;
            for end in [SliceEnd::Yielded, SliceEnd::Expired] {
                let next = policy.choose(&[1, 2], Some((first, end))).thread;
                assert_ne!(next, first);
                assert_eq!(policy.choose(&[1, 2], Some((next, end))).thread, first);
            }
        }
    }

    #[test]
    fn the_recorded_schedule_comes_first() {
        let list = Schedule::list(4, 10);
        assert_eq!(
            list,
            [
                Schedule::Recorded,
                Schedule::Alternating,
                Schedule::Pct(12),
                Schedule::Random(13)
            ]
        );
    }
}
