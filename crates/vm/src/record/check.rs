//! What a recording notes of a process's state, so that a replay can tell what
//! is not as it was.
//!
//! After every slice a [`Check`]: a hash of the registers of the thread that
//! ran and of all system calls so far, and four bits of a hash of each of them.
//! Now and then, and at the end, a [`Checkpoint`]: marks of all registers of
//! all threads, and a hash of every page of memory that is not as it was at the
//! checkpoint before. Guarantee: a difference is noticed but for one in 2^32,
//! and the register is among those named but for one in sixteen.

use super::RecordError;
use super::stream::{StreamReader, put_number};
use crate::context::{GUEST_FLAGS, Registers, reg};
use crate::layout::PAGE;
use crate::state::vector_name;
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Four bits of a hash of each register: where they differ, the register does.
/// The last is for what the caller adds to the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks(u128);

/// General registers, rip, flags, the base of FS, and one more.
const MARKED: usize = 20;
const MARK_BITS: usize = 4;
const MARK_BYTES: usize = MARKED * MARK_BITS / 8;

/// The last of the marks of a slice.
pub const TRAIL: &str = "the system calls so far";
/// The last of the marks of a thread at a checkpoint.
pub const GS_BASE: &str = "gs_base";

fn mark(word: u64) -> u64 {
    // The finaliser of splitmix64: every bit of the word decides.
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word >> (64 - MARK_BITS)
}

fn marked_words(regs: &Registers, last: u64) -> [u64; MARKED] {
    let mut words = [0; MARKED];
    words[..16].copy_from_slice(&regs.gpr);
    words[16] = regs.rip;
    words[17] = regs.rflags & GUEST_FLAGS;
    words[18] = regs.fs_base;
    words[19] = last;
    words
}

impl Marks {
    pub fn of(regs: &Registers, last: u64) -> Marks {
        let marks = marked_words(regs, last).into_iter().map(mark);
        Marks(marks.fold(0, |all, mark| all << MARK_BITS | u128::from(mark)))
    }

    /// The names of registers that differ; the last one is called `last`.
    fn differing(self, other: Marks, last: &str) -> Vec<String> {
        let different = self.0 ^ other.0;
        let differs = |index: &usize| {
            different >> (MARK_BITS * (MARKED - 1 - index)) & ((1 << MARK_BITS) - 1) != 0
        };
        (0..MARKED)
            .filter(differs)
            .map(|index| match index {
                0..16 => reg::NAMES[index],
                16 => "rip",
                17 => "flags",
                18 => "fs_base",
                _ => last,
            })
            .map(str::to_string)
            .collect()
    }

    fn put(self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(&self.0.to_le_bytes()[..MARK_BYTES]);
    }

    fn read(stream: &mut StreamReader) -> Result<Marks, RecordError> {
        let mut bytes = [0; 16];
        bytes[..MARK_BYTES].copy_from_slice(&stream.bytes(MARK_BYTES)?);
        Ok(Marks(u128::from_le_bytes(bytes)))
    }
}

/// The state of a thread after its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    hash: u32,
    marks: Marks,
}

impl Check {
    /// `trail` stands for all system calls so far.
    pub fn of(regs: &Registers, trail: u64) -> Check {
        let mut hash = Xxh3::with_seed(trail);
        for word in marked_words(regs, trail) {
            hash.update(&word.to_le_bytes());
        }
        Check {
            hash: hash.digest() as u32,
            marks: Marks::of(regs, trail),
        }
    }

    pub fn differing(&self, other: &Check) -> Vec<String> {
        self.marks.differing(other.marks, TRAIL)
    }

    pub fn put(&self, buffer: &mut Vec<u8>) {
        buffer.extend_from_slice(&self.hash.to_le_bytes());
        self.marks.put(buffer);
    }

    pub fn read(stream: &mut StreamReader) -> Result<Check, RecordError> {
        Ok(Check {
            hash: word(stream)?,
            marks: Marks::read(stream)?,
        })
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.hash)
    }
}

fn word(stream: &mut StreamReader) -> Result<u32, RecordError> {
    let mut word = [0; 4];
    word.copy_from_slice(&stream.bytes(4)?);
    Ok(u32::from_le_bytes(word))
}

