//! The backwards data flow (paper 004, section 3.5): for each point, which
//! locations must be written (W), or read or written (RW), before the next
//! acquire on every path.
//!
//! A location is an address expression: base + index × scale + offset over SSA
//! values, so the same expression is the same location wherever its parts are
//! in scope. Where a part is defined, the location leaves the set: that is the
//! paper's short-scope case (section 3.6), and it also makes a location inside
//! a loop mean the current iteration's address.
//!
//! Deviation: a loop that may run for ever without progress, and an
//! irreducible cycle, empty the sets at their head. The paper lets sets flow
//! through; an endless loop would then start a monitor for an access that
//! never comes.

use crate::effects::{self, Effect};
use crate::shim::{self, Session};
use crate::without::Without;
use crate::{ir, ranges};
use inkwell::llvm_sys::LLVMOpcode;
use inkwell::llvm_sys::prelude::*;
use std::collections::HashMap;
use std::ffi::c_int;

/// One address expression with its width.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    pub base: LLVMValueRef,
    pub index: LLVMValueRef,
    pub scale: i64,
    pub offset: i64,
    pub size: u64,
}

/// A location with what its accesses say about it.
pub struct Seen {
    pub location: Location,
    /// Largest alignment that any access promises.
    pub alignment: u64,
    /// One of its accesses is volatile.
    pub volatile: bool,
    /// The first write, and the first access of any kind: they name the lines
    /// of a report.
    pub write: Option<LLVMValueRef>,
    pub any: LLVMValueRef,
}

/// A set of location numbers.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Set(Vec<u64>);

impl Set {
    pub fn empty(count: usize) -> Self {
        Set(vec![0; count.div_ceil(64)])
    }
    pub fn full(count: usize) -> Self {
        Set(vec![u64::MAX; count.div_ceil(64)])
    }
    pub fn add(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }
    pub fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }
    pub fn has(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }
    pub fn clear(&mut self) {
        self.0.fill(0);
    }
    pub fn meet(&mut self, other: &Set) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= theirs;
        }
    }
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = *bits;
            std::iter::from_fn(move || {
                (bits != 0).then(|| {
                    let bit = bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    word * 64 + bit
                })
            })
        })
    }
}

/// W and RW at one point.
#[derive(Clone, PartialEq, Eq)]
pub struct Must {
    pub write: Set,
    pub any: Set,
}

impl Must {
    pub fn empty(count: usize) -> Self {
        Must {
            write: Set::empty(count),
            any: Set::empty(count),
        }
    }
    fn full(count: usize) -> Self {
        Must {
            write: Set::full(count),
            any: Set::full(count),
        }
    }
    fn meet(&mut self, other: &Must) {
        self.write.meet(&other.write);
        self.any.meet(&other.any);
    }
}

/// One instruction that matters to regions.
pub struct Step {
    pub instruction: LLVMValueRef,
    pub effect: Effect,
    /// The location of its access, if it has one that is monitored by itself.
    pub location: Option<usize>,
    /// Locations whose expression uses this instruction's value.
    pub defines: Vec<usize>,
}

pub struct Block {
    pub block: LLVMBasicBlockRef,
    pub steps: Vec<Step>,
    /// Locations whose expression uses a phi of this block.
    pub phis: Vec<usize>,
    pub successors: Vec<usize>,
    /// Sets are emptied at its start: the head of a loop that may hang.
    pub head_kills: bool,
}

/// A function cut into what matters, with the sets at each block's start.
pub struct Regions {
    pub blocks: Vec<Block>,
    pub locations: Vec<Seen>,
    pub at_start: Vec<Must>,
    pub ranges: Vec<ranges::Range>,
}

/// Above this many set bits the analysis is not run and every access has its
/// own monitor: a bound on compile time for huge functions (16 MiB of sets).
const MOST_BITS: usize = 1 << 26;

