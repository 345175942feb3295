//! Loops that only wait: reading memory until another thread changes it.
//!
//! A round of such a loop leaves everything as it found it, but for counters:
//! it stores only to its own stack and to variables of its thread, and what it
//! carries from one round to the next it only adds numbers to. Something that
//! no counter has a part in decides whether it goes on. Then nothing it does
//! can matter until memory changes, or a counter has had enough. Whoever waits
//! like that would burn its whole turn, so translated code can give way where
//! such a loop repeats. Failed attempts to take a lock (`cmpxchg`, `xchg`)
//! count as waiting too. Functions that a round calls are looked into: without
//! optimisation a load of an atomic variable is a call.
//!
//! One round is worked through with symbolic values: what each register and
//! each place of the stack is made of, in terms of what they were when the
//! round began. Addresses must be the same in all rounds.
//!
//! Giving way is allowed anywhere, so a loop taken for more or less than it is
//! costs time and nothing else. A replay follows the recorded slices and never
//! asks.

use super::Fetch;
use super::decode::decode_one;
use super::kind::general_number;
use crate::cache::Spread;
use crate::context::reg;
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// Instructions of the longest such loop, calls included: a load of a C++
/// atomic variable without optimisation is about forty.
const LONGEST: usize = 128;

/// Ways through the loop that are tried.
const WAYS: usize = 6;

/// Places of its own memory that a round may use.
const PLACES: usize = 46;

/// Registers, and from here on places, by their number.
const FIRST_PLACE: usize = 16;

/// What a value is made of, beside registers and places: memory that others may
/// change.
const SHARED: u64 = 1 << 63;

/// Loops remembered before all are forgotten.
const REMEMBERED: usize = 1 << 16;

/// How a loop waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Every round is the same.
    ForEver,
    /// It counts its rounds, and may end by that.
    Counting,
}

/// What is known of a loop.
#[derive(Clone)]
pub(super) struct Found {
    /// How it waits, if it does nothing else.
    pub(super) waits: Option<Waiting>,
    /// Code that was looked at: where it changes, so may the answer.
    pub(super) seen: Rc<[Range<u64>]>,
}

/// What has been found out about loops, by where they begin and where they
/// repeat.
#[derive(Default)]
pub(super) struct Loops {
    found: HashMap<(u64, u64), Found, Spread>,
    /// Translations dropped when the oldest of them was found.
    dropped: u64,
}

impl Loops {
    /// How the code at `head` waits, if it comes back from the branch at
    /// `edge` and has done nothing else.
    pub(super) fn found(
        &mut self,
        info: &mut InstructionInfoFactory,
        (head, edge): (u64, u64),
        fetch: Fetch,
    ) -> Found {
        if let Some(found) = self.found.get(&(head, edge)) {
            return found.clone();
        }
        if self.found.len() >= REMEMBERED {
            self.found.clear();
        }
        let found = find(info, head, edge, fetch);
        self.found.insert((head, edge), found.clone());
        found
    }

    /// Code has changed if translations have been dropped since.
    pub(super) fn forget_before(&mut self, dropped: u64) {
        if self.dropped != dropped {
            self.dropped = dropped;
            self.found.clear();
        }
    }
}

/// Looks at a loop, and keeps an account of the code looked at.
fn find(info: &mut InstructionInfoFactory, head: u64, edge: u64, fetch: Fetch) -> Found {
    let seen: RefCell<Vec<Range<u64>>> = RefCell::default();
    let noting = |pc: u64, buffer: &mut [u8; 15]| {
        let mut seen = seen.borrow_mut();
        let end = pc.saturating_add(buffer.len() as u64);
        match seen.iter_mut().find(|one| one.contains(&pc)) {
            Some(known) => known.end = known.end.max(end),
            None => seen.push(pc..end),
        }
        fetch(pc, buffer)
    };
    let waits = waiting(info, head, edge, &noting);
    Found {
        waits,
        seen: seen.into_inner().into(),
    }
}

