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
use crate::regions::{self, Location};
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
pub fn take(
    session: Session,
    module: LLVMModuleRef,
    all: &mut [Vec<(LLVMValueRef, Effect)>],
) -> Vec<Range> {
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
    // Writes first: a walk that is written needs no weaker monitor as well.
    let mut written: HashSet<(LLVMBasicBlockRef, Location)> = HashSet::new();
    for write in [true, false] {
        for instructions in all.iter_mut() {
            for group in groups(instructions, write, module) {
                let block = ir::parent(instructions[group.leader].0);
                if !write {
                    // Bytes that a walk of writes covers are monitored.
                    let covered = group
                        .members
                        .iter()
                        .all(|(_, location)| written.contains(&(block, *location)));
                    if covered {
                        for (member, _) in &group.members {
                            instructions[*member].1.access = None;
                        }
                        continue;
                    }
                }
                let Some(extent) = extent(session, context, instructions, group.leader, group.size)
                else {
                    continue;
                };
                for (member, location) in &group.members {
                    instructions[*member].1.access = None;
                    if write {
                        written.insert((block, *location));
                    }
                }
                found.push(Range {
                    extent,
                    write,
                    access: instructions[group.leader].0,
                });
            }
        }
    }
    found
}

/// Accesses of one block on neighbouring bytes, which a walk takes together.
struct Group {
    /// The one with the lowest address.
    leader: usize,
    size: u64,
    members: Vec<(usize, Location)>,
}

fn groups(
    instructions: &[(LLVMValueRef, Effect)],
    write: bool,
    module: LLVMModuleRef,
) -> Vec<Group> {
    let mut accesses: Vec<(Location, usize)> = instructions
        .iter()
        .enumerate()
        .filter_map(|(index, (_, effect))| {
            let access = effect.access.filter(|access| !access.volatile)?;
            // A weak monitor may cover what is written as well: that makes the
            // fields of a structure one row.
            (access.write == write || !write)
                .then(|| (regions::locate(access.pointer, module, access.size), index))
        })
        .collect();
    accesses.sort_by_key(|(location, index)| {
        (
            location.base as usize,
            location.index as usize,
            location.scale,
            location.offset,
            *index,
        )
    });
    let mut found: Vec<Group> = Vec::new();
    let mut last: Option<Location> = None;
    for (location, index) in accesses {
        if let (Some(group), Some(before)) = (found.last_mut(), last)
            && (before.base, before.index, before.scale)
                == (location.base, location.index, location.scale)
        {
            let start = group.members[0].1.offset;
            let end = start.saturating_add_unsigned(group.size);
            if location.offset <= end {
                let reach = location
                    .offset
                    .saturating_add_unsigned(location.size)
                    .max(end);
                group.size = reach.saturating_sub(start).unsigned_abs();
                group.members.push((index, location));
                last = Some(location);
                continue;
            }
        }
        last = Some(location);
        found.push(Group {
            leader: index,
            size: location.size,
            members: vec![(index, location)],
        });
    }
    // Members that are written keep their own, stronger monitors.
    for group in &mut found {
        if !write {
            group.members.retain(|(member, _)| {
                instructions[*member]
                    .1
                    .access
                    .is_some_and(|access| !access.write)
            });
        }
    }
    found.retain(|group| !group.members.is_empty());
    found
}

/// Where the bytes of the walk are known, if they are.
fn extent(
    session: Session,
    context: *mut c_void,
    instructions: &[(LLVMValueRef, Effect)],
    leader: usize,
    size: u64,
) -> Option<Extent> {
    let (instruction, effect) = &instructions[leader];
    let pointer = effect.access?.pointer;
    let (mut lo, mut row, mut stride, mut rows, mut at) =
        (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: live values of the session's function; out pointers and the
    // context are valid during the call.
    let before = unsafe {
        shim::dh_range_before(
            session.0,
            *instruction,
            pointer,
            size,
            no_synchronisation,
            context,
            &mut lo,
            &mut row,
            &mut stride,
            &mut rows,
            &mut at,
        )
    };
    if before != 0 {
        return Some(Extent::Before {
            at,
            lo,
            row,
            rows: (!stride.is_null()).then_some((stride, rows)),
        });
    }
    let mut first = null_mut();
    let mut exits = [null_mut(); MOST_EXITS];
    // SAFETY: as above; `exits` has room for `MOST_EXITS`.
    let count = unsafe {
        shim::dh_range_after(
            session.0,
            *instruction,
            pointer,
            size,
            no_release,
            context,
            &mut first,
            exits.as_mut_ptr(),
            MOST_EXITS as u32,
        )
    };
    (count != 0).then(|| Extent::After {
        exits: exits[..count as usize].to_vec(),
        first,
        last: pointer,
        size,
    })
}
