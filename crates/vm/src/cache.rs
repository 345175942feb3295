//! The code cache: translated blocks, how they are found, linked and thrown
//! away.
//!
//! A block is entered through the address map (from the vm), through a direct
//! link from another block (patched on first use) or through the indirect
//! table (returns, calls through pointers). The table is indexed by a CRC of
//! the guest address; its entries point to a preamble that checks the full
//! address, so a collision costs a miss, never a wrong target. Everything in
//! that path leaves the flags alone.
//!
//! Blocks whose guest code disappears are unlinked at once; their bytes stay
//! until the cache is full, when all of it is dropped and refilled.

use crate::context::{offset, reg};
use crate::emit::Emitter;
use crate::layout;
use crate::{Error, host};
use std::collections::{HashMap, HashSet};

pub type BlockId = u32;

/// Why translated code was left. The id stored in the context indexes
/// `Cache::exits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// An indirect branch (this is its address) missed the table; the
    /// context's rip is its target.
    Indirect,
    /// The host signal handler took over; see `Context::fault`.
    Fault,
    /// The next block is not linked yet.
    Direct,
    /// The instruction counter ran out before this address.
    Quantum,
    /// A `syscall` instruction was executed; the address is the one after it.
    Syscall,
    /// The vm must execute the instruction at this address itself.
    Emulate,
    /// A `pause` was executed, or a loop that only waits repeats.
    Pause,
    /// A loop that waits and counts its rounds repeats.
    Counts,
    /// A locked instruction was executed and the schedule wants to know.
    Sequencer,
    /// No instruction can be fetched or decoded here.
    Undecodable,
    /// An observer asked to be told when control reaches this address.
    Hook,
    /// The accesses of the instruction here are worked out by the vm.
    Complex,
    /// The access ring has no room for this block.
    RingFull,
    /// The repeated string instruction here goes on for long: the vm executes
    /// it part by part.
    LongRepeat,
    /// The instruction here has stored the x87 pointers, which are addresses
    /// in the cache.
    PointersStored,
}

#[derive(Debug, Clone, Copy)]
pub struct Exit {
    pub kind: ExitKind,
    /// Guest address at which execution goes on (or which it concerns).
    pub pc: u64,
    /// What to add to the counter when leaving here.
    pub adjust: i32,
    pub block: BlockId,
    /// For `Direct`: the branch instruction, the address of the rel32 to
    /// patch, and its unlinked value.
    branch: u64,
    patch_at: u64,
    stub: u64,
}

/// A point of a block's host code and the guest state there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// First host byte this entry speaks for, from the start of the block.
    pub host: u32,
    /// Instructions of the block completed before.
    pub index: u16,
    /// Guest address of the instruction, from the start of the block.
    pub guest: i32,
    /// Guest registers that are in their spill slots here.
    pub spilled: u16,
    /// The block's instructions have been subtracted from the counter.
    pub counted: bool,
}

pub struct Block {
    pub pc: u64,
    pub host: u64,
    pub host_length: u32,
    /// Where to go on after a `Hook` or a `Complex` exit at the block's start.
    pub after_hook: u64,
    pub after_complex: u64,
    pub instructions: u32,
    pub map: Vec<MapEntry>,
    variant: u32,
    incoming: Vec<u32>,
    indirect_entry: Option<u64>,
    alive: bool,
}

impl Block {
    /// The state of the guest when host address `pc` is reached or faults.
    pub fn state_at(&self, pc: u64) -> MapEntry {
        let at = (pc - self.host) as u32;
        let next = self.map.partition_point(|entry| entry.host <= at);
        self.map[next.saturating_sub(1)]
    }
}

/// What the translator hands over.
pub struct Translation {
    pub pc: u64,
    /// The guest code it was made from.
    pub guest: Vec<std::ops::Range<u64>>,
    pub after_hook: u64,
    pub after_complex: u64,
    pub instructions: u32,
    pub code: Emitter,
    pub map: Vec<MapEntry>,
    pub exits: Vec<PendingExit>,
}

/// An exit of a block that is being built; ids follow `Cache::next_exit_id`.
pub struct PendingExit {
    pub kind: ExitKind,
    pub pc: u64,
    pub adjust: i32,
    pub branch: u64,
    pub patch_at: u64,
    pub stub: u64,
}

