//! A schedule as the few switches that matter.
//!
//! A recorded schedule is a row of slices; here it is a list of `Switch`es, "at
//! this moment of thread T, thread U goes on", over a fixed rule for all the
//! rest: threads stand in a queue in the order of their creation, the first
//! that can run does so until it waits, ends or gives way, and whoever was
//! switched away from stands behind all others. That rule is PCT's with no
//! priority change left. Taking a switch out of the list leaves a schedule
//! that still can be run, which is what delta debugging needs (`minimise`).
//!
//! `Directed` is the policy that runs such a list. It also enforces orders:
//! "the access at this moment comes after that one", by holding a thread back
//! before its access until the other has made its own. That is how the order
//! of a race is flipped (`decide`).

use race::Moment;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use vm::record::{RecordError, Recording, Step, StepReader};
use vm::schedule::{Choice, Policy, SliceEnd};

/// A thread that neither waits nor ends gives way after this many
/// instructions, a few milliseconds: whoever spins for a flag must not spin for
/// ever.
pub const TURN: u64 = 10_000_000;

/// Who runs, and for how many instructions since somebody else did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    pub thread: u32,
    pub count: u64,
}

impl Row {
    pub fn ran(&mut self, thread: u32, instructions: u64) {
        let count = self.of(thread) + instructions;
        *self = Row { thread, count };
    }

    pub fn of(&self, thread: u32) -> u64 {
        if self.thread == thread { self.count } else { 0 }
    }
}

/// The same under a list of switches: what another policy's turns led to is in
/// the list, so its own must not come before.
const LONG_TURN: u64 = 10 * TURN;

/// A thread is held back for this many slices of others at most: programs with
/// a thread that ticks for ever never run out of others.
const PATIENCE: u32 = 2_000;

/// The same for a thread that waits for all others.
pub const RESTS: u32 = 500;

/// At `at`, thread `to` goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Switch {
    pub at: Moment,
    pub to: u32,
    /// The thread does not go on until nobody else can, sleepers included.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
}

/// The access at `after` waits for the one at `before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Precedence {
    pub before: Moment,
    pub after: Moment,
}

