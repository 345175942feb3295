//! Which granules of memory an execution must not touch, where translated code
//! sees them (`vm::observe::known`): a granule with words other than zero is
//! looked at, all others cost one comparison.
//!
//! The words only say where to look. Whether an access is wrong is decided by
//! `heap`, exactly; so a whole granule may be marked for one byte of it, and
//! addresses that share words (they are folded) do no harm.

use std::ops::Range;
use vm::observe::known::{SHADOW, SHADOW_BITS, SHADOW_SIZE};

/// A little more: a wide access at the very end looks at the next granules.
const SIZE: usize = SHADOW_SIZE as usize + 4096;

/// Any word that is neither zero nor the observer's own.
const MARK: u64 = 1 << 52;

/// Ranges at least this large are cleared by giving pages back.
const LARGE: u64 = 64 << 10;

/// Of a marked range larger than twice this only both ends are marked: who
/// walks into it meets them.
const END: u64 = 32 << 10;

/// The words of all granules. The mapping stays for as long as the process:
/// translated code may look at it whoever has stopped to observe.
#[derive(Clone, Copy)]
pub struct Marks {
    base: *mut u64,
}

impl Marks {
    pub fn install() -> Result<Marks, std::io::Error> {
        // SAFETY: a fresh anonymous mapping that replaces none; guest memory
        // has its places elsewhere.
        let base = unsafe {
            libc::mmap(
                SHADOW as *mut libc::c_void,
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_NORESERVE
                    | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Marks { base: base.cast() })
    }

    fn offset(granule: u64) -> usize {
        ((granule & ((1 << (SHADOW_BITS - 3)) - 1)) * 4) as usize
    }

    fn fill(&mut self, granules: Range<u64>, word: u64) {
        for granule in granules {
            let at = Self::offset(granule);
            // SAFETY: the offset is below the size of the mapping, four words
            // per granule; the first two are those of reads and of writes.
            unsafe {
                *self.base.add(at) = word;
                *self.base.add(at + 1) = word;
            }
        }
    }

    /// Marks every granule that has a byte of the range.
    pub fn set(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if range.end - range.start > 2 * END {
            self.fill(range.start / 8..(range.start + END).div_ceil(8), MARK);
            self.fill((range.end - END) / 8..range.end.div_ceil(8), MARK);
        } else {
            self.fill(range.start / 8..range.end.div_ceil(8), MARK);
        }
    }

    /// Marks every granule of the range, however large it is.
    pub fn set_whole(&mut self, range: Range<u64>) {
        self.fill(range.start / 8..range.end.div_ceil(8), MARK);
    }

    /// Clears the granules that lie in the range with all their bytes.
    pub fn clear(&mut self, range: Range<u64>) {
        let (from, to) = (range.start.div_ceil(8), range.end / 8);
        if from >= to {
            return;
        }
        if (to - from) * 8 < LARGE {
            self.fill(from..to, 0);
            return;
        }
        // A page of words belongs to 128 granules.
        let (first, last) = (from.next_multiple_of(128), to / 128 * 128);
        self.fill(from..first, 0);
        self.fill(last..to, 0);
        let at = Self::offset(first);
        let words = ((last - first) * 4) as usize;
        if at + words <= SIZE / 8 {
            // SAFETY: the range lies in the mapping and holds no references.
            unsafe {
                libc::madvise(self.base.add(at).cast(), words * 8, libc::MADV_DONTNEED);
            }
        }
    }

    /// False only if no byte of the access is marked.
    pub fn may_touch(&self, address: u64, size: u64) -> bool {
        let last = address.saturating_add(size.max(1) - 1);
        (address / 8..=last / 8).any(|granule| {
            // SAFETY: as in `fill`.
            unsafe { *self.base.add(Self::offset(granule)) != 0 }
        })
    }
}
