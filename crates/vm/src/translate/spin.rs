//! Loops that only wait: reading memory until another thread changes it.
//!
//! A round of such a loop leaves everything as it found it, but for counters:
//! it stores to its own stack only, and what it carries from one round to the
//! next it only adds numbers to. Then nothing it does can matter until memory
//! changes, or a counter has had enough. Whoever waits like that would burn its
//! whole turn, so translated code can give way where such a loop repeats.
//! Failed attempts to take a lock (`cmpxchg`, `xchg`) count as waiting too.
//! Functions that a round calls are looked into: without optimisation a load of
//! an atomic variable is a call.
//!
//! One round is worked through with symbolic values: what each register and
//! each place of the stack is made of, in terms of what they were when the
//! round began. Addresses must be the same in all rounds, and so must what
//! decides about going on, but for counters.
//!
//! Giving way is allowed anywhere, so a loop taken for more or less than it is
//! costs time and nothing else.

use super::Fetch;
use super::decode::decode_one;
use super::kind::general_number;
use crate::context::reg;
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

/// Instructions of the longest such loop, calls included.
const LONGEST: usize = 64;

/// Ways through the loop that are tried.
const WAYS: usize = 4;

/// Places of the stack that a round may use.
const PLACES: usize = 40;

/// How a loop waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Every round is the same.
    ForEver,
    /// It counts its rounds, and may end by that.
    Counting,
}

/// Registers, and from here on places of the stack, by their number.
const FIRST_PLACE: usize = 16;

/// What a value is made of, as the round began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Value {
    /// One bit for each register and place.
    made_of: u64,
    /// It is just one of them, plus a number.
    is: Option<(usize, i64)>,
}

impl Value {
    fn initial(number: usize) -> Value {
        Value {
            made_of: 1 << number,
            is: Some((number, 0)),
        }
    }

    fn made_of(made_of: u64) -> Value {
        Value { made_of, is: None }
    }

    fn plus(self, number: i64) -> Value {
        Value {
            is: self.is.map(|(one, offset)| (one, offset.wrapping_add(number))),
            ..self
        }
    }
}

/// Where an operand is.
#[derive(Debug, Clone, Copy)]
enum Place {
    Register(usize),
    Stack(usize),
    /// Memory that others may see.
    Shared,
    Number(i64),
}

/// A round under way.
#[derive(Clone)]
struct Round {
    values: [Value; FIRST_PLACE + PLACES],
    /// Places of the stack by register and distance, as the round began.
    places: Vec<(usize, i64)>,
    flags: u64,
    /// What addresses and conditions are made of.
    addressed: u64,
    decided: u64,
    looks: bool,
    returns: Vec<u64>,
}

impl Round {
    fn new() -> Round {
        let mut values = [Value::default(); FIRST_PLACE + PLACES];
        for (number, value) in values.iter_mut().enumerate() {
            *value = Value::initial(number);
        }
        Round {
            values,
            places: Vec::new(),
            flags: 0,
            addressed: 0,
            decided: 0,
            looks: false,
            returns: Vec::new(),
        }
    }

    /// A place of the stack; none where there are too many.
    fn on_stack(&mut self, base: (usize, i64)) -> Option<usize> {
        let known = self.places.iter().position(|place| *place == base);
        let index = known.unwrap_or_else(|| {
            self.places.push(base);
            self.places.len() - 1
        });
        (index < PLACES).then_some(FIRST_PLACE + index)
    }

    fn stack_pointer(&mut self, moved: i64) -> Option<usize> {
        let pointer = self.values[reg::RSP as usize].plus(moved);
        self.values[reg::RSP as usize] = pointer;
        self.on_stack(pointer.is?)
    }

    fn push(&mut self, value: Value) -> Option<()> {
        let place = self.stack_pointer(-8)?;
        self.values[place] = value;
        Some(())
    }

    fn pop(&mut self) -> Option<Value> {
        let pointer = self.values[reg::RSP as usize];
        let place = self.on_stack(pointer.is?)?;
        self.values[reg::RSP as usize] = pointer.plus(8);
        Some(self.values[place])
    }

