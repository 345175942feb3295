//! Memory errors on the heap.
//!
//! Paper 003, section 4.6, finds memory errors because its executions run in
//! an interpreter of whole programs (KLEE). Here allocators are followed by
//! the names of their functions while the recording is replayed: which blocks
//! are alive and how large they were asked for, which were freed and not
//! handed out again. Nothing of the program changes by that, addresses
//! included. From the race point on, in both orders, accesses are looked at as
//! well, and frees are not made (quarantine): a block stays where it was, so
//! that nothing new hides who still uses it.
//!
//! An access is an error if code other than an allocator makes it to memory
//! that an allocator manages and that is in no live block: freed, between
//! blocks, or never handed out. Memory is an allocator's if it got it from the
//! system while one of its functions ran, or if it is next to a block of its
//! own in the same page.
//!
//! What is let pass: reads of sixteen bytes and more near live memory, because
//! the C library's string functions read whole vectors; accesses of the
//! dynamic linker, of allocators' own libraries, and those whose stack has no
//! frame of the program (the C library tidying up a thread). `realloc` is made
//! a `malloc`, and what the old block holds is copied: the old one stays.
//! Guarantee: what is reported is an access outside the block, or to a block
//! that was freed, by the program's own calls. Not everything is seen: a wild
//! pointer into another live block is an access like any other.

use super::allocators::{Followed, Role, Size};
pub use super::blocks::Block;
use super::blocks::Blocks;
use super::finding::{ErrorKind, Memory};
use super::shadow::Marks;
use race::Moment;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use vm::context::{Registers, reg};
use vm::observe::AfterHook;

/// Bytes before a block that count as its underflow.
pub(super) const BEFORE: u64 = 16;

pub(super) const PAGE: u64 = 4096;

/// Quarantined bytes, after which frees are made again.
const QUARANTINE: u64 = 64 << 20;

/// Allocator memory that is marked as a whole; beyond that only what was freed
/// and the edges of blocks.
const MARKED: u64 = 8 << 20;

/// A call of an allocator's function under way.
struct Call {
    followed: Followed,
    function: u64,
    stack: u64,
    moment: Moment,
    size: u64,
    /// What is reallocated, if it is a block, or where the block's address is
    /// stored.
    block: Option<Block>,
    pointer: u64,
    /// An outer call of the same kind accounts for it.
    inner: bool,
    /// It is a reallocation that only allocates.
    moves: bool,
}

/// An error, as far as the heap knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrong {
    pub kind: ErrorKind,
    pub memory: Option<Memory>,
}

/// All that is known of the heap.
#[derive(Default)]
pub struct Heap {
    pub(super) standard: Blocks,
    pub(super) custom: Blocks,
    /// Memory that allocators got from the system, by start and end.
    owned: BTreeMap<u64, u64>,
    /// The program's break when an allocator last saw it.
    program_break: u64,
    calls: FxHashMap<u32, Vec<Call>>,
    quarantined: u64,
    /// Bytes that were added to every block when recording.
    pub(super) guard: u64,
    marks: Option<Marks>,
}

pub fn argument(regs: &Registers, number: u8) -> u64 {
    const ORDER: [usize; 6] = [reg::RDI, reg::RSI, reg::RDX, reg::RCX, reg::R8, reg::R9];
    ORDER
        .get(usize::from(number))
        .map_or(0, |register| regs.gpr[*register])
}

/// What one block holds goes into another, as far as both are there.
fn carry_over(from: u64, to: u64, size: u64) {
    if let Ok(bytes) = vm::memory::read_vec(from, size as usize) {
        // A block that was just handed out can be written.
        let _ = vm::memory::write(to, &bytes);
    }
}

fn size_of(regs: &Registers, size: Size) -> u64 {
    match size {
        Size::Argument(number) => argument(regs, number),
        Size::Product(one, other) => argument(regs, one).saturating_mul(argument(regs, other)),
        Size::Bytes(bytes) => bytes,
    }
}

impl Heap {
    /// What decides what is found later on. Calls under way are the threads'.
    pub(super) fn hash_blocks<H: Hasher>(&self, state: &mut H) {
        (&self.standard, &self.custom, &self.owned, self.quarantined).hash(state);
    }

