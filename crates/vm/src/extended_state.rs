//! XSAVE, XRSTOR and their kin, as the vm executes them for the guest.
//!
//! A processor notes which components of the extended state are in use, and
//! writes that to memory with the state. On some makes the note changes when
//! the host switches threads, so it would differ from run to run; the dynamic
//! linker's lazy binding leaves it on every stack. Here every component that the
//! guest has is always in use: the state that these instructions store depends
//! on the program alone. Deviations from a processor that follow from it:
//! XSAVEC and XSAVEOPT leave out nothing that was asked for, and XGETBV(1) tells
//! of all components. Pointers to the last x87 instruction and operand are
//! always zero.
//!
//! Where components lie in the guest's areas is what the guest's CPUID says
//! (`processor.rs`), whatever the host's are like.

use crate::processor::{EXTENDED_AT, Processor, compacted};
use crate::vector::{MXCSR_AT, SSE, VectorState, X87};

/// The part of every area that FXSAVE has, too.
pub const LEGACY_SIZE: usize = 512;
const REGISTERS_AT: usize = 32;
const SSE_AT: usize = 160;
const SSE_END: usize = 416;
const HEADER_SIZE: usize = EXTENDED_AT - LEGACY_SIZE;

/// XCOMP_BV: the area is compacted.
const COMPACTED: u64 = 1 << 63;

/// How an instruction lays the state out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// FXSAVE.
    Legacy,
    /// XSAVE, XSAVEOPT.
    Standard,
    /// XSAVEC.
    Compacted,
}

/// Bytes to write, by their offset in the area.
pub type Pieces = Vec<(usize, Vec<u8>)>;

/// The area is not one, or holds what no register can: general protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadArea;

fn x87_pieces(x87: &X87) -> Pieces {
    let mut control = vec![0; MXCSR_AT];
    control[..x87.words.len()].copy_from_slice(&x87.words);
    let mut registers = vec![0; SSE_AT - REGISTERS_AT];
    for (register, slot) in x87.registers.iter().zip(registers.chunks_mut(16)) {
        slot[..register.len()].copy_from_slice(register);
    }
    vec![(0, control), (REGISTERS_AT, registers)]
}

fn registers(state: &VectorState, number: u32, length: usize) -> Vec<u8> {
    state
        .part(number)
        .map_or_else(|| vec![0; length], <[u8]>::to_vec)
}

/// What the instruction writes: the components of `wanted`. `before` is the
/// area's XSTATE_BV, of which XSAVE keeps what it was not asked for.
pub fn save(
    state: &VectorState,
    processor: &Processor,
    format: Format,
    wanted: u64,
    before: u64,
) -> Pieces {
    let wanted = match format {
        Format::Legacy => 3,
        _ => wanted & processor.components(),
    };
    let mut pieces = Vec::new();
    if wanted & 1 != 0 {
        pieces = x87_pieces(&state.x87());
    }
    // Registers of 256 bits have the control word of those of 128 bits, but for
    // the compacted format.
    let with_control = match format {
        Format::Standard => 6,
        Format::Legacy | Format::Compacted => 2,
    };
    if wanted & with_control != 0 {
        let words = [state.mxcsr(), processor.mxcsr_mask()];
        pieces.push((
            MXCSR_AT,
            words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        ));
    }
    if wanted & 1 << SSE != 0 {
        pieces.push((SSE_AT, registers(state, SSE, SSE_END - SSE_AT)));
    }
    let places = processor.places();
    match format {
        Format::Legacy => {}
        Format::Standard => {
            for place in places {
                if wanted & 1 << place.number != 0 {
                    let length = place.standard.len();
                    let bytes = registers(state, place.number, length);
                    pieces.push((place.standard.start, bytes));
                }
            }
            let in_use = before & !wanted | wanted;
            pieces.push((LEGACY_SIZE, in_use.to_le_bytes().to_vec()));
        }
        Format::Compacted => {
            for (number, start) in compacted(&places, wanted).0 {
                let place = places.iter().find(|place| place.number == number);
                let length = place.map_or(0, |place| place.standard.len());
                pieces.push((start, registers(state, number, length)));
            }
            let header = [wanted, wanted | COMPACTED];
            let bytes = header.iter().flat_map(|word| word.to_le_bytes()).collect();
            pieces.push((LEGACY_SIZE, bytes));
        }
    }
    pieces
}