    /// The operand's place; none for what waiting loops do not use.
    fn operand(&mut self, instruction: &Instruction, operand: u32) -> Option<Place> {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let number = general_number(instruction.op_register(operand))?;
                Some(Place::Register(usize::from(number)))
            }
            OpKind::Memory => self.memory(instruction),
            _ => instruction.try_immediate(operand).ok().map(|number| Place::Number(number as i64)),
        }
    }

    fn memory(&mut self, instruction: &Instruction) -> Option<Place> {
        let mut address = 0;
        let base = instruction.memory_base();
        let index = instruction.memory_index();
        if let Some(number) = general_number(base) {
            let value = self.values[usize::from(number)];
            let own = matches!(value.is, Some((of, _)) if of == reg::RSP as usize || of == reg::RBP as usize);
            if own && index == Register::None {
                let (of, offset) = value.is?;
                let distance = instruction.memory_displacement64() as i64;
                let place = self.on_stack((of, offset.wrapping_add(distance)))?;
                return Some(Place::Stack(place));
            }
            address |= value.made_of;
        }
        if let Some(number) = general_number(index) {
            address |= self.values[usize::from(number)].made_of;
        } else if index != Register::None {
            return None;
        }
        self.addressed |= address;
        Some(Place::Shared)
    }

    fn get(&mut self, place: Place) -> Value {
        match place {
            Place::Register(number) | Place::Stack(number) => self.values[number],
            Place::Shared => {
                self.looks = true;
                Value::default()
            }
            Place::Number(_) => Value::default(),
        }
    }

    /// Refused where others may see it.
    fn set(&mut self, place: Place, value: Value) -> Option<()> {
        match place {
            Place::Register(number) | Place::Stack(number) => {
                self.values[number] = value;
                Some(())
            }
            Place::Shared | Place::Number(_) => None,
        }
    }

    /// Does what an instruction that is no branch does; none where a loop that
    /// only waits would not have it.
    fn step(&mut self, info: &mut InstructionInfoFactory, instruction: &Instruction) -> Option<()> {
        use Mnemonic::*;
        let two = instruction.op_count() >= 2;
        match instruction.mnemonic() {
            Nop | Endbr64 => Some(()),
            Push => {
                let from = self.operand(instruction, 0)?;
                let value = self.get(from);
                self.push(value)
            }
            Pop => {
                let value = self.pop()?;
                let to = self.operand(instruction, 0)?;
                self.set(to, value)
            }
            Leave => {
                self.values[reg::RSP as usize] = self.values[reg::RBP as usize];
                self.values[reg::RBP as usize] = self.pop()?;
                Some(())
            }
            Mov | Movzx | Movsx | Movsxd => {
                let from = self.operand(instruction, 1)?;
                let value = self.get(from);
                let to = self.operand(instruction, 0)?;
                self.set(to, value)
            }
            Lea if instruction.memory_index() == Register::None
                && general_number(instruction.memory_base()).is_some() =>
            {
                let base = usize::from(general_number(instruction.memory_base())?);
                let value = self.values[base].plus(instruction.memory_displacement64() as i64);
                let to = self.operand(instruction, 0)?;
                self.set(to, value)
            }
            Add | Sub | Inc | Dec if !instruction.has_lock_prefix() => {
                let to = self.operand(instruction, 0)?;
                let by = match two {
                    true => self.operand(instruction, 1)?,
                    false => Place::Number(1),
                };
                let (old, other) = (self.get(to), self.get(by));
                let down = matches!(instruction.mnemonic(), Sub | Dec);
                let new = match by {
                    Place::Number(number) if down => old.plus(number.wrapping_neg()),
                    Place::Number(number) => old.plus(number),
                    _ => Value::made_of(old.made_of | other.made_of),
                };
                self.flags = old.made_of | other.made_of;
                self.set(to, new)
            }
            Xor if instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register() =>
            {
                self.flags = 0;
                let to = self.operand(instruction, 0)?;
                self.set(to, Value::default())
            }
            // An attempt: what was there comes into the register. (A lock that
            // was free is not waited for.)
            Xchg if instruction.op0_kind() == OpKind::Memory => {
                let place = self.operand(instruction, 0)?;
                let old = self.get(place);
                let to = self.operand(instruction, 1)?;
                self.set(to, old)
            }
            Cmpxchg => {
                let place = self.operand(instruction, 0)?;
                let old = self.get(place);
                self.flags = old.made_of | self.values[reg::RAX as usize].made_of;
                self.values[reg::RAX as usize] = old;
                Some(())
            }
            _ => self.other(info, instruction),
        }
    }

    /// An instruction of which only matters what it reads and writes.
    fn other(&mut self, info: &mut InstructionInfoFactory, instruction: &Instruction) -> Option<()> {
        if instruction.is_stack_instruction() || instruction.mnemonic() == Mnemonic::Pause {
            return None;
        }
        let mut made_of = self.flags;
        let mut memory = None;
        if (0..instruction.op_count()).any(|one| instruction.op_kind(one) == OpKind::Memory) {
            let place = self.memory(instruction)?;
            if instruction.mnemonic() != Mnemonic::Lea {
                made_of |= self.get(place).made_of;
                memory = Some(place);
            }
        }
        let used = info.info(instruction);
        let mut writes_memory = false;
        let mut uses = 0;
        for access in used.used_memory() {
            uses += 1;
            writes_memory |= !matches!(
                access.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
        }
        // What reads memory without an operand is a string instruction or worse.
        if uses > usize::from(memory.is_some()) {
            return None;
        }
        let mut written = Vec::new();
        for register in used.used_registers() {
            let Some(number) = general_number(register.register()) else {
                if register.register().is_vector_register() {
                    return None;
                }
                continue;
            };
            let number = usize::from(number);
            if !matches!(register.access(), OpAccess::Write | OpAccess::None | OpAccess::NoMemAccess) {
                made_of |= self.values[number].made_of;
            }
            if !matches!(
                register.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
            ) {
                written.push(number);
            }
        }
        if writes_memory {
            self.set(memory?, Value::made_of(made_of))?;
        }
        for number in written {
            self.values[number] = Value::made_of(made_of);
        }
        if instruction.rflags_modified() != 0 {
            self.flags = made_of;
        }
        Some(())
    }

    /// The round is over: how the loop waits, if it does.
    fn judge(&self) -> Option<Waiting> {
        let (mut counters, mut changed) = (0u64, 0u64);
        let places = FIRST_PLACE + self.places.len().min(PLACES);
        for (number, value) in self.values[..places].iter().enumerate() {
            match value.is {
                Some((one, 0)) if one == number => {}
                Some((one, _)) if one == number => counters |= 1 << number,
                _ => changed |= 1 << number,
            }
        }
        let carries = (0..places)
            .filter(|number| changed & 1 << number != 0)
            .any(|number| self.values[number].made_of & changed != 0);
        let stack_moves = counters & (1 << reg::RSP | 1 << reg::RBP) != 0;
        if !self.looks
            || carries
            || stack_moves
            || self.addressed & (counters | changed) != 0
            || self.decided & changed != 0
        {
            return None;
        }
        match counters {
            0 => Some(Waiting::ForEver),
            _ => Some(Waiting::Counting),
        }
    }
}

