//! Accesses whose addresses or extent only the machine's state tells:
//! repeated string instructions, gathers and scatters, masked vectors, bit
//! strings.
//!
//! Translated code stops before such an instruction and this module works its
//! accesses out from the registers, exactly: lanes that a mask switches off
//! and comparisons that end early are not reported as touched. State saves
//! (xsave and kin) are reported for their fixed part only; they go to the
//! thread's own stack.

use super::AccessEvent;
use crate::context::{Registers, reg};
use crate::memory;
use crate::vector::{self, VectorState};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use race::Moment;

/// The state an instruction starts from.
pub(crate) struct Machine<'a> {
    pub regs: &'a Registers,
    pub vector: &'a VectorState,
}

impl Machine<'_> {
    fn general(&self, register: Register) -> u64 {
        if register == Register::None {
            return 0;
        }
        let full = self.regs.gpr[register.full_register().number() & 15];
        match register.size() {
            4 => full & 0xffff_ffff,
            2 => full & 0xffff,
            _ => full,
        }
    }

    /// Bytes `at..at + N` of a vector register; a component in its initial
    /// state is zero whatever the save area holds.
    fn vector_bytes<const N: usize>(&self, number: usize, at: usize) -> [u8; N] {
        let (component, offset) = match (number, at) {
            (16.., _) => (vector::HIGH_512, 64 * (number - 16) + at),
            (_, 0..16) => (vector::SSE, 16 * number + at),
            (_, 16..32) => (vector::UPPER_256, 16 * number + at - 16),
            _ => (vector::UPPER_512, 32 * number + at - 32),
        };
        let mut bytes = [0; N];
        if let Some(part) = self.vector.part(component) {
            bytes.copy_from_slice(&part[offset..offset + N]);
        }
        bytes
    }

    fn mask_register(&self, register: Register) -> u64 {
        if register == Register::None {
            return u64::MAX;
        }
        let Some(part) = self.vector.part(vector::OPMASK) else {
            return 0;
        };
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&part[8 * register.number()..][..8]);
        u64::from_le_bytes(bytes)
    }

    fn segment_base(&self, segment: Register) -> u64 {
        match segment {
            Register::FS => self.regs.fs_base,
            Register::GS => self.regs.gs_base,
            _ => 0,
        }
    }

    /// Address of the instruction's memory operand.
    pub fn address(&self, instruction: &Instruction) -> u64 {
        if instruction.is_ip_rel_memory_operand() {
            return instruction.ip_rel_memory_address();
        }
        let sum = self
            .general(instruction.memory_base())
            .wrapping_add(
                self.general(instruction.memory_index())
                    .wrapping_mul(u64::from(instruction.memory_index_scale())),
            )
            .wrapping_add(instruction.memory_displacement64());
        let sum = if instruction.memory_base().size() == 4 {
            sum & 0xffff_ffff
        } else {
            sum
        };
        sum.wrapping_add(self.segment_base(instruction.memory_segment()))
    }
}

/// One contiguous piece of an instruction's accesses.
struct Piece {
    address: u64,
    size: u64,
    read: bool,
    write: bool,
}

/// The accesses of the instruction in `code`, about to be executed at
/// `moment`.
pub(crate) fn accesses(machine: &Machine, code: &[u8], moment: Moment) -> Vec<AccessEvent> {
    let pc = machine.regs.rip;
    let instruction = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode();
    let pieces = if crate::translate::is_repeated(&instruction) {
        string(machine, &instruction)
    } else {
        other(machine, &instruction)
    };
    pieces
        .into_iter()
        .filter(|piece| piece.size > 0)
        .zip(0..)
        .map(|(piece, part)| AccessEvent {
            moment: Moment { part, ..moment },
            pc,
            address: piece.address,
            size: u32::try_from(piece.size).unwrap_or(u32::MAX),
            read: piece.read,
            write: piece.write,
            locked: instruction.has_lock_prefix(),
        })
        .collect()
}

