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
use super::kind::{End, general_number, is_masked};
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

pub(super) fn register_value(base: Register) -> Operand {
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
        use Mnemonic::{Bt, Btc, Btr, Bts};
        // A bit string's access is somewhere else.
        let bits = matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc);
        if bits || is_masked(instruction) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn instruction(bytes: &[u8]) -> Instruction {
        let decoded = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        assert_eq!(decoded.len(), bytes.len(), "{decoded}");
        decoded
    }

    #[test]
    fn what_may_not_fault_touches_nothing() {
        let mut translator = Translator::default();
        let touching: &[&[u8]] = &[
            &[0x50],                         // push rax
            &[0x58],                         // pop rax
            &[0xc3],                         // ret
            &[0x48, 0x8b, 0x04, 0x24],       // mov rax, [rsp]
            &[0x48, 0x89, 0x44, 0x24, 0xf8], // mov [rsp - 8], rax
            &[0xff, 0x14, 0x24],             // call [rsp]
        ];
        for bytes in touching {
            let instruction = instruction(bytes);
            assert!(translator.touches_stack(&instruction), "{instruction}");
        }
        let others: &[&[u8]] = &[
            &[0x48, 0x8d, 0x04, 0x24],                         // lea rax, [rsp]
            &[0x0f, 0x18, 0x0c, 0x24],                         // prefetcht0 [rsp]
            &[0x0f, 0x18, 0x04, 0x24],                         // prefetchnta [rsp]
            &[0x0f, 0x0d, 0x0c, 0x24],                         // prefetchw [rsp]
            &[0x0f, 0x1c, 0x04, 0x24],                         // cldemote [rsp]
            &[0x0f, 0x1f, 0x04, 0x24],                         // nop [rsp]
            &[0x48, 0x0f, 0xa3, 0x04, 0x24],                   // bt [rsp], rax
            &[0x48, 0x8b, 0x04, 0x04],                         // mov rax, [rsp + rax]
            &[0x48, 0x8b, 0x84, 0x24, 0x00, 0x00, 0x00, 0x40], // mov rax, [rsp + 1 GiB]
            &[0x64, 0x48, 0x8b, 0x04, 0x24],                   // mov rax, fs:[rsp]
            &[0xc4, 0xe2, 0x75, 0x2c, 0x04, 0x24],             // vmaskmovps ymm0, ymm1, [rsp]
            &[0x62, 0xf1, 0x7c, 0xc9, 0x10, 0x04, 0x24],       // vmovups zmm0{k1}{z}, [rsp]
        ];
        for bytes in others {
            let instruction = instruction(bytes);
            assert!(!translator.touches_stack(&instruction), "{instruction}");
        }
    }

    #[test]
    fn whatever_sets_the_stack_pointer_is_looked_at() {
        let mut translator = Translator::default();
        let small: &[&[u8]] = &[
            &[0x48, 0x83, 0xec, 0x18],       // sub rsp, 24
            &[0x48, 0x83, 0xe4, 0xe0],       // and rsp, -32
            &[0x48, 0x8d, 0x64, 0x24, 0x08], // lea rsp, [rsp + 8]
        ];
        for bytes in small {
            let instruction = instruction(bytes);
            let is_small = matches!(translator.stack_move(&instruction), StackMove::Small);
            assert!(is_small, "{instruction}");
        }
        let to: &[&[u8]] = &[
            &[0x48, 0x89, 0xec],       // mov rsp, rbp
            &[0x48, 0x94],             // xchg rsp, rax
            &[0xc9],                   // leave
            &[0x48, 0x8d, 0x65, 0xd8], // lea rsp, [rbp - 40]
            &[0x48, 0x8d, 0x24, 0x04], // lea rsp, [rsp + rax]
        ];
        for bytes in to {
            let instruction = instruction(bytes);
            let is_to = matches!(translator.stack_move(&instruction), StackMove::To(_));
            assert!(is_to, "{instruction}");
        }
        let anywhere: &[&[u8]] = &[
            &[0x5c],                                     // pop rsp
            &[0x48, 0x8b, 0x20],                         // mov rsp, [rax]
            &[0x89, 0xc4],                               // mov esp, eax
            &[0x66, 0x89, 0xc4],                         // mov sp, ax
            &[0x48, 0x01, 0xc4],                         // add rsp, rax
            &[0x48, 0x81, 0xec, 0x00, 0x00, 0x00, 0x40], // sub rsp, 1 GiB
            &[0x48, 0x0f, 0x45, 0xe0],                   // cmovne rsp, rax
            &[0x48, 0x87, 0x20],                         // xchg [rax], rsp
            &[0x48, 0x0f, 0xc1, 0x20],                   // xadd [rax], rsp
            &[0x48, 0xff, 0xc4],                         // inc rsp
            &[0x48, 0xf7, 0xdc],                         // neg rsp
            &[0x48, 0x0f, 0xcc],                         // bswap rsp
            &[0x48, 0xbc, 1, 2, 3, 4, 5, 6, 7, 8],       // mov rsp, constant
            &[0xc4, 0xe2, 0xf8, 0xf2, 0xe0],             // andn rsp, rax, rax
        ];
        for bytes in anywhere {
            let instruction = instruction(bytes);
            let is_anywhere = matches!(translator.stack_move(&instruction), StackMove::Anywhere);
            assert!(is_anywhere, "{instruction}");
        }
    }
}
