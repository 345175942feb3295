//! The check that spares an observer the accesses it knows already, or does not
//! want to know.
//!
//! FastTrack's same-epoch case, done by translated code: an observer keeps, at
//! `SHADOW`, four words for every eight bytes of guest memory (the last read,
//! the last write, and what was before each of them), each an epoch in the
//! upper 56 bits (twelve of them a slot) and a mask of the bytes accessed in the
//! lower eight. If the word carries the running thread's present epoch and all
//! bytes of the access, the observer would learn nothing and the access is not
//! recorded.
//!
//! If it does not, but all four words are zero, of the thread's own slot, or of
//! epochs that its clock covers, the access conflicts with none: `note_read` and
//! `note_write` (shared routines, not emitted per access) enter it in the words
//! as the observer would, and it is not recorded either. To a read, only the words
//! of writes must be so, if those of reads have room for two readers. The word
//! before keeps bytes of two earlier epochs under the later one: it may say that
//! a byte was accessed later than it was, never earlier.
//!
//! Where the observer says that nothing the thread does matters (inside a
//! function that it knows), the routines say of every access that it is known.
//!
//! The observer works in batches, so its epoch may be behind. After every
//! record that may begin a new epoch (a locked instruction, a write that is
//! `Told::Always`, a write to a word that says `MANY`) translated code stops
//! comparing until the ring has been handed over, and asks for that soon.
//!
//! Guarantee: an access left out was made by the same thread, in the same
//! epoch, to bytes that the word says it has accessed in the same way, or in
//! conflict with nobody, and entered. Only whether flags that are overwritten
//! before anybody reads them are right when such an access faults is given up.

use crate::context::offset;
use crate::layout;
use std::arch::global_asm;

pub use crate::layout::{SHADOW, SHADOW_BITS, SHADOW_SIZE};

/// Which words say that an access is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// None.
    Nothing,
    /// Those with this epoch and the access's bytes.
    Epoch(Present),
    /// Those that are zero: the observer watches a few granules only.
    Zero,
    /// All: what the thread does now means nothing to the observer, but for
    /// what it is always told.
    Everything,
}

/// The present of a thread, as the words have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present {
    /// Its epoch: slot and one in the upper twelve bits, clock, lower eight bits
    /// zero.
    pub epoch: u64,
    /// What it knows of the slots' progress: that many clocks at this address,
    /// which stays as it is until the observer is told something.
    pub clock: *const u64,
    pub slots: usize,
}

/// Which accesses of an instruction are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// None: they mean nothing to the observer.
    Nothing,
    /// Those of locked instructions: while a thread is alone.
    Locked,
    /// Those it does not know.
    Unknown,
    /// Also those to memory that only the thread itself has used: they may
    /// mean more than an access. A write may begin a new epoch.
    Always,
}

/// Words with all of these bits do not carry an epoch but something only the
/// observer understands.
pub const MANY: u64 = 0xfff << 52;

/// Never set in a shadow word and always in what is compared with it: an
/// access that reaches into the next granule tests this bit and so is never
/// known.
const MARK: u64 = 1 << 51;

/// The observer's own: does not count in a comparison of up to eight bytes.
pub const NOTE: u64 = 1 << 50;

/// Once this many bytes are in the ring, a stale comparison is renewed.
pub(crate) const SOON: u32 = 64 * 16;

/// What translated code compares with.
#[repr(C)]
pub struct Comparison {
    /// The present epoch with a full mask.
    pub word: u64,
    /// The same with `MARK`.
    pub marked: u64,
    /// Translated code has stopped comparing.
    pub stale: u64,
    /// The present epoch with an empty mask, where translated code may enter
    /// accesses itself; one where every access is known; else zero.
    pub own: u64,
    /// What becomes of it when translated code stops comparing.
    pub own_when_stale: u64,
    /// The running thread's clock, and of how many slots.
    pub clock: u64,
    pub slots: u64,
    /// Takes an address to that of its granule, folded.
    pub fold: u64,
    /// For the routines: what is accessed, where to go on, and registers.
    pub address: u64,
    pub size: u64,
    pub back: u64,
    pub saved: [u64; 8],
    pub note_read: u64,
    pub note_write: u64,
    /// Bits of a word that matter to an access, by log2 of its size and by
    /// where in the granule it begins.
    pub masks: [[u64; 8]; 4],
}

