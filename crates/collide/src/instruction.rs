//! What one instruction does to memory: used when the sampling set is built
//! (statically) and when a breakpoint fires (with the thread's registers).

use crate::wire::RegisterFile;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, Register,
};

/// Longest x86-64 instruction.
pub const LONGEST: usize = 15;
/// Of a longer access (a `rep` string operation) the first bytes stand for
/// all: as much as four debug registers can watch.
pub const WATCHED_BYTES: u64 = 32;

/// How an access goes with others: only reads do not conflict with reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    /// Writes, and reads and writes in one (`add [x], 1`).
    Write,
}

/// One memory operand with its address worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    pub address: u64,
    pub size: u64,
    pub direction: Direction,
}

/// Why an instruction is not in the sampling set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSampled {
    NoMemory,
    /// Only through the stack pointer or frame pointer, or thread-local.
    OwnStack,
    /// `lock` prefix or `xchg` with memory.
    Synchronising,
    /// Gathers, conditional and whole-state accesses, whose bytes cannot be
    /// told before they run.
    Unsupported,
    /// A read of memory that the module never writes.
    Constant,
}

pub fn decode(bytes: &[u8], address: u64) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Locked, or an exchange with memory, which locks by itself.
pub fn is_synchronising(instruction: &Instruction) -> bool {
    use iced_x86::OpKind;
    instruction.has_lock_prefix()
        || (instruction.mnemonic() == Mnemonic::Xchg
            && (instruction.op0_kind() == OpKind::Memory
                || instruction.op1_kind() == OpKind::Memory))
}

/// Has an operand in memory; pushing and popping a register does not count.
fn names_memory(instruction: &Instruction) -> bool {
    use iced_x86::OpKind;
    // The kinds of operands in memory come last.
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) >= OpKind::MemorySegSI)
}

fn unsupported(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    instruction.is_vsib()
        || instruction.op_mask() != Register::None
        || matches!(
            instruction.mnemonic(),
            Maskmovq
                | Maskmovdqu
                | Vmaskmovdqu
                | Vmaskmovps
                | Vmaskmovpd
                | Vpmaskmovd
                | Vpmaskmovq
                | Xsave
                | Xsave64
                | Xsavec
                | Xsavec64
                | Xsaveopt
                | Xsaveopt64
                | Xrstor
                | Xrstor64
                | Fxsave
                | Fxsave64
                | Fxrstor
                | Fxrstor64
                | Monitor
                | Monitorx
                | Clzero
                | Cldemote
                | Clflush
                | Clflushopt
                | Clwb
                | Rdsspq
                | Wrssq
                | Int3
                | Syscall
        )
}

fn segment_is_thread_local(segment: Register) -> bool {
    matches!(segment, Register::FS | Register::GS)
}

/// Whether a memory operand with this base goes through the thread's own
/// stack. `frame` says that rbp is the frame pointer here.
fn through_stack(base: Register, frame: bool) -> bool {
    base == Register::RSP || base == Register::ESP || (frame && base == Register::RBP)
}

fn direction(access: OpAccess) -> Option<Direction> {
    match access {
        OpAccess::Read => Some(Direction::Read),
        OpAccess::Write | OpAccess::ReadWrite => Some(Direction::Write),
        // Conditional accesses may not happen at all: no proof.
        _ => None,
    }
}