/// Eight x87, 32 vector and eight mask registers and mxcsr, in half a byte each.
const VECTOR_REGISTERS: usize = 49;
const VECTOR_BYTES: usize = VECTOR_REGISTERS.div_ceil(2);

/// All registers of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCheck {
    pub thread: u32,
    hash: u32,
    marks: Marks,
    vector: [u8; VECTOR_BYTES],
}

/// The registers that words of `Vm::vector_words` belong to.
fn vector_registers() -> impl Iterator<Item = (String, Range<usize>)> {
    let mut at = 0;
    (0..VECTOR_REGISTERS).map(move |_| {
        let (name, words) = vector_name(at);
        at = words.end;
        (name, words)
    })
}

impl ThreadCheck {
    /// `vector` are words of `Vm::vector_words`.
    pub fn of(thread: u32, regs: &Registers, vector: &[u64]) -> ThreadCheck {
        let mut hash = Xxh3::new();
        let own = marked_words(regs, regs.gs_base);
        for word in own.iter().chain(vector) {
            hash.update(&word.to_le_bytes());
        }
        let mut marks = [0; VECTOR_BYTES];
        for (index, (_, words)) in vector_registers().enumerate() {
            let words = vector.get(words).unwrap_or_default();
            let all = words.iter().fold(0, |all: u64, word| {
                xxh3_64(&[all.to_le_bytes(), word.to_le_bytes()].concat())
            });
            marks[index / 2] |= (mark(all) as u8) << (4 * (index % 2));
        }
        ThreadCheck {
            thread,
            hash: hash.digest() as u32,
            marks: Marks::of(regs, regs.gs_base),
            vector: marks,
        }
    }

    pub fn differing(&self, other: &ThreadCheck) -> Vec<String> {
        let mut names = self.marks.differing(other.marks, GS_BASE);
        for (index, (name, _)) in vector_registers().enumerate() {
            let of = |check: &ThreadCheck| check.vector[index / 2] >> (4 * (index % 2)) & 0xf;
            if of(self) != of(other) {
                names.push(name);
            }
        }
        names
    }
}

/// A page of guest memory and a hash of what is on it; 0 where the process has
/// no page of its own, or one of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCheck {
    pub address: u64,
    pub hash: u32,
}

impl PageCheck {
    pub fn new(address: u64, digest: u64) -> PageCheck {
        PageCheck {
            address,
            hash: (digest as u32).max(1),
        }
    }
}

/// The state of a process between two slices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    pub threads: Vec<ThreadCheck>,
    /// Pages that are not as at the checkpoint before, in order.
    pub changed: Vec<PageCheck>,
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a check of {} threads and {} pages of memory",
            self.threads.len(),
            self.changed.len()
        )
    }
}

impl Checkpoint {
    pub fn put(&self, buffer: &mut Vec<u8>) {
        put_number(buffer, self.threads.len() as u64);
        for thread in &self.threads {
            put_number(buffer, u64::from(thread.thread));
            buffer.extend_from_slice(&thread.hash.to_le_bytes());
            thread.marks.put(buffer);
            buffer.extend_from_slice(&thread.vector);
        }
        put_number(buffer, self.changed.len() as u64);
        let mut last = 0;
        for page in &self.changed {
            put_number(buffer, page.address / PAGE - last);
            buffer.extend_from_slice(&page.hash.to_le_bytes());
            last = page.address / PAGE;
        }
    }

    pub fn read(stream: &mut StreamReader) -> Result<Checkpoint, RecordError> {
        let mut checkpoint = Checkpoint::default();
        for _ in 0..stream.number()? {
            let thread = stream.number()? as u32;
            if checkpoint
                .threads
                .last()
                .is_some_and(|last| last.thread >= thread)
            {
                let what = "the threads of a check are not in order";
                return Err(RecordError::damaged(stream.path(), what));
            }
            let hash = word(stream)?;
            let marks = Marks::read(stream)?;
            let mut vector = [0; VECTOR_BYTES];
            vector.copy_from_slice(&stream.bytes(VECTOR_BYTES)?);
            checkpoint.threads.push(ThreadCheck {
                thread,
                hash,
                marks,
                vector,
            });
        }
        let mut page = 0u64;
        for nth in 0..stream.number()? {
            let distance = stream.number()?;
            page = page.saturating_add(distance);
            if (nth > 0 && distance == 0) || page > u64::MAX / PAGE {
                let what = "the pages of a check are not in order";
                return Err(RecordError::damaged(stream.path(), what));
            }
            checkpoint.changed.push(PageCheck {
                address: page * PAGE,
                hash: word(stream)?,
            });
        }
        Ok(checkpoint)
    }
}

