//! Threads held at an instruction while the others go on.
//!
//! An observer of a run that is being recorded may ask, at one of its hooks,
//! that the thread wait there for another thread to arrive somewhere: this is
//! how a schedule is steered towards a race that is only suspected (paper 002
//! delays a thread at an access for the same reason, by time; here it is by
//! the other thread's arrival).
//!
//! A hold is a matter of who runs next and of nothing else. It is not in the
//! recording: the slices that came of it are, so a replay needs no observer
//! and holds nobody. Holds end by themselves: when the other threads have
//! executed so many instructions, when so much virtual time has passed, and at
//! once where nobody else can run before that. The same choices of the
//! observer make the same execution.

use super::Vm;
use crate::observe::Patience;

/// How long a held thread may wait while the others wait for the outside,
/// which lives in host time: 50 ms, in nanoseconds.
const OUTSIDE: u64 = 50_000_000;

/// One thread that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    thread: u32,
    /// Instructions of all threads, and virtual time, at which it goes on.
    instructions: u64,
    time: u64,
}

impl Vm {
    /// The current thread waits before its next instruction. Says whether it
    /// does: a thread alone has nobody to wait for.
    pub(super) fn hold(&mut self, patience: Patience) -> bool {
        if self.threads.len() < 2 {
            return false;
        }
        self.held.push(Held {
            thread: self.current,
            instructions: self.instructions().saturating_add(patience.instructions),
            time: self.now().saturating_add(patience.nanoseconds),
        });
        true
    }

    pub(super) fn is_held(&self, thread: u32) -> bool {
        self.held.iter().any(|held| held.thread == thread)
    }

    /// Lets a thread go on, if it is held.
    pub(super) fn release(&mut self, thread: u32) {
        if self.is_held(thread) {
            self.held.retain(|held| held.thread != thread);
            for observer in &mut self.observers {
                observer.released(thread);
            }
        }
    }

    /// Lets go on who has waited long enough.
    pub(super) fn end_holds(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (instructions, now) = (self.instructions(), self.now());
        let over: Vec<u32> = self
            .held
            .iter()
            .filter(|held| {
                held.instructions <= instructions
                    || held.time <= now
                    || !self.threads.contains_key(&held.thread)
            })
            .map(|held| held.thread)
            .collect();
        for thread in over {
            self.release(thread);
        }
    }

    /// Nobody runs but who is held: says until when time may pass for the
    /// sake of the others, or lets the first go on and says nothing.
    pub(super) fn wait_while_held(
        &mut self,
        next_deadline: Option<u64>,
        outside: bool,
    ) -> Option<u64> {
        let first = *self.held.first()?;
        if outside {
            let latest = self.now() + OUTSIDE;
            for held in &mut self.held {
                held.time = held.time.min(latest);
            }
        }
        let end = self.held.iter().map(|held| held.time).min()?;
        if outside {
            return Some(next_deadline.map_or(end, |deadline| deadline.min(end)));
        }
        if let Some(deadline) = next_deadline.filter(|deadline| *deadline < end) {
            return Some(deadline);
        }
        self.release(first.thread);
        None
    }
}
