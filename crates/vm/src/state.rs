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
use std::fs::File;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::Xxh3;

/// pagemap: the page is present, and it is file-backed or shared.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_PAGE: u64 = 1 << 61;

impl Vm {
    pub fn state_hash(&self) -> u64 {
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
        self.hash_memory(&mut hash);
        hash.digest()
    }

    /// x87 and vector registers, with components in their initial state counted as
    /// zero whatever is in the save area.
    fn hash_vector(&self, thread: u32, hash: &mut Xxh3) {
        let Some(thread) = self.threads.get(&thread) else {
            return;
        };
        let bytes = &thread.vector.bytes;
        let mut in_use = [0; 8];
        in_use.copy_from_slice(&bytes[512..520]);
        let in_use = u64::from_le_bytes(in_use);
        if in_use & 1 != 0 {
            // Control, status and tag words; the eight registers.
            hash.update(&bytes[0..6]);
            hash.update(&bytes[32..160]);
        } else {
            hash.update(&[0x7f, 3, 0, 0, 0, 0]);
            hash.update(&[0; 128]);
        }
        // mxcsr
        hash.update(&bytes[24..28]);
        // (component, offset, length) in the standard format.
        let components = [
            (1, 160, 256),
            (2, 576, 256),
            (5, 1088, 64),
            (6, 1152, 512),
            (7, 1664, 1024),
        ];
        for (component, offset, length) in components {
            let part = &bytes[offset..offset + length];
            let used = in_use & (1 << component) != 0 && part.iter().any(|byte| *byte != 0);
            hash.update(&[u8::from(used)]);
            if used {
                hash.update(part);
            }
        }
    }

    fn hash_memory(&self, hash: &mut Xxh3) {
        let Ok(pagemap) = File::open("/proc/self/pagemap") else {
            return;
        };
        let mut entries = vec![0u8; 8 * 512];
        let mut page_bytes = vec![0; PAGE as usize];
        for (range, mapping) in self.space.mappings() {
            if mapping.protection & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) == 0 {
                continue;
            }
            let pages = (range.end - range.start) / PAGE;
            let mut done = 0;
            while done < pages {
                let count = (pages - done).min(512);
                let first = range.start / PAGE + done;
                let buffer = &mut entries[..count as usize * 8];
                if pagemap.read_exact_at(buffer, first * 8).is_err() {
                    break;
                }
                for (index, entry) in buffer.chunks_exact(8).enumerate() {
                    let mut word = [0; 8];
                    word.copy_from_slice(entry);
                    let entry = u64::from_le_bytes(word);
                    let own = entry & (PRESENT | SWAPPED) != 0 && entry & FILE_PAGE == 0;
                    let page = (first + index as u64) * PAGE;
                    if own
                        && memory::read(page, &mut page_bytes).is_ok()
                        && page_bytes.iter().any(|byte| *byte != 0)
                    {
                        hash.update(&page.to_le_bytes());
                        hash.update(&page_bytes);
                    }
                }
                done += count;
            }
        }
    }
}