impl Comparison {
    pub(crate) fn install(&mut self) {
        self.note_read = deadheat_note_read as *const () as u64;
        self.note_write = deadheat_note_write as *const () as u64;
        self.fold = ((1 << SHADOW_BITS) - 1) & !7;
        for (log, masks) in self.masks.iter_mut().enumerate() {
            let size = 1u32 << log;
            for (first, mask) in masks.iter_mut().enumerate() {
                let first = first as u32;
                *mask = if first + size > 8 {
                    MARK
                } else {
                    (!0xff & !MARK & !NOTE) | u64::from(((1u32 << size) - 1) << first)
                };
            }
        }
        self.renew(Compare::Nothing);
    }

    pub(crate) fn renew(&mut self, compare: Compare) {
        self.word = match compare {
            Compare::Nothing => u64::MAX,
            Compare::Epoch(present) => present.epoch | 0xff,
            // What is nobody's is known without asking the routines.
            Compare::Zero | Compare::Everything => 0,
        };
        self.marked = self.word | MARK;
        (self.own, self.clock, self.slots) = match compare {
            Compare::Epoch(present) => (present.epoch, present.clock as u64, present.slots as u64),
            Compare::Everything => (1, 0, 0),
            _ => (0, 0, 0),
        };
        self.own_when_stale = self.own & 1;
        self.stale = 0;
    }
}

