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

use crate::cache::{Cache, ExitKind, LINKED, MapEntry, PendingExit, REPEAT, Translation};
use crate::context::{offset, reg};
use crate::emit::{Combine, Emitter, Reg, condition};
use crate::flags;
use crate::layout;
use crate::observe::{AccessSite, Sites, known};
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, InstructionInfoFactory,
    MemoryOperand, Mnemonic, OpAccess, OpKind, Register,
};
use std::collections::HashSet;

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

/// Bytes of a conditional jump with a 32-bit distance.
const JCC_LENGTH: u64 = 6;

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
    /// Leave after every locked instruction.
    pub sequencers: bool,
    /// Addresses at which control goes to the vm first.
    pub hooks: HashSet<u64>,
}

/// Gives up to 15 executable bytes at a guest address; fewer at the end of a
/// mapping, none where nothing can be executed.
pub type Fetch<'a> = &'a dyn Fn(u64, &mut [u8; 15]) -> usize;

pub struct Translator {
    info: InstructionInfoFactory,
    encoder: Encoder,
}

struct Builder<'a> {
    code: Emitter,
    map: Vec<MapEntry>,
    exits: Vec<PendingExit>,
    first_exit: u32,
    stubs: Vec<Stub>,
    /// (displacement address, guest target, branch) of direct branches
    direct: Vec<(u64, u64, u64)>,
    /// (displacement address, value) of RIP-relative operands
    literals: Vec<(u64, u64)>,
    pc: u64,
    length: u32,
    index: u16,
    counted: bool,
    /// Accesses go to the ring.
    records: bool,
    /// Accesses the observer knows do not.
    only_unknown: bool,
    /// Registers that no instruction of the block names, borrowed from its
    /// beginning to wherever it is left; the guest's values are in the spill
    /// slots.
    borrowed: Vec<Reg>,
    /// Code behind the block that records an access which is not known.
    unknown: Vec<Unknown>,
    after_hook: u64,
    after_complex: u64,
    instruction_pc: u64,
    cache: &'a Cache,
    variant: u32,
    /// Code behind the block that it depends on.
    seen: Vec<std::ops::Range<u64>>,
}

/// An access whose check leads behind the block if it is not known.
struct Unknown {
    /// rel32s that must point there.
    from: Vec<u64>,
    back: u64,
    operand: Operand,
    site: u32,
    address: Reg,
    other: Reg,
    /// The flags are in rax, the guest's rax in its spill slot.
    flags_alive: bool,
    /// A write after which the observer's epoch may be another.
    begins_epoch: bool,
}

/// Code behind the block for a way out of it.
struct Stub {
    /// rel32 that must point to the stub.
    from: u64,
    kind: StubKind,
    pc: u64,
    /// Instructions executed when it is reached.
    done: u16,
    adjust: i32,
    /// The flags are alive (and, but for a `SideExit`, saved in rax).
    restore_flags: bool,
    /// Registers to give back.
    borrowed: Vec<Reg>,
}

enum StubKind {
    Exit(ExitKind),
    /// There is something in the ring: leave if it is much, or if the
    /// comparison is stale.
    Ring {
        back: u64,
    },
    /// The unlikely side of a branch in a trace.
    SideExit(u64),
}

impl Stub {
    /// Stands where a stub has been emitted.
    const DONE: Stub = Stub {
        from: 0,
        kind: StubKind::Exit(ExitKind::Fault),
        pc: 0,
        done: 0,
        adjust: 0,
        restore_flags: false,
        borrowed: Vec::new(),
    };
}

