//! Shadow memory: who last read and wrote every byte.
//!
//! Two words per eight-byte granule, in one linear mapping that the kernel
//! fills with zeroes on demand: the last read and the last write, each an
//! `Epoch` with a mask of the bytes touched. Where one epoch does not do (two
//! threads read, two threads wrote different bytes, atomic accesses) the word
//! names a list of epochs instead. Nothing is ever thrown away while it could
//! matter, so the shadow is byte-exact (unlike TSan's four cells); FastTrack's
//! rule keeps lists short: an access replaces what happened before it.
//!
//! A write also enters the read word, so one comparison decides either fast
//! path: `(word ^ current) & (!0xff | mask) == 0` where `current` is the
//! thread's epoch with all mask bits set. That is the check translated code
//! can do inline. Address bits do not keep their places (the shadow is twice
//! as large as memory), so 4 KiB aliasing between data and shadow is rare.
//!
//! Addresses are folded to 40 bits: the vm places guest memory, and no two
//! regions it uses agree in those. A clash could only add a candidate, which
//! the second pass (exact addresses) refutes.

use crate::clock::{Epoch, VectorClock};
use std::collections::HashMap;

const ADDRESS_BITS: u32 = 40;
const SIZE: usize = 2 << ADDRESS_BITS;

/// A word with this slot field names a list.
const LIST: u64 = 0xfff << 52;
const IS_LIST: u64 = 0xfff << 52;

/// Ranges at least this large are cleared by giving pages back.
const LARGE: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve 2 TiB of address space for shadow memory: {0}; raise `ulimit -v`, or set vm.overcommit_memory to 0 or 1"
)]
pub struct ShadowError(std::io::Error);

/// Several epochs of a granule.
#[derive(Debug, Default, Clone)]
struct List {
    epochs: Vec<Epoch>,
}

/// What a check found besides the update: bytes whose access is concurrent
/// with an earlier conflicting one.
pub type RacyBytes = u8;

pub struct Shadow {
    base: *mut u64,
    lists: Vec<List>,
    free: Vec<u32>,
    /// Locked accesses by granule: (epoch, wrote).
    atomics: HashMap<u64, Vec<(Epoch, bool)>>,
}

/// The bytes of one granule that an access touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub granule: u64,
    pub mask: u8,
}

/// Splits an access into granules.
pub fn pieces(address: u64, size: u64) -> impl Iterator<Item = Piece> {
    let end = address.saturating_add(size);
    let mut at = address;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let granule = at >> 3;
        let first = at & 7;
        let length = (8 - first).min(end - at);
        at += length;
        Some(Piece {
            granule,
            mask: (((1u16 << length) - 1) << first) as u8,
        })
    })
}

/// Removes the bytes of `mask` from every epoch that `gone` holds for.
fn thin(epochs: &mut Vec<Epoch>, mask: u8, gone: impl Fn(Epoch) -> bool) {
    epochs.retain_mut(|epoch| {
        if epoch.mask() & mask != 0 && gone(*epoch) {
            *epoch = epoch.with_mask(epoch.mask() & !mask);
        }
        epoch.mask() != 0
    });
}

fn enter(epochs: &mut Vec<Epoch>, epoch: Epoch) {
    match epochs.iter_mut().find(|known| known.same_time(epoch)) {
        Some(known) => known.0 |= epoch.0,
        None => epochs.push(epoch),
    }
}

/// Bytes of `mask` that epochs not covered by `clock` touch.
fn concurrent(epochs: &[Epoch], mask: u8, clock: &VectorClock) -> RacyBytes {
    epochs
        .iter()
        .filter(|epoch| epoch.mask() & mask != 0 && !clock.covers(**epoch))
        .fold(0, |bytes, epoch| bytes | epoch.mask())
        & mask
}