// Both are reached by a jump from translated code with `address`, `size` and
// `back` filled in, keep every register, and jump to `back` with ZF set if the
// access has been entered. They use no stack: it is the guest's.
//
// rsi address, rdx bytes left, r8 own, rdi index of the granule, r9 mask,
// rcx, r10, r11 scratch
global_asm!(
    // Goes to \\no unless the word is zero, of the own slot, or of another one's
    // past, and has no note.
    ".macro deadheat_is_past at, no",
    "mov r10, gs:[rdi * 4 + {shadow} + \\at]",
    "mov rcx, r10",
    "xor rcx, r8",
    "shr rcx, 50",
    "jz 77f",
    "test r10, r10",
    "jz 77f",
    "bt r10, 50",
    "jc \\no",
    "mov rcx, r10",
    "shr rcx, 52",
    "cmp rcx, gs:[{slots}]",
    "ja \\no",
    "mov r11, gs:[{clock}]",
    "mov r11, [r11 + rcx * 8 - 8]",
    // The clock of the epoch: bits 8 to 49.
    "shl r10, 14",
    "shr r10, 22",
    "cmp r10, r11",
    "ja \\no",
    "77:",
    ".endm",
    // Enters the access in the word and the one before it.
    ".macro deadheat_enter at, no",
    "mov r10, gs:[rdi * 4 + {shadow} + \\at]",
    "mov rcx, r10",
    "xor rcx, r8",
    "cmp rcx, 0xff",
    "ja 78f",
    "or gs:[rdi * 4 + {shadow} + \\at], r9b",
    "jmp 79f",
    "78:",
    "mov r11, gs:[rdi * 4 + {shadow} + \\at + 16]",
    "mov ecx, r9d",
    "not ecx",
    "and r11b, cl",
    "and r10b, cl",
    "jz 80f",
    // Bytes of the last epoch are left: those of an earlier one go with them,
    // if it is the same thread's.
    "test r11b, r11b",
    "jz 82f",
    "mov rcx, r10",
    "xor rcx, r11",
    "shr rcx, 52",
    "jnz \\no",
    "or r10b, r11b",
    "82:",
    "mov gs:[rdi * 4 + {shadow} + \\at + 16], r10",
    "jmp 81f",
    "80:",
    "xor ecx, ecx",
    "test r11b, r11b",
    "cmovz r11, rcx",
    "mov gs:[rdi * 4 + {shadow} + \\at + 16], r11",
    "81:",
    "mov rcx, r8",
    "or rcx, r9",
    "mov gs:[rdi * 4 + {shadow} + \\at], rcx",
    "79:",
    ".endm",
    // Enters a read where somebody else's reads are concurrent with it: two
    // readers take turns in the word and the one before it.
    ".macro deadheat_share no, done",
    "mov r10, gs:[rdi * 4 + {shadow}]",
    "mov r11, gs:[rdi * 4 + {shadow} + 16]",
    "bt r10, 50",
    "jc \\no",
    "mov rcx, r10",
    "not rcx",
    "shr rcx, 52",
    "jz \\no",
    "mov rcx, r10",
    "xor rcx, r8",
    "cmp rcx, 0xff",
    "ja 89f",
    "or gs:[rdi * 4 + {shadow}], r9b",
    "jmp \\done",
    "89:",
    "shr rcx, 52",
    "jnz 90f",
    // The word is the thread's own, of an earlier epoch.
    "mov ecx, r9d",
    "not ecx",
    "test r10b, cl",
    "jnz \\no",
    "jmp 92f",
    "90:",
    // It is another's and goes before, where nobody or the thread itself was.
    "test r11, r11",
    "jz 91f",
    "mov rcx, r11",
    "xor rcx, r8",
    "cmp rcx, 0xff",
    "ja 93f",
    "or r9b, r11b",
    "jmp 91f",
    "93:",
    "shr rcx, 52",
    "jnz \\no",
    "mov ecx, r9d",
    "not ecx",
    "test r11b, cl",
    "jnz \\no",
    "91:",
    "mov gs:[rdi * 4 + {shadow} + 16], r10",
    "92:",
    "mov rcx, r8",
    "or rcx, r9",
    "mov gs:[rdi * 4 + {shadow}], rcx",
    ".endm",
    ".macro deadheat_note name, writes",
    ".global \\name",
    "\\name:",
    "mov gs:[{saved}], rcx",
    "mov gs:[{saved} + 8], rsi",
    "mov gs:[{saved} + 16], rdi",
    // The commonest case: a whole granule, nothing before, all own or new.
    "mov rsi, gs:[{own}]",
    "mov rdi, gs:[{address}]",
    "test edi, 7",
    "jnz 70f",
    "cmp qword ptr gs:[{size}], 8",
    "jne 70f",
    "cmp rsi, 1",
    "jbe 70f",
    "and rdi, gs:[{fold}]",
    "mov rcx, gs:[rdi * 4 + {shadow} + 16]",
    "or rcx, gs:[rdi * 4 + {shadow} + 24]",
    "jnz 70f",
    "mov rcx, gs:[rdi * 4 + {shadow}]",
    "test rcx, rcx",
    "jz 68f",
    "xor rcx, rsi",
    "shr rcx, 50",
    "jnz 70f",
    "68:",
    "mov rcx, gs:[rdi * 4 + {shadow} + 8]",
    "test rcx, rcx",
    "jz 69f",
    "xor rcx, rsi",
    "shr rcx, 50",
    "jnz 70f",
    "69:",
    "lea rcx, [rsi + 0xff]",
    "mov gs:[rdi * 4 + {shadow}], rcx",
    ".if \\writes",
    "mov gs:[rdi * 4 + {shadow} + 8], rcx",
    ".endif",
    "xor ecx, ecx",
    "jmp 83f",
    "70:",
    "mov gs:[{saved} + 24], rdx",
    "mov gs:[{saved} + 32], r8",
    "mov gs:[{saved} + 40], r9",
    "mov gs:[{saved} + 48], r10",
    "mov gs:[{saved} + 56], r11",
    "mov r8, rsi",
    "cmp r8, 1",
    "jb 75f",
    "je 76f",
    "mov rsi, gs:[{address}]",
    "mov rdx, gs:[{size}]",
    "71:",
    "mov rdi, rsi",
    "and rdi, gs:[{fold}]",
    // mask = (0xff >> (8 - bytes left, at least 0)) << first byte
    "mov r9d, 0xff",
    "mov ecx, 8",
    "sub ecx, edx",
    "jbe 72f",
    "shr r9d, cl",
    "72:",
    "mov ecx, esi",
    "and ecx, 7",
    "shl r9d, cl",
    "movzx r9d, r9b",
    "deadheat_is_past 8, 75f",
    "deadheat_is_past 24, 75f",
    ".if \\writes",
    "deadheat_is_past 0, 75f",
    "deadheat_is_past 16, 75f",
    "deadheat_enter 0, 75f",
    "deadheat_enter 8, 75f",
    ".else",
    "deadheat_is_past 0, 87f",
    "deadheat_is_past 16, 87f",
    "deadheat_enter 0, 75f",
    "jmp 88f",
    "87:",
    "deadheat_share 75f, 88f",
    "88:",
    ".endif",
    // The next granule, if the access reaches into it.
    "mov rcx, rsi",
    "or rsi, 7",
    "inc rsi",
    "sub rcx, rsi",
    "add rdx, rcx",
    "jg 71b",
    "xor ecx, ecx",
    "jmp 76f",
    "75:",
    "or ecx, 1",
    "76:",
    "mov rdx, gs:[{saved} + 24]",
    "mov r8, gs:[{saved} + 32]",
    "mov r9, gs:[{saved} + 40]",
    "mov r10, gs:[{saved} + 48]",
    "mov r11, gs:[{saved} + 56]",
    "83:",
    "mov rcx, gs:[{saved}]",
    "mov rsi, gs:[{saved} + 8]",
    "mov rdi, gs:[{saved} + 16]",
    "jmp qword ptr gs:[{back}]",
    ".endm",
    "deadheat_note deadheat_note_read, 0",
    "deadheat_note deadheat_note_write, 1",
    shadow = const layout::SHADOW - layout::CONTEXT,
    own = const offset::KNOWN_OWN,
    slots = const offset::KNOWN_SLOTS,
    clock = const offset::KNOWN_CLOCK,
    fold = const offset::KNOWN_FOLD,
    address = const offset::KNOWN_ADDRESS,
    size = const offset::KNOWN_SIZE,
    back = const offset::KNOWN_BACK,
    saved = const offset::KNOWN_SAVED,
);