fn is_repeated(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// `rep` makes every access conditional on the count only.
fn settled(access: OpAccess, repeats: bool) -> OpAccess {
    match access {
        OpAccess::CondRead if repeats => OpAccess::Read,
        OpAccess::CondWrite if repeats => OpAccess::Write,
        other => other,
    }
}

/// Analyses instructions; holds the decoder's scratch memory.
pub struct Analyser {
    factory: InstructionInfoFactory,
}

impl Default for Analyser {
    fn default() -> Self {
        Analyser {
            factory: InstructionInfoFactory::new(),
        }
    }
}

impl Analyser {
    /// Whether the instruction belongs in the sampling set (paper 002,
    /// section 3.1.1). `constant` tells whether a static address is memory
    /// that is never written.
    pub fn sampled(
        &mut self,
        instruction: &Instruction,
        frame: bool,
        constant: impl Fn(u64) -> bool,
    ) -> Result<(), NotSampled> {
        if !names_memory(instruction) {
            return Err(match instruction.is_stack_instruction() {
                true => NotSampled::OwnStack,
                false => NotSampled::NoMemory,
            });
        }
        if is_synchronising(instruction) {
            return Err(NotSampled::Synchronising);
        }
        if unsupported(instruction) {
            return Err(NotSampled::Unsupported);
        }
        let info = self
            .factory
            .info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut verdict = NotSampled::NoMemory;
        let repeats = is_repeated(instruction);
        for memory in info.used_memory() {
            let Some(direction) = direction(settled(memory.access(), repeats)) else {
                continue;
            };
            if through_stack(memory.base(), frame) || segment_is_thread_local(memory.segment()) {
                verdict = NotSampled::OwnStack;
                continue;
            }
            let fixed = memory.base() == Register::None && memory.index() == Register::None
                || instruction.is_ip_rel_memory_operand();
            if fixed && direction == Direction::Read && constant(memory.displacement()) {
                verdict = NotSampled::Constant;
                continue;
            }
            return Ok(());
        }
        Err(verdict)
    }

    /// Whether what `later` touches can be told before the instructions between
    /// are executed: none of them changes its address, moves the stack pointer
    /// or synchronises. And whether it is worth it: not if the first of them
    /// touches the same.
    pub fn foretells(&mut self, between: &[Instruction], later: &Instruction) -> bool {
        let touches_the_same = between.first().is_some_and(|first| {
            first.memory_base() == later.memory_base()
                && first.memory_index() == later.memory_index()
                && first.memory_index_scale() == later.memory_index_scale()
                && first.memory_displacement64() == later.memory_displacement64()
        });
        if touches_the_same || later.is_string_instruction() {
            return false;
        }
        let needed = [
            later.memory_base().full_register(),
            later.memory_index().full_register(),
            Register::RSP,
        ];
        between.iter().all(|instruction| {
            let orders = matches!(
                instruction.mnemonic(),
                Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Sfence
            );
            !orders
                && !is_synchronising(instruction)
                && self
                    .factory
                    .info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE)
                    .used_registers()
                    .iter()
                    .all(|used| {
                        matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                            || !needed.contains(&used.register().full_register())
                    })
        })
    }

    /// The memory the instruction is about to touch, the thread's own stack
    /// left out.
    pub fn operands(
        &mut self,
        instruction: &Instruction,
        registers: &RegisterFile,
        frame: bool,
    ) -> Vec<Operand> {
        self.find_operands(instruction, registers, |base| through_stack(base, frame))
    }

    /// All memory the instruction touches with these registers.
    pub fn all_operands(
        &mut self,
        instruction: &Instruction,
        registers: &RegisterFile,
    ) -> Vec<Operand> {
        self.find_operands(instruction, registers, |_| false)
    }

    /// Whether the instruction, just executed with these registers as the
    /// outcome, cannot have touched any byte of `range`.
    pub fn cannot_touch(
        &mut self,
        instruction: &Instruction,
        registers: &RegisterFile,
        range: &std::ops::Range<u64>,
    ) -> bool {
        // The bit that these address may lie far from their operand.
        let by_bit = matches!(
            instruction.mnemonic(),
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
        );
        if unsupported(instruction) || by_bit || instruction.is_string_instruction() {
            return false;
        }
        let info = self.factory.info(instruction);
        let written = |register: Register| {
            info.used_registers().iter().any(|used| {
                used.register().full_register() == register.full_register()
                    && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
            })
        };
        info.used_memory().iter().all(|memory| {
            let (base, index) = (memory.base(), memory.index());
            let size = memory.memory_size().size() as u64;
            if size == 0
                || segment_is_thread_local(memory.segment())
                || (base != Register::None && written(base))
                || (index != Register::None && written(index))
            {
                return false;
            }
            memory
                .virtual_address(0, |register, _, _| registers.value(register))
                .is_some_and(|address| {
                    address >= range.end || address.saturating_add(size) <= range.start
                })
        })
    }

    fn find_operands(
        &mut self,
        instruction: &Instruction,
        registers: &RegisterFile,
        skip: impl Fn(Register) -> bool,
    ) -> Vec<Operand> {
        if unsupported(instruction) {
            return Vec::new();
        }
        let repeats = is_repeated(instruction);
        let count = if repeats { registers.rcx() } else { 1 };
        let down = registers.flags & (1 << 10) != 0;
        let info = self
            .factory
            .info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        let mut operands = Vec::new();
        for memory in info.used_memory() {
            let access = settled(memory.access(), repeats && count > 0);
            let Some(direction) = direction(access) else {
                continue;
            };
            if skip(memory.base()) || segment_is_thread_local(memory.segment()) {
                continue;
            }
            // The size of a repeated access is not said with its address.
            let element = match memory.memory_size().size() {
                0 if repeats => instruction.memory_size().size() as u64,
                size => size as u64,
            };
            let Some(address) =
                memory.virtual_address(0, |register, _, _| registers.value(register))
            else {
                continue;
            };
            if element == 0 || count == 0 {
                continue;
            }
            let size = if down {
                element
            } else {
                element
                    .saturating_mul(count)
                    .min(WATCHED_BYTES.max(element))
            };
            if size <= 64 && address.checked_add(size).is_some() {
                operands.push(Operand {
                    address,
                    size,
                    direction,
                });
            }
        }
        operands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bytes: &[u8]) -> Result<(), NotSampled> {
        let instruction = decode(bytes, 0x1000).unwrap();
        Analyser::default().sampled(&instruction, true, |_| false)
    }

    /// Whether the last of some instructions can be told at the first.
    fn foretold(code: &[&[u8]]) -> bool {
        let code: Vec<Instruction> = code
            .iter()
            .map(|bytes| decode(bytes, 0x1000).unwrap())
            .collect();
        let (last, between) = code.split_last().unwrap();
        Analyser::default().foretells(between, last)
    }

    #[test]
    fn what_can_be_told_before() {
        let store: &[u8] = &[0x48, 0x89, 0x18]; // mov [rax], rbx
        let load: &[u8] = &[0x48, 0x8b, 0x4f, 0x08]; // mov rcx, [rdi+8]
        let add: &[u8] = &[0x48, 0x01, 0xca]; // add rdx, rcx
        let global: &[u8] = &[0x8b, 0x05, 0x10, 0, 0, 0]; // mov eax, [rip+16]
        assert!(foretold(&[store, load]));
        assert!(foretold(&[store, add, load]));
        assert!(foretold(&[store, add, global]));
    }

    #[test]
    fn what_cannot_be_told_before() {
        let store: &[u8] = &[0x48, 0x89, 0x18]; // mov [rax], rbx
        let chase: &[u8] = &[0x48, 0x8b, 0x3f]; // mov rdi, [rdi]
        let load: &[u8] = &[0x48, 0x8b, 0x4f, 0x08]; // mov rcx, [rdi+8]
        assert!(!foretold(&[chase, load]), "its address is loaded first");
        // mov edi, eax writes all of rdi.
        assert!(!foretold(&[store, &[0x89, 0xc7], load]));
        assert!(!foretold(&[store, &[0x0f, 0xae, 0xf0], load]), "mfence");
        assert!(!foretold(&[store, &[0xf0, 0x48, 0xff, 0x00], load]), "lock");
        assert!(!foretold(&[store, &[0x48, 0x87, 0x1e], load]), "xchg");
        assert!(!foretold(&[store, &[0x50], load]), "push moves the stack");
        assert!(!foretold(&[store, &[0xa4]]), "movsb");
        let read: &[u8] = &[0x48, 0x8b, 0x18]; // mov rbx, [rax]
        assert!(!foretold(&[read, store]), "the same place");
    }

    #[test]
    fn what_is_sampled() {
        // mov [rax], rbx; mov rbx, [rax]; add dword [rax], 1
        assert_eq!(verdict(&[0x48, 0x89, 0x18]), Ok(()));
        assert_eq!(verdict(&[0x48, 0x8b, 0x18]), Ok(()));
        assert_eq!(verdict(&[0x83, 0x00, 0x01]), Ok(()));
        // push [rax] reads memory besides its own stack
        assert_eq!(verdict(&[0xff, 0x30]), Ok(()));
    }

    #[test]
    fn what_is_not() {
        // lea rax, [rbx]; push rax; mov rax, [rsp+8]; mov rax, [rbp-8]
        assert_eq!(verdict(&[0x48, 0x8d, 0x03]), Err(NotSampled::NoMemory));
        assert_eq!(verdict(&[0x50]), Err(NotSampled::OwnStack));
        assert_eq!(
            verdict(&[0x48, 0x8b, 0x44, 0x24, 0x08]),
            Err(NotSampled::OwnStack)
        );
        assert_eq!(
            verdict(&[0x48, 0x8b, 0x45, 0xf8]),
            Err(NotSampled::OwnStack)
        );
        // mov rax, fs:[0x28]
        assert_eq!(
            verdict(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0]),
            Err(NotSampled::OwnStack)
        );
        // lock add dword [rax], 1; xchg [rax], ebx
        assert_eq!(
            verdict(&[0xf0, 0x83, 0x00, 0x01]),
            Err(NotSampled::Synchronising)
        );
        assert_eq!(verdict(&[0x87, 0x18]), Err(NotSampled::Synchronising));
        // nop [rax]
        assert_eq!(verdict(&[0x0f, 0x1f, 0x00]), Err(NotSampled::NoMemory));
    }

    #[test]
    fn addresses_come_from_registers() {
        let mut registers = RegisterFile::default();
        registers.general[0] = 0x5000; // rax
        registers.general[1] = 3; // rcx
        registers.rip = 0x1000;
        // mov [rax+rcx*8+0x10], rbx
        let instruction = decode(&[0x48, 0x89, 0x5c, 0xc8, 0x10], 0x1000).unwrap();
        let operands = Analyser::default().operands(&instruction, &registers, false);
        assert_eq!(
            operands,
            [Operand {
                address: 0x5028,
                size: 8,
                direction: Direction::Write
            }]
        );
        // mov eax, [rip+0x20]
        let instruction = decode(&[0x8b, 0x05, 0x20, 0, 0, 0], 0x1000).unwrap();
        let operands = Analyser::default().operands(&instruction, &registers, false);
        assert_eq!(operands[0].address, 0x1026);
        assert_eq!(operands[0].direction, Direction::Read);
    }

    #[test]
    fn an_instruction_may_rule_a_hit_out() {
        let mut registers = RegisterFile::default();
        registers.general[0] = 0x5000; // rax
        let rules_out = |bytes: &[u8], start: u64| {
            let instruction = decode(bytes, 0x1000).unwrap();
            Analyser::default().cannot_touch(&instruction, &registers, &(start..start + 8))
        };
        let store = [0x48, 0x89, 0x18]; // mov [rax], rbx
        assert!(!rules_out(&store, 0x5000));
        assert!(!rules_out(&store, 0x4ff9));
        assert!(rules_out(&store, 0x5008));
        assert!(rules_out(&store, 0x4ff8));
        // mov rax, [rax]: where it read is not known any more.
        assert!(!rules_out(&[0x48, 0x8b, 0x00], 0x9000));
        // add dword [rip+0x10], 1 is at 0x1017.
        let relative = [0x83, 0x05, 0x10, 0, 0, 0, 1];
        assert!(!rules_out(&relative, 0x1017));
        assert!(rules_out(&relative, 0x1020));
        // bts [rax], rbx reaches anywhere.
        assert!(!rules_out(&[0x48, 0x0f, 0xab, 0x18], 0x9000));
        // cmove rbx, [rax] reads whether it moves or not.
        assert!(!rules_out(&[0x48, 0x0f, 0x44, 0x18], 0x5000));
        // lea rax, [rbx] touches nothing.
        assert!(rules_out(&[0x48, 0x8d, 0x03], 0x5000));
    }

    #[test]
    fn a_repeated_store_covers_its_first_bytes() {
        let mut registers = RegisterFile::default();
        registers.general[7] = 0x7000; // rdi
        registers.general[1] = 100; // rcx
        let instruction = decode(&[0xf3, 0xaa], 0x1000).unwrap(); // rep stosb
        let operands = Analyser::default().operands(&instruction, &registers, false);
        assert_eq!(operands[0].address, 0x7000);
        assert_eq!(operands[0].size, WATCHED_BYTES);
        registers.general[1] = 0;
        let none = Analyser::default().operands(&instruction, &registers, false);
        assert!(none.is_empty(), "a count of zero touches nothing");
    }
}
