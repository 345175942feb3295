//! A hash of the whole guest: registers of every thread and all memory that
//! is the guest's own.
//!
//! Only pages that differ from what was mapped count: private pages that were
//! written and are not all zero. Untouched file pages are known by the file's
//! hash, and whether the kernel has filled in a page of zeros is no property
//! of the guest.

use crate::context::GUEST_FLAGS;
use crate::layout::PAGE;
use crate::machine::Vm;
use crate::memory;
use crate::space::Mapping;
use crate::vector::{HIGH_512, OPMASK, SSE, UPPER_256, UPPER_512};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// pagemap: the page is present, and it is file-backed or shared.
pub(crate) const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
pub(crate) const FILE_PAGE: u64 = 1 << 61;
/// No other process maps it.
pub(crate) const EXCLUSIVE: u64 = 1 << 56;

/// Entries of pagemap that are read at once.
const ENTRIES: u64 = 512;

/// A range of more bytes than this is asked about first: programs reserve
/// terabytes of which they use little, and each gigabyte has two megabytes of
/// pagemap.
const LARGE: u64 = 16 << 20;

/// `ioctl` of pagemap since Linux 6.7: which pages of a range are of a kind.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

/// What it is asked, `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// What it answers, `struct page_region`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The parts of a range in which there are pages; all of it where the kernel does
/// not tell.
fn parts_with_pages(pagemap: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut regions = [Region::default(); 64];
    let mut from = range.start;
    while from < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: from,
            end: range.end,
            regions: regions.as_mut_ptr() as u64,
            regions_length: regions.len() as u64,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: IS_PRESENT | IS_SWAPPED,
            ..Scan::default()
        };
        // SAFETY: the kernel reads `scan` and writes to it and to at most as many
        // regions as it says.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let Ok(found) = usize::try_from(found) else {
            return vec![range];
        };
        parts.extend(
            regions[..found]
                .iter()
                .map(|region| region.start..region.end),
        );
        if scan.walk_end <= from {
            return vec![range];
        }
        from = scan.walk_end;
    }
    parts
}

/// Goes through pagemap for a range of whole pages; those that have never been
/// there may be left out.
pub(crate) fn each_page(
    pagemap: &File,
    range: Range<u64>,
    mut visit: impl FnMut(u64, u64),
) -> io::Result<()> {
    if range.end - range.start <= LARGE {
        return each_page_of(pagemap, range, &mut visit);
    }
    for part in parts_with_pages(pagemap, range) {
        each_page_of(pagemap, part, &mut visit)?;
    }
    Ok(())
}

fn each_page_of(
    pagemap: &File,
    range: Range<u64>,
    visit: &mut impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut entries = [0u8; 8 * ENTRIES as usize];
    let mut page = range.start;
    while page < range.end {
        let count = ((range.end - page) / PAGE).min(ENTRIES);
        let buffer = &mut entries[..count as usize * 8];
        pagemap.read_exact_at(buffer, page / PAGE * 8)?;
        for entry in buffer.chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(entry);
            visit(page, u64::from_le_bytes(word));
            page += PAGE;
        }
    }
    Ok(())
}

/// A page of the guest's own with anything on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashedPage {
    pub address: u64,
    pub digest: u64,
}

/// All memory that is the guest's own, page by page.
#[derive(Debug, Clone, Default)]
pub struct HashedMemory {
    pub pages: Vec<HashedPage>,
    /// Pages that were looked at for it.
    pub looked_at: u64,
}

impl Vm {
    pub fn state_hash(&self) -> u64 {
        self.state_hash_with(&self.hash_memory())
    }

    /// The same, with memory hashed already.
    pub fn state_hash_with(&self, memory: &HashedMemory) -> u64 {
        let mut hash = Xxh3::new();
        for id in self.threads.keys() {
            let Some(regs) = self.registers(*id) else {
                continue;
            };
            hash.update(&id.to_le_bytes());
            for value in regs
                .gpr
                .iter()
                .chain([&regs.rip, &regs.fs_base, &regs.gs_base])
            {
                hash.update(&value.to_le_bytes());
            }
            hash.update(&(regs.rflags & GUEST_FLAGS).to_le_bytes());
            self.hash_vector(*id, &mut hash);
        }
        for page in &memory.pages {
            hash.update(&page.address.to_le_bytes());
            hash.update(&page.digest.to_le_bytes());
        }
        hash.digest()
    }

    /// x87 and vector registers, those in their initial state counted as zero.
    fn hash_vector(&self, thread: u32, hash: &mut Xxh3) {
        let Some(thread) = self.threads.get(&thread) else {
            return;
        };
        let vector = &thread.vector;
        let x87 = vector.x87();
        hash.update(&x87.words);
        hash.update(x87.registers.as_flattened());
        hash.update(&vector.mxcsr().to_le_bytes());
        for number in [SSE, UPPER_256, OPMASK, UPPER_512, HIGH_512] {
            let part = vector.part(number);
            hash.update(&[u8::from(part.is_some())]);
            hash.update(part.unwrap_or_default());
        }
    }

