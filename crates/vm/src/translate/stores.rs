//! Stores through wild pointers: guest and vm share one address space, and the
//! vm's part of it must look to the guest as it would natively, unmapped.
//!
//! Before an instruction stores through a register, the upper half of the
//! address picks an entry of a table (`layout::STORE_TABLE`) that can be read
//! only where the address may be the guest's. The read faults where it may
//! not, and the vm tells the guest of the fault the store would have been.
//! Flags are not touched; two stores through the same registers close to one
//! another need one look. Fixed addresses are known when they are translated.
//!
//! Pushes, calls and other stores near the stack pointer are not looked at.
//! Instead the stack pointer itself is, where it becomes another (`stack.rs`).
//! The bases of FS and GS are the vm's to set and are the guest's, so stores
//! at a small distance from them are, too.
//!
//! Where an instruction stores at addresses that no operand tells (scatters,
//! bit strings), the vm works them out before it runs (`stores_elsewhere`).

use super::Translator;
use super::accesses::Operand;
use super::build::Builder;
use super::decode::{Decoded, Then};
use super::kind::general_number;
use super::stack::{StackMove, register_value};
use crate::context::{Registers, offset, reg};
use crate::emit::{Emitter, Reg};
use crate::{host, layout, memory};
use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

/// Two stores so close need one look: a sixteenth of the room that is left
/// unmapped between guest and vm (`layout::GUARD`).
pub(super) const NEAR: u64 = 1 << 20;

/// Maps the table.
pub fn map_table() -> Result<(), crate::Error> {
    let (table, size) = (layout::STORE_TABLE, layout::STORE_TABLE_SIZE);
    host::map_fixed(table, size, libc::PROT_READ)?;
    let entry = |address: u64| table + (address >> layout::STORE_SHIFT) * 8;
    for part in layout::VM {
        host::forbid(entry(part.start), entry(part.end) - entry(part.start))?;
    }
    Ok(())
}

/// Where an address was formed that is known to be the guest's, or to fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Looked {
    segment: Register,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
}

impl Looked {
    fn new(operand: &Operand) -> Looked {
        Looked {
            segment: thread_segment(operand),
            base: operand.base,
            index: operand.index,
            scale: operand.scale,
            displacement: operand.displacement,
        }
    }

    fn covers(self, other: Looked) -> bool {
        let between = self.displacement.wrapping_sub(other.displacement);
        self.segment == other.segment
            && (self.base, self.index, self.scale) == (other.base, other.index, other.scale)
            && between.wrapping_add(NEAR) <= 2 * NEAR
    }
}

/// The segment, if it has a base.
fn thread_segment(operand: &Operand) -> Register {
    match operand.segment {
        segment @ (Register::FS | Register::GS) => segment,
        _ => Register::None,
    }
}

/// A displacement that leads from memory of the guest to no memory of the vm.
pub(super) fn is_near(displacement: u64) -> bool {
    (displacement as i64).unsigned_abs() <= NEAR
}

/// An address as the table knows it: only so many bits are looked at.
fn is_vm(address: u64) -> bool {
    memory::is_vm(address & ((1 << 48) - 1))
}

/// The operand could be anywhere.
fn may_be_wild(operand: &Operand) -> bool {
    let fixed = matches!(operand.base, Register::None | Register::RIP | Register::EIP)
        && operand.index == Register::None;
    if thread_segment(operand) != Register::None {
        return !(fixed && is_near(operand.displacement));
    }
    if fixed {
        return is_vm(operand.displacement);
    }
    if operand.base == Register::RSP && operand.index == Register::None {
        return !is_near(operand.displacement);
    }
    // A narrow address is below four gigabytes.
    operand.base.is_gpr64() || operand.index.is_gpr64()
}

/// The instruction stores where no operand of its own says: the vm works it
/// out.
pub fn stores_elsewhere(instruction: &Instruction) -> bool {
    use Mnemonic::{Btc, Btr, Bts};
    match instruction.mnemonic() {
        Bts | Btr | Btc => {
            instruction.op0_kind() == OpKind::Memory && instruction.op1_kind() == OpKind::Register
        }
        _ => instruction.is_vsib() && instruction.op0_kind() == OpKind::Memory,
    }
}

impl Translator {
    /// Where the instruction stores, with the registers before it, if that is
    /// memory of the vm; for one that sets the stack pointer, where to.
    pub fn store_to_vm(&mut self, instruction: &Instruction, registers: &Registers) -> Option<u64> {
        self.wild_stores(instruction)
            .iter()
            .map(|operand| address_of(operand, registers))
            .find(|address| is_vm(*address))
    }

