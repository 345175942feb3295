//! What becomes of a difference afterwards, beside the paper's strict answer.
//!
//! Paper 000 stops at the live-outs and finds that most state changes it
//! reports wrongly are approximate computation (section 5.2.4). Here both
//! orders run on for a while, and each differing place is followed: is it
//! overwritten before anything reads it, does it only say where the allocator
//! put an object that is the same in both orders, is it a counter that is only
//! ever incremented and decides no branch?
//!
//! Guarantee: the strict answer is never changed by this. "Overwritten" is
//! said of bytes whose next access was seen to be a write in both orders;
//! stacks are left out, because pushes and pops are not observed.

use crate::compare::{Difference, Location};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use race::{Instance, Moment};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use vm::context::reg;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::{Error, Vm};

/// Instructions of a thread in which a register must be overwritten.
const REGISTER_STEPS: usize = 64;

/// Bytes of an object that are compared when its size is not known.
const OBJECT: usize = 64;

/// Instructions looked at behind a load.
const WINDOW: usize = 12;

/// Static accesses to the racy place that are looked at.
const MOST_SITES: usize = 64;

/// What became of one differing place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// Not followed, or not far enough to say.
    #[default]
    Unknown,
    /// Something reads it.
    Read,
    /// Overwritten before any read in both orders.
    Overwritten,
    /// A pointer to an object that is the same in both orders.
    SameObject,
    /// A counter that is only incremented and decides no branch.
    Counter,
}

impl Fate {
    /// Nothing that the program does afterwards was seen to depend on it.
    pub fn is_of_no_effect(self) -> bool {
        matches!(self, Fate::Overwritten | Fate::SameObject | Fate::Counter)
    }
}

/// What one order saw of the differing places.
#[derive(Serialize, Deserialize)]
pub struct Seen {
    /// For each difference: read, overwritten or neither.
    touched: Vec<Option<bool>>,
    /// The object that a differing word points to.
    objects: Vec<Option<Vec<u8>>>,
    /// The racy place is a counter, as far as was seen.
    counter: bool,
}

/// Watches the differing places in a copy, from the race point on.
pub struct Watch {
    touches: Rc<RefCell<Touches>>,
}

impl Watch {
    pub fn begin(vm: &mut Vm, instance: Instance, differences: &[Difference]) -> Watch {
        let mut bytes = BTreeMap::new();
        for difference in differences {
            if let Location::Memory(start) = difference.location {
                for offset in 0..difference.recorded.len() {
                    // Only what differs: its neighbours may well be read.
                    if difference.recorded[offset] != difference.swapped[offset] {
                        bytes.insert(start + offset as u64, None);
                    }
                }
            }
        }
        let touches = Rc::new(RefCell::new(Touches {
            bytes,
            afterwards: false,
            sites: BTreeSet::new(),
            racy: instance.address..instance.address + u64::from(instance.size.max(1)),
        }));
        vm.observe(Box::new(Toucher(touches.clone())));
        Watch { touches }
    }

    /// Runs on from where the live-outs were compared.
    pub fn look_on(
        self,
        vm: &mut Vm,
        instance: Instance,
        differences: &[Difference],
        swapped: bool,
    ) -> Result<Seen, Error> {
        self.touches.borrow_mut().afterwards = true;
        look_on(vm, instance, differences, swapped, &self.touches)
    }
}

