//! Same-ISA translation: guest instructions are copied into the code cache;
//! only what cannot run elsewhere unchanged is rewritten.
//!
//! A repeated string instruction that would go on for `REPEAT_PART` iterations
//! or more is executed by the vm in parts of that many, each counted as one
//! instruction: so a copy of gigabytes can be preempted, and where depends on
//! its registers alone.
//!
//! Rewritten are control flow (branches, calls with their true return address
//! on the stack, returns), RIP-relative operands, GS operands, and the few
//! instructions whose result must be deterministic (cpuid, rdtsc, …), which
//! leave the cache. Guest registers are exact at every instruction boundary;
//! inside a rewritten instruction the block's map says which are in spill
//! slots, so a fault anywhere gives the guest's true state.
//!
//! A block starts as a basic block. When the vm finds it hot it is translated
//! again as a trace: along unconditional jumps, the likelier side of branches,
//! into calls and back out of them, round loops, up to `MAX_BLOCK`
//! instructions. The less likely sides leave the trace.
//!
//! The instructions of a block are subtracted from the counter once, after its
//! last inner branch, at a place where the flags are dead if there is one; each
//! inner exit subtracts what has run until there. Because the subtraction may
//! come that late, the vm enters linked blocks only while at least `SLACK`
//! instructions remain, and walks the rest with blocks that hold exactly as
//! many instructions as are left. One subtraction per sixty instructions
//! matters: the counter is in memory, and a store forwarded to the next load
//! takes five cycles.

mod accesses;
mod build;
mod decode;
mod kind;
mod spin;
mod stack;
mod stores;

use crate::cache::{Cache, ExitKind, LINKED, REPEAT, Spread, Translation};
use crate::context::{offset, reg};
use crate::emit::{Emitter, Reg};
use crate::observe::Sites;
use crate::observe::known::Told;
use crate::{flags, layout};
use build::{Builder, Stub, StubKind};
use decode::{Ahead, Decoded, Then, decode};
use iced_x86::{
    Code, Encoder, Instruction, InstructionInfoFactory, MemoryOperand, OpKind, Register,
};
use kind::{
    End, REGISTERS, condition_number, counted_branch, general_number, is_masked, reachable, uses_gs,
};
pub use kind::{is_long_repeat, is_masked_store, is_of_the_kernel, is_repeated};
use spin::Loops;
use std::collections::HashSet;
pub use stores::{map_table as map_store_table, stores_elsewhere};

/// Longest block, in instructions.
pub const MAX_BLOCK: usize = 64;

/// How many instructions are left to blocks that do not count: a whole block
/// may run before it is counted, and flags that the counter has destroyed must
/// be overwritten before the end.
pub const SLACK: u64 = (MAX_BLOCK + flags::WINDOW) as u64;

/// Iterations of a repeated string instruction that count as one instruction.
/// Copying that many bytes takes about two microseconds, ten times as long as
/// leaving the cache and coming back.
pub const REPEAT_PART: u64 = 1 << 16;

/// Room the ring must have when translated code is entered: three records for
/// every instruction of a block are more than any block writes.
pub const RING_MARGIN: u64 = 3 * 16 * MAX_BLOCK as u64;

/// The ring is handed over when it has more.
const RING_LIMIT: u32 = (layout::RING_SIZE - RING_MARGIN) as u32;

/// The same in a copy of the world: a copy often runs for microseconds, and
/// every page of the ring that it touches is a fault (about 0.5 µs).
const RING_LIMIT_OF_COPY: u32 = 32 << 10;

/// What the vm knows about a block that is to be translated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Up to the first branch.
    Basic,
    /// Along the likely path.
    Trace,
}

/// What the translator must do beyond running the code.
#[derive(Default)]
pub struct Instrumentation {
    /// Write every access to the ring.
    pub accesses: bool,
    /// Leave out those that the observer knows (`observe/known.rs`).
    pub only_unknown: bool,
    /// Of reads of sixteen bytes and more compare only where they begin.
    pub reads_by_start: bool,
    /// What is compared with may be another after a locked instruction.
    pub epochs: bool,
    /// Words other than zero are where to look, and nothing else is compared.
    pub watches: bool,
    /// Write what pushes, pops, calls and returns do as well.
    pub stack: bool,
    /// Leave after every locked instruction.
    pub sequencers: bool,
    /// Addresses at which control goes to the vm first.
    pub hooks: HashSet<u64, Spread>,
}

