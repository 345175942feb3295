//! What an instruction and its neighbours do with a location, for the labels
//! of paper 002, section 3.3: "by analyzing few memory instructions before and
//! after the memory access".

use crate::map::ModuleMap;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use serde::{Deserialize, Serialize};

/// Instructions looked at on either side.
const NEIGHBOURS: usize = 8;

/// Bytes of a function that are decoded.
const LONGEST: u64 = 1 << 20;

/// How a location is used at one site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Usage {
    Increment,
    Decrement,
    /// These bits are set, cleared or flipped; all others are written back as
    /// they were.
    UpdatesBits(u64),
    /// Only these bits of what is read matter.
    TestsBits(u64),
    #[default]
    Other,
}

impl ModuleMap {
    /// How the instruction at `address` uses its memory operand.
    pub fn usage_at(&self, address: u64) -> Usage {
        let Some((module, link)) = self.find(address) else {
            return Usage::Other;
        };
        let range = module.unwind_range_at(link).or_else(|| {
            let symbol = module.function_at(link)?;
            Some(symbol.start..symbol.start.saturating_add(symbol.size))
        });
        let code = range
            .filter(|range| range.end - range.start <= LONGEST)
            .and_then(|range| {
                let size = (range.end - range.start) as usize;
                Some((module.bytes_at(range.start, size)?, range.start))
            });
        code.map_or(Usage::Other, |(bytes, start)| {
            let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
            usage(&decoder.into_iter().collect::<Vec<_>>(), link)
        })
    }
}

/// What two changes on the way of a value do together.
fn together(before: Option<Usage>, next: Usage) -> Usage {
    match (before, next) {
        (Some(Usage::UpdatesBits(one)), Usage::UpdatesBits(other)) => {
            Usage::UpdatesBits(one | other)
        }
        (Some(one), other) if one != other => Usage::Other,
        (_, next) => next,
    }
}

fn same_memory(one: &Instruction, other: &Instruction) -> bool {
    one.memory_base() == other.memory_base()
        && one.memory_index() == other.memory_index()
        && one.memory_index_scale() == other.memory_index_scale()
        && one.memory_displacement64() == other.memory_displacement64()
        && one.memory_segment() == other.memory_segment()
}

fn immediate(instruction: &Instruction, operand: u32) -> Option<i64> {
    match instruction.op_kind(operand) {
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => Some(instruction.immediate(operand) as i64),
        _ => None,
    }
}

fn width_mask(bytes: usize) -> u64 {
    if bytes >= 8 {
        u64::MAX
    } else {
        (1 << (bytes * 8)) - 1
    }
}

fn sign(amount: i64, bytes: usize) -> i64 {
    let shift = 64 - 8 * bytes.clamp(1, 8) as u32;
    (amount << shift) >> shift
}

/// The effect of an arithmetic instruction on its first operand.
fn arithmetic(instruction: &Instruction, bytes: usize) -> Option<Usage> {
    let amount = (instruction.op_count() > 1)
        .then(|| immediate(instruction, 1))
        .flatten();
    let mask = width_mask(bytes);
    Some(match instruction.mnemonic() {
        Mnemonic::Inc => Usage::Increment,
        Mnemonic::Dec => Usage::Decrement,
        Mnemonic::Add => match amount {
            Some(amount) if sign(amount, bytes) < 0 => Usage::Decrement,
            _ => Usage::Increment,
        },
        Mnemonic::Sub => match amount {
            Some(amount) if sign(amount, bytes) < 0 => Usage::Increment,
            _ => Usage::Decrement,
        },
        Mnemonic::Or | Mnemonic::Xor => Usage::UpdatesBits(amount? as u64 & mask),
        Mnemonic::And => Usage::UpdatesBits(!(amount? as u64) & mask),
        Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => {
            Usage::UpdatesBits(1u64.checked_shl(amount? as u32)? & mask)
        }
        _ => return None,
    })
}

/// Which bits an instruction tests of its first operand.
fn tested(instruction: &Instruction, bytes: usize) -> Option<u64> {
    let amount = (instruction.op_count() > 1)
        .then(|| immediate(instruction, 1))
        .flatten();
    match instruction.mnemonic() {
        Mnemonic::Test | Mnemonic::And => Some(amount? as u64 & width_mask(bytes)),
        Mnemonic::Bt => 1u64.checked_shl(amount? as u32),
        _ => None,
    }
}

fn is_load(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
    ) && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Memory
}

fn is_store(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register
}

/// The effect on a register of an instruction that only moves or adjusts it.
fn step(instruction: &Instruction, register: Register, bytes: usize) -> Option<Usage> {
    if instruction.op0_kind() != OpKind::Register
        || instruction.op0_register().full_register() != register
    {
        return None;
    }
    if instruction.mnemonic() == Mnemonic::Lea {
        let distance = sign(instruction.memory_displacement64() as i64, 8);
        return Some(if distance < 0 {
            Usage::Decrement
        } else {
            Usage::Increment
        });
    }
    arithmetic(instruction, bytes)
}

