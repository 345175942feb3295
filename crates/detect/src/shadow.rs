//! Shadow memory: who last read and wrote every byte.
//!
//! Four words per eight-byte granule, in one linear mapping that the kernel
//! fills with zeroes on demand: the last read and the last write, each an
//! `Epoch` with a mask of the bytes touched, and the epoch before each of them.
//! Where two do not do (threads read or wrote different bytes) the word has a
//! note that a table has others; where an atomic access was made it names a
//! list of epochs instead. Nothing is ever thrown away while it could matter
//! (unlike TSan's four cells); FastTrack's rule keeps lists short: an access
//! replaces what happened before it. The word before may hold bytes of two
//! epochs of a thread under the later one: the shadow says no race too few, and
//! what it says too much the second pass refutes.
//!
//! A write also enters the read word, so one comparison decides either fast
//! path: `(word ^ current) & (!0xff | mask) == 0` where `current` is the
//! thread's epoch with all mask bits set. That is the check translated code
//! does inline (`vm::observe::known`), which also notes accesses itself where all
//! words are the thread's own. Address bits do not keep their places (the shadow is four
//! times as large as memory), so 4 KiB aliasing between data and shadow is rare.
//!
//! Addresses are folded to 40 bits: the vm places guest memory, and no two
//! regions it uses agree in those. A clash could only add a candidate, which
//! the second pass (exact addresses) refutes.

use crate::clock::{Epoch, VectorClock};
use rustc_hash::FxHashMap;
use vm::observe::known::{MANY, NOTE, SHADOW, SHADOW_BITS, SHADOW_SIZE};

/// A little more: a wide access at the very end looks at the next granules.
const SIZE: usize = SHADOW_SIZE as usize + 4096;

/// Ranges at least this large are cleared by giving pages back, and not gone
/// through where nobody has used them.
pub const LARGE: u64 = 64 << 10;

/// Memory that a page of shadow describes.
const PAGE: u64 = 4096 / 4;

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve 4 TiB of address space for shadow memory: {0}; raise `ulimit -v`, or set vm.overcommit_memory to 0 or 1"
)]
pub struct ShadowError(std::io::Error);

/// What a check found besides the update: bytes whose access is concurrent
/// with an earlier conflicting one.
pub type RacyBytes = u8;

/// Four words for every granule, zero until somebody writes them.
struct Words {
    base: *mut u64,
}

impl Words {
    /// At the place where translated code looks.
    fn for_translated_code() -> Result<Words, ShadowError> {
        Self::map(SHADOW, libc::MAP_FIXED_NOREPLACE)
    }

