//! Synchronisation objects and the clocks they carry.
//!
//! An object is known by its address: a mutex a known function was called
//! with, a word that was the operand of a locked instruction, the tag of an
//! annotation. Two kinds of clock: what its releases have published, and, for
//! locks that are shared, what readers have published to the next writer.

use crate::clock::VectorClock;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// One synchronisation object.
#[derive(Debug, Clone, Default)]
pub struct Object {
    pub clock: VectorClock,
    /// Bytes of the word that the clock was published by, one bit each.
    published: u8,
    /// Published by readers of a shared lock.
    pub readers: VectorClock,
    /// Threads that have executed locked instructions here. (The last one
    /// alone would not do: a contender's failed attempt comes between a lock
    /// and its release.)
    pub locked_by: Vec<u32>,
    /// Operations of an atomic type were seen here: there are no others.
    pub typed: bool,
    pub barrier: Option<Barrier>,
    /// Threads blocked on a condition, as far as nobody has woken them.
    pub waiting: VecDeque<u32>,
}

/// What a write to a word does with what was published there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// A store: whoever reads it reads nothing older.
    Replaces,
    /// A change by one atomic operation goes on with the release sequence.
    Continues,
}

impl Object {
    /// A write to some `bytes` of the word publishes a clock.
    pub fn publish(&mut self, bytes: u8, clock: &VectorClock, how: Publish) {
        if how == Publish::Replaces {
            self.published &= !bytes;
            if self.published == 0 {
                self.clock.clear();
            }
        }
        if !clock.is_empty() {
            self.clock.join(clock);
            self.published |= bytes;
        }
    }
}

/// A barrier and its present cycle.
#[derive(Debug, Clone, Default)]
pub struct Barrier {
    pub count: u64,
    arrived: u64,
    gathering: VectorClock,
    /// Cycles completed and the clock each gave, the latest only for as long
    /// as somebody may still leave it.
    cycle: u64,
    released: BTreeMap<u64, (u64, VectorClock)>,
}

impl Barrier {
    pub fn new(count: u64) -> Barrier {
        Barrier {
            count,
            ..Barrier::default()
        }
    }

    /// A thread arrives; returns the cycle it takes part in.
    pub fn arrive(&mut self, clock: &VectorClock) -> u64 {
        self.gathering.join(clock);
        self.arrived += 1;
        let cycle = self.cycle;
        if self.arrived >= self.count.max(1) {
            let gathered = std::mem::take(&mut self.gathering);
            self.released.insert(cycle, (self.arrived, gathered));
            self.arrived = 0;
            self.cycle += 1;
        }
        cycle
    }

    /// Threads wait for others to arrive.
    pub fn is_awaited(&self) -> bool {
        self.arrived > 0
    }

    /// A thread leaves the cycle it arrived in, with the clock of all who
    /// took part.
    pub fn leave(&mut self, cycle: u64) -> VectorClock {
        let Some((left, clock)) = self.released.get_mut(&cycle) else {
            return VectorClock::default();
        };
        let clock = clock.clone();
        *left -= 1;
        if *left == 0 {
            self.released.remove(&cycle);
        }
        clock
    }
}

/// Objects are kept by page, so that those of new memory are soon found.
const PAGE_BITS: u32 = 12;

/// All objects of one kind by address.
#[derive(Debug, Default)]
pub struct Objects {
    by_page: FxHashMap<u64, FxHashMap<u64, Object>>,
}

impl Objects {
    pub fn get(&self, address: u64) -> Option<&Object> {
        self.by_page.get(&(address >> PAGE_BITS))?.get(&address)
    }

    pub fn entry(&mut self, address: u64) -> &mut Object {
        let page = self.by_page.entry(address >> PAGE_BITS).or_default();
        page.entry(address).or_default()
    }

    /// The memory is something else from now on.
    pub fn forget(&mut self, range: Range<u64>) {
        if range.is_empty() || self.by_page.is_empty() {
            return;
        }
        let (first, last) = (range.start >> PAGE_BITS, (range.end - 1) >> PAGE_BITS);
        if last - first > self.by_page.len() as u64 {
            self.by_page.retain(|page, objects| {
                if (first..=last).contains(page) {
                    objects.retain(|address, _| !range.contains(address));
                }
                !objects.is_empty()
            });
            return;
        }
        for page in first..=last {
            let Entry::Occupied(mut objects) = self.by_page.entry(page) else {
                continue;
            };
            // A block of the heap has room for few words.
            if range.end - range.start <= objects.get().len() as u64 {
                for address in range.clone() {
                    objects.get_mut().remove(&address);
                }
            } else {
                objects
                    .get_mut()
                    .retain(|address, _| !range.contains(address));
            }
            if objects.get().is_empty() {
                objects.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::clock;

    #[test]
    fn a_barrier_gives_everyone_the_clock_of_their_own_cycle() {
        let mut barrier = Barrier::new(2);
        let first = barrier.arrive(&clock(0, 3));
        assert_eq!(barrier.arrive(&clock(1, 4)), first);
        // A quick thread is already in the next cycle when the other leaves.
        let left = barrier.leave(first);
        let second = barrier.arrive(&clock(0, 9));
        assert_ne!(first, second);
        assert_eq!(left.get(1), 4);
        let left = barrier.leave(first);
        assert_eq!((left.get(0), left.get(1)), (3, 4));
    }

    #[test]
    fn a_store_ends_what_its_bytes_have_published() {
        let mut word = Object::default();
        word.publish(0b0001, &clock(0, 3), Publish::Replaces);
        word.publish(0b0001, &clock(1, 4), Publish::Continues);
        assert_eq!((word.clock.get(0), word.clock.get(1)), (3, 4));
        // A neighbour in the same word is another object.
        word.publish(0b0010, &VectorClock::default(), Publish::Replaces);
        assert_eq!(word.clock.get(0), 3);
        word.publish(0b0011, &VectorClock::default(), Publish::Replaces);
        assert!(word.clock.is_empty());
        word.publish(0b1111, &clock(2, 1), Publish::Replaces);
        assert_eq!((word.clock.get(0), word.clock.get(2)), (0, 1));
    }

    #[test]
    fn objects_end_with_their_memory() {
        let mut objects = Objects::default();
        objects.entry(0x100);
        objects.entry(0x200);
        objects.forget(0x80..0x180);
        assert!(objects.get(0x100).is_none());
        assert!(objects.get(0x200).is_some());
        for address in (0x1000..0x9000).step_by(64) {
            objects.entry(address);
        }
        objects.forget(0x2040..0x8000);
        assert!(objects.get(0x2000).is_some() && objects.get(0x8000).is_some());
        assert!(objects.get(0x2040).is_none() && objects.get(0x7fc0).is_none());
        objects.forget(0x2000..0x2008);
        assert!(objects.get(0x2000).is_none());
        objects.forget(0..u64::MAX);
        assert!(objects.by_page.is_empty());
    }
}