unsafe extern "C" {
    fn deadheat_note_read();
    fn deadheat_note_write();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        let mut comparison = Comparison {
            word: 0,
            marked: 0,
            stale: 0,
            own: 0,
            own_when_stale: 0,
            clock: 0,
            slots: 0,
            fold: 0,
            address: 0,
            size: 0,
            back: 0,
            saved: [0; 8],
            note_read: 0,
            note_write: 0,
            masks: [[0; 8]; 4],
        };
        comparison.install();
        comparison
    }

    fn present(epoch: u64) -> Present {
        Present {
            epoch,
            clock: std::ptr::null(),
            slots: 0,
        }
    }

    fn known(comparison: &Comparison, word: u64, log: usize, first: usize) -> bool {
        (word ^ comparison.marked) & comparison.masks[log][first] == 0
    }

    #[test]
    fn only_the_bytes_of_the_access_matter() {
        let mut comparison = comparison();
        let epoch = (3 << 52) | (77 << 8);
        comparison.renew(Compare::Epoch(present(epoch)));
        assert!(known(&comparison, epoch | 0xff, 3, 0));
        assert!(known(&comparison, epoch | 0x0f, 2, 0));
        assert!(!known(&comparison, epoch | 0x0f, 2, 4));
        assert!(!known(&comparison, epoch | 0x0f, 3, 0));
        assert!(!known(&comparison, (epoch + (1 << 8)) | 0xff, 0, 5));
    }

    #[test]
    fn nothing_straddling_stale_or_untouched_is_known() {
        let mut comparison = comparison();
        let epoch = (3 << 52) | (77 << 8);
        for word in [0, MANY, MANY | 0xffff_ffff, epoch | 0xff] {
            assert!(!known(&comparison, word, 0, 0));
        }
        comparison.renew(Compare::Epoch(present(epoch)));
        assert!(!known(&comparison, epoch | 0xff, 3, 1));
        assert!(!known(&comparison, epoch | 0xff, 1, 7));
    }

    #[test]
    fn where_nothing_matters_nothing_stops_being_known() {
        let mut comparison = comparison();
        comparison.renew(Compare::Everything);
        assert_eq!((comparison.own, comparison.own_when_stale), (1, 1));
        comparison.renew(Compare::Epoch(present((3 << 52) | (77 << 8))));
        assert_eq!(comparison.own_when_stale, 0);
    }

    #[test]
    fn zero_is_known_to_a_watcher_and_nothing_else() {
        let mut comparison = comparison();
        comparison.renew(Compare::Zero);
        assert!(known(&comparison, 0, 2, 4));
        assert!(!known(&comparison, 0, 2, 5));
        assert!(!known(&comparison, 1 << 52, 2, 4));
    }
}