impl Shadow {
    pub fn new() -> Result<Shadow, ShadowError> {
        // SAFETY: a fresh anonymous mapping wherever the kernel likes; guest
        // memory has fixed places elsewhere.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(ShadowError(std::io::Error::last_os_error()));
        }
        Ok(Shadow {
            base: base.cast(),
            lists: Vec::new(),
            free: Vec::new(),
            atomics: HashMap::new(),
        })
    }

    fn offset(granule: u64) -> usize {
        ((granule & ((1 << (ADDRESS_BITS - 3)) - 1)) * 2) as usize
    }

    fn words(&mut self, granule: u64) -> &mut [u64; 2] {
        // SAFETY: the offset is below the size of the mapping, two words per
        // granule, and `self` is borrowed for as long as the reference lives.
        unsafe { &mut *self.base.add(Self::offset(granule)).cast() }
    }

    /// The access is by the thread and in the epoch that made the last one
    /// like it: nothing new.
    #[inline(always)]
    pub fn is_known(&self, granule: u64, mask: u8, write: bool, current: Epoch) -> bool {
        // SAFETY: as in `words`.
        let word = unsafe { *self.base.add(Self::offset(granule) + usize::from(write)) };
        (word ^ current.0 ^ Epoch::MASK) & (!Epoch::MASK | u64::from(mask)) == 0
    }

    fn epochs(&self, word: u64) -> Vec<Epoch> {
        if word == 0 {
            Vec::new()
        } else if word & IS_LIST == IS_LIST {
            self.lists[(word & 0xffff_ffff) as usize].epochs.clone()
        } else {
            vec![Epoch(word)]
        }
    }

    /// `keep`: stay a list, so that no access passes the fast check.
    fn store(&mut self, old: u64, epochs: Vec<Epoch>, keep: bool) -> u64 {
        let old_list = (old & IS_LIST == IS_LIST).then_some((old & 0xffff_ffff) as u32);
        match epochs.as_slice() {
            [] | [_] if !keep => {
                if let Some(list) = old_list {
                    self.lists[list as usize].epochs = Vec::new();
                    self.free.push(list);
                }
                epochs.first().map_or(0, |epoch| epoch.0)
            }
            _ => {
                let index = old_list.or_else(|| self.free.pop()).unwrap_or_else(|| {
                    self.lists.push(List::default());
                    (self.lists.len() - 1) as u32
                });
                self.lists[index as usize].epochs = epochs;
                LIST | u64::from(index)
            }
        }
    }

    /// A plain read: checks it against writes, then notes it.
    pub fn read(&mut self, piece: Piece, current: Epoch, clock: &VectorClock) -> RacyBytes {
        let Piece { granule, mask } = piece;
        let [read, write] = *self.words(granule);
        let mut racy = 0;
        if write != 0 {
            racy = self.check(write, mask, clock);
        }
        let atomics = self.atomics_of(granule);
        let keep = atomics.is_some();
        if let Some(atomics) = atomics {
            racy |= atomic_conflicts(atomics, mask, clock, true);
        }
        let known = Epoch(read);
        let word = if read == 0 || (known.same_time(current) && read & IS_LIST != IS_LIST) {
            (read & Epoch::MASK) | current.with_mask(mask).0
        } else if read & IS_LIST != IS_LIST && known.mask() & !mask == 0 && clock.covers(known) {
            current.with_mask(mask).0
        } else {
            let mut epochs = self.epochs(read);
            thin(&mut epochs, mask, |epoch| clock.covers(epoch));
            enter(&mut epochs, current.with_mask(mask));
            self.store(read, epochs, keep)
        };
        self.words(granule)[0] = word;
        racy
    }

    /// A plain write: checks it against reads and writes, then notes it.
    pub fn write(&mut self, piece: Piece, current: Epoch, clock: &VectorClock) -> RacyBytes {
        let Piece { granule, mask } = piece;
        let [read, write] = *self.words(granule);
        let mut racy = 0;
        for word in [read, write] {
            if word != 0 {
                racy |= self.check(word, mask, clock);
            }
        }
        let atomics = self.atomics_of(granule);
        let keep = atomics.is_some();
        if let Some(atomics) = atomics {
            racy |= atomic_conflicts(atomics, mask, clock, false);
        }
        for (index, word) in [read, write].into_iter().enumerate() {
            let known = Epoch(word);
            let simple = word & IS_LIST != IS_LIST;
            let new = if word == 0 || (simple && known.mask() & !mask == 0) {
                current.with_mask(mask).0
            } else if simple && known.same_time(current) {
                word | u64::from(mask)
            } else {
                let mut epochs = self.epochs(word);
                thin(&mut epochs, mask, |_| true);
                enter(&mut epochs, current.with_mask(mask));
                self.store(word, epochs, keep)
            };
            self.words(granule)[index] = new;
        }
        racy
    }

    fn check(&self, word: u64, mask: u8, clock: &VectorClock) -> RacyBytes {
        if word & IS_LIST == IS_LIST {
            concurrent(
                &self.lists[(word & 0xffff_ffff) as usize].epochs,
                mask,
                clock,
            )
        } else {
            let epoch = Epoch(word);
            if epoch.mask() & mask == 0 || clock.covers(epoch) {
                0
            } else {
                epoch.mask() & mask
            }
        }
    }

    /// An atomic access: never races with another atomic one.
    pub fn atomic(
        &mut self,
        piece: Piece,
        current: Epoch,
        clock: &VectorClock,
        write: bool,
    ) -> RacyBytes {
        let Piece { granule, mask } = piece;
        let [read_word, write_word] = *self.words(granule);
        let mut racy = self.check(write_word, mask, clock);
        if write {
            racy |= self.check(read_word, mask, clock);
        }
        if self.atomics_of(granule).is_none() {
            // From now on plain accesses here always come to the slow path,
            // which may find that they synchronise.
            for (index, word) in [read_word, write_word].into_iter().enumerate() {
                let epochs = self.epochs(word);
                self.words(granule)[index] = self.store(word, epochs, true);
            }
        }
        let atomics = self.atomics.entry(granule).or_default();
        // Atomic accesses by the same thread or before this one say nothing
        // that this one does not say, if it writes as they did.
        atomics.retain(|(epoch, wrote)| {
            epoch.mask() & !mask != 0 || (*wrote && !write) || !clock.covers(*epoch)
        });
        atomics.push((current.with_mask(mask), write));
        racy
    }

    fn atomics_of(&self, granule: u64) -> Option<&[(Epoch, bool)]> {
        if self.atomics.is_empty() {
            return None;
        }
        self.atomics.get(&granule).map(Vec::as_slice)
    }

    /// The memory is new: nobody has touched it.
    pub fn clear(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        if size >= LARGE {
            // Shadow pages describe 2 KiB of memory each.
            let from = start.next_multiple_of(4096);
            let to = end & !4095;
            if from < to {
                self.clear_small(start, from - start);
                self.forget_atomics(from, to);
                self.drop_pages(from, to);
                self.clear_small(to, end - to);
                return;
            }
        }
        self.clear_small(start, size);
    }

    fn drop_pages(&mut self, from: u64, to: u64) {
        // Lists of dropped granules stay allocated until their index is
        // reused by nobody: collect them where the shadow was touched.
        let at = Self::offset(from >> 3);
        let length = ((to - from) / 8 * 2) as usize;
        // SAFETY: the range lies in the mapping (large guest ranges that wrap
        // the folded address space do not exist below 1 TiB) and holds no
        // references.
        unsafe {
            if at + length <= SIZE / 8 {
                libc::madvise(self.base.add(at).cast(), length * 8, libc::MADV_DONTNEED);
            }
        }
    }

    fn forget_atomics(&mut self, from: u64, to: u64) {
        if self.atomics.is_empty() {
            return;
        }
        self.atomics
            .retain(|granule, _| *granule < from >> 3 || *granule >= to >> 3);
    }

    fn clear_small(&mut self, start: u64, size: u64) {
        for piece in pieces(start, size) {
            if !self.atomics.is_empty() {
                self.atomics.remove(&piece.granule);
            }
            for index in 0..2 {
                let word = self.words(piece.granule)[index];
                if word == 0 {
                    continue;
                }
                let new = if piece.mask == 0xff && word & IS_LIST != IS_LIST {
                    0
                } else {
                    let mut epochs = self.epochs(word);
                    thin(&mut epochs, piece.mask, |_| true);
                    self.store(word, epochs, false)
                };
                self.words(piece.granule)[index] = new;
            }
        }
    }
}