/// All switches of the first process of a recording.
pub fn of_recording(directory: &Path) -> Result<Vec<Switch>, RecordError> {
    let recording = Recording::open(directory)?;
    let mut steps = StepReader::open(&recording.process(0).join("schedule"))?;
    let mut slices = Vec::new();
    loop {
        match steps.next_step() {
            Ok(Some(Step::Slice {
                thread,
                instructions,
                ..
            })) => slices.push((thread, instructions)),
            Ok(Some(_)) => {}
            Ok(None) | Err(RecordError::Ended(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(of_slices(slices))
}

/// The switches between these slices.
pub fn of_slices(slices: impl IntoIterator<Item = (u32, u64)>) -> Vec<Switch> {
    let mut executed: BTreeMap<u32, u64> = BTreeMap::new();
    let mut last: Option<u32> = None;
    let mut switches = Vec::new();
    for (thread, instructions) in slices {
        if let Some(from) = last
            && from != thread
        {
            let count = executed.get(&from).copied().unwrap_or(0);
            switches.push(Switch {
                at: Moment::new(from, count),
                to: thread,
                held: false,
            });
        }
        *executed.entry(thread).or_default() += instructions;
        last = Some(thread);
    }
    switches
}

/// What became of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The switches that happened, in order.
    pub made: Vec<Switch>,
    /// A precedence could not be kept: all others waited.
    pub broken: bool,
    /// Every precedence was met: its later thread came to its access.
    pub met: bool,
}

pub struct Directed {
    /// By thread and count.
    switches: BTreeMap<u32, BTreeMap<u64, Switch>>,
    precedences: Vec<Precedence>,
    executed: BTreeMap<u32, u64>,
    queue: Vec<u32>,
    /// The switch under way, and for how many slices more its thread waits for
    /// the other.
    held: Option<(Switch, u32)>,
    /// Threads that wait for all others, and for how many slices more.
    resting: BTreeMap<u32, u32>,
    exited: BTreeSet<u32>,
    row: Row,
    followed: Rc<RefCell<Followed>>,
}

impl Directed {
    pub fn new(
        switches: &[Switch],
        precedences: &[Precedence],
        followed: Rc<RefCell<Followed>>,
    ) -> Self {
        let mut by_thread: BTreeMap<u32, BTreeMap<u64, Switch>> = BTreeMap::new();
        for switch in switches {
            by_thread
                .entry(switch.at.thread)
                .or_default()
                .insert(switch.at.count, *switch);
        }
        Directed {
            switches: by_thread,
            precedences: precedences.to_vec(),
            executed: BTreeMap::new(),
            queue: Vec::new(),
            held: None,
            resting: BTreeMap::new(),
            exited: BTreeSet::new(),
            row: Row::default(),
            followed,
        }
    }

    fn executed(&self, thread: u32) -> u64 {
        self.executed.get(&thread).copied().unwrap_or(0)
    }

    fn put_last(&mut self, thread: u32) {
        self.queue.retain(|other| *other != thread);
        self.queue.push(thread);
    }

    /// The precedence that keeps a thread where it is.
    fn waits_by(&self, thread: u32) -> Option<&Precedence> {
        self.precedences.iter().find(|precedence| {
            precedence.after.thread == thread
                && self.executed(thread) == precedence.after.count
                && self.executed(precedence.before.thread) <= precedence.before.count
                && !self.exited.contains(&precedence.before.thread)
        })
    }

    /// Instructions until a thread has to be looked at again.
    fn turn(&self, thread: u32) -> u64 {
        let executed = self.executed(thread);
        let switch = self
            .switches
            .get(&thread)
            .and_then(|switches| switches.range(executed + 1..).next())
            .map(|(count, _)| *count);
        let stops = self.precedences.iter().flat_map(|precedence| {
            let before = Moment::new(precedence.before.thread, precedence.before.count + 1);
            [before, precedence.after]
        });
        stops
            .filter(|stop| stop.thread == thread)
            .map(|stop| stop.count)
            .chain(switch)
            .filter(|count| *count > executed)
            .map(|count| count - executed)
            .min()
            .unwrap_or(LONG_TURN)
            .min(LONG_TURN.saturating_sub(self.row.of(thread)).max(1))
    }

    /// What the end of the last slice means.
    fn note(&mut self, thread: u32, end: SliceEnd) {
        if end == SliceEnd::Exited {
            self.exited.insert(thread);
        }
        let count = self.executed(thread);
        let switch = self
            .switches
            .get_mut(&thread)
            .and_then(|switches| switches.remove(&count));
        match switch {
            Some(switch) => {
                self.put_last(thread);
                self.resting.remove(&switch.to);
                self.held = Some((switch, PATIENCE));
            }
            None if end == SliceEnd::Yielded || self.row.of(thread) >= LONG_TURN => {
                self.row = Row::default();
                self.put_last(thread);
            }
            None => {}
        }
    }
}

impl Policy for Directed {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        for thread in runnable {
            if !self.queue.contains(thread) {
                self.queue.push(*thread);
            }
        }
        if let Some((thread, end)) = last {
            self.note(thread, end);
        }
        let go = |thread: u32, policy: &Self| Choice {
            thread,
            instructions: policy.turn(thread),
        };
        self.resting.retain(|_, patience| {
            *patience = patience.saturating_sub(1);
            *patience > 0
        });
        if let Some((switch, patience)) = self.held {
            let to = switch.to;
            self.held = (patience > 0 && !self.exited.contains(&to))
                .then_some((switch, patience.saturating_sub(1)));
            if runnable.contains(&to) && self.waits_by(to).is_none() {
                return go(to, self);
            }
        }
        let free = |thread: &u32| !self.holds(*thread);
        // Whoever is waited for by a precedence goes first.
        let wanted = runnable.iter().find_map(|thread| {
            let before = self.waits_by(*thread)?.before.thread;
            (runnable.contains(&before) && free(&before)).then_some(before)
        });
        let same = last
            .filter(|(_, end)| !matches!(end, SliceEnd::Yielded))
            .map(|(thread, _)| thread)
            .filter(|thread| self.row.thread == *thread)
            .filter(|thread| runnable.contains(thread) && free(thread));
        let first = self
            .queue
            .iter()
            .find(|thread| runnable.contains(thread) && free(thread))
            .copied();
        match wanted.or(same).or(first) {
            Some(thread) => go(thread, self),
            // Time passes, or somebody is let go.
            None => Choice {
                thread: 0,
                instructions: 0,
            },
        }
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        // Who is to go on may find that it has to wait: the switch is made
        // when it does something.
        if let Some((switch, _)) = self.held
            && switch.at.thread != thread
            && instructions > 0
        {
            let mut followed = self.followed.borrow_mut();
            // Whoever else runs meanwhile does so because of the switch.
            if followed.made.last() != Some(&switch) {
                followed.made.push(switch);
            }
            if switch.to == thread {
                self.held = None;
                if switch.held {
                    self.resting.insert(switch.at.thread, RESTS);
                }
            }
        }
        *self.executed.entry(thread).or_default() += instructions;
        self.row.ran(thread, instructions);
        let met = self
            .precedences
            .iter()
            .all(|precedence| self.executed(precedence.after.thread) > precedence.after.count);
        let mut followed = self.followed.borrow_mut();
        followed.met |= met && !self.precedences.is_empty();
    }

    fn holds(&self, thread: u32) -> bool {
        self.held
            .is_some_and(|(switch, _)| switch.at.thread == thread)
            || self.resting.contains_key(&thread)
            || self.waits_by(thread).is_some()
    }

    fn holds_somebody(&self) -> bool {
        true
    }

    fn lets_go(&mut self) -> bool {
        if self.held.take().is_some() || self.resting.pop_first().is_some() {
            return true;
        }
        let before = self.precedences.len();
        let waiting: Vec<Precedence> = self
            .queue
            .iter()
            .filter_map(|thread| self.waits_by(*thread).copied())
            .collect();
        self.precedences
            .retain(|precedence| !waiting.contains(precedence));
        let broken = self.precedences.len() < before;
        self.followed.borrow_mut().broken |= broken;
        broken
    }

    fn is_exact(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(thread: u32, count: u64, to: u32) -> Switch {
        Switch {
            at: Moment::new(thread, count),
            to,
            held: false,
        }
    }

    #[test]
    fn slices_of_one_thread_are_one() {
        let switches = of_slices([(1, 10), (1, 5), (2, 7), (1, 1), (2, 3)]);
        assert_eq!(
            switches,
            [switch(1, 15, 2), switch(2, 7, 1), switch(1, 16, 2)]
        );
    }

    /// Runs the policy over threads that never wait and end after so many
    /// instructions.
    fn play(policy: &mut Directed, lengths: &[(u32, u64)]) -> Vec<(u32, u64)> {
        let mut left: BTreeMap<u32, u64> = lengths.iter().copied().collect();
        let (mut last, mut slices) = (None, Vec::new());
        while !left.is_empty() {
            let runnable: Vec<u32> = left
                .keys()
                .copied()
                .filter(|thread| !policy.holds(*thread))
                .collect();
            let choice = if runnable.is_empty() {
                Choice {
                    thread: 0,
                    instructions: 0,
                }
            } else {
                policy.choose(&runnable, last.take())
            };
            if choice.instructions == 0 {
                if left.keys().all(|thread| policy.holds(*thread)) {
                    assert!(policy.lets_go());
                }
                continue;
            }
            let rest = left.get_mut(&choice.thread).expect("it can run");
            let done = choice.instructions.min(*rest);
            *rest -= done;
            policy.ran(choice.thread, done);
            let end = if *rest == 0 {
                left.remove(&choice.thread);
                SliceEnd::Exited
            } else {
                SliceEnd::Expired
            };
            slices.push((choice.thread, done));
            last = Some((choice.thread, end));
        }
        slices
    }

    #[test]
    fn without_switches_threads_run_one_after_the_other() {
        let mut policy = Directed::new(&[], &[], Rc::default());
        assert_eq!(
            of_slices(play(&mut policy, &[(1, 50), (2, 60), (3, 1)])),
            [switch(1, 50, 2), switch(2, 60, 3)]
        );
    }

    #[test]
    fn switches_are_made_where_they_are_wanted() {
        let wanted = [switch(1, 20, 3), switch(3, 7, 2)];
        let followed = Rc::new(RefCell::new(Followed::default()));
        let mut policy = Directed::new(&wanted, &[], followed.clone());
        let slices = play(&mut policy, &[(1, 50), (2, 60), (3, 10)]);
        assert_eq!(slices, [(1, 20), (3, 7), (2, 60), (1, 30), (3, 3)]);
        assert_eq!(followed.borrow().made, wanted);
    }

    /// A sleep is begun again when it is over: it takes no instruction until
    /// then.
    #[test]
    fn a_switch_to_a_thread_that_sleeps_waits_for_it() {
        let mut policy = Directed::new(&[switch(1, 20, 2), switch(2, 7, 1)], &[], Rc::default());
        policy.choose(&[1, 2], None);
        policy.ran(1, 20);
        let choice = policy.choose(&[1, 2], Some((1, SliceEnd::Expired)));
        assert_eq!(choice.thread, 2);
        policy.ran(2, 7);
        // The first thread is asked, and sleeps.
        let choice = policy.choose(&[1, 2], Some((2, SliceEnd::Expired)));
        assert_eq!(choice.thread, 1);
        policy.ran(1, 0);
        let choice = policy.choose(&[2], Some((1, SliceEnd::Blocked)));
        assert_eq!(choice.instructions, 0, "the second thread waits for it");
        assert!(policy.holds(2));
        let choice = policy.choose(&[1, 2], None);
        assert_eq!(choice.thread, 1);
        policy.ran(1, 5);
        assert!(!policy.holds(2));
    }

    /// The thread that is to go on never does, but others do while it is waited
    /// for.
    #[test]
    fn a_switch_that_only_holds_back_is_made() {
        let followed = Rc::new(RefCell::new(Followed::default()));
        let wanted = [switch(2, 7, 1)];
        let mut policy = Directed::new(&wanted, &[], followed.clone());
        policy.choose(&[2, 3], None);
        policy.ran(2, 7);
        assert!(followed.borrow().made.is_empty());
        let choice = policy.choose(&[2, 3], Some((2, SliceEnd::Expired)));
        assert_eq!(choice.thread, 3);
        policy.ran(3, 5);
        policy.choose(&[2, 3], Some((3, SliceEnd::Expired)));
        policy.ran(3, 5);
        assert_eq!(followed.borrow().made, wanted);
    }

    #[test]
    fn a_held_thread_waits_until_nobody_else_can_go_on() {
        let held = Switch {
            held: true,
            ..switch(2, 7, 1)
        };
        let mut policy = Directed::new(&[held], &[], Rc::default());
        policy.choose(&[2], None);
        policy.ran(2, 7);
        let choice = policy.choose(&[1, 2], Some((2, SliceEnd::Expired)));
        assert_eq!(choice.thread, 1);
        policy.ran(1, 5);
        // The first thread sleeps.
        let choice = policy.choose(&[2], Some((1, SliceEnd::Blocked)));
        assert_eq!(choice.instructions, 0);
        assert!(policy.holds(2) && policy.lets_go() && !policy.holds(2));
    }

    #[test]
    fn a_switch_to_a_held_thread_lets_it_go() {
        let held = |switch| Switch {
            held: true,
            ..switch
        };
        let wanted = [held(switch(1, 20, 2)), held(switch(2, 7, 1))];
        let followed = Rc::new(RefCell::new(Followed::default()));
        let mut policy = Directed::new(&wanted, &[], followed.clone());
        let slices = play(&mut policy, &[(1, 50), (2, 60)]);
        assert_eq!(slices, [(1, 20), (2, 7), (1, 30), (2, 53)]);
        assert_eq!(followed.borrow().made, wanted);
    }

    #[test]
    fn a_precedence_holds_a_thread_back() {
        let followed = Rc::new(RefCell::new(Followed::default()));
        let flipped = Precedence {
            before: Moment::new(2, 30),
            after: Moment::new(1, 20),
        };
        let mut policy = Directed::new(&[], &[flipped], followed.clone());
        let slices = play(&mut policy, &[(1, 50), (2, 60)]);
        assert_eq!(slices[..2], [(1, 20), (2, 31)]);
        assert!(followed.borrow().met && !followed.borrow().broken);
    }
}
