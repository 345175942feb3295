//! Synchronisation objects and the clocks they carry.
//!
//! An object is known by its address: a mutex a known function was called
//! with, a word that was the operand of a locked instruction, the tag of an
//! annotation. Two kinds of clock: what its releases have published, and, for
//! locks that are shared, what readers have published to the next writer.

use crate::clock::VectorClock;
use std::collections::BTreeMap;
use std::ops::Range;

/// One synchronisation object.
#[derive(Debug, Clone, Default)]
pub struct Object {
    pub clock: VectorClock,
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
    pub waiting: Vec<u32>,
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

/// All objects of one kind by address.
#[derive(Debug, Default)]
pub struct Objects {
    by_address: BTreeMap<u64, Object>,
}

impl Objects {
    pub fn get(&self, address: u64) -> Option<&Object> {
        self.by_address.get(&address)
    }

    pub fn entry(&mut self, address: u64) -> &mut Object {
        self.by_address.entry(address).or_default()
    }

    /// The memory is something else from now on.
    pub fn forget(&mut self, range: Range<u64>) {
        if self.by_address.range(range.clone()).next().is_none() {
            return;
        }
        let gone: Vec<u64> = self.by_address.range(range).map(|(at, _)| *at).collect();
        for address in gone {
            self.by_address.remove(&address);
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
    fn objects_end_with_their_memory() {
        let mut objects = Objects::default();
        objects.entry(0x100);
        objects.entry(0x200);
        objects.forget(0x80..0x180);
        assert!(objects.get(0x100).is_none());
        assert!(objects.get(0x200).is_some());
    }
}