/// Gives up to 15 executable bytes at a guest address; fewer at the end of a
/// mapping, none where nothing can be executed.
pub type Fetch<'a> = &'a dyn Fn(u64, &mut [u8; 15]) -> usize;

pub struct Translator {
    info: InstructionInfoFactory,
    encoder: Encoder,
    loops: Loops,
}

impl Default for Translator {
    fn default() -> Self {
        Translator {
            info: InstructionInfoFactory::new(),
            encoder: Encoder::new(64),
            loops: Loops::default(),
        }
    }
}

impl Translator {
    /// Translates the block at `pc`, as linkable code or (`variant` > 0) as at
    /// most `variant` instructions that return to the vm.
    #[allow(clippy::too_many_arguments)]
    pub fn translate(
        &mut self,
        cache: &mut Cache,
        pc: u64,
        variant: u32,
        shape: Shape,
        fetch: Fetch,
        instrumentation: &Instrumentation,
        sites: &mut Sites,
        told: &mut dyn FnMut(u64) -> Told,
    ) -> Translation {
        let base = cache.next_address();
        let limit = match variant {
            LINKED => MAX_BLOCK,
            REPEAT => 1,
            _ => (variant as usize).min(MAX_BLOCK),
        };
        let likely = |branch: u64, target: u64| cache.was_taken(branch, target);
        let info = &mut self.info;
        let loops = &mut self.loops;
        loops.forget_before(cache.dropped);
        let mut waiting = |head, edge| loops.found(info, (head, edge), fetch);
        let mut decoded = decode(
            pc,
            limit,
            shape,
            fetch,
            instrumentation,
            &likely,
            &mut waiting,
        );
        if variant == REPEAT {
            // Hooks and accesses were seen to before.
            decoded.hook = false;
            decoded.complex = false;
        }
        let mut builder = Builder {
            code: Emitter::new(base),
            map: Vec::with_capacity(decoded.steps.len() + 4),
            exits: Vec::new(),
            first_exit: cache.next_exit_id(),
            stubs: Vec::new(),
            direct: Vec::new(),
            literals: Vec::new(),
            pc,
            length: decoded.steps.len() as u32,
            index: 0,
            counted: false,
            records: instrumentation.accesses,
            only_unknown: instrumentation.only_unknown && variant == LINKED,
            reads_by_start: instrumentation.reads_by_start,
            epochs: instrumentation.epochs,
            watches: instrumentation.watches,
            stack: instrumentation.stack,
            borrowed: Vec::new(),
            named: Vec::new(),
            unknown: Vec::new(),
            after_hook: 0,
            after_complex: 0,
            instruction_pc: pc,
            cache,
            variant,
            waits: None,
            seen: Vec::new(),
            looked: Vec::new(),
        };
        self.build(&mut builder, &decoded, fetch, instrumentation, sites, told);
        self.record_unknown(&mut builder);
        builder.finish(&decoded)
    }