    /// All pages of the guest's own, in order.
    pub fn hash_memory(&self) -> HashedMemory {
        let mut memory = HashedMemory::default();
        let Ok(pagemap) = File::open("/proc/self/pagemap") else {
            return memory;
        };
        let mut page_bytes = vec![0; PAGE as usize];
        for (range, mapping) in self.space.mappings() {
            if mapping.protection & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) == 0 {
                continue;
            }
            // Where pagemap ends there is no more to read.
            let _ = each_page(&pagemap, range, |page, entry| {
                memory.looked_at += 1;
                let own = entry & (PRESENT | SWAPPED) != 0 && entry & FILE_PAGE == 0;
                if own
                    && memory::read(page, &mut page_bytes).is_ok()
                    && page_bytes.iter().any(|byte| *byte != 0)
                {
                    memory.pages.push(HashedPage {
                        address: page,
                        digest: xxh3_64(&page_bytes),
                    });
                }
            });
        }
        memory
    }

    /// Pages of guest memory that this process does not share with another,
    /// in order. A process and its copy each have among theirs all pages that
    /// they have written since the copy was made: the kernel gives whoever
    /// writes to a shared page one of its own. Where the kernel does not tell,
    /// these are all pages that can be written.
    pub fn own_pages(&self) -> Vec<u64> {
        let written = |mapping: &Mapping| mapping.protection & libc::PROT_WRITE != 0;
        let own = File::open("/proc/self/pagemap").and_then(|pagemap| {
            let mut pages = Vec::new();
            for (range, mapping) in self.space.mappings().filter(|(_, one)| written(one)) {
                self.own_pages_of(&pagemap, range, mapping, &mut pages)?;
            }
            Ok(pages)
        });
        own.unwrap_or_else(|_| {
            let mappings = self.space.mappings().filter(|(_, one)| written(one));
            mappings
                .flat_map(|(range, _)| range.step_by(PAGE as usize))
                .collect()
        })
    }

    fn own_pages_of(
        &self,
        pagemap: &File,
        range: Range<u64>,
        mapping: &Mapping,
        pages: &mut Vec<u64>,
    ) -> io::Result<()> {
        each_page(pagemap, range, |page, entry| {
            let there = entry & (PRESENT | SWAPPED) != 0;
            let own = mapping.shared || entry & FILE_PAGE == 0;
            // What is swapped out, or is memory shared inside the guest,
            // which copies have anew, does not say whose it is.
            let alone = mapping.shared || entry & (EXCLUSIVE | SWAPPED) != 0;
            if there && own && alone {
                pages.push(page);
            }
        })
    }

    /// x87, vector and mask registers and mxcsr of a thread in words, those in
    /// their initial state as zero, laid out as `vector_name` says.
    pub fn vector_words(&self, thread: u32) -> Vec<u64> {
        let Some(thread) = self.threads.get(&thread) else {
            return Vec::new();
        };
        let vector = &thread.vector;
        let mut words = Vec::with_capacity(VECTOR_WORDS);
        for register in vector.x87().registers {
            let mut slot = [0; 16];
            slot[..10].copy_from_slice(&register);
            words.extend(as_words(&slot));
        }
        // Words `from..from + count` of a component.
        let mut add = |number: u32, from: usize, count: usize| match vector.part(number) {
            Some(part) => words.extend(as_words(&part[8 * from..8 * (from + count)])),
            None => words.extend(std::iter::repeat_n(0, count)),
        };
        for number in 0..16 {
            add(SSE, 2 * number, 2);
            add(UPPER_256, 2 * number, 2);
            add(UPPER_512, 4 * number, 4);
        }
        add(HIGH_512, 0, 128);
        add(OPMASK, 0, 8);
        words.push(u64::from(vector.mxcsr()));
        words
    }
}

fn as_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word)
    })
}

const VECTOR_WORDS: usize = 16 + 32 * 8 + 8 + 1;

/// The register that a word of `Vm::vector_words` belongs to, and all words of
/// it.
pub fn vector_name(word: usize) -> (String, Range<usize>) {
    let part = |name: &str, first: usize, words: usize| {
        let number = (word - first) / words;
        let start = first + number * words;
        (format!("{name}{number}"), start..start + words)
    };
    match word {
        0..16 => part("st", 0, 2),
        16..272 => part("zmm", 16, 8),
        272..280 => part("k", 272, 1),
        _ => ("mxcsr".to_string(), word..word + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_never_there_cost_nothing() {
        const LENGTH: usize = 1 << 40;
        const TOUCHED: [usize; 3] = [0, 12_345 * 4096, LENGTH - 4096];
        // SAFETY: fresh memory of this test's own, of which three bytes are written.
        let start = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                LENGTH,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            libc::madvise(start, LENGTH, libc::MADV_NOHUGEPAGE);
            for offset in TOUCHED {
                *start.cast::<u8>().add(offset) = 1;
            }
            start as u64
        };
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let range = start..start + LENGTH as u64;
        if parts_with_pages(&pagemap, range.clone()) == [range.clone()] {
            // An older kernel does not tell.
            return;
        }
        let mut found = Vec::new();
        each_page(&pagemap, range, |page, entry| {
            assert_ne!(entry & PRESENT, 0);
            found.push((page - start) as usize);
        })
        .unwrap();
        assert_eq!(found, TOUCHED);
    }

    #[test]
    fn words_of_vector_registers_have_names() {
        assert_eq!(vector_name(3), ("st1".to_string(), 2..4));
        assert_eq!(
            vector_name(16 + 8 * 31 + 5),
            ("zmm31".to_string(), 264..272)
        );
        assert_eq!(vector_name(279), ("k7".to_string(), 279..280));
        assert_eq!(vector_name(VECTOR_WORDS - 1).0, "mxcsr");
    }
}
