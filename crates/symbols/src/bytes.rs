//! The bytes of an opened file, and the one place where their lifetime is
//! stretched.
//!
//! ELF and DWARF readers borrow from the file. A module must own both the file
//! and the readers, which Rust cannot say directly; so a reader here borrows
//! from [`Bytes::pinned`] and lives in the same struct as the `Arc<Bytes>` it
//! came from, declared before it (fields drop in order).
//!
//! Files are mapped, not read: debug files are large, little of them is
//! touched, and clean file pages cost a forked snapshot nothing. As for every
//! debugger, a file that is truncated in place while it is open faults; build
//! tools replace files instead.

use memmap2::Mmap;
use std::path::Path;
use std::sync::Arc;

/// Debug files of browsers have some gigabytes.
const LARGEST: u64 = 64 << 30;

/// Bytes that do not move while they live.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Box<[u8]>),
}

impl Bytes {
    /// Maps a regular file of sensible size; anything else (a device, a pipe,
    /// a folder, an unreadable or empty file) is none.
    pub(crate) fn open(path: &Path) -> Option<Arc<Bytes>> {
        let file = folder::open_regular(path, LARGEST).ok()?;
        // SAFETY: the mapping is private and read-only, and this crate only
        // reads it; a concurrent writer can change the bytes seen, which every
        // parser here tolerates as it tolerates any malformed file.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        Some(Arc::new(Bytes::Mapped(map)))
    }

    pub(crate) fn owned(bytes: Vec<u8>) -> Arc<Bytes> {
        Arc::new(Bytes::Owned(bytes.into_boxed_slice()))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// The bytes with a lifetime that the compiler does not check.
    ///
    /// # Safety
    /// The caller keeps `self` alive for as long as the slice, or anything
    /// that borrows from it, can be reached.
    pub(crate) unsafe fn pinned(self: &Arc<Self>) -> &'static [u8] {
        let slice: &[u8] = self.as_slice();
        // SAFETY: neither a mapping nor a boxed slice moves or changes size
        // while the `Arc` lives, and the caller keeps it.
        unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }
    }
}