    fn build(
        &mut self,
        builder: &mut Builder,
        decoded: &Decoded,
        fetch: Fetch,
        instrumentation: &Instrumentation,
        sites: &mut Sites,
        told: &mut dyn FnMut(u64) -> Told,
    ) {
        builder.mark(0);
        if decoded.hook {
            builder.exit_now(ExitKind::Hook, builder.pc);
            builder.after_hook = builder.code.here();
        }
        if decoded.complex {
            let known = decoded
                .steps
                .first()
                .filter(|step| builder.only_unknown && is_masked(&step.instruction))
                .and_then(|step| self.jump_if_known(builder, &step.instruction));
            builder.exit_now(ExitKind::Complex, builder.pc);
            builder.after_complex = builder.code.here();
            if let Some(known) = known {
                builder.code.patch_rel32(known, builder.after_complex);
            }
        }
        let Some(last) = decoded.steps.len().checked_sub(1) else {
            builder.exit_now(ExitKind::Undecodable, builder.pc);
            return;
        };
        let mut ahead = Ahead {
            fetch,
            hooks: &instrumentation.hooks,
            seen: Vec::new(),
        };
        let count_at = (builder.variant == LINKED).then(|| decoded.counting_place(&mut ahead));
        if builder.only_unknown && !decoded.complex && builder.variant != REPEAT {
            let steps = decoded.steps.iter();
            builder.named = steps.map(|step| self.named(&step.instruction)).collect();
        } else if builder.variant == LINKED && !instrumentation.accesses {
            self.borrow_for_stores(builder, decoded);
        }
        let mut stack_open = false;
        for (index, step) in decoded.steps.iter().enumerate() {
            let instruction = &step.instruction;
            builder.index = index as u16;
            builder.instruction_pc = instruction.ip();
            builder.give_back_named();
            if let Some((place, flags_alive)) = count_at
                && place == index
            {
                builder.count(flags_alive);
            }
            builder.mark(0);
            if stack_open {
                self.look_at_stack(builder);
            }
            stack_open = self.leaves_stack_open(decoded, index);
            if instrumentation.accesses && !decoded.complex && builder.variant != REPEAT {
                let flags_alive =
                    !decoded.flags_overwritten(index, count_at.map(|(place, _)| place));
                self.record_accesses(builder, instruction, flags_alive, sites, told);
            }
            self.look_at_stores(builder, instruction);
            if step.then == Then::Next && index == last && decoded.end != End::Continue {
                builder.give_back();
            }
            match step.then {
                Then::Next if index == last && decoded.end != End::Continue => {
                    builder.waits = decoded.waits;
                    self.end(builder, instruction, step.bytes(), decoded.end, stack_open);
                }
                Then::Next => self.copy(builder, instruction, step.bytes()),
                Then::Jump => {}
                Then::Call => builder.push_return_address(instruction.next_ip()),
                Then::Return(expected) => builder.return_inline(expected),
                Then::Branch { leave_if, target } => {
                    let from = builder.code.jump_if(leave_if, builder.cache.common_exit);
                    let alive = builder.variant != LINKED || !ahead.flags_dead_at(target);
                    builder.stubs.push(Stub {
                        from,
                        kind: StubKind::SideExit(target),
                        pc: target,
                        done: index as u16 + 1,
                        adjust: 0,
                        restore_flags: alive,
                        borrowed: builder.borrowed.clone(),
                    });
                }
            }
        }
        if decoded.end == End::Continue {
            builder.index = builder.length as u16;
            builder.instruction_pc = decoded.next;
            if let Some((place, flags_alive)) = count_at
                && place == decoded.steps.len()
            {
                builder.count(flags_alive);
            }
            builder.give_back();
            builder.mark(0);
            if stack_open {
                self.look_at_stack(builder);
            }
            builder.jump_direct(decoded.next);
        }
        builder.seen = ahead.seen;
        builder.seen.extend_from_slice(&decoded.seen);
    }

    /// An instruction that stays in the middle of a block.
    fn copy(&mut self, builder: &mut Builder, instruction: &Instruction, bytes: &[u8]) {
        if is_repeated(instruction) && builder.variant != REPEAT {
            self.leave_if_long(builder);
        }
        if uses_gs(instruction) {
            return self.with_guest_gs(builder, instruction, bytes);
        }
        if instruction.is_ip_rel_memory_operand() {
            return self.copy_rip_relative(builder, instruction);
        }
        if instruction.code() == Code::Popfq {
            // and qword [rsp], ~AC: what stands between the guest's instructions
            // is not always aligned. The bytes are off the stack when it is done.
            builder
                .code
                .raw(&[0x48, 0x81, 0x24, 0x24, 0xff, 0xff, 0xfb, 0xff]);
        }
        builder.code.raw(bytes);
    }

    /// Leaves for the vm if a repeated string instruction goes on for long;
    /// the flags stay as they are. The comparison is of the middle of rcx:
    /// nothing has 2^48 elements.
    fn leave_if_long(&mut self, builder: &mut Builder) {
        builder.spill(reg::RCX);
        builder.mark(1 << reg::RCX);
        let middle = Builder::spill_slot(reg::RCX) + u64::from(REPEAT_PART.ilog2()) / 8;
        builder.code.load32(reg::RCX, middle);
        // jrcxz
        builder.code.raw(&[0xe3, 0]);
        let short = builder.code.here() - 1;
        builder.unspill(reg::RCX);
        builder.exit_now(ExitKind::LongRepeat, builder.instruction_pc);
        builder.code.patch_rel8_here(short);
        builder.unspill(reg::RCX);
        builder.mark(0);
    }

