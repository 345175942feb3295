//! Accesses told to observers: which operands of an instruction they are, and the
//! code that writes them into the ring or compares them with what is known.

use super::Translator;
use super::build::Builder;
use super::decode::Decoded;
use super::kind::{
    REGISTERS, explicit_is, general_number, is_call, is_locked, is_whole, touches_memory,
};
use crate::context::{offset, reg};
use crate::emit::{Combine, Emitter, Reg, condition};
use crate::layout;
use crate::observe::known::Told;
use crate::observe::{AccessSite, Sites};
use iced_x86::{Code, FlowControl, Instruction, MemoryOperand, OpAccess, Register};

/// An access whose check leads behind the block if it is not known.
pub(super) struct Unknown {
    /// rel32s that must point there.
    pub(super) from: Vec<u64>,
    pub(super) back: u64,
    pub(super) operand: Operand,
    pub(super) site: u32,
    pub(super) address: Reg,
    pub(super) other: Reg,
    /// The flags are in rax, the guest's rax in its spill slot.
    pub(super) flags_alive: bool,
    /// The observer wants it however private the memory is.
    pub(super) is_told: bool,
    /// A write after which the observer's epoch may be another.
    pub(super) begins_epoch: bool,
}

impl Translator {
    /// Memory operands of an instruction that an observer of accesses sees;
    /// with `all` also those that pushes, pops, calls and returns imply.
    pub(super) fn accesses(&mut self, instruction: &Instruction, all: bool) -> Vec<Operand> {
        let mut operands = Vec::new();
        if !all && !touches_memory(instruction) {
            return operands;
        }
        let stack = !all && implies_stack(instruction);
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
    pub(super) fn record_accesses(
        &mut self,
        builder: &mut Builder,
        instruction: &Instruction,
        flags_alive: bool,
        sites: &mut Sites,
        told: &mut dyn FnMut(u64) -> Told,
    ) {
        let told = if builder.only_unknown {
            told(instruction.ip())
        } else {
            Told::Always
        };
        if told == Told::Nothing {
            return;
        }
        for operand in self.accesses(instruction, builder.stack) {
            if told == Told::Locked && !operand.locked {
                continue;
            }
            let site = sites.add(AccessSite {
                pc: instruction.ip(),
                size: operand.size,
                read: operand.read,
                write: operand.write,
                locked: operand.locked,
                correction: builder.correction(),
            });
            let is_told = operand.locked || told == Told::Always;
            let begins_epoch = builder.epochs && is_told && operand.write;
            builder.borrow();
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
            let spills = if builder.borrowed.len() < 2 {
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
                    is_told,
                    begins_epoch,
                });
                if flags_alive {
                    builder.restore_flags();
                }
            } else {
                builder.write_record(site, address, other);
                if begins_epoch {
                    builder.stop_comparing(other);
                }
            }
            for register in spills {
                builder.unspill(register);
            }
            builder.mark(0);
        }
    }

    /// Before an instruction that the vm would work out: a jump that is taken if
    /// the observer knows all that its operand may touch. Returns the place of
    /// the jump, or none if that cannot be told.
    pub(super) fn jump_if_known(
        &mut self,
        builder: &mut Builder,
        instruction: &Instruction,
    ) -> Option<u64> {
        let operands = self.accesses(instruction, false);
        let [operand] = operands.as_slice() else {
            return None;
        };
        if !is_whole(operand.size) {
            return None;
        }
        let mut avoid: Vec<Reg> = [operand.base, operand.index]
            .into_iter()
            .filter_map(general_number)
            .collect();
        avoid.push(reg::RAX);
        let address = self.scratch(instruction, &avoid);
        avoid.push(address);
        let other = self.scratch(instruction, &avoid);
        let give_back = |builder: &mut Builder| {
            builder.restore_flags();
            builder.unspill(address);
            builder.unspill(other);
        };
        builder.spill(address);
        builder.spill(other);
        self.load_address(builder, operand, address, other);
        let unknown = builder.check(operand, address, other, true);
        give_back(builder);
        let known = builder.code.jump(builder.cache.common_exit);
        let here = builder.code.here();
        for rel32 in unknown {
            builder.code.patch_rel32(rel32, here);
        }
        give_back(builder);
        Some(known)
    }

    /// The code behind the block that writes a record for an access which is
    /// not known, and goes back.
    pub(super) fn record_unknown(&mut self, builder: &mut Builder) {
        for unknown in std::mem::take(&mut builder.unknown) {
            let Unknown {
                from,
                back,
                operand,
                site,
                address,
                other,
                flags_alive,
                is_told,
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
            if !is_told {
                builder.enter_own(&operand, address, other, back);
            }
            if builder.epochs && operand.write && !begins_epoch {
                builder.stop_comparing_at_many(&operand, address, other);
            }
            builder.write_record(site, address, other);
            if begins_epoch {
                builder.stop_comparing(other);
            }
            builder.code.jump(back);
        }
    }

    /// Registers that no instruction of the block names and that nothing the
    /// translator adds uses.
    pub(super) fn unnamed(&mut self, decoded: &Decoded) -> Vec<Reg> {
        let used = decoded
            .steps
            .iter()
            .fold(ADDED, |used, step| used | self.named(&step.instruction));
        (0..16).filter(|number| used & (1 << number) == 0).collect()
    }

    /// `lea to, <operand>`, with the segment base; flags untouched.
    pub(super) fn load_address(
        &mut self,
        builder: &mut Builder,
        operand: &Operand,
        to: Reg,
        other: Reg,
    ) {
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

/// Pushes, pops, calls and returns touch the stack besides what they name.
fn implies_stack(instruction: &Instruction) -> bool {
    instruction.is_stack_instruction()
        || matches!(instruction.flow_control(), FlowControl::Return)
        || is_call(instruction)
}

/// Registers that the translator uses for other things it adds.
const ADDED: u32 = 1 << reg::RSP | 1 << reg::RAX | 1 << reg::RCX | 1 << reg::RDX;

/// A memory operand as an observer sees it.
pub(super) struct Operand {
    pub(super) base: Register,
    pub(super) index: Register,
    pub(super) scale: u32,
    pub(super) displacement: u64,
    pub(super) segment: Register,
    pub(super) size: u32,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) locked: bool,
}

impl Builder<'_> {
    /// Takes two registers that the present instruction does not name, those
    /// that will not be named for longest.
    fn borrow(&mut self) {
        while self.borrowed.len() < 2 {
            let Some(register) = self.free_for_longest() else {
                return;
            };
            self.spill(register);
            self.borrowed.push(register);
        }
        self.mark(0);
    }

    fn free_for_longest(&self) -> Option<Reg> {
        let (now, later) = self.named.get(usize::from(self.index)..)?.split_first()?;
        let borrowed = self.borrowed.iter().fold(0, |all, one| all | 1 << one);
        let taken = now | ADDED | borrowed;
        (0..16)
            .filter(|register| taken & (1 << register) == 0)
            .max_by_key(|register| {
                let named = later.iter().position(|named| named & (1 << register) != 0);
                named.unwrap_or(later.len())
            })
    }

    /// The instruction that comes next wants these back.
    pub(super) fn give_back_named(&mut self) {
        let Some(named) = self.named.get(usize::from(self.index)) else {
            return;
        };
        let (back, kept): (Vec<Reg>, Vec<Reg>) = std::mem::take(&mut self.borrowed)
            .into_iter()
            .partition(|register| named & (1 << register) != 0);
        self.borrowed = kept;
        for register in back {
            self.unspill(register);
        }
    }

    /// The block is about to be left for good.
    pub(super) fn give_back(&mut self) {
        for register in std::mem::take(&mut self.borrowed) {
            self.unspill(register);
        }
    }

    /// Compares the shadow word of the access at `address` with the present
    /// epoch. Returns the places of jumps to be made if it is not known; flags
    /// that are alive are left in rax.
    pub(super) fn check(
        &mut self,
        operand: &Operand,
        address: Reg,
        other: Reg,
        alive: bool,
    ) -> Vec<u64> {
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
        if self.watches {
            return self.check_watched(operand, other, which);
        }
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
        let last = if self.reads_by_start && !operand.write {
            0
        } else {
            operand.size / 8
        };
        (0..=last)
            .map(|granule| {
                self.code
                    .gs_scaled(LOAD, address, other, 2, which + 32 * granule);
                let word = Emitter::field(offset::KNOWN_WORD);
                self.code.combine(Combine::Compare, address, word);
                self.code.jump_if(condition::NOT_EQUAL, unknown)
            })
            .collect()
    }

    /// The same, where a word that is zero is all there is to see. Of an
    /// access within eight bytes it is enough to see where it begins.
    fn check_watched(&mut self, operand: &Operand, granule: Reg, word: u32) -> Vec<u64> {
        let unknown = self.cache.common_exit;
        let reaches = match operand.size {
            0..=8 => 0,
            _ if self.reads_by_start && !operand.write => 0,
            size => size / 8,
        };
        (0..=reaches)
            .map(|next| {
                self.code.gs_scaled_is_zero(granule, 2, word + 32 * next);
                self.code.jump_if(condition::NOT_EQUAL, unknown)
            })
            .collect()
    }

    /// The present epoch may end with the last record. Takes a register.
    pub(super) fn stop_comparing(&mut self, other: Reg) {
        for field in [offset::KNOWN_WORD, offset::KNOWN_MARKED] {
            self.code.store_imm64(Emitter::field(field), -1);
        }
        self.code
            .load(other, Emitter::field(offset::KNOWN_OWN_WHEN_STALE));
        self.code.store(Emitter::field(offset::KNOWN_OWN), other);
        self.code
            .store_imm64(Emitter::field(offset::KNOWN_STALE), 1);
    }

    /// Goes `back` if the access could be entered in words that are the
    /// thread's own.
    fn enter_own(&mut self, operand: &Operand, address: Reg, other: Reg, back: u64) {
        self.code
            .store(Emitter::field(offset::KNOWN_ADDRESS), address);
        let size = operand.size as i32;
        self.code
            .store_imm64(Emitter::field(offset::KNOWN_SIZE), size);
        let entered = self.code.load_address_of_later(other);
        self.code.store(Emitter::field(offset::KNOWN_BACK), other);
        let routine = if operand.write {
            offset::KNOWN_NOTE_WRITE
        } else {
            offset::KNOWN_NOTE_READ
        };
        self.code.jump_memory(Emitter::field(routine));
        let here = self.code.here();
        self.code.patch_rel32(entered, here);
        self.code.jump_if(condition::EQUAL, back);
    }

    /// The same, if the written word is one that only the observer
    /// understands. Leaves the address alone.
    pub(super) fn stop_comparing_at_many(&mut self, operand: &Operand, address: Reg, other: Reg) {
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
            self.stop_comparing(other);
            self.code.patch_rel8_here(over);
        }
    }

    /// One record into the ring: address, site, counter.
    pub(super) fn write_record(&mut self, site: u32, address: Reg, ring: Reg) {
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
}