    /// A heap whose blocks were made this much larger when recording.
    pub fn guarded(guard: u64) -> Heap {
        Heap {
            guard,
            ..Heap::default()
        }
    }

    fn blocks(&mut self, custom: bool) -> &mut Blocks {
        if custom {
            &mut self.custom
        } else {
            &mut self.standard
        }
    }

    /// An allocator's function runs in this thread.
    pub fn is_inside(&self, thread: u32) -> bool {
        self.calls
            .get(&thread)
            .is_some_and(|calls| !calls.is_empty())
    }

    /// The live block of an address, if it is in one.
    pub fn block_at(&self, address: u64) -> Option<&Block> {
        self.standard.at(address)
    }

    /// A function of an allocator is called. `judged`: errors count, and frees
    /// are quarantined.
    pub fn called(
        &mut self,
        followed: Followed,
        moment: Moment,
        regs: &Registers,
        judged: bool,
    ) -> (AfterHook, Option<Wrong>) {
        let stack = regs.gpr[reg::RSP];
        let calls = self.calls.entry(moment.thread).or_default();
        // An exception or a jump has left those; a tail call has not.
        calls.retain(|call| call.stack >= stack);
        let inner = calls
            .iter()
            .any(|call| call.followed.custom == followed.custom);
        let mut wrong = None;
        let mut call = Call {
            followed,
            function: regs.rip,
            stack,
            moment,
            size: 0,
            block: None,
            pointer: 0,
            inner,
            moves: false,
        };
        match followed.role {
            Role::Free { block } if !inner => {
                let start = argument(regs, block);
                let (skip, found) = self.freeing(followed.custom, start, moment, judged);
                wrong = found;
                if skip {
                    return (AfterHook::SkipCall, wrong);
                }
            }
            Role::Free { .. } | Role::Internal => {}
            Role::Allocate { size, .. } => call.size = size_of(regs, size),
            Role::AllocateInto => {
                call.size = argument(regs, 2);
                call.pointer = argument(regs, 0);
            }
            Role::Reallocate { size } => {
                let old = argument(regs, 0);
                call.size = size_of(regs, size);
                call.pointer = old;
                call.block = self.blocks(followed.custom).live.get(&old).copied();
                if old != 0 && call.block.is_none() && !inner {
                    wrong = self.bad_free(followed.custom, old);
                }
                if let Some(block) = call.block
                    && judged
                    && !inner
                    && !followed.custom
                    && call.size > 0
                    && self.quarantined + block.size <= QUARANTINE
                {
                    self.quarantined += block.size;
                    call.moves = true;
                }
            }
            Role::UsableSize => call.pointer = argument(regs, 0),
        }
        let after = if call.moves {
            AfterHook::FirstArgument(0)
        } else {
            AfterHook::TellReturn
        };
        self.calls.entry(moment.thread).or_default().push(call);
        (after, wrong)
    }

    /// Frees a block; says whether the call is left out, and what is wrong
    /// with it.
    fn freeing(
        &mut self,
        custom: bool,
        start: u64,
        moment: Moment,
        judged: bool,
    ) -> (bool, Option<Wrong>) {
        if start == 0 {
            return (false, None);
        }
        let Some(block) = self.blocks(custom).free(start, moment) else {
            let wrong = self.bad_free(custom, start);
            // The allocator would not notice what it was not told, or end the
            // program in its own way.
            let skip = judged && wrong.is_some_and(|wrong| wrong.memory.is_some());
            return (skip, wrong);
        };
        if !custom {
            // Whatever was made of it goes with it.
            self.custom.forget_live(&block.extent());
            self.custom.forget_freed(&block.extent());
        }
        if let Some(marks) = &mut self.marks {
            marks.set(block.extent());
        }
        let skip = judged && self.quarantined + block.size <= QUARANTINE;
        if skip {
            self.quarantined += block.size;
        }
        (skip, None)
    }