    fn map(place: u64, flags: i32) -> Result<Words, ShadowError> {
        // SAFETY: a fresh anonymous mapping that replaces none; guest memory
        // has its places elsewhere.
        let base = unsafe {
            libc::mmap(
                place as *mut libc::c_void,
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(ShadowError(std::io::Error::last_os_error()));
        }
        Ok(Words { base: base.cast() })
    }

    fn offset(granule: u64) -> usize {
        ((granule & ((1 << (SHADOW_BITS - 3)) - 1)) * 4) as usize
    }

    #[inline(always)]
    fn get(&self, granule: u64, which: usize) -> u64 {
        // SAFETY: the offset is below the size of the mapping, four words per
        // granule.
        unsafe { *self.base.add(Self::offset(granule) + which) }
    }

    fn set(&mut self, granule: u64, which: usize, word: u64) {
        // SAFETY: as in `get`.
        unsafe { *self.base.add(Self::offset(granule) + which) = word }
    }

    /// For each page of words from that of `from` to that of `to`: whether it
    /// has ever been used.
    fn used_pages(&self, from: u64, to: u64) -> Vec<bool> {
        let at = Self::offset(from >> 3) & !511;
        let count = (to.div_ceil(PAGE) - from / PAGE) as usize;
        let mut used = vec![1u8; count];
        // SAFETY: asks about pages of the mapping (others give an error, and
        // then all count as used); the answer has a byte for each.
        let known = unsafe {
            at + count * 512 <= SIZE / 8
                && libc::mincore(self.base.add(at).cast(), count * 4096, used.as_mut_ptr()) == 0
        };
        used.into_iter()
            .map(|page| !known || page & 1 != 0)
            .collect()
    }

    /// Makes the words of whole pages of memory zero.
    fn drop_pages(&mut self, from: u64, to: u64) {
        let at = Self::offset(from >> 3);
        let length = ((to - from) / 8 * 4) as usize;
        // SAFETY: the range lies in the mapping (large guest ranges that wrap
        // the folded address space do not exist below 1 TiB) and holds no
        // references.
        unsafe {
            if at + length <= SIZE / 8 {
                libc::madvise(self.base.add(at).cast(), length * 8, libc::MADV_DONTNEED);
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: unmapping what `map` mapped; nobody refers to it any more.
        unsafe {
            libc::munmap(self.base.cast(), SIZE);
        }
    }
}

/// The few granules that a second look is for, where translated code sees them.
pub struct Watch {
    words: Words,
}

impl Watch {
    pub fn new(granules: &[u64]) -> Result<Watch, ShadowError> {
        let mut words = Words::for_translated_code()?;
        // An access that begins in the granule before may reach into it.
        for granule in granules.iter().flat_map(|one| [one.wrapping_sub(1), *one]) {
            for which in [READ, WRITE] {
                words.set(granule, which, 1 << 52);
            }
        }
        Ok(Watch { words })
    }

    /// False only if the granule is not watched.
    #[inline(always)]
    pub fn may_contain(&self, granule: u64) -> bool {
        self.words.get(granule, READ) != 0
    }
}

/// Index of a granule's word for reads and writes, and for writes.
const READ: usize = 0;
const WRITE: usize = 1;

/// Added to it: the word for an epoch before the latest.
const BEFORE: usize = 2;

pub struct Shadow {
    words: Words,
    /// Epochs that do not fit into a word with `NOTE`, by granule and word.
    others: FxHashMap<(u64, usize), Vec<Epoch>>,
    /// What words that say `MANY` stand for.
    lists: Vec<Vec<Epoch>>,
    free: Vec<u32>,
    /// Locked accesses by granule: (epoch, wrote).
    atomics: FxHashMap<u64, Vec<(Epoch, bool)>>,
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
    /// At the place where translated code looks.
    pub fn for_translated_code() -> Result<Shadow, ShadowError> {
        Ok(Self::over(Words::for_translated_code()?))
    }

    fn over(words: Words) -> Shadow {
        Shadow {
            words,
            others: FxHashMap::default(),
            lists: Vec::new(),
            free: Vec::new(),
            atomics: FxHashMap::default(),
        }
    }

    /// The access is by the thread and in the epoch that made the last one
    /// like it: nothing new.
    #[inline(always)]
    pub fn is_known(&self, granule: u64, mask: u8, write: bool, current: Epoch) -> bool {
        let word = self.words.get(granule, usize::from(write)) & !NOTE;
        (word ^ current.0 ^ Epoch::MASK) & (!Epoch::MASK | u64::from(mask)) == 0
    }

    fn epochs(&self, granule: u64, which: usize) -> Vec<Epoch> {
        let word = self.words.get(granule, which);
        if word & MANY == MANY {
            return self.lists[(word & 0xffff_ffff) as usize].clone();
        }
        let mut epochs = Vec::new();
        for word in [word & !NOTE, self.words.get(granule, which + BEFORE)] {
            if word != 0 {
                epochs.push(Epoch(word));
            }
        }
        if word & NOTE != 0 {
            epochs.extend(self.others.get(&(granule, which)).into_iter().flatten());
        }
        epochs
    }

    /// Replaces what is known, as a list that no access is known by.
    fn store_list(&mut self, granule: u64, which: usize, epochs: Vec<Epoch>) {
        let word = self.words.get(granule, which);
        let index = if word & MANY == MANY {
            (word & 0xffff_ffff) as u32
        } else {
            if word & NOTE != 0 {
                self.others.remove(&(granule, which));
            }
            self.words.set(granule, which + BEFORE, 0);
            self.free.pop().unwrap_or_else(|| {
                self.lists.push(Vec::new());
                (self.lists.len() - 1) as u32
            })
        };
        self.lists[index as usize] = epochs;
        self.words.set(granule, which, MANY | u64::from(index));
    }

    fn forget(&mut self, granule: u64, which: usize) {
        let word = self.words.get(granule, which);
        if word & MANY == MANY {
            let index = (word & 0xffff_ffff) as u32;
            self.lists[index as usize] = Vec::new();
            self.free.push(index);
        } else if word & NOTE != 0 {
            self.others.remove(&(granule, which));
        }
        self.words.set(granule, which, 0);
        self.words.set(granule, which + BEFORE, 0);
    }

    /// Notes an access in a word. Earlier ones to the same bytes are dropped
    /// where `gone`.
    fn note(&mut self, piece: Piece, which: usize, current: Epoch, gone: impl Fn(Epoch) -> bool) {
        let Piece { granule, mask } = piece;
        let word = self.words.get(granule, which);
        if word & MANY == MANY {
            let epochs = &mut self.lists[(word & 0xffff_ffff) as usize];
            thin(epochs, mask, gone);
            enter(epochs, current.with_mask(mask));
            return;
        }
        let known = Epoch(word & !NOTE);
        let same = known.same_time(current);
        // What is left of it in this word; a write still is in its own.
        let mut rest = known.mask();
        if gone(known) {
            rest &= !mask;
        }
        let written = Epoch(self.words.get(granule, WRITE) & !NOTE);
        if which == READ && written.same_time(known) {
            rest &= !written.mask();
        }
        if same {
            self.words.set(granule, which, word | u64::from(mask));
            return;
        }
        let mut before = Epoch(self.words.get(granule, which + BEFORE));
        if word & NOTE == 0 && rest == 0 && before.0 == 0 {
            self.words.set(granule, which, current.with_mask(mask).0);
            return;
        }
        if before.mask() & mask != 0 && gone(before) {
            before = before.with_mask(before.mask() & !mask);
        }
        // The thread may have been here before, in this epoch.
        let mut bytes = mask;
        if before.same_time(current) {
            bytes |= before.mask();
            before = before.with_mask(0);
        }
        // Two earlier epochs of one thread go under the later one: that may
        // add a candidate, never lose one.
        if rest != 0 && before.slot() == known.slot() && before.mask() != 0 {
            rest |= before.mask();
            before = before.with_mask(0);
        }
        let mut note = word & NOTE;
        if note != 0 || (rest != 0 && before.mask() != 0 && !before.same_time(known)) {
            let others = self.others.entry((granule, which)).or_default();
            thin(others, mask, &gone);
            others.retain(|other| {
                let mine = other.same_time(current);
                bytes |= if mine { other.mask() } else { 0 };
                !mine
            });
            if rest != 0 && before.mask() != 0 && !before.same_time(known) {
                enter(others, before);
                before = before.with_mask(0);
            }
            note = NOTE;
            if others.is_empty() {
                self.others.remove(&(granule, which));
                note = 0;
            }
        }
        if rest != 0 {
            before = known.with_mask(rest | before.mask());
        }
        let before = if before.mask() == 0 { 0 } else { before.0 };
        self.words.set(granule, which + BEFORE, before);
        self.words
            .set(granule, which, current.with_mask(bytes).0 | note);
    }

    /// Bytes of an access that are concurrent with what a word knows.
    fn check(&self, piece: Piece, which: usize, clock: &VectorClock) -> RacyBytes {
        let Piece { granule, mask } = piece;
        let word = self.words.get(granule, which);
        if word == 0 {
            return 0;
        }
        if word & MANY == MANY {
            return concurrent(&self.lists[(word & 0xffff_ffff) as usize], mask, clock);
        }
        let before = self.words.get(granule, which + BEFORE);
        let mut racy = concurrent(&[Epoch(word & !NOTE), Epoch(before)], mask, clock);
        if word & NOTE != 0
            && let Some(others) = self.others.get(&(granule, which))
        {
            racy |= concurrent(others, mask, clock);
        }
        racy
    }

    /// A plain read: checks it against writes, then notes it.
    pub fn read(&mut self, piece: Piece, current: Epoch, clock: &VectorClock) -> RacyBytes {
        let mut racy = self.check(piece, WRITE, clock);
        if let Some(atomics) = self.atomics_of(piece.granule) {
            racy |= atomic_conflicts(atomics, piece.mask, clock, true);
        }
        self.note(piece, READ, current, |epoch| clock.covers(epoch));
        racy
    }

    /// A plain write: checks it against reads and writes, then notes it.
    pub fn write(&mut self, piece: Piece, current: Epoch, clock: &VectorClock) -> RacyBytes {
        let mut racy = self.check(piece, READ, clock) | self.check(piece, WRITE, clock);
        if let Some(atomics) = self.atomics_of(piece.granule) {
            racy |= atomic_conflicts(atomics, piece.mask, clock, false);
        }
        for which in [READ, WRITE] {
            self.note(piece, which, current, |_| true);
        }
        racy
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
        let mut racy = self.check(piece, WRITE, clock);
        if write {
            racy |= self.check(piece, READ, clock);
        }
        if self.atomics_of(granule).is_none() {
            self.ask_always(granule);
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

    /// From now on plain accesses here always come to the slow path, which may
    /// find that they synchronise.
    pub fn ask_always(&mut self, granule: u64) {
        for which in [READ, WRITE] {
            if self.words.get(granule, which) & MANY != MANY {
                let epochs = self.epochs(granule, which);
                self.store_list(granule, which, epochs);
            }
        }
    }

    fn atomics_of(&self, granule: u64) -> Option<&[(Epoch, bool)]> {
        if self.atomics.is_empty() {
            return None;
        }
        self.atomics.get(&granule).map(Vec::as_slice)
    }

    /// The parts of a range that somebody may have touched.
    pub fn touched(&self, start: u64, size: u64) -> Vec<(u64, u64)> {
        let end = start.saturating_add(size);
        let first = start & !(PAGE - 1);
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (index, used) in (0..).zip(self.words.used_pages(start, end)) {
            let from = (first + index * PAGE).max(start);
            let to = (first + (index + 1) * PAGE).min(end);
            match parts.last_mut() {
                Some((part, length)) if used && *part + *length == from => *length += to - from,
                _ if used => parts.push((from, to - from)),
                _ => {}
            }
        }
        parts
    }

    /// The memory is new: nobody has touched it.
    pub fn clear(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        if size >= LARGE {
            let from = start.next_multiple_of(PAGE);
            let to = end & !(PAGE - 1);
            if from < to {
                self.clear_small(start, from - start);
                self.forget_range(from, to);
                self.words.drop_pages(from, to);
                self.clear_small(to, end - to);
                return;
            }
        }
        self.clear_small(start, size);
    }

    /// Forgets what is not in the words themselves. (Lists of dropped words
    /// stay allocated; there is one per granule that atomics used.)
    fn forget_range(&mut self, from: u64, to: u64) {
        let within = (from >> 3)..(to >> 3);
        if !self.atomics.is_empty() {
            self.atomics.retain(|granule, _| !within.contains(granule));
        }
        if !self.others.is_empty() {
            self.others
                .retain(|(granule, _), _| !within.contains(granule));
        }
    }

    fn clear_small(&mut self, start: u64, size: u64) {
        for piece in pieces(start, size) {
            if !self.atomics.is_empty() {
                self.atomics.remove(&piece.granule);
            }
            for which in [READ, WRITE] {
                if piece.mask == 0xff {
                    if self.words.get(piece.granule, which) != 0 {
                        self.forget(piece.granule, which);
                    }
                    continue;
                }
                let mut epochs = self.epochs(piece.granule, which);
                thin(&mut epochs, piece.mask, |_| true);
                self.forget(piece.granule, which);
                for epoch in epochs {
                    let kept = Piece {
                        granule: piece.granule,
                        mask: epoch.mask(),
                    };
                    self.note(kept, which, epoch, |_| false);
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shadow() -> Shadow {
        Shadow::over(Words::map(0, 0).unwrap())
    }

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
        let mut shadow = shadow();
        let (one, two) = (thread(0, 1), thread(1, 1));
        assert_eq!(shadow.write(piece(0x0f), one.epoch, &one.clock), 0);
        assert_eq!(shadow.write(piece(0xf0), two.epoch, &two.clock), 0);
        assert_eq!(shadow.read(piece(0x18), one.epoch, &one.clock), 0x10);
        assert_eq!(shadow.read(piece(0x08), two.epoch, &two.clock), 0x08);
    }

    #[test]
    fn every_concurrent_reader_is_remembered() {
        let mut shadow = shadow();
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
        let mut shadow = shadow();
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
        let mut shadow = shadow();
        let (one, two) = (thread(0, 1), thread(1, 1));
        assert_eq!(shadow.atomic(piece(0xff), one.epoch, &one.clock, true), 0);
        assert_eq!(shadow.atomic(piece(0xff), two.epoch, &two.clock, true), 0);
        assert_eq!(shadow.read(piece(0x01), one.epoch, &one.clock), 0x01);
    }

    #[test]
    fn only_touched_parts_of_a_large_range_are_gone_through() {
        let mut shadow = shadow();
        let one = thread(0, 1);
        let start = 0x10_0000 + 24;
        assert_eq!(shadow.touched(start, 1 << 20), []);
        for address in [start, start + 5 * PAGE, start + 6 * PAGE] {
            let piece = pieces(address, 8).next().unwrap();
            shadow.write(piece, one.epoch, &one.clock);
        }
        let parts = shadow.touched(start, 1 << 20);
        let holds = |address| {
            parts
                .iter()
                .any(|(from, size)| (*from..from + size).contains(&address))
        };
        assert!(holds(start) && holds(start + 5 * PAGE) && holds(start + 6 * PAGE));
        assert!(!holds(start + 2 * PAGE) && !holds(start + 9 * PAGE));
        assert!(
            parts
                .iter()
                .all(|(from, size)| *from >= start && from + size <= start + (1 << 20))
        );
    }

    #[test]
    fn cleared_memory_has_no_past() {
        let mut shadow = shadow();
        let (one, two) = (thread(0, 1), thread(1, 1));
        for large in [8, 1 << 20] {
            shadow.write(piece(0xff), one.epoch, &one.clock);
            shadow.clear(0x8000, large);
            assert_eq!(shadow.read(piece(0xff), two.epoch, &two.clock), 0);
            shadow.clear(0x8000, large);
        }
    }
}
