//! The block under construction: counting, exits, jumps, spills, and the stubs
//! behind it.

use super::accesses::Unknown;
use super::decode::Decoded;
use super::spin::Waiting;
use super::stores::Looked;
use super::{RING_LIMIT, RING_LIMIT_OF_COPY};
use crate::cache::{Cache, ExitKind, LINKED, MapEntry, PendingExit, Translation};
use crate::context::{offset, reg};
use crate::emit::{Emitter, Reg, condition};
use crate::layout;
use crate::observe::known;

/// Bytes of a conditional jump with a 32-bit distance.
pub(super) const JCC_LENGTH: u64 = 6;

pub(super) struct Builder<'a> {
    pub(super) code: Emitter,
    pub(super) map: Vec<MapEntry>,
    pub(super) exits: Vec<PendingExit>,
    pub(super) first_exit: u32,
    pub(super) stubs: Vec<Stub>,
    /// (displacement address, guest target, branch) of direct branches
    pub(super) direct: Vec<(u64, u64, u64)>,
    /// (displacement address, value) of RIP-relative operands
    pub(super) literals: Vec<(u64, u64)>,
    pub(super) pc: u64,
    pub(super) length: u32,
    pub(super) index: u16,
    pub(super) counted: bool,
    /// Accesses go to the ring.
    pub(super) records: bool,
    /// Accesses the observer knows do not.
    pub(super) only_unknown: bool,
    pub(super) reads_by_start: bool,
    pub(super) epochs: bool,
    pub(super) watches: bool,
    /// Stack bookkeeping is told as well.
    pub(super) stack: bool,
    /// Registers in use by added code, until an instruction names them or the
    /// block is left; the guest's values are in the spill slots.
    pub(super) borrowed: Vec<Reg>,
    /// The general registers that each instruction names, one bit each, if
    /// accesses borrow what they need.
    pub(super) named: Vec<u32>,
    /// Code behind the block that records an access which is not known.
    pub(super) unknown: Vec<Unknown>,
    pub(super) after_hook: u64,
    pub(super) after_complex: u64,
    pub(super) instruction_pc: u64,
    pub(super) cache: &'a Cache,
    pub(super) variant: u32,
    /// The block's end goes back to a loop that only waits.
    pub(super) waits: Option<Waiting>,
    /// Addresses whose stores have been looked at.
    pub(super) looked: Vec<Looked>,
    /// Code behind the block that it depends on.
    pub(super) seen: Vec<std::ops::Range<u64>>,
}

/// Code behind the block for a way out of it.
pub(super) struct Stub {
    /// rel32 that must point to the stub.
    pub(super) from: u64,
    pub(super) kind: StubKind,
    pub(super) pc: u64,
    /// Instructions executed when it is reached.
    pub(super) done: u16,
    pub(super) adjust: i32,
    /// The flags are alive (and, but for a `SideExit`, saved in rax).
    pub(super) restore_flags: bool,
    /// Registers to give back.
    pub(super) borrowed: Vec<Reg>,
}

pub(super) enum StubKind {
    Exit(ExitKind),
    /// There is something in the ring: leave if it is much, or if the
    /// comparison is stale.
    Ring {
        back: u64,
    },
    /// The unlikely side of a branch in a trace.
    SideExit(u64),
    /// A loop that waits repeats: gives way if there is anybody to wait for.
    Wait(Waiting),
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

impl Builder<'_> {
    pub(super) fn mark(&mut self, spilled: u16) {
        let borrowed = self.borrowed.iter().fold(0, |all, one| all | 1 << one);
        self.map.push(MapEntry {
            host: self.code.bytes.len() as u32,
            index: self.index,
            guest: self.instruction_pc.wrapping_sub(self.pc) as i32,
            spilled: spilled | borrowed,
            counted: self.counted,
        });
    }

    pub(super) fn spill_slot(register: Reg) -> u64 {
        Emitter::field(offset::SPILL + 8 * register)
    }

    pub(super) fn spill(&mut self, register: Reg) {
        self.code.store(Self::spill_slot(register), register);
    }

    pub(super) fn unspill(&mut self, register: Reg) {
        self.code.load(register, Self::spill_slot(register));
    }

    /// What must be added to the counter at this point to have the
    /// instructions that really remain.
    pub(super) fn correction(&self) -> i32 {
        let done = i32::from(self.index);
        if self.counted {
            self.length as i32 - done
        } else {
            -done
        }
    }

    /// Subtracts the block from the counter; leaves for the vm if that makes
    /// it negative, or if the ring is nearly full.
    pub(super) fn count(&mut self, flags_alive: bool) {
        self.counted = true;
        let adjust = self.correction();
        self.subtract(self.length, adjust, self.instruction_pc, flags_alive);
    }

