//! Flipping one race alone: the swapped order once more, with all else in the
//! order that it had in the recorded one.
//!
//! A schedule says after how many instructions, or at which events, threads
//! change. After a swap a thread executes a little more or less, another race
//! comes out the other way round, and what that one does would be put down to
//! this one. So what a pair shows is checked: the recorded order is played once
//! more with its stints written down (who ran, past how many events, and why it
//! stopped; events are sequencers and racy accesses), then the swapped order
//! follows these stints. If it could, every other access to what races came in
//! the same order; a difference that is gone then was not this race's.
//!
//! Paper 003, section 4.4, does not tell the two apart. Guarantee: only an
//! execution that met the same events in the same stints to its end takes
//! a difference from a race. Accesses at sites that no race is known of are not
//! held in order.

use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use vm::schedule::{Choice, Here, Policy, SliceEnd};

/// No stint is longer.
const LONG: u64 = 1 << 40;

/// What a thread did in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stint {
    thread: u32,
    /// Events that it came to.
    events: u32,
    /// It stopped before the last event, a racy access; otherwise that was made.
    before_access: bool,
    /// It stopped because it waited, gave way or was over.
    by_itself: bool,
}

/// The stints of an execution, as they are being made.
pub type Stints = Rc<RefCell<Vec<Stint>>>;

/// Writes down what `inner` decides.
pub struct Scribe {
    inner: Box<dyn Policy>,
    /// Where `inner` decides besides sequencers, if it decides at events.
    asks: Option<BTreeSet<u64>>,
    stints: Stints,
}

impl Scribe {
    pub fn new(inner: Box<dyn Policy>, asks: Option<BTreeSet<u64>>, stints: Stints) -> Scribe {
        Scribe {
            inner,
            asks,
            stints,
        }
    }
}

fn is_by_itself(end: SliceEnd) -> bool {
    match end {
        SliceEnd::Expired | SliceEnd::Sequencer | SliceEnd::Interrupted => false,
        SliceEnd::Yielded | SliceEnd::Blocked | SliceEnd::Exited => true,
    }
}

impl Policy for Scribe {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        let mut stints = self.stints.borrow_mut();
        if let (Some(stint), Some((thread, end))) = (stints.last_mut(), last)
            && stint.thread == thread
        {
            stint.by_itself = is_by_itself(end);
        }
        let choice = self.inner.choose(runnable, last);
        stints.push(Stint {
            thread: choice.thread,
            events: 0,
            before_access: false,
            by_itself: false,
        });
        choice
    }

    fn at_sequencers(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        self.inner.is_exact()
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        self.inner.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let asks = |pcs: &BTreeSet<u64>| here.sequencer || pcs.contains(&here.pc);
        let ends = self.asks.as_ref().is_some_and(asks) && self.inner.ends_here(here);
        if let Some(stint) = self.stints.borrow_mut().last_mut() {
            stint.events += 1;
            stint.before_access = ends && !here.sequencer;
        }
        ends
    }

    fn holds(&self, thread: u32) -> bool {
        self.inner.holds(thread)
    }

    fn lets_go(&mut self) -> bool {
        self.inner.lets_go()
    }
}

/// Follows stints. Where they do not apply, `lost` is set, and the threads take
/// turns.
pub struct Follower {
    stints: std::vec::IntoIter<Stint>,
    /// The stint under way, and the events met in it.
    current: Option<(Stint, u32)>,
    /// The last event of the stint was met: its access is to be made.
    makes_access: bool,
    /// The last choice is to be taken to the letter.
    exact: bool,
    lost: Rc<Cell<bool>>,
}

impl Follower {
    pub fn new(stints: Vec<Stint>, lost: Rc<Cell<bool>>) -> Follower {
        Follower {
            stints: stints.into_iter(),
            current: None,
            makes_access: false,
            exact: false,
            lost,
        }
    }

