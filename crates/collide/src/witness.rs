//! From a catch to two accesses with names: which instruction the opponent
//! has just executed, both stacks, values, what the address is.

use crate::instruction::{Analyser, Direction, Operand, is_synchronising};
use crate::memory_map;
use crate::sampling_set;
use crate::scope::{copies_or_compares, synchronises};
use crate::wire::{Catch, Opponent, RegisterFile};
use iced_x86::Instruction;
use race::{Access, AccessKind, Frame, Object, Place};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use symbols::{ModuleMap, Registers, Roles, StackFrame, Usage};

/// Frames of a stack that go into a report.
const FRAMES: usize = 64;

/// One side of a catch, with what the labels need to know about it.
#[derive(Debug, Clone)]
pub struct Side {
    pub access: Access,
    pub usage: Usage,
    /// A recognised synchronisation access: locked, an atomic operation by
    /// debug info, inside a routine that synchronises.
    pub synchronises: bool,
    /// Nothing tells whether the access is an atomic operation: it has no debug
    /// info, and those of C11 and C++ are plain instructions.
    pub untold: bool,
    /// Go's run-time about its own business: collecting garbage, scheduling,
    /// moving stacks. What it does to the program's memory it orders by means
    /// of its own.
    pub housekeeping: bool,
}

/// Everything needed to put names to a catch in one address space.
pub struct Witness<'a> {
    pub map: &'a ModuleMap,
    pub pid: i32,
}

