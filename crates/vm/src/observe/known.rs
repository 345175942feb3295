//! The check that spares an observer the accesses it knows already, or does not
//! want to know.
//!
//! FastTrack's same-epoch case, done by translated code: an observer keeps, at
//! `SHADOW`, four words for every eight bytes of guest memory (the last
//! read, the last write, two of its own), each an epoch in the upper 56 bits and a mask of the
//! bytes accessed in the lower eight. If the word carries the running thread's
//! present epoch and all bytes of the access, the observer would learn nothing
//! and the access is not recorded.
//!
//! The observer works in batches, so its epoch may be behind. After every
//! record that may begin a new epoch (a locked instruction, a write that
//! `begins_epoch`, a write to a word that says `MANY`) translated code stops
//! comparing until the ring has been handed over, and asks for that soon.
//!
//! Guarantee: an access left out was made by the same thread, in the same
//! epoch, to bytes that the word says it has accessed in the same way. Only
//! whether flags that are overwritten before anybody reads them are right when
//! such an access faults is given up.

pub use crate::layout::{SHADOW, SHADOW_BITS, SHADOW_SIZE};

/// Which words say that an access is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// None.
    Nothing,
    /// Those with this epoch (lower eight bits zero) and the access's bytes.
    Epoch(u64),
    /// Those that are zero: the observer watches a few granules only.
    Zero,
}

/// Words with all of these bits do not carry an epoch but something only the
/// observer understands.
pub const MANY: u64 = 0xfff << 52;

/// Never set in a shadow word and always in what is compared with it: an
/// access that reaches into the next granule tests this bit and so is never
/// known.
const MARK: u64 = 1 << 51;

/// The observer's own: does not count in a comparison of up to eight bytes.
pub const NOTE: u64 = 1 << 50;

/// Once this many bytes are in the ring, a stale comparison is renewed.
pub(crate) const SOON: u32 = 64 * 16;

/// What translated code compares with.
#[repr(C)]
pub struct Comparison {
    /// The present epoch with a full mask.
    pub word: u64,
    /// The same with `MARK`.
    pub marked: u64,
    /// Translated code has stopped comparing.
    pub stale: u64,
    /// Takes an address to that of its granule, folded.
    pub fold: u64,
    /// Bits of a word that matter to an access, by log2 of its size and by
    /// where in the granule it begins.
    pub masks: [[u64; 8]; 4],
}

impl Comparison {
    pub(crate) fn install(&mut self) {
        self.fold = ((1 << SHADOW_BITS) - 1) & !7;
        for (log, masks) in self.masks.iter_mut().enumerate() {
            let size = 1u32 << log;
            for (first, mask) in masks.iter_mut().enumerate() {
                let first = first as u32;
                *mask = if first + size > 8 {
                    MARK
                } else {
                    (!0xff & !MARK & !NOTE) | u64::from(((1u32 << size) - 1) << first)
                };
            }
        }
        self.renew(Compare::Nothing);
    }

    pub(crate) fn renew(&mut self, compare: Compare) {
        self.word = match compare {
            Compare::Nothing => u64::MAX,
            Compare::Epoch(epoch) => epoch | 0xff,
            Compare::Zero => 0,
        };
        self.marked = self.word | MARK;
        self.stale = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let mut comparison = Comparison {
            word: 0,
            marked: 0,
            stale: 0,
            fold: 0,
            masks: [[0; 8]; 4],
        };
        comparison.install();
        comparison
    }

    fn known(comparison: &Comparison, word: u64, log: usize, first: usize) -> bool {
        (word ^ comparison.marked) & comparison.masks[log][first] == 0
    }

    #[test]
    fn only_the_bytes_of_the_access_matter() {
        let mut comparison = comparison();
        let epoch = (3 << 52) | (77 << 8);
        comparison.renew(Compare::Epoch(epoch));
        assert!(known(&comparison, epoch | 0xff, 3, 0));
        assert!(known(&comparison, epoch | 0x0f, 2, 0));
        assert!(!known(&comparison, epoch | 0x0f, 2, 4));
        assert!(!known(&comparison, epoch | 0x0f, 3, 0));
        assert!(!known(&comparison, (epoch + (1 << 8)) | 0xff, 0, 5));
    }

    #[test]
    fn nothing_straddling_stale_or_untouched_is_known() {
        let mut comparison = comparison();
        let epoch = (3 << 52) | (77 << 8);
        for word in [0, MANY, MANY | 0xffff_ffff, epoch | 0xff] {
            assert!(!known(&comparison, word, 0, 0));
        }
        comparison.renew(Compare::Epoch(epoch));
        assert!(!known(&comparison, epoch | 0xff, 3, 1));
        assert!(!known(&comparison, epoch | 0xff, 1, 7));
    }

    #[test]
    fn zero_is_known_to_a_watcher_and_nothing_else() {
        let mut comparison = comparison();
        comparison.renew(Compare::Zero);
        assert!(known(&comparison, 0, 2, 4));
        assert!(!known(&comparison, 0, 2, 5));
        assert!(!known(&comparison, 1 << 52, 2, 4));
    }
}