impl Default for Translator {
    fn default() -> Self {
        Translator {
            info: InstructionInfoFactory::new(),
            encoder: Encoder::new(64),
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
        begins_epoch: &mut dyn FnMut(u64) -> bool,
    ) -> Translation {
        let base = cache.next_address();
        let limit = match variant {
            LINKED => MAX_BLOCK,
            REPEAT => 1,
            _ => (variant as usize).min(MAX_BLOCK),
        };
        let likely = |branch: u64, target: u64| cache.was_taken(branch, target);
        let mut decoded = decode(pc, limit, shape, fetch, instrumentation, &likely);
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
            borrowed: Vec::new(),
            unknown: Vec::new(),
            after_hook: 0,
            after_complex: 0,
            instruction_pc: pc,
            cache,
            variant,
            seen: Vec::new(),
        };
        self.build(
            &mut builder,
            &decoded,
            fetch,
            instrumentation,
            sites,
            begins_epoch,
        );
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
        begins_epoch: &mut dyn FnMut(u64) -> bool,
    ) {
        builder.mark(0);
        if decoded.hook {
            builder.exit_now(ExitKind::Hook, builder.pc);
            builder.after_hook = builder.code.here();
        }
        if decoded.complex {
            builder.exit_now(ExitKind::Complex, builder.pc);
            builder.after_complex = builder.code.here();
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
        if builder.only_unknown && !decoded.complex {
            let free = self.unnamed(decoded);
            builder.borrow(&free);
        }
        for (index, step) in decoded.steps.iter().enumerate() {
            let instruction = &step.instruction;
            builder.index = index as u16;
            builder.instruction_pc = instruction.ip();
            if let Some((place, flags_alive)) = count_at
                && place == index
            {
                builder.count(flags_alive);
            }
            builder.mark(0);
            if instrumentation.accesses && !decoded.complex && builder.variant != REPEAT {
                let flags_alive =
                    !decoded.flags_overwritten(index, count_at.map(|(place, _)| place));
                self.record_accesses(builder, instruction, flags_alive, sites, begins_epoch);
            }
            if step.then == Then::Next && index == last && decoded.end != End::Continue {
                builder.give_back();
            }
            match step.then {
                Then::Next if index == last && decoded.end != End::Continue => {
                    self.end(builder, instruction, step.bytes(), decoded.end);
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
            builder.jump_direct(decoded.next);
        }
        builder.seen = ahead.seen;
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
        let info = self.info.info(instruction);
        let mut used = 1u32 << reg::RSP;
        for register in info.used_registers() {
            if let Some(number) = general_number(register.register()) {
                used |= 1 << number;
            }
        }
        for memory in info.used_memory() {
            for register in [memory.base(), memory.index()] {
                if let Some(number) = general_number(register) {
                    used |= 1 << number;
                }
            }
        }
        for number in also_not {
            used |= 1 << number;
        }
        // No instruction names more than a handful of registers; cmpxchg16b
        // with two address registers has six.
        (0..16)
            .find(|number| used & (1 << number) == 0)
            .unwrap_or(reg::R15)
    }

    /// The instruction that ends a block.
    fn end(&mut self, builder: &mut Builder, instruction: &Instruction, bytes: &[u8], end: End) {
        let next = instruction.next_ip();
        let done = builder.index + 1;
        match end {
            End::Jump => builder.jump_direct(instruction.near_branch_target()),
            End::Conditional => {
                if let Some(number) = condition_number(instruction) {
                    builder.branch_direct(number, instruction.near_branch_target());
                } else {
                    // jrcxz, loop…: short only, so hop over a long jump.
                    builder.code.raw(&bytes[..bytes.len() - 1]);
                    builder.code.raw(&[5]);
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
                builder.exit_now(ExitKind::Sequencer, next);
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

    /// Memory operands of an instruction that an observer of accesses sees.
    fn accesses(&mut self, instruction: &Instruction) -> Vec<Operand> {
        let mut operands = Vec::new();
        if !touches_memory(instruction) {
            return operands;
        }
        let stack = instruction.is_stack_instruction()
            || matches!(instruction.flow_control(), FlowControl::Return)
            || is_call(instruction);
        let locked = is_locked(instruction);
        for memory in self.info.info(instruction).used_memory() {
            // Pushes, pops, return addresses: the thread's own stack.
            if stack && (memory.base() == Register::RSP && !explicit_is(instruction, memory)) {
                continue;
            }
            let (read, write) = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                OpAccess::None | OpAccess::NoMemAccess => continue,
            };
            let size = memory.memory_size().size() as u32;
            if size == 0 {
                continue;
            }
            operands.push(Operand {
                base: memory.base(),
                index: memory.index(),
                scale: memory.scale(),
                displacement: memory.displacement(),
                segment: memory.segment(),
                size,
                read,
                write,
                locked,
            });
        }
        operands
    }

    /// Writes a record for every access of `instruction` into the ring, but
    /// for those the observer knows.
    fn record_accesses(
        &mut self,
        builder: &mut Builder,
        instruction: &Instruction,
        flags_alive: bool,
        sites: &mut Sites,
        begins_epoch: &mut dyn FnMut(u64) -> bool,
    ) {
        for operand in self.accesses(instruction) {
            let site = sites.add(AccessSite {
                pc: instruction.ip(),
                size: operand.size,
                read: operand.read,
                write: operand.write,
                locked: operand.locked,
                correction: builder.correction(),
            });
            let begins_epoch = builder.only_unknown
                && operand.write
                && (operand.locked || begins_epoch(instruction.ip()));
            let (address, other) = match builder.borrowed.as_slice() {
                [address, other, ..] => (*address, *other),
                borrowed => {
                    let mut avoid: Vec<Reg> = [operand.base, operand.index]
                        .into_iter()
                        .filter_map(general_number)
                        .collect();
                    avoid.push(reg::RAX);
                    avoid.extend(borrowed);
                    let address = self.scratch(instruction, &avoid);
                    avoid.push(address);
                    (address, self.scratch(instruction, &avoid))
                }
            };
            let spills = if builder.borrowed.is_empty() {
                vec![address, other]
            } else {
                Vec::new()
            };
            for register in &spills {
                builder.spill(*register);
            }
            let known_possible = !operand.locked && is_whole(operand.size);
            self.load_address(builder, &operand, address, other);
            if builder.only_unknown && known_possible {
                let from = builder.check(&operand, address, other, flags_alive);
                builder.unknown.push(Unknown {
                    from,
                    back: builder.code.here(),
                    operand,
                    site,
                    address,
                    other,
                    flags_alive,
                    begins_epoch,
                });
                if flags_alive {
                    builder.restore_flags();
                }
            } else {
                builder.write_record(site, address, other);
                if begins_epoch {
                    builder.stop_comparing();
                }
            }
            for register in spills {
                builder.unspill(register);
            }
            builder.mark(0);
        }
    }

    /// The code behind the block that writes a record for an access which is
    /// not known, and goes back.
    fn record_unknown(&mut self, builder: &mut Builder) {
        for unknown in std::mem::take(&mut builder.unknown) {
            let Unknown {
                from,
                back,
                operand,
                site,
                address,
                other,
                flags_alive,
                begins_epoch,
            } = unknown;
            let here = builder.code.here();
            for rel32 in from {
                builder.code.patch_rel32(rel32, here);
            }
            // rax holds the flags where they are alive.
            let rax_is_named = [operand.base, operand.index]
                .into_iter()
                .any(|register| general_number(register) == Some(reg::RAX));
            let exchange = flags_alive && rax_is_named;
            if exchange {
                builder.code.store(Emitter::field(offset::FLAGS), reg::RAX);
                builder.unspill(reg::RAX);
            }
            self.load_address(builder, &operand, address, other);
            if exchange {
                builder.code.load(reg::RAX, Emitter::field(offset::FLAGS));
            }
            if operand.write && !begins_epoch {
                builder.stop_comparing_at_many(&operand, address, other);
            }
            builder.write_record(site, address, other);
            if begins_epoch {
                builder.stop_comparing();
            }
            builder.code.jump(back);
        }
    }

    /// Registers that no instruction of the block names and that nothing the
    /// translator adds uses.
    fn unnamed(&mut self, decoded: &Decoded) -> Vec<Reg> {
        let mut used = 1u32 << reg::RSP | 1 << reg::RAX | 1 << reg::RCX | 1 << reg::RDX;
        for step in &decoded.steps {
            let info = self.info.info(&step.instruction);
            for register in info.used_registers() {
                if let Some(number) = general_number(register.register()) {
                    used |= 1 << number;
                }
            }
            for memory in info.used_memory() {
                for register in [memory.base(), memory.index()] {
                    if let Some(number) = general_number(register) {
                        used |= 1 << number;
                    }
                }
            }
        }
        (0..16).filter(|number| used & (1 << number) == 0).collect()
    }

    /// `lea to, <operand>`, with the segment base; flags untouched.
    fn load_address(&mut self, builder: &mut Builder, operand: &Operand, to: Reg, other: Reg) {
        let plain = matches!(operand.base, Register::None | Register::RIP | Register::EIP)
            && operand.index == Register::None;
        if plain {
            builder.code.load_imm(to, operand.displacement);
        } else {
            let mut lea = Instruction::with2(
                Code::Lea_r64_m,
                REGISTERS[to],
                MemoryOperand::with_base(Register::RAX),
            )
            .unwrap_or_default();
            lea.set_memory_base(operand.base);
            lea.set_memory_index(operand.index);
            lea.set_memory_index_scale(operand.scale);
            // The displacement has the width of the address.
            let narrow = [operand.base, operand.index]
                .iter()
                .any(|register| register.is_gpr32());
            lea.set_memory_displ_size(if narrow { 4 } else { 8 });
            lea.set_memory_displacement64(operand.displacement);
            self.encode(builder, &lea);
        }
        match operand.segment {
            // rdfsbase other
            Register::FS => {
                let rex = 0x48 | (other as u8 >> 3);
                builder
                    .code
                    .raw(&[0xf3, rex, 0x0f, 0xae, 0xc0 | (other as u8 & 7)]);
            }
            Register::GS => builder.code.load(other, Emitter::field(offset::GS_BASE)),
            _ => return,
        }
        // lea to, [to + other]
        let sum = Instruction::with2(
            Code::Lea_r64_m,
            REGISTERS[to],
            MemoryOperand::with_base_index(REGISTERS[to], REGISTERS[other]),
        )
        .unwrap_or_default();
        self.encode(builder, &sum);
    }
}

/// A memory operand as an observer sees it.
struct Operand {
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
    segment: Register,
    size: u32,
    read: bool,
    write: bool,
    locked: bool,
}

struct Decoded {
    steps: Vec<Step>,
    hook: bool,
    complex: bool,
    end: End,
    /// Where execution goes on if the block does not end with a branch.
    next: u64,
}

struct Step {
    instruction: Instruction,
    bytes: [u8; 15],
    then: Then,
}

impl Step {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.instruction.len()]
    }
}

/// How a block goes on after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Next,
    /// Along an unconditional jump.
    Jump,
    /// Into a called function.
    Call,
    /// Out of one, if the return address is this one.
    Return(u64),
    /// Past a branch; under `leave_if` to `target` instead.
    Branch {
        leave_if: u8,
        target: u64,
    },
}

fn decode_one(pc: u64, fetch: Fetch) -> Option<(Instruction, [u8; 15])> {
    let mut bytes = [0; 15];
    let length = fetch(pc, &mut bytes);
    let instruction = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode();
    (length > 0 && !instruction.is_invalid()).then_some((instruction, bytes))
}

/// Finds the instructions of a block.
fn decode(
    pc: u64,
    limit: usize,
    shape: Shape,
    fetch: Fetch,
    instrumentation: &Instrumentation,
    likely: &dyn Fn(u64, u64) -> bool,
) -> Decoded {
    let mut decoded = Decoded {
        steps: Vec::with_capacity(16),
        hook: instrumentation.hooks.contains(&pc),
        complex: false,
        end: End::Continue,
        next: pc,
    };
    let mut calls = Vec::new();
    // Length of the first time round, when the path comes back to its start.
    let mut lap = 0;
    while decoded.steps.len() < limit {
        let at = decoded.next;
        let first = decoded.steps.is_empty();
        if !first && instrumentation.hooks.contains(&at) {
            return decoded;
        }
        if !first && at == pc {
            lap = if lap == 0 { decoded.steps.len() } else { lap };
            if decoded.steps.len() + lap > limit {
                return decoded;
            }
        }
        // Distances within a block are kept in 32 bits.
        if at.wrapping_sub(pc) as i64 != i64::from(at.wrapping_sub(pc) as i32) {
            return decoded;
        }
        let Some((instruction, bytes)) = decode_one(at, fetch) else {
            if first {
                decoded.end = End::Undecodable;
            }
            return decoded;
        };
        if instrumentation.accesses && is_complex(&instruction) {
            if !first {
                return decoded;
            }
            decoded.complex = true;
        }
        let mut end = classify_end(&instruction);
        if end == End::Continue && instrumentation.sequencers && is_locked(&instruction) {
            end = End::Sequencer;
        }
        let mut step = Step {
            instruction,
            bytes,
            then: Then::Next,
        };
        decoded.next = instruction.next_ip();
        let full = decoded.steps.len() + 1 == limit;
        if end != End::Continue && shape == Shape::Trace && !full {
            follow(&mut step, end, &mut decoded.next, &mut calls, likely);
        }
        let followed = step.then != Then::Next;
        decoded.steps.push(step);
        if end != End::Continue && !followed {
            decoded.end = end;
            return decoded;
        }
        // An instruction worked out by the vm stands alone.
        if decoded.complex {
            return decoded;
        }
    }
    decoded
}

/// Makes a trace go on past a branch, if there is a likely way.
fn follow(
    step: &mut Step,
    end: End,
    next: &mut u64,
    calls: &mut Vec<u64>,
    likely: &dyn Fn(u64, u64) -> bool,
) {
    let instruction = &step.instruction;
    let (here, behind) = (instruction.ip(), instruction.next_ip());
    match end {
        End::Jump => {
            step.then = Then::Jump;
            *next = instruction.near_branch_target();
        }
        End::Call => {
            step.then = Then::Call;
            *next = instruction.near_branch_target();
            calls.push(behind);
        }
        End::Return if instruction.op_count() == 0 => {
            if let Some(back) = calls.pop() {
                step.then = Then::Return(back);
                *next = back;
            }
        }
        End::Conditional => {
            let Some(condition) = condition_number(instruction) else {
                return;
            };
            let target = instruction.near_branch_target();
            // What was seen decides; where both or neither were, loops repeat
            // and forward branches are not taken.
            let take = match (likely(here, target), likely(here, behind)) {
                (true, false) => true,
                (false, true) => false,
                _ => target <= here,
            };
            if take {
                step.then = Then::Branch {
                    leave_if: condition ^ 1,
                    target: behind,
                };
                *next = target;
            } else {
                step.then = Then::Branch {
                    leave_if: condition,
                    target,
                };
            }
        }
        _ => {}
    }
}

/// What lies ahead of a block, as far as it says whether flags are dead.
struct Ahead<'a> {
    fetch: Fetch<'a>,
    hooks: &'a HashSet<u64>,
    /// Code looked at: if it changes, the block is no longer right.
    seen: Vec<std::ops::Range<u64>>,
}

impl Ahead<'_> {
    /// True if the flags are dead at `pc`.
    fn flags_dead_at(&mut self, pc: u64) -> bool {
        self.overwrites(flags::Destroyed::all(), flags::WINDOW, pc)
    }

    /// True if destroyed flags are overwritten unseen within `left`
    /// instructions from `pc` on, along unconditional jumps.
    fn overwrites(&mut self, mut destroyed: flags::Destroyed, left: usize, pc: u64) -> bool {
        let mut at = pc;
        for _ in 0..left {
            // Whoever asked for the hook looks at the registers.
            if self.hooks.contains(&at) {
                return false;
            }
            let Some((instruction, _)) = decode_one(at, self.fetch) else {
                return false;
            };
            self.seen.push(at..instruction.next_ip());
            let end = classify_end(&instruction);
            if !matches!(end, End::Continue | End::Jump) {
                return false;
            }
            match destroyed.pass(&instruction) {
                flags::Fate::Unseen => return true,
                flags::Fate::Seen => return false,
                flags::Fate::Open => {}
            }
            at = if end == End::Jump {
                instruction.near_branch_target()
            } else {
                instruction.next_ip()
            };
        }
        false
    }
}

impl Decoded {
    /// Where the whole block is counted: the index of the instruction before
    /// it, and whether flags are alive there.
    fn counting_place(&self, ahead: &mut Ahead) -> (usize, bool) {
        let tail = self
            .steps
            .iter()
            .rposition(|step| matches!(step.then, Then::Branch { .. } | Then::Return(_)))
            .map_or(0, |index| index + 1);
        if tail == self.steps.len() {
            // The trace ends right behind a branch.
            return (tail, !ahead.flags_dead_at(self.next));
        }
        match (tail..self.steps.len()).find(|index| self.flags_dead_before(*index, ahead)) {
            Some(index) => (index, false),
            None => (tail, true),
        }
    }

