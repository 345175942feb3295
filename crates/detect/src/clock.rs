//! Vector clocks and epochs.
//!
//! After Lamport's happens-before as papers 000 (section 3.2) and 003 (section
//! 4.5) use it, with FastTrack's epochs: an access is named by one component
//! of its thread's clock, and "A happened before B" is one comparison of A's
//! epoch with B's clock.
//!
//! Clocks are indexed by slot, not by thread number: a thread takes over the
//! slot of an ended one if that one's end happened before its start (then the
//! two are in order anyway), so programs that make threads for ever do not
//! grow their clocks.

/// Slot of a thread in vector clocks.
pub type Slot = u16;

/// Slots that fit into an epoch.
pub const SLOTS: usize = 4095;

/// A slot and a clock value with a byte mask, packed: `slot:12 | clock:44 |
/// mask:8`. Slots are stored plus one, so that zero is "no access".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    pub const MASK: u64 = 0xff;

    pub fn new(slot: Slot, clock: u64) -> Epoch {
        Epoch(((u64::from(slot) + 1) << 52) | (clock << 8))
    }

    pub fn with_mask(self, mask: u8) -> Epoch {
        Epoch((self.0 & !Self::MASK) | u64::from(mask))
    }

    pub fn mask(self) -> u8 {
        self.0 as u8
    }

    pub fn slot(self) -> Slot {
        ((self.0 >> 52) as Slot).wrapping_sub(1)
    }

    pub fn clock(self) -> u64 {
        (self.0 >> 8) & ((1 << 44) - 1)
    }

    /// Same slot and clock, whatever the masks.
    pub fn same_time(self, other: Epoch) -> bool {
        (self.0 ^ other.0) & !Self::MASK == 0
    }
}

/// What a thread knows of every slot's progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VectorClock {
    ticks: Vec<u64>,
}

impl VectorClock {
    pub fn get(&self, slot: Slot) -> u64 {
        self.ticks.get(usize::from(slot)).copied().unwrap_or(0)
    }

    /// One clock per slot; slots beyond are at zero.
    pub fn ticks(&self) -> &[u64] {
        &self.ticks
    }

    pub fn set(&mut self, slot: Slot, tick: u64) {
        let index = usize::from(slot);
        if index >= self.ticks.len() {
            self.ticks.resize(index + 1, 0);
        }
        self.ticks[index] = tick;
    }

    /// Takes over everything the other clock knows.
    pub fn join(&mut self, other: &VectorClock) {
        if self.ticks.len() < other.ticks.len() {
            self.ticks.resize(other.ticks.len(), 0);
        }
        for (mine, theirs) in self.ticks.iter_mut().zip(&other.ticks) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The access named by `epoch` happened before this clock's thread now.
    pub fn covers(&self, epoch: Epoch) -> bool {
        epoch.clock() <= self.get(epoch.slot())
    }

    pub fn clear(&mut self) {
        self.ticks.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.ticks.iter().all(|tick| *tick == 0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A clock that knows of one slot.
    pub(crate) fn clock(slot: Slot, tick: u64) -> VectorClock {
        let mut clock = VectorClock::default();
        clock.set(slot, tick);
        clock
    }

    #[test]
    fn epochs_pack_and_unpack() {
        let epoch = Epoch::new(4094, (1 << 44) - 1).with_mask(0x81);
        assert_eq!(epoch.slot(), 4094);
        assert_eq!(epoch.clock(), (1 << 44) - 1);
        assert_eq!(epoch.mask(), 0x81);
        assert!(epoch.same_time(epoch.with_mask(1)));
        assert_ne!(Epoch::new(0, 0).0, 0, "slot 0 is told from no access");
    }

    #[test]
    fn a_clock_covers_what_it_has_joined() {
        let (one, mut other) = (clock(0, 5), clock(3, 7));
        assert!(!other.covers(Epoch::new(0, 5)));
        other.join(&one);
        assert!(other.covers(Epoch::new(0, 5)));
        assert!(!other.covers(Epoch::new(0, 6)));
        assert!(other.covers(Epoch::new(3, 7)));
    }
}