/// The whole state in the standard format, as a signal's frame has it.
pub fn image(state: &VectorState, processor: &Processor) -> Vec<u8> {
    let mut image = vec![0; processor.area_size()];
    for (at, bytes) in save(state, processor, Format::Standard, u64::MAX, 0) {
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    image
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// An area's first 576 bytes, of which the first 512 are the legacy part.
pub struct Area {
    bytes: [u8; EXTENDED_AT],
    in_use: u64,
    layout: u64,
}

impl Area {
    /// Takes the area's beginning if XRSTOR would.
    pub fn new(bytes: [u8; EXTENDED_AT], processor: &Processor) -> Result<Area, BadArea> {
        let in_use = word(&bytes, LEGACY_SIZE);
        let layout = word(&bytes, LEGACY_SIZE + 8);
        let header = &bytes[LEGACY_SIZE..];
        let empty = |from: usize, to: usize| header[from..to].iter().all(|byte| *byte == 0);
        let good = if layout & COMPACTED != 0 {
            processor.has_compacted_format()
                && layout & !COMPACTED & !processor.components() == 0
                && in_use & !layout == 0
                && empty(16, HEADER_SIZE)
        } else {
            in_use & !processor.components() == 0 && empty(8, 24)
        };
        good.then_some(Area {
            bytes,
            in_use,
            layout,
        })
        .ok_or(BadArea)
    }

    fn is_compacted(&self) -> bool {
        self.layout & COMPACTED != 0
    }

    /// Where the components beyond the legacy part are that `wanted` asks for
    /// and the area has: number, offset, length.
    pub fn parts(&self, processor: &Processor, wanted: u64) -> Vec<(u32, usize, usize)> {
        let places = processor.places();
        let starts = match self.is_compacted() {
            true => compacted(&places, self.layout & !COMPACTED).0,
            false => places
                .iter()
                .map(|place| (place.number, place.standard.start))
                .collect(),
        };
        starts
            .into_iter()
            .filter(|(number, _)| wanted & self.in_use & 1 << number != 0)
            .filter_map(|(number, start)| {
                let place = places.iter().find(|place| place.number == number)?;
                Some((number, start, place.standard.len()))
            })
            .collect()
    }

    /// Loads the components of `wanted`: what is not in use is as at the
    /// start. `parts` are the registers found at what `parts` said.
    pub fn restore(
        &self,
        state: &mut VectorState,
        processor: &Processor,
        wanted: u64,
        parts: &[(u32, Vec<u8>)],
    ) -> Result<(), BadArea> {
        let wanted = wanted & processor.components();
        let loads = |number: u32| self.in_use & 1 << number != 0;
        let control = word(&self.bytes, MXCSR_AT) as u32;
        let loads_control = match self.is_compacted() {
            true => wanted & 2 != 0 && loads(SSE),
            false => wanted & 6 != 0,
        };
        if loads_control {
            if control & !processor.mxcsr_mask() != 0 {
                return Err(BadArea);
            }
            state.set_mxcsr(control);
        } else if wanted & 2 != 0 {
            state.set_mxcsr(VectorState::default().mxcsr());
        }
        if wanted & 1 != 0 {
            let mut x87 = X87::default();
            if loads(0) {
                let length = x87.words.len();
                x87.words.copy_from_slice(&self.bytes[..length]);
                let slots = self.bytes[REGISTERS_AT..SSE_AT].chunks(16);
                for (register, slot) in x87.registers.iter_mut().zip(slots) {
                    register.copy_from_slice(&slot[..10]);
                }
            }
            state.set_x87(&x87.as_loaded());
        }
        if wanted & 1 << SSE != 0 {
            let registers = loads(SSE).then_some(&self.bytes[SSE_AT..SSE_END]);
            state.set_part(SSE, registers);
        }
        for place in processor.places() {
            if wanted & 1 << place.number != 0 {
                let part = parts.iter().find(|(number, _)| *number == place.number);
                state.set_part(place.number, part.map(|(_, bytes)| bytes.as_slice()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::{self, HIGH_512, OPMASK, UPPER_256, UPPER_512};
    use std::arch::x86_64::{_xrstor64, _xsave64, _xsavec64};

    #[repr(C, align(64))]
    #[derive(Clone)]
    struct Memory([u8; 4096]);

    /// A state in which every register is something.
    fn full() -> VectorState {
        let processor = Processor::host();
        let mut state = VectorState::default();
        let mut next = 1u8;
        let mut fill = |length: usize| -> Vec<u8> {
            (0..length)
                .map(|_| {
                    next = next.wrapping_mul(5).wrapping_add(3);
                    next | 1
                })
                .collect()
        };
        state.set_part(SSE, Some(&fill(256)));
        for (number, length) in [
            (UPPER_256, 256),
            (OPMASK, 64),
            (UPPER_512, 512),
            (HIGH_512, 1024),
        ] {
            if processor.components() & 1 << number != 0 {
                state.set_part(number, Some(&fill(length)));
            }
        }
        state.set_x87(&X87 {
            words: [0x7f, 3, 0, 0x38, 0xff],
            registers: std::array::from_fn(|_| std::array::from_fn(|byte| byte as u8 + 0x40)),
        });
        state.set_mxcsr(0x1f80);
        state
    }

    /// What the machine stores of this state into memory full of `filler`.
    fn by_machine(state: &VectorState, format: Format, wanted: u64, filler: u8) -> Memory {
        let mut memory = Memory([filler; 4096]);
        memory.0[512..576].fill(0);
        let own = Memory([0; 4096]);
        let mut own = own;
        // SAFETY: both areas are aligned and larger than any the machine has;
        // the test's own state is put back before Rust code goes on.
        unsafe {
            _xsave64(own.0.as_mut_ptr(), u64::MAX);
            _xrstor64(state.bytes.as_ptr(), vector::guest_xcr0());
            match format {
                Format::Compacted => _xsavec64(memory.0.as_mut_ptr(), wanted),
                _ => _xsave64(memory.0.as_mut_ptr(), wanted),
            }
            _xrstor64(own.0.as_ptr(), u64::MAX);
        }
        memory
    }

    fn by_vm(state: &VectorState, format: Format, wanted: u64, filler: u8) -> Memory {
        let mut memory = Memory([filler; 4096]);
        memory.0[512..576].fill(0);
        for (at, bytes) in save(state, Processor::host(), format, wanted, 0) {
            memory.0[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        memory
    }

    #[test]
    fn a_full_state_is_stored_as_the_machine_does() {
        if !std::is_x86_feature_detected!("xsavec") {
            return;
        }
        let state = full();
        let all = Processor::host().components();
        for wanted in (0..=all).filter(|wanted| wanted & !all == 0) {
            for format in [Format::Standard, Format::Compacted] {
                let machine = by_machine(&state, format, wanted, 0xaa);
                let vm = by_vm(&state, format, wanted, 0xaa);
                let first = (0..4096).find(|at| {
                    // Pointers of the x87 unit.
                    !(6..24).contains(at) && machine.0[*at] != vm.0[*at]
                });
                assert_eq!(first, None, "{format:?} of {wanted:#x}");
            }
        }
    }

    #[test]
    fn what_is_stored_can_be_loaded() {
        let state = full();
        let processor = Processor::host();
        for format in [Format::Standard, Format::Compacted] {
            let memory = by_vm(&state, format, u64::MAX, 0);
            let mut beginning = [0; EXTENDED_AT];
            beginning.copy_from_slice(&memory.0[..EXTENDED_AT]);
            let area = Area::new(beginning, processor).expect("a good area");
            let parts: Vec<_> = area
                .parts(processor, u64::MAX)
                .into_iter()
                .map(|(number, at, length)| (number, memory.0[at..at + length].to_vec()))
                .collect();
            let mut loaded = VectorState::default();
            area.restore(&mut loaded, processor, u64::MAX, &parts)
                .expect("good values");
            assert_eq!(loaded.x87(), state.x87());
            assert_eq!(loaded.mxcsr(), state.mxcsr());
            for number in [SSE, UPPER_256, OPMASK, UPPER_512, HIGH_512] {
                assert_eq!(
                    loaded.part(number),
                    state.part(number),
                    "component {number}"
                );
            }
            // Of no component: as at the start.
            let mut area = area;
            area.in_use = 0;
            area.restore(&mut loaded, processor, u64::MAX, &[])
                .expect("good values");
            assert_eq!(loaded.x87(), X87::default());
            assert_eq!(loaded.part(SSE), None);
        }
    }

    #[test]
    fn bad_areas_are_refused() {
        let processor = Processor::host();
        let bad = |at: usize, value: u8| {
            let mut bytes = [0; EXTENDED_AT];
            bytes[at] = value;
            Area::new(bytes, processor).is_err()
        };
        assert!(!bad(512, 3));
        // A component there is not; a reserved word; half a layout.
        assert!(bad(513, 0x80));
        assert!(bad(520, 1));
        assert!(bad(530, 1));
        assert!(!bad(540, 1));
        let mut bytes = [0; EXTENDED_AT];
        bytes[MXCSR_AT + 3] = 0x80;
        let area = Area::new(bytes, processor).expect("a good area");
        let mut state = VectorState::default();
        assert_eq!(area.restore(&mut state, processor, 2, &[]), Err(BadArea));
        assert_eq!(area.restore(&mut state, processor, 1, &[]), Ok(()));
    }
}
