//! From guest bytes to the instructions of a block: where it ends, what follows,
//! and which status flags are dead.

use super::kind::{End, classify_end, condition_number, is_complex, is_locked, is_repeated};
use super::spin::{Found, Waiting};
use super::stores::stores_elsewhere;
use super::{Fetch, Instrumentation, Shape};
use crate::cache::Spread;
use crate::flags;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use std::collections::HashSet;
pub(super) struct Decoded {
    pub(super) steps: Vec<Step>,
    pub(super) hook: bool,
    pub(super) complex: bool,
    /// The end goes back to a loop that only waits (`spin`).
    pub(super) waits: Option<Waiting>,
    /// Code that was looked at to know that.
    pub(super) seen: Vec<std::ops::Range<u64>>,
    pub(super) end: End,
    /// Where execution goes on if the block does not end with a branch.
    pub(super) next: u64,
}

pub(super) struct Step {
    pub(super) instruction: Instruction,
    pub(super) bytes: [u8; 15],
    pub(super) then: Then,
}

impl Step {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.instruction.len()]
    }
}

/// How a block goes on after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
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

pub(super) fn decode_one(pc: u64, fetch: Fetch) -> Option<(Instruction, [u8; 15])> {
    let mut bytes = [0; 15];
    let length = fetch(pc, &mut bytes);
    let instruction = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode();
    (length > 0 && !instruction.is_invalid()).then_some((instruction, bytes))
}

/// Finds the instructions of a block.
pub(super) fn decode(
    pc: u64,
    limit: usize,
    shape: Shape,
    fetch: Fetch,
    instrumentation: &Instrumentation,
    likely: &dyn Fn(u64, u64) -> bool,
    waiting: &mut dyn FnMut(u64, u64) -> Found,
) -> Decoded {
    let mut decoded = Decoded {
        steps: Vec::with_capacity(16),
        hook: instrumentation.hooks.contains(&pc),
        complex: false,
        end: End::Continue,
        waits: None,
        seen: Vec::new(),
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
        if (instrumentation.accesses && is_complex(&instruction)) || stores_elsewhere(&instruction)
        {
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
        let target = instruction.near_branch_target();
        if matches!(end, End::Jump | End::Conditional) && target <= at {
            let found = waiting(target, at);
            decoded.waits = found.waits;
            decoded.seen.extend_from_slice(&found.seen);
        }
        if end != End::Continue && shape == Shape::Trace && !full && decoded.waits.is_none() {
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
pub(super) fn follow(
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
pub(super) struct Ahead<'a> {
    pub(super) fetch: Fetch<'a>,
    pub(super) hooks: &'a HashSet<u64, Spread>,
    /// Code looked at: if it changes, the block is no longer right.
    pub(super) seen: Vec<std::ops::Range<u64>>,
}

impl Ahead<'_> {
    /// True if the flags are dead at `pc`.
    pub(super) fn flags_dead_at(&mut self, pc: u64) -> bool {
        self.overwrites(flags::Destroyed::all(), flags::WINDOW, pc)
    }

    /// True if destroyed flags are overwritten unseen within `left`
    /// instructions from `pc` on, along unconditional jumps.
    pub(super) fn overwrites(
        &mut self,
        mut destroyed: flags::Destroyed,
        left: usize,
        pc: u64,
    ) -> bool {
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
                // Where a loop that waits repeats, the thread may be stopped.
                if instruction.near_branch_target() <= at {
                    return false;
                }
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
    pub(super) fn counting_place(&self, ahead: &mut Ahead) -> (usize, bool) {
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
    pub(super) fn flags_dead_before(&self, index: usize, ahead: &mut Ahead) -> bool {
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
        // The same here.
        if self.waits.is_some() {
            return false;
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

    /// The flags before the instruction at `index` are overwritten before the
    /// block is left, counting included.
    pub(super) fn flags_overwritten(&self, index: usize, counted_at: Option<usize>) -> bool {
        let steps = self.steps.iter().enumerate().skip(index);
        flags::overwritten(steps.map(|(at, step)| {
            let may_leave = matches!(step.then, Then::Branch { .. } | Then::Return(_));
            let counts = at > index && counted_at == Some(at);
            let leaves = counts || is_repeated(&step.instruction);
            (&step.instruction, leaves, may_leave)
        }))
    }
}
