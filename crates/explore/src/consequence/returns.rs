//! Return addresses on the stacks, and writes that destroy them.
//!
//! Where return addresses lie is known of two kinds of frames: those alive at
//! the race point, by unwinding every thread there, and those of functions
//! entered later that hold memory others may write to: the function takes the
//! address of a local, or indexes one, which its code tells. All other frames
//! can only be reached by running over one of these. Calls themselves write
//! return addresses without being looked at; every other write to one is an
//! error. Whether the frame is still there when it is written to is made sure
//! of in the run that reads the stacks (`scenes`): an exception or a jump may
//! have left it.
//!
//! What is let pass: writes of the unwinder, which sends an exception to its
//! handler that way. Not seen: frames of functions without symbols, of Go
//! (whose stacks move), and those entered after a function was entered very
//! often.

use super::code::{Origin, origin_of};
use super::shadow::Marks;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;
use symbols::{LoadedModule, ModuleMap, StackFrame};
use vm::Vm;
use vm::context::Registers;

/// Frames of a stack that are looked at.
const DEPTH: usize = 64;

/// Entries of one function that are followed.
const OFTEN: u32 = 20_000;

/// Functions that are followed, and bytes of code that are searched for them.
const FUNCTIONS: usize = 4_096;
const SEARCHED: u64 = 8 << 20;

const WORD: u64 = 8;

/// A return address on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Where it lies.
    pub at: u64,
    /// Where the function returns to.
    pub address: u64,
}

#[derive(Default)]
pub struct Returns {
    /// By thread, the outermost frame first.
    slots: BTreeMap<u32, Vec<Slot>>,
    /// Functions to follow, and how often each was entered.
    functions: FxHashMap<u64, u32>,
    searched: u64,
    /// Where frames that were alive at the race point return to.
    behind_calls: FxHashSet<u64>,
    marks: Option<Marks>,
}

impl Returns {
    /// Finds the functions of a module whose frames hold memory that may be
    /// written through pointers.
    pub fn search(&mut self, loaded: &LoadedModule<'_>) {
        let module = loaded.module;
        if origin_of(module.name()) != Origin::Program || !module.has_debug_info() || is_go(loaded)
        {
            return;
        }
        for function in module.functions() {
            if self.searched > SEARCHED || self.functions.len() >= FUNCTIONS {
                return;
            }
            self.searched += function.size;
            let holds_memory = module
                .bytes_at(function.start, function.size as usize)
                .is_some_and(|code| {
                    Decoder::with_ip(64, code, function.start, DecoderOptions::NONE)
                        .iter()
                        .any(|instruction| reaches_stack(&instruction))
                });
            if holds_memory && !function.indirect {
                let entry = function.start.wrapping_add(loaded.bias);
                self.functions.insert(entry, 0);
            }
        }
    }

    /// At the race point: the return addresses of all threads' frames.
    pub fn begin(&mut self, vm: &Vm, modules: &ModuleMap, marks: Marks) {
        if modules.modules().iter().any(is_go) {
            return;
        }
        self.marks = Some(marks);
        let threads: Vec<u32> = vm.threads.keys().copied().collect();
        for thread in threads {
            let Some(registers) = vm.registers(thread) else {
                continue;
            };
            for slot in slots_of(modules, &registers).into_iter().rev() {
                self.behind_calls.insert(slot.address);
                self.push(thread, slot);
            }
        }
    }

    /// Where to be told of a thread coming by.
    pub fn hooks(&self, range: &Range<u64>) -> Vec<u64> {
        if self.marks.is_none() {
            return Vec::new();
        }
        self.functions
            .keys()
            .chain(&self.behind_calls)
            .copied()
            .filter(|pc| range.contains(pc))
            .collect()
    }

    /// A thread has come to a hooked address. True if it has entered a function
    /// whose return is to be told.
    pub fn passed(&mut self, thread: u32, pc: u64, stack: u64) -> bool {
        if self.marks.is_none() {
            return false;
        }
        self.left(thread, stack);
        let Some(times) = self.functions.get_mut(&pc) else {
            return false;
        };
        *times += 1;
        if *times > OFTEN {
            return false;
        }
        let Ok(address) = vm::memory::get::<u64>(stack) else {
            return false;
        };
        self.push(thread, Slot { at: stack, address });
        true
    }

    /// Frames of a thread below this are no more.
    pub fn left(&mut self, thread: u32, stack: u64) {
        let (Some(slots), Some(marks)) = (self.slots.get_mut(&thread), &mut self.marks) else {
            return;
        };
        while let Some(slot) = slots.pop_if(|slot| slot.at < stack) {
            marks.clear(slot.at..slot.at + WORD);
        }
    }

    pub fn exited(&mut self, thread: u32) {
        self.left(thread, u64::MAX);
    }

    /// Memory was unmapped.
    pub fn unmapped(&mut self, range: &Range<u64>) {
        for slots in self.slots.values_mut() {
            slots.retain(|slot| !range.contains(&slot.at));
        }
    }

