//! Random instructions over the decoder's tables, and the shapes of control
//! flow, string and stack code that a table cannot give.

use crate::assembler::{Entry, Label, bytes, encodes, load};
use crate::program::{Case, DATA_SIZE, Layout, REGISTERS, TLS_SIZE};
use crate::random::Random;
use iced_x86::{
    Code, CodeSize, EncodingKind, FlowControl, Instruction, MandatoryPrefix, Mnemonic,
    OpCodeOperandKind, OpKind, Register, RoundingControl,
};

/// All instructions that straight-line cases are made of.
pub fn straight_line_codes() -> Vec<Code> {
    Code::values()
        .filter(|code| {
            let info = code.op_code();
            info.is_instruction()
                && info.mode64()
                && info.is_available_in_mode(64)
                && info.decoder_option() == 0
                && code.encoding() != EncodingKind::MVEX
                && !excluded(*code)
        })
        .collect()
}

/// What cannot be compared, or is generated as control flow.
fn excluded(code: Code) -> bool {
    use Mnemonic::*;
    match code.mnemonic() {
        // Not the same twice, or made deterministic by the vm on purpose.
        Cpuid | Rdtsc | Rdtscp | Rdrand | Rdseed | Rdpid | Rdpmc | Xgetbv | Rdpru => true,
        // The kernel's business.
        Syscall | Sysenter | Sysexit | Sysret | Int | Vmcall | Vmmcall => true,
        // Can leave the machine in a state in which nothing can be reported:
        // transactions, protection keys, waits, the stack segment.
        Xbegin | Xend | Xabort | Xtest | Wrpkru | Rdpkru | Umonitor | Umwait | Tpause | Monitor
        | Mwait | Monitorx | Mwaitx => true,
        // The machine's tables: hidden by some processors and kernels, and by the
        // vm always.
        Sgdt | Sidt | Smsw | Str | Sldt => true,
        // A selector's limit holds the processor's number.
        Lsl => true,
        // Selectors are the machine's, not each guest thread's: 64-bit programs
        // have no use for them. Loading GS the vm refuses, and says so.
        Lgs | Lfs | Lss => true,
        Mov | Pop
            if matches!(
                code.op_code().op0_kind(),
                OpCodeOperandKind::seg_reg
                    | OpCodeOperandKind::fs
                    | OpCodeOperandKind::gs
                    | OpCodeOperandKind::es
                    | OpCodeOperandKind::ds
                    | OpCodeOperandKind::ss
            ) =>
        {
            true
        }
        // Leave the machine with the kernel's help in ways only it can undo.
        Iret | Iretd | Iretq | Retf | Uiret => true,
        _ => {
            !matches!(
                code.flow_control(),
                FlowControl::Next | FlowControl::Exception | FlowControl::Interrupt
            ) || code.op_code().must_be_cpl0()
        }
    }
}

/// True if the instruction writes the x87 instruction and data pointers, or
/// anything else of the whole state, to memory: comparable only while they
/// are zero.
fn stores_x87_pointers(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Fnstenv
            | Fstenv
            | Fnsave
            | Fsave
            | Fxsave
            | Fxsave64
            | Xsave
            | Xsave64
            | Xsavec
            | Xsavec64
            | Xsaveopt
            | Xsaveopt64
    )
}

pub struct Generator<'a> {
    pub random: Random,
    pub layout: &'a Layout,
}

