//! Stores through wild pointers: guest and vm share one address space, and the
//! vm's part of it must look to the guest as it would natively, unmapped.
//!
//! Before an instruction stores through a register, the upper half of the
//! address picks an entry of a table (`layout::STORE_TABLE`) that can be read
//! only where the address may be the guest's. The read faults where it may
//! not, and the vm tells the guest of the fault the store would have been.
//! Flags are not touched; two stores through the same registers close to one
//! another need one look.
//!
//! Not looked at: pushes and other stores relative to the stack pointer,
//! thread-local ones, fixed addresses, and vector stores under a mask.

use super::Translator;
use super::accesses::Operand;
use super::build::Builder;
use super::decode::{Decoded, Then};
use super::kind::{general_number, is_masked, is_repeated};
use crate::context::offset;
use crate::emit::{Emitter, Reg};
use crate::{host, layout, memory};
use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

/// Two stores so close need one look: nothing of the guest lies so close to
/// the vm.
const NEAR: u64 = 1 << 20;

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
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
}

impl Looked {
    fn new(operand: &Operand) -> Looked {
        Looked {
            base: operand.base,
            index: operand.index,
            scale: operand.scale,
            displacement: operand.displacement,
        }
    }

    fn covers(self, other: Looked) -> bool {
        let between = self.displacement.wrapping_sub(other.displacement);
        (self.base, self.index, self.scale) == (other.base, other.index, other.scale)
            && between.wrapping_add(NEAR) <= 2 * NEAR
    }
}

/// The operand could be anywhere.
fn may_be_wild(operand: &Operand) -> bool {
    let named = |register: Register| register.is_gpr64() && register != Register::RSP;
    operand.write
        && !matches!(operand.segment, Register::FS | Register::GS)
        && (named(operand.base) || named(operand.index))
}

fn stores_at_rdi(instruction: &Instruction) -> bool {
    use Mnemonic::{Insb, Insd, Insw, Movsb, Movsd, Movsq, Movsw, Stosb, Stosd, Stosq, Stosw};
    instruction.op0_kind() == OpKind::MemoryESRDI
        && matches!(
            instruction.mnemonic(),
            Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq | Insb | Insw | Insd
        )
}

impl Translator {
    /// Where the instruction stores, with the registers before it, if that is
    /// memory of the vm.
    pub fn store_to_vm(&mut self, instruction: &Instruction, registers: &[u64; 16]) -> Option<u64> {
        let value =
            |register: Register| general_number(register).map_or(0, |number| registers[number]);
        self.wild_stores(instruction)
            .iter()
            .map(|operand| {
                value(operand.base)
                    .wrapping_add(value(operand.index).wrapping_mul(u64::from(operand.scale)))
                    .wrapping_add(operand.displacement)
            })
            .find(|address| memory::is_vm(address & ((1 << 48) - 1)))
    }

    fn wild_stores(&mut self, instruction: &Instruction) -> Vec<Operand> {
        if is_masked(instruction) || instruction.is_vsib() {
            return Vec::new();
        }
        let mut operands = self.accesses(instruction, false);
        operands.retain(may_be_wild);
        if is_repeated(instruction) && operands.is_empty() && stores_at_rdi(instruction) {
            // How much it stores is in a register, so it is no access of a
            // known size. Where it begins is enough: it cannot get from the
            // guest's memory to the vm's without a fault between.
            operands.push(Operand {
                base: Register::RDI,
                index: Register::None,
                scale: 1,
                displacement: 0,
                segment: Register::ES,
                size: 0,
                read: false,
                write: true,
                locked: false,
            });
        }
        operands
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
            let borrowed = builder.borrowed.first().copied();
            let register = borrowed.unwrap_or_else(|| {
                let avoid: Vec<Reg> = [operand.base, operand.index]
                    .into_iter()
                    .filter_map(general_number)
                    .collect();
                self.scratch(instruction, &avoid)
            });
            if borrowed.is_none() {
                builder.spill(register);
                builder.mark(1 << register);
            }
            let base = general_number(operand.base);
            let formed = match base {
                Some(base) if operand.index == Register::None && operand.displacement == 0 => base,
                _ => {
                    self.load_address(builder, &operand, register, register);
                    register
                }
            };
            builder.look_up(formed, register);
            if borrowed.is_none() {
                builder.unspill(register);
                builder.mark(0);
            }
        }
        self.forget_looked(builder, instruction);
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
