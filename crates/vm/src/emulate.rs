//! Instructions the vm executes itself, because their result must be the same
//! in every run: cpuid, time stamps, random numbers, and a few that concern
//! registers the vm has taken.

use crate::context::reg;
use crate::io::tag;
use crate::kernel::signal::SI_KERNEL;
use crate::machine::{Vm, is_canonical};
use crate::schedule::SliceEnd;
use crate::vector::{X87_POINTERS, guest_xcr0};
use crate::{Error, memory};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};

impl Vm {
    /// Executes the instruction at rip, which is already counted.
    pub(crate) fn emulate(&mut self) -> Result<Option<SliceEnd>, Error> {
        let pc = self.regs().rip;
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        let instruction = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode();
        match instruction.mnemonic() {
            Mnemonic::Cpuid => self.cpuid()?,
            Mnemonic::Xgetbv => self.xgetbv()?,
            Mnemonic::Rdtsc | Mnemonic::Rdtscp => {
                let time = self.now();
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
            Mnemonic::Wrgsbase => {
                let value = self.register(instruction.op0_register());
                if !is_canonical(value) {
                    return self.protection_fault(instruction.ip(), 0);
                }
                self.regs().gs_base = value;
            }
            // No transactional memory: every transaction aborts at once.
            Mnemonic::Xbegin => {
                self.regs().gpr[reg::RAX] = 0;
                self.regs().rip = instruction.near_branch_target();
                return Ok(None);
            }
            // A gate the kernel keeps closed: general protection, with the
            // number of the gate.
            Mnemonic::Int if instruction.immediate8() != 0x80 => {
                let gate = u64::from(instruction.immediate8());
                return self.protection_fault(instruction.ip(), gate * 8 + 2);
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
        let (at, length) = match instruction.mnemonic() {
            Mnemonic::Fnstenv | Mnemonic::Fstenv | Mnemonic::Fnsave | Mnemonic::Fsave => {
                match instruction.memory_size().size() {
                    14 | 94 => (6, 8),
                    // The last two bytes are all ones, whatever the state.
                    _ => (12, 14),
                }
            }
            Mnemonic::Fxsave | Mnemonic::Fxsave64 => X87_POINTERS,
            // Stored only if asked for and not in its initial state.
            _ if self.regs().gpr[reg::RAX] & 1 == 0 => return,
            _ => match memory::get::<u8>(address.wrapping_add(512)) {
                Ok(in_use) if in_use & 1 != 0 => X87_POINTERS,
                _ => return,
            },
        };
        // The instruction has just written there.
        let _ = memory::write(address.wrapping_add(at), &[0; 18][..length]);
    }

    /// The instruction at `pc`, which is counted, is not allowed: nothing of it
    /// has happened.
    fn protection_fault(&mut self, pc: u64, error: u64) -> Result<Option<SliceEnd>, Error> {
        self.regs().rip = pc;
        self.uncount();
        let trap = crate::kernel::signal::Trap {
            number: 13,
            error,
            ..Default::default()
        };
        self.guest_fault(libc::SIGSEGV, SI_KERNEL, 0, trap)
    }

    /// An instruction form that has no place in a 64-bit Linux program the vm
    /// can run: 32-bit system calls, far jumps, returns to the kernel.
    fn cannot_execute(&mut self, instruction: &Instruction) -> Result<Option<SliceEnd>, Error> {
        Err(Error::Unsupported(format!(
            "instruction `{instruction}` at {:#x} is not supported",
            instruction.ip()
        )))
    }

    fn register(&mut self, register: Register) -> u64 {
        let index = register.full_register().number();
        let value = self.regs().gpr[index];
        if register.size() == 4 {
            value & 0xffff_ffff
        } else {
            value
        }
    }

    /// Writes a general register with the machine's rules for its width.
    fn set_register(&mut self, register: Register, value: u64) {
        let slot = &mut self.regs().gpr[register.full_register().number()];
        *slot = match register.size() {
            8 => value,
            4 => value & 0xffff_ffff,
            _ => (*slot & !0xffff) | (value & 0xffff),
        };
    }

    fn cpuid(&mut self) -> Result<(), Error> {
        let leaf = self.regs().gpr[reg::RAX] as u32;
        let subleaf = self.regs().gpr[reg::RCX] as u32;
        let (_, bytes) = self.io.external_bytes(tag::CPUID, || {
            let bytes = guest_cpuid(leaf, subleaf)
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            (0, bytes)
        })?;
        let mut words = bytes
            .chunks_exact(4)
            .map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
        for register in [reg::RAX, reg::RBX, reg::RCX, reg::RDX] {
            self.regs().gpr[register] = words.next().unwrap_or(0);
        }
        Ok(())
    }

    fn xgetbv(&mut self) -> Result<(), Error> {
        let value =
            self.io
                .external(tag::XGETBV, || (guest_xcr0() as i64, Vec::new()))? as u64;
        self.regs().gpr[reg::RAX] = value & 0xffff_ffff;
        self.regs().gpr[reg::RDX] = value >> 32;
        Ok(())
    }
}

/// The host's answer, without what the guest cannot use here.
fn guest_cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let host = std::arch::x86_64::__cpuid_count(leaf, subleaf);
    let mut answer = [host.eax, host.ebx, host.ecx, host.edx];
    match (leaf, subleaf) {
        // APIC id: always the first processor. No monitor/mwait.
        (1, _) => {
            answer[1] &= 0x00ff_ffff;
            answer[2] &= !(1 << 3);
        }
        (7, 0) => {
            // No transactional memory (HLE, RTM), no MPX.
            answer[1] &= !((1 << 4) | (1 << 11) | (1 << 14));
            // No CET shadow stack, no user interrupts, no AMX, no waitpkg.
            answer[2] &= !((1 << 5) | (1 << 7));
            answer[3] &= !((1 << 5) | (1 << 20) | (1 << 22) | (1 << 24) | (1 << 25));
        }
        // The size of the XSAVE area for what the guest has.
        (0xd, 0) => {
            let components = guest_xcr0();
            answer[0] = components as u32;
            answer[3] = 0;
            answer[1] = (2..16)
                .filter(|component| components & (1 << component) != 0)
                .map(|component| {
                    let area = std::arch::x86_64::__cpuid_count(0xd, component);
                    area.eax + area.ebx
                })
                .max()
                .unwrap_or(576);
            answer[2] = answer[1];
        }
        (0xd, component) if component >= 2 && guest_xcr0() & (1u64 << component.min(63)) == 0 => {
            answer = [0; 4];
        }
        // AMX tiles.
        (0x1d | 0x1e, _) => answer = [0; 4],
        // Topology: one processor.
        (0xb | 0x1f, _) => answer[3] = 0,
        _ => {}
    }
    answer
}
