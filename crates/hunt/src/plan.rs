//! Which schedule each run of a hunt gets.
//!
//! Probabilistic concurrency testing (PCT) finds a bug of depth d with a
//! probability of at least 1/(n k^(d-1)) for n threads and k steps. With
//! instructions as steps k is in the hundreds of millions and the guarantee
//! worth nothing, so a step here is what can matter: an access that took part
//! in a race of an earlier run, or a sequencer (locked instruction or system
//! call). Further, the static place is drawn before the dynamic occurrence: a
//! check that is made once has the chance of a counter that is raised a million
//! times. Threads that a change point pauses may be *held*: others go on and
//! time passes even if they sleep, so that a `sleep` orders nothing.
//!
//! PCT needs a change point for every switch but the last, and the chance that
//! all of them fall right is a product. A failure that needs four switches
//! between six accesses is sooner met by a walk (`walk`): at every step a coin
//! says whether somebody else goes on, a rarer coin where steps are many, so
//! that every place has its share.
//!
//! Threads that run the same code fail most easily when they do so side by
//! side: in lockstep (`lockstep`) each gives way after every so many steps of
//! its own, all of them the same number. There are few such schedules, and
//! they come early.
//!
//! Before all of them, the races of the first run are each played the other way
//! round: what is known to race is what a failure is made of.
//!
//! Between these come runs under the vm's own random, PCT and sequencer
//! policies, whose slices fall anywhere: races that nobody has seen yet are
//! found by them.

use crate::lockstep::Pace;
use crate::switches::{Precedence, RESTS, Row, TURN};
use crate::walk::Chance;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use vm::schedule::{Choice, Here, Policy, PolicyName, Random64, SliceEnd};

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// Before the instruction at this address.
    Access(u64),
    /// Behind a locked instruction.
    Locked,
    /// Behind a system call.
    Call,
}

impl Place {
    pub fn is_sequencer(&self) -> bool {
        matches!(self, Place::Locked | Place::Call)
    }

    /// The step at which a policy is asked.
    pub fn of(here: &Here) -> Place {
        const SYSCALL: u16 = 0x050f;
        if !here.sequencer {
            return Place::Access(here.pc);
        }
        match vm::memory::get::<u16>(here.pc.wrapping_sub(2)) {
            Ok(SYSCALL) => Place::Call,
            _ => Place::Locked,
        }
    }
}

/// How often a kind of step was met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub total: u64,
    /// Those before there was a second thread, which come first.
    pub alone: u64,
}

impl Count {
    /// Those that can matter.
    pub fn rest(&self) -> u64 {
        self.total.saturating_sub(self.alone)
    }

    pub fn raise_to(&mut self, other: Count) {
        self.total = self.total.max(other.total);
        self.alone = self.alone.max(other.alone);
    }
}

/// One change of priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub place: Place,
    /// The how-manieth time, of all threads together, from 0.
    pub occurrence: u64,
    /// Whoever is there is held until nobody else can go on, sleepers included.
    pub held: bool,
}

impl Change {
    fn is_at_sequencer(&self) -> bool {
        self.place.is_sequencer()
    }
}

/// What one run does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// Every thread as long as it can; counts the steps.
    Calm,
    /// A policy of the vm.
    Policy {
        policy: String,
        seed: u64,
        quantum: u64,
    },
    /// PCT over steps.
    Steps { seed: u64, changes: Vec<Change> },
    /// A coin at every step.
    Walk { seed: u64, chances: Vec<Chance> },
    /// All threads side by side.
    Lockstep(Pace),
    /// As the calm run, with a race of it the other way round.
    Flipped(Precedence),
}

/// What earlier runs have shown.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// How often each racy access was reached, at most.
    pub accesses: BTreeMap<u64, u64>,
    pub locked: Count,
    pub calls: Count,
}

impl Known {
    /// Racy accesses that some run came to, and how often.
    fn reached(&self) -> impl Iterator<Item = (u64, u64)> {
        self.accesses
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(pc, count)| (*pc, *count))
    }
}

impl Plan {
    /// The `number`th run.
    pub fn of_number(number: u64, seed: u64, known: &Known) -> Plan {
        let mut random = Random64::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        let own = random.next();
        let policy = |name: PolicyName, quantum| Plan::Policy {
            policy: name.to_string(),
            seed: own,
            quantum,
        };
        // Every sixth run does not rely on what is known.
        match number {
            0 => return Plan::Calm,
            _ if number % 24 == 5 => return policy(PolicyName::Pct, 1_000),
            _ if number % 24 == 11 => return policy(PolicyName::Sequencer, 1_000),
            _ if number % 6 == 5 => return policy(PolicyName::Random, vm::DEFAULT_QUANTUM),
            _ => {}
        }
        let share = match number % 6 {
            0 | 3 => 100,
            1 if number % 12 == 1 => 0,
            1 => 60,
            4 if number / 6 < Pace::ALL => return Plan::Lockstep(Pace::of_number(number / 6)),
            _ => {
                if let Some(chances) = chances(&mut random, known) {
                    return Plan::Walk { seed: own, chances };
                }
                0
            }
        };
        let depth = 1 + random.below(3);
        let changes: Vec<Change> = (0..depth)
            .filter_map(|_| change(&mut random, known, share))
            .collect();
        if changes.is_empty() {
            return policy(PolicyName::Random, vm::DEFAULT_QUANTUM);
        }
        Plan::Steps { seed: own, changes }
    }