    /// The thread to go on with, if its stint is not over: a slice ended for the
    /// time, a timer's for instance. A stint that is over must have met all its
    /// events, and have stopped as it did.
    fn rest(&mut self, last: Option<(u32, SliceEnd)>) -> Option<u32> {
        let (stint, met) = self.current?;
        let end = last.filter(|(thread, _)| *thread == stint.thread)?.1;
        let is_done = met == stint.events && (!stint.by_itself || is_by_itself(end));
        if !is_done && !is_by_itself(end) {
            return Some(stint.thread);
        }
        if !is_done {
            self.lost.set(true);
        }
        None
    }
}

impl Policy for Follower {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        if std::mem::take(&mut self.makes_access)
            && let Some((stint, _)) = self.current
            && runnable.contains(&stint.thread)
        {
            self.exact = true;
            return Choice {
                thread: stint.thread,
                instructions: 1,
            };
        }
        self.exact = false;
        let rest = self.rest(last);
        if let Some(thread) = rest.filter(|thread| runnable.contains(thread)) {
            return Choice {
                thread,
                instructions: LONG,
            };
        }
        self.current = None;
        // A stint that met nothing and went on later was a pause.
        let next = self
            .stints
            .by_ref()
            .find(|stint| stint.events > 0 || stint.by_itself);
        match next {
            Some(stint) if !self.lost.get() && runnable.contains(&stint.thread) => {
                self.current = Some((stint, 0));
                Choice {
                    thread: stint.thread,
                    instructions: LONG,
                }
            }
            _ => {
                self.lost.set(true);
                let after = last.map_or(0, |(thread, _)| thread);
                let next = runnable.iter().find(|thread| **thread > after);
                Choice {
                    thread: *next.unwrap_or(&runnable[0]),
                    instructions: vm::DEFAULT_QUANTUM,
                }
            }
        }
    }

    fn at_sequencers(&self) -> bool {
        true
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let Some((stint, met)) = &mut self.current else {
            return true;
        };
        *met += 1;
        if *met > stint.events {
            self.lost.set(true);
            return true;
        }
        if *met < stint.events || stint.by_itself {
            return false;
        }
        self.makes_access = !here.sequencer && !stint.before_access;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::Moment;

    fn here(thread: u32, sequencer: bool) -> Here {
        Here {
            moment: Moment::new(thread, 1),
            pc: 0x1000,
            stack: 0,
            sequencer,
        }
    }

    fn stint(thread: u32, events: u32, by_itself: bool) -> Stint {
        Stint {
            thread,
            events,
            before_access: false,
            by_itself,
        }
    }

    #[test]
    fn stints_are_followed_event_by_event() {
        let lost = Rc::new(Cell::new(false));
        let stints = vec![stint(1, 2, false), stint(2, 0, false), stint(3, 1, true)];
        let mut follower = Follower::new(stints, lost.clone());
        assert_eq!(follower.choose(&[1, 2, 3], None).thread, 1);
        assert!(!follower.ends_here(&here(1, true)));
        assert!(follower.ends_here(&here(1, false)));
        // The access before which it stopped is made first.
        let choice = follower.choose(&[1, 2, 3], Some((1, SliceEnd::Sequencer)));
        assert_eq!((choice.thread, choice.instructions), (1, 1));
        // Nothing happened in the second one.
        let last = Some((1, SliceEnd::Expired));
        assert_eq!(follower.choose(&[1, 2, 3], last).thread, 3);
        assert!(!follower.ends_here(&here(3, true)));
        assert!(!lost.get());
        follower.choose(&[1, 2], Some((3, SliceEnd::Exited)));
        assert!(lost.get(), "there are no more");
    }

    #[test]
    fn another_number_of_events_is_another_way() {
        let lost = Rc::new(Cell::new(false));
        let stints = vec![stint(1, 2, true), stint(2, 1, true)];
        let mut follower = Follower::new(stints, lost.clone());
        follower.choose(&[1, 2], None);
        follower.ends_here(&here(1, true));
        follower.choose(&[2], Some((1, SliceEnd::Blocked)));
        assert!(lost.get());
    }
}
