//! Instructions the vm executes itself, because their result must be the same
//! in every run: cpuid, time stamps, random numbers, the extended state, the
//! number of the processor, and a few that concern registers the vm has taken.
//! docs/determinism.md lists them.

use crate::context::reg;
use crate::extended_state::{self, Area, BadArea, Format};
use crate::io::tag;
use crate::kernel::signal::SI_KERNEL;
use crate::kernel::signal::{SEGV_MAPERR, Trap};
use crate::layout::PAGE;
use crate::machine::{Vm, is_canonical};
use crate::processor::EXTENDED_AT;
use crate::schedule::SliceEnd;
use crate::translate::is_of_the_kernel;
use crate::vector::IN_USE_AT;
use crate::{Error, memory};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// General protection.
const PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;
/// No such instruction.
const UNDEFINED: u64 = 6;

/// Bits of a page fault's error code: the page is there, it was a write, from
/// user mode.
const THERE: u64 = 1;
const WRITE: u64 = 2;
const USER: u64 = 4;

/// What the kernel says where processors would tell of its tables (it hides
/// them since Linux 5.4, where the processor can).
const HIDDEN_GDT: u64 = 0xffff_ffff_fffe_0000;
const HIDDEN_IDT: u64 = 0xffff_ffff_ffff_0000;
/// Lower half of CR0 of every 64-bit Linux.
const CR0: u64 = 0x8005_0033;
/// Selector of the task register.
const TASK: u64 = 0x40;
/// Selector of a segment whose limit is the number of the processor.
const PROCESSOR_SEGMENT: u16 = 0x7b;

impl Vm {
    fn time_stamps_fault(&self) -> bool {
        self.threads
            .get(&self.current)
            .is_some_and(|thread| thread.time_stamps_fault)
    }