impl Witness<'_> {
    /// The thread that was held before its access.
    pub fn held(&self, catch: &Catch) -> Side {
        let rip = catch.registers.rip;
        let kind = if catch.write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let mut access = Access::new(kind, catch.size, self.map.site(rip));
        let frames = self.walk(&catch.registers, &catch.stack, rip, 0);
        self.say_who_chose(&mut access, catch, &frames);
        access.address = Some(catch.address);
        access.thread = Some(catch.tid as u32);
        access.thread_name = named(&catch.name);
        access.value_before = Some(value(&catch.before));
        access.stack = self.frames(&frames);
        access.registers = registers(&catch.registers);
        let synchronises = self.is_atomic(rip);
        access.atomic = synchronises;
        Side {
            usage: self.usage(rip),
            untold: self.is_untold(rip, catch, catch.size),
            access,
            synchronises,
            housekeeping: self.is_housekeeping(rip),
        }
    }

    /// The thread that ran into the data breakpoint. None if its instruction
    /// contradicts the hit: moved from address to address, a breakpoint may
    /// still trap once where it was before.
    pub fn opponent(&self, catch: &Catch, opponent: &Opponent) -> Option<Side> {
        let changed = catch.before != catch.after;
        let accessed = self.accessed(catch, opponent)?;
        let kind = match accessed.direction {
            _ if !catch.write => AccessKind::Write,
            Some(Direction::Write) => AccessKind::Write,
            Some(Direction::Read) => AccessKind::Read,
            None if changed => AccessKind::Write,
            None => AccessKind::Read,
        };
        let mut access = Access::new(kind, accessed.size, self.map.site(accessed.address));
        let frames = self.walk(
            &opponent.registers,
            &opponent.stack,
            accessed.address,
            accessed.skip,
        );
        self.say_who_chose(&mut access, catch, &frames);
        access.address = Some(catch.address);
        access.thread = Some(opponent.tid as u32);
        access.thread_name = named(&opponent.name);
        // A write that changed nothing since the first look may have come
        // before it, between arming and looking.
        if changed || kind == AccessKind::Read {
            access.value_before = Some(value(&catch.before));
        }
        if kind == AccessKind::Write {
            access.value_after = Some(value(&catch.after));
        }
        access.stack = self.frames(&frames);
        access.registers = registers(&opponent.registers);
        let synchronises = accessed.locked || self.is_atomic(accessed.address);
        access.atomic = synchronises;
        if opponent.in_kernel {
            access.stack.insert(
                0,
                Frame {
                    function: Some("[kernel, in a system call]".into()),
                    ..Frame::default()
                },
            );
        }
        Some(Side {
            usage: if opponent.in_kernel {
                Usage::Other
            } else {
                self.usage(accessed.address)
            },
            access,
            synchronises,
            untold: !opponent.in_kernel && self.is_untold(accessed.address, catch, accessed.size),
            housekeeping: self.is_housekeeping(accessed.address),
        })
    }

    /// What the address is.
    pub fn place(&self, address: u64) -> Place {
        let description = self
            .variable(address)
            .or_else(|| self.region(address))
            .unwrap_or_else(|| "memory not mapped any more".into());
        Place {
            address: Some(address),
            description,
            allocated_at: Vec::new(),
        }
    }

    /// The global or static variable at an address.
    pub fn variable(&self, address: u64) -> Option<String> {
        let (module, link) = self.map.find(address)?;
        Some(module.variable_at(link)?.path)
    }

    /// Debug info calls the variable atomic or volatile: whoever accesses it
    /// means to synchronise.
    pub fn meant_to_be_shared(&self, address: u64) -> bool {
        self.map
            .variable_at(address)
            .is_some_and(|variable| variable.atomic || variable.volatile)
    }

    fn region(&self, address: u64) -> Option<String> {
        let mappings = memory_map::read(self.pid).ok()?;
        let mapping = memory_map::find(&mappings, address)?;
        Some(match mapping.name.as_str() {
            "[heap]" => "heap".into(),
            "[stack]" => "stack of the main thread".into(),
            "" if mapping.shared => "shared memory".into(),
            "" => "anonymous memory (heap or the stack of a thread)".into(),
            name if mapping.shared => format!("shared memory {name}"),
            name => format!("data of {name}"),
        })
    }

    /// What was caught, as far as it tells races apart. Who allocated memory of
    /// the heap is not known here.
    pub fn object(&self, catch: &Catch) -> Option<Object> {
        let variable = self
            .map
            .variable_over(catch.address, u64::from(catch.size))?;
        Some(Object::variable(
            &variable.name,
            &variable.path,
            variable.start,
        ))
    }

    /// Who called is no part of what a pair of instructions is known by, unless
    /// one of them works on whatever it is given.
    pub fn asks_callers(&self, catch: &Catch, opponent: Option<&Opponent>) -> bool {
        let object = self.object_range(catch);
        let asks = |pc| {
            let mut read = self.reader(&catch.registers, &catch.stack);
            Roles::default().asks_callers(self.map, pc, object.as_ref(), &mut read)
        };
        let accessed = opponent.and_then(|opponent| self.accessed(catch, opponent));
        asks(catch.registers.rip) || accessed.is_some_and(|accessed| asks(accessed.address))
    }

    fn object_range(&self, catch: &Catch) -> Option<Range<u64>> {
        let variable = self.map.variable_at(catch.address)?;
        Some(variable.start..variable.start.saturating_add(variable.size))
    }

    /// The site of the access is where the program's own code made it.
    fn say_who_chose(&self, access: &mut Access, catch: &Catch, frames: &[StackFrame]) {
        let object = self.object_range(catch);
        let mut read = self.reader(&catch.registers, &catch.stack);
        let chosen = Roles::default().chosen(self.map, frames, object.as_ref(), &mut read);
        if let Some(site) = chosen.site {
            access.site = site;
        }
        access.caller = chosen.caller;
    }

    /// Memory of the process; of the stack the copy that was made at the catch.
    fn reader<'b>(
        &self,
        registers: &RegisterFile,
        copy: &'b [u8],
    ) -> impl FnMut(u64) -> Option<u64> + use<'b> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).ok();
        let bottom = registers.rsp();
        move |at: u64| -> Option<u64> {
            let offset = at.checked_sub(bottom).and_then(|o| usize::try_from(o).ok());
            let copied = offset.and_then(|offset| copy.get(offset..offset.checked_add(8)?));
            if let Some(bytes) = copied {
                return Some(u64::from_le_bytes(bytes.try_into().ok()?));
            }
            let mut bytes = [0; 8];
            memory.as_ref()?.read_exact_at(&mut bytes, at).ok()?;
            Some(u64::from_le_bytes(bytes))
        }
    }

    /// The frames of a thread that was caught at `address`, innermost first.
    fn walk(
        &self,
        registers: &RegisterFile,
        copy: &[u8],
        address: u64,
        skip: usize,
    ) -> Vec<StackFrame> {
        let start = Registers {
            general: registers.general,
            rip: registers.rip,
        };
        let mut read = self.reader(registers, copy);
        let walked = self.map.walk(&start, &mut read, FRAMES);
        let innermost = StackFrame {
            address,
            is_return_address: false,
            registers: start,
        };
        let callers = walked.into_iter().skip(1 + skip);
        std::iter::once(innermost).chain(callers).collect()
    }

    fn frames(&self, walked: &[StackFrame]) -> Vec<Frame> {
        walked
            .iter()
            .flat_map(|frame| self.map.frames(frame.address, frame.is_return_address))
            .collect()
    }

    fn is_housekeeping(&self, address: u64) -> bool {
        // These work on the program's memory as it told them to.
        const FOR_THE_PROGRAM: [&str; 6] =
            ["memmove", "memclr", "memequal", "map", "typed", "slicecopy"];
        let of_program = |name: &str| FOR_THE_PROGRAM.iter().any(|part| name.starts_with(part));
        self.map
            .function_at(address)
            .and_then(|symbol| symbol.name.strip_prefix("runtime.").map(str::to_string))
            .is_some_and(|name| !of_program(&name))
            && self
                .map
                .find(address)
                .is_some_and(|(module, _)| sampling_set::is_go(module))
    }

    fn is_atomic(&self, address: u64) -> bool {
        self.map.atomic_access(address).is_some()
            || self
                .map
                .function_at(address)
                .is_some_and(|symbol| synchronises(&symbol.name))
    }

    /// Atomic loads and stores are aligned moves of at most eight bytes. A
    /// change of what was there would be a locked instruction, and the string
    /// functions of a library are no atomic operations.
    fn is_untold(&self, instruction: u64, catch: &Catch, size: u32) -> bool {
        let without_debug_info = self.map.site(instruction).file.is_none();
        without_debug_info
            && size <= 8
            && catch.address.is_multiple_of(u64::from(size.max(1)))
            && self.usage(instruction) == Usage::Other
            && self
                .map
                .function_at(instruction)
                .is_none_or(|symbol| !copies_or_compares(&symbol.name))
    }

    fn usage(&self, address: u64) -> Usage {
        let Some((module, link)) = self.map.find(address) else {
            return Usage::Other;
        };
        symbols::usage(&sampling_set::function_around(module, link), link)
    }

    /// The instruction behind a hit. The trap comes after it, so it is the
    /// one that ends at the program counter; a `rep` that goes on; or an
    /// indirect call, whose return address lies on the stack. None if that
    /// instruction cannot have touched the bytes that were watched.
    fn accessed(&self, catch: &Catch, opponent: &Opponent) -> Option<Accessed> {
        let rip = opponent.registers.rip;
        let range = catch.address..catch.address + u64::from(catch.size);
        let mut analyser = Analyser::default();
        let overlapping = |operands: &[Operand]| {
            operands
                .iter()
                .find(|operand| {
                    operand.address < range.end && range.start < operand.address + operand.size
                })
                .copied()
        };
        if opponent.in_kernel {
            return Some(Accessed {
                // `syscall` is two bytes long.
                address: rip.wrapping_sub(2),
                size: catch.size,
                direction: None,
                locked: false,
                skip: 0,
            });
        }
        let mut candidates: Vec<(Instruction, u64, usize)> = Vec::new();
        if let Some((module, link)) = self.map.find(rip.wrapping_sub(1)) {
            let bias = rip.wrapping_sub(1).wrapping_sub(link);
            let before = sampling_set::instruction_before(module, link + 1);
            candidates.extend(before.map(|instruction| (instruction, bias, 0)));
        }
        if let Some((module, link)) = self.map.find(rip) {
            let at = sampling_set::instruction_at(module, link)
                .filter(|instruction| instruction.is_string_instruction());
            candidates.extend(at.map(|instruction| (instruction, rip.wrapping_sub(link), 0)));
        }
        if let Some(back) = opponent.stack.get(..8) {
            let back = u64::from_le_bytes(back.try_into().unwrap_or_default());
            if let Some((module, link)) = self.map.find(back.wrapping_sub(1)) {
                let bias = back.wrapping_sub(1).wrapping_sub(link);
                let call = sampling_set::instruction_before(module, link + 1)
                    .filter(Instruction::is_call_near_indirect);
                candidates.extend(call.map(|instruction| (instruction, bias, 1)));
            }
        }
        let describe =
            |instruction: &Instruction, bias: u64, skip: usize, operand: Option<Operand>| {
                let memory = operand.map_or(instruction.memory_size().size() as u64, |o| o.size);
                Accessed {
                    address: instruction.ip().wrapping_add(bias),
                    size: u32::try_from(memory).unwrap_or(0),
                    direction: operand.map(|operand| operand.direction),
                    locked: is_synchronising(instruction),
                    skip,
                }
            };
        // Best: an operand that is at the address, by the registers now. A
        // repeated string instruction has moved on, by at most one element.
        for (instruction, bias, skip) in &candidates {
            let moved = moved(instruction, *bias);
            let mut operands = analyser.all_operands(&moved, &opponent.registers);
            if moved.is_string_instruction() {
                for operand in &mut operands {
                    operand.address = operand.address.wrapping_sub(64);
                    operand.size += 128;
                }
            }
            if let Some(operand) = overlapping(&operands) {
                let mut found = describe(instruction, *bias, *skip, Some(operand));
                if moved.is_string_instruction() {
                    found.size = instruction.memory_size().size() as u32;
                }
                return Some(found);
            }
        }
        // Next: the instruction before, whose address register it has itself
        // overwritten (`mov rax, [rax]`).
        if let Some((instruction, bias, skip)) = candidates.first() {
            if analyser.cannot_touch(&moved(instruction, *bias), &opponent.registers, &range) {
                return None;
            }
            let operands = analyser.all_operands(instruction, &opponent.registers);
            return Some(describe(
                instruction,
                *bias,
                *skip,
                operands.first().copied(),
            ));
        }
        Some(Accessed {
            address: rip,
            size: 0,
            direction: None,
            locked: false,
            skip: 0,
        })
    }
}