/// Reads the function, takes out what ranges cover, numbers the locations.
pub fn read(function: LLVMValueRef, session: Session) -> Regions {
    let module = ir::module_of(function);
    let in_rust = effects::is_rust_symbol(&ir::name(function));
    let without = Without::read();
    let blocks = ir::blocks(function);
    let number: HashMap<LLVMBasicBlockRef, usize> = blocks
        .iter()
        .enumerate()
        .map(|(index, block)| (*block, index))
        .collect();
    let mut cut: Vec<Block> = blocks
        .iter()
        .map(|&block| Block {
            block,
            steps: Vec::new(),
            phis: Vec::new(),
            successors: ir::successors(block)
                .into_iter()
                .map(|next| number[&next])
                .collect(),
            head_kills: false,
        })
        .collect();
    let mut all: Vec<Vec<(LLVMValueRef, Effect)>> = blocks
        .iter()
        .map(|&block| {
            ir::instructions(block)
                .into_iter()
                .map(|instruction| {
                    (
                        instruction,
                        effects::of(instruction, module, in_rust, without),
                    )
                })
                .collect()
        })
        .collect();
    for (_, effect) in all.iter_mut().flatten() {
        let hide = effect.access.is_some_and(|access| {
            // SAFETY: a live pointer value.
            access.size == 0
                || access.size > 1 << 16
                || unsafe { shim::dh_private(access.pointer, c_int::from(!without.escape)) } != 0
        });
        if hide {
            effect.access = None;
        }
        effect.bulk.retain(|bulk| {
            let pointer = match bulk {
                effects::Bulk::Bytes { pointer, .. }
                | effects::Bulk::ByValue { pointer, .. }
                | effects::Bulk::Printed { pointer, .. }
                | effects::Bulk::Length {
                    string: pointer, ..
                } => pointer,
                effects::Bulk::String {
                    source,
                    target: None,
                } => source,
                effects::Bulk::String { .. } => return true,
            };
            // SAFETY: a live pointer value.
            unsafe { shim::dh_private(*pointer, c_int::from(!without.escape)) == 0 }
        });
    }
    mark_heads(&mut cut, session);
    let ranges = if without.ranges {
        Vec::new()
    } else {
        ranges::take(session, module, &mut all)
    };

    let mut numbers: HashMap<Location, usize> = HashMap::new();
    let mut locations: Vec<Seen> = Vec::new();
    for (block, instructions) in cut.iter_mut().zip(all) {
        for (instruction, effect) in instructions {
            let location = effect.access.map(|access| {
                let location = locate(access.pointer, module, access.size);
                let index = *numbers.entry(location).or_insert_with(|| {
                    locations.push(Seen {
                        location,
                        alignment: access.alignment,
                        volatile: false,
                        write: None,
                        any: instruction,
                    });
                    locations.len() - 1
                });
                let seen = &mut locations[index];
                seen.alignment = seen.alignment.max(access.alignment);
                seen.volatile |= access.volatile;
                if access.write && seen.write.is_none() {
                    seen.write = Some(instruction);
                }
                index
            });
            block.steps.push(Step {
                instruction,
                effect,
                location,
                defines: Vec::new(),
            });
        }
    }
    let mut uses: HashMap<LLVMValueRef, Vec<usize>> = HashMap::new();
    for (index, seen) in locations.iter().enumerate() {
        uses.entry(seen.location.base).or_default().push(index);
        if !seen.location.index.is_null() && seen.location.index != seen.location.base {
            uses.entry(seen.location.index).or_default().push(index);
        }
    }
    for block in &mut cut {
        for step in &mut block.steps {
            if let Some(defined) = uses.get(&step.instruction) {
                if ir::opcode(step.instruction) == LLVMOpcode::LLVMPHI {
                    block.phis.extend(defined);
                } else {
                    step.defines.clone_from(defined);
                }
            }
        }
        // What has no effect on regions is of no further interest.
        block.steps.retain(|step| {
            step.location.is_some()
                || !step.defines.is_empty()
                || !step.effect.bulk.is_empty()
                || step.effect.kills_backward
                || step.effect.kills_forward
                || step.effect.stop_before
        });
    }
    let count = locations.len();
    let mut regions = Regions {
        at_start: Vec::new(),
        blocks: cut,
        locations,
        ranges,
    };
    // Every block has its sets, and every acquire empties one.
    let rows: usize = regions
        .blocks
        .iter()
        .map(|block| {
            let kills = |step: &&Step| step.effect.kills_backward || step.effect.kills_forward;
            1 + block.steps.iter().filter(kills).count()
        })
        .sum();
    if count.saturating_mul(rows) < MOST_BITS {
        regions.solve();
    }
    regions
}

pub fn locate(pointer: LLVMValueRef, module: LLVMModuleRef, size: u64) -> Location {
    let mut location = Location {
        base: pointer,
        index: std::ptr::null_mut(),
        scale: 0,
        offset: 0,
        size,
    };
    // SAFETY: live pointer and module; all out pointers are valid.
    unsafe {
        shim::dh_decompose(
            pointer,
            module,
            &mut location.base,
            &mut location.index,
            &mut location.scale,
            &mut location.offset,
        );
    }
    location
}