/// What a value is made of, as the round began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Value {
    /// One bit for each register and place, and `SHARED`.
    made_of: u64,
    /// It is just one of them, plus a number.
    is: Option<(usize, i64)>,
}

impl Value {
    /// What comes from memory that others may change.
    const FROM_OTHERS: Value = Value {
        made_of: SHARED,
        is: None,
    };

    fn initial(number: usize) -> Value {
        // Others may have the address of a variable on the stack.
        let shared = if number < FIRST_PLACE { 0 } else { SHARED };
        Value {
            made_of: 1 << number | shared,
            is: Some((number, 0)),
        }
    }

    fn made_of(made_of: u64) -> Value {
        Value { made_of, is: None }
    }

    fn plus(self, number: i64) -> Value {
        Value {
            is: self
                .is
                .map(|(one, offset)| (one, offset.wrapping_add(number))),
            ..self
        }
    }
}

/// What a place is at a distance from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// A register, as the round began.
    Register(usize),
    /// The variables of the thread.
    Thread,
}

/// Where an operand is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// A register or a place, by number.
    Own(usize),
    /// Memory that others may see.
    Shared,
    Number(i64),
}

/// A round under way.
#[derive(Clone)]
struct Round {
    values: [Value; FIRST_PLACE + PLACES],
    places: Vec<(Base, i64)>,
    flags: u64,
    /// The zero flag says whether an attempt has succeeded.
    attempted: bool,
    /// What addresses are made of, and each decision.
    addressed: u64,
    decided: Vec<u64>,
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
            attempted: false,
            addressed: 0,
            decided: Vec::new(),
            returns: Vec::new(),
        }
    }

    /// The number of a place; none where there are too many.
    fn number_of(&mut self, place: (Base, i64)) -> Option<usize> {
        let known = self.places.iter().position(|known| *known == place);
        let index = known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        (index < PLACES).then_some(FIRST_PLACE + index)
    }

    fn top_of_stack(&mut self) -> Option<usize> {
        let (register, distance) = self.values[reg::RSP].is?;
        self.number_of((Base::Register(register), distance))
    }

    fn push(&mut self, value: Value) -> Option<()> {
        self.values[reg::RSP] = self.values[reg::RSP].plus(-8);
        let place = self.top_of_stack()?;
        self.values[place] = value;
        Some(())
    }

    fn pop(&mut self) -> Option<Value> {
        let place = self.top_of_stack()?;
        self.values[reg::RSP] = self.values[reg::RSP].plus(8);
        Some(self.values[place])
    }

    /// Where the operand is; none for what waiting loops do not use.
    fn operand(&mut self, instruction: &Instruction, operand: u32) -> Option<Place> {
        match instruction.op_kind(operand) {
            OpKind::Register => general_number(instruction.op_register(operand)).map(Place::Own),
            OpKind::Memory => self.memory(instruction),
            _ => instruction
                .try_immediate(operand)
                .ok()
                .map(|number| Place::Number(number as i64)),
        }
    }

    fn memory(&mut self, instruction: &Instruction) -> Option<Place> {
        let distance = instruction.memory_displacement64() as i64;
        let base = general_number(instruction.memory_base());
        let index = instruction.memory_index();
        if instruction.segment_prefix() == Register::FS {
            if base.is_some() || index != Register::None {
                return None;
            }
            return self.number_of((Base::Thread, distance)).map(Place::Own);
        }
        let mut address = 0;
        if let Some(number) = base {
            let value = self.values[number];
            if let Some((of, offset)) = value.is
                && matches!(of, reg::RSP | reg::RBP)
                && index == Register::None
            {
                let place = (Base::Register(of), offset.wrapping_add(distance));
                return self.number_of(place).map(Place::Own);
            }
            address |= value.made_of;
        }
        if index != Register::None {
            address |= self.values[general_number(index)?].made_of;
        }
        self.addressed |= address;
        Some(Place::Shared)
    }

    fn get(&self, place: Place) -> Value {
        match place {
            Place::Own(number) => self.values[number],
            Place::Shared => Value::FROM_OTHERS,
            Place::Number(_) => Value::default(),
        }
    }

    /// Refused where others may see it.
    fn set(&mut self, place: Place, value: Value) -> Option<()> {
        match place {
            Place::Own(number) => {
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
        if instruction.rflags_modified() != 0 {
            self.attempted = false;
        }
        match instruction.mnemonic() {
            Nop | Endbr64 => Some(()),
            Push => {
                let from = self.operand(instruction, 0)?;
                self.push(self.get(from))
            }
            Pop => {
                let value = self.pop()?;
                let to = self.operand(instruction, 0)?;
                self.set(to, value)
            }
            Leave => {
                self.values[reg::RSP] = self.values[reg::RBP];
                self.values[reg::RBP] = self.pop()?;
                Some(())
            }
            Mov | Movzx | Movsx | Movsxd => {
                let from = self.operand(instruction, 1)?;
                let value = self.get(from);
                let to = self.operand(instruction, 0)?;
                self.set(to, value)
            }
            Lea => self.address_of(instruction),
            Add | Sub | Inc | Dec => self.count(instruction),
            Xor if instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register() =>
            {
                self.flags = 0;
                let to = self.operand(instruction, 0)?;
                self.set(to, Value::default())
            }
            // A fence as compilers write it: it changes nothing on the stack.
            Or if instruction.has_lock_prefix()
                && instruction.try_immediate(1).is_ok_and(|number| number == 0)
                && matches!(self.memory(instruction), Some(Place::Own(_))) =>
            {
                Some(())
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
                self.flags = old.made_of | self.values[reg::RAX].made_of;
                self.values[reg::RAX] = old;
                self.attempted = true;
                Some(())
            }
            _ => self.other(info, instruction),
        }
    }

    fn address_of(&mut self, instruction: &Instruction) -> Option<()> {
        let mut value = Value::default();
        if let Some(base) = general_number(instruction.memory_base()) {
            value = self.values[base].plus(instruction.memory_displacement64() as i64);
        }
        if instruction.memory_index() != Register::None {
            let index = general_number(instruction.memory_index())?;
            value = Value::made_of(value.made_of | self.values[index].made_of);
        }
        let to = self.operand(instruction, 0)?;
        self.set(to, value)
    }

    /// Addition and subtraction.
    fn count(&mut self, instruction: &Instruction) -> Option<()> {
        let to = self.operand(instruction, 0)?;
        let by = match instruction.op_count() {
            1 => Place::Number(1),
            _ => self.operand(instruction, 1)?,
        };
        let (old, other) = (self.get(to), self.get(by));
        let down = matches!(instruction.mnemonic(), Mnemonic::Sub | Mnemonic::Dec);
        let new = match by {
            Place::Number(number) if down => old.plus(number.wrapping_neg()),
            Place::Number(number) => old.plus(number),
            _ => Value::made_of(old.made_of | other.made_of),
        };
        self.flags = old.made_of | other.made_of;
        self.set(to, new)
    }

    /// An instruction of which only matters what it reads and writes.
    fn other(
        &mut self,
        info: &mut InstructionInfoFactory,
        instruction: &Instruction,
    ) -> Option<()> {
        if instruction.is_stack_instruction() || instruction.mnemonic() == Mnemonic::Pause {
            return None;
        }
        let mut made_of = match instruction.rflags_read() {
            0 => 0,
            _ => self.flags,
        };
        let operands = 0..instruction.op_count();
        let memory = match { operands }.any(|one| instruction.op_kind(one) == OpKind::Memory) {
            true => Some(self.memory(instruction)?),
            false => None,
        };
        if let Some(place) = memory {
            made_of |= self.get(place).made_of;
        }
        let used = info.info(instruction);
        // What reads memory without an operand is a string instruction or worse.
        if used.used_memory().len() > usize::from(memory.is_some()) {
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
            if reads(register.access()) {
                made_of |= self.values[number].made_of;
            }
            if writes(register.access()) {
                written.push(number);
            }
        }
        if let Some(place) = memory
            && used.used_memory().iter().any(|used| writes(used.access()))
        {
            self.set(place, Value::made_of(made_of))?;
        }
        for number in written {
            self.values[number] = Value::made_of(made_of);
        }
        if instruction.rflags_modified() != 0 {
            self.flags = made_of;
        }
        Some(())
    }

    /// Comes to a conditional branch: whether the round may go on where it
    /// leads, and behind it. An attempt that succeeded is no waiting.
    fn decide(&mut self, branch: &Instruction) -> (bool, bool) {
        self.decided.push(self.flags);
        match branch.mnemonic() {
            Mnemonic::Je if self.attempted => (false, true),
            Mnemonic::Jne if self.attempted => (true, false),
            _ => (true, true),
        }
    }

    /// The round is over: how the loop waits, if it does.
    fn judge(&self) -> Option<Waiting> {
        let (mut counters, mut changed) = (0u64, 0u64);
        let used = FIRST_PLACE + self.places.len().min(PLACES);
        for (number, value) in self.values[..used].iter().enumerate() {
            match value.is {
                Some((one, 0)) if one == number => {}
                Some((one, _)) if one == number => counters |= 1 << number,
                _ => changed |= 1 << number,
            }
        }
        let among = |set: u64| (0..used).filter(move |number| set & 1 << number != 0);
        let carries = among(changed).any(|number| self.values[number].made_of & changed != 0);
        // What is loaded at the end of a round for the decision at the start of
        // the next is the same from the second round on.
        let settled = among(changed)
            .filter(|number| self.values[*number].made_of & counters == 0)
            .fold(0, |set, number| set | 1 << number);
        let decided = self.decided.iter().map(|decision| {
            among(decision & settled).fold(decision & !settled, |made_of, number| {
                made_of | self.values[number].made_of
            })
        });
        let stack = 1 << reg::RSP | 1 << reg::RBP;
        let waits = decided
            .clone()
            .any(|decision| decision & SHARED != 0 && decision & counters == 0);
        if carries
            || !waits
            || (counters | changed) & stack != 0
            || self.addressed & (counters | changed) != 0
            || decided.clone().any(|decision| decision & changed != 0)
        {
            return None;
        }
        match counters {
            0 => Some(Waiting::ForEver),
            _ => Some(Waiting::Counting),
        }
    }
}

fn reads(access: OpAccess) -> bool {
    use OpAccess::*;
    !matches!(access, Write | CondWrite | None | NoMemAccess)
}

fn writes(access: OpAccess) -> bool {
    use OpAccess::*;
    !matches!(access, Read | CondRead | None | NoMemAccess)
}

/// A way through the loop, as far as it has been followed.
struct Way {
    pc: u64,
    round: Round,
    left: usize,
}

fn waiting(
    info: &mut InstructionInfoFactory,
    head: u64,
    edge: u64,
    fetch: Fetch,
) -> Option<Waiting> {
    let mut ways = vec![Way {
        pc: head,
        round: Round::new(),
        left: LONGEST,
    }];
    for _ in 0..WAYS {
        let way = ways.pop()?;
        if let Some(found) = follow(info, (head, edge), fetch, way, &mut ways) {
            return Some(found);
        }
    }
    None
}

/// Goes on with a round until it repeats. Where it comes to a branch that leads
/// on, that is a further way.
fn follow(
    info: &mut InstructionInfoFactory,
    (head, edge): (u64, u64),
    fetch: Fetch,
    way: Way,
    ways: &mut Vec<Way>,
) -> Option<Waiting> {
    let Way {
        mut pc,
        mut round,
        left,
    } = way;
    for left in (0..left).rev() {
        let (instruction, _) = decode_one(pc, fetch)?;
        let target = instruction.near_branch_target();
        let next = instruction.next_ip();
        let repeats = target == head && pc == edge && round.returns.is_empty();
        pc = match instruction.flow_control() {
            FlowControl::Next => {
                round.step(info, &instruction)?;
                next
            }
            FlowControl::UnconditionalBranch if repeats => return round.judge(),
            FlowControl::UnconditionalBranch => target,
            FlowControl::ConditionalBranch => {
                let (may_branch, may_go_on) = round.decide(&instruction);
                if repeats {
                    return may_branch.then(|| round.judge()).flatten();
                }
                if may_branch && target > pc && ways.len() < WAYS {
                    ways.push(Way {
                        pc: target,
                        round: round.clone(),
                        left,
                    });
                }
                may_go_on.then_some(next)?
            }
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Call => {
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
        // Another way round the same loop.
        if pc == head && round.returns.is_empty() {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the loop from 0 to the last branch back to 0 waits.
    fn how(code: &[u8]) -> Option<Waiting> {
        let fetch = |pc: u64, buffer: &mut [u8; 15]| {
            let rest = code.get(pc as usize..).unwrap_or(&[]);
            let length = rest.len().min(15);
            buffer[..length].copy_from_slice(&rest[..length]);
            length
        };
        let (mut pc, mut edge) = (0, None);
        while let Some((instruction, _)) = decode_one(pc, &fetch) {
            let branches = !matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::Return | FlowControl::Call
            );
            if branches && instruction.near_branch_target() == 0 {
                edge = Some(pc);
            }
            pc = instruction.next_ip();
        }
        let edge = edge.expect("the code has a branch back to its start");
        waiting(&mut InstructionInfoFactory::new(), 0, edge, &fetch)
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
        let code = [
            0x83, 0xfb, 0x04, 0x74, 0xc4, 0x8b, 0x07, 0x39, 0xe8, 0x74, 0xf5,
        ];
        assert!(spins(&code));
        // cmp dword ptr [rdi], 0; je on; ret; on: nop; jmp 0
        assert!(spins(&[
            0x83, 0x3f, 0x00, 0x74, 0x01, 0xc3, 0x90, 0xeb, 0xf7
        ]));
        // cmp dword ptr [rsp + 8], 0; je 0: others have its address
        assert!(spins(&[0x83, 0x7c, 0x24, 0x08, 0x00, 0x74, 0xf9]));
    }

    #[test]
    fn trying_a_lock() {
        // xor eax, eax; lock cmpxchg [rdi], ecx; jne 0
        assert!(spins(&[0x31, 0xc0, 0xf0, 0x0f, 0xb1, 0x0f, 0x75, 0xf8]));
        // mov eax, 1; xchg [rdi], eax; test eax, eax; jne 0
        assert!(spins(&[
            0xb8, 1, 0, 0, 0, 0x87, 0x07, 0x85, 0xc0, 0x75, 0xf5
        ]));
    }

    #[test]
    fn without_optimisation() {
        // mov rax, [rbp-8]; mov eax, [rax]; mov [rbp-12], eax;
        // cmp dword [rbp-12], 0; je 0
        assert!(spins(&[
            0x48, 0x8b, 0x45, 0xf8, 0x8b, 0x00, 0x89, 0x45, 0xf4, 0x83, 0x7d, 0xf4, 0x00, 0x74,
            0xf1
        ]));
        // mov rdi, [rbp-8]; call f; test eax, eax; je 0; ret
        // f: push rbp; mov rbp, rsp; mov [rbp-8], rdi; mov rax, [rbp-8];
        // mov eax, [rax]; pop rbp; ret
        assert!(spins(&[
            0x48, 0x8b, 0x7d, 0xf8, 0xe8, 5, 0, 0, 0, 0x85, 0xc0, 0x74, 0xf3, 0xc3, 0x55, 0x48,
            0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0x8b, 0x00, 0x5d, 0xc3
        ]));
    }

    #[test]
    fn counting_rounds() {
        // cmp dword [rdi], 0; jne out; dec ecx; jne 0
        let counts = [0x83, 0x3f, 0x00, 0x75, 0x04, 0xff, 0xc9, 0x75, 0xf7, 0x90];
        assert_eq!(how(&counts), Some(Waiting::Counting));
        // cmp dword [rdi], 0; jne out; mov eax, [rsp+4]; add eax, 1;
        // mov [rsp+4], eax; jmp 0
        let counts = [
            0x83, 0x3f, 0x00, 0x75, 0x0d, 0x8b, 0x44, 0x24, 0x04, 0x83, 0xc0, 0x01, 0x89, 0x44,
            0x24, 0x04, 0xeb, 0xee, 0x90,
        ];
        assert_eq!(how(&counts), Some(Waiting::Counting));
        // cmp edx, esi; jne out; inc ecx; mov edx, [rdi]; cmp ecx, 9; jne 0: looks
        // for the next round
        let counts = [
            0x39, 0xf2, 0x75, 0x09, 0xff, 0xc1, 0x8b, 0x17, 0x83, 0xf9, 0x09, 0x75, 0xf3, 0x90,
        ];
        assert_eq!(how(&counts), Some(Waiting::Counting));
        // inc dword fs:[8]; cmp dword [rdi], 0; je 0: the thread's variable
        let counts = [
            0x64, 0xff, 0x04, 0x25, 8, 0, 0, 0, 0x83, 0x3f, 0x00, 0x74, 0xf3,
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
            // lock inc dword ptr [rdi]; cmp dword ptr [rsi], 0; je 0: the same
            &[0xf0, 0xff, 0x07, 0x83, 0x3e, 0x00, 0x74, 0xf8],
            // test eax, eax; je 0: looks at nothing
            &[0x85, 0xc0, 0x74, 0xfc],
            // inc ecx; cmp ecx, [rdi]; jne 0: nothing but the counter decides
            &[0xff, 0xc1, 0x3b, 0x0f, 0x75, 0xfa],
            // mov rdi, [rdi]; test rdi, rdi; jne 0: a list
            &[0x48, 0x8b, 0x3f, 0x48, 0x85, 0xff, 0x75, 0xf8],
            // mov rax, [rbp-8]; mov rax, [rax]; mov [rbp-8], rax; test rax, rax;
            // jne 0: the same
            &[
                0x48, 0x8b, 0x45, 0xf8, 0x48, 0x8b, 0x00, 0x48, 0x89, 0x45, 0xf8, 0x48, 0x85, 0xc0,
                0x75, 0xf0,
            ],
            // add eax, [rdi + 4*rcx]; inc rcx; cmp rcx, [rsi]; jne 0: a sum
            &[
                0x03, 0x04, 0x8f, 0x48, 0xff, 0xc1, 0x48, 0x3b, 0x0e, 0x75, 0xf5,
            ],
            // add eax, [rdi]; dec ecx; jne 0: a sum of the same
            &[0x03, 0x07, 0xff, 0xc9, 0x75, 0xfa],
            // mov eax, [rdi]; lea edx, [rax+1]; lock cmpxchg [rdi], edx; jne out;
            // dec ecx; jne 0: additions that succeed
            &[
                0x8b, 0x07, 0x8d, 0x50, 0x01, 0xf0, 0x0f, 0xb1, 0x17, 0x75, 0x04, 0xff, 0xc9, 0x75,
                0xf1, 0x90,
            ],
            // cmp dword [rdi], 0; je 0; mov [rsi], eax; jmp 0: waits, but not at
            // its last branch
            &[0x83, 0x3f, 0x00, 0x74, 0xfb, 0x89, 0x06, 0xeb, 0xf7],
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
