//! Which status flags are alive where.
//!
//! The instruction counter is a `sub` in memory, which destroys the status
//! flags. Nearly every block has a place, just before a comparison, where they
//! are dead; the translator puts the counter there. This module says what an
//! instruction does with destroyed flags. It only ever errs towards "seen",
//! which costs a save and restore, never a wrong flag.
//!
//! Destroyed flags are overwritten after at most `WINDOW` instructions, with
//! nothing between that can fault or end a slice. The counter leaves that many
//! instructions to blocks that do not count, so wherever a thread can be
//! stopped and looked at, its flags are the guest's own.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};

/// Within so many instructions destroyed flags are overwritten: nearly always
/// the next instruction does it.
pub const WINDOW: usize = 8;

const STATUS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

/// Flags surely overwritten by `instruction`. Shifts by zero and repeated
/// comparisons of nothing leave flags alone; bit tests, bit scans,
/// multiplications and divisions leave the flags alone that the manual calls
/// undefined after them (some processors do, and the guest shall see what its
/// processor does).
fn killed(instruction: &Instruction) -> u32 {
    use Mnemonic::*;
    let may_do_nothing = match instruction.mnemonic() {
        Shl | Sal | Shr | Sar | Shld | Shrd => {
            let last = instruction.op_count().saturating_sub(1);
            let by_constant = matches!(
                instruction.op_kind(last),
                OpKind::Immediate8 | OpKind::Immediate8to32 | OpKind::Immediate8to64
            );
            !(by_constant && instruction.immediate8() & 31 != 0)
        }
        Rol | Ror | Rcl | Rcr => true,
        Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq => {
            instruction.has_rep_prefix() || instruction.has_repne_prefix()
        }
        Bt | Bts | Btr | Btc | Bsf | Bsr | Lzcnt | Tzcnt | Mul | Imul | Div | Idiv => {
            return instruction.rflags_modified() & !instruction.rflags_undefined() & STATUS;
        }
        _ => false,
    };
    if may_do_nothing {
        0
    } else {
        instruction.rflags_modified() & STATUS
    }
}

/// True if the instruction may fault: then the flags must be the guest's own
/// when it executes, because a signal handler can look at them. Anything but
/// arithmetic on general registers counts.
fn may_fault(instruction: &Instruction) -> bool {
    let plain = |operand: u32| match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).is_gpr(),
        OpKind::Memory => instruction.mnemonic() == Mnemonic::Lea,
        kind => matches!(
            kind,
            OpKind::NearBranch64
                | OpKind::Immediate8
                | OpKind::Immediate8_2nd
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        ),
    };
    // A wild stack pointer faults where it is set (`translate/stack.rs`).
    let is_stack = |operand| instruction.op_register(operand).full_register() == Register::RSP;
    let sets_stack = match instruction.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Cmp | Mnemonic::Test => false,
        Mnemonic::Xchg | Mnemonic::Xadd => is_stack(0) || is_stack(1),
        _ => is_stack(0),
    };
    sets_stack
        || matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
        || instruction.is_stack_instruction()
        || instruction.is_string_instruction()
        || !(0..instruction.op_count()).all(plain)
        || !matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        )
}

/// What a path of instructions does with flags that were destroyed before it.
#[derive(Debug, Clone, Copy)]
pub struct Destroyed(u32);

/// What became of destroyed flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// All were overwritten; nobody can have seen them.
    Unseen,
    /// The instruction reads one, or a fault in it would show them.
    Seen,
    /// Some are still to be overwritten.
    Open,
}

impl Destroyed {
    /// All status flags.
    pub fn all() -> Self {
        Destroyed(STATUS)
    }

    /// The path goes on with `instruction`.
    pub fn pass(&mut self, instruction: &Instruction) -> Fate {
        if may_fault(instruction) || instruction.rflags_read() & self.0 != 0 {
            return Fate::Seen;
        }
        self.0 &= !killed(instruction);
        if self.0 == 0 {
            Fate::Unseen
        } else {
            Fate::Open
        }
    }
}