fn string(machine: &Machine, instruction: &Instruction) -> Vec<Piece> {
    use Mnemonic::*;
    let width = match instruction.mnemonic() {
        Movsb | Stosb | Lodsb | Cmpsb | Scasb => 1u64,
        Movsw | Stosw | Lodsw | Cmpsw | Scasw => 2,
        Movsd | Stosd | Lodsd | Cmpsd | Scasd => 4,
        Movsq | Stosq | Lodsq | Cmpsq | Scasq => 8,
        _ => return Vec::new(),
    };
    let short_addresses = instruction
        .op_kinds()
        .any(|kind| matches!(kind, OpKind::MemorySegESI | OpKind::MemoryESEDI));
    let narrow = |value: u64| {
        if short_addresses {
            value & 0xffff_ffff
        } else {
            value
        }
    };
    let mut count = narrow(machine.regs.gpr[reg::RCX]);
    let backwards = machine.regs.rflags & (1 << 10) != 0;
    let source = narrow(machine.regs.gpr[reg::RSI])
        .wrapping_add(machine.segment_base(instruction.memory_segment()));
    let target = narrow(machine.regs.gpr[reg::RDI]);
    let (reads_source, reads_target, writes_target) = match instruction.mnemonic() {
        Movsb | Movsw | Movsd | Movsq => (true, false, true),
        Stosb | Stosw | Stosd | Stosq => (false, false, true),
        Lodsb | Lodsw | Lodsd | Lodsq => (true, false, false),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq => (true, true, false),
        _ => (false, true, false),
    };
    let element = |start: u64, index: u64| {
        let distance = index.wrapping_mul(width);
        if backwards {
            start.wrapping_sub(distance)
        } else {
            start.wrapping_add(distance)
        }
    };
    if reads_target {
        // A comparison stops at the first element that decides it.
        let while_equal = !instruction.has_repne_prefix();
        let accumulator = machine.regs.gpr[reg::RAX].to_le_bytes();
        let mut done = 0;
        while done < count {
            let (mut left, mut right) = ([0; 8], [0; 8]);
            let width = width as usize;
            if memory::read(element(target, done), &mut right[..width]).is_err() {
                break;
            }
            if reads_source {
                if memory::read(element(source, done), &mut left[..width]).is_err() {
                    break;
                }
            } else {
                left[..width].copy_from_slice(&accumulator[..width]);
            }
            done += 1;
            if (left == right) != while_equal {
                break;
            }
        }
        count = done;
    }
    let span = |start: u64| {
        if backwards {
            element(start, count.saturating_sub(1))
        } else {
            start
        }
    };
    let size = count.saturating_mul(width);
    let mut pieces = Vec::new();
    if reads_source {
        pieces.push(Piece {
            address: span(source),
            size,
            read: true,
            write: false,
        });
    }
    if reads_target || writes_target {
        pieces.push(Piece {
            address: span(target),
            size,
            read: reads_target,
            write: writes_target,
        });
    }
    pieces
}

fn other(machine: &Machine, instruction: &Instruction) -> Vec<Piece> {
    use Mnemonic::*;
    let (read, write) = direction(instruction);
    let size = instruction.memory_size().size() as u64;
    let one = |address: u64, size: u64| {
        vec![Piece {
            address,
            size,
            read,
            write,
        }]
    };
    match instruction.mnemonic() {
        Bt | Bts | Btr | Btc => {
            let bits = size * 8;
            let offset = match size {
                2 => i64::from(machine.general(instruction.op1_register()) as i16),
                4 => i64::from(machine.general(instruction.op1_register()) as i32),
                _ => machine.general(instruction.op1_register()) as i64,
            };
            let step = offset.div_euclid(bits as i64) * size as i64;
            one(machine.address(instruction).wrapping_add(step as u64), size)
        }
        Xlatb => {
            let address = machine.regs.gpr[reg::RBX]
                .wrapping_add(machine.regs.gpr[reg::RAX] & 0xff)
                .wrapping_add(machine.segment_base(instruction.memory_segment()));
            one(address, 1)
        }
        Maskmovq | Maskmovdqu | Vmaskmovdqu => {
            let (mask, width) = if instruction.mnemonic() == Maskmovq {
                // MMX registers overlay the x87 stack.
                let x87 = machine.vector.x87();
                let register = &x87.registers[instruction.op2_register().number() & 7];
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&register[..8]);
                (bytes, 8)
            } else {
                (
                    machine.vector_bytes(instruction.op2_register().number(), 0),
                    16,
                )
            };
            let start = machine.regs.gpr[reg::RDI]
                .wrapping_add(machine.segment_base(instruction.memory_segment()));
            lanes(start, 1, width, |lane| mask[lane] & 0x80 != 0, read, write)
        }
        Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq => {
            let width = if matches!(instruction.mnemonic(), Vmaskmovps | Vpmaskmovd) {
                4
            } else {
                8
            };
            let count = instruction.op1_register().size() / width;
            let mask = sign_bits(machine, instruction.op1_register(), width);
            let start = machine.address(instruction);
            lanes(
                start,
                width,
                count,
                |lane| mask & (1 << lane) != 0,
                read,
                write,
            )
        }
        _ if instruction.is_vsib() => gather(machine, instruction, read, write),
        _ if instruction.op_mask() != Register::None => masked(machine, instruction, read, write),
        _ => one(
            machine.address(instruction),
            size.max(if size == 0 { 512 } else { 0 }),
        ),
    }
}