    /// Executes the instruction at rip, which is already counted.
    pub(crate) fn emulate(&mut self) -> Result<Option<SliceEnd>, Error> {
        let pc = self.regs().rip;
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        let instruction = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode();
        match instruction.mnemonic() {
            Mnemonic::Cpuid => self.cpuid(),
            Mnemonic::Xgetbv => {
                // Bit 2: what is in use can be asked for, too.
                let of_use = self.processor.cpuid(0xd, 1)[0] & 4 != 0;
                match self.regs().gpr[reg::RCX] as u32 {
                    0 => {}
                    1 if of_use => {}
                    _ => return self.protection_fault(pc, 0),
                }
                let components = self.processor.components();
                self.regs().gpr[reg::RAX] = components & 0xffff_ffff;
                self.regs().gpr[reg::RDX] = components >> 32;
            }
            Mnemonic::Fxsave | Mnemonic::Fxsave64 => {
                return self.save_state(&instruction, Format::Legacy);
            }
            Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xsaveopt | Mnemonic::Xsaveopt64 => {
                return self.save_state(&instruction, Format::Standard);
            }
            Mnemonic::Xsavec | Mnemonic::Xsavec64 => {
                if !self.processor.has_compacted_format() {
                    return self.no_such_instruction(pc);
                }
                return self.save_state(&instruction, Format::Compacted);
            }
            Mnemonic::Xrstor | Mnemonic::Xrstor64 => return self.restore_state(&instruction),
            // The counters of the kernel's are closed to programs.
            Mnemonic::Rdpmc => return self.protection_fault(pc, 0),
            // What CPUID says is not there.
            Mnemonic::Rdpru
            | Mnemonic::Monitorx
            | Mnemonic::Mwaitx
            | Mnemonic::Umonitor
            | Mnemonic::Umwait
            | Mnemonic::Tpause
            | Mnemonic::Rdpkru
            | Mnemonic::Wrpkru => return self.no_such_instruction(pc),
            Mnemonic::Sgdt => return self.store_table(&instruction, HIDDEN_GDT),
            Mnemonic::Sidt => return self.store_table(&instruction, HIDDEN_IDT),
            Mnemonic::Smsw => return self.store_word(&instruction, CR0),
            Mnemonic::Str => return self.store_word(&instruction, TASK),
            Mnemonic::Sldt => return self.store_word(&instruction, 0),
            Mnemonic::Lsl => return self.segment_limit(&instruction),
            Mnemonic::Rdtsc | Mnemonic::Rdtscp if self.time_stamps_fault() => {
                return self.protection_fault(pc, 0);
            }
            Mnemonic::Rdtsc | Mnemonic::Rdtscp => {
                let time = self.shown_time();
                self.regs().gpr[reg::RAX] = time & 0xffff_ffff;
                self.regs().gpr[reg::RDX] = time >> 32;
                if instruction.mnemonic() == Mnemonic::Rdtscp {
                    self.regs().gpr[reg::RCX] = 0;
                }
            }
            Mnemonic::Rdpid => self.set_register(instruction.op0_register(), 0),
            Mnemonic::Rdrand | Mnemonic::Rdseed => {
                let (_, bytes) = self.io.external_bytes(tag::RANDOM, || {
                    let mut bytes = [0; 8];
                    // SAFETY: fills a buffer of ours.
                    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
                    (0, bytes.to_vec())
                })?;
                let value = bytes.try_into().map_or(0, u64::from_le_bytes);
                self.set_register(instruction.op0_register(), value);
                // Carry says that the number is good; the others are cleared.
                let flags = self.regs().rflags;
                self.regs().rflags = (flags & !0x8d5) | 1;
            }
            Mnemonic::Rdgsbase => {
                let base = self.regs().gs_base;
                self.set_register(instruction.op0_register(), base);
            }
            mnemonic @ (Mnemonic::Wrgsbase | Mnemonic::Wrfsbase) => {
                let value = self.register(instruction.op0_register());
                // Stores near it are not looked at.
                if !is_canonical(value) || memory::is_vm(value) {
                    return self.protection_fault(instruction.ip(), 0);
                }
                match mnemonic {
                    Mnemonic::Wrgsbase => self.regs().gs_base = value,
                    _ => self.regs().fs_base = value,
                }
            }
            // No transactional memory: every transaction aborts at once.
            Mnemonic::Xbegin => {
                self.regs().gpr[reg::RAX] = 0;
                self.regs().rip = instruction.near_branch_target();
                return Ok(None);
            }
            Mnemonic::Int | Mnemonic::Int1 => return self.interrupt(&instruction),
            Mnemonic::Mov | Mnemonic::Pop | Mnemonic::Lfs | Mnemonic::Lgs => {
                return self.load_segment(&instruction);
            }
            Mnemonic::Retf
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Jmp
            | Mnemonic::Call => return self.far_transfer(&instruction),
            mnemonic if is_of_the_kernel(mnemonic) => {
                return self.kernel_instruction(&instruction);
            }
            _ => return self.cannot_execute(&instruction),
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    /// The instruction at rip has stored the x87 state. Its pointers to the
    /// last instruction and operand are addresses in the code cache, and gone
    /// after every switch of threads (processors keep them while an exception
    /// is pending only): the guest always reads zero.
    pub(crate) fn clear_stored_pointers(&mut self) {
        let pc = self.regs().rip;
        let instruction = self.instruction_at(pc);
        self.regs().rip = instruction.next_ip();
        let address = self.memory_operand(&instruction);
        let (at, length) = match instruction.memory_size().size() {
            14 | 94 => (6, 8),
            // The last two bytes are all ones, whatever the state.
            _ => (12, 14),
        };
        // The instruction has just written there.
        let _ = memory::write(address.wrapping_add(at), &[0; 14][..length]);
    }

    /// The instruction at `pc`, which is counted, is not allowed: nothing of it
    /// has happened.
    pub(crate) fn protection_fault(
        &mut self,
        pc: u64,
        error: u64,
    ) -> Result<Option<SliceEnd>, Error> {
        self.regs().rip = pc;
        self.uncount();
        let trap = Trap {
            number: PROTECTION,
            error,
            ..Trap::default()
        };
        self.drop_records_after_fault();
        self.guest_fault(libc::SIGSEGV, SI_KERNEL, 0, trap)
    }

    /// The instruction at `pc`, which is counted, is none that the guest's
    /// processor has.
    pub(crate) fn no_such_instruction(&mut self, pc: u64) -> Result<Option<SliceEnd>, Error> {
        self.regs().rip = pc;
        self.uncount();
        let trap = Trap {
            number: UNDEFINED,
            ..Trap::default()
        };
        self.guest_fault(libc::SIGILL, 2 /* ILL_ILLOPN */, pc, trap)
    }

    /// The instruction at `pc`, which is counted, could not read or write all
    /// of this memory.
    pub(crate) fn memory_fault(
        &mut self,
        pc: u64,
        address: u64,
        length: usize,
        write: bool,
    ) -> Result<Option<SliceEnd>, Error> {
        let mut at = address;
        let fails = |vm: &Vm, at: u64| match vm.space.find(at) {
            None => true,
            Some((_, mapping)) => {
                let wanted = if write {
                    libc::PROT_WRITE
                } else {
                    libc::PROT_READ
                };
                mapping.protection & wanted == 0 || memory::get::<u8>(at).is_err()
            }
        };
        while at.wrapping_sub(address) < length as u64 && is_canonical(at) && !fails(self, at) {
            at = (at & !(PAGE - 1)).wrapping_add(PAGE);
        }
        if !is_canonical(at) {
            return self.protection_fault(pc, 0);
        }
        let mapped = self.space.find(at).map(|(_, mapping)| mapping.protection);
        let access = USER | if write { WRITE } else { 0 };
        let wanted = if write {
            libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let (signal, code, error) = match mapped {
            None => (libc::SIGSEGV, SEGV_MAPERR, access),
            Some(protection) if protection & wanted == 0 => {
                (libc::SIGSEGV, 2 /* SEGV_ACCERR */, access | THERE)
            }
            // Behind the end of a mapped file.
            Some(_) => (libc::SIGBUS, 2 /* BUS_ADRERR */, access),
        };
        let trap = Trap {
            number: PAGE_FAULT,
            error,
            address: at,
        };
        self.regs().rip = pc;
        self.uncount();
        self.drop_records_after_fault();
        self.guest_fault(signal, code, at, trap)
    }

    /// Writes for the instruction at rip; false where that cannot be done. Code
    /// that was translated from there is forgotten.
    pub(crate) fn store(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.space_for_writing(address, bytes.len() as u64);
        memory::write(address, bytes).is_ok()
    }

    /// What an instruction of this kind saves and loads: edx:eax.
    fn wanted_components(&mut self) -> u64 {
        let regs = self.regs();
        regs.gpr[reg::RDX] << 32 | regs.gpr[reg::RAX] & 0xffff_ffff
    }

    fn save_state(
        &mut self,
        instruction: &Instruction,
        format: Format,
    ) -> Result<Option<SliceEnd>, Error> {
        let pc = instruction.ip();
        let address = self.memory_operand(instruction);
        let alignment = if format == Format::Legacy { 16 } else { 64 };
        if !address.is_multiple_of(alignment) {
            return self.protection_fault(pc, 0);
        }
        let wanted = self.wanted_components();
        let header = address.wrapping_add(IN_USE_AT as u64);
        let before = match format {
            Format::Standard => memory::get::<u64>(header),
            _ => Ok(0),
        };
        let Some(thread) = self.threads.get(&self.current) else {
            unreachable!("the running thread exists");
        };
        let Ok(before) = before else {
            return self.memory_fault(pc, header, 8, true);
        };
        let pieces = extended_state::save(&thread.vector, &self.processor, format, wanted, before);
        for (at, bytes) in pieces {
            let to = address.wrapping_add(at as u64);
            if !self.store(to, &bytes) {
                return self.memory_fault(pc, to, bytes.len(), true);
            }
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    fn restore_state(&mut self, instruction: &Instruction) -> Result<Option<SliceEnd>, Error> {
        let pc = instruction.ip();
        let address = self.memory_operand(instruction);
        if !address.is_multiple_of(64) {
            return self.protection_fault(pc, 0);
        }
        let wanted = self.wanted_components();
        let Ok(beginning) = memory::get::<[u8; EXTENDED_AT]>(address) else {
            return self.memory_fault(pc, address, EXTENDED_AT, false);
        };
        let processor = self.processor.clone();
        let Ok(area) = Area::new(beginning, &processor) else {
            return self.protection_fault(pc, 0);
        };
        let mut parts = Vec::new();
        for (number, at, length) in area.parts(&processor, wanted) {
            let from = address.wrapping_add(at as u64);
            match memory::read_vec(from, length) {
                Ok(bytes) => parts.push((number, bytes)),
                Err(_) => return self.memory_fault(pc, from, length, false),
            }
        }
        let Some(thread) = self.threads.get_mut(&self.current) else {
            unreachable!("the running thread exists");
        };
        if let Err(BadArea) = area.restore(&mut thread.vector, &processor, wanted, &parts) {
            return self.protection_fault(pc, 0);
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    /// SGDT and SIDT.
    fn store_table(
        &mut self,
        instruction: &Instruction,
        base: u64,
    ) -> Result<Option<SliceEnd>, Error> {
        let address = self.memory_operand(instruction);
        // A limit of two bytes, then the address.
        let mut bytes = [0; 10];
        bytes[2..].copy_from_slice(&base.to_le_bytes());
        if !self.store(address, &bytes) {
            return self.memory_fault(instruction.ip(), address, bytes.len(), true);
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    /// SMSW, STR and SLDT: a register of any width, or two bytes of memory.
    fn store_word(
        &mut self,
        instruction: &Instruction,
        value: u64,
    ) -> Result<Option<SliceEnd>, Error> {
        if instruction.op0_kind() == OpKind::Register {
            self.set_register(instruction.op0_register(), value);
        } else {
            let address = self.memory_operand(instruction);
            if !self.store(address, &(value as u16).to_le_bytes()) {
                return self.memory_fault(instruction.ip(), address, 2, true);
            }
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    /// LSL: the kernel keeps the number of the processor in a limit.
    fn segment_limit(&mut self, instruction: &Instruction) -> Result<Option<SliceEnd>, Error> {
        let selector = if instruction.op1_kind() == OpKind::Register {
            self.register(instruction.op1_register()) as u16
        } else {
            let address = self.memory_operand(instruction);
            match memory::get::<[u8; 2]>(address) {
                Ok(bytes) => u16::from_le_bytes(bytes),
                Err(_) => return self.memory_fault(instruction.ip(), address, 2, false),
            }
        };
        let (mut limit, found): (u64, u8);
        // SAFETY: LSL reads a descriptor and writes a register and the flags.
        unsafe {
            std::arch::asm!(
                "xor {limit:e}, {limit:e}",
                "lsl {limit:e}, {selector:e}",
                "setz {found}",
                limit = out(reg) limit,
                selector = in(reg) u32::from(selector),
                found = out(reg_byte) found,
            );
        }
        // Whatever privileges the selector asks for.
        if selector | 3 == PROCESSOR_SEGMENT {
            limit = 0;
        }
        const ZERO: u64 = 0x40;
        let flags = self.regs().rflags & !ZERO;
        self.regs().rflags = flags | if found != 0 { ZERO } else { 0 };
        if found != 0 {
            self.set_register(instruction.op0_register(), limit);
        }
        self.regs().rip = instruction.next_ip();
        Ok(None)
    }

    /// An instruction that was left to the vm, which does not know it.
    fn cannot_execute(&mut self, instruction: &Instruction) -> Result<Option<SliceEnd>, Error> {
        Err(Error::Unsupported(format!(
            "instruction `{instruction}` at {:#x} is not supported",
            instruction.ip()
        )))
    }

    pub(crate) fn register(&mut self, register: Register) -> u64 {
        let index = register.full_register().number();
        let value = self.regs().gpr[index];
        if register.size() == 4 {
            value & 0xffff_ffff
        } else {
            value
        }
    }

    /// Writes a general register with the machine's rules for its width.
    pub(crate) fn set_register(&mut self, register: Register, value: u64) {
        let slot = &mut self.regs().gpr[register.full_register().number()];
        *slot = match register.size() {
            8 => value,
            4 => value & 0xffff_ffff,
            _ => (*slot & !0xffff) | (value & 0xffff),
        };
    }

    fn cpuid(&mut self) {
        let leaf = self.regs().gpr[reg::RAX] as u32;
        let subleaf = self.regs().gpr[reg::RCX] as u32;
        let words = self.processor.cpuid(leaf, subleaf);
        let registers = [reg::RAX, reg::RBX, reg::RCX, reg::RDX];
        for (register, word) in registers.into_iter().zip(words) {
            self.regs().gpr[register] = u64::from(word);
        }
    }
}