    /// Racy accesses that it has to be asked at; none: at all of them.
    pub fn accesses(&self) -> Option<BTreeSet<u64>> {
        match self {
            Plan::Steps { changes, .. } => Some(
                changes
                    .iter()
                    .filter_map(|change| match change.place {
                        Place::Access(pc) => Some(pc),
                        Place::Locked | Place::Call => None,
                    })
                    .collect(),
            ),
            Plan::Policy { .. } | Plan::Flipped(_) => Some(BTreeSet::new()),
            Plan::Lockstep(pace) if !pace.accesses => Some(BTreeSet::new()),
            Plan::Calm | Plan::Walk { .. } | Plan::Lockstep(_) => None,
        }
    }

    /// In a few words, for those who watch.
    pub fn describe(&self) -> String {
        match self {
            Plan::Calm => "no preemption".into(),
            Plan::Policy { policy, .. } => policy.clone(),
            Plan::Steps { changes, .. } => format!("{} preemption points", changes.len()),
            Plan::Walk { chances, .. } => format!("a walk over {} places", chances.len()),
            Plan::Lockstep(_) => "threads in lockstep".into(),
            Plan::Flipped(_) => "a race of the first run in the other order".into(),
        }
    }
}

/// One change point; `share` percent are at racy accesses.
fn change(random: &mut Random64, known: &Known, share: u64) -> Option<Change> {
    // Where threads meet there are locked instructions; system calls are made
    // for many other reasons.
    const CALLS: u64 = 25;
    let (locked, calls) = (known.locked.rest(), known.calls.rest());
    let racy = random.below(100) < share || locked + calls == 0;
    let at_call = calls > 0 && (locked == 0 || random.below(100) < CALLS);
    let held = random.below(2) == 0;
    let reached = known.reached().count() as u64;
    let (place, begin, total) = if racy && reached > 0 {
        let index = random.below(reached) as usize;
        let (pc, total) = known.reached().nth(index)?;
        (Place::Access(pc), 0, total)
    } else if at_call {
        (Place::Call, known.calls.alone, calls)
    } else if locked > 0 {
        (Place::Locked, known.locked.alone, locked)
    } else {
        return None;
    };
    // Half of the time anywhere, half of the time with every order of
    // magnitude as likely as any other: what is done first is done once.
    let total = total.max(1);
    let occurrence = if random.below(2) == 0 {
        random.below(total)
    } else {
        let bits = 64 - total.leading_zeros();
        let bound = 1u64 << random.below(u64::from(bits) + 1).min(63);
        random.below(bound.min(total))
    };
    Some(Change {
        place,
        occurrence: begin + occurrence,
        held,
    })
}

/// The coins of a walk: every place gives way about as often as any other,
/// whether it is reached once or a million times. None where nothing is known.
fn chances(random: &mut Random64, known: &Known) -> Option<Vec<Chance>> {
    // In eighths of a switch per place.
    const SHARES: [u64; 3] = [1, 4, 16];
    known.reached().next()?;
    let share = SHARES[random.below(SHARES.len() as u64) as usize];
    let one = |place, count: u64| Chance {
        place,
        one_in: (count.saturating_mul(8) / share).max(2),
    };
    let mut chances: Vec<Chance> = known
        .reached()
        .map(|(pc, count)| one(Place::Access(pc), count))
        .collect();
    if random.below(2) == 0 {
        let sequencers = [
            (Place::Locked, known.locked.rest()),
            (Place::Call, known.calls.rest()),
        ];
        chances.extend(
            sequencers
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(|(place, count)| one(place, count)),
        );
    }
    Some(chances)
}

/// PCT over steps.
pub struct Steps {
    random: Random64,
    changes: HashMap<(Place, u64), bool>,
    counts: HashMap<Place, u64>,
    priorities: BTreeMap<u32, u64>,
    /// Demoted threads count down from here.
    floor: u64,
    /// Held threads, and for how many slices more.
    held: BTreeMap<u32, u32>,
    sequencers: bool,
    /// Every sequencer is an occasion for a thread of higher priority.
    eager: bool,
    row: Row,
}