/// True if every status flag is overwritten before it is read and before the
/// block can be left. Each instruction comes with whether it may be left right
/// before or after it. A fault on the way sees the wrong flags.
pub fn overwritten<'a>(code: impl Iterator<Item = (&'a Instruction, bool, bool)>) -> bool {
    let mut pending = STATUS;
    for (instruction, left_before, left_after) in code {
        if left_before || instruction.rflags_read() & pending != 0 {
            return false;
        }
        pending &= !killed(instruction);
        if pending == 0 {
            return true;
        }
        if left_after {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn code(bytes: &[u8]) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    fn fate(bytes: &[u8]) -> Fate {
        let mut destroyed = Destroyed::all();
        code(bytes)
            .iter()
            .map(|instruction| destroyed.pass(instruction))
            .find(|fate| *fate != Fate::Open)
            .unwrap_or(Fate::Open)
    }

    #[test]
    fn dead_before_a_comparison() {
        // mov eax, ebx; cmp eax, 1; jz
        assert_eq!(
            fate(&[0x89, 0xd8, 0x83, 0xf8, 0x01, 0x74, 0x00]),
            Fate::Unseen
        );
    }

    #[test]
    fn alive_before_a_branch() {
        // jz
        assert_eq!(fate(&[0x74, 0x00]), Fate::Seen);
    }

    #[test]
    fn a_shift_by_cl_keeps_flags_alive() {
        // shl eax, cl; jz
        assert_eq!(fate(&[0xd3, 0xe0, 0x74, 0x00]), Fate::Seen);
        // shl eax, 4; (of undefined, still overwritten) jz
        assert_eq!(fate(&[0xc1, 0xe0, 0x04, 0x74, 0x00]), Fate::Unseen);
    }

    #[test]
    fn undefined_flags_that_survive_are_alive() {
        // bt eax, 1; jmp
        assert_eq!(fate(&[0x0f, 0xba, 0xe0, 0x01, 0xeb, 0x00]), Fate::Open);
        // imul eax, ecx; jmp
        assert_eq!(fate(&[0x0f, 0xaf, 0xc1, 0xeb, 0x00]), Fate::Open);
        // mul ecx; jmp
        assert_eq!(fate(&[0xf7, 0xe1, 0xeb, 0x00]), Fate::Open);
        // tzcnt eax, ecx; jmp
        assert_eq!(fate(&[0xf3, 0x0f, 0xbc, 0xc1, 0xeb, 0x00]), Fate::Open);
        // idiv r12d; jmp
        assert_eq!(fate(&[0x41, 0xf7, 0xfc, 0xeb, 0x00]), Fate::Seen);
    }

    #[test]
    fn an_access_shows_the_flags() {
        // mov eax, [rbx]; cmp eax, 1; jz
        assert_eq!(
            fate(&[0x8b, 0x03, 0x83, 0xf8, 0x01, 0x74, 0x00]),
            Fate::Seen
        );
        // cmp dword [rbx], 1; jz
        assert_eq!(fate(&[0x83, 0x3b, 0x01, 0x74, 0x00]), Fate::Seen);
    }

    #[test]
    fn overwritten_only_within_the_block() {
        // mov eax, [rbx]; add eax, 1; jmp
        let block = code(&[0x8b, 0x03, 0x83, 0xc0, 0x01, 0xeb, 0x00]);
        let path = |leave: usize| {
            let code = block.iter().enumerate();
            overwritten(code.map(move |(index, step)| (step, index == leave, false)))
        };
        assert!(path(3));
        assert!(path(2), "what is left is left behind the addition");
        assert!(!path(1), "the count may leave before the addition");
        // mov eax, [rbx]; adc eax, 1
        let block = code(&[0x8b, 0x03, 0x83, 0xd0, 0x01]);
        assert!(!overwritten(block.iter().map(|step| (step, false, false))));
    }

    #[test]
    fn inc_keeps_carry_alive() {
        // inc eax; jmp
        assert_eq!(fate(&[0xff, 0xc0, 0xeb, 0x00]), Fate::Open);
    }
}