/// Blocks that may be linked have variant 0. Others hold at most `variant`
/// instructions, do not count them and always come back to the vm: that is how
/// a quantum ends at an exact instruction.
pub const LINKED: u32 = 0;

/// A repeated string instruction alone, as one of its parts.
pub const REPEAT: u32 = u32::MAX;

pub struct Cache {
    next: u64,
    blocks: Vec<Block>,
    by_pc: HashMap<(u64, u32), BlockId, Spread>,
    by_page: HashMap<u64, Vec<BlockId>, Spread>,
    exits: Vec<Exit>,
    /// Branches and where they were seen to go.
    taken: HashSet<(u64, u64), Spread>,
    pub common_exit: u64,
    pub indirect_miss: u64,
    first_block: u64,
    /// How often the cache was emptied because it was full.
    /// This process is a copy of the world that ends soon.
    pub short_lived: bool,
    pub flushes: u64,
    /// How often translations were dropped, because code changed or otherwise.
    pub dropped: u64,
}

/// Multiplicative hashing: keys are addresses chosen by the vm, not by an
/// adversary, and look-ups are on the path of every unlinked branch.
#[derive(Clone, Copy, Default)]
pub struct Spread(u64);

impl std::hash::BuildHasher for Spread {
    type Hasher = Spread;
    fn build_hasher(&self) -> Spread {
        Spread(0)
    }
}

impl std::hash::Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
}

pub const FAULT_EXIT: u32 = 0;

impl Cache {
    pub fn install() -> Result<Self, Error> {
        host::map_fixed(
            layout::RING,
            layout::RING_SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
        )?;
        host::map_fixed(
            layout::CACHE,
            layout::CACHE_SIZE,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )?;
        let mut cache = Cache {
            next: layout::CACHE,
            blocks: Vec::new(),
            by_pc: HashMap::default(),
            by_page: HashMap::default(),
            exits: Vec::new(),
            taken: HashSet::default(),
            common_exit: 0,
            indirect_miss: 0,
            first_block: 0,
            short_lived: false,
            flushes: 0,
            dropped: 0,
        };
        cache.emit_exits();
        crate::translate::map_store_table()?;
        host::map_words(
            layout::INDIRECT_TABLE,
            &vec![cache.indirect_miss; layout::INDIRECT_ENTRIES],
        )?;
        cache.reset();
        Ok(cache)
    }

    fn emit_exits(&mut self) {
        let mut code = Emitter::new(self.next);
        // Every exit ends here: guest stack pointer out, host stack in.
        self.common_exit = code.here();
        code.store(Emitter::field(offset::GPR + 8 * reg::RSP), reg::RSP);
        code.load(reg::RSP, Emitter::field(offset::HOST_RSP));
        code.jump_memory(Emitter::field(offset::EXIT_ROUTINE));
        // A missed indirect branch: target in rcx, guest rcx and rdx spilled;
        // the branch has said which exit it is.
        self.indirect_miss = code.here();
        code.store(Emitter::field(offset::RIP), reg::RCX);
        code.load(reg::RCX, Emitter::field(offset::SPILL + 8 * reg::RCX));
        code.load(reg::RDX, Emitter::field(offset::SPILL + 8 * reg::RDX));
        code.jump(self.common_exit);
        self.write_code(&code);
        self.first_block = self.next;
    }

    fn write_code(&mut self, code: &Emitter) {
        assert!(code.base == self.next && self.has_room(code.bytes.len() as u64));
        // SAFETY: the destination lies within the cache mapping (asserted),
        // which nothing in Rust refers to.
        unsafe {
            std::ptr::copy_nonoverlapping(
                code.bytes.as_ptr(),
                code.base as *mut u8,
                code.bytes.len(),
            );
        }
        self.next = (self.next + code.bytes.len() as u64 + 15) & !15;
    }

    fn has_room(&self, length: u64) -> bool {
        self.next + length + 4096 <= layout::CACHE + layout::CACHE_SIZE
    }

