//! Whether an access is right: what it hits, or misses by how much.
//!
//! What is let pass, and why, is told in `heap`.

use super::finding::{ErrorKind, Memory};
use super::heap::{BEFORE, Heap, PAGE, Wrong};

/// Bytes behind a block that count as its overflow, unless a guard is larger.
const BEHIND: u64 = 64;

/// The C library's string functions read up to four vectors of 32 bytes, from
/// an address aligned to that, or one vector wherever it fits in a page.
const STRING_WINDOW: u64 = 128;

impl Heap {
    /// What is wrong with an access by code other than an allocator's.
    pub fn judge(&self, address: u64, size: u64, write: bool) -> Option<Wrong> {
        let end = address.checked_add(size.max(1))?;
        let block = self.standard.at(address);
        let wrong = match block {
            Some(block) if end <= block.end() => {
                let passes = !write && size >= 16 && self.custom.at(address).is_some();
                return if passes {
                    None
                } else {
                    self.judge_custom(address, end)
                };
            }
            Some(block) => Wrong {
                kind: ErrorKind::HeapOverflow,
                memory: Some(Memory::of(block, address)),
            },
            None => self.outside(address, end)?,
        };
        if !write && size >= 16 && self.is_near_live(address, end) {
            return None;
        }
        Some(wrong)
    }

    /// An access that does not begin in a live block.
    fn outside(&self, address: u64, end: u64) -> Option<Wrong> {
        let before = self
            .standard
            .live
            .range(..=address)
            .next_back()
            .map(|(_, block)| block);
        let behind = self
            .standard
            .live
            .range(address..)
            .next()
            .map(|(_, block)| block);
        let owned = self.is_owned(address);
        if let Some(block) = self.standard.freed_at(address) {
            return Some(Wrong {
                kind: ErrorKind::UseAfterFree,
                memory: Some(Memory::of(block, address)),
            });
        }
        let same_page = |one: u64, other: u64| one / PAGE == other / PAGE;
        if let Some(block) = behind
            && address < block.start
            && block.start - address <= BEFORE.max(end - address)
            && (owned || same_page(address, block.start))
            // Nearer to this one than to the end of the one before.
            && before.is_none_or(|before| address - before.end() >= block.start - address)
        {
            return Some(Wrong {
                kind: ErrorKind::HeapUnderflow,
                memory: Some(Memory::of(block, address)),
            });
        }
        if let Some(block) = before
            && address - block.end() < BEHIND.max(self.guard)
            && (owned || address < (block.end() + BEFORE.max(self.guard)))
            && (owned || same_page(address, block.end().saturating_sub(1)))
        {
            return Some(Wrong {
                kind: ErrorKind::HeapOverflow,
                memory: Some(Memory::of(block, address)),
            });
        }
        owned.then_some(Wrong {
            kind: ErrorKind::WildAccess,
            memory: None,
        })
    }

    /// Memory that a custom allocator manages inside blocks of another.
    fn judge_custom(&self, address: u64, end: u64) -> Option<Wrong> {
        if let Some(block) = self.custom.at(address) {
            return (end > block.end()).then_some(Wrong {
                kind: ErrorKind::HeapOverflow,
                memory: Some(Memory::of(block, address)),
            });
        }
        if let Some(block) = self.custom.freed_at(address) {
            return Some(Wrong {
                kind: ErrorKind::UseAfterFree,
                memory: Some(Memory::of(block, address)),
            });
        }
        let (_, block) = self.custom.live.range(..=address).next_back()?;
        (address < block.end().next_multiple_of(8)).then_some(Wrong {
            kind: ErrorKind::HeapOverflow,
            memory: Some(Memory::of(block, address)),
        })
    }

    /// A string function that reads vectors may have come from live memory.
    fn is_near_live(&self, address: u64, end: u64) -> bool {
        let from = address / STRING_WINDOW * STRING_WINDOW;
        let to = end.next_multiple_of(STRING_WINDOW);
        self.standard
            .live
            .range(..to)
            .next_back()
            .is_some_and(|(_, block)| block.extent().end > from)
    }
}
