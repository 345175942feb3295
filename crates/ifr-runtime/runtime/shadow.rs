//! Where things are: the linear shadow and its words.
//!
//! Three tables over the low 46 bits of an address. No program address maps to
//! another's slot: what would alias is occupied by the tables themselves.
//! * slots, 8 bytes per 8-byte granule: `thread:8 | epoch:39 | SHARED |
//!   written:8 | accessed:8`, the masks one bit per byte; `SHARED` stays once
//!   two threads have used the granule;
//! * lines, 8 bytes per 64-byte line, for ranges: `thread:8 | epoch:39 |
//!   0 | WRITTEN, ACCESSED`;
//! * pages, 2 bytes per page: who ever put a slot there and who a line (0
//!   nobody, a thread, 255 several). Sticky; they only save looking.
//!
//! All are reserved without commitment; only what is touched takes memory.

use crate::sys;
use core::sync::atomic::{AtomicU8, AtomicU64};

pub const LOW: usize = 0x3fff_ffff_ffff;
/// Not a round number: a location and its slot never share their low 12 bits,
/// which would stall the processor's store forwarding.
pub const SLOTS: usize = 0x1000_0000_0840;
pub const LINES: usize = 0x0800_0000_0000;
pub const PAGES: usize = 0x07e0_0000_0000;

pub const ACCESSED: u64 = 1;
pub const WRITTEN: u64 = 2;
/// Of a slot.
pub const SHARED: u64 = 1 << 16;

/// Reserves the tables; false if the address space is taken or limited.
pub fn reserve() -> bool {
    sys::reserve(SLOTS & !(sys::PAGE - 1), LOW + 1 + sys::PAGE)
        && sys::reserve(LINES, (LOW + 1) / 8)
        && sys::reserve(PAGES, (LOW + 1) / 4096 * 2)
}

/// The slot of the granule that holds `address`.
///
/// # Safety
/// The tables must be reserved.
pub unsafe fn slot(address: usize) -> &'static AtomicU64 {
    // SAFETY: every masked address has its slot in the reserved table.
    unsafe { &*(((address & LOW & !7) + SLOTS) as *const AtomicU64) }
}

/// The line word of `address`.
///
/// # Safety
/// The tables must be reserved.
pub unsafe fn line(address: usize) -> &'static AtomicU64 {
    // SAFETY: every masked address has its line in the reserved table.
    unsafe { &*((((address & LOW) >> 6 << 3) + LINES) as *const AtomicU64) }
}

/// Who used slots, and who lines, in the page of `address`.
///
/// # Safety
/// The tables must be reserved.
pub unsafe fn page(address: usize) -> (&'static AtomicU8, &'static AtomicU8) {
    let at = ((address & LOW) >> 12 << 1) + PAGES;
    // SAFETY: every masked address has its pair in the reserved table.
    unsafe { (&*(at as *const AtomicU8), &*((at + 1) as *const AtomicU8)) }
}