    /// The return address that a write would destroy, and whose it is.
    pub fn touched(&self, address: u64, size: u64) -> Option<(u32, Slot)> {
        self.slots.iter().find_map(|(thread, slots)| {
            // From high to low addresses.
            let behind = slots.partition_point(|slot| slot.at >= address.saturating_add(size));
            let slot = slots.get(behind)?;
            (slot.at + WORD > address).then_some((*thread, *slot))
        })
    }

    fn push(&mut self, thread: u32, slot: Slot) {
        let slots = self.slots.entry(thread).or_default();
        while slots.last().is_some_and(|last| last.at <= slot.at) {
            slots.pop();
        }
        slots.push(slot);
        if let Some(marks) = &mut self.marks {
            marks.set(slot.at..slot.at + WORD);
        }
    }
}

/// Go's stacks are copied elsewhere when they grow.
fn is_go(loaded: &LoadedModule<'_>) -> bool {
    loaded
        .module
        .sections()
        .iter()
        .any(|section| section.name == ".gopclntab")
}

/// The address of stack memory is taken, or stack memory is indexed.
fn reaches_stack(instruction: &Instruction) -> bool {
    let on_stack = match instruction.memory_base() {
        Register::RSP => true,
        // Of a frame pointer only what lies below it is the function's own.
        Register::RBP => (instruction.memory_displacement64() as i64) < 0,
        _ => false,
    };
    let takes_address = instruction.mnemonic() == Mnemonic::Lea
        && !matches!(instruction.op0_register(), Register::RSP | Register::RBP);
    on_stack && (takes_address || instruction.memory_index() != Register::None)
}

/// Where the return addresses of a thread's frames lie, innermost first.
pub fn slots_of(modules: &ModuleMap, registers: &Registers) -> Vec<Slot> {
    let machine = symbols::Registers {
        general: registers.gpr,
        rip: registers.rip,
    };
    let mut read = |address: u64| vm::memory::get::<u64>(address).ok();
    let slot = |frame: StackFrame| {
        let at = frame.registers.rsp().checked_sub(WORD)?;
        let there = vm::memory::get::<u64>(at).ok()?;
        (frame.is_return_address && there == frame.address).then_some(Slot {
            at,
            address: frame.address,
        })
    };
    modules
        .walk(&machine, &mut read, DEPTH)
        .into_iter()
        .skip(1)
        .filter_map(slot)
        .collect()
}

/// Whether a write by a thread with these registers destroys the return address
/// of a frame that is there. A write far from the thread's own frames is to
/// another's stack, of which this says nothing.
pub fn is_destroyed(modules: &ModuleMap, registers: &Registers, address: u64, size: u64) -> bool {
    let slots = slots_of(modules, registers);
    let stack = registers.gpr[vm::context::reg::RSP];
    let own = slots
        .last()
        .is_some_and(|last| (stack..last.at + WORD).contains(&address));
    !own || slots
        .iter()
        .any(|slot| slot.at < address + size && slot.at + WORD > address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(at: u64) -> Slot {
        Slot { at, address: 1 }
    }

    #[test]
    fn the_innermost_frames_go_first() {
        let mut returns = Returns::default();
        for at in [0x9000, 0x8000, 0x7000] {
            returns.push(1, slot(at));
        }
        returns.push(2, slot(0x5000));
        assert_eq!(returns.touched(0x7ff8, 8), None);
        assert_eq!(returns.touched(0x7ff8, 9), Some((1, slot(0x8000))));
        assert_eq!(returns.touched(0x8007, 1), Some((1, slot(0x8000))));
        assert_eq!(returns.touched(0x4ff0, 32), Some((2, slot(0x5000))));
        // A frame where there was a deeper one.
        returns.push(1, slot(0x7800));
        assert_eq!(returns.touched(0x7000, 8), None);
        assert_eq!(returns.touched(0x7800, 8), Some((1, slot(0x7800))));
        returns.unmapped(&(0x5000..0x6000));
        assert_eq!(returns.touched(0x5000, 8), None);
    }

    #[test]
    fn code_that_hands_out_stack_memory_is_told_from_code_that_does_not() {
        let decode = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        // lea rdi, [rsp+16]; lea rax, [rbp-32]; mov [rsp+rax*4], ecx
        assert!(reaches_stack(&decode(&[0x48, 0x8d, 0x7c, 0x24, 0x10])));
        assert!(reaches_stack(&decode(&[0x48, 0x8d, 0x45, 0xe0])));
        assert!(reaches_stack(&decode(&[0x89, 0x0c, 0x84])));
        // mov [rbp-8], rax; lea rsp, [rbp-32]; lea rax, [rbp+16]
        assert!(!reaches_stack(&decode(&[0x48, 0x89, 0x45, 0xf8])));
        assert!(!reaches_stack(&decode(&[0x48, 0x8d, 0x65, 0xe0])));
        assert!(!reaches_stack(&decode(&[0x48, 0x8d, 0x45, 0x10])));
    }
}