/// Whether the memory operand is read and written.
fn direction(instruction: &Instruction) -> (bool, bool) {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let mut result = (false, false);
    for memory in info.used_memory() {
        match memory.access() {
            OpAccess::Read | OpAccess::CondRead => result.0 = true,
            OpAccess::Write | OpAccess::CondWrite => result.1 = true,
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => result = (true, true),
            OpAccess::None | OpAccess::NoMemAccess => {}
        }
    }
    result
}

/// Contiguous lanes from `start`, neighbours joined.
fn lanes(
    start: u64,
    width: usize,
    count: usize,
    on: impl Fn(usize) -> bool,
    read: bool,
    write: bool,
) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for lane in (0..count).filter(|lane| on(*lane)) {
        let address = start.wrapping_add((lane * width) as u64);
        match pieces.last_mut() {
            Some(last) if last.address.wrapping_add(last.size) == address => {
                last.size += width as u64;
            }
            _ => pieces.push(Piece {
                address,
                size: width as u64,
                read,
                write,
            }),
        }
    }
    pieces
}

/// Top bits of the elements of a vector register.
fn sign_bits(machine: &Machine, register: Register, width: usize) -> u64 {
    let count = register.size() / width;
    (0..count)
        .filter(|lane| {
            let byte: [u8; 1] = machine.vector_bytes(register.number(), lane * width + width - 1);
            byte[0] & 0x80 != 0
        })
        .fold(0, |mask, lane| mask | (1 << lane))
}

/// An EVEX load or store under a mask register.
fn masked(machine: &Machine, instruction: &Instruction, read: bool, write: bool) -> Vec<Piece> {
    use Mnemonic::*;
    let width = instruction.memory_size().element_size().max(1);
    let mask = machine.mask_register(instruction.op_mask());
    let start = machine.address(instruction);
    let spread = matches!(
        instruction.mnemonic(),
        Vbroadcastss
            | Vbroadcastsd
            | Vbroadcastf32x2
            | Vbroadcasti32x2
            | Vbroadcastf32x4
            | Vbroadcasti32x4
            | Vbroadcastf32x8
            | Vbroadcasti32x8
            | Vbroadcastf64x2
            | Vbroadcasti64x2
            | Vbroadcastf64x4
            | Vbroadcasti64x4
            | Vpbroadcastb
            | Vpbroadcastw
            | Vpbroadcastd
            | Vpbroadcastq
    );
    if instruction.is_broadcast() || spread {
        // The mask selects where it goes: a bit for each element there.
        let lanes = (0..instruction.op_count())
            .map(|operand| instruction.op_register(operand))
            .filter(|register| register.is_vector_register())
            .map(|register| register.size() / width)
            .max()
            .unwrap_or(1);
        let selected = mask << (64 - lanes.clamp(1, 64));
        let size = match (selected, spread) {
            (0, _) => 0,
            (_, true) => instruction.memory_size().size() as u64,
            (_, false) => width as u64,
        };
        return vec![Piece {
            address: start,
            size,
            read,
            write,
        }];
    }
    let count = (instruction.memory_size().size() / width).max(1);
    let in_range = if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    };
    match instruction.mnemonic() {
        // These pack the selected elements together.
        Vcompressps | Vcompresspd | Vpcompressd | Vpcompressq | Vpcompressb | Vpcompressw
        | Vexpandps | Vexpandpd | Vpexpandd | Vpexpandq | Vpexpandb | Vpexpandw => {
            let selected = (mask & in_range).count_ones() as usize;
            lanes(start, width, selected, |_| true, read, write)
        }
        _ => lanes(
            start,
            width,
            count,
            |lane| mask & (1 << lane) != 0,
            read,
            write,
        ),
    }
}

