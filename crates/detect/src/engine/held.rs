//! The locks that a thread holds, oldest first.
//!
//! Programs hold one or two, and some hold a hundred thousand: taking a lock
//! and giving it back costs the same with either, whichever is given back.

use super::{Held, LockKind};
use rustc_hash::FxHashMap;
use std::cell::OnceCell;
use std::rc::Rc;

/// Addresses and kinds of locks held, as accesses remember them.
pub type HeldNames = Rc<[(u64, LockKind)]>;

#[derive(Debug, Default)]
pub struct HeldLocks {
    /// In the order they were taken in; nothing where one was given back
    /// before a later one. The last is never nothing.
    places: Vec<Option<Held>>,
    /// Places by address.
    by_address: FxHashMap<u64, usize>,
    names: OnceCell<HeldNames>,
}

impl HeldLocks {
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.places.iter().flatten()
    }

    /// The one taken last.
    pub fn latest(&self) -> Option<&Held> {
        self.places.last().and_then(Option::as_ref)
    }

    pub fn get_mut(&mut self, address: u64) -> Option<&mut Held> {
        self.places[*self.by_address.get(&address)?].as_mut()
    }

    /// Enters a lock that the thread does not hold yet.
    pub fn push(&mut self, held: Held) {
        self.names.take();
        self.by_address.insert(held.address, self.places.len());
        self.places.push(Some(held));
    }

    pub fn remove(&mut self, address: u64) -> Option<Held> {
        let place = self.by_address.remove(&address)?;
        self.names.take();
        let held = self.places[place].take();
        while let Some(None) = self.places.last() {
            self.places.pop();
        }
        // Empty places are paid for by the locks that were given back.
        if self.places.len() > 2 * self.by_address.len() + 8 {
            self.close_ranks();
        }
        held
    }

    fn close_ranks(&mut self) {
        self.places.retain(Option::is_some);
        for (place, held) in self
            .iter()
            .map(|held| held.address)
            .enumerate()
            .collect::<Vec<_>>()
        {
            self.by_address.insert(held, place);
        }
    }

    /// All of them, made once for all accesses until the next change.
    pub fn names(&self) -> HeldNames {
        let names = self
            .names
            .get_or_init(|| self.iter().map(|held| (held.address, held.kind)).collect());
        Rc::clone(names)
    }
}

impl IntoIterator for HeldLocks {
    type Item = Held;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Option<Held>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.places.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::Moment;

    fn held(address: u64) -> Held {
        Held {
            address,
            kind: LockKind::Mutex,
            moment: Moment::new(1, address),
            order: address,
            times: 1,
        }
    }

    fn addresses(locks: &HeldLocks) -> Vec<u64> {
        locks.iter().map(|held| held.address).collect()
    }

    #[test]
    fn locks_come_back_in_any_order() {
        let mut locks = HeldLocks::default();
        for address in 0..100 {
            locks.push(held(address));
        }
        for address in (0..100).filter(|address| address % 10 != 3) {
            assert_eq!(
                locks.remove(address).map(|held| held.address),
                Some(address)
            );
        }
        assert_eq!(addresses(&locks), [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]);
        assert!(locks.places.len() <= 2 * locks.len() + 8);
        assert_eq!(locks.latest().map(|held| held.address), Some(93));
        assert!(locks.remove(7).is_none());
        locks.get_mut(53).unwrap().times = 2;
        locks.push(held(7));
        assert_eq!(locks.remove(53).map(|held| held.times), Some(2));
        assert_eq!(locks.latest().map(|held| held.address), Some(7));
    }

    #[test]
    fn names_follow_every_change() {
        let mut locks = HeldLocks::default();
        locks.push(held(1));
        assert_eq!(&*locks.names(), [(1, LockKind::Mutex)]);
        locks.push(held(2));
        assert_eq!(locks.names().len(), 2);
        locks.remove(1);
        assert_eq!(&*locks.names(), [(2, LockKind::Mutex)]);
    }

    #[test]
    fn first_in_first_out_moves_little() {
        let mut locks = HeldLocks::default();
        for address in 0..1000 {
            locks.push(held(address));
        }
        for address in 0..1000 {
            locks.remove(address);
            locks.push(held(1000 + address));
            assert!(locks.places.len() <= 2 * 1000 + 9);
        }
        assert_eq!(locks.len(), 1000);
    }
}
