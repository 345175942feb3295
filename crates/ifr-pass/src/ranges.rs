//! Array walks as one monitor (beyond paper 004, whose section 3.6 starts one
//! short-scope monitor per element and calls that "problematic").
//!
//! Two shapes. *Before*: the loop's trip count is known on entry, it is left
//! only at its end and nothing in it synchronises, so every byte it will touch
//! is known, and all of it lies in one region: the monitor starts before the
//! loop. Loops around it are taken in as long as the same holds for them.
//! *After*: the trip count is not known (a search), but nothing in the loop
//! releases: where the loop is left, the bytes touched so far still lie in
//! their regions, which run on to the next release.

use crate::effects::Effect;
use crate::ir;
use crate::shim::{self, Session};
use inkwell::llvm_sys::prelude::*;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Where the bytes of a walk are known.
pub enum Extent {
    Before {
        at: LLVMValueRef,
        lo: LLVMValueRef,
        row: LLVMValueRef,
        /// Distance and number of rows, if there is more than one.
        rows: Option<(LLVMValueRef, LLVMValueRef)>,
    },
    After {
        exits: Vec<LLVMBasicBlockRef>,
        first: LLVMValueRef,
        last: LLVMValueRef,
        size: u64,
    },
}

pub struct Range {
    pub extent: Extent,
    pub write: bool,
    pub access: LLVMValueRef,
}

struct Facts {
    /// Per block: nothing acquires, releases or may leave; nothing releases.
    blocks: HashMap<LLVMBasicBlockRef, (bool, bool)>,
}

extern "C" fn no_synchronisation(context: *mut c_void, block: LLVMBasicBlockRef) -> c_int {
    // SAFETY: `take` passes its own `Facts`, alive during the call.
    let facts = unsafe { &*context.cast::<Facts>() };
    c_int::from(facts.blocks.get(&block).is_some_and(|fact| fact.0))
}

extern "C" fn no_release(context: *mut c_void, block: LLVMBasicBlockRef) -> c_int {
    // SAFETY: `take` passes its own `Facts`, alive during the call.
    let facts = unsafe { &*context.cast::<Facts>() };
    c_int::from(facts.blocks.get(&block).is_some_and(|fact| fact.1))
}

const MOST_EXITS: usize = 8;

/// Finds the walks of a function and takes their accesses out of `all`.
pub fn take(session: Session, all: &mut [Vec<(LLVMValueRef, Effect)>]) -> Vec<Range> {
    let mut facts = Facts {
        blocks: HashMap::new(),
    };
    for instructions in all.iter() {
        let Some((first, _)) = instructions.first() else {
            continue;
        };
        let releases = instructions
            .iter()
            .any(|(_, effect)| effect.kills_forward || effect.stop_before);
        let acquires = instructions.iter().any(|(_, effect)| effect.kills_backward);
        facts
            .blocks
            .insert(ir::parent(*first), (!releases && !acquires, !releases));
    }
    let context = (&raw mut facts).cast::<c_void>();
    let mut found = Vec::new();
    let mut written: HashSet<(LLVMBasicBlockRef, LLVMValueRef)> = HashSet::new();
    // Writes first: a walk that is written needs no weaker monitor as well.
    for write in [true, false] {
        for (instruction, effect) in all.iter_mut().flatten() {
            let Some(access) = effect.access.filter(|access| access.write == write) else {
                continue;
            };
            let key = (ir::parent(*instruction), access.pointer);
            if !write && written.contains(&key) {
                effect.access = None;
                continue;
            }
            let (mut lo, mut row, mut stride, mut rows, mut at) =
                (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
            // SAFETY: live values of the session's function; out pointers and
            // the context are valid during the call.
            let before = unsafe {
                shim::dh_range_before(
                    session.0,
                    *instruction,
                    access.pointer,
                    access.size,
                    no_synchronisation,
                    context,
                    &mut lo,
                    &mut row,
                    &mut stride,
                    &mut rows,
                    &mut at,
                )
            };
            let extent = if before != 0 {
                Extent::Before {
                    at,
                    lo,
                    row,
                    rows: (!stride.is_null()).then_some((stride, rows)),
                }
            } else {
                let mut first = null_mut();
                let mut exits = [null_mut(); MOST_EXITS];
                // SAFETY: as above; `exits` has room for `MOST_EXITS`.
                let count = unsafe {
                    shim::dh_range_after(
                        session.0,
                        *instruction,
                        access.pointer,
                        access.size,
                        no_release,
                        context,
                        &mut first,
                        exits.as_mut_ptr(),
                        MOST_EXITS as u32,
                    )
                };
                if count == 0 {
                    continue;
                }
                Extent::After {
                    exits: exits[..count as usize].to_vec(),
                    first,
                    last: access.pointer,
                    size: access.size,
                }
            };
            if write {
                written.insert(key);
            }
            effect.access = None;
            found.push(Range {
                extent,
                write,
                access: *instruction,
            });
        }
    }
    found
}