impl Generator<'_> {
    /// A general register; the stack pointer seldom.
    fn general(&mut self) -> usize {
        loop {
            let number = self.random.below(16) as usize;
            if number != 4 || self.random.one_in(12) {
                return number;
            }
        }
    }

    /// A general register that is not the stack pointer.
    fn safe(&mut self) -> usize {
        loop {
            let number = self.random.below(16) as usize;
            if number != 4 {
                return number;
            }
        }
    }

    /// An instance of `code` with what must come before it; none if the
    /// operands drawn have no encoding.
    pub fn instruction(&mut self, code: Code) -> Option<Vec<Entry>> {
        (0..8).find_map(|_| self.attempt(code))
    }

    fn attempt(&mut self, code: Code) -> Option<Vec<Entry>> {
        let info = code.op_code();
        let mut instruction = Instruction::new();
        instruction.set_code(code);
        instruction.set_code_size(CodeSize::Code64);
        let mut before = Vec::new();
        let high_bytes = self.random.one_in(4);
        let want_memory = self.random.one_in(2);
        for operand in 0..info.op_count() {
            self.operand(
                &mut instruction,
                operand,
                info.op_kind(operand),
                want_memory,
                high_bytes,
                &mut before,
            )?;
        }
        let has_memory = (0..instruction.op_count())
            .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        if info.can_use_op_mask_register()
            && (info.require_op_mask_register() || self.random.one_in(2))
        {
            instruction.set_op_mask(Register::K1 + self.random.below(7) as u32);
            if info.can_use_zeroing_masking() && self.random.one_in(2) {
                instruction.set_zeroing_masking(true);
            }
        }
        if has_memory {
            if info.can_broadcast() && self.random.one_in(3) {
                instruction.set_is_broadcast(true);
            }
        } else if info.can_use_rounding_control() && self.random.one_in(3) {
            instruction.set_rounding_control(*self.random.pick(&[
                RoundingControl::RoundToNearest,
                RoundingControl::RoundDown,
                RoundingControl::RoundUp,
                RoundingControl::RoundTowardZero,
            ]));
        } else if info.can_suppress_all_exceptions() && self.random.one_in(4) {
            instruction.set_suppress_all_exceptions(true);
        }
        if info.can_use_lock_prefix()
            && instruction.op0_kind() == OpKind::Memory
            && (self.random.one_in(2))
        {
            instruction.set_has_lock_prefix(true);
        }
        self.prepare_state(&instruction, &mut before);
        if instruction.is_string_instruction() && info.mandatory_prefix() == MandatoryPrefix::None {
            if info.can_use_repne_prefix() && self.random.one_in(3) {
                instruction.set_has_repne_prefix(true);
            } else if info.can_use_rep_prefix() && self.random.one_in(2) {
                instruction.set_has_rep_prefix(true);
            }
        }
        if !encodes(&instruction, self.layout.code) {
            return None;
        }
        before.push(Entry::Plain(instruction));
        Some(before)
    }

    fn operand(
        &mut self,
        instruction: &mut Instruction,
        operand: u32,
        kind: OpCodeOperandKind,
        want_memory: bool,
        high_bytes: bool,
        before: &mut Vec<Entry>,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let wide = matches!(
            instruction.code().encoding(),
            EncodingKind::EVEX | EncodingKind::MVEX
        );
        let vector = |this: &mut Self, first: Register| {
            first + this.random.below(if wide { 32 } else { 16 }) as u32
        };
        let register = match kind {
            K::mem | K::mem_mpx | K::mem_mib | K::sibmem => {
                return self.memory(instruction, operand, before);
            }
            K::mem_offs => return self.memory_offset(instruction, operand),
            K::mem_vsib32x
            | K::mem_vsib64x
            | K::mem_vsib32y
            | K::mem_vsib64y
            | K::mem_vsib32z
            | K::mem_vsib64z => return self.vector_index(instruction, operand, kind, before),
            K::r8_or_mem
            | K::r16_or_mem
            | K::r32_or_mem
            | K::r64_or_mem
            | K::mm_or_mem
            | K::xmm_or_mem
            | K::ymm_or_mem
            | K::zmm_or_mem
            | K::k_or_mem
                if want_memory =>
            {
                return self.memory(instruction, operand, before);
            }
            K::r8_or_mem | K::r8_reg | K::r8_opcode => {
                if high_bytes {
                    Register::AL + self.random.below(8) as u32
                } else {
                    let number = self.general();
                    match number {
                        0..4 => Register::AL + number as u32,
                        _ => Register::SPL + (number as u32 - 4),
                    }
                }
            }
            K::r16_or_mem | K::r16_reg | K::r16_reg_mem | K::r16_rm | K::r16_opcode => {
                Register::AX + self.general() as u32
            }
            K::r32_or_mem
            | K::r32_reg
            | K::r32_reg_mem
            | K::r32_rm
            | K::r32_opcode
            | K::r32_vvvv => Register::EAX + self.general() as u32,
            K::r64_or_mem | K::r64_reg | K::r64_rm | K::r64_opcode | K::r64_vvvv => {
                Register::RAX + self.general() as u32
            }
            // The register is the address of the destination.
            K::r64_reg_mem => {
                let number = self.safe();
                let offset = self.random.below((DATA_SIZE - 128) / 64) * 64;
                before.push(load(REGISTERS[number], self.layout.data() + offset));
                REGISTERS[number]
            }
            K::seg_reg => {
                *self
                    .random
                    .pick(&[Register::ES, Register::DS, Register::FS, Register::CS])
            }
            K::k_reg | K::k_rm | K::k_vvvv | K::k_or_mem => {
                Register::K0 + self.random.below(8) as u32
            }
            K::kp1_reg => Register::K0 + self.random.below(8) as u32,
            K::mm_reg | K::mm_rm | K::mm_or_mem => Register::MM0 + self.random.below(8) as u32,
            K::xmm_reg
            | K::xmm_rm
            | K::xmm_vvvv
            | K::xmm_is4
            | K::xmm_is5
            | K::xmm_or_mem
            | K::xmmp3_vvvv => vector(self, Register::XMM0),
            K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 | K::ymm_is5 | K::ymm_or_mem => {
                vector(self, Register::YMM0)
            }
            K::zmm_reg | K::zmm_rm | K::zmm_vvvv | K::zmm_or_mem | K::zmmp3_vvvv => {
                vector(self, Register::ZMM0)
            }
            K::es => Register::ES,
            K::cs => Register::CS,
            K::ss => Register::SS,
            K::ds => Register::DS,
            K::fs => Register::FS,
            K::al => Register::AL,
            K::cl => Register::CL,
            K::ax => Register::AX,
            K::dx => Register::DX,
            K::eax => Register::EAX,
            K::rax => Register::RAX,
            K::st0 => Register::ST0,
            K::sti_opcode => Register::ST0 + self.random.below(8) as u32,
            K::imm4_m2z
            | K::imm8
            | K::imm8_const_1
            | K::imm8sex16
            | K::imm8sex32
            | K::imm8sex64
            | K::imm16
            | K::imm32
            | K::imm32sex64
            | K::imm64 => {
                return self.immediate(instruction, operand, kind);
            }
            K::seg_rSI => {
                instruction.set_op_kind(operand, OpKind::MemorySegRSI);
                return Some(());
            }
            K::es_rDI => {
                instruction.set_op_kind(operand, OpKind::MemoryESRDI);
                return Some(());
            }
            K::seg_rDI => {
                instruction.set_op_kind(operand, OpKind::MemorySegRDI);
                return Some(());
            }
            // xlatb: rbx and al
            K::seg_rBX_al => {
                instruction.set_op_kind(operand, OpKind::Memory);
                instruction.set_memory_base(Register::RBX);
                instruction.set_memory_index(Register::AL);
                instruction.set_memory_index_scale(1);
                before.push(load(Register::RBX, self.layout.data()));
                return Some(());
            }
            // Control and debug registers are the kernel's, bound registers
            // and tiles this machine's programs do not have; gs is the vm's.
            _ => return None,
        };
        instruction.set_op_kind(operand, OpKind::Register);
        instruction.set_op_register(operand, register);
        Some(())
    }

    fn immediate(
        &mut self,
        instruction: &mut Instruction,
        operand: u32,
        kind: OpCodeOperandKind,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let value = self.random.word();
        let second = (0..operand).any(|before| instruction.op_kind(before) == OpKind::Immediate8);
        let (op_kind, value) = match kind {
            K::imm4_m2z => (OpKind::Immediate8, value & 3),
            K::imm8 if second => {
                instruction.set_op_kind(operand, OpKind::Immediate8_2nd);
                instruction.set_immediate8_2nd(value as u8);
                return Some(());
            }
            K::imm8 => (OpKind::Immediate8, value & 0xff),
            K::imm8_const_1 => (OpKind::Immediate8, 1),
            K::imm8sex16 => (OpKind::Immediate8to16, i64::from(value as i8) as u64),
            K::imm8sex32 => (OpKind::Immediate8to32, i64::from(value as i8) as u64),
            K::imm8sex64 => (OpKind::Immediate8to64, i64::from(value as i8) as u64),
            K::imm16 => (OpKind::Immediate16, value & 0xffff),
            K::imm32 => (OpKind::Immediate32, value & 0xffff_ffff),
            K::imm32sex64 => (OpKind::Immediate32to64, i64::from(value as i32) as u64),
            _ => (OpKind::Immediate64, value),
        };
        instruction.set_op_kind(operand, op_kind);
        match op_kind {
            OpKind::Immediate8 => instruction.set_immediate8(value as u8),
            OpKind::Immediate8to16 => instruction.set_immediate8to16(value as i16),
            OpKind::Immediate8to32 => instruction.set_immediate8to32(value as i32),
            OpKind::Immediate8to64 => instruction.set_immediate8to64(value as i64),
            OpKind::Immediate16 => instruction.set_immediate16(value as u16),
            OpKind::Immediate32 => instruction.set_immediate32(value as u32),
            OpKind::Immediate32to64 => instruction.set_immediate32to64(value as i64),
            _ => instruction.set_immediate64(value),
        }
        Some(())
    }

    /// Offset of an access into an area of `size` bytes: aligned often,
    /// astride the page border in the middle sometimes.
    fn offset(&mut self, size: u64, access: u64) -> u64 {
        let room = size.saturating_sub(access);
        match self.random.below(8) {
            0..5 => self.random.below(room / 64 + 1) * 64,
            5 => (size / 2).saturating_sub(self.random.below(access.max(1))),
            _ => self.random.below(room + 1),
        }
    }

    /// A memory operand in one of the machine's forms, and the loads of the
    /// registers in its address.
    fn memory(
        &mut self,
        instruction: &mut Instruction,
        operand: u32,
        before: &mut Vec<Entry>,
    ) -> Option<()> {
        let info = instruction.code().op_code();
        let access = match info.memory_size().size() as u64 {
            0 => 1024,
            size => size,
        };
        let bit_string = matches!(
            instruction.code().mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
        let whole_state = info.is_save_restore() || access >= 512;
        let mut offset = self.offset(DATA_SIZE, access);
        if whole_state {
            offset = self.random.below(8) * 64;
        } else if bit_string {
            offset = DATA_SIZE / 2 + self.random.below(64);
        }
        instruction.set_op_kind(operand, OpKind::Memory);
        instruction.set_memory_index_scale(1);
        let near = self.layout.data() + offset;
        let low = self.layout.low_data() + offset;
        let scale = 1u64 << self.random.below(4);
        let base = self.safe();
        let index = loop {
            let number = self.safe();
            if number != base {
                break number;
            }
        };
        let small = (self.random.next() as i8) as i64 as u64;
        let displacement = match self.random.below(3) {
            0 => 0,
            1 => small,
            _ => i64::from(self.random.next() as i32 >> 4) as u64,
        };
        let set = |instruction: &mut Instruction, base, index, displacement: u64, size| {
            instruction.set_memory_base(base);
            instruction.set_memory_index(index);
            instruction.set_memory_displacement64(displacement);
            instruction.set_memory_displ_size(size);
        };
        let none = Register::None;
        let form = self.random.below(13);
        match form {
            0..3 => {
                before.push(load(REGISTERS[base], near.wrapping_sub(displacement)));
                let size = if displacement == 0 { 0 } else { 8 };
                set(instruction, REGISTERS[base], none, displacement, size);
            }
            3 | 4 => {
                let at = self.random.below(64).wrapping_sub(32);
                before.push(load(REGISTERS[index], at));
                let base_value = near
                    .wrapping_sub(displacement)
                    .wrapping_sub(at.wrapping_mul(scale));
                before.push(load(REGISTERS[base], base_value));
                set(
                    instruction,
                    REGISTERS[base],
                    REGISTERS[index],
                    displacement,
                    8,
                );
                instruction.set_memory_index_scale(scale as u32);
            }
            5 => {
                let at = self.random.below(1000);
                before.push(load(REGISTERS[index], at));
                set(instruction, none, REGISTERS[index], low - at * scale, 8);
                instruction.set_memory_index_scale(scale as u32);
            }
            6 | 7 => set(instruction, Register::RIP, none, near, 8),
            8 => set(instruction, none, none, low, 8),
            9 if access <= 64 && !bit_string => {
                let at = self.random.below(TLS_SIZE - access) as i64 - TLS_SIZE as i64 / 2;
                instruction.set_segment_prefix(Register::FS);
                if self.random.one_in(2) {
                    set(instruction, none, none, at as u64, 8);
                } else {
                    before.push(load(REGISTERS[base], at as u64));
                    set(instruction, REGISTERS[base], none, 0, 0);
                }
            }
            10 => {
                instruction.set_segment_prefix(Register::GS);
                before.push(load(REGISTERS[base], offset));
                set(instruction, REGISTERS[base], none, 0, 0);
            }
            11 if access <= 64 && !bit_string => {
                let at = self.random.below(128);
                set(instruction, Register::RSP, none, at, 8);
            }
            // 32-bit addresses.
            _ => {
                let [base, index] = [base, index].map(|number| Register::EAX + number as u32);
                let displacement = displacement & 0xffff_ffff;
                if self.random.one_in(2) {
                    let value = low.wrapping_sub(displacement) as u32;
                    let upper = self.random.next() << 32;
                    before.push(load(base.full_register(), upper | u64::from(value)));
                    set(instruction, base, none, displacement, 4);
                } else {
                    let at = self.random.below(64);
                    before.push(load(index.full_register(), at));
                    let value = low.wrapping_sub(displacement).wrapping_sub(at * scale) as u32;
                    before.push(load(base.full_register(), u64::from(value)));
                    set(instruction, base, index, displacement, 4);
                    instruction.set_memory_index_scale(scale as u32);
                }
            }
        }
        Some(())
    }

    fn memory_offset(&mut self, instruction: &mut Instruction, operand: u32) -> Option<()> {
        let offset = self.random.below(DATA_SIZE - 8);
        let address = if self.random.one_in(2) {
            self.layout.low_data() + offset
        } else {
            self.layout.data() + offset
        };
        instruction.set_op_kind(operand, OpKind::Memory);
        instruction.set_memory_displ_size(8);
        instruction.set_memory_displacement64(address);
        Some(())
    }

    /// Gathers and scatters: a vector of small offsets as the index.
    fn vector_index(
        &mut self,
        instruction: &mut Instruction,
        operand: u32,
        kind: OpCodeOperandKind,
        before: &mut Vec<Entry>,
    ) -> Option<()> {
        use OpCodeOperandKind as K;
        let (first, qwords) = match kind {
            K::mem_vsib32x => (Register::XMM0, false),
            K::mem_vsib64x => (Register::XMM0, true),
            K::mem_vsib32y => (Register::YMM0, false),
            K::mem_vsib64y => (Register::YMM0, true),
            K::mem_vsib32z => (Register::ZMM0, false),
            _ => (Register::ZMM0, true),
        };
        let wide = instruction.code().encoding() == EncodingKind::EVEX;
        let number = self.random.below(if wide { 32 } else { 16 }) as u32;
        let base = self.safe();
        let table =
            self.layout.constants() + if qwords { 512 } else { 0 } + self.random.below(4) * 64;
        before.push(load(REGISTERS[base], table));
        let mut fill = Instruction::new();
        fill.set_code(if wide {
            Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512
        } else {
            Code::VEX_Vmovdqu_ymm_ymmm256
        });
        fill.set_op0_kind(OpKind::Register);
        fill.set_op0_register(if wide { Register::ZMM0 } else { Register::YMM0 } + number);
        fill.set_op1_kind(OpKind::Memory);
        fill.set_memory_base(REGISTERS[base]);
        fill.set_memory_index_scale(1);
        before.push(Entry::Plain(fill));
        let place = self.layout.data() + self.random.below(1024);
        before.push(load(REGISTERS[base], place));
        instruction.set_op_kind(operand, OpKind::Memory);
        instruction.set_memory_base(REGISTERS[base]);
        instruction.set_memory_index(first + number);
        instruction.set_memory_index_scale(1 << self.random.below(4));
        Some(())
    }

    /// Registers that an instruction uses without naming them.
    fn prepare_state(&mut self, instruction: &Instruction, before: &mut Vec<Entry>) {
        use Mnemonic::*;
        let random = &mut self.random;
        let uses = |kind| (0..instruction.op_count()).any(|at| instruction.op_kind(at) == kind);
        if uses(OpKind::MemorySegRSI) {
            let at = self.layout.data() + DATA_SIZE / 2 + random.below(100);
            before.push(load(Register::RSI, at));
        }
        if uses(OpKind::MemoryESRDI) || uses(OpKind::MemorySegRDI) {
            let at = self.layout.low_data() + DATA_SIZE / 2 - random.below(100);
            before.push(load(Register::RDI, at));
        }
        if instruction.is_string_instruction() {
            before.push(load(Register::RCX, random.below(20)));
            if random.one_in(2) {
                before.push(bytes(&[*random.pick(&[0xfc, 0xfd])]));
            }
        }
        match instruction.mnemonic() {
            Bt | Bts | Btr | Btc if instruction.op1_kind() == OpKind::Register => {
                let bit = random.below(8000) as i64 - 4000;
                before.push(load(instruction.op1_register().full_register(), bit as u64));
            }
            Div | Idiv => {
                // A small dividend: cdq's shape for idiv, zero for div.
                let value = random.below(0x80);
                before.push(load(Register::RDX, 0));
                before.push(load(Register::RAX, value));
            }
            Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xrstor | Xrstor64 => {
                before.push(load(Register::RAX, random.below(256) & 0xe7));
                before.push(load(Register::RDX, 0));
            }
            Cmpxchg8b | Cmpxchg16b | Cmpxchg if random.one_in(2) => {
                // A comparison that succeeds: load what is there.
                before.push(load(Register::RDX, 0));
            }
            Popf | Popfd | Popfq => {
                // No trap flag, no alignment checks.
                let flags = random.next() & 0xcd5 | 0x202;
                before.push(load(Register::RAX, flags));
                before.push(bytes(&[0x50]));
            }
            _ => {}
        }
    }

    /// A case of a few random instructions, the first of kind `code`.
    pub fn straight_line(&mut self, seed: u64, codes: &[Code], first: Option<Code>) -> Case {
        let mut case = Case::new(seed, self.layout);
        let length = match first {
            Some(_) => 1,
            None => 1 + self.random.below(8) as usize,
        };
        for index in 0..length {
            let code = match first {
                Some(code) if index == 0 => code,
                _ => *self.random.pick(codes),
            };
            let Some(entries) = self.instruction(code) else {
                continue;
            };
            let state = entries
                .iter()
                .any(|entry| matches!(entry, Entry::Plain(plain) if stores_x87_pointers(plain)));
            if !state || case.body.is_empty() {
                case.body.extend(entries);
            }
        }
        case
    }

    /// A few instructions that leave rsp, r14 and r15 alone.
    pub fn filler(&mut self, codes: &[Code], case: &mut Case) {
        for _ in 0..self.random.below(4) {
            let code = *self.random.pick(codes);
            if code.is_stack_instruction() || code.op_code().is_save_restore() {
                continue;
            }
            let Some(entries) = self.instruction(code) else {
                continue;
            };
            let keeps = entries.iter().all(|entry| match entry {
                Entry::Plain(instruction) => {
                    !stores_x87_pointers(instruction) && leaves_alone(instruction)
                }
                _ => true,
            });
            if keeps {
                case.body.extend(entries);
            }
        }
    }

    /// A case of branches, calls and loops.
    pub fn control_flow(&mut self, seed: u64, codes: &[Code]) -> Case {
        let mut case = Case::new(seed, self.layout);
        for _ in 0..1 + self.random.below(4) {
            self.shape(codes, &mut case);
        }
        case
    }

    fn label(case: &mut Case) -> Label {
        case.labels += 1;
        case.labels - 1
    }

    fn conditional(&mut self, near: bool) -> Code {
        const SHORT: [Code; 16] = [
            Code::Jo_rel8_64,
            Code::Jno_rel8_64,
            Code::Jb_rel8_64,
            Code::Jae_rel8_64,
            Code::Je_rel8_64,
            Code::Jne_rel8_64,
            Code::Jbe_rel8_64,
            Code::Ja_rel8_64,
            Code::Js_rel8_64,
            Code::Jns_rel8_64,
            Code::Jp_rel8_64,
            Code::Jnp_rel8_64,
            Code::Jl_rel8_64,
            Code::Jge_rel8_64,
            Code::Jle_rel8_64,
            Code::Jg_rel8_64,
        ];
        let code = *self.random.pick(&SHORT);
        if near { code.as_near_branch() } else { code }
    }

    /// Changes a register, so that the way taken shows.
    fn mark(&mut self, case: &mut Case) {
        let value = self.random.below(1000) as i32;
        // add r13d-ish without touching flags: lea r13, [r13 + value]
        let mut lea = vec![0x4d, 0x8d, 0xad];
        lea.extend_from_slice(&value.to_le_bytes());
        case.body.push(Entry::Bytes(lea));
    }

    fn shape(&mut self, codes: &[Code], case: &mut Case) {
        let code = |instruction: Result<Instruction, iced_x86::IcedError>| {
            Entry::Plain(instruction.expect("an instruction of the shape"))
        };
        match self.random.below(14) {
            // Forward conditional jump over something.
            0..3 => {
                let over = Self::label(case);
                let branch = self.conditional(true);
                case.body.push(Entry::Branch(branch, over));
                self.filler(codes, case);
                self.mark(case);
                case.body.push(Entry::Label(over));
            }
            3 => {
                let over = Self::label(case);
                let branch = self.conditional(false);
                case.body.push(Entry::Branch(branch, over));
                self.mark(case);
                case.body.push(Entry::Label(over));
                self.filler(codes, case);
            }
            // A loop counted in r15 with any condition that ends it as well.
            4 | 5 => {
                let [top, out] = [Self::label(case), Self::label(case)];
                case.body
                    .push(load(Register::R15, 1 + self.random.below(6)));
                case.body.push(Entry::Label(top));
                self.mark(case);
                self.filler(codes, case);
                if self.random.one_in(2) {
                    let branch = self.conditional(true);
                    case.body.push(Entry::Branch(branch, out));
                }
                // dec r15 leaves the carry alone; jnz back
                case.body.push(bytes(&[0x49, 0xff, 0xcf]));
                case.body.push(Entry::Branch(Code::Jne_rel32_64, top));
                case.body.push(Entry::Label(out));
            }
            // loop, loope, loopne, jrcxz and their 32-bit forms.
            6 | 7 => {
                let [top, out] = [Self::label(case), Self::label(case)];
                let count = self.random.below(6) + u64::from(self.random.one_in(2)) * (7 << 32);
                let branch = *self.random.pick(&[
                    Code::Loop_rel8_64_RCX,
                    Code::Loop_rel8_64_ECX,
                    Code::Loope_rel8_64_RCX,
                    Code::Loopne_rel8_64_RCX,
                    Code::Loopne_rel8_64_ECX,
                ]);
                let count = if count == 0 { 1 } else { count };
                case.body
                    .push(load(Register::RCX, count & 7 | count >> 32 << 32));
                if matches!(
                    branch,
                    Code::Loop_rel8_64_RCX | Code::Loope_rel8_64_RCX | Code::Loopne_rel8_64_RCX
                ) || count & 7 == 0
                {
                    case.body.push(load(Register::RCX, (count & 7).max(1)));
                }
                case.body.push(Entry::Label(top));
                self.mark(case);
                case.body.push(Entry::Branch(branch, top));
                let empty = *self
                    .random
                    .pick(&[Code::Jrcxz_rel8_64, Code::Jecxz_rel8_64]);
                case.body.push(Entry::Branch(empty, out));
                self.mark(case);
                case.body.push(Entry::Label(out));
            }
            // Call and return, sometimes over a page border, sometimes
            // popping arguments.
            8 | 9 => {
                let [function, after] = [Self::label(case), Self::label(case)];
                let pops = self.random.below(3) * 8;
                if pops > 0 {
                    // lea rsp, [rsp - pops]
                    case.body.push(bytes(&[
                        0x48,
                        0x8d,
                        0x64,
                        0x24,
                        (pops as u8).wrapping_neg(),
                    ]));
                }
                match self.random.below(3) {
                    0 => case.body.push(Entry::Branch(Code::Call_rel32_64, function)),
                    1 => {
                        case.body.push(Entry::LoadAddress(Register::R14, function));
                        case.body
                            .push(code(Instruction::with1(Code::Call_rm64, Register::R14)));
                    }
                    _ => {
                        let [table, over] = [Self::label(case), Self::label(case)];
                        case.body.push(Entry::Branch(Code::Jmp_rel32_64, over));
                        case.body.push(Entry::Label(table));
                        case.body.push(Entry::Quad(function));
                        case.body.push(Entry::Label(over));
                        case.body.push(Entry::Through(Code::Call_rm64, table));
                    }
                }
                self.mark(case);
                case.body.push(Entry::Branch(Code::Jmp_rel32_64, after));
                if self.random.one_in(4) {
                    case.body
                        .push(Entry::PageOffset(4096 - self.random.below(12)));
                }
                case.body.push(Entry::Label(function));
                self.mark(case);
                self.filler(codes, case);
                if pops > 0 {
                    case.body
                        .push(code(Instruction::with1(Code::Retnq_imm16, pops as i32)));
                } else {
                    case.body.push(bytes(&[0xc3]));
                }
                case.body.push(Entry::Label(after));
            }
            // A jump table.
            10 | 11 => {
                let out = Self::label(case);
                let arms: Vec<Label> = (0..4).map(|_| Self::label(case)).collect();
                let table = Self::label(case);
                let chosen = self.random.below(4);
                case.body.push(Entry::LoadAddress(Register::R14, table));
                case.body.push(load(Register::R15, chosen));
                // jmp [r14 + r15 * 8] or mov rcx, [..]; jmp rcx
                if self.random.one_in(2) {
                    case.body.push(bytes(&[0x43, 0xff, 0x24, 0xfe]));
                } else {
                    case.body.push(bytes(&[0x4b, 0x8b, 0x0c, 0xfe, 0xff, 0xe1]));
                }
                case.body.push(Entry::Label(table));
                for arm in &arms {
                    case.body.push(Entry::Quad(*arm));
                }
                for arm in &arms {
                    case.body.push(Entry::Label(*arm));
                    self.mark(case);
                    self.filler(codes, case);
                    case.body.push(Entry::Branch(Code::Jmp_rel32_64, out));
                }
                case.body.push(Entry::Label(out));
            }
            // The stack: push and pop of all widths, flags, frames.
            12 => {
                let forms: [&[u8]; 10] = [
                    &[0x50, 0x66, 0x51, 0x66, 0x5a, 0x5b],
                    &[0x9c, 0x5e],
                    &[0x9c, 0x9d],
                    &[0x6a, 0x85, 0x68, 0x78, 0x56, 0x34, 0x92, 0x58, 0x59],
                    &[0xc8, 0x20, 0, 0, 0xc9],
                    &[0xc8, 0x10, 0, 1, 0xc9],
                    &[0x54, 0x5c],
                    &[0x9f, 0xf9, 0x9e],
                    &[0xff, 0x34, 0x24, 0x8f, 0x44, 0x24, 0x08],
                    &[0x66, 0x9c, 0x66, 0x9d],
                ];
                let form = *self.random.pick(&forms);
                case.body.push(bytes(form));
                self.mark(case);
            }
            // String code with the direction flag either way.
            _ => {
                let direction = *self.random.pick(&[0xfc, 0xfd]);
                case.body.push(bytes(&[direction]));
                case.body.push(load(
                    Register::RSI,
                    self.layout.data() + DATA_SIZE / 2 + self.random.below(64),
                ));
                case.body.push(load(
                    Register::RDI,
                    self.layout.data() + DATA_SIZE / 2 - self.random.below(64),
                ));
                case.body.push(load(Register::RCX, self.random.below(40)));
                let prefixes: [&[u8]; 4] = [&[], &[0xf3], &[0xf2], &[0x67, 0xf3]];
                let prefix = *self.random.pick(&prefixes);
                let operations: [&[u8]; 12] = [
                    &[0xa4],
                    &[0xa5],
                    &[0x48, 0xa5],
                    &[0xa6],
                    &[0x66, 0xa7],
                    &[0x48, 0xa7],
                    &[0xaa],
                    &[0x48, 0xab],
                    &[0xac],
                    &[0x48, 0xad],
                    &[0xae],
                    &[0xaf],
                ];
                let operation = *self.random.pick(&operations);
                if prefix.first() == Some(&0x67) {
                    case.body.push(load(
                        Register::RSI,
                        self.layout.low_data() + DATA_SIZE / 2 + self.random.below(64),
                    ));
                    case.body.push(load(
                        Register::RDI,
                        self.layout.low_data() + DATA_SIZE / 2 - self.random.below(64),
                    ));
                }
                case.body.push(Entry::Bytes([prefix, operation].concat()));
            }
        }
    }
}

/// True if loops and calls around the instruction still work.
fn leaves_alone(instruction: &Instruction) -> bool {
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let info = factory.info(instruction);
    info.used_registers().iter().all(|used| {
        let full = used.register().full_register();
        let written = !matches!(
            used.access(),
            iced_x86::OpAccess::Read | iced_x86::OpAccess::CondRead
        );
        !(written && matches!(full, Register::RSP | Register::R14 | Register::R15))
    })
}