    /// Drops every block.
    fn reset(&mut self) {
        self.dropped += 1;
        if self.short_lived {
            // Freeing would touch, and so copy, every page of it.
            std::mem::forget(std::mem::take(&mut self.blocks));
            std::mem::forget(std::mem::take(&mut self.by_pc));
            std::mem::forget(std::mem::take(&mut self.by_page));
            std::mem::forget(std::mem::take(&mut self.exits));
        }
        self.blocks.clear();
        self.by_pc.clear();
        self.by_page.clear();
        self.exits.clear();
        self.exits.push(Exit {
            kind: ExitKind::Fault,
            pc: 0,
            adjust: 0,
            block: BlockId::MAX,
            branch: 0,
            patch_at: 0,
            stub: 0,
        });
        self.next = self.first_block;
        // SAFETY: the table's own mapping, which nothing in Rust refers to;
        // its words are the misses it was made of again.
        unsafe { host::forget_writes(layout::INDIRECT_TABLE, layout::INDIRECT_TABLE_SIZE) };
    }

    /// Forgets the linkable block at `pc`, to be made anew.
    pub fn retire(&mut self, pc: u64) {
        if let Some(id) = self.find(pc, LINKED) {
            self.remove(id);
        }
    }

    /// Notes that control went from a block's exit to its target.
    fn note_taken(&mut self, branch: u64, target: u64) {
        self.taken.insert((branch, target));
    }

    /// True if the branch at `branch` was seen going to `target`.
    pub fn was_taken(&self, branch: u64, target: u64) -> bool {
        self.taken.contains(&(branch, target))
    }

    /// Drops every block, because what translation depends on has changed or
    /// the cache is full.
    pub fn flush(&mut self) {
        self.flushes += 1;
        if !self.blocks.is_empty() {
            self.reset();
        }
    }

    fn set_indirect(&mut self, index: usize, target: u64) {
        // SAFETY: `index` is below INDIRECT_ENTRIES and the table is mapped.
        unsafe { *(layout::INDIRECT_TABLE as *mut u64).add(index) = target };
    }

    fn indirect(&self, index: usize) -> u64 {
        // SAFETY: as in `set_indirect`.
        unsafe { *(layout::INDIRECT_TABLE as *const u64).add(index) }
    }

    /// Address at which the next block will be placed; empties the cache
    /// first if it is nearly full.
    pub fn next_address(&mut self) -> u64 {
        if !self.has_room(64 << 10) || self.exits.len() > (1 << 24) {
            self.flush();
        }
        self.next
    }

    /// Id that the next exit of the block being built will have.
    pub fn next_exit_id(&self) -> u32 {
        self.exits.len() as u32
    }

    pub fn find(&self, pc: u64, variant: u32) -> Option<BlockId> {
        self.by_pc.get(&(pc, variant)).copied()
    }

    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    pub fn exit(&self, id: u32) -> Exit {
        self.exits[id as usize]
    }

    /// The block whose host code contains `pc`.
    pub fn block_at_host(&self, pc: u64) -> Option<&Block> {
        let next = self.blocks.partition_point(|block| block.host <= pc);
        let block = self.blocks.get(next.checked_sub(1)?)?;
        (pc < block.host + u64::from(block.host_length)).then_some(block)
    }

    pub fn insert(&mut self, variant: u32, translation: Translation) -> BlockId {
        let id = self.blocks.len() as BlockId;
        self.write_code(&translation.code);
        for pending in &translation.exits {
            self.exits.push(Exit {
                kind: pending.kind,
                pc: pending.pc,
                adjust: pending.adjust,
                block: id,
                branch: pending.branch,
                patch_at: pending.patch_at,
                stub: pending.stub,
            });
        }
        for page in pages_of(&translation.guest) {
            let blocks = self.by_page.entry(page).or_default();
            if blocks.last() != Some(&id) {
                blocks.push(id);
            }
        }
        self.by_pc.insert((translation.pc, variant), id);
        self.blocks.push(Block {
            pc: translation.pc,
            host: translation.code.base,
            host_length: translation.code.bytes.len() as u32,
            after_hook: translation.after_hook,
            after_complex: translation.after_complex,
            instructions: translation.instructions,
            map: translation.map,
            variant,
            incoming: Vec::new(),
            indirect_entry: None,
            alive: true,
        });
        id
    }

    fn patch(&mut self, at: u64, target: u64) {
        let distance = target.wrapping_sub(at + 4) as i64 as i32;
        // SAFETY: `at` is the displacement of a jump in the cache, recorded
        // when it was emitted; x86 keeps instruction fetch coherent and no
        // other host thread runs translated code.
        unsafe { (at as *mut i32).write_unaligned(distance) };
    }