    fn wild_stores(&mut self, instruction: &Instruction) -> Vec<Operand> {
        let mut operands = match self.stack_move(instruction) {
            StackMove::To(operand) => vec![operand],
            _ => Vec::new(),
        };
        if !stores_elsewhere(instruction) {
            operands.extend(self.stores(instruction));
        }
        operands.retain(may_be_wild);
        operands
    }

    /// The operands that the instruction stores to. Of a repeated one it is
    /// enough where it begins, of a masked one where it would: nothing gets
    /// from the guest's memory to the vm's without a fault between.
    fn stores(&mut self, instruction: &Instruction) -> Vec<Operand> {
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        if instruction.code() == Code::Clzeroq {
            // It has no operands, but stores where rax points to.
            return vec![register_value(Register::RAX)];
        }
        self.info
            .info(instruction)
            .used_memory()
            .iter()
            .filter(|memory| writes(memory.access()))
            .map(|memory| Operand {
                base: memory.base(),
                index: memory.index(),
                scale: memory.scale(),
                displacement: memory.displacement(),
                segment: memory.segment(),
                size: memory.memory_size().size() as u32,
                read: false,
                write: true,
                locked: false,
            })
            .collect()
    }

    /// Borrows a register for the block's looks, if there is one to borrow.
    pub(super) fn borrow_for_stores(&mut self, builder: &mut Builder, decoded: &Decoded) {
        let stores = decoded
            .steps
            .iter()
            .filter(|step| step.then == Then::Next)
            .map(|step| self.wild_stores(&step.instruction).len());
        if stores.sum::<usize>() < 2 {
            return;
        }
        if let Some(free) = self.unnamed(decoded).first() {
            builder.borrowed = vec![*free];
            builder.spill(*free);
        }
    }

    /// Looks up where the instruction is about to store.
    pub(super) fn look_at_stores(&mut self, builder: &mut Builder, instruction: &Instruction) {
        for operand in self.wild_stores(instruction) {
            let place = Looked::new(&operand);
            if builder.looked.iter().any(|looked| looked.covers(place)) {
                continue;
            }
            builder.looked.push(place);
            self.look_at(builder, instruction, &operand);
        }
        self.forget_looked(builder, instruction);
    }

    fn look_at(&mut self, builder: &mut Builder, instruction: &Instruction, operand: &Operand) {
        let mut avoid: Vec<Reg> = [operand.base, operand.index]
            .into_iter()
            .filter_map(general_number)
            .chain(builder.borrowed.iter().copied())
            .collect();
        let mut spilled = Vec::new();
        let mut take = |this: &mut Self, builder: &mut Builder| {
            let register = this.scratch(instruction, &avoid);
            builder.spill(register);
            avoid.push(register);
            spilled.push(register);
            register
        };
        let register = match builder.borrowed.first() {
            Some(borrowed) => *borrowed,
            None => take(self, builder),
        };
        let in_segment = thread_segment(operand) != Register::None;
        let other = match in_segment {
            true => take(self, builder),
            false => register,
        };
        if !spilled.is_empty() {
            builder.mark(spilled.iter().fold(0, |all, one| all | 1 << one));
        }
        let plain = !in_segment && operand.index == Register::None && operand.displacement == 0;
        let formed = match general_number(operand.base) {
            Some(base) if plain && operand.base.is_gpr64() => base,
            _ => {
                self.load_address(builder, operand, register, other);
                register
            }
        };
        builder.look_up(formed, register);
        for one in &spilled {
            builder.unspill(*one);
        }
        if !spilled.is_empty() {
            builder.mark(0);
        }
    }

    /// Looks up the stack pointer itself.
    pub(super) fn look_at_stack(&mut self, builder: &mut Builder) {
        let borrowed = builder.borrowed.first().copied();
        let register = borrowed.unwrap_or(reg::RAX);
        if borrowed.is_none() {
            builder.spill(register);
            builder.mark(1 << register);
        }
        builder.look_up(reg::RSP, register);
        if borrowed.is_none() {
            builder.unspill(register);
            builder.mark(0);
        }
    }

    /// Registers that the instruction changes say nothing any more.
    fn forget_looked(&mut self, builder: &mut Builder, instruction: &Instruction) {
        if builder.looked.is_empty() {
            return;
        }
        for used in self.info.info(instruction).used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead) {
                let changed = used.register().full_register();
                builder
                    .looked
                    .retain(|looked| looked.base != changed && looked.index != changed);
            }
        }
    }
}

