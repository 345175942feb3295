//! A lock that the program does not have: what if these lines were a critical
//! section?
//!
//! Some other part keeps threads apart while the program runs (`hunt::whatif`);
//! here is who is inside, and the edges that such a lock would make: a thread
//! that enters comes after all that have left.

use std::collections::{BTreeMap, BTreeSet};

/// The code of the section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedLock {
    /// Instructions of the section: a thread that is about to execute one is
    /// inside.
    pub inside: BTreeSet<u64>,
    /// Instructions that follow on it, and its returns: a thread that comes to
    /// one in the frame it entered in has left.
    pub exits: BTreeSet<u64>,
    /// How much deeper a frame may be at its exit than it was at its entry: a
    /// section that begins with its function enters before the frame is made.
    pub slack: u64,
}

/// What a thread does by coming to an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    Enters,
    Leaves,
}

/// The threads inside, with their stack pointers at entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inside(BTreeMap<u32, u64>);

impl AddedLock {
    /// A thread comes to `pc`; what that means. Nothing is changed.
    pub fn passes(&self, inside: &Inside, thread: u32, pc: u64, stack: u64) -> Option<Passing> {
        match inside.0.get(&thread) {
            None if self.inside.contains(&pc) => Some(Passing::Enters),
            Some(entered) if self.exits.contains(&pc) && stack + self.slack >= *entered => {
                Some(Passing::Leaves)
            }
            _ => None,
        }
    }

    /// Every instruction that matters.
    pub fn instructions(&self) -> impl Iterator<Item = u64> + '_ {
        self.inside.union(&self.exits).copied()
    }
}

impl Inside {
    pub fn enter(&mut self, thread: u32, stack: u64) {
        self.0.insert(thread, stack);
    }

    pub fn leave(&mut self, thread: u32) {
        self.0.remove(&thread);
    }

    pub fn threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_out_of_the_section_stays_inside() {
        let lock = AddedLock {
            inside: [10, 11].into(),
            exits: [12].into(),
            slack: 0,
        };
        let mut inside = Inside::default();
        assert_eq!(lock.passes(&inside, 1, 12, 100), None);
        assert_eq!(lock.passes(&inside, 1, 10, 100), Some(Passing::Enters));
        inside.enter(1, 100);
        assert_eq!(lock.passes(&inside, 1, 11, 100), None);
        assert_eq!(lock.passes(&inside, 1, 12, 40), None, "a deeper frame");
        assert_eq!(lock.passes(&inside, 2, 10, 500), Some(Passing::Enters));
        assert_eq!(lock.passes(&inside, 1, 12, 100), Some(Passing::Leaves));
    }
}
