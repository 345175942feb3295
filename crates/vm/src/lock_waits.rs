//! Which process of a recording waits for which other one to unlock a part of a
//! file: for deadlocks, which a kernel finds and tells of (EDEADLK).
//!
//! Each process that waits says so in memory that all share, each time it has tried
//! in vain. A circle of them is a deadlock if everybody in it was seen to be held up
//! when the one that holds it up was waiting already: nobody who waits
//! unlocks. The one that came last tells its program, as the kernel has it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes that can be seen to wait at one time; of more, deadlocks may be missed.
const PLACES: usize = 256;

#[derive(Default)]
#[repr(C)]
struct Place {
    /// The process, 0 if nobody.
    process: AtomicU32,
    /// Who holds it up, 0 if not known.
    holder: AtomicU32,
    /// When it began to wait, and when it last tried, on the clock of all tries.
    since: AtomicU64,
    tried: AtomicU64,
}

#[repr(C)]
pub struct LockWaits {
    clock: AtomicU64,
    places: [Place; PLACES],
}

/// A process that is about to try.
pub struct Waiting<'waits> {
    waits: &'waits LockWaits,
    process: u32,
    place: Option<&'waits Place>,
    now: u64,
}

impl LockWaits {
    /// `again`: it has waited since an earlier try.
    pub fn try_lock(&self, process: u32, again: bool) -> Waiting<'_> {
        let now = self.clock.fetch_add(1, Ordering::SeqCst) + 1;
        let place = self.place_of(process).filter(|_| again);
        Waiting {
            waits: self,
            process,
            place,
            now,
        }
    }

    fn place_of(&self, process: u32) -> Option<&Place> {
        self.places
            .iter()
            .find(|place| place.process.load(Ordering::SeqCst) == process)
    }

    fn free_place(&self, process: u32) -> Option<&Place> {
        self.place_of(process).or_else(|| {
            self.places.iter().find(|place| {
                let order = Ordering::SeqCst;
                place
                    .process
                    .compare_exchange(0, process, order, order)
                    .is_ok()
            })
        })
    }
}

impl Waiting<'_> {
    /// It tried in vain, because of `holder`.
    pub fn is_held_by(&mut self, holder: i32) {
        if self.place.is_none() {
            self.place = self.waits.free_place(self.process);
            if let Some(place) = self.place {
                let since = self.waits.clock.fetch_add(1, Ordering::SeqCst) + 1;
                place.since.store(since, Ordering::SeqCst);
            }
        }
        if let Some(place) = self.place {
            // A lock of a description is held by process -1.
            place.holder.store(holder.max(0) as u32, Ordering::SeqCst);
            place.tried.store(self.now, Ordering::SeqCst);
        }
    }

    /// It has the lock, or gives up.
    pub fn is_over(&self) {
        if let Some(place) = self.place {
            place.holder.store(0, Ordering::SeqCst);
            place.process.store(0, Ordering::SeqCst);
        }
    }

    /// It waits in a circle, as the last one that came.
    pub fn is_deadlock(&self) -> bool {
        let Some(own) = self.place else {
            return false;
        };
        let own_since = own.since.load(Ordering::SeqCst);
        let mut at = own;
        for _ in 0..PLACES {
            let holder = at.holder.load(Ordering::SeqCst);
            if holder == 0 {
                return false;
            }
            let Some(next) = self.waits.place_of(holder) else {
                return false;
            };
            let since = next.since.load(Ordering::SeqCst);
            let held_up_since = at.tried.load(Ordering::SeqCst) > since;
            if !held_up_since || since > own_since {
                return false;
            }
            if std::ptr::eq(next, own) {
                return true;
            }
            at = next;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> LockWaits {
        LockWaits {
            clock: AtomicU64::new(0),
            places: std::array::from_fn(|_| Place::default()),
        }
    }

    fn tries(waits: &LockWaits, process: u32, again: bool, holder: i32) -> bool {
        let mut waiting = waits.try_lock(process, again);
        waiting.is_held_by(holder);
        waiting.is_deadlock()
    }

    #[test]
    fn the_last_of_a_circle_is_told() {
        let waits = waits();
        assert!(!tries(&waits, 1, false, 2));
        // What 1 was told before 2 waited may be old.
        assert!(!tries(&waits, 2, false, 1));
        assert!(!tries(&waits, 1, true, 2), "it came first");
        assert!(tries(&waits, 2, true, 1));
    }

    #[test]
    fn three_in_a_circle() {
        let waits = waits();
        for round in 0..3 {
            assert!(!tries(&waits, 1, round > 0, 2));
            assert!(!tries(&waits, 2, round > 0, 3));
            assert_eq!(tries(&waits, 3, round > 0, 1), round > 0);
        }
    }

    #[test]
    fn a_line_is_no_circle() {
        let waits = waits();
        for round in 0..4 {
            assert!(!tries(&waits, 1, round > 0, 2));
            assert!(!tries(&waits, 2, round > 0, 3));
            assert!(!tries(&waits, 4, round > 0, -1));
        }
    }

    #[test]
    fn who_has_given_up_holds_nobody() {
        let waits = waits();
        tries(&waits, 1, false, 2);
        tries(&waits, 2, false, 1);
        tries(&waits, 1, true, 2);
        waits.try_lock(1, true).is_over();
        assert!(!tries(&waits, 2, true, 1));
    }
}
