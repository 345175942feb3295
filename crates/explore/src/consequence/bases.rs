//! Which object an indexed access is about, as far as code alone tells.
//!
//! A forward analysis of one function: what each general register holds, as far
//! as it is the address of something with a fixed place plus a known offset and
//! perhaps an unknown index. The place is in the module's image (`lea rax,
//! [rip+table]`, the same by way of the linker's table, `[rax*4+table]` where code
//! has fixed addresses) or in the
//! function's frame (by its canonical frame address). Where two ways meet with
//! different answers, nothing is known; only a pointer that a loop moves on keeps
//! the place it began at.
//!
//! Guarantee: where an answer is given, the address is that place plus an index.
//! Which variable the author meant by it is not said: a compiler may begin at
//! `table - 4` for `table[i - 1]` (`bounds` asks the source text).

use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use std::collections::BTreeMap;

/// Instructions of one function that are followed.
const LONGEST: usize = 20_000;

/// Rounds over a function before it is given up.
const ROUNDS: usize = 64;

const RSP: usize = 4;
const RBP: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Link-time addresses.
    Image,
    /// Relative to the canonical frame address.
    Frame,
}

/// An address, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    root: Root,
    offset: i64,
    /// An index has been added.
    indexed: bool,
    /// The instruction that took the address of an object; none for the stack
    /// and frame pointers themselves.
    taken: Option<u64>,
}

type Value = Option<Known>;
type Values = [Value; 16];

/// An access to an object by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexed {
    /// Link-time address of the instruction.
    pub pc: u64,
    pub root: Root,
    /// The object's byte that the index is added to.
    pub offset: i64,
}

/// What is known of the module.
pub trait Around {
    /// Bytes from a register to the canonical frame address, by the unwind tables.
    fn frame_address(&self, pc: u64) -> Option<(usize, i64)>;
    /// Code and data are where the file says, and this is data.
    fn is_fixed_data(&self, address: u64) -> bool;
    /// The linker's table has the address of this data of the module at `slot`.
    fn linked(&self, slot: u64) -> Option<u64>;
}

/// The indexed accesses of a function, from all its instructions in order.
pub fn indexed(code: &[Instruction], around: &impl Around) -> Vec<Indexed> {
    let (Some(first), true) = (code.first(), code.len() <= LONGEST) else {
        return Vec::new();
    };
    let starts = block_starts(code);
    let mut entries: BTreeMap<u64, Values> = BTreeMap::new();
    entries.insert(first.ip(), values_at(first.ip(), around));
    // Blocks that nobody is seen to go to are reached by tables or by the
    // unwinder: of those only the frame is known.
    let reached = targets(code, &starts);
    for start in starts.keys().filter(|start| !reached.contains(start)) {
        entries
            .entry(*start)
            .or_insert_with(|| values_at(*start, around));
    }
    let mut follower = Follower {
        around,
        factory: InstructionInfoFactory::new(),
        values: [None; 16],
    };
    let mut changed = true;
    let mut rounds = 0;
    while changed {
        changed = false;
        rounds += 1;
        if rounds > ROUNDS {
            return Vec::new();
        }
        for (start, index) in &starts {
            let Some(entry) = entries.get(start) else {
                continue;
            };
            follower.values = *entry;
            for (next, values) in follower.block(&code[*index..], &starts) {
                changed |= meet(&mut entries, next, values, next <= *start);
            }
        }
    }
    let mut found = Vec::new();
    for (start, index) in &starts {
        let Some(entry) = entries.get(start) else {
            continue;
        };
        follower.values = *entry;
        for instruction in &code[*index..] {
            if instruction.ip() != *start && starts.contains_key(&instruction.ip()) {
                break;
            }
            found.extend(follower.access(instruction));
            follower.step(instruction);
        }
    }
    found
}

/// Where blocks begin, by address and index.
fn block_starts(code: &[Instruction]) -> BTreeMap<u64, usize> {
    let at: BTreeMap<u64, usize> = code
        .iter()
        .enumerate()
        .map(|(index, instruction)| (instruction.ip(), index))
        .collect();
    let mut starts = BTreeMap::from([(code[0].ip(), 0)]);
    for (index, instruction) in code.iter().enumerate() {
        if !ends_block(instruction) {
            continue;
        }
        if index + 1 < code.len() {
            starts.insert(code[index + 1].ip(), index + 1);
        }
        if let Some((target, index)) =
            near_target(instruction).and_then(|target| Some((target, *at.get(&target)?)))
        {
            starts.insert(target, index);
        }
    }
    starts
}