/// Random priorities lie above this; demotions below.
const DEMOTED: u64 = 1 << 62;

impl Steps {
    pub fn new(seed: u64, changes: &[Change]) -> Self {
        let mut random = Random64::new(seed);
        let eager = random.below(4) == 0;
        Steps {
            changes: changes
                .iter()
                .map(|change| ((change.place, change.occurrence), change.held))
                .collect(),
            counts: HashMap::new(),
            priorities: BTreeMap::new(),
            floor: DEMOTED,
            held: BTreeMap::new(),
            sequencers: changes.iter().any(Change::is_at_sequencer),
            eager,
            random,
            row: Row::default(),
        }
    }

    fn demote(&mut self, thread: u32) {
        self.floor -= 1;
        self.priorities.insert(thread, self.floor);
    }
}

impl Policy for Steps {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        if let Some((thread, end)) = last {
            let tired = self.row.of(thread) >= TURN;
            if end == SliceEnd::Yielded || tired {
                self.row = Row::default();
                self.demote(thread);
            }
        }
        self.held.retain(|_, patience| {
            *patience = patience.saturating_sub(1);
            *patience > 0
        });
        for thread in runnable {
            if !self.priorities.contains_key(thread) {
                let priority = DEMOTED + self.random.below(DEMOTED);
                self.priorities.insert(*thread, priority);
            }
        }
        let chosen = runnable
            .iter()
            .copied()
            .filter(|thread| !self.held.contains_key(thread))
            .max_by_key(|thread| self.priorities.get(thread));
        match chosen {
            Some(thread) => Choice {
                thread,
                instructions: TURN,
            },
            // Time passes, or somebody is let go.
            None => Choice {
                thread: 0,
                instructions: 0,
            },
        }
    }

    fn at_sequencers(&self) -> bool {
        self.sequencers || self.eager
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        self.row.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let place = Place::of(here);
        let count = self.counts.entry(place).or_default();
        let change = self.changes.get(&(place, *count)).copied();
        *count += 1;
        let Some(held) = change else {
            return here.sequencer && self.eager;
        };
        let thread = here.moment.thread;
        self.demote(thread);
        if held {
            self.held.insert(thread, RESTS);
        }
        true
    }

    fn holds(&self, thread: u32) -> bool {
        self.held.contains_key(&thread)
    }

    fn holds_somebody(&self) -> bool {
        !self.held.is_empty()
    }

    fn lets_go(&mut self) -> bool {
        self.held.pop_first().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known {
            accesses: [(0x10, 1_000_000), (0x20, 1)].into(),
            locked: Count {
                total: 300,
                alone: 40,
            },
            calls: Count {
                total: 100,
                alone: 50,
            },
        }
    }

    #[test]
    fn the_same_number_is_the_same_plan() {
        for number in 0..50 {
            let plan = Plan::of_number(number, 3, &known());
            assert_eq!(plan, Plan::of_number(number, 3, &known()));
        }
    }

    #[test]
    fn a_rare_access_is_tried_as_often_as_a_frequent_one() {
        let mut seen = [0, 0, 0, 0];
        for number in 1..3_000 {
            if let Plan::Steps { changes, .. } = Plan::of_number(number, 0, &known()) {
                for change in changes {
                    match change.place {
                        Place::Access(0x10) => seen[0] += 1,
                        Place::Access(_) => {
                            assert_eq!(change.occurrence, 0);
                            seen[1] += 1;
                        }
                        Place::Locked => {
                            assert!((40..300).contains(&change.occurrence));
                            seen[2] += 1;
                        }
                        Place::Call => {
                            assert!((50..100).contains(&change.occurrence));
                            seen[3] += 1;
                        }
                    }
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert!(10 * seen[1] > 9 * seen[0], "{seen:?}");
    }

    #[test]
    fn nothing_known_means_schedules_that_need_no_places() {
        for number in 1..50 {
            let plan = Plan::of_number(number, 0, &Known::default());
            assert!(matches!(plan, Plan::Policy { .. } | Plan::Lockstep(_)));
        }
    }

    #[test]
    fn a_change_point_demotes_and_holds() {
        let change = Change {
            place: Place::Access(0x10),
            occurrence: 1,
            held: true,
        };
        let mut policy = Steps::new(1, &[change]);
        let first = policy.choose(&[1, 2], None).thread;
        let here = Here {
            moment: race::Moment::new(first, 5),
            pc: 0x10,
            stack: 0,
            sequencer: false,
        };
        assert!(!policy.ends_here(&here), "the first time is another");
        assert!(policy.ends_here(&here));
        assert!(policy.holds(first));
        let next = policy.choose(&[1, 2], Some((first, SliceEnd::Sequencer)));
        assert_ne!(next.thread, first);
        assert!(policy.lets_go() && !policy.holds(first));
    }
}
