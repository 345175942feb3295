//! Who waits for futexes in memory that the processes of a recording share.
//!
//! The table lies in the tree's page. A process changes it only in its turn
//! (`kernel::shared_memory`), so a wake finds and counts exactly those that
//! wait, the first that came first. Who has been killed while waiting is passed over.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Threads that can wait at one time. Of more, the last ones are woken for
/// nothing at once, as the kernel's contract allows.
const PLACES: usize = 4096;

/// No place in the table.
const NONE: u32 = u32::MAX;

#[derive(Default)]
#[repr(C)]
struct Waiter {
    /// The futex, 0 if nobody waits here.
    futex: AtomicU64,
    /// Who came first has the lowest.
    order: AtomicU64,
    process: AtomicU32,
    bitset: AtomicU32,
    woken: AtomicU32,
}

#[repr(C)]
pub struct SharedFutexes {
    clock: AtomicU64,
    /// No place from here on has been used.
    used: AtomicU32,
    waiters: [Waiter; PLACES],
}

impl SharedFutexes {
    /// Thread of `process` waits for `futex`, which is not 0. Returns its place.
    pub fn wait(&self, futex: u64, process: u32, bitset: u32) -> u32 {
        let free =
            |waiter: &Waiter| waiter.futex.load(SeqCst) == 0 && waiter.process.load(SeqCst) == 0;
        let Some(place) = self.waiters.iter().position(free) else {
            return NONE;
        };
        let waiter = &self.waiters[place];
        waiter.order.store(self.clock.fetch_add(1, SeqCst), SeqCst);
        waiter.process.store(process, SeqCst);
        waiter.bitset.store(bitset, SeqCst);
        waiter.woken.store(0, SeqCst);
        waiter.futex.store(futex, SeqCst);
        self.used.fetch_max(place as u32 + 1, SeqCst);
        place as u32
    }

    pub fn is_woken(&self, place: u32) -> bool {
        self.waiters
            .get(place as usize)
            .is_none_or(|waiter| waiter.woken.load(SeqCst) != 0)
    }

    /// Whoever had this place does not wait any more.
    pub fn leave(&self, place: u32) {
        if let Some(waiter) = self.waiters.get(place as usize) {
            waiter.futex.store(0, SeqCst);
            waiter.process.store(0, SeqCst);
        }
    }

    /// No thread of `process` waits any more.
    pub fn forget(&self, process: u32) {
        for place in 0..self.used.load(SeqCst) {
            if self.waiters[place as usize].process.load(SeqCst) == process {
                self.leave(place);
            }
        }
    }

    /// Places of those that wait for `futex`, who came first is first.
    fn waiting_for(&self, futex: u64, alive: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.used.load(SeqCst))
            .filter(|place| self.waiters[*place as usize].futex.load(SeqCst) == futex)
            .collect();
        places.sort_by_key(|place| self.waiters[*place as usize].order.load(SeqCst));
        let (living, killed): (Vec<u32>, Vec<u32>) = places
            .into_iter()
            .partition(|place| alive(self.waiters[*place as usize].process.load(SeqCst)));
        for place in killed {
            self.leave(place);
        }
        living
    }

    /// Wakes up to `count` of those that wait with one of the bits; returns how
    /// many.
    pub fn wake(&self, futex: u64, count: u32, bitset: u32, alive: impl Fn(u32) -> bool) -> u32 {
        let mut woken = 0;
        for place in self.waiting_for(futex, alive) {
            let waiter = &self.waiters[place as usize];
            if woken == count {
                break;
            }
            if waiter.bitset.load(SeqCst) & bitset != 0 {
                woken += 1;
                // It keeps its place until it has seen that.
                waiter.futex.store(0, SeqCst);
                waiter.woken.store(1, SeqCst);
            }
        }
        woken
    }

    /// Up to `count` of those that wait for `futex` wait for `other` from now on;
    /// returns how many.
    pub fn move_to(&self, futex: u64, other: u64, count: u32, alive: impl Fn(u32) -> bool) -> u32 {
        let places = self.waiting_for(futex, alive);
        let moved = &places[..places.len().min(count as usize)];
        for place in moved {
            self.waiters[*place as usize].futex.store(other, SeqCst);
        }
        moved.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: fn(u32) -> bool = |_| true;
    const ANY: u32 = u32::MAX;

    fn table() -> SharedFutexes {
        SharedFutexes {
            clock: AtomicU64::new(0),
            used: AtomicU32::new(0),
            waiters: std::array::from_fn(|_| Waiter::default()),
        }
    }

    #[test]
    fn the_first_is_woken_first_and_keeps_its_place() {
        let table = table();
        let places = [1, 2, 3].map(|process| table.wait(7, process, ANY));
        assert_eq!(table.wake(7, 2, ANY, ALIVE), 2);
        assert_eq!(
            places.map(|place| table.is_woken(place)),
            [true, true, false]
        );
        // Nobody gets the place of one who has not looked yet.
        assert!(!places.contains(&table.wait(7, 4, ANY)));
        table.leave(places[0]);
        assert_eq!(table.wait(7, 5, ANY), places[0]);
        assert_eq!(table.wake(7, 9, ANY, ALIVE), 3);
    }

    #[test]
    fn bits_and_other_futexes_are_told_apart() {
        let table = table();
        let one = table.wait(7, 1, 1);
        let two = table.wait(7, 2, 2);
        let other = table.wait(8, 3, ANY);
        assert_eq!(table.wake(7, 5, 2, ALIVE), 1);
        assert_eq!(
            [one, two, other].map(|place| table.is_woken(place)),
            [false, true, false]
        );
    }

    #[test]
    fn who_is_moved_waits_there() {
        let table = table();
        let places = [1, 2, 3].map(|process| table.wait(7, process, ANY));
        assert_eq!(table.move_to(7, 8, 2, ALIVE), 2);
        assert_eq!(table.wake(7, 9, ANY, ALIVE), 1);
        assert_eq!(table.wake(8, 1, ANY, ALIVE), 1);
        assert!(table.is_woken(places[0]) && !table.is_woken(places[1]));
    }

    #[test]
    fn the_dead_take_no_wake() {
        let table = table();
        table.wait(7, 1, ANY);
        let living = table.wait(7, 2, ANY);
        assert_eq!(table.wake(7, 1, ANY, |process| process != 1), 1);
        assert!(table.is_woken(living));
        table.forget(2);
        assert_eq!(table.wake(7, 1, ANY, ALIVE), 0);
    }

    #[test]
    fn who_finds_no_place_is_woken_at_once() {
        let table = table();
        for _ in 0..PLACES {
            assert_ne!(table.wait(7, 1, ANY), NONE);
        }
        assert!(table.is_woken(table.wait(7, 1, ANY)));
    }
}
