//! What kind of instruction it is: how it ends a block, whether it touches memory,
//! which registers and conditions it names.

use super::REPEAT_PART;
use crate::emit::Reg;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpAccess, OpKind, Register};

/// An access that lies in one granule if it is aligned, or is made of whole
/// ones.
pub(super) fn is_whole(size: u32) -> bool {
    size.is_power_of_two() && size <= 64
}

/// How a block ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Not at all: the next instruction follows.
    Continue,
    Jump,
    Conditional,
    Call,
    IndirectJump,
    IndirectCall,
    Return,
    Syscall,
    Pause,
    /// A locked instruction, where the schedule wants to stop after it.
    Sequencer,
    /// The x87 pointers go to memory.
    StoresPointers,
    Emulate,
    /// The instruction itself raises an exception.
    Trap,
    Undecodable,
}

pub(super) fn is_call(instruction: &Instruction) -> bool {
    matches!(classify_end(instruction), End::Call | End::IndirectCall)
}

pub(super) fn classify_end(instruction: &Instruction) -> End {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Syscall => return End::Syscall,
        Pause => return End::Pause,
        Cpuid | Rdtsc | Rdtscp | Rdrand | Rdseed | Xgetbv | Rdpid | Rdgsbase | Wrgsbase
        | Wrfsbase | Xbegin | Iret | Iretd | Iretq | Retf | Fxsave | Fxsave64 | Xsave | Xsave64
        | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64 | Rdpmc | Rdpru
        | Monitorx | Mwaitx | Umonitor | Umwait | Tpause | Rdpkru | Wrpkru | Sgdt | Sidt | Smsw
        | Str | Sldt | Lsl => return End::Emulate,
        Fnstenv | Fstenv | Fnsave | Fsave => return End::StoresPointers,
        Ud0 | Ud1 | Ud2 | Int3 | Hlt => return End::Trap,
        // `int1` says where it is in other words on some machines: is it behind it?
        Int | Int1 | Lfs | Lgs => return End::Emulate,
        // Loading GS would take the vm's own context away; the base of FS is
        // among the registers of a thread.
        Mov | Pop
            if instruction.op0_kind() == OpKind::Register
                && matches!(instruction.op0_register(), Register::FS | Register::GS) =>
        {
            return End::Emulate;
        }
        mnemonic if is_of_the_kernel(mnemonic) => return End::Emulate,
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::XbeginXabortXend => End::Continue,
        // A 16-bit operand size truncates rip: nothing sensible can follow.
        _ if instruction.is_jmp_far() || instruction.is_jmp_far_indirect() => End::Emulate,
        FlowControl::UnconditionalBranch
            if instruction.near_branch64() != 0 || instruction.is_jmp_short_or_near() =>
        {
            End::Jump
        }
        FlowControl::ConditionalBranch => End::Conditional,
        FlowControl::Call if instruction.is_call_near() => End::Call,
        FlowControl::IndirectBranch if instruction.is_jmp_near_indirect() => End::IndirectJump,
        FlowControl::IndirectCall if instruction.is_call_near_indirect() => End::IndirectCall,
        FlowControl::Return if instruction.mnemonic() == Ret => End::Return,
        FlowControl::Interrupt | FlowControl::Exception => End::Trap,
        _ => End::Emulate,
    }
}

/// Ways between program, kernel, hypervisor and firmware, other than `syscall`:
/// the processor refuses them to programs, or it would leave the vm.
pub fn is_of_the_kernel(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Sysenter
            | Sysexit
            | Sysexitq
            | Sysret
            | Sysretq
            | Rsm
            | Skinit
            | Vmcall
            | Vmmcall
            | Vmgexit
            | Vmfunc
            | Uiret
            | Eretu
            | Erets
            | Enclu
    )
}

pub(super) fn touches_memory(instruction: &Instruction) -> bool {
    instruction.op_kinds().any(|kind| {
        !matches!(
            kind,
            OpKind::Register
                | OpKind::NearBranch16
                | OpKind::NearBranch32
                | OpKind::NearBranch64
                | OpKind::Immediate8
                | OpKind::Immediate8_2nd
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
    })
}

/// A string instruction that repeats.
pub fn is_repeated(instruction: &Instruction) -> bool {
    (instruction.has_rep_prefix() || instruction.has_repne_prefix())
        && instruction.is_string_instruction()
}

/// True if a repeated string instruction with this rcx is executed in parts:
/// the comparison that translated code makes.
pub fn is_long_repeat(rcx: u64) -> bool {
    (rcx >> REPEAT_PART.ilog2()) as u32 != 0
}

/// Accesses whose addresses or extent only the machine state tells: repeated
/// string operations, gathers and scatters, masked vectors, bit strings and
/// state saves.
pub(super) fn is_complex(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    if !touches_memory(instruction) {
        return false;
    }
    if is_repeated(instruction) {
        return true;
    }
    if instruction.op_mask() != Register::None || instruction.is_vsib() {
        return true;
    }
    match instruction.mnemonic() {
        Bt | Bts | Btr | Btc => instruction.op1_kind() == OpKind::Register,
        Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xsaves | Xsaves64
        | Xrstor | Xrstor64 | Xrstors | Xrstors64 | Maskmovdqu | Maskmovq | Vmaskmovdqu
        | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq | Enter | Xlatb => true,
        _ => false,
    }
}

/// A store of neighbouring elements that a mask selects, with where the mask is.
pub fn is_masked_store(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Maskmovdqu | Maskmovq | Vmaskmovdqu => true,
        _ => is_masked(instruction) && instruction.op0_kind() == OpKind::Memory,
    }
}