fn ends_block(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

fn near_target(instruction: &Instruction) -> Option<u64> {
    let jumps = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    (jumps && instruction.op0_kind() == OpKind::NearBranch64)
        .then(|| instruction.near_branch_target())
}

fn falls_through(instruction: &Instruction) -> bool {
    !matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

/// Blocks that a jump or the instruction before them is seen to lead to.
fn targets(code: &[Instruction], starts: &BTreeMap<u64, usize>) -> Vec<u64> {
    let mut reached: Vec<u64> = code.iter().filter_map(near_target).collect();
    reached.extend(
        code.iter()
            .zip(code.iter().skip(1))
            .filter(|(before, next)| falls_through(before) && starts.contains_key(&next.ip()))
            .map(|(_, next)| next.ip()),
    );
    reached.sort_unstable();
    reached.dedup();
    reached
}

/// What is known where nothing else is.
fn values_at(pc: u64, around: &impl Around) -> Values {
    let mut values = [None; 16];
    if let Some((register, offset)) = around.frame_address(pc)
        && let Some(value) = values.get_mut(register)
    {
        *value = Some(Known {
            root: Root::Frame,
            offset: offset.wrapping_neg(),
            indexed: false,
            taken: None,
        });
    }
    values
}

/// Enters what one way brings to a block; true if less is known there now.
fn meet(entries: &mut BTreeMap<u64, Values>, block: u64, values: Values, backwards: bool) -> bool {
    let Some(known) = entries.get_mut(&block) else {
        entries.insert(block, values);
        return true;
    };
    let mut changed = false;
    for (known, value) in known.iter_mut().zip(values) {
        let met = meeting(*known, value, backwards);
        changed |= met != *known;
        *known = met;
    }
    changed
}

fn meeting(one: Value, other: Value, backwards: bool) -> Value {
    let (one, other) = (one?, other?);
    if one == other {
        return Some(one);
    }
    let is_same_pointer = one.root == other.root && one.taken == other.taken;
    let moved_on = backwards && one.taken.is_some();
    (is_same_pointer && (one.offset == other.offset || moved_on || one.indexed)).then_some(Known {
        indexed: true,
        ..one
    })
}

struct Follower<'a, A> {
    around: &'a A,
    factory: InstructionInfoFactory,
    values: Values,
}

impl<A: Around> Follower<'_, A> {
    /// Follows a block to its end; where it leads, and what is known there.
    fn block(&mut self, code: &[Instruction], starts: &BTreeMap<u64, usize>) -> Vec<(u64, Values)> {
        let mut next = Vec::new();
        for (index, instruction) in code.iter().enumerate() {
            if index > 0 && starts.contains_key(&instruction.ip()) {
                next.push((instruction.ip(), self.values));
                return next;
            }
            self.step(instruction);
            if ends_block(instruction) {
                if let Some(target) = near_target(instruction)
                    && starts.contains_key(&target)
                {
                    next.push((target, self.values));
                }
                if falls_through(instruction)
                    && let Some(following) = code.get(index + 1)
                {
                    next.push((following.ip(), self.values));
                }
                return next;
            }
        }
        next
    }

    fn get(&self, register: Register) -> Value {
        if !register.is_gpr64() {
            return None;
        }
        self.values[register.number()]
    }

    /// The address that the memory operand of an instruction is.
    fn address(&self, instruction: &Instruction) -> Value {
        let segment = instruction.memory_segment();
        if matches!(segment, Register::FS | Register::GS) {
            return None;
        }
        let displacement = instruction.memory_displacement64();
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        if base == Register::RIP {
            return Some(Known {
                root: Root::Image,
                offset: displacement as i64,
                indexed: false,
                taken: Some(instruction.ip()),
            });
        }
        let whole = |register: Register| register == Register::None || register.is_gpr64();
        if !whole(base) || !whole(index) {
            return None;
        }
        // A second address makes no sense in a sum.
        let scaled = instruction.memory_index_scale() > 1;
        let (known, has_rest) = match (self.get(base), self.get(index)) {
            (Some(known), None) => (known, index != Register::None),
            (None, Some(known)) if !scaled => (known, base != Register::None),
            (None, None) if self.around.is_fixed_data(displacement) => {
                return Some(Known {
                    root: Root::Image,
                    offset: displacement as i64,
                    indexed: base != Register::None || index != Register::None,
                    taken: Some(instruction.ip()),
                });
            }
            _ => return None,
        };
        Some(Known {
            offset: known.offset.wrapping_add(displacement as i64),
            indexed: known.indexed || has_rest,
            taken: known.taken.or(Some(instruction.ip())),
            ..known
        })
    }

    fn access(&self, instruction: &Instruction) -> Option<Indexed> {
        let reaches_memory = (0..instruction.op_count())
            .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        let only_computes = matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
            || instruction.memory_size().size() == 0;
        if !reaches_memory || only_computes || instruction.is_vsib() {
            return None;
        }
        let known = self.address(instruction)?;
        known.indexed.then_some(Indexed {
            pc: instruction.ip(),
            root: known.root,
            offset: known.offset,
        })
    }

    /// What holds behind an instruction.
    fn step(&mut self, instruction: &Instruction) {
        let before = self.values;
        let result = self.result(instruction);
        let written: Vec<usize> = self
            .factory
            .info(instruction)
            .used_registers()
            .iter()
            .filter(|used| {
                !matches!(
                    used.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
                )
            })
            .map(|used| used.register().full_register())
            .filter(|register| register.is_gpr64())
            .map(|register| register.number())
            .collect();
        for number in written {
            self.values[number] = None;
        }
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::XbeginXabortXend => {
                // What a callee need not keep.
                for number in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
                    self.values[number] = None;
                }
                self.values[RSP] = before[RSP];
            }
            _ => {}
        }
        let moved = instruction.stack_pointer_increment();
        if moved != 0 && !matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Leave) {
            self.values[RSP] = plus(before[RSP], i64::from(moved));
        }
        if instruction.mnemonic() == Mnemonic::Leave {
            self.values[RSP] = plus(before[RBP], 8);
        }
        if let Some((register, value)) = result {
            self.values[register.number()] = value;
        }
    }

    /// The register that an instruction writes a followed value to.
    fn result(&self, instruction: &Instruction) -> Option<(Register, Value)> {
        let target = instruction.op0_register();
        if instruction.op0_kind() != OpKind::Register || !target.is_gpr() {
            return None;
        }
        let wide = target.is_gpr64();
        let full = target.full_register();
        let old = self.get(full);
        let value = match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Lea, _) if wide => self.address(instruction),
            (Mnemonic::Mov, OpKind::Register) if wide => {
                let value = self.get(instruction.op1_register());
                if matches!(target, Register::RSP | Register::RBP) {
                    value
                } else {
                    value.map(|known| Known {
                        taken: known.taken.or(Some(instruction.ip())),
                        ..known
                    })
                }
            }
            (Mnemonic::Mov, OpKind::Memory)
                if wide && instruction.memory_base() == Register::RIP =>
            {
                let linked = self.around.linked(instruction.memory_displacement64());
                linked.map(|address| Known {
                    root: Root::Image,
                    offset: address as i64,
                    indexed: false,
                    taken: Some(instruction.ip()),
                })
            }
            (Mnemonic::Mov, kind) if is_immediate(kind) => {
                let address = instruction.immediate(1);
                self.around.is_fixed_data(address).then_some(Known {
                    root: Root::Image,
                    offset: address as i64,
                    indexed: false,
                    taken: Some(instruction.ip()),
                })
            }
            (Mnemonic::Add, kind) if wide && is_immediate(kind) => {
                plus(old, instruction.immediate(1) as i64)
            }
            (Mnemonic::Sub, kind) if wide && is_immediate(kind) => {
                plus(old, (instruction.immediate(1) as i64).wrapping_neg())
            }
            (Mnemonic::Inc, _) if wide => plus(old, 1),
            (Mnemonic::Dec, _) if wide => plus(old, -1),
            (Mnemonic::Add, OpKind::Register) if wide => {
                let other = self.get(instruction.op1_register());
                match (old, other) {
                    (Some(known), None) | (None, Some(known)) => with_index(known, instruction),
                    _ => None,
                }
            }
            (Mnemonic::Add | Mnemonic::Sub, OpKind::Memory) if wide => {
                old.and_then(|known| with_index(known, instruction))
            }
            (Mnemonic::Sub, OpKind::Register) if wide => {
                match (old, self.get(instruction.op1_register())) {
                    (Some(known), None) => with_index(known, instruction),
                    _ => None,
                }
            }
            (_, OpKind::Register)
                if wide && instruction.condition_code() != ConditionCode::None =>
            {
                meeting(old, self.get(instruction.op1_register()), false)
            }
            _ => return None,
        };
        Some((full, value))
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

