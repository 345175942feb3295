//! All threads of a process, and who of them can run or waits for what.
//!
//! A scheduler that looks at every thread before each slice takes time that
//! grows with the square of their number. So whoever may change a thread leaves
//! its number here, and only those are looked at again.

use crate::thread::{State, Thread};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// What one thread does, as far as others have to know.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Standing {
    runnable: bool,
    /// It waits at most until then.
    deadline: Option<u64>,
    /// It waits for something that can only come from outside.
    outside: bool,
}

impl Standing {
    fn of(thread: &Thread) -> Standing {
        match &thread.state {
            State::Runnable => Standing {
                runnable: true,
                ..Standing::default()
            },
            State::Blocked(wait) => Standing {
                runnable: false,
                deadline: wait.deadline,
                outside: wait.on.is_outside(),
            },
            State::Exited => Standing::default(),
        }
    }
}

/// The threads by number; reading is as with a map.
#[derive(Default)]
pub struct Threads {
    all: BTreeMap<u32, Thread>,
    /// Threads that may have changed since they were sorted.
    changed: BTreeSet<u32>,
    standings: BTreeMap<u32, Standing>,
    /// Ascending.
    runnable: Vec<u32>,
    deadlines: BTreeSet<(u64, u32)>,
    outside: BTreeSet<u32>,
}

impl Deref for Threads {
    type Target = BTreeMap<u32, Thread>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Threads {
    pub fn get_mut(&mut self, id: &u32) -> Option<&mut Thread> {
        let thread = self.all.get_mut(id)?;
        if !std::mem::replace(&mut thread.changed, true) {
            self.changed.insert(*id);
        }
        Some(thread)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        for (id, thread) in &mut self.all {
            thread.changed = true;
            self.changed.insert(*id);
        }
        self.all.values_mut()
    }

    pub fn insert(&mut self, id: u32, mut thread: Thread) {
        thread.changed = true;
        self.changed.insert(id);
        self.all.insert(id, thread);
    }

    pub fn remove(&mut self, id: &u32) -> Option<Thread> {
        self.changed.insert(*id);
        self.all.remove(id)
    }

    pub fn clear(&mut self) {
        *self = Threads::default();
    }

    /// Looks again at threads that may have changed.
    pub fn sort(&mut self) {
        for id in std::mem::take(&mut self.changed) {
            let now = match self.all.get_mut(&id) {
                Some(thread) => {
                    thread.changed = false;
                    Standing::of(thread)
                }
                None => Standing::default(),
            };
            let before = self.standings.insert(id, now).unwrap_or_default();
            if !self.all.contains_key(&id) {
                self.standings.remove(&id);
            }
            if before != now {
                self.file(id, before, now);
            }
        }
    }

    fn file(&mut self, id: u32, before: Standing, now: Standing) {
        match self.runnable.binary_search(&id) {
            Ok(place) if !now.runnable => {
                self.runnable.remove(place);
            }
            Err(place) if now.runnable => self.runnable.insert(place, id),
            _ => {}
        }
        if let Some(deadline) = before.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(deadline) = now.deadline {
            self.deadlines.insert((deadline, id));
        }
        if now.outside {
            self.outside.insert(id);
        } else {
            self.outside.remove(&id);
        }
    }

    /// Who could run when they were last sorted, ascending.
    pub fn runnable(&self) -> &[u32] {
        &self.runnable
    }

    /// Whose deadline comes first, and when.
    pub fn next_deadline(&self) -> Option<(u64, u32)> {
        self.deadlines.first().copied()
    }

    /// Who waits for something from outside, ascending.
    pub fn waiting_for_outside(&self) -> &BTreeSet<u32> {
        &self.outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Registers;
    use crate::schedule::Random64;
    use crate::thread::{Wait, WaitOn};

    fn random_state(random: &mut Random64) -> State {
        let on = match random.below(5) {
            0 => return State::Exited,
            1 | 2 => return State::Runnable,
            3 => WaitOn::Time,
            _ => WaitOn::Child,
        };
        let deadline = (random.below(2) == 0).then(|| random.below(10));
        State::Blocked(Wait { on, deadline })
    }

    /// What a look at every thread says.
    fn looked(threads: &Threads) -> (Vec<u32>, Option<(u64, u32)>, BTreeSet<u32>) {
        let (mut runnable, mut deadlines, mut outside) = (vec![], vec![], BTreeSet::new());
        for (id, thread) in threads.iter() {
            match &thread.state {
                State::Runnable => runnable.push(*id),
                State::Blocked(wait) => {
                    deadlines.extend(wait.deadline.map(|deadline| (deadline, *id)));
                    if wait.on.is_outside() {
                        outside.insert(*id);
                    }
                }
                State::Exited => {}
            }
        }
        (runnable, deadlines.into_iter().min(), outside)
    }

    #[test]
    fn says_what_a_look_at_all_says() {
        let mut random = Random64::new(7);
        let mut threads = Threads::default();
        for _ in 0..5000 {
            let id = 1 + random.below(12) as u32;
            match random.below(8) {
                0 => threads.insert(id, Thread::new(id, id as i32, Registers::default())),
                1 => drop(threads.remove(&id)),
                2 if random.below(20) == 0 => threads.clear(),
                3 => {
                    for thread in threads.values_mut() {
                        thread.state = random_state(&mut random);
                    }
                }
                _ => {
                    if let Some(thread) = threads.get_mut(&id) {
                        thread.state = random_state(&mut random);
                    }
                }
            }
            if random.below(3) > 0 {
                threads.sort();
                let (runnable, deadline, outside) = looked(&threads);
                assert_eq!(threads.runnable(), runnable);
                assert_eq!(threads.next_deadline(), deadline);
                assert_eq!(*threads.waiting_for_outside(), outside);
            }
        }
    }
}