    /// True if the flags are dead before the step `index`, behind which there
    /// is no branch but the last step.
    fn flags_dead_before(&self, index: usize, ahead: &mut Ahead) -> bool {
        let mut destroyed = flags::Destroyed::all();
        let mut left = flags::WINDOW;
        for (at, step) in self.steps.iter().enumerate().skip(index) {
            let ends = at + 1 == self.steps.len()
                && !matches!(self.end, End::Continue | End::Jump | End::Conditional);
            if left == 0 || ends {
                return false;
            }
            match destroyed.pass(&step.instruction) {
                flags::Fate::Unseen => return true,
                flags::Fate::Seen => return false,
                flags::Fate::Open => left -= 1,
            }
        }
        let Some(last) = self.steps.last().map(|step| &step.instruction) else {
            return false;
        };
        match self.end {
            End::Continue => ahead.overwrites(destroyed, left, self.next),
            End::Jump => ahead.overwrites(destroyed, left, last.near_branch_target()),
            End::Conditional => {
                ahead.overwrites(destroyed, left, last.near_branch_target())
                    && ahead.overwrites(destroyed, left, last.next_ip())
            }
            _ => false,
        }
    }
}

impl Decoded {
    /// The flags before the instruction at `index` are overwritten before the
    /// block is left, counting included.
    fn flags_overwritten(&self, index: usize, counted_at: Option<usize>) -> bool {
        let steps = self.steps.iter().enumerate().skip(index);
        flags::overwritten(steps.map(|(at, step)| {
            let may_leave = matches!(step.then, Then::Branch { .. } | Then::Return(_));
            let counts = at > index && counted_at == Some(at);
            let leaves = counts || is_repeated(&step.instruction);
            (&step.instruction, leaves, may_leave)
        }))
    }
}

/// An access that lies in one granule if it is aligned, or is made of whole
/// ones.
fn is_whole(size: u32) -> bool {
    size.is_power_of_two() && size <= 64
}

/// How a block ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Not at all: the next instruction follows.
    Continue,
    Jump,
    Conditional,
    Call,
    IndirectJump,
    IndirectCall,
    Return,
    Syscall,
    Pause,
    /// A locked instruction, where the schedule wants to stop after it.
    Sequencer,
    /// The x87 pointers go to memory.
    StoresPointers,
    Emulate,
    /// The instruction itself raises an exception.
    Trap,
    Undecodable,
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(classify_end(instruction), End::Call | End::IndirectCall)
}