    fn encode(&mut self, builder: &mut Builder, instruction: &Instruction) {
        let here = builder.code.here();
        match self.encoder.encode(instruction, here) {
            Ok(_) => {
                let bytes = self.encoder.take_buffer();
                builder.code.raw(&bytes);
            }
            Err(error) => {
                // Decoded instructions with an operand replaced by a shorter
                // or equal form always encode; if one ever does not, stop
                // there with a message instead of running something else.
                let _ = self.encoder.take_buffer();
                debug_assert!(false, "{instruction}: {error}");
                let pc = builder.instruction_pc;
                builder.exit_now(ExitKind::Emulate, pc);
            }
        }
    }

    fn copy_rip_relative(&mut self, builder: &mut Builder, instruction: &Instruction) {
        let target = instruction.ip_rel_memory_address();
        if reachable(builder.code.here(), target) {
            return self.encode(builder, instruction);
        }
        let mut changed = *instruction;
        if target < 0x8000_0000 {
            changed.set_memory_base(Register::None);
            changed.set_memory_index(Register::None);
            changed.set_memory_displ_size(8);
            changed.set_memory_displacement64(target);
            return self.encode(builder, &changed);
        }
        let scratch = self.scratch(instruction, &builder.borrowed);
        builder.spill(scratch);
        builder.mark(1 << scratch);
        builder.code.load_imm(scratch, target);
        changed.set_memory_base(REGISTERS[scratch]);
        changed.set_memory_displ_size(0);
        changed.set_memory_displacement64(0);
        self.encode(builder, &changed);
        builder.unspill(scratch);
    }

    /// GS belongs to the vm; the guest's is put in place for one instruction.
    fn with_guest_gs(&mut self, builder: &mut Builder, instruction: &Instruction, bytes: &[u8]) {
        let set_gs = |builder: &mut Builder, value: Option<u64>| {
            builder.spill(reg::RAX);
            match value {
                Some(value) => builder.code.load_imm(reg::RAX, value),
                None => builder.code.load(reg::RAX, Emitter::field(offset::GS_BASE)),
            }
            // wrgsbase rax
            builder.code.raw(&[0xf3, 0x48, 0x0f, 0xae, 0xd8]);
            builder.unspill(reg::RAX);
        };
        set_gs(builder, None);
        builder.mark(0);
        if instruction.is_ip_rel_memory_operand() {
            self.copy_rip_relative(builder, instruction);
        } else {
            builder.code.raw(bytes);
        }
        set_gs(builder, Some(layout::CONTEXT));
    }

    /// A general register the instruction does not touch.
    fn scratch(&mut self, instruction: &Instruction, also_not: &[Reg]) -> Reg {
        let mut used = 1 << reg::RSP | self.named(instruction);
        for number in also_not {
            used |= 1 << number;
        }
        // No instruction names more than a handful of registers; cmpxchg16b
        // with two address registers has six.
        (0..16)
            .find(|number| used & (1 << number) == 0)
            .unwrap_or(reg::R15)
    }

    /// The general registers an instruction names, one bit each.
    fn named(&mut self, instruction: &Instruction) -> u32 {
        let info = self.info.info(instruction);
        let registers = info.used_registers().iter().map(|used| used.register());
        let addresses = info
            .used_memory()
            .iter()
            .flat_map(|memory| [memory.base(), memory.index()]);
        registers
            .chain(addresses)
            .filter_map(general_number)
            .fold(0, |named, number| named | 1 << number)
    }