/// A vector of neighbouring elements of which a mask selects some: whatever it
/// touches lies in the operand.
pub(super) fn is_masked(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    !instruction.is_vsib()
        && (instruction.op_mask() != Register::None
            || matches!(
                instruction.mnemonic(),
                Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq
            ))
}

/// A locked instruction: paper 000's sequencer.
pub(super) fn is_locked(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || (instruction.mnemonic() == Mnemonic::Xchg
            && instruction.op_kinds().any(|kind| kind == OpKind::Memory))
}

/// True if `memory` is the operand written in the instruction, not the stack
/// slot it implies. `pop` takes the slot away before it works out an address
/// from the stack pointer.
pub(super) fn explicit_is(instruction: &Instruction, memory: &iced_x86::UsedMemory) -> bool {
    let pops = instruction.mnemonic() == Mnemonic::Pop;
    let moved = if pops && instruction.memory_base() == Register::RSP {
        instruction.stack_pointer_increment() as i64 as u64
    } else {
        0
    };
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
        && !(pops && memory.access() == OpAccess::Read)
        && instruction.memory_base() == memory.base()
        && instruction.memory_index() == memory.index()
        && instruction.memory_displacement64().wrapping_add(moved) == memory.displacement()
}

pub(super) fn uses_gs(instruction: &Instruction) -> bool {
    instruction.segment_prefix() == Register::GS && touches_memory(instruction)
}

pub(super) const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

pub(super) fn general_number(register: Register) -> Option<Reg> {
    let full = register.full_register();
    REGISTERS.iter().position(|candidate| *candidate == full)
}

/// The machine's number of a conditional jump's condition; none for the
/// counted ones (loop, jrcxz).
pub(super) fn condition_number(instruction: &Instruction) -> Option<u8> {
    if instruction.is_jcc_short_or_near() {
        use iced_x86::ConditionCode::*;
        Some(match instruction.condition_code() {
            o => 0,
            no => 1,
            b => 2,
            ae => 3,
            e => 4,
            ne => 5,
            be => 6,
            a => 7,
            s => 8,
            ns => 9,
            p => 10,
            np => 11,
            l => 12,
            ge => 13,
            le => 14,
            g => 15,
            None => return Option::None,
        })
    } else {
        None
    }
}

/// The counted jump in `bytes` (`loop`, `jrcxz`), made to go `distance` bytes ahead.
/// Of its prefixes the width of the counter stays; one for the width of operands
/// would, on some processors, cut the instruction pointer to 16 bits.
pub(super) fn counted_branch(bytes: &[u8], distance: u8) -> Vec<u8> {
    const ADDRESS_SIZE: u8 = 0x67;
    let (prefixes, rest) = bytes.split_at(bytes.len().saturating_sub(2));
    let mut branch = Vec::new();
    if prefixes.contains(&ADDRESS_SIZE) {
        branch.push(ADDRESS_SIZE);
    }
    branch.extend(rest.first());
    branch.push(distance);
    branch
}

/// Within reach of a RIP-relative displacement, with room for the length of
/// the instruction and of what is put before it.
pub(super) fn reachable(from: u64, target: u64) -> bool {
    let distance = target.wrapping_sub(from) as i64;
    distance.unsigned_abs() < 0x7fff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_branches_keep_the_width_of_their_counter_and_nothing_else() {
        for (bytes, wanted) in [
            (&[0xe2, 0x80][..], &[0xe2, 5][..]),
            (&[0x67, 0xe3, 0x10], &[0x67, 0xe3, 5]),
            (&[0x66, 0xe0, 0x49], &[0xe0, 5]),
            (&[0x66, 0x2e, 0x67, 0x48, 0xe1, 0x49], &[0x67, 0xe1, 5]),
        ] {
            assert_eq!(counted_branch(bytes, 5), wanted);
        }
    }
}