    pub(super) fn subtract(&mut self, instructions: u32, adjust: i32, pc: u64, flags_alive: bool) {
        if flags_alive && !self.records {
            return self.subtract_without_flags(instructions, adjust, pc);
        }
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
            let limit = match self.cache.short_lived {
                true => RING_LIMIT_OF_COPY,
                false => RING_LIMIT,
            };
            self.code.compare_memory(position, limit);
            leave(self, condition::ABOVE, StubKind::Exit(ExitKind::RingFull));
        }
        if flags_alive {
            self.restore_flags();
        }
    }

    /// The same without touching a flag, in two thirds of the time that saving
    /// them takes. The counter's upper half is zero until it is negative. (A
    /// host signal may come between load and store: see `Vm::mend_counter`.)
    pub(super) fn subtract_without_flags(&mut self, instructions: u32, adjust: i32, pc: u64) {
        let counter = Emitter::field(offset::REMAINING);
        self.spill(reg::RCX);
        self.code.load(reg::RCX, counter);
        // lea rcx, [rcx - instructions]
        let less = (instructions as i32).wrapping_neg();
        match i8::try_from(less) {
            Ok(less) => self.code.raw(&[0x48, 0x8d, 0x49, less as u8]),
            Err(_) => {
                self.code.raw(&[0x48, 0x8d, 0x89]);
                self.code.raw(&less.to_le_bytes());
            }
        }
        self.code.store(counter, reg::RCX);
        self.code.load32(reg::RCX, counter + 4);
        // jrcxz over the way out
        self.code.raw(&[0xe3, 5]);
        let from = self.code.jump(self.cache.common_exit);
        let mut borrowed = self.borrowed.clone();
        borrowed.push(reg::RCX);
        self.stubs.push(Stub {
            from,
            kind: StubKind::Exit(ExitKind::Quantum),
            pc,
            done: 0,
            adjust,
            restore_flags: false,
            borrowed,
        });
        self.unspill(reg::RCX);
    }

    /// A return inside a trace: goes on if it goes where it was called from,
    /// else leaves. The flags stay as they are.
    pub(super) fn return_inline(&mut self, expected: u64) {
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

    pub(super) fn save_flags(&mut self) {
        self.spill(reg::RAX);
        // lahf; seto al
        self.code.raw(&[0x9f, 0x0f, 0x90, 0xc0]);
    }

    pub(super) fn restore_flags(&mut self) {
        // add al, 0x7f (overflows if the overflow flag was set); sahf
        self.code.raw(&[0x04, 0x7f, 0x9e]);
        self.unspill(reg::RAX);
    }

    pub(super) fn leave(&mut self, kind: ExitKind, pc: u64, patch_at: u64, adjust: i32) {
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
    pub(super) fn exit_now(&mut self, kind: ExitKind, pc: u64) {
        let adjust = self.correction();
        for register in self.borrowed.clone() {
            self.unspill(register);
        }
        self.leave(kind, pc, 0, adjust);
    }

    pub(super) fn jump_direct(&mut self, target: u64) {
        let from = self.code.jump(self.cache.common_exit);
        self.direct.push((from, target, self.instruction_pc));
    }

    /// The jump at `from` goes back to a loop that waits at `target`.
    pub(super) fn repeat_wait(&mut self, waiting: Waiting, from: u64, done: u16, target: u64) {
        self.index = done;
        let adjust = self.correction();
        self.stubs.push(Stub {
            from,
            kind: StubKind::Wait(waiting),
            pc: target,
            done,
            adjust,
            restore_flags: false,
            borrowed: Vec::new(),
        });
    }

    pub(super) fn branch_direct(&mut self, condition: u8, target: u64) {
        let from = self.code.jump_if(condition, self.cache.common_exit);
        self.direct.push((from, target, self.instruction_pc));
    }

    pub(super) fn push_return_address(&mut self, address: u64) {
        if let Ok(small) = i32::try_from(address) {
            self.code.push_imm32(small);
        } else {
            // The operand is patched to the literal behind the block.
            self.code.push_memory(self.code.here());
            self.literals.push((self.code.here() - 4, address));
        }
    }

    /// Goes to the guest address in rcx (guest rcx spilled), by the table.
    pub(super) fn jump_indirect(&mut self) {
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

    /// An instruction with a `gs:[base + displacement]` operand.
    pub(super) fn gs_operand(
        &mut self,
        rex: u8,
        opcode: &[u8],
        field: Reg,
        base: Reg,
        displacement: u32,
    ) {
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
    pub(super) fn finish(mut self, decoded: &Decoded) -> Translation {
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
                StubKind::Wait(waiting) => {
                    let (asked, exit) = match waiting {
                        Waiting::ForEver => (offset::GIVES_WAY, ExitKind::Pause),
                        Waiting::Counting => (offset::COUNTING_GIVES_WAY, ExitKind::Counts),
                    };
                    // The flags may be alive.
                    self.spill(reg::RCX);
                    self.code.load(reg::RCX, Emitter::field(asked));
                    // jrcxz past the exit
                    self.code.raw(&[0xe3, 0]);
                    let on = self.code.here() - 1;
                    self.unspill(reg::RCX);
                    self.leave(exit, pc, 0, adjust);
                    self.code.patch_rel8_here(on);
                    self.unspill(reg::RCX);
                    self.jump_direct(pc);
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