/// How the code at `head` waits, if it comes back to `head` and does nothing
/// else.
pub(super) fn waiting(
    info: &mut InstructionInfoFactory,
    head: u64,
    fetch: Fetch,
) -> Option<Waiting> {
    let mut ways = vec![(head, Round::new(), LONGEST)];
    for _ in 0..WAYS {
        let (pc, round, left) = ways.pop()?;
        if let Some(found) = follow(info, head, fetch, (pc, round, left), &mut ways) {
            return Some(found);
        }
    }
    None
}

/// Goes on with a round at an instruction, for so many of them. Where it comes
/// to a branch that leads on, that is a further way.
fn follow(
    info: &mut InstructionInfoFactory,
    head: u64,
    fetch: Fetch,
    (mut pc, mut round, left): (u64, Round, usize),
    ways: &mut Vec<(u64, Round, usize)>,
) -> Option<Waiting> {
    for left in (0..left).rev() {
        let (instruction, _) = decode_one(pc, fetch)?;
        let target = instruction.near_branch_target();
        let next = instruction.next_ip();
        pc = match instruction.flow_control() {
            FlowControl::Next => {
                round.step(info, &instruction)?;
                next
            }
            FlowControl::UnconditionalBranch => target,
            FlowControl::ConditionalBranch => {
                round.decided |= round.flags;
                if target == head && round.returns.is_empty() {
                    return round.judge();
                }
                if target > pc && ways.len() < WAYS {
                    ways.push((target, round.clone(), left));
                }
                next
            }
            FlowControl::Call => {
                round.push(Value::default())?;
                round.returns.push(next);
                target
            }
            FlowControl::Return => {
                let back = round.returns.pop()?;
                round.pop()?;
                back
            }
            _ => return None,
        };
        if pc == head && round.returns.is_empty() {
            return round.judge();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(code: &[u8]) -> Option<Waiting> {
        let fetch = |pc: u64, buffer: &mut [u8; 15]| {
            let rest = code.get(pc as usize..).unwrap_or(&[]);
            let length = rest.len().min(15);
            buffer[..length].copy_from_slice(&rest[..length]);
            length
        };
        waiting(&mut InstructionInfoFactory::new(), 0, &fetch)
    }

    fn spins(code: &[u8]) -> bool {
        how(code) == Some(Waiting::ForEver)
    }

    #[test]
    fn waiting_for_a_flag() {
        // mov eax, [rdi]; test eax, eax; je 0
        assert!(spins(&[0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa]));
        // cmp dword ptr [rdi], 0; jne out; jmp 0
        assert!(spins(&[0x83, 0x3f, 0x00, 0x75, 0x02, 0xeb, 0xf9, 0x90]));
        // cmp ebx, 4; je -57; mov eax, [rdi]; cmp eax, ebp; je 0: an exit backwards
        assert!(spins(&[0x83, 0xfb, 0x04, 0x74, 0xc4, 0x8b, 0x07, 0x39, 0xe8, 0x74, 0xf5]));
        // cmp dword ptr [rdi], 0; je on; ret; on: nop; jmp 0
        assert!(spins(&[0x83, 0x3f, 0x00, 0x74, 0x01, 0xc3, 0x90, 0xeb, 0xf7]));
    }

    #[test]
    fn trying_a_lock() {
        // xor eax, eax; lock cmpxchg [rdi], ecx; jne 0
        assert!(spins(&[0x31, 0xc0, 0xf0, 0x0f, 0xb1, 0x0f, 0x75, 0xf8]));
        // mov eax, 1; xchg [rdi], eax; test eax, eax; jne 0
        assert!(spins(&[0xb8, 1, 0, 0, 0, 0x87, 0x07, 0x85, 0xc0, 0x75, 0xf5]));
    }

    #[test]
    fn without_optimisation() {
        // mov rax, [rbp-8]; mov eax, [rax]; mov [rbp-12], eax; cmp dword [rbp-12], 0; je 0
        assert!(spins(&[
            0x48, 0x8b, 0x45, 0xf8, 0x8b, 0x00, 0x89, 0x45, 0xf4, 0x83, 0x7d, 0xf4, 0x00, 0x74, 0xf1
        ]));
        // mov rdi, [rbp-8]; call f; test eax, eax; je 0; ret
        // f: push rbp; mov rbp, rsp; mov [rbp-8], rdi; mov rax, [rbp-8]; mov eax, [rax]; pop rbp; ret
        assert!(spins(&[
            0x48, 0x8b, 0x7d, 0xf8, 0xe8, 5, 0, 0, 0, 0x85, 0xc0, 0x74, 0xf3, 0xc3, 0x55, 0x48, 0x89,
            0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0x8b, 0x00, 0x5d, 0xc3
        ]));
    }

    #[test]
    fn counting_rounds() {
        // cmp dword [rdi], 0; jne out; dec ecx; jne 0
        let counts = [0x83, 0x3f, 0x00, 0x75, 0x04, 0xff, 0xc9, 0x75, 0xf7, 0x90];
        assert_eq!(how(&counts), Some(Waiting::Counting));
        // cmp dword [rdi], 0; jne out; mov eax, [rsp+4]; add eax, 1; mov [rsp+4], eax; jmp 0
        let counts = [
            0x83, 0x3f, 0x00, 0x75, 0x0d, 0x8b, 0x44, 0x24, 0x04, 0x83, 0xc0, 0x01, 0x89, 0x44, 0x24,
            0x04, 0xeb, 0xee, 0x90,
        ];
        assert_eq!(how(&counts), Some(Waiting::Counting));
    }

    #[test]
    fn work_is_not_waiting() {
        let none: &[&[u8]] = &[
            // inc rdi; cmp byte ptr [rdi], 0; jne 0: a pointer moves on
            &[0x48, 0xff, 0xc7, 0x80, 0x3f, 0x00, 0x75, 0xf8],
            // mov [rdi], eax; cmp dword ptr [rsi], 0; je 0: stores
            &[0x89, 0x07, 0x83, 0x3e, 0x00, 0x74, 0xf9],
            // test eax, eax; je 0: looks at nothing
            &[0x85, 0xc0, 0x74, 0xfc],
            // mov rdi, [rdi]; test rdi, rdi; jne 0: a list
            &[0x48, 0x8b, 0x3f, 0x48, 0x85, 0xff, 0x75, 0xf8],
            // mov rax, [rbp-8]; mov rax, [rax]; mov [rbp-8], rax; test rax, rax; jne 0: the same
            &[
                0x48, 0x8b, 0x45, 0xf8, 0x48, 0x8b, 0x00, 0x48, 0x89, 0x45, 0xf8, 0x48, 0x85, 0xc0,
                0x75, 0xf0,
            ],
            // add eax, [rdi + 4*rcx]; inc rcx; cmp rcx, [rsi]; jne 0: a sum
            &[0x03, 0x04, 0x8f, 0x48, 0xff, 0xc1, 0x48, 0x3b, 0x0e, 0x75, 0xf5],
            // add eax, [rdi]; dec ecx; jne 0: a sum of the same
            &[0x03, 0x07, 0xff, 0xc9, 0x75, 0xfa],
            // pause; cmp dword ptr [rdi], 0; je 0: gives way by itself
            &[0xf3, 0x90, 0x83, 0x3f, 0x00, 0x74, 0xf9],
            // push rax; cmp dword ptr [rdi], 0; je 0: the stack grows
            &[0x50, 0x83, 0x3f, 0x00, 0x74, 0xfa],
        ];
        for code in none {
            assert_eq!(how(code), None, "{code:x?}");
        }
    }
}