fn look_on(
    vm: &mut Vm,
    instance: Instance,
    differences: &[Difference],
    swapped: bool,
    touches: &Rc<RefCell<Touches>>,
) -> Result<Seen, Error> {
    let objects = differences
        .iter()
        .map(|difference| object(vm, word_of(difference, swapped)?))
        .collect();
    let stacks: Vec<std::ops::Range<u64>> = vm
        .threads
        .keys()
        .filter_map(|thread| vm.registers(*thread))
        .filter_map(|regs| vm.space.find(regs.gpr[reg::RSP]))
        .map(|(range, _)| range)
        .collect();
    let mut registers: HashMap<(u32, String), Option<bool>> = HashMap::new();
    for thread in [instance.first.thread, instance.second.thread] {
        let names: Vec<String> = differences
            .iter()
            .filter_map(|difference| match &difference.location {
                Location::Register { thread: of, name } if *of == thread => Some(name.clone()),
                _ => None,
            })
            .collect();
        if !names.is_empty() {
            for (name, fate) in follow_registers(vm, thread, names)? {
                registers.insert((thread, name), fate);
            }
        }
    }
    vm.run(None)?;
    vm.take_observers();
    let touches = touches.borrow();
    let touched = differences
        .iter()
        .map(|difference| match &difference.location {
            Location::Memory(start) if stacks.iter().any(|stack| stack.contains(start)) => None,
            Location::Memory(start) => {
                let length = difference.recorded.len() as u64;
                let mut first = touches
                    .bytes
                    .range(*start..*start + length)
                    .map(|(_, one)| *one);
                if first.clone().any(|one| one == Some(true)) {
                    Some(true)
                } else if first.all(|one| one == Some(false)) {
                    Some(false)
                } else {
                    None
                }
            }
            Location::Register { thread, name } => {
                registers.get(&(*thread, name.clone())).copied().flatten()
            }
            Location::Thread(_) | Location::Kernel(_) => Some(true),
        })
        .collect();
    Ok(Seen {
        touched,
        objects,
        counter: is_counter(vm, &touches.sites),
    })
}

/// Puts what both orders saw together.
pub fn judge(differences: &mut [Difference], instance: Instance, seen: [&Seen; 2]) {
    let racy = instance.address..instance.address + u64::from(instance.size.max(1));
    let counter = seen.iter().all(|seen| seen.counter);
    for (index, difference) in differences.iter_mut().enumerate() {
        let touched = seen.map(|seen| seen.touched.get(index).copied().flatten());
        let objects = seen.map(|seen| seen.objects.get(index).cloned().flatten());
        let is_racy = match difference.location {
            Location::Memory(start) => {
                start < racy.end && racy.start < start + difference.recorded.len() as u64
            }
            _ => false,
        };
        difference.fate = if counter && is_racy {
            Fate::Counter
        } else if objects[0].is_some() && objects[0] == objects[1] {
            Fate::SameObject
        } else if touched == [Some(false), Some(false)] {
            Fate::Overwritten
        } else if touched.contains(&Some(true)) {
            Fate::Read
        } else {
            Fate::Unknown
        };
    }
}

/// The whole word that a difference lies in.
fn word_of(difference: &Difference, swapped: bool) -> Option<u64> {
    match difference.location {
        Location::Memory(start) => vm::memory::get::<u64>(start & !7).ok(),
        Location::Register { .. } => {
            let bytes = if swapped {
                &difference.swapped
            } else {
                &difference.recorded
            };
            Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?))
        }
        Location::Thread(_) | Location::Kernel(_) => None,
    }
}

/// The object that a word points to, if it is the address of one on a heap.
fn object(vm: &Vm, pointer: u64) -> Option<Vec<u8>> {
    let (range, mapping) = vm.space.find(pointer)?;
    let writable = mapping.protection & libc::PROT_WRITE != 0;
    let is_file = matches!(mapping.backing, vm::space::Backing::File { .. });
    if !pointer.is_multiple_of(16) || !writable || is_file || pointer - range.start < 16 {
        return None;
    }
    // Most allocators keep the size before the object; where the word there is
    // no plausible size, the beginning has to do.
    let header = vm::memory::get::<u64>(pointer - 8).ok()? & !7;
    let size = match header {
        32..=65536 if header.is_multiple_of(16) => header as usize - 16,
        _ => OBJECT,
    };
    vm::memory::read_vec(pointer, size.min((range.end - pointer) as usize)).ok()
}

/// First accesses to the differing bytes: true for a read.
struct Touches {
    bytes: BTreeMap<u64, Option<bool>>,
    /// The live-outs are compared; what happens now counts.
    afterwards: bool,
    /// Instructions that touch the racy place.
    sites: BTreeSet<u64>,
    racy: std::ops::Range<u64>,
}

struct Toucher(Rc<RefCell<Touches>>);