/// Where an operand is, with these registers.
fn address_of(operand: &Operand, registers: &Registers) -> u64 {
    let value = |register: Register| {
        let full = general_number(register).map_or(0, |number| registers.gpr[number]);
        match register.is_gpr32() {
            true => full & 0xffff_ffff,
            false => full,
        }
    };
    let narrow = operand.base.is_gpr32() || operand.index.is_gpr32();
    let within = value(operand.base)
        .wrapping_add(value(operand.index).wrapping_mul(u64::from(operand.scale)))
        .wrapping_add(operand.displacement);
    let within = match narrow {
        true => within & 0xffff_ffff,
        false => within,
    };
    within.wrapping_add(match operand.segment {
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        _ => 0,
    })
}

impl Builder<'_> {
    /// Reads the table's entry for the address in `formed`; destroys
    /// `register`.
    fn look_up(&mut self, formed: Reg, register: Reg) {
        const LOAD: u8 = 0x8b;
        let address = Emitter::field(offset::STORE_ADDRESS);
        self.code.store(address, formed);
        let upper = address + u64::from(layout::STORE_SHIFT / 8);
        self.code.load16(register, upper);
        let table = (layout::STORE_TABLE - layout::CONTEXT) as u32;
        self.code.gs_scaled(LOAD, register, register, 3, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn stores_of_every_kind_are_looked_at() {
        let wild = 0x6123_4567_8000;
        let registers = Registers {
            gpr: [wild; 16],
            ..Registers::default()
        };
        let mut translator = Translator::default();
        let stores: &[&[u8]] = &[
            &[0x48, 0x89, 0x08],                         // mov [rax], rcx
            &[0xaa],                                     // stosb
            &[0xf3, 0xa4],                               // rep movsb
            &[0x66, 0x0f, 0xf7, 0xc1],                   // maskmovdqu xmm0, xmm1
            &[0x0f, 0xf7, 0xc1],                         // maskmovq mm0, mm1
            &[0xc4, 0xe2, 0x75, 0x2e, 0x00],             // vmaskmovps [rax], ymm1, ymm0
            &[0x62, 0xf1, 0x7e, 0x09, 0x7f, 0x00],       // vmovdqu32 [rax]{k1}, xmm0
            &[0x66, 0x0f, 0x38, 0xf8, 0x03],             // movdir64b rax, [rbx]
            &[0x0f, 0x01, 0xfc],                         // clzero
            &[0xdd, 0x30],                               // fnsave [rax]
            &[0x48, 0x0f, 0xc7, 0x08],                   // cmpxchg16b [rax]
            &[0x8f, 0x00],                               // pop [rax]
            &[0x48, 0x89, 0x8c, 0x24, 0, 0, 0, 0x40],    // mov [rsp + 1 GiB], rcx
            &[0x64, 0x48, 0x89, 0x08],                   // mov fs:[rax], rcx
            &[0x64, 0x67, 0x89, 0x08],                   // mov fs:[eax], ecx
            &[0x48, 0x89, 0xec],                         // mov rsp, rbp
            &[0x48, 0xa3, 0, 0, 0, 0, 0x01, 0x60, 0, 0], // mov [0x600100000000], rax
        ];
        for bytes in stores {
            let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
            assert_eq!(instruction.len(), bytes.len(), "{instruction}");
            assert!(
                !translator.wild_stores(&instruction).is_empty(),
                "{instruction}"
            );
            if !instruction.has_segment_prefix() {
                assert!(
                    translator.store_to_vm(&instruction, &registers).is_some(),
                    "{instruction}"
                );
            }
        }
        let others: &[&[u8]] = &[
            &[0x48, 0x8b, 0x08],                            // mov rcx, [rax]
            &[0x50],                                        // push rax
            &[0x48, 0x89, 0x44, 0x24, 0xf8],                // mov [rsp - 8], rax
            &[0x64, 0x48, 0x89, 0x04, 0x25, 0x28, 0, 0, 0], // mov fs:[0x28], rax
            &[0x48, 0x89, 0x05, 0x10, 0, 0, 0],             // mov [rip + 16], rax
            &[0x67, 0x89, 0x08],                            // mov [eax], ecx
        ];
        for bytes in others {
            let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
            assert!(
                translator.wild_stores(&instruction).is_empty(),
                "{instruction}"
            );
        }
    }
}