    /// Makes exit `exit` of a linkable block jump straight to `target`.
    pub fn link(&mut self, exit: u32, target: BlockId) {
        let Exit {
            kind,
            block,
            patch_at,
            branch,
            pc,
            ..
        } = self.exits[exit as usize];
        self.note_taken(branch, pc);
        if kind != ExitKind::Direct || self.blocks[block as usize].variant != LINKED {
            return;
        }
        let destination = &mut self.blocks[target as usize];
        if destination.variant == LINKED {
            destination.incoming.push(exit);
            let host = destination.host;
            self.patch(patch_at, host);
        }
    }

    /// Index of a guest address in the indirect table; the same CRC that the
    /// emitted code computes.
    fn indirect_index(pc: u64) -> usize {
        // SAFETY: SSE4.2 is checked when the context is installed.
        (unsafe { crc(pc) } & 0xffff) as usize
    }

    /// Makes indirect branches to the block's address find it.
    pub fn enter_in_indirect_table(&mut self, id: BlockId) {
        let block = &self.blocks[id as usize];
        let (pc, host) = (block.pc, block.host);
        let entry = match block.indirect_entry {
            Some(entry) => entry,
            None => {
                if !self.has_room(256) {
                    return;
                }
                let entry = self.emit_indirect_entry(pc, host);
                self.blocks[id as usize].indirect_entry = Some(entry);
                entry
            }
        };
        self.set_indirect(Self::indirect_index(pc), entry);
    }

    /// Checks that rcx is `pc`, restores rcx and rdx and goes to `host`.
    fn emit_indirect_entry(&mut self, pc: u64, host: u64) -> u64 {
        let mut code = Emitter::new(self.next);
        let entry = code.here();
        code.load_imm(reg::RDX, pc.wrapping_neg());
        // lea rcx, [rcx + rdx]; jrcxz
        code.raw(&[0x48, 0x8d, 0x0c, 0x11, 0xe3, 0]);
        let hit = code.here() - 1;
        code.load_imm(reg::RDX, pc);
        code.raw(&[0x48, 0x8d, 0x0c, 0x11]);
        code.jump(self.indirect_miss);
        code.patch_rel8_here(hit);
        code.load(reg::RCX, Emitter::field(offset::SPILL + 8 * reg::RCX));
        code.load(reg::RDX, Emitter::field(offset::SPILL + 8 * reg::RDX));
        code.jump(host);
        self.write_code(&code);
        entry
    }

    /// Forgets every block with code in `range`.
    pub fn invalidate(&mut self, range: std::ops::Range<u64>) {
        let first = layout::page_down(range.start);
        let pages = (range.end.saturating_sub(first)).div_ceil(layout::PAGE);
        let affected: Vec<u64> = if pages as usize > self.by_page.len() {
            self.by_page
                .keys()
                .copied()
                .filter(|page| *page >= first && *page < range.end)
                .collect()
        } else {
            (first..range.end).step_by(layout::PAGE as usize).collect()
        };
        for page in affected {
            for id in self.by_page.remove(&page).unwrap_or_default() {
                self.remove(id);
            }
        }
    }

    fn remove(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        if !block.alive {
            return;
        }
        block.alive = false;
        self.dropped += 1;
        let key = (block.pc, block.variant);
        let entry = block.indirect_entry;
        let incoming = std::mem::take(&mut block.incoming);
        self.by_pc.remove(&key);
        for exit in incoming {
            let Exit { patch_at, stub, .. } = self.exits[exit as usize];
            self.patch(patch_at, stub);
        }
        let index = Self::indirect_index(key.0);
        if entry == Some(self.indirect(index)) {
            self.set_indirect(index, self.indirect_miss);
        }
    }
}

/// The pages that ranges of guest code lie on.
pub fn pages_of(ranges: &[std::ops::Range<u64>]) -> impl Iterator<Item = u64> + '_ {
    ranges.iter().flat_map(|range| {
        (layout::page_down(range.start)..range.end).step_by(layout::PAGE as usize)
    })
}

#[target_feature(enable = "sse4.2")]
fn crc(value: u64) -> u64 {
    std::arch::x86_64::_mm_crc32_u64(0, value)
}
