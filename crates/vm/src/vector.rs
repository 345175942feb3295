//! The vector and x87 state of a guest thread, in the machine's XSAVE format.
//!
//! In the standard format only the first 832 bytes are where they always are:
//! where masks and registers of 512 bits are, each make of processor says in
//! CPUID leaf 0xd.

use std::ops::Range;
use std::sync::LazyLock;

/// Numbers of components: upper halves of the registers of 256 bits, mask
/// registers, upper halves of those of 512 bits, the sixteen more of those,
/// protection keys.
pub const UPPER_256: u32 = 2;
pub const OPMASK: u32 = 5;
pub const UPPER_512: u32 = 6;
pub const HIGH_512: u32 = 7;
pub const KEYS: u32 = 9;

/// All of them.
pub const COMPONENTS: [u32; 5] = [UPPER_256, OPMASK, UPPER_512, HIGH_512, KEYS];

/// Where a component is in the area. One that the machine does not have is never
/// in use and somewhere in the area.
pub fn component(number: u32) -> Range<usize> {
    static PLACES: LazyLock<[Range<usize>; 10]> =
        LazyLock::new(|| std::array::from_fn(|number| place(number as u32)));
    PLACES[number as usize].clone()
}

fn place(number: u32) -> Range<usize> {
    // As most processors have them.
    let (usual, length) = match number {
        UPPER_256 => (576, 256),
        OPMASK => (1088, 64),
        UPPER_512 => (1152, 512),
        HIGH_512 => (1664, 1024),
        KEYS => (2688, 8),
        _ => (0, 0),
    };
    let told = std::arch::x86_64::__cpuid_count(0xd, number);
    let here = guest_xcr0() & (1 << number) != 0 && told.eax as usize >= length;
    let start = if here && length > 0 && told.ebx as usize + length <= XSAVE_SIZE {
        told.ebx as usize
    } else {
        usual
    };
    start..start + length
}

/// XSAVE components the guest has: x87, SSE, AVX, AVX-512 (opmask, upper
/// halves, high registers) and PKRU. AMX tiles are left out: they need a
/// permission the vm does not ask for, and CPUID hides them.
const GUEST_COMPONENTS: u64 = 0x2e7;

/// Upper bound of the XSAVE area for `GUEST_COMPONENTS` in standard format.
pub const XSAVE_SIZE: usize = 2816;

/// Vector and x87 state of a guest thread, in the machine's XSAVE format.
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct VectorState {
    pub bytes: [u8; XSAVE_SIZE],
}

/// Offset and length of the x87 opcode, instruction and data pointers in an
/// XSAVE area.
pub const X87_POINTERS: (u64, usize) = (6, 18);

impl VectorState {
    /// The pointers are addresses in the code cache: nobody shall see them.
    pub(crate) fn clear_x87_pointers(&mut self) {
        let (at, length) = X87_POINTERS;
        self.bytes[at as usize..][..length].fill(0);
    }
}

impl Default for VectorState {
    /// The state in which Linux starts a process.
    fn default() -> Self {
        let mut state = VectorState {
            bytes: [0; XSAVE_SIZE],
        };
        state.bytes[0..2].copy_from_slice(&0x37fu16.to_le_bytes());
        state.bytes[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
        // XSTATE_BV: SSE is taken from the area, the rest is in its initial
        // configuration.
        state.bytes[512] = 2;
        state
    }
}

/// XCR0 as the guest may see it.
pub fn guest_xcr0() -> u64 {
    // SAFETY: XGETBV exists wherever XSAVE does, which `Context::install`
    // has checked.
    let xcr0 = unsafe { std::arch::x86_64::_xgetbv(0) };
    xcr0 & GUEST_COMPONENTS
}