impl Touches {
    fn touch(&mut self, start: u64, size: u64, read: bool) {
        if !self.afterwards {
            return;
        }
        let end = start.saturating_add(size);
        for (_, first) in self.bytes.range_mut(start..end) {
            if first.is_none() {
                *first = Some(read);
            }
        }
    }
}

impl Observer for Toucher {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            ..Interest::default()
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        let mut touches = self.0.borrow_mut();
        for access in batch {
            let size = u64::from(access.size);
            touches.touch(access.address, size, access.read);
            let racy = &touches.racy;
            if access.address < racy.end
                && racy.start < access.address.saturating_add(size)
                && touches.sites.len() < MOST_SITES
            {
                touches.sites.insert(access.pc);
            }
        }
    }

    fn kernel_access(&mut self, _moment: Moment, address: u64, size: u64, write: bool) {
        self.0.borrow_mut().touch(address, size, !write);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn decode(vm: &Vm, pc: u64) -> Option<Instruction> {
    let mut bytes = [0; 15];
    let length = vm.space.fetch(pc, &mut bytes);
    let instruction = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Steps a thread until each of the named registers was read or overwritten.
fn follow_registers(
    vm: &mut Vm,
    thread: u32,
    names: Vec<String>,
) -> Result<Vec<(String, Option<bool>)>, Error> {
    let mut fates: Vec<(String, Option<bool>)> =
        names.into_iter().map(|name| (name, None)).collect();
    let mut factory = InstructionInfoFactory::new();
    for _ in 0..REGISTER_STEPS {
        if fates.iter().all(|(_, fate)| fate.is_some()) {
            break;
        }
        let Some(instruction) = vm.registers(thread).and_then(|regs| decode(vm, regs.rip)) else {
            break;
        };
        if instruction.mnemonic() == Mnemonic::Syscall {
            // Number and arguments are read, two registers are overwritten.
            for (name, fate) in fates.iter_mut().filter(|(_, fate)| fate.is_none()) {
                *fate = match name.as_str() {
                    "rcx" | "r11" => Some(false),
                    "rax" | "rdi" | "rsi" | "rdx" | "r10" | "r8" | "r9" => Some(true),
                    _ => None,
                };
            }
            break;
        }
        let used = factory.info(&instruction).used_registers().to_vec();
        for (name, fate) in fates.iter_mut().filter(|(_, fate)| fate.is_none()) {
            for one in &used {
                let own = format!("{:?}", one.register().full_register()).to_lowercase() == *name;
                let whole = one.register().size() >= 4;
                match one.access() {
                    _ if !own => {}
                    OpAccess::Read
                    | OpAccess::CondRead
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite => *fate = Some(true),
                    OpAccess::Write if whole && fate.is_none() => *fate = Some(false),
                    _ => {}
                }
            }
        }
        vm.run_thread(thread, 1, false)?;
        if !vm.threads.contains_key(&thread) {
            break;
        }
    }
    Ok(fates)
}

/// What an instruction that touches the racy place does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Adds to it in place, or loads it for adding; the store that ends it.
    Increment(Option<u64>),
    /// Its value decides a branch.
    Decides,
    Store,
    OtherRead,
}

/// True if all accesses seen are those of a counter.
fn is_counter(vm: &Vm, sites: &BTreeSet<u64>) -> bool {
    let uses: Vec<(u64, Use)> = sites
        .iter()
        .filter_map(|pc| Some((*pc, use_of(&window(vm, *pc))?)))
        .collect();
    let ends: BTreeSet<u64> = uses
        .iter()
        .filter_map(|(pc, one)| match one {
            Use::Increment(end) => Some(end.unwrap_or(*pc)),
            _ => None,
        })
        .collect();
    !ends.is_empty()
        && uses.len() == sites.len()
        && uses.iter().all(|(pc, one)| match one {
            Use::Increment(_) | Use::OtherRead => true,
            Use::Store => ends.contains(pc),
            Use::Decides => false,
        })
}

/// The instruction at `pc` and some behind it, up to a branch.
fn window(vm: &Vm, mut pc: u64) -> Vec<Instruction> {
    let mut list = Vec::new();
    while list.len() < WINDOW {
        let Some(instruction) = decode(vm, pc) else {
            break;
        };
        pc = instruction.next_ip();
        let ends = !matches!(
            instruction.flow_control(),
            FlowControl::Next | FlowControl::ConditionalBranch
        );
        list.push(instruction);
        if ends {
            break;
        }
    }
    list
}

fn is_addition(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec | Mnemonic::Xadd
    )
}