    /// The instruction that ends a block.
    fn end(
        &mut self,
        builder: &mut Builder,
        instruction: &Instruction,
        bytes: &[u8],
        end: End,
        stack_open: bool,
    ) {
        let next = instruction.next_ip();
        let done = builder.index + 1;
        match end {
            End::Jump => {
                let target = instruction.near_branch_target();
                if let Some(waiting) = builder.waits {
                    let from = builder.code.jump(builder.cache.common_exit);
                    builder.repeat_wait(waiting, from, done, target);
                } else {
                    builder.jump_direct(target);
                }
            }
            End::Conditional => {
                if let Some(number) = condition_number(instruction) {
                    let target = instruction.near_branch_target();
                    if let Some(waiting) = builder.waits {
                        let common_exit = builder.cache.common_exit;
                        let from = builder.code.jump_if(number, common_exit);
                        builder.repeat_wait(waiting, from, done, target);
                    } else {
                        builder.branch_direct(number, target);
                    }
                } else {
                    // jrcxz, loop…: short only, so hop over a long jump.
                    builder.code.raw(&counted_branch(bytes, 5));
                    builder.jump_direct(next);
                    builder.jump_direct(instruction.near_branch_target());
                    return;
                }
                builder.jump_direct(next);
            }
            End::Call => {
                builder.push_return_address(next);
                builder.jump_direct(instruction.near_branch_target());
            }
            End::IndirectJump | End::IndirectCall => {
                let scratch_target = reg::RCX;
                builder.spill(reg::RCX);
                builder.mark(1 << reg::RCX);
                self.load_branch_operand(builder, instruction, scratch_target);
                if end == End::IndirectCall {
                    builder.push_return_address(next);
                }
                builder.index = done;
                builder.jump_indirect();
            }
            End::Return => {
                builder.spill(reg::RCX);
                builder.mark(1 << reg::RCX);
                builder.code.pop(reg::RCX);
                if instruction.op_count() == 1 {
                    // lea rsp, [rsp + imm16]
                    builder.code.raw(&[0x48, 0x8d, 0xa4, 0x24]);
                    let bytes = u32::from(instruction.immediate16()).to_le_bytes();
                    builder.code.raw(&bytes);
                }
                builder.index = done;
                builder.jump_indirect();
            }
            End::Syscall => {
                builder.index = done;
                builder.mark(0);
                builder.exit_now(ExitKind::Syscall, next);
            }
            End::Pause => {
                builder.index = done;
                builder.mark(0);
                builder.exit_now(ExitKind::Pause, next);
            }
            End::Sequencer => {
                self.copy(builder, instruction, bytes);
                builder.index = done;
                builder.instruction_pc = next;
                builder.mark(0);
                if stack_open {
                    self.look_at_stack(builder);
                }
                // Most of the time nobody asks. The flags may be alive.
                builder.spill(reg::RCX);
                let asked = Emitter::field(offset::TELLS_SEQUENCERS);
                builder.code.load(reg::RCX, asked);
                // jrcxz past the exit
                builder.code.raw(&[0xe3, 0]);
                let on = builder.code.here() - 1;
                builder.unspill(reg::RCX);
                builder.exit_now(ExitKind::Sequencer, next);
                builder.code.patch_rel8_here(on);
                builder.unspill(reg::RCX);
                builder.jump_direct(next);
            }
            End::StoresPointers => {
                self.copy(builder, instruction, bytes);
                builder.index = done;
                builder.exit_now(ExitKind::PointersStored, instruction.ip());
            }
            End::Emulate => {
                builder.index = done;
                builder.exit_now(ExitKind::Emulate, instruction.ip());
            }
            End::Trap => {
                builder.code.raw(bytes);
                builder.exit_now(ExitKind::Undecodable, instruction.ip());
            }
            End::Continue | End::Undecodable => unreachable!("not ends of an instruction"),
        }
    }

    /// `mov to, <operand of an indirect branch>`
    fn load_branch_operand(&mut self, builder: &mut Builder, instruction: &Instruction, to: Reg) {
        let mut load = match instruction.op0_kind() {
            OpKind::Register => {
                let from = general_number(instruction.op0_register()).unwrap_or(reg::RAX);
                builder.code.move_reg(to, from);
                return;
            }
            _ => Instruction::with2(
                Code::Mov_r64_rm64,
                REGISTERS[to],
                MemoryOperand::with_base(Register::RAX),
            )
            .unwrap_or_default(),
        };
        load.set_memory_base(instruction.memory_base());
        load.set_memory_index(instruction.memory_index());
        load.set_memory_index_scale(instruction.memory_index_scale());
        load.set_memory_displ_size(instruction.memory_displ_size());
        load.set_memory_displacement64(instruction.memory_displacement64());
        load.set_segment_prefix(instruction.segment_prefix());
        if instruction.is_ip_rel_memory_operand() {
            let target = instruction.ip_rel_memory_address();
            if !reachable(builder.code.here(), target) {
                // The destination itself can carry the address.
                builder.code.load_imm(to, target);
                load.set_memory_base(REGISTERS[to]);
                load.set_memory_displ_size(0);
                load.set_memory_displacement64(0);
            }
        }
        self.encode(builder, &load);
    }
}