/// All pages at a checkpoint, in order; those that are not here hash to 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageTable(Vec<PageCheck>);

impl PageTable {
    /// `pages` are in order.
    pub fn new(pages: Vec<PageCheck>) -> PageTable {
        PageTable(pages)
    }

    /// Pages of `now` that are not as here, those that are gone with hash 0.
    pub fn changes_to(&self, now: &PageTable) -> Vec<PageCheck> {
        let mut changed = Vec::new();
        let mut before = self.0.iter().copied().peekable();
        let gone = |page: PageCheck| PageCheck { hash: 0, ..page };
        for page in &now.0 {
            while let Some(old) = before.next_if(|old| old.address < page.address) {
                changed.push(gone(old));
            }
            if before.next_if(|old| old.address == page.address) != Some(*page) {
                changed.push(*page);
            }
        }
        changed.extend(before.map(gone));
        changed
    }

    /// This table after those changes.
    pub fn changed_by(&self, changed: &[PageCheck]) -> PageTable {
        let mut pages = Vec::with_capacity(self.0.len());
        let mut before = self.0.iter().copied().peekable();
        for page in changed {
            while let Some(old) = before.next_if(|old| old.address < page.address) {
                pages.push(old);
            }
            before.next_if(|old| old.address == page.address);
            if page.hash != 0 {
                pages.push(*page);
            }
        }
        pages.extend(before);
        PageTable(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pages: &[(u64, u32)]) -> PageTable {
        let page = |(number, hash): &(u64, u32)| PageCheck {
            address: number * PAGE,
            hash: *hash,
        };
        PageTable(pages.iter().map(page).collect())
    }

    #[test]
    fn changes_lead_from_one_table_to_the_other() {
        let tables = [
            table(&[]),
            table(&[(1, 7), (2, 8), (9, 9)]),
            table(&[(2, 8), (3, 1), (9, 1), (11, 2)]),
            table(&[(1, 7)]),
        ];
        for before in &tables {
            for after in &tables {
                let changes = before.changes_to(after);
                assert_eq!(before.changed_by(&changes), *after);
                assert_eq!(changes.is_empty(), before == after);
            }
        }
        let changes = tables[1].changes_to(&tables[2]);
        assert_eq!(
            PageTable(changes),
            table(&[(1, 0), (3, 1), (9, 1), (11, 2)])
        );
    }

    #[test]
    fn the_register_that_differs_is_named() {
        let before = Registers::default();
        let check = Check::of(&before, 5);
        assert!(check.differing(&Check::of(&before, 5)).is_empty());
        assert_eq!(check.differing(&Check::of(&before, 6)), [TRAIL]);
        for number in 0..16 {
            let mut after = before;
            after.gpr[number] = 0x7fff_1234;
            let other = Check::of(&after, 5);
            assert_ne!(other, check);
            assert_eq!(check.differing(&other), [reg::NAMES[number]]);
        }
        let mut after = before;
        after.rflags ^= 1;
        assert_eq!(check.differing(&Check::of(&after, 5)), ["flags"]);
        // A bit that is no guest's.
        after.rflags = 1 << 16;
        assert_eq!(check, Check::of(&after, 5));
    }

    #[test]
    fn the_vector_register_that_differs_is_named() {
        let regs = Registers::default();
        let words = vec![0; vector_registers().last().map_or(0, |(_, words)| words.end)];
        let before = ThreadCheck::of(1, &regs, &words);
        for (name, own) in vector_registers() {
            let mut changed = words.clone();
            changed[own.end - 1] = 0x1234_5678;
            let after = ThreadCheck::of(1, &regs, &changed);
            assert_ne!(before, after);
            assert_eq!(before.differing(&after), [name]);
        }
        assert_eq!(vector_registers().last().unwrap().0, "mxcsr");
    }
}