fn classify_end(instruction: &Instruction) -> End {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Syscall => return End::Syscall,
        Pause => return End::Pause,
        Cpuid | Rdtsc | Rdtscp | Rdrand | Rdseed | Xgetbv | Rdpid | Rdgsbase | Wrgsbase
        | Xbegin | Sysenter | Iret | Iretd | Iretq | Retf | Sysexit | Sysret => {
            return End::Emulate;
        }
        Fnstenv | Fstenv | Fnsave | Fsave | Fxsave | Fxsave64 | Xsave | Xsave64 | Xsavec
        | Xsavec64 | Xsaveopt | Xsaveopt64 => return End::StoresPointers,
        Ud0 | Ud1 | Ud2 | Int3 | Int1 | Hlt => return End::Trap,
        Int | Lgs => return End::Emulate,
        // Loading GS would take the vm's own context away.
        Mov | Pop
            if instruction.op0_kind() == OpKind::Register
                && instruction.op0_register() == Register::GS =>
        {
            return End::Emulate;
        }
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::XbeginXabortXend => End::Continue,
        // A 16-bit operand size truncates rip: nothing sensible can follow.
        _ if instruction.is_jmp_far() || instruction.is_jmp_far_indirect() => End::Emulate,
        FlowControl::UnconditionalBranch
            if instruction.near_branch64() != 0 || instruction.is_jmp_short_or_near() =>
        {
            End::Jump
        }
        FlowControl::ConditionalBranch => End::Conditional,
        FlowControl::Call if instruction.is_call_near() => End::Call,
        FlowControl::IndirectBranch if instruction.is_jmp_near_indirect() => End::IndirectJump,
        FlowControl::IndirectCall if instruction.is_call_near_indirect() => End::IndirectCall,
        FlowControl::Return => End::Return,
        FlowControl::Interrupt | FlowControl::Exception => End::Trap,
        _ => End::Emulate,
    }
}

