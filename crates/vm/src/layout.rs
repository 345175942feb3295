//! Where things lie in the one address space that guest and vm share.
//!
//! The vm chooses every guest address, so that the same recording has the same
//! addresses on every run. The host's own mappings are wherever the kernel put
//! them: near 0x7fff_ffff_ffff (libraries, stack) and at 0x55…/0x56… (the
//! executable, its heap). Guest memory lives below `GUEST_TOP`, the vm's
//! context and code cache directly above it, so that the displacement of a
//! RIP-relative operand of guest library code still reaches its target when
//! the instruction is copied into the cache.

use std::ops::Range;

/// Smallest address a guest mapping may have (the kernel's usual limit).
pub const GUEST_BOTTOM: u64 = 0x1_0000;

/// Guest mappings end here; the guest's own view of "end of user space".
pub const GUEST_TOP: u64 = 0x6000_0000_0000;

/// The range in which Linux places the vm's own executable and heap. No guest
/// mapping may be made there.
pub const HOST_IMAGE: Range<u64> = 0x5400_0000_0000..0x5800_0000_0000;

/// All that is the vm's of the addresses a program can use.
pub const VM: [Range<u64>; 2] = [HOST_IMAGE, GUEST_TOP..1 << 47];

/// Room left unmapped on either side of the end of guest memory. What a store may
/// add to an address that has been looked at is less (`translate/stores.rs`).
pub const GUARD: u64 = 16 << 20;

/// New guest mappings are placed downwards from here.
pub const MMAP_TOP: u64 = GUEST_TOP - GUARD;

/// Load address of position-independent executables: close enough to the code
/// cache for RIP-relative operands, low enough to leave a gigabyte for
/// libraries and small mappings above.
pub const PIE_BASE: u64 = GUEST_TOP - 0x6000_0000;

/// How much room behind the executable is kept for `brk`.
pub const BRK_ROOM: u64 = 0x1000_0000;

/// Size of the main thread's stack mapping (the usual `ulimit -s`).
pub const STACK_SIZE: u64 = 8 << 20;

/// Left free below it (the kernel's default `stack_guard_gap`).
pub const STACK_GAP: u64 = 1 << 20;

/// The context: the registers of the running guest thread and the words that
/// translated code reads and writes (`context.rs`).
pub const CONTEXT: u64 = GUEST_TOP + GUARD;
pub const CONTEXT_SIZE: u64 = 0x1_0000;

/// Table of targets for indirect branches, indexed by a 16-bit hash of the
/// guest address (`cache.rs`).
pub const INDIRECT_TABLE: u64 = CONTEXT + CONTEXT_SIZE;
pub const INDIRECT_ENTRIES: usize = 1 << 16;
pub const INDIRECT_TABLE_SIZE: u64 = INDIRECT_ENTRIES as u64 * 8;

/// The ring into which instrumented code writes its accesses (`observe.rs`),
/// followed by a guard page.
pub const RING: u64 = INDIRECT_TABLE + INDIRECT_TABLE_SIZE;
pub const RING_SIZE: u64 = 1 << 20;

/// The code cache.
pub const CACHE: u64 = RING + RING_SIZE + 0x1000;
pub const CACHE_SIZE: u64 = 256 << 20;

/// An entry of eight bytes for every four gigabytes: it can be read if a guest
/// may have something there (`translate/stores.rs`).
pub const STORE_TABLE: u64 = CACHE + CACHE_SIZE + 0x1000;
pub const STORE_SHIFT: u32 = 32;
pub const STORE_TABLE_SIZE: u64 = 8 << (48 - STORE_SHIFT);

/// Shadow memory of an observer of accesses that wants to be spared those it
/// knows (`observe/known.rs`): four words for every eight bytes of guest memory,
/// addresses folded to 40 bits. Near enough to the context for a displacement
/// from GS.
pub const SHADOW: u64 = CONTEXT + 0x4000_0000;
pub const SHADOW_BITS: u32 = 40;
pub const SHADOW_SIZE: u64 = 4 << SHADOW_BITS;

pub const PAGE: u64 = 4096;

pub fn page_down(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Rounds up to a page; saturates to the last page instead of wrapping.
pub fn page_up(address: u64) -> u64 {
    address.checked_add(PAGE - 1).map_or(!(PAGE - 1), page_down)
}
