//! The vector and x87 state of a guest thread, in the machine's XSAVE format.
//!
//! Which components the processor says are in use (XSTATE_BV) is its own
//! affair: some change it at every switch of the host's threads. What the area
//! holds of a component that is not in use means nothing, so the state is read
//! by `part` and `x87` only, which know the initial values. The guest never
//! sees the difference (`extended_state.rs`).
//!
//! In the standard format only the first 832 bytes are where they always are:
//! where masks and registers of 512 bits are, each make of processor says in
//! CPUID leaf 0xd.

use std::ops::Range;
use std::sync::LazyLock;

/// Numbers of components: the sixteen registers of 128 bits, upper halves of
/// those of 256, mask registers, upper halves of those of 512 bits, the sixteen
/// more of those.
pub const SSE: u32 = 1;
pub const UPPER_256: u32 = 2;
pub const OPMASK: u32 = 5;
pub const UPPER_512: u32 = 6;
pub const HIGH_512: u32 = 7;

/// Where a component is in the area. One that the machine does not have is never
/// in use and somewhere in the area.
pub fn component(number: u32) -> Range<usize> {
    static PLACES: LazyLock<[Range<usize>; 8]> =
        LazyLock::new(|| std::array::from_fn(|number| place(number as u32)));
    PLACES[number as usize].clone()
}

fn place(number: u32) -> Range<usize> {
    // As most processors have them.
    let (usual, length) = match number {
        SSE => return 160..416,
        UPPER_256 => (576, 256),
        OPMASK => (1088, 64),
        UPPER_512 => (1152, 512),
        HIGH_512 => (1664, 1024),
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
/// halves, high registers). AMX tiles are left out: they need a permission the
/// vm does not ask for. So are protection keys: they would bind the vm. CPUID
/// hides both.
pub const GUEST_COMPONENTS: u64 = 0xe7;

/// Upper bound of the host's XSAVE area for `GUEST_COMPONENTS` in standard
/// format.
pub const XSAVE_SIZE: usize = 2816;

/// Offset of MXCSR in every format, and of XSTATE_BV.
pub const MXCSR_AT: usize = 24;
pub const IN_USE_AT: usize = 512;

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

    fn in_use(&self) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[IN_USE_AT..IN_USE_AT + 8]);
        u64::from_le_bytes(word)
    }

    /// The registers of a component; `None` if they are all zero, as at the
    /// start.
    pub fn part(&self, number: u32) -> Option<&[u8]> {
        let part = &self.bytes[component(number)];
        let used = self.in_use() & (1 << number) != 0 && part.iter().any(|byte| *byte != 0);
        used.then_some(part)
    }

    /// Gives a component these registers; without any, those of the start.
    pub fn set_part(&mut self, number: u32, registers: Option<&[u8]>) {
        let mut in_use = self.in_use() & !(1 << number);
        if let Some(registers) = registers {
            let place = component(number);
            if registers.len() != place.len() {
                return;
            }
            self.bytes[place].copy_from_slice(registers);
            in_use |= 1 << number;
        }
        self.bytes[IN_USE_AT..IN_USE_AT + 8].copy_from_slice(&in_use.to_le_bytes());
    }

    pub fn mxcsr(&self) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[MXCSR_AT..MXCSR_AT + 4]);
        u32::from_le_bytes(word)
    }

    /// Bits that this processor lacks are left out: loading them would fault.
    pub fn set_mxcsr(&mut self, value: u32) {
        let value = value & host_mxcsr_mask();
        self.bytes[MXCSR_AT..MXCSR_AT + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// The x87 unit: control, status and tag words, then the eight registers in
    /// ten bytes each.
    pub fn x87(&self) -> X87 {
        if self.in_use() & 1 == 0 {
            return X87::default();
        }
        let mut x87 = X87::default();
        x87.words.copy_from_slice(&self.bytes[..5]);
        for (register, slot) in x87.registers.iter_mut().zip(self.bytes[32..].chunks(16)) {
            register.copy_from_slice(&slot[..10]);
        }
        x87
    }

    pub fn set_x87(&mut self, x87: &X87) {
        self.bytes[..24].fill(0);
        self.bytes[32..160].fill(0);
        self.bytes[..5].copy_from_slice(&x87.words);
        for (register, slot) in x87.registers.iter().zip(self.bytes[32..].chunks_mut(16)) {
            slot[..10].copy_from_slice(register);
        }
        self.bytes[IN_USE_AT] = self.bytes[IN_USE_AT] & !1 | u8::from(*x87 != X87::default());
    }
}

/// The x87 unit without its pointers to the last instruction and operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X87 {
    /// Control and status words, and a byte of tags.
    pub words: [u8; 5],
    pub registers: [[u8; 10]; 8],
}

impl Default for X87 {
    /// As FNINIT leaves it, with registers that were never used.
    fn default() -> Self {
        X87 {
            words: [0x7f, 3, 0, 0, 0],
            registers: [[0; 10]; 8],
        }
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

/// 512 bytes as FXSAVE wants them.
#[repr(C, align(16))]
struct Legacy([u8; 512]);

impl X87 {
    /// The same as the unit has it once it was loaded: reserved bits of the
    /// words are gone and the summary of exceptions fits them. Memory may hold
    /// anything, and XSAVEOPT does not write what it finds unchanged.
    pub fn as_loaded(&self) -> X87 {
        let mut state = VectorState::default();
        state.set_x87(self);
        let mut area = Legacy([0; 512]);
        area.0[..160].copy_from_slice(&state.bytes[..160]);
        let mut own = Legacy([0; 512]);
        // SAFETY: the areas are aligned and of full size, MXCSR in `area` is the
        // initial one, and all registers are as they were afterwards.
        unsafe {
            std::arch::asm!(
                "fxsave64 [{own}]",
                "fxrstor64 [{area}]",
                "fxsave64 [{area}]",
                "fxrstor64 [{own}]",
                own = in(reg) own.0.as_mut_ptr(),
                area = in(reg) area.0.as_mut_ptr(),
            );
        }
        state.bytes[..160].copy_from_slice(&area.0[..160]);
        state.bytes[IN_USE_AT] |= 1;
        state.x87()
    }
}

/// The bits of MXCSR that this processor has.
pub fn host_mxcsr_mask() -> u32 {
    static MASK: LazyLock<u32> = LazyLock::new(read_mxcsr_mask);
    *MASK
}

fn read_mxcsr_mask() -> u32 {
    let mut area = Legacy([0; 512]);
    // SAFETY: FXSAVE writes 512 aligned bytes.
    unsafe { std::arch::x86_64::_fxsave64(area.0.as_mut_ptr()) };
    let mut word = [0; 4];
    word.copy_from_slice(&area.0[28..32]);
    match u32::from_le_bytes(word) {
        // What processors mean that do not say.
        0 => 0xffbf,
        mask => mask,
    }
}