fn touches_memory(instruction: &Instruction) -> bool {
    instruction.op_kinds().any(|kind| {
        !matches!(
            kind,
            OpKind::Register
                | OpKind::NearBranch16
                | OpKind::NearBranch32
                | OpKind::NearBranch64
                | OpKind::Immediate8
                | OpKind::Immediate8_2nd
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
    })
}

/// A string instruction that repeats.
pub fn is_repeated(instruction: &Instruction) -> bool {
    (instruction.has_rep_prefix() || instruction.has_repne_prefix())
        && instruction.is_string_instruction()
}

/// True if a repeated string instruction with this rcx is executed in parts:
/// the comparison that translated code makes.
pub fn is_long_repeat(rcx: u64) -> bool {
    (rcx >> REPEAT_PART.ilog2()) as u32 != 0
}

/// Accesses whose addresses or extent only the machine state tells: repeated
/// string operations, gathers and scatters, masked vectors, bit strings and
/// state saves.
fn is_complex(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    if !touches_memory(instruction) {
        return false;
    }
    if is_repeated(instruction) {
        return true;
    }
    if instruction.op_mask() != Register::None || instruction.is_vsib() {
        return true;
    }
    match instruction.mnemonic() {
        Bt | Bts | Btr | Btc => instruction.op1_kind() == OpKind::Register,
        Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64 | Xsaves | Xsaves64
        | Xrstor | Xrstor64 | Xrstors | Xrstors64 | Maskmovdqu | Maskmovq | Vmaskmovdqu
        | Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq | Enter | Xlatb => true,
        _ => false,
    }
}

/// A locked instruction: paper 000's sequencer.
fn is_locked(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || (instruction.mnemonic() == Mnemonic::Xchg
            && instruction.op_kinds().any(|kind| kind == OpKind::Memory))
}

/// True if `memory` is the operand written in the instruction, not the stack
/// slot it implies. `pop` takes the slot away before it works out an address
/// from the stack pointer.
fn explicit_is(instruction: &Instruction, memory: &iced_x86::UsedMemory) -> bool {
    let pops = instruction.mnemonic() == Mnemonic::Pop;
    let moved = if pops && instruction.memory_base() == Register::RSP {
        instruction.stack_pointer_increment() as i64 as u64
    } else {
        0
    };
    (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory)
        && !(pops && memory.access() == OpAccess::Read)
        && instruction.memory_base() == memory.base()
        && instruction.memory_index() == memory.index()
        && instruction.memory_displacement64().wrapping_add(moved) == memory.displacement()
}

fn uses_gs(instruction: &Instruction) -> bool {
    instruction.segment_prefix() == Register::GS && touches_memory(instruction)
}

const REGISTERS: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

fn general_number(register: Register) -> Option<Reg> {
    let full = register.full_register();
    REGISTERS.iter().position(|candidate| *candidate == full)
}

/// The machine's number of a conditional jump's condition; none for the
/// counted ones (loop, jrcxz).
fn condition_number(instruction: &Instruction) -> Option<u8> {
    if instruction.is_jcc_short_or_near() {
        use iced_x86::ConditionCode::*;
        Some(match instruction.condition_code() {
            o => 0,
            no => 1,
            b => 2,
            ae => 3,
            e => 4,
            ne => 5,
            be => 6,
            a => 7,
            s => 8,
            ns => 9,
            p => 10,
            np => 11,
            l => 12,
            ge => 13,
            le => 14,
            g => 15,
            None => return Option::None,
        })
    } else {
        None
    }
}

/// Within reach of a RIP-relative displacement, with room for the length of
/// the instruction and of what is put before it.
fn reachable(from: u64, target: u64) -> bool {
    let distance = target.wrapping_sub(from) as i64;
    distance.unsigned_abs() < 0x7fff_0000
}

impl Builder<'_> {
    fn mark(&mut self, spilled: u16) {
        let borrowed = self.borrowed.iter().fold(0, |all, one| all | 1 << one);
        self.map.push(MapEntry {
            host: self.code.bytes.len() as u32,
            index: self.index,
            guest: self.instruction_pc.wrapping_sub(self.pc) as i32,
            spilled: spilled | borrowed,
            counted: self.counted,
        });
    }

    fn spill_slot(register: Reg) -> u64 {
        Emitter::field(offset::SPILL + 8 * register)
    }

    fn spill(&mut self, register: Reg) {
        self.code.store(Self::spill_slot(register), register);
    }

    fn unspill(&mut self, register: Reg) {
        self.code.load(register, Self::spill_slot(register));
    }

    /// Takes two of the registers until the block is left.
    fn borrow(&mut self, free: &[Reg]) {
        if let [address, other, ..] = free {
            self.borrowed = vec![*address, *other];
            for register in self.borrowed.clone() {
                self.spill(register);
            }
        }
    }

    /// The block is about to be left for good.
    fn give_back(&mut self) {
        for register in std::mem::take(&mut self.borrowed) {
            self.unspill(register);
        }
    }

    /// Compares the shadow word of the access at `address` with the present
    /// epoch. Returns the places of jumps to be made if it is not known; flags
    /// that are alive are left in rax.
    fn check(&mut self, operand: &Operand, address: Reg, other: Reg, alive: bool) -> Vec<u64> {
        if alive {
            self.save_flags();
        }
        let unknown = self.cache.common_exit;
        let which = layout::SHADOW - layout::CONTEXT + if operand.write { 8 } else { 0 };
        let which = which as u32;
        const LOAD: u8 = 0x8b;
        const TEST: u8 = 0x85;
        self.code.move_reg(other, address);
        let fold = Emitter::field(offset::KNOWN_FOLD);
        self.code.combine(Combine::And, other, fold);
        if operand.size <= 8 {
            let masks = offset::KNOWN_MASKS + 64 * operand.size.ilog2() as usize;
            self.code.gs_scaled(LOAD, other, other, 2, which);
            let marked = Emitter::field(offset::KNOWN_MARKED);
            self.code.combine(Combine::Xor, other, marked);
            // and address, 7
            self.code.combine_imm8(0x83, 4, address, 7);
            self.code.gs_scaled(TEST, other, address, 3, masks as u32);
            return vec![self.code.jump_if(condition::NOT_EQUAL, unknown)];
        }
        // All granules it can reach into, in full.
        (0..=operand.size / 8)
            .map(|granule| {
                self.code
                    .gs_scaled(LOAD, address, other, 2, which + 32 * granule);
                let word = Emitter::field(offset::KNOWN_WORD);
                self.code.combine(Combine::Compare, address, word);
                self.code.jump_if(condition::NOT_EQUAL, unknown)
            })
            .collect()
    }

    /// The present epoch may end with the last record.
    fn stop_comparing(&mut self) {
        for field in [offset::KNOWN_WORD, offset::KNOWN_MARKED] {
            self.code.store_imm64(Emitter::field(field), -1);
        }
        self.code
            .store_imm64(Emitter::field(offset::KNOWN_STALE), 1);
    }

    /// The same, if the written word is one that only the observer
    /// understands. Leaves the address alone.
    fn stop_comparing_at_many(&mut self, operand: &Operand, address: Reg, other: Reg) {
        let granules = if operand.size <= 8 {
            0
        } else {
            operand.size / 8
        };
        for granule in 0..=granules {
            let which = (layout::SHADOW - layout::CONTEXT + 8) as u32 + 32 * granule;
            self.code.move_reg(other, address);
            let fold = Emitter::field(offset::KNOWN_FOLD);
            self.code.combine(Combine::And, other, fold);
            self.code.gs_scaled(0x8b, other, other, 2, which);
            // sar other, 52; cmp other, -1
            self.code.combine_imm8(0xc1, 7, other, 52);
            self.code.combine_imm8(0x83, 7, other, 0xff);
            // jne over it
            self.code.raw(&[0x75, 0]);
            let over = self.code.here() - 1;
            self.stop_comparing();
            self.code.patch_rel8_here(over);
        }
    }

    /// What must be added to the counter at this point to have the
    /// instructions that really remain.
    fn correction(&self) -> i32 {
        let done = i32::from(self.index);
        if self.counted {
            self.length as i32 - done
        } else {
            -done
        }
    }

    /// Subtracts the block from the counter; leaves for the vm if that makes
    /// it negative, or if the ring is nearly full.
    fn count(&mut self, flags_alive: bool) {
        self.counted = true;
        let adjust = self.correction();
        self.subtract(self.length, adjust, self.instruction_pc, flags_alive);
    }

    fn subtract(&mut self, instructions: u32, adjust: i32, pc: u64, flags_alive: bool) {
        if flags_alive {
            self.save_flags();
        }
        self.code
            .sub_memory(Emitter::field(offset::REMAINING), instructions);
        let leave = |builder: &mut Self, condition: u8, kind: StubKind| {
            let from = builder.code.jump_if(condition, builder.cache.common_exit);
            builder.stubs.push(Stub {
                from,
                kind,
                pc,
                done: 0,
                adjust,
                restore_flags: flags_alive,
                borrowed: builder.borrowed.clone(),
            });
        };
        leave(self, condition::SIGN, StubKind::Exit(ExitKind::Quantum));
        let position = Emitter::field(offset::RING_POSITION);
        if self.only_unknown {
            self.code.compare_memory(position, known::SOON);
            let back = self.code.here() + JCC_LENGTH;
            leave(self, condition::ABOVE, StubKind::Ring { back });
        } else if self.records {
            self.code.compare_memory(position, RING_LIMIT);
            leave(self, condition::ABOVE, StubKind::Exit(ExitKind::RingFull));
        }
        if flags_alive {
            self.restore_flags();
        }
    }

    /// A return inside a trace: goes on if it goes where it was called from,
    /// else leaves. The flags stay as they are.
    fn return_inline(&mut self, expected: u64) {
        self.spill(reg::RCX);
        self.mark(1 << reg::RCX);
        self.code.pop(reg::RCX);
        self.spill(reg::RDX);
        self.code.load_imm(reg::RDX, expected.wrapping_neg());
        // lea rcx, [rcx + rdx]; jrcxz
        self.code.raw(&[0x48, 0x8d, 0x0c, 0x11, 0xe3, 0]);
        let hit = self.code.here() - 1;
        self.code.load_imm(reg::RDX, expected);
        self.code.raw(&[0x48, 0x8d, 0x0c, 0x11]);
        self.code.store(Emitter::field(offset::RIP), reg::RCX);
        self.unspill(reg::RCX);
        self.unspill(reg::RDX);
        self.index += 1;
        self.exit_now(ExitKind::Indirect, self.instruction_pc);
        self.code.patch_rel8_here(hit);
        self.unspill(reg::RCX);
        self.unspill(reg::RDX);
    }

    fn save_flags(&mut self) {
        self.spill(reg::RAX);
        // lahf; seto al
        self.code.raw(&[0x9f, 0x0f, 0x90, 0xc0]);
    }

    fn restore_flags(&mut self) {
        // add al, 0x7f (overflows if the overflow flag was set); sahf
        self.code.raw(&[0x04, 0x7f, 0x9e]);
        self.unspill(reg::RAX);
    }

    fn leave(&mut self, kind: ExitKind, pc: u64, patch_at: u64, adjust: i32) {
        let id = self.first_exit + self.exits.len() as u32;
        self.exits.push(PendingExit {
            kind,
            pc,
            adjust,
            branch: 0,
            patch_at,
            stub: self.code.here(),
        });
        self.code.store_imm32(Emitter::field(offset::EXIT), id);
        self.code.jump(self.cache.common_exit);
    }

    /// Leaves for the vm.
    fn exit_now(&mut self, kind: ExitKind, pc: u64) {
        let adjust = self.correction();
        for register in self.borrowed.clone() {
            self.unspill(register);
        }
        self.leave(kind, pc, 0, adjust);
    }

    fn jump_direct(&mut self, target: u64) {
        let from = self.code.jump(self.cache.common_exit);
        self.direct.push((from, target, self.instruction_pc));
    }

    fn branch_direct(&mut self, condition: u8, target: u64) {
        let from = self.code.jump_if(condition, self.cache.common_exit);
        self.direct.push((from, target, self.instruction_pc));
    }

    fn push_return_address(&mut self, address: u64) {
        if let Ok(small) = i32::try_from(address) {
            self.code.push_imm32(small);
        } else {
            // The operand is patched to the literal behind the block.
            self.code.push_memory(self.code.here());
            self.literals.push((self.code.here() - 4, address));
        }
    }

    /// Goes to the guest address in rcx (guest rcx spilled), by the table.
    fn jump_indirect(&mut self) {
        if self.variant != LINKED {
            self.code.store(Emitter::field(offset::RIP), reg::RCX);
            self.unspill(reg::RCX);
            self.exit_now(ExitKind::Indirect, self.instruction_pc);
            return;
        }
        // Which branch it was, should the target not be in the table.
        let id = self.first_exit + self.exits.len() as u32;
        let adjust = self.correction();
        self.exits.push(PendingExit {
            kind: ExitKind::Indirect,
            pc: self.instruction_pc,
            adjust,
            branch: 0,
            patch_at: 0,
            stub: 0,
        });
        self.code.store_imm32(Emitter::field(offset::EXIT), id);
        self.spill(reg::RDX);
        self.code.load_imm(reg::RDX, 0);
        // crc32 rdx, rcx; movzx edx, dx
        self.code
            .raw(&[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0xd1, 0x0f, 0xb7, 0xd2]);
        // jmp gs:[rdx * 8 + table]
        self.code.raw(&[0x65, 0xff, 0x24, 0xd5]);
        let table = (layout::INDIRECT_TABLE - layout::CONTEXT) as u32;
        self.code.raw(&table.to_le_bytes());
    }

    /// One record into the ring: address, site, counter.
    fn write_record(&mut self, site: u32, address: Reg, ring: Reg) {
        let at = (layout::RING - layout::CONTEXT) as u32;
        self.code.load(ring, Emitter::field(offset::RING_POSITION));
        // mov gs:[ring + at], address
        self.gs_operand(0x48, &[0x89], address, ring, at);
        // mov dword gs:[ring + at + 8], site
        self.gs_operand(0, &[0xc7], 0, ring, at + 8);
        self.code.raw(&site.to_le_bytes());
        self.code.load(address, Emitter::field(offset::REMAINING));
        // mov dword gs:[ring + at + 12], address
        self.gs_operand(0, &[0x89], address, ring, at + 12);
        // lea ring, [ring + 16]
        let rex = 0x48 | ((ring as u8 >> 3) * 5);
        let low = ring as u8 & 7;
        self.code.raw(&[rex, 0x8d, 0x40 | (low << 3) | low]);
        if low == 4 {
            self.code.raw(&[0x24]);
        }
        self.code.raw(&[16]);
        self.code.store(Emitter::field(offset::RING_POSITION), ring);
    }

    /// An instruction with a `gs:[base + displacement]` operand.
    fn gs_operand(&mut self, rex: u8, opcode: &[u8], field: Reg, base: Reg, displacement: u32) {
        self.code.raw(&[0x65]);
        let rex = rex | ((field as u8 >> 3) << 2) | (base as u8 >> 3);
        if rex != 0 {
            self.code.raw(&[0x40 | rex]);
        }
        self.code.raw(opcode);
        self.code
            .raw(&[0x80 | ((field as u8 & 7) << 3) | (base as u8 & 7)]);
        if base & 7 == 4 {
            self.code.raw(&[0x24]);
        }
        self.code.raw(&displacement.to_le_bytes());
    }

    /// Emits what lies behind the block: stubs and literals.
    fn finish(mut self, decoded: &Decoded) -> Translation {
        // A side exit adds stubs of its own.
        let mut next = 0;
        while next < self.stubs.len() {
            let Stub {
                from,
                kind,
                pc,
                done,
                adjust,
                restore_flags,
                borrowed,
            } = std::mem::replace(&mut self.stubs[next], Stub::DONE);
            next += 1;
            let here = self.code.here();
            self.code.patch_rel32(from, here);
            if let StubKind::Ring { back } = kind {
                let stale = Emitter::field(offset::KNOWN_STALE);
                self.code.compare_memory(stale, 0);
                let leave = self.code.jump_if(condition::NOT_EQUAL, back);
                let position = Emitter::field(offset::RING_POSITION);
                self.code.compare_memory(position, RING_LIMIT);
                self.code.jump_if(condition::NOT_ABOVE, back);
                let here = self.code.here();
                self.code.patch_rel32(leave, here);
            }
            match kind {
                StubKind::Exit(_) | StubKind::Ring { .. } => {
                    if restore_flags {
                        self.restore_flags();
                    }
                    for register in borrowed {
                        self.unspill(register);
                    }
                    let kind = match kind {
                        StubKind::Exit(kind) => kind,
                        _ => ExitKind::RingFull,
                    };
                    self.leave(kind, pc, 0, adjust);
                }
                StubKind::SideExit(target) => {
                    for register in borrowed {
                        self.unspill(register);
                    }
                    if self.variant == LINKED {
                        self.subtract(u32::from(done), 0, target, restore_flags);
                    }
                    self.jump_direct(target);
                }
            }
        }
        self.index = self.length as u16;
        let adjust = self.correction();
        for (from, target, branch) in std::mem::take(&mut self.direct) {
            let here = self.code.here();
            self.code.patch_rel32(from, here);
            self.leave(ExitKind::Direct, target, from, adjust);
            if let Some(exit) = self.exits.last_mut() {
                exit.branch = branch;
            }
        }
        for (operand, value) in std::mem::take(&mut self.literals) {
            let here = self.code.here();
            self.code.patch_rel32(operand, here);
            self.code.raw(&value.to_le_bytes());
        }
        let mut guest: Vec<std::ops::Range<u64>> = Vec::new();
        for step in &decoded.steps {
            let (start, end) = (step.instruction.ip(), step.instruction.next_ip());
            match guest.last_mut() {
                Some(range) if range.end == start => range.end = end,
                _ => guest.push(start..end),
            }
        }
        if guest.is_empty() {
            guest.push(self.pc..self.pc + 1);
        }
        guest.append(&mut self.seen);
        Translation {
            pc: self.pc,
            guest,
            after_hook: self.after_hook,
            after_complex: self.after_complex,
            instructions: decoded.steps.len() as u32,
            code: self.code,
            map: self.map,
            exits: self.exits,
        }
    }
}
