//! Far transfers of control, segment registers, and gates of the kernel's: what an
//! instruction with a selector does in a 64-bit program of Linux.
//!
//! Such a program has one code segment. A transfer to it works as on the machine.
//! One to the segment for 32-bit code, or a 32-bit system call, is answered as by a
//! kernel that has neither: a general protection fault, and the user is told. The
//! base of FS and GS after a selector was loaded is always zero (some older
//! processors keep it when the selector is null).

use crate::context::reg;
use crate::kernel::signal::{SI_KERNEL, Trap};
use crate::machine::{Vm, is_canonical};
use crate::schedule::SliceEnd;
use crate::{Error, memory};
use iced_x86::{Instruction, MemorySize, Mnemonic, OpKind, Register};

/// The segment of 64-bit code, of 32-bit code, and of data and stack.
const CODE: u16 = 0x33;
const CODE_32: u16 = 0x23;
const DATA: u16 = 0x2b;
/// The segment whose limit is the number of the processor.
const PROCESSOR: u16 = 0x7b;

/// The low bits say who asks.
const PRIVILEGE: u16 = 3;

/// Status flags and those a program may set, but for the trap flag and the
/// alignment check: they would step and check the vm.
const SETTABLE_FLAGS: u64 = 0x0001_0cd5;

/// What `int1` raises, and what its signal says.
const DEBUG: u8 = 1;
const TRAP_BREAKPOINT: i32 = 1;
/// The gates that programs may use.
const BREAKPOINT: u8 = 3;
const OVERFLOW: u8 = 4;
const SYSTEM_CALL: u8 = 0x80;

/// A fault of the instruction.
enum Fault {
    /// General protection, with its error code.
    Protection(u64),
    /// These bytes cannot be read or written.
    Memory(u64, usize, bool),
}

/// Little endian.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn read(address: u64, size: usize) -> Result<u64, Fault> {
    let bytes = memory::read_vec(address, size);
    bytes
        .map(|bytes| number(&bytes))
        .map_err(|_| Fault::Memory(address, size, false))
}

/// The segment may be used for data.
fn is_data(selector: u16) -> bool {
    [DATA, CODE, CODE_32, PROCESSOR].contains(&(selector | PRIVILEGE))
}