/// How the instruction at `address` uses its memory operand, given the
/// instructions of its function in order.
pub fn usage(function: &[Instruction], address: u64) -> Usage {
    let Ok(at) = function.binary_search_by_key(&address, Instruction::ip) else {
        return Usage::Other;
    };
    let access = &function[at];
    let bytes = access.memory_size().size();
    if access.op0_kind() == OpKind::Memory {
        if matches!(access.mnemonic(), Mnemonic::Test | Mnemonic::Bt) {
            return tested(access, bytes).map_or(Usage::Other, Usage::TestsBits);
        }
        if let Some(usage) = arithmetic(access, bytes) {
            return usage;
        }
    }
    if is_load(access) {
        return usage_of_load(&function[at..], bytes);
    }
    if is_store(access) {
        return usage_of_store(&function[at.saturating_sub(NEIGHBOURS)..=at], bytes);
    }
    Usage::Other
}

/// A load: the first half of an update if the changed value goes back to the
/// same place, else perhaps a test of some bits.
fn usage_of_load(following: &[Instruction], bytes: usize) -> Usage {
    let load = &following[0];
    let register = load.op0_register().full_register();
    let mut value = register;
    let mut change = None;
    let mut test = None;
    for next in following.iter().skip(1).take(NEIGHBOURS) {
        if is_store(next)
            && same_memory(load, next)
            && next.op1_register().full_register() == value
            && let Some(change) = change
        {
            return change;
        }
        if next.mnemonic() == Mnemonic::Lea && next.memory_base().full_register() == value {
            value = next.op0_register().full_register();
            change = step(next, value, bytes);
        } else if let Some(found) = step(next, value, bytes) {
            change = Some(together(change, found));
        }
        let on_value = next.op_count() > 0
            && next.op0_kind() == OpKind::Register
            && next.op0_register().full_register() == register;
        if on_value && test.is_none() {
            test = tested(next, bytes);
        }
        if next.is_call_near() || next.is_call_near_indirect() {
            break;
        }
    }
    test.map_or(Usage::Other, Usage::TestsBits)
}

/// A store: the second half of an update if its value was loaded from the
/// same place and changed.
fn usage_of_store(preceding: &[Instruction], bytes: usize) -> Usage {
    let Some((store, before)) = preceding.split_last() else {
        return Usage::Other;
    };
    let mut value = store.op1_register().full_register();
    let mut change = None;
    for earlier in before.iter().rev() {
        if is_load(earlier)
            && same_memory(earlier, store)
            && earlier.op0_register().full_register() == value
        {
            return change.unwrap_or(Usage::Other);
        }
        if let Some(found) = step(earlier, value, bytes) {
            change = Some(together(change, found));
            if earlier.mnemonic() == Mnemonic::Lea {
                value = earlier.memory_base().full_register();
            }
        }
    }
    Usage::Other
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    fn listing(build: impl Fn(&mut CodeAssembler)) -> Vec<Instruction> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        build(&mut assembler);
        let bytes = assembler.assemble(0x1000).unwrap();
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0);
        decoder.iter().collect()
    }

    fn usages(build: impl Fn(&mut CodeAssembler)) -> Vec<Usage> {
        let listing = listing(build);
        listing.iter().map(|i| usage(&listing, i.ip())).collect()
    }

    #[test]
    fn one_instruction_updates() {
        let found = usages(|a| {
            a.inc(dword_ptr(rdi)).unwrap();
            a.add(dword_ptr(rdi), -1).unwrap();
            a.sub(qword_ptr(rdi + 8), 3).unwrap();
            a.or(dword_ptr(rdi), 4).unwrap();
            a.and(dword_ptr(rdi), !8).unwrap();
            a.test(dword_ptr(rdi), 0x10).unwrap();
        });
        assert_eq!(
            found,
            [
                Usage::Increment,
                Usage::Decrement,
                Usage::Decrement,
                Usage::UpdatesBits(4),
                Usage::UpdatesBits(8),
                Usage::TestsBits(0x10),
            ]
        );
    }

    #[test]
    fn load_change_store() {
        let found = usages(|a| {
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.add(eax, 1).unwrap();
            a.mov(dword_ptr(rdi), eax).unwrap();
        });
        assert_eq!(found[0], Usage::Increment);
        assert_eq!(found[2], Usage::Increment);
        let found = usages(|a| {
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.lea(rdx, qword_ptr(rax - 1)).unwrap();
            a.mov(qword_ptr(rdi), rdx).unwrap();
        });
        assert_eq!(found[0], Usage::Decrement);
        assert_eq!(found[2], Usage::Decrement);
    }

    #[test]
    fn a_tested_bit() {
        let found = usages(|a| {
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.test(al, 2).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(found[0], Usage::TestsBits(2));
    }

    #[test]
    fn a_bit_field_is_cleared_and_set() {
        let found = usages(|a| {
            a.movzx(eax, byte_ptr(rdi)).unwrap();
            a.and(eax, -16).unwrap();
            a.or(eax, 1).unwrap();
            a.mov(byte_ptr(rdi), al).unwrap();
        });
        assert_eq!(found[0], Usage::UpdatesBits(0xf));
        assert_eq!(found[3], Usage::UpdatesBits(0xf));
    }

    #[test]
    fn adding_and_masking_is_no_counting() {
        let found = usages(|a| {
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.add(eax, 1).unwrap();
            a.and(eax, 7).unwrap();
            a.mov(dword_ptr(rdi), eax).unwrap();
        });
        assert_eq!(found[0], Usage::Other);
        assert_eq!(found[3], Usage::Other);
    }

    #[test]
    fn a_plain_store_is_nothing_special() {
        let found = usages(|a| {
            a.mov(eax, 5).unwrap();
            a.mov(dword_ptr(rdi), eax).unwrap();
        });
        assert_eq!(found[1], Usage::Other);
    }
}
