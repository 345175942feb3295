//! Code breakpoints in time: planting what is due, and taking away what nobody
//! reached.

use super::Holder;
use crate::wire::{Outcome, Pick};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Breakpoints planted or removed in one turn: some tens of microseconds.
const SLICE: usize = 16;
/// Chains begun per second, about.
const CHAINS: u32 = 100;
/// Samples of one chain at most.
const LONGEST_CHAIN: u32 = 4;
/// Nanoseconds the holder is busy at most while a thread is stopped.
pub(super) const BUSY: u64 = 150_000;

impl Holder {
    pub(super) fn plant(&mut self, pick: Pick, now: Instant) {
        self.count_held(now);
        let held = self.held;
        let planted = match self.spaces.get_mut(&pick.space) {
            Some(space) => match space.is_safe(now) {
                true => space.plant(pick, &mut self.table, now, held),
                false => {
                    let note = format!(
                        "process {} handles SIGTRAP itself and has a thread that blocks it: no breakpoints were planted while that was so, because one in that thread would take the handler away",
                        space.via
                    );
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                    Err(Outcome::Occupied)
                }
            },
            None => Err(Outcome::Refused),
        };
        match planted {
            Ok(()) => {
                let until = now + Duration::from_micros(u64::from(pick.dwell));
                self.expiry.push(Reverse((until, pick.space, pick.address)));
            }
            Err(outcome) => self.note_end(&pick, outcome),
        }
    }

    pub(super) fn plant_due(&mut self, now: Instant) {
        if self.per_second == 0 || self.next_live > now {
            return;
        }
        let length = (self.per_second / CHAINS).clamp(1, LONGEST_CHAIN);
        let interval = Duration::from_secs(1) * length / self.per_second;
        // What the last chain did not come to is due as well.
        for _ in 0..=self.chain {
            self.plant_next(now);
        }
        self.chain = length - 1;
        // Spread between half and one and a half intervals.
        let spread = self.random() % 1024;
        self.next_live += interval * (512 + spread as u32) / 1024;
        if self.next_live + Duration::from_millis(50) < now {
            self.next_live = now;
        }
    }

    fn plant_next(&mut self, now: Instant) {
        if let Some(pick) = self.live.pop_front() {
            self.plant(pick, now);
        }
    }

    /// A sample has ended: the next of its chain follows.
    pub(super) fn plant_following(&mut self) {
        if self.chain > 0 {
            self.chain -= 1;
            self.plant_next(Instant::now());
        }
    }

    /// Plants some of the many; the rest in the next turns, so that a thread
    /// that has run into a breakpoint does not wait for all of them.
    pub(super) fn plant_crowd(&mut self, now: Instant) {
        for _ in 0..SLICE {
            let Some(pick) = self.crowd.pop_front() else {
                return;
            };
            self.plant(pick, now);
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        for _ in 0..SLICE {
            let Some(Reverse((until, space, address))) = self.expiry.peek().copied() else {
                return;
            };
            if until > now {
                return;
            }
            self.expiry.pop();
            self.expire_one(space, address, now);
        }
    }

    pub(super) fn expire_one(&mut self, space: u32, address: u64, now: Instant) {
        let Some(space) = self.spaces.get_mut(&space) else {
            return;
        };
        if space
            .planted_at(address)
            .is_none_or(|planted| planted.expires() > now)
        {
            return;
        }
        if let Some(planted) = space.unplant(address, &mut self.table, now) {
            self.note_end(&planted.pick, Outcome::Expired);
        }
    }

    /// Takes back everything where breakpoints have become harmful.
    pub(super) fn keep_safe(&mut self, now: Instant) {
        let mut removed = Vec::new();
        for space in self.spaces.values_mut() {
            if space.standing() > 0 && !space.is_safe(now) {
                removed.extend(space.unplant_all(&mut self.table, now));
            }
        }
        for planted in removed {
            self.note_end(&planted.pick, Outcome::Occupied);
        }
    }
}