impl Vm {
    /// A far transfer at rip, which is counted.
    pub(crate) fn far_transfer(
        &mut self,
        instruction: &Instruction,
    ) -> Result<Option<SliceEnd>, Error> {
        let done = match instruction.mnemonic() {
            Mnemonic::Retf => self.far_return(instruction),
            Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
                self.interrupt_return(instruction)
            }
            _ => self.far_branch(instruction),
        };
        self.settle_far(instruction, done)
    }

    fn settle_far(
        &mut self,
        instruction: &Instruction,
        done: Result<(), Fault>,
    ) -> Result<Option<SliceEnd>, Error> {
        match done {
            Ok(()) => Ok(None),
            Err(Fault::Protection(error)) => self.protection_fault(instruction.ip(), error),
            Err(Fault::Memory(address, length, write)) => {
                self.memory_fault(instruction.ip(), address, length, write)
            }
        }
    }

    /// Control goes to `offset` in the segment.
    fn go_far(&mut self, selector: u16, offset: u64) -> Result<(), Fault> {
        if selector == CODE_32 {
            self.say_32_bit();
        }
        if selector != CODE {
            return Err(Fault::Protection(u64::from(selector & !PRIVILEGE)));
        }
        if !is_canonical(offset) {
            return Err(Fault::Protection(0));
        }
        self.regs().rip = offset;
        Ok(())
    }

    fn far_return(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        let moved = instruction.stack_pointer_increment() as u64;
        let given_up = match instruction.op_count() {
            0 => 0,
            _ => u64::from(instruction.immediate16()),
        };
        let size = (moved - given_up) / 2;
        let stack = self.regs().gpr[reg::RSP];
        let offset = read(stack, size as usize)?;
        let selector = read(stack.wrapping_add(size), 2)? as u16;
        self.go_far(selector, offset)?;
        self.regs().gpr[reg::RSP] = stack.wrapping_add(moved);
        Ok(())
    }

    fn interrupt_return(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        let size = match instruction.mnemonic() {
            Mnemonic::Iretq => 8,
            Mnemonic::Iretd => 4,
            _ => 2,
        };
        let stack = self.regs().gpr[reg::RSP];
        let mut words = [0; 5];
        for (index, word) in words.iter_mut().enumerate() {
            *word = read(stack.wrapping_add((index * size) as u64), size)?;
        }
        let [offset, selector, flags, new_stack, stack_segment] = words;
        let stack_segment = stack_segment as u16;
        if selector as u16 == CODE && stack_segment != DATA {
            let error = u64::from(stack_segment & !PRIVILEGE);
            return Err(Fault::Protection(error));
        }
        self.go_far(selector as u16, offset)?;
        let regs = self.regs();
        regs.gpr[reg::RSP] = new_stack;
        regs.rflags = regs.rflags & !SETTABLE_FLAGS | flags & SETTABLE_FLAGS;
        Ok(())
    }

    /// A jump or a call through a far pointer in memory.
    fn far_branch(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        let size = match instruction.memory_size() {
            // AMD's have no such pointer.
            MemorySize::SegPtr64 if !self.processor.is_amd() => 8,
            MemorySize::SegPtr64 => 4,
            MemorySize::SegPtr32 => 4,
            _ => 2,
        };
        let address = self.memory_operand(instruction);
        let offset = read(address, size)?;
        let selector = read(address.wrapping_add(size as u64), 2)? as u16;
        let before = *self.regs();
        self.go_far(selector, offset)?;
        if instruction.mnemonic() == Mnemonic::Call {
            let next = instruction.next_ip().to_le_bytes();
            let from = u64::from(CODE).to_le_bytes();
            let stack = before.gpr[reg::RSP].wrapping_sub(2 * size as u64);
            let frame = [&next[..size], &from[..size]].concat();
            if !self.store(stack, &frame) {
                *self.regs() = before;
                return Err(Fault::Memory(stack, 2 * size, true));
            }
            self.regs().gpr[reg::RSP] = stack;
        }
        Ok(())
    }

    /// FS or GS gets a selector: `mov`, `pop`, `lfs`, `lgs`.
    pub(crate) fn load_segment(
        &mut self,
        instruction: &Instruction,
    ) -> Result<Option<SliceEnd>, Error> {
        let done = self.take_selector(instruction);
        if done.is_ok() {
            self.regs().rip = instruction.next_ip();
        }
        self.settle_far(instruction, done)
    }

    fn take_selector(&mut self, instruction: &Instruction) -> Result<(), Fault> {
        let mut stack = self.regs().gpr[reg::RSP];
        let mut offset = None;
        let (segment, selector) = match instruction.mnemonic() {
            Mnemonic::Lfs | Mnemonic::Lgs => {
                let address = self.memory_operand(instruction);
                let size = instruction.op0_register().size();
                offset = Some(read(address, size)?);
                let segment = match instruction.mnemonic() {
                    Mnemonic::Lfs => Register::FS,
                    _ => Register::GS,
                };
                (segment, read(address.wrapping_add(size as u64), 2)?)
            }
            Mnemonic::Pop => {
                let selector = read(stack, 2)?;
                stack = stack.wrapping_add_signed(instruction.stack_pointer_increment().into());
                (instruction.op0_register(), selector)
            }
            _ if instruction.op1_kind() == OpKind::Register => (
                instruction.op0_register(),
                self.register(instruction.op1_register()),
            ),
            _ => (
                instruction.op0_register(),
                read(self.memory_operand(instruction), 2)?,
            ),
        };
        let selector = selector as u16;
        if selector & !PRIVILEGE != 0 && !is_data(selector) {
            return Err(Fault::Protection(u64::from(selector & !PRIVILEGE)));
        }
        if let Some(offset) = offset {
            self.set_register(instruction.op0_register(), offset);
        }
        let regs = self.regs();
        regs.gpr[reg::RSP] = stack;
        match segment {
            Register::FS => regs.fs_base = 0,
            _ => regs.gs_base = 0,
        }
        Ok(())
    }

    /// `int`: most gates the kernel keeps closed. `int1` goes through none.
    pub(crate) fn interrupt(
        &mut self,
        instruction: &Instruction,
    ) -> Result<Option<SliceEnd>, Error> {
        let debug = instruction.mnemonic() == Mnemonic::Int1;
        let gate = if debug {
            DEBUG
        } else {
            instruction.immediate8()
        };
        let (signal, code, trap) = match gate {
            DEBUG if debug => (libc::SIGTRAP, TRAP_BREAKPOINT, DEBUG),
            BREAKPOINT => (libc::SIGTRAP, SI_KERNEL, BREAKPOINT),
            OVERFLOW => (libc::SIGSEGV, SI_KERNEL, OVERFLOW),
            _ => {
                if gate == SYSTEM_CALL {
                    self.say_32_bit();
                }
                // Says which gate, and that it is one.
                return self.protection_fault(instruction.ip(), u64::from(gate) * 8 + 2);
            }
        };
        // It is over when it traps.
        self.regs().rip = instruction.next_ip();
        if signal != libc::SIGTRAP {
            self.uncount();
        }
        let trap = Trap {
            number: u64::from(trap),
            ..Trap::default()
        };
        let address = self.regs().rip;
        self.guest_fault(signal, code, address, trap)
    }

    /// Instructions of the kernel's own, and ways into it that are no system call
    /// of a 64-bit program's.
    pub(crate) fn kernel_instruction(
        &mut self,
        instruction: &Instruction,
    ) -> Result<Option<SliceEnd>, Error> {
        let by_amd = self.processor.is_amd();
        match instruction.mnemonic() {
            Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
                self.protection_fault(instruction.ip(), 0)
            }
            Mnemonic::Sysenter if !by_amd => {
                self.say_32_bit();
                self.protection_fault(instruction.ip(), 0)
            }
            _ => self.no_such_instruction(instruction.ip()),
        }
    }

    /// Says once that there are no 32-bit programs here.
    fn say_32_bit(&mut self) {
        self.say_once(
            "32-bit code and 32-bit system calls (int 0x80) are not supported; the program \
             gets a general protection fault (SIGSEGV)"
                .into(),
        );
    }
}