    /// What is wrong with freeing something that is no live block.
    fn bad_free(&self, custom: bool, start: u64) -> Option<Wrong> {
        let blocks = if custom { &self.custom } else { &self.standard };
        if let Some(block) = blocks.freed_at(start)
            && block.start == start
        {
            return Some(Wrong {
                kind: ErrorKind::DoubleFree,
                memory: Some(Memory::of(block, start)),
            });
        }
        if let Some(block) = blocks.at(start) {
            return Some(Wrong {
                kind: ErrorKind::InvalidFree,
                memory: Some(Memory::of(block, start)),
            });
        }
        // What the dynamic linker allocated before the C library was there is
        // not known; the caller knows what else it may be.
        Some(Wrong {
            kind: ErrorKind::InvalidFree,
            memory: None,
        })
    }

    /// Memory that an allocator got from the system.
    pub fn is_allocators(&self, address: u64) -> bool {
        self.is_owned(address)
    }

    /// A function of an allocator has returned.
    pub fn returned(&mut self, function: u64, moment: Moment, regs: &Registers) {
        let Some(calls) = self.calls.get_mut(&moment.thread) else {
            return;
        };
        let Some(index) = calls.iter().rposition(|call| call.function == function) else {
            return;
        };
        let call = calls.swap_remove(index);
        calls.truncate(index);
        if call.inner {
            return;
        }
        let result = regs.gpr[reg::RAX];
        let custom = call.followed.custom;
        match call.followed.role {
            Role::Allocate { zeroed, .. } if result != 0 => {
                self.enter(custom, result, call.size, call.moment, zeroed);
            }
            Role::AllocateInto if result as u32 == 0 => {
                if let Ok(start) = vm::memory::get::<u64>(call.pointer)
                    && start != 0
                {
                    self.enter(custom, start, call.size, call.moment, false);
                }
            }
            Role::Reallocate { .. } => {
                // What it held is there again.
                let zeroed = call.block.is_some();
                if let Some(old) = call.block
                    && call.moves
                    && result != 0
                {
                    carry_over(old.start, result, old.size.min(call.size));
                }
                if let Some(old) = call.block
                    && (result != 0 || call.size == 0)
                    && self.blocks(custom).live.get(&old.start) == Some(&old)
                {
                    if result == old.start {
                        self.blocks(custom).live.remove(&old.start);
                        // What it no longer has is behind its end.
                        if let Some(marks) = &mut self.marks {
                            marks.set(old.extent());
                        }
                    } else {
                        self.blocks(custom).free(old.start, call.moment);
                        if let Some(marks) = &mut self.marks {
                            marks.set(old.extent());
                        }
                    }
                }
                if result != 0 {
                    self.enter(custom, result, call.size, call.moment, zeroed);
                }
            }
            Role::UsableSize => {
                // Whoever asks may use all of it.
                if let Some(block) = self.standard.live.get(&call.pointer).copied()
                    && result > block.size
                    && result < block.size + (1 << 30)
                {
                    let block = Block {
                        size: result,
                        ..block
                    };
                    self.standard.allocate(block);
                    if let Some(marks) = &mut self.marks {
                        marks.clear(block.start..block.end());
                    }
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, custom: bool, start: u64, size: u64, moment: Moment, zeroed: bool) {
        let block = Block {
            start,
            size,
            allocated: moment,
            freed: None,
            zeroed,
        };
        if size > 1 << 46 {
            return;
        }
        self.blocks(custom).allocate(block);
        if !custom {
            self.custom.forget_live(&block.extent());
            self.custom.forget_freed(&block.extent());
        }
        if self.marks.is_some() {
            let edges = self.edges(&block, custom);
            if let Some(marks) = &mut self.marks {
                for edge in edges {
                    marks.set(edge);
                }
                marks.clear(start..block.end());
            }
        }
    }

    /// Bytes next to a block that are not to be touched unless they are in
    /// another: in the same pages.
    fn edges(&self, block: &Block, custom: bool) -> [Range<u64>; 2] {
        let end = block.end();
        // A custom allocator may keep its own books anywhere but in the last
        // word of a block.
        let behind = if custom {
            end.next_multiple_of(8)
        } else {
            (end + BEFORE.max(self.guard)).min(end.max(1).next_multiple_of(PAGE))
        };
        let behind = end..behind.max(end);
        if custom {
            return [behind, block.start..block.start];
        }
        let before = block.start.saturating_sub(8).max(block.start / PAGE * PAGE)..block.start;
        [behind, before]
    }

    /// Memory was unmapped, or mapped anew.
    pub fn unmapped(&mut self, range: &Range<u64>) {
        for blocks in [&mut self.standard, &mut self.custom] {
            blocks.forget_live(range);
            blocks.forget_freed(range);
        }
        self.disown(range);
        if let Some(marks) = &mut self.marks {
            marks.clear(range.clone());
        }
    }

    fn disown(&mut self, range: &Range<u64>) {
        let touched: Vec<(u64, u64)> = self
            .owned
            .range(..range.end)
            .rev()
            .take_while(|(_, end)| **end > range.start)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in touched {
            self.owned.remove(&start);
            if start < range.start {
                self.owned.insert(start, range.start);
            }
            if end > range.end {
                self.owned.insert(range.end, end);
            }
        }
    }

    fn own(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.disown(&range);
        self.owned.insert(range.start, range.end);
        if range.end - range.start <= MARKED
            && let Some(marks) = &mut self.marks
        {
            marks.set_whole(range);
        }
    }

    pub(super) fn is_owned(&self, address: u64) -> bool {
        self.owned
            .range(..=address)
            .next_back()
            .is_some_and(|(_, end)| address < *end)
    }

    /// A system call has completed: what allocators get is theirs.
    pub fn system_call(&mut self, thread: u32, number: u64, arguments: &[u64; 6], result: i64) {
        let inside = self.is_inside(thread);
        match number as i64 {
            libc::SYS_brk => {
                let now = result as u64;
                let before = std::mem::replace(&mut self.program_break, now);
                if inside && before != 0 && now > before {
                    self.own(before..now);
                } else if now < before {
                    self.unmapped(&(now..before));
                }
            }
            libc::SYS_mmap
                if inside && result > 0 && arguments[2] as i32 & libc::PROT_WRITE != 0 =>
            {
                let start = result as u64;
                self.own(start..start.saturating_add(arguments[1].next_multiple_of(PAGE)));
            }
            libc::SYS_mprotect
                if inside && result == 0 && arguments[2] as i32 & libc::PROT_WRITE != 0 =>
            {
                let end = arguments[0].saturating_add(arguments[1].next_multiple_of(PAGE));
                self.own(arguments[0]..end);
            }
            libc::SYS_mprotect if result == 0 => {
                let end = arguments[0].saturating_add(arguments[1].next_multiple_of(PAGE));
                self.disown(&(arguments[0]..end));
            }
            _ => {}
        }
    }

    /// From here on accesses are looked at.
    pub fn mark(&mut self, mut marks: Marks) {
        let mut whole = 0;
        for (start, end) in &self.owned {
            let size = end - start;
            if whole + size <= MARKED {
                whole += size;
                marks.set_whole(*start..*end);
            }
        }
        for (custom, blocks) in [(false, &self.standard), (true, &self.custom)] {
            for (start, (end, _)) in &blocks.freed {
                marks.set(*start..*end);
            }
            for block in blocks.live.values() {
                for edge in self.edges(block, custom) {
                    marks.set(edge);
                }
            }
        }
        // Whole granules of live blocks are free to all; those of the
        // standard layer that a custom allocator has taken back are not.
        for block in self.standard.live.values() {
            marks.clear(block.start..block.end());
        }
        for (start, (end, _)) in &self.custom.freed {
            marks.set(*start..*end);
        }
        for block in self.custom.live.values() {
            for edge in self.edges(block, true) {
                marks.set(edge);
            }
            marks.clear(block.start..block.end());
        }
        self.marks = Some(marks);
    }

    /// False if an access certainly is none of the heap's business.
    pub fn may_be_wrong(&self, address: u64, size: u64) -> bool {
        self.marks
            .as_ref()
            .is_some_and(|marks| marks.may_touch(address, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATE: Followed = Followed {
        role: Role::Allocate {
            size: Size::Argument(0),
            zeroed: false,
        },
        custom: false,
    };
    const FREE: Followed = Followed {
        role: Role::Free { block: 0 },
        custom: false,
    };
    const REALLOCATE: Followed = Followed {
        role: Role::Reallocate {
            size: Size::Argument(1),
        },
        custom: false,
    };

    fn regs(rip: u64, stack: u64, arguments: [u64; 2], result: u64) -> Registers {
        let mut regs = Registers {
            rip,
            ..Registers::default()
        };
        regs.gpr[reg::RSP] = stack;
        regs.gpr[reg::RDI] = arguments[0];
        regs.gpr[reg::RSI] = arguments[1];
        regs.gpr[reg::RAX] = result;
        regs
    }

    fn call(
        heap: &mut Heap,
        followed: Followed,
        arguments: [u64; 2],
        result: u64,
    ) -> Option<Wrong> {
        let moment = Moment::new(1, 10);
        let (_, wrong) = heap.called(followed, moment, &regs(0x10, 0x9000, arguments, 0), false);
        heap.returned(0x10, moment, &regs(0, 0x9008, [0, 0], result));
        wrong
    }

    fn kind(heap: &Heap, address: u64, size: u64) -> Option<ErrorKind> {
        heap.judge(address, size, true).map(|wrong| wrong.kind)
    }

    #[test]
    fn the_edges_of_a_block_are_exact() {
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [29, 0], 0x5010);
        call(&mut heap, ALLOCATE, [16, 0], 0x5040);
        assert_eq!(kind(&heap, 0x5010 + 28, 1), None);
        assert_eq!(kind(&heap, 0x5010 + 29, 1), Some(ErrorKind::HeapOverflow));
        assert_eq!(kind(&heap, 0x5010 + 24, 8), Some(ErrorKind::HeapOverflow));
        assert_eq!(kind(&heap, 0x500f, 1), Some(ErrorKind::HeapUnderflow));
        assert_eq!(kind(&heap, 0x503f, 1), Some(ErrorKind::HeapUnderflow));
        assert_eq!(kind(&heap, 0x5040, 16), None);
        assert_eq!(kind(&heap, 0x6000, 8), None, "far from any block");
    }

    #[test]
    fn what_is_freed_is_freed_until_it_is_handed_out_again() {
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [64, 0], 0x5010);
        assert_eq!(call(&mut heap, FREE, [0x5010, 0], 0), None);
        assert_eq!(kind(&heap, 0x5020, 8), Some(ErrorKind::UseAfterFree));
        let twice = call(&mut heap, FREE, [0x5010, 0], 0).map(|wrong| wrong.kind);
        assert_eq!(twice, Some(ErrorKind::DoubleFree));
        call(&mut heap, ALLOCATE, [16, 0], 0x5010);
        assert_eq!(kind(&heap, 0x5018, 8), None);
        assert_eq!(kind(&heap, 0x5030, 8), Some(ErrorKind::UseAfterFree));
        let inside = call(&mut heap, FREE, [0x5018, 0], 0).map(|wrong| wrong.kind);
        assert_eq!(inside, Some(ErrorKind::InvalidFree));
    }

    #[test]
    fn a_block_grows_and_shrinks_in_place_or_moves() {
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [16, 0], 0x5010);
        call(&mut heap, REALLOCATE, [0x5010, 32], 0x5010);
        assert_eq!(kind(&heap, 0x5028, 8), None);
        call(&mut heap, REALLOCATE, [0x5010, 8], 0x5010);
        assert_eq!(kind(&heap, 0x5018, 8), Some(ErrorKind::HeapOverflow));
        call(&mut heap, REALLOCATE, [0x5010, 99], 0x7010);
        assert_eq!(kind(&heap, 0x5010, 8), Some(ErrorKind::UseAfterFree));
        assert_eq!(kind(&heap, 0x7010 + 90, 8), None);
    }

    /// Once errors count, what a block was stays nobody's.
    #[test]
    fn a_block_that_is_reallocated_is_quarantined() {
        // Where no guest has memory: there is nothing to carry over.
        let (from, to) = (0x7000_0000_5010, 0x7000_0000_7010);
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [16, 0], from);
        let moment = Moment::new(1, 10);
        let registers = regs(0x10, 0x9000, [from, 32], 0);
        let (after, wrong) = heap.called(REALLOCATE, moment, &registers, true);
        assert_eq!((after, wrong), (AfterHook::FirstArgument(0), None));
        heap.returned(0x10, moment, &regs(0, 0x9008, [0, 0], to));
        assert_eq!(kind(&heap, from, 8), Some(ErrorKind::UseAfterFree));
        assert_eq!(kind(&heap, to + 24, 8), None);
    }

    #[test]
    fn a_function_that_frees_by_another_frees_once() {
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [16, 0], 0x5010);
        let moment = Moment::new(1, 20);
        // operator delete, which jumps to free
        let (_, first) = heap.called(FREE, moment, &regs(0x20, 0x9000, [0x5010, 0], 0), false);
        let (_, second) = heap.called(FREE, moment, &regs(0x10, 0x9000, [0x5010, 0], 0), false);
        assert_eq!((first, second), (None, None));
        heap.returned(0x10, moment, &regs(0, 0x9008, [0, 0], 0));
        heap.returned(0x20, moment, &regs(0, 0x9008, [0, 0], 0));
        assert!(!heap.is_inside(1));
    }

    #[test]
    fn a_call_left_by_an_exception_is_over_at_the_next() {
        let mut heap = Heap::default();
        let moment = Moment::new(1, 20);
        heap.called(ALLOCATE, moment, &regs(0x10, 0x8000, [16, 0], 0), false);
        assert!(heap.is_inside(1));
        call(&mut heap, ALLOCATE, [16, 0], 0x5010);
        assert!(!heap.is_inside(1));
        assert_eq!(kind(&heap, 0x5010, 16), None);
    }

    #[test]
    fn vectors_may_be_read_past_the_end_but_not_written() {
        let mut heap = Heap::default();
        call(&mut heap, ALLOCATE, [5, 0], 0x5010);
        assert_eq!(heap.judge(0x5010, 32, false), None);
        assert!(heap.judge(0x5010, 32, true).is_some());
        assert!(heap.judge(0x5010, 8, false).is_some());
    }

    #[test]
    fn parts_of_a_block_can_be_a_custom_allocator_s() {
        let mut heap = Heap::default();
        let custom = |followed: Followed| Followed {
            custom: true,
            ..followed
        };
        call(&mut heap, ALLOCATE, [1000, 0], 0x5010);
        call(&mut heap, custom(ALLOCATE), [20, 0], 0x5050);
        assert_eq!(kind(&heap, 0x5060, 4), None);
        assert_eq!(kind(&heap, 0x5064, 4), Some(ErrorKind::HeapOverflow));
        assert_eq!(kind(&heap, 0x5070, 4), None, "the allocator's own books");
        call(&mut heap, custom(FREE), [0x5050, 0], 0);
        assert_eq!(kind(&heap, 0x5060, 4), Some(ErrorKind::UseAfterFree));
        call(&mut heap, FREE, [0x5010, 0], 0);
        assert_eq!(kind(&heap, 0x5300, 4), Some(ErrorKind::UseAfterFree));
    }

    #[test]
    fn memory_that_an_allocator_keeps_is_nobody_else_s() {
        let mut heap = Heap::default();
        let moment = Moment::new(1, 10);
        heap.system_call(1, libc::SYS_brk as u64, &[0; 6], 0x10000);
        heap.called(ALLOCATE, moment, &regs(0x10, 0x9000, [16, 0], 0), false);
        heap.system_call(1, libc::SYS_brk as u64, &[0x31000, 0, 0, 0, 0, 0], 0x31000);
        heap.returned(0x10, moment, &regs(0, 0x9008, [0, 0], 0x10010));
        assert_eq!(kind(&heap, 0x20000, 8), Some(ErrorKind::WildAccess));
        assert_eq!(kind(&heap, 0x40000, 8), None);
        heap.unmapped(&(0x18000..0x31000));
        assert_eq!(kind(&heap, 0x20000, 8), None);
    }
}