/// Finds the targets of retreating edges and marks those through which sets
/// must not flow.
fn mark_heads(blocks: &mut [Block], session: Session) {
    let mut state = vec![0u8; blocks.len()];
    let mut stack = vec![(0usize, 0usize)];
    let mut retreating = Vec::new();
    if blocks.is_empty() {
        return;
    }
    state[0] = 1;
    while let Some((block, next)) = stack.pop() {
        if next < blocks[block].successors.len() {
            stack.push((block, next + 1));
            let target = blocks[block].successors[next];
            match state[target] {
                0 => {
                    state[target] = 1;
                    stack.push((target, 0));
                }
                1 => retreating.push((block, target)),
                _ => {}
            }
        } else {
            state[block] = 2;
        }
    }
    for (from, head) in retreating {
        let (from, target) = (blocks[from].block, blocks[head].block);
        // SAFETY: live blocks of the session's function.
        let kills = unsafe {
            shim::dh_block_dominates(session.0, target, from) == 0
                || shim::dh_loop_may_hang(session.0, target) != 0
        };
        blocks[head].head_kills |= kills;
    }
}

impl Regions {
    pub fn analysed(&self) -> bool {
        self.at_start.len() == self.blocks.len()
    }

    /// The sets after the block's last step, from its successors.
    pub fn at_end(&self, block: usize) -> Must {
        let count = self.locations.len();
        let successors = &self.blocks[block].successors;
        if successors.is_empty() {
            return Must::empty(count);
        }
        let mut sets = Must::full(count);
        for &next in successors {
            let mut theirs = self.at_start[next].clone();
            // An expression over a phi means another address on this side of
            // the edge.
            for &number in &self.blocks[next].phis {
                theirs.write.remove(number);
                theirs.any.remove(number);
            }
            if self.blocks[next].head_kills {
                theirs.write.clear();
                theirs.any.clear();
            }
            sets.meet(&theirs);
        }
        sets
    }

    /// Figure 6: the sets before a step from the sets after it.
    pub fn before(step: &Step, sets: &mut Must) {
        for &number in &step.defines {
            sets.write.remove(number);
            sets.any.remove(number);
        }
        if step.effect.kills_backward {
            sets.write.clear();
            sets.any.clear();
        }
        if let (Some(number), Some(access)) = (step.location, step.effect.access) {
            sets.any.add(number);
            if access.write {
                sets.write.add(number);
            }
        }
    }

    /// Which blocks lead to each block.
    pub fn predecessors(&self) -> Vec<Vec<usize>> {
        let mut predecessors = vec![Vec::new(); self.blocks.len()];
        for (index, block) in self.blocks.iter().enumerate() {
            for &next in &block.successors {
                predecessors[next].push(index);
            }
        }
        predecessors
    }

    fn solve(&mut self) {
        let count = self.locations.len();
        self.at_start = vec![Must::full(count); self.blocks.len()];
        let predecessors = self.predecessors();
        // Blocks from which no exit can be reached would keep the full set.
        let ends = self.reaches_an_exit(&predecessors);
        for (block, reaches) in ends.iter().enumerate() {
            if !reaches {
                self.at_start[block] = Must::empty(count);
            }
        }
        let mut waiting = ends.clone();
        let mut changed = true;
        while changed {
            changed = false;
            for block in (0..self.blocks.len()).rev() {
                if !std::mem::take(&mut waiting[block]) {
                    continue;
                }
                let mut sets = self.at_end(block);
                for step in self.blocks[block].steps.iter().rev() {
                    Self::before(step, &mut sets);
                }
                if sets != self.at_start[block] {
                    self.at_start[block] = sets;
                    changed = true;
                    for &before in &predecessors[block] {
                        waiting[before] = ends[before];
                    }
                }
            }
        }
    }

    fn reaches_an_exit(&self, predecessors: &[Vec<usize>]) -> Vec<bool> {
        let mut reaches = vec![false; self.blocks.len()];
        let mut next: Vec<usize> = (0..self.blocks.len())
            .filter(|&block| self.blocks[block].successors.is_empty())
            .collect();
        while let Some(block) = next.pop() {
            if !std::mem::replace(&mut reaches[block], true) {
                next.extend(&predecessors[block]);
            }
        }
        reaches
    }
}