/// An instruction of a module as it is where the module was loaded.
fn moved(instruction: &Instruction, bias: u64) -> Instruction {
    let mut moved = *instruction;
    moved.set_ip(instruction.ip().wrapping_add(bias));
    if moved.is_ip_rel_memory_operand() {
        moved.set_memory_displacement64(instruction.ip_rel_memory_address().wrapping_add(bias));
    }
    moved
}

struct Accessed {
    address: u64,
    size: u32,
    direction: Option<Direction>,
    locked: bool,
    /// Frames of the walked stack that belong to what was called since.
    skip: usize,
}

fn named(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_string())
}

/// A value as a person reads it: a number up to eight bytes, else its bytes.
pub fn value(bytes: &[u8]) -> String {
    match number(bytes) {
        Some(number) if number < 1 << 32 => number.to_string(),
        Some(number) => format!("{number:#x}"),
        None => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("bytes {digits}")
        }
    }
}

/// A little-endian number of 1, 2, 4 or 8 bytes.
pub fn number(bytes: &[u8]) -> Option<u64> {
    if !matches!(bytes.len(), 1 | 2 | 4 | 8) {
        return None;
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

fn registers(file: &RegisterFile) -> std::collections::BTreeMap<String, String> {
    let names = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
    names
        .iter()
        .zip(file.general)
        .map(|(name, value)| ((*name).to_string(), format!("{value:#x}")))
        .chain([
            ("rip".to_string(), format!("{:#x}", file.rip)),
            ("rflags".to_string(), format!("{:#x}", file.flags)),
        ])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_well() {
        assert_eq!(value(&[17, 0, 0, 0]), "17");
        assert_eq!(value(&0x7f00_1234_5678u64.to_le_bytes()), "0x7f0012345678");
        assert_eq!(value(&[1; 3]), "bytes 010101");
    }
}
