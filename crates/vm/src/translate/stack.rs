//! Where the stack pointer may go.
//!
//! Stores near the stack pointer are the most frequent of all and are not
//! looked at (`stores.rs`). What is kept instead: whenever a block is entered or
//! left the stack pointer is no address of the vm's.
//!
//! - The vm looks at it before it enters translated code (`Vm::stack_is_wild`).
//! - Where an instruction sets it to a value, that is looked up like a store.
//! - Pushes, pops, calls and returns move it by little and touch memory there:
//!   between guest and vm nothing is mapped for `layout::GUARD` bytes, so the
//!   fault comes first.
//! - Additions of small constants touch nothing. Nearly always the next access
//!   of the block does, near the stack pointer; where none does before the block
//!   can be left, the stack pointer is looked up.
//!
//! Guarantee: no instruction stores to the vm's memory through the stack pointer.
//! The price: a stack pointer that is set to an address of the vm's, or to one
//! that is not canonical, is the guest's fault there, not at its first use.

use super::Translator;
use super::accesses::Operand;
use super::decode::{Decoded, Then};
use super::kind::{End, general_number};
use super::stores::{NEAR, is_near};
use crate::context::reg;
use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

/// The stack pointer may move so far without touching memory. A block of 64
/// such instructions moves it by a quarter of the guard.
const SMALL: u64 = 64 << 10;
const _: () = assert!(super::MAX_BLOCK as u64 * SMALL + NEAR < crate::layout::GUARD / 2);

/// What an instruction does to the stack pointer.
pub(super) enum StackMove {
    /// Nothing, or a little and memory is touched there.
    Touching,
    /// A little; nothing is touched.
    Small,
    /// It becomes the address of this operand.
    To(Operand),
    Anywhere,
}

fn is_stack_pointer(register: Register) -> bool {
    general_number(register.full_register()) == Some(reg::RSP)
}

fn register_value(base: Register) -> Operand {
    Operand {
        base,
        index: Register::None,
        scale: 1,
        displacement: 0,
        segment: Register::None,
        size: 8,
        read: false,
        write: false,
        locked: false,
    }
}

impl Translator {
    pub(super) fn stack_move(&mut self, instruction: &Instruction) -> StackMove {
        use Mnemonic::{Enter, Leave, Pop};
        match instruction.mnemonic() {
            Leave => return StackMove::To(register_value(Register::RBP)),
            // The frame is at most 64 KiB and 31 pointers.
            Enter => return StackMove::Touching,
            Pop if instruction.op0_kind() == OpKind::Register
                && is_stack_pointer(instruction.op0_register()) =>
            {
                return StackMove::Anywhere;
            }
            _ if instruction.is_stack_instruction() => return StackMove::Touching,
            _ => {}
        }
        let writes = self
            .info
            .info(instruction)
            .used_registers()
            .iter()
            .any(|used| {
                is_stack_pointer(used.register())
                    && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
            });
        match writes {
            true => set_to(instruction),
            false => StackMove::Touching,
        }
    }

    /// After the step the stack pointer must be looked up.
    pub(super) fn leaves_stack_open(&mut self, decoded: &Decoded, index: usize) -> bool {
        let step = &decoded.steps[index];
        match self.stack_move(&step.instruction) {
            StackMove::Touching | StackMove::To(_) => false,
            StackMove::Anywhere => true,
            StackMove::Small => step.then != Then::Next || !self.touched_after(decoded, index),
        }
    }

    /// Memory near the stack pointer is touched, or the vm looks at it, before
    /// the block can be left for another.
    fn touched_after(&mut self, decoded: &Decoded, index: usize) -> bool {
        for step in &decoded.steps[index + 1..] {
            if self.touches_stack(&step.instruction) {
                return true;
            }
            match self.stack_move(&step.instruction) {
                StackMove::Touching => {}
                // They see to it.
                StackMove::Small | StackMove::To(_) | StackMove::Anywhere => return true,
            }
            if matches!(step.then, Then::Branch { .. }) {
                return false;
            }
        }
        matches!(
            decoded.end,
            End::Syscall
                | End::Pause
                | End::StoresPointers
                | End::Emulate
                | End::Trap
                | End::Undecodable
        )
    }

    /// The instruction accesses memory near the stack pointer whatever the other
    /// registers hold.
    fn touches_stack(&mut self, instruction: &Instruction) -> bool {
        if instruction.op_mask() != Register::None {
            return false;
        }
        let certain = |access| {
            matches!(
                access,
                OpAccess::Read | OpAccess::Write | OpAccess::ReadWrite
            )
        };
        self.info
            .info(instruction)
            .used_memory()
            .iter()
            .any(|memory| {
                memory.base() == Register::RSP
                    && memory.index() == Register::None
                    && !matches!(memory.segment(), Register::FS | Register::GS)
                    && memory.memory_size().size() > 0
                    && certain(memory.access())
                    && is_near(memory.displacement())
            })
    }
}

/// What an instruction that names the stack pointer makes of it.
fn set_to(instruction: &Instruction) -> StackMove {
    use Mnemonic::{Add, And, Lea, Mov, Sub, Xchg};
    let registers = instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op_count() == 2;
    let small = |amount: i64| match amount.unsigned_abs() <= SMALL {
        true => StackMove::Small,
        false => StackMove::Anywhere,
    };
    let whole =
        instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
    let is_constant = !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
    match instruction.mnemonic() {
        Mov if registers && whole => StackMove::To(register_value(instruction.op1_register())),
        Xchg if registers && whole => StackMove::To(register_value(instruction.op1_register())),
        Xchg if registers && instruction.op1_register() == Register::RSP => {
            StackMove::To(register_value(instruction.op0_register()))
        }
        Add | Sub if whole && is_constant => small(instruction.immediate(1) as i64),
        And if whole && is_constant => match instruction.immediate(1) as i64 {
            mask @ ..0 => small(mask),
            _ => StackMove::Anywhere,
        },
        Lea if whole => lea(instruction),
        _ => StackMove::Anywhere,
    }
}

fn lea(instruction: &Instruction) -> StackMove {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let displacement = instruction.memory_displacement64();
    if base == Register::RSP && index == Register::None {
        return match (displacement as i64).unsigned_abs() <= SMALL {
            true => StackMove::Small,
            false => StackMove::Anywhere,
        };
    }
    if [base, index]
        .iter()
        .any(|register| register.is_gpr32() || *register == Register::EIP)
    {
        return StackMove::Anywhere;
    }
    StackMove::To(Operand {
        index,
        scale: instruction.memory_index_scale(),
        displacement,
        ..register_value(base)
    })
}