fn use_of(window: &[Instruction]) -> Option<Use> {
    let (first, rest) = window.split_first()?;
    let destination_is_memory = first.op0_kind() == OpKind::Memory;
    match first.mnemonic() {
        Mnemonic::Cmp | Mnemonic::Test => return Some(Use::Decides),
        mnemonic if is_addition(mnemonic) && destination_is_memory => {
            // The flags of the sum may decide.
            return Some(match rest.first().map(Instruction::flow_control) {
                Some(FlowControl::ConditionalBranch) => Use::Decides,
                _ => Use::Increment(None),
            });
        }
        _ if destination_is_memory => return Some(Use::Store),
        Mnemonic::Add => {
            // Added to something else.
            return Some(Use::OtherRead);
        }
        _ => {}
    }
    if first.op0_kind() != OpKind::Register {
        return Some(Use::OtherRead);
    }
    let mut loaded = vec![first.op0_register().full_register()];
    let mut added = false;
    for one in rest {
        let reads = |register: Register| loaded.contains(&register.full_register());
        let touches = (0..one.op_count())
            .any(|index| one.op_kind(index) == OpKind::Register && reads(one.op_register(index)))
            || reads(one.memory_base())
            || reads(one.memory_index());
        match one.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test if touches => return Some(Use::Decides),
            Mnemonic::Lea if touches => {
                added = true;
                loaded.push(one.op0_register().full_register());
            }
            mnemonic if is_addition(mnemonic) && touches => {
                if one.op0_kind() == OpKind::Register && !reads(one.op0_register()) {
                    return Some(Use::OtherRead);
                }
                added = true;
            }
            Mnemonic::Mov if one.op0_kind() == OpKind::Memory && touches => {
                let same_place = one.op1_kind() == OpKind::Register
                    && one.memory_base() == first.memory_base()
                    && one.memory_index() == first.memory_index()
                    && one.memory_displacement64() == first.memory_displacement64();
                return Some(match added && same_place {
                    true => Use::Increment(Some(one.ip())),
                    false => Use::OtherRead,
                });
            }
            Mnemonic::Mov if one.op0_kind() == OpKind::Register && touches => {
                loaded.push(one.op0_register().full_register());
            }
            _ => {}
        }
    }
    Some(Use::OtherRead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instructions(bytes: &[u8]) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE)
            .iter()
            .collect()
    }

    #[test]
    fn additions_in_place_and_through_a_register_are_increments() {
        // add qword [rax], 1; nop
        let place = instructions(&[0x48, 0x83, 0x00, 0x01, 0x90]);
        assert_eq!(use_of(&place), Some(Use::Increment(None)));
        // mov rcx, [rax]; add rcx, 1; mov [rax], rcx
        let through = instructions(&[0x48, 0x8b, 0x08, 0x48, 0x83, 0xc1, 0x01, 0x48, 0x89, 0x08]);
        assert_eq!(use_of(&through), Some(Use::Increment(Some(0x1007))));
    }

    #[test]
    fn a_value_that_is_compared_decides() {
        // mov rcx, [rax]; test rcx, rcx; je
        let tested = instructions(&[0x48, 0x8b, 0x08, 0x48, 0x85, 0xc9, 0x74, 0x00]);
        assert_eq!(use_of(&tested), Some(Use::Decides));
        // sub qword [rax], 1; je: the reference count
        let count = instructions(&[0x48, 0x83, 0x28, 0x01, 0x74, 0x00]);
        assert_eq!(use_of(&count), Some(Use::Decides));
    }

    #[test]
    fn a_plain_store_is_one() {
        // mov [rax], rcx
        assert_eq!(use_of(&instructions(&[0x48, 0x89, 0x08])), Some(Use::Store));
    }
}