/// Gathers and scatters: one access per selected element.
fn gather(machine: &Machine, instruction: &Instruction, read: bool, write: bool) -> Vec<Piece> {
    let width = instruction.memory_size().element_size().max(1);
    let index = instruction.memory_index();
    let index_width = if instruction.is_vsib64() { 8 } else { 4 };
    let evex = instruction.op_mask() != Register::None;
    let data = (0..instruction.op_count())
        .map(|operand| instruction.op_register(operand))
        .find(|register| register.is_vector_register())
        .unwrap_or(Register::XMM0);
    let count = (index.size() / index_width).min(data.size() / width);
    let mask = if evex {
        machine.mask_register(instruction.op_mask())
    } else {
        // VEX gathers carry the mask in the third operand's sign bits.
        sign_bits(machine, instruction.op2_register(), width)
    };
    let base = machine
        .general(instruction.memory_base())
        .wrapping_add(instruction.memory_displacement64())
        .wrapping_add(machine.segment_base(instruction.memory_segment()));
    (0..count)
        .filter(|lane| mask & (1 << lane) != 0)
        .map(|lane| {
            let offset = if index_width == 8 {
                i64::from_le_bytes(machine.vector_bytes(index.number(), lane * 8))
            } else {
                i64::from(i32::from_le_bytes(
                    machine.vector_bytes(index.number(), lane * 4),
                ))
            };
            let scaled = offset.wrapping_mul(i64::from(instruction.memory_index_scale()));
            Piece {
                address: base.wrapping_add(scaled as u64),
                size: width as u64,
                read,
                write,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_with(regs: &Registers, vector: &VectorState, code: &[u8]) -> Vec<(u64, u32, bool)> {
        accesses(&Machine { regs, vector }, code, Moment::new(1, 0))
            .iter()
            .map(|event| (event.address, event.size, event.write))
            .collect()
    }

    #[test]
    fn rep_movs_reads_and_writes_its_whole_extent() {
        let mut regs = Registers::default();
        regs.gpr[reg::RCX] = 3;
        regs.gpr[reg::RSI] = 0x1000;
        regs.gpr[reg::RDI] = 0x2000;
        let seen = machine_with(&regs, &VectorState::default(), &[0xf3, 0x48, 0xa5]);
        assert_eq!(seen, [(0x1000, 24, false), (0x2000, 24, true)]);
        regs.rflags = 1 << 10;
        let seen = machine_with(&regs, &VectorState::default(), &[0xf3, 0x48, 0xa5]);
        assert_eq!(seen, [(0xff0, 24, false), (0x1ff0, 24, true)]);
    }

    #[test]
    fn repne_scas_stops_where_it_finds() {
        // Where guest memory may be: the vm's own is not looked at.
        let text = 0x1234_0000_0000;
        crate::host::map_fixed(text, 4096, libc::PROT_READ | libc::PROT_WRITE).unwrap();
        crate::memory::write(text, b"hello\0world").unwrap();
        let mut regs = Registers::default();
        regs.gpr[reg::RCX] = u64::MAX;
        regs.gpr[reg::RDI] = text;
        let seen = machine_with(&regs, &VectorState::default(), &[0xf2, 0xae]);
        assert_eq!(seen, [(text, 6, false)]);
    }

    #[test]
    fn a_bit_beyond_the_operand_is_where_the_machine_finds_it() {
        let mut regs = Registers::default();
        regs.gpr[reg::RAX] = 0x1000;
        regs.gpr[reg::RCX] = (-1i64) as u64;
        // bts qword [rax], rcx
        let seen = machine_with(&regs, &VectorState::default(), &[0x48, 0x0f, 0xab, 0x08]);
        assert_eq!(seen, [(0xff8, 8, true)]);
    }

    #[test]
    fn masked_lanes_are_not_touched() {
        let mut regs = Registers::default();
        regs.gpr[reg::RAX] = 0x1000;
        let mut vector = VectorState::default();
        let mut masks = [0; 64];
        masks[8] = 0b1011;
        vector.set_part(vector::OPMASK, Some(&masks));
        // vmovdqu32 [rax]{k1}, xmm0
        let seen = machine_with(&regs, &vector, &[0x62, 0xf1, 0x7e, 0x09, 0x7f, 0x00]);
        assert_eq!(seen, [(0x1000, 8, true), (0x100c, 4, true)]);
    }

    #[test]
    fn what_is_spread_is_read_wherever_it_goes() {
        let mut regs = Registers::default();
        regs.gpr[reg::RAX] = 0x1000;
        let mut vector = VectorState::default();
        let mut masks = [0; 64];
        // vbroadcasti32x4 ymm0{k1}, [rax]
        let spread = [0x62, 0xf2, 0x7d, 0x29, 0x5a, 0x00];
        // vpcmpd k2{k1}, ymm1, [rax]{1to8}, 4
        let compared = [0x62, 0xf3, 0x75, 0x39, 0x1f, 0x10, 0x04];
        for (mask, expected) in [(0xf0, (16, 4)), (0, (0, 0)), (0x80, (16, 4))] {
            masks[8] = mask;
            vector.set_part(vector::OPMASK, Some(&masks));
            let size = |code: &[u8]| {
                machine_with(&regs, &vector, code)
                    .first()
                    .map_or(0, |seen| seen.1)
            };
            assert_eq!((size(&spread), size(&compared)), expected, "mask {mask:#x}");
        }
        // Beyond the elements of the register.
        masks[8..10].copy_from_slice(&[0, 1]);
        vector.set_part(vector::OPMASK, Some(&masks));
        assert!(machine_with(&regs, &vector, &spread).is_empty());
    }
}