fn plus(value: Value, bytes: i64) -> Value {
    value.map(|known| Known {
        offset: known.offset.wrapping_add(bytes),
        ..known
    })
}

fn with_index(known: Known, instruction: &Instruction) -> Value {
    // A stack pointer that an unknown number is taken from makes room.
    let is_stack = instruction.op0_register() == Register::RSP;
    (!is_stack).then_some(Known {
        indexed: true,
        taken: known.taken.or(Some(instruction.ip())),
        ..known
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;
    use iced_x86::{Code, IcedError, MemoryOperand};

    const TABLE: u64 = 0x4000;

    /// Code at 0x1000 whose frame address is 8 above the stack pointer at its
    /// beginning.
    struct Plain;

    impl Around for Plain {
        fn frame_address(&self, pc: u64) -> Option<(usize, i64)> {
            (pc == 0x1000).then_some((RSP, 8))
        }

        fn is_fixed_data(&self, address: u64) -> bool {
            (TABLE..TABLE + 0x100).contains(&address)
        }

        fn linked(&self, slot: u64) -> Option<u64> {
            (slot == 0x3ff8).then_some(TABLE + 0x20)
        }
    }

    fn found(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<(Root, i64)> {
        let mut assembler = CodeAssembler::new(64).expect("an assembler");
        write(&mut assembler).expect("the code");
        let bytes = assembler.assemble(0x1000).expect("bytes");
        let code: Vec<Instruction> =
            iced_x86::Decoder::with_ip(64, &bytes, 0x1000, iced_x86::DecoderOptions::NONE)
                .iter()
                .collect();
        indexed(&code, &Plain)
            .into_iter()
            .map(|access| (access.root, access.offset))
            .collect()
    }

    #[test]
    fn an_index_is_told_from_a_fixed_element() {
        let image = |offset: u64| vec![(Root::Image, offset as i64)];
        let code = found(|a| {
            a.mov(eax, dword_ptr(TABLE + 4))?;
            a.mov(dword_ptr(rax * 4 + TABLE), 1)
        });
        assert_eq!(code, image(TABLE));
        let code = found(|a| {
            a.lea(rdx, qword_ptr(TABLE))?;
            a.add(rdx, rcx)?;
            a.mov(eax, dword_ptr(rdx + 8))
        });
        assert_eq!(code, image(TABLE + 8));
        let code = found(|a| {
            a.add_instruction(Instruction::with2(
                Code::Mov_r64_rm64,
                Register::RDX,
                MemoryOperand::with_base_displ(Register::RIP, 0x3ff8),
            )?)?;
            a.mov(eax, dword_ptr(rdx + rcx * 4))?;
            a.mov(eax, dword_ptr(rdx + 16))
        });
        assert_eq!(code, image(TABLE + 0x20));
    }

    #[test]
    fn the_frame_is_followed_through_its_pointers() {
        let code = found(|a| {
            a.push(rbp)?;
            a.mov(rbp, rsp)?;
            a.sub(rsp, 0x40)?;
            a.mov(dword_ptr(rbp + rax * 4 - 0x30), 1)?;
            a.call(rcx)?;
            a.mov(dword_ptr(rsp + rax * 4 + 0x10), 1)?;
            a.leave()?;
            a.mov(dword_ptr(rsp + rbx), 1)?;
            a.ret()
        });
        let frame = |offset| (Root::Frame, offset);
        assert_eq!(code, [frame(-0x40), frame(-0x40), frame(-8)]);
    }

    #[test]
    fn a_pointer_keeps_its_place_through_a_loop_and_loses_it_where_ways_differ() {
        let code = found(|a| {
            let mut again = a.create_label();
            a.lea(rdx, qword_ptr(TABLE))?;
            a.set_label(&mut again)?;
            a.mov(dword_ptr(rdx), 0)?;
            a.add(rdx, 4)?;
            a.cmp(rdx, rcx)?;
            a.jne(again)?;
            a.ret()
        });
        assert_eq!(code, [(Root::Image, TABLE as i64)]);
        let code = found(|a| {
            let mut other = a.create_label();
            a.lea(rdx, qword_ptr(TABLE))?;
            a.test(ecx, ecx)?;
            a.je(other)?;
            a.lea(rdx, qword_ptr(TABLE + 0x40))?;
            a.set_label(&mut other)?;
            a.mov(dword_ptr(rdx + rcx), 0)?;
            a.ret()
        });
        assert_eq!(code, []);
        let code = found(|a| {
            a.lea(rdx, qword_ptr(TABLE))?;
            a.call(rcx)?;
            a.mov(dword_ptr(rdx + rcx), 0)?;
            a.ret()
        });
        assert_eq!(code, []);
    }
}