fn atomic_conflicts(
    atomics: &[(Epoch, bool)],
    mask: u8,
    clock: &VectorClock,
    only_writes: bool,
) -> RacyBytes {
    atomics
        .iter()
        .filter(|(epoch, wrote)| {
            (*wrote || !only_writes) && epoch.mask() & mask != 0 && !clock.covers(*epoch)
        })
        .fold(0, |bytes, (epoch, _)| bytes | epoch.mask())
        & mask
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // SAFETY: unmapping what `new` mapped; nobody refers to it any more.
        unsafe {
            libc::munmap(self.base.cast(), SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thread {
        clock: VectorClock,
        epoch: Epoch,
    }

    fn thread(slot: u16, tick: u64) -> Thread {
        let mut clock = VectorClock::default();
        clock.set(slot, tick);
        Thread {
            clock,
            epoch: Epoch::new(slot, tick),
        }
    }

    fn piece(mask: u8) -> Piece {
        Piece {
            granule: 0x1000,
            mask,
        }
    }

    #[test]
    fn only_shared_bytes_race() {
        let mut shadow = Shadow::new().unwrap();
        let (one, two) = (thread(0, 1), thread(1, 1));
        assert_eq!(shadow.write(piece(0x0f), one.epoch, &one.clock), 0);
        assert_eq!(shadow.write(piece(0xf0), two.epoch, &two.clock), 0);
        assert_eq!(shadow.read(piece(0x18), one.epoch, &one.clock), 0x10);
        assert_eq!(shadow.read(piece(0x08), two.epoch, &two.clock), 0x08);
    }

    #[test]
    fn every_concurrent_reader_is_remembered() {
        let mut shadow = Shadow::new().unwrap();
        let (one, two, mut three) = (thread(0, 1), thread(1, 1), thread(2, 1));
        shadow.read(piece(0xff), one.epoch, &one.clock);
        shadow.read(piece(0xff), two.epoch, &two.clock);
        three.clock.join(&two.clock);
        assert_eq!(
            shadow.write(piece(0xff), three.epoch, &three.clock),
            0xff,
            "the first reader is not ordered"
        );
    }

    #[test]
    fn ordered_accesses_do_not_race_and_are_known() {
        let mut shadow = Shadow::new().unwrap();
        let (one, mut two) = (thread(0, 1), thread(1, 1));
        shadow.write(piece(0xff), one.epoch, &one.clock);
        assert!(shadow.is_known(0x1000, 0x3c, false, one.epoch));
        assert!(shadow.is_known(0x1000, 0x3c, true, one.epoch));
        two.clock.join(&one.clock);
        assert!(!shadow.is_known(0x1000, 0x3c, true, two.epoch));
        assert_eq!(shadow.write(piece(0x3c), two.epoch, &two.clock), 0);
        assert_eq!(shadow.read(piece(0xff), one.epoch, &one.clock), 0x3c);
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        let mut shadow = Shadow::new().unwrap();
        let (one, two) = (thread(0, 1), thread(1, 1));
        assert_eq!(shadow.atomic(piece(0xff), one.epoch, &one.clock, true), 0);
        assert_eq!(shadow.atomic(piece(0xff), two.epoch, &two.clock, true), 0);
        assert_eq!(shadow.read(piece(0x01), one.epoch, &one.clock), 0x01);
    }

    #[test]
    fn cleared_memory_has_no_past() {
        let mut shadow = Shadow::new().unwrap();
        let (one, two) = (thread(0, 1), thread(1, 1));
        for large in [8, 1 << 20] {
            shadow.write(piece(0xff), one.epoch, &one.clock);
            shadow.clear(0x8000, large);
            assert_eq!(shadow.read(piece(0xff), two.epoch, &two.clock), 0);
            shadow.clear(0x8000, large);
        }
    }
}
