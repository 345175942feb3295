//! Placeholders become code (the shape that measurements favoured: one load
//! and one test per monitor that is already active, everything else cold).
//!
//! The thread's word `now` is `thread:8 | epoch:39 | ones:17`, or 0 while the
//! run-time does not want monitors; it lives at offset 0 of the thread-local
//! `__deadheat_ifr_tls` (with a suffix, see [`STATE`]). A slot of the shadow is `thread:8 | epoch:39 | shared |
//! written bytes:8 | accessed bytes:8`. A monitor is active if no bit of
//! `now ^ slot` under `OWNER | needed bytes` is set.
//!
//! The constants of the shadow are the run-time's (`ifr-runtime`, module
//! `shadow`); a test there compares them.

mod atomics;

use crate::placement::{self, MARK, RANGE_MARK, STOP_MARK, STRING_MARK, describe};
use crate::without::Without;
use crate::{ir, shim};
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::debuginfo::LLVMInstructionGetDebugLoc;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{
    LLVMAttributeFunctionIndex, LLVMIntPredicate, LLVMLinkage, LLVMOpcode, LLVMThreadLocalMode,
};
use std::cell::Cell;
use std::ffi::CStr;

/// The thread-local block. It carries the fingerprint of this build: an object of
/// another one does not link with this one's run-time, and the linker's message
/// says what to do.
const STATE: &CStr = match CStr::from_bytes_with_nul(
    concat!(
        "__deadheat_ifr_tls__rebuild_all_objects_with_one_deadheat__",
        env!("DEADHEAT_IFR_FINGERPRINT"),
        "\0"
    )
    .as_bytes(),
) {
    Ok(name) => name,
    Err(_) => c"",
};

/// In every object that went through the pass; `deadheat cc` looks for the names
/// that begin like it.
const SIGNATURE: &CStr = c"__deadheat_ifr_compiled";

/// Which bits of an address choose its slot.
pub const SLOT_MASK: u64 = 0x3fff_ffff_fff8;
/// Where the slots begin: not a round number, so that a location and its slot
/// never share their low 12 bits.
pub const SLOT_BASE: u64 = 0x1000_0000_0840;

/// The thread and its epoch in a word.
const OWNER: u64 = !0x1_ffff;

/// Words of the run-time's share table (`threads::SITES` there).
pub const SITES: u64 = 1 << 14;

/// Words of the thread-local block.
const KEY: u64 = 3;
const SHARES: u64 = 5;
const CAPPED: u64 = 6;
const COUNTS: u64 = 7;

/// A function with more monitors than this has its checks in the run-time instead
/// of inline: the code of so many would not stay in the processor's cache.
const MOST_INLINE: usize = 64;

/// Walks of fewer bytes than this are sampled.
pub const SHORT_WALK: u64 = 128;

/// LLVM's number for the `preserve_most` convention.
const PRESERVE_MOST: u32 = 14;

/// At most this many instructions may lie between two marks of one group.
const GROUP_GAP: usize = 8;

struct Lowering {
    module: LLVMModuleRef,
    builder: LLVMBuilderRef,
    i8: LLVMTypeRef,
    i32: LLVMTypeRef,
    i64: LLVMTypeRef,
    pointer: LLVMTypeRef,
    void: LLVMTypeRef,
    /// The next site's place in the run-time's share table.
    next_place: Cell<u64>,
    /// Whether the checks of this function are calls.
    apart: Cell<bool>,
    without: Without,
}

/// Where a module's sites begin in the share table: somewhere else in every
/// module.
fn first_place(module: LLVMModuleRef) -> u64 {
    let mut length = 0;
    // SAFETY: LLVM returns a pointer to `length` bytes that live as long as the
    // module.
    let name = unsafe {
        let start = LLVMGetModuleIdentifier(module, &mut length);
        std::slice::from_raw_parts(start.cast::<u8>(), length)
    };
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash >> 32
}

/// Lowers the whole module; says whether anything changed.
pub fn lower(module: LLVMModuleRef, _is_lto: bool) -> bool {
    // SAFETY: a live module; the builder is disposed of below.
    let lowering = unsafe {
        let context = LLVMGetModuleContext(module);
        Lowering {
            module,
            builder: LLVMCreateBuilderInContext(context),
            i8: LLVMInt8TypeInContext(context),
            i32: LLVMInt32TypeInContext(context),
            i64: LLVMInt64TypeInContext(context),
            pointer: LLVMPointerTypeInContext(context, 0),
            void: LLVMVoidTypeInContext(context),
            next_place: Cell::new(first_place(module)),
            apart: Cell::new(false),
            without: Without::read(),
        }
    };
    let mut changed = lowering.name_the_tool() | lowering.sign();
    for function in ir::functions(module) {
        if ir::is_declaration(function) {
            continue;
        }
        if ir::has_mark(function, ir::PLACED) {
            changed |= lowering.function(function);
        }
        ir::unprepare(function);
    }
    for name in [MARK, RANGE_MARK, STRING_MARK, STOP_MARK] {
        // SAFETY: all calls were replaced; a declaration without uses may go.
        unsafe {
            let placeholder = LLVMGetNamedFunction(module, name.as_ptr());
            if !placeholder.is_null() && LLVMGetFirstUse(placeholder).is_null() {
                LLVMDeleteFunction(placeholder);
            }
        }
    }
    // SAFETY: created above, used nowhere after this.
    unsafe { LLVMDisposeBuilder(lowering.builder) };
    changed
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mark,
    Range,
    String,
    Stop,
}

fn kind_of(instruction: LLVMValueRef) -> Option<Kind> {
    if ir::opcode(instruction) != LLVMOpcode::LLVMCall {
        return None;
    }
    let name = ir::name(ir::callee(instruction)?);
    let is = |mark: &CStr| name.as_bytes() == mark.to_bytes();
    if is(MARK) {
        Some(Kind::Mark)
    } else if is(RANGE_MARK) {
        Some(Kind::Range)
    } else if is(STRING_MARK) {
        Some(Kind::String)
    } else if is(STOP_MARK) {
        Some(Kind::Stop)
    } else {
        None
    }
}

/// Instructions over which a mark must not move.
fn is_wall(instruction: LLVMValueRef) -> bool {
    use LLVMOpcode::*;
    match ir::opcode(instruction) {
        LLVMCall => {
            // SAFETY: a live call.
            unsafe { shim::dh_is_debug_or_lifetime(instruction) == 0 }
        }
        LLVMFence | LLVMAtomicRMW | LLVMAtomicCmpXchg => true,
        LLVMLoad | LLVMStore => {
            // SAFETY: a live load or store.
            unsafe {
                LLVMGetOrdering(instruction)
                    != inkwell::llvm_sys::LLVMAtomicOrdering::LLVMAtomicOrderingNotAtomic
            }
        }
        _ => false,
    }
}

impl Lowering {
    /// Beside `main`: the path of the deadheat that will name the races.
    fn name_the_tool(&self) -> bool {
        let Some(path) = std::env::var_os("DEADHEAT_IFR_TOOL") else {
            return false;
        };
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        // SAFETY: a live module; the string is passed with its length.
        unsafe {
            let main = LLVMGetNamedFunction(self.module, c"main".as_ptr());
            let known = LLVMGetNamedGlobal(self.module, c"__deadheat_ifr_tool".as_ptr());
            if main.is_null() || ir::is_declaration(main) || !known.is_null() {
                return false;
            }
            let context = LLVMGetModuleContext(self.module);
            let text = LLVMConstStringInContext2(context, bytes.as_ptr().cast(), bytes.len(), 0);
            let global = LLVMAddGlobal(
                self.module,
                LLVMTypeOf(text),
                c"__deadheat_ifr_tool".as_ptr(),
            );
            LLVMSetInitializer(global, text);
            LLVMSetGlobalConstant(global, 1);
            LLVMSetLinkage(global, LLVMLinkage::LLVMExternalLinkage);
        }
        true
    }

    /// A symbol without bytes, so that an object in which nothing needs a monitor
    /// is not taken for a plain one when it is linked.
    fn sign(&self) -> bool {
        // SAFETY: a live module; the global is new and has no users.
        unsafe {
            if !LLVMGetNamedGlobal(self.module, SIGNATURE.as_ptr()).is_null() {
                return false;
            }
            let kind = LLVMArrayType2(self.i8, 0);
            let global = LLVMAddGlobal(self.module, kind, SIGNATURE.as_ptr());
            LLVMSetInitializer(global, LLVMConstNull(kind));
            LLVMSetGlobalConstant(global, 1);
            LLVMSetLinkage(global, LLVMLinkage::LLVMInternalLinkage);
            shim::dh_keep(self.module, global);
        }
        true
    }

    fn number(&self, value: u64) -> LLVMValueRef {
        // SAFETY: a live type.
        unsafe { LLVMConstInt(self.i64, value, 0) }
    }

    fn global(&self, name: &CStr, kind: LLVMTypeRef, thread_local: bool) -> LLVMValueRef {
        // SAFETY: a live module and type.
        unsafe {
            let found = LLVMGetNamedGlobal(self.module, name.as_ptr());
            if !found.is_null() {
                return found;
            }
            let made = LLVMAddGlobal(self.module, kind, name.as_ptr());
            LLVMSetLinkage(made, LLVMLinkage::LLVMExternalLinkage);
            if thread_local {
                LLVMSetThreadLocalMode(made, LLVMThreadLocalMode::LLVMInitialExecTLSModel);
            }
            made
        }
    }

    /// A call of the run-time that keeps all general registers.
    fn call(
        &self,
        function: LLVMValueRef,
        name: &CStr,
        arguments: &mut [LLVMValueRef],
        from: LLVMValueRef,
    ) {
        // SAFETY: all arguments are 64-bit integers in scope at the builder.
        unsafe {
            let mut kinds = vec![self.i64; arguments.len()];
            let kind = LLVMFunctionType(self.void, kinds.as_mut_ptr(), kinds.len() as u32, 0);
            let mut target = LLVMGetNamedFunction(self.module, name.as_ptr());
            if target.is_null() {
                target = LLVMAddFunction(self.module, name.as_ptr(), kind);
                LLVMSetFunctionCallConv(target, PRESERVE_MOST);
                let word = "nounwind";
                let nounwind = LLVMGetEnumAttributeKindForName(word.as_ptr().cast(), word.len());
                let context = LLVMGetModuleContext(self.module);
                let attribute = LLVMCreateEnumAttribute(context, nounwind, 0);
                LLVMAddAttributeAtIndex(target, LLVMAttributeFunctionIndex, attribute);
            }
            let call = LLVMBuildCall2(
                self.builder,
                kind,
                target,
                arguments.as_mut_ptr(),
                arguments.len() as u32,
                c"".as_ptr(),
            );
            LLVMSetInstructionCallConv(call, PRESERVE_MOST);
            shim::dh_set_location(call, from, function);
        }
    }

    fn function(&self, function: LLVMValueRef) -> bool {
        let mut changed = false;
        let mut acts = false;
        // SAFETY: a live function with a body.
        unsafe { shim::dh_gather_variables(function) };
        let marks = ir::blocks(function)
            .into_iter()
            .flat_map(ir::instructions)
            .filter(|&instruction| kind_of(instruction) == Some(Kind::Mark))
            .count();
        self.apart.set(marks > MOST_INLINE);
        let atomics: Vec<_> = ir::blocks(function)
            .into_iter()
            .flat_map(ir::instructions)
            .filter_map(|instruction| self.atomic(instruction))
            .collect();
        for block in ir::blocks(function) {
            let mut group: Vec<LLVMValueRef> = Vec::new();
            let mut gap = 0;
            let mut work: Vec<Vec<LLVMValueRef>> = Vec::new();
            for instruction in ir::instructions(block) {
                match kind_of(instruction) {
                    Some(Kind::Mark) => {
                        if gap > GROUP_GAP && !group.is_empty() {
                            work.push(std::mem::take(&mut group));
                        }
                        group.push(instruction);
                        gap = 0;
                    }
                    Some(_) => {
                        if !group.is_empty() {
                            work.push(std::mem::take(&mut group));
                        }
                        work.push(vec![instruction]);
                    }
                    None => {
                        gap += 1;
                        acts |= ir::opcode(instruction) == LLVMOpcode::LLVMCall
                            || ir::opcode(instruction) == LLVMOpcode::LLVMInvoke;
                        if is_wall(instruction) && !group.is_empty() {
                            work.push(std::mem::take(&mut group));
                        }
                    }
                }
            }
            if !group.is_empty() {
                work.push(group);
            }
            // From the end: splitting a block moves what follows, which is
            // then only what lies between two groups.
            for group in work.into_iter().rev() {
                changed = true;
                self.group(function, &group);
            }
        }
        for atomic in &atomics {
            changed = true;
            self.look_around(function, atomic);
        }
        acts |= changed;
        if acts {
            changed |= self.leave(function);
        }
        if changed {
            // SAFETY: a live function.
            unsafe {
                shim::dh_forget_memory_facts(function);
                let context = LLVMGetModuleContext(self.module);
                let (key, value) = ("frame-pointer", "all");
                let attribute = LLVMCreateStringAttribute(
                    context,
                    key.as_ptr().cast(),
                    key.len() as u32,
                    value.as_ptr().cast(),
                    value.len() as u32,
                );
                LLVMAddAttributeAtIndex(function, LLVMAttributeFunctionIndex, attribute);
            }
        }
        changed
    }

    fn stand(&self, at: LLVMValueRef) {
        // SAFETY: a live instruction and builder.
        unsafe {
            LLVMPositionBuilderBefore(self.builder, at);
            LLVMSetCurrentDebugLocation2(self.builder, LLVMInstructionGetDebugLoc(at));
        }
    }

    /// A place in the tables of sites.
    fn take_place(&self) -> u64 {
        let place = self.next_place.get() % SITES;
        self.next_place.set(place + 1);
        place
    }

    /// A word of the thread-local block.
    fn state(&self, index: u64, kind: LLVMTypeRef) -> LLVMValueRef {
        let state = self.global(STATE, self.i64, true);
        // SAFETY: a live builder; the block has eight aligned words.
        unsafe {
            let mut index = self.number(index);
            let at = LLVMBuildGEP2(self.builder, self.i64, state, &mut index, 1, c"".as_ptr());
            let word = LLVMBuildLoad2(self.builder, kind, at, c"".as_ptr());
            LLVMSetAlignment(word, 8);
            word
        }
    }

    /// Makes a block that runs while this thread wants monitors and the site has
    /// a share left under `cap`: nothing is called, and no shadow is read, once
    /// that is used up. Gives the thread's word, the block's end, and the site's
    /// place in the tables of sites.
    fn guard(&self, at: LLVMValueRef) -> (LLVMValueRef, LLVMValueRef, u64) {
        let place = self.take_place();
        let state = self.global(STATE, self.i64, true);
        let mut now = std::ptr::null_mut();
        // SAFETY: a live instruction; the block has eight aligned words, and the
        // table of shares, where there is one, `SITES`.
        let inside = unsafe {
            shim::dh_guard(
                at,
                state,
                place,
                KEY as u32,
                SHARES as u32,
                CAPPED as u32,
                &mut now,
            )
        };
        (now, inside, place)
    }

    /// A block that runs when the site is due: the count of the times that are left
    /// until then is in the thread's table, times two, and the run-time sets it
    /// (`__deadheat_ifr_due`, or `__deadheat_ifr_range` for a walk). A walk that is
    /// not short is always due: one call is little beside what it does.
    fn sampled(&self, place: u64, end: LLVMValueRef, walk: Option<LLVMValueRef>) -> LLVMValueRef {
        self.stand(end);
        let counts = self.state(COUNTS, self.pointer);
        // SAFETY: a live builder; the table has `SITES` words.
        unsafe {
            let b = self.builder;
            let none = c"".as_ptr();
            let number = |value: i64| LLVMConstInt(self.i32, value as u64, 1);
            let mut index = self.number(place);
            let word = LLVMBuildGEP2(b, self.i32, counts, &mut index, 1, none);
            let before = LLVMBuildLoad2(b, self.i32, word, none);
            LLVMSetAlignment(before, 4);
            let left = LLVMBuildSub(b, before, number(2), none);
            LLVMSetAlignment(LLVMBuildStore(b, left, word), 4);
            let mut due = LLVMBuildICmp(b, LLVMIntPredicate::LLVMIntSLT, left, number(0), none);
            if let Some(length) = walk {
                let short = self.number(SHORT_WALK);
                let long = LLVMBuildICmp(b, LLVMIntPredicate::LLVMIntUGE, length, short, none);
                due = LLVMBuildOr(b, due, long, none);
            }
            shim::dh_split_if(due, end, 1)
        }
    }

    /// A block that runs while this thread wants monitors.
    fn wanted(&self, at: LLVMValueRef) -> (LLVMValueRef, u64) {
        let place = self.take_place();
        self.stand(at);
        let now = self.state(0, self.i64);
        // SAFETY: a live builder and instruction.
        let inside = unsafe {
            let wants = LLVMBuildICmp(
                self.builder,
                LLVMIntPredicate::LLVMIntNE,
                now,
                self.number(0),
                c"".as_ptr(),
            );
            shim::dh_split_if(wants, at, 0)
        };
        (inside, place)
    }

    /// The check as a call of the run-time.
    fn check(
        &self,
        function: LLVMValueRef,
        name: &CStr,
        mark: LLVMValueRef,
        place: u64,
        more: u64,
        end: LLVMValueRef,
    ) {
        self.stand(end);
        let description = self.describe(mark, place, more);
        let mut arguments = [ir::operand(mark, 0), description];
        self.call(function, name, &mut arguments, mark);
    }

    /// What the run-time is told of a mark.
    fn describe(&self, mark: LLVMValueRef, place: u64, more: u64) -> LLVMValueRef {
        let description = ir::constant(ir::operand(mark, 1)).unwrap_or(0);
        let adaptive = if self.without.adaptive {
            0
        } else {
            describe::ADAPTIVE
        };
        self.number(description | adaptive | more | place << describe::PLACE)
    }

    fn group(&self, function: LLVMValueRef, group: &[LLVMValueRef]) {
        let last = group[group.len() - 1];
        match kind_of(last) {
            Some(Kind::Mark) => {
                let says = |mark: LLVMValueRef, what: u64| {
                    ir::constant(ir::operand(mark, 1)).unwrap_or(0) & what != 0
                };
                let (chance, certain): (Vec<_>, Vec<_>) = group
                    .iter()
                    .partition(|&&mark| !says(mark, describe::WRITE) && !self.without.adaptive);
                let apart = self.apart.get()
                    && certain
                        .iter()
                        .all(|&&mark| says(mark, describe::ONE_GRANULE));
                let (now, end, place) = if certain.is_empty() || apart {
                    // The run-time looks at the cap.
                    let (end, place) = self.wanted(last);
                    (None, end, place)
                } else {
                    let (now, end, place) = self.guard(last);
                    (Some(now), end, place)
                };
                // Splitting moves what follows: those that always run come
                // after those that run now and then.
                if !chance.is_empty() {
                    let due = self.sampled(place, end, None);
                    let mut name = c"__deadheat_ifr_due";
                    for &mark in chance {
                        self.check(function, name, mark, place, 0, due);
                        name = c"__deadheat_ifr_check";
                    }
                }
                match now {
                    Some(now) => {
                        for &mark in certain {
                            self.mark(function, now, mark, place, end);
                        }
                    }
                    None if self.without.adaptive => {
                        for &mark in certain {
                            self.check(function, c"__deadheat_ifr_check", mark, place, 0, end);
                        }
                    }
                    // A call costs more than the count that says when it is due.
                    None if !certain.is_empty() => {
                        let place = self.take_place();
                        let due = self.sampled(place, end, None);
                        let mut name = c"__deadheat_ifr_due";
                        for &mark in certain {
                            self.check(function, name, mark, place, describe::GATED, due);
                            name = c"__deadheat_ifr_check";
                        }
                    }
                    None => {}
                }
            }
            Some(Kind::Range) if self.is_small_copy(last) => {
                let (end, place) = self.wanted(last);
                let due = self.sampled(place, end, None);
                let size = ir::constant(ir::operand(last, 1)).unwrap_or(0);
                let mut description = ir::constant(ir::operand(last, 4)).unwrap_or(0) | size;
                if description & describe::WRITE != 0 {
                    description |= describe::GATED;
                }
                description |= describe::ADAPTIVE | place << describe::PLACE;
                self.stand(due);
                let mut arguments = [ir::operand(last, 0), self.number(description)];
                self.call(function, c"__deadheat_ifr_due", &mut arguments, last);
            }
            Some(Kind::Range) => {
                let (_, mut end, place) = self.guard(last);
                let mut description = ir::constant(ir::operand(last, 4)).unwrap_or(0);
                if !self.without.adaptive {
                    description |= describe::ADAPTIVE;
                    if ir::constant(ir::operand(last, 3)) == Some(0) {
                        description |= describe::GATED;
                        end = self.sampled(place, end, Some(ir::operand(last, 1)));
                    }
                }
                self.stand(end);
                let mut arguments: Vec<_> = (0..4).map(|at| ir::operand(last, at)).collect();
                arguments.push(self.number(description | place << describe::PLACE));
                self.call(function, c"__deadheat_ifr_range", &mut arguments, last);
            }
            Some(Kind::String) => {
                let (_, end, place) = self.guard(last);
                self.stand(end);
                let mut arguments: Vec<_> = (0..2).map(|at| ir::operand(last, at)).collect();
                let chance = u64::from(!self.without.adaptive) << 32;
                arguments.push(self.number(place | chance));
                self.call(function, c"__deadheat_ifr_string", &mut arguments, last);
            }
            Some(Kind::Stop) => {
                self.stand(last);
                self.call(function, c"__deadheat_ifr_release", &mut [], last);
            }
            None => return,
        }
        for &mark in group {
            // SAFETY: placeholders return nothing, so nobody uses them.
            unsafe { LLVMInstructionEraseFromParent(mark) };
        }
    }

    /// A walk over a few bytes, a structure that is copied or cleared: one monitor
    /// as on a variable of that size, due as often.
    fn is_small_copy(&self, mark: LLVMValueRef) -> bool {
        let is_small = |size: u64| (1..=placement::WIDEST).contains(&size);
        !self.without.adaptive
            && ir::constant(ir::operand(mark, 1)).is_some_and(is_small)
            && ir::constant(ir::operand(mark, 3)) == Some(0)
    }

    fn mark(
        &self,
        function: LLVMValueRef,
        now: LLVMValueRef,
        mark: LLVMValueRef,
        place: u64,
        end: LLVMValueRef,
    ) {
        let address = ir::operand(mark, 0);
        let description = ir::constant(ir::operand(mark, 1)).unwrap_or(0);
        let size = description & 0xffff;
        let aligned = description & describe::ALIGNED_8 != 0;
        let write = description & describe::WRITE != 0;
        let one = description & describe::ONE_GRANULE != 0;
        self.stand(end);
        let bits = |mask: u64| mask | if write { mask << 8 } else { 0 };
        // SAFETY: 64-bit integers in scope at the builder, which stands in the
        // guarded block; the shadow is mapped while `now` is not 0.
        let cold_end = unsafe {
            let b = self.builder;
            let none = c"".as_ptr();
            let fours = description & describe::ALIGNED_4 != 0 && size.is_multiple_of(4);
            let wide = size > 8 && size <= placement::WIDEST && (fours || size.is_multiple_of(8));
            if !one && !wide && size > 8 {
                end
            } else {
                let load = |place: LLVMValueRef| {
                    let chosen = LLVMBuildAnd(b, place, self.number(SLOT_MASK), none);
                    let slot = LLVMBuildAdd(b, chosen, self.number(SLOT_BASE), none);
                    let slot = LLVMBuildIntToPtr(b, slot, self.pointer, none);
                    let held = LLVMBuildLoad2(b, self.i64, slot, none);
                    LLVMSetAlignment(held, 8);
                    LLVMBuildXor(b, held, now, none)
                };
                let owner = self.number(OWNER);
                let below = |by: LLVMValueRef, up: bool| {
                    // All bytes of a granule from a place on, or up to it.
                    let all = self.number(0xff);
                    let kept = if up {
                        let wide = LLVMBuildShl(b, all, by, none);
                        LLVMBuildAnd(b, wide, all, none)
                    } else {
                        LLVMBuildLShr(b, all, by, none)
                    };
                    let kept = if write {
                        let written = LLVMBuildShl(b, kept, self.number(8), none);
                        LLVMBuildOr(b, kept, written, none)
                    } else {
                        kept
                    };
                    LLVMBuildOr(b, kept, owner, none)
                };
                let whole = self.number(OWNER | bits(0xff));
                let missing = if one {
                    let mask = if aligned || size == 8 {
                        self.number(OWNER | bits((1 << size) - 1))
                    } else {
                        let place = LLVMBuildAnd(b, address, self.number(7), none);
                        let bytes = self.number(bits((1 << size) - 1));
                        LLVMBuildOr(b, LLVMBuildShl(b, bytes, place, none), owner, none)
                    };
                    LLVMBuildAnd(b, load(address), mask, none)
                } else if size <= 8 {
                    // In one granule or two: what of the bytes is in the first,
                    // and what in the one of the last byte, which may be the
                    // same.
                    let place = LLVMBuildAnd(b, address, self.number(7), none);
                    let bytes = LLVMBuildShl(b, self.number((1 << size) - 1), place, none);
                    let need = |bytes: LLVMValueRef| {
                        let written = if write {
                            LLVMBuildMul(b, bytes, self.number(0x101), none)
                        } else {
                            bytes
                        };
                        LLVMBuildOr(b, written, owner, none)
                    };
                    let first = LLVMBuildAnd(b, bytes, self.number(0xff), none);
                    let second = LLVMBuildLShr(b, bytes, self.number(8), none);
                    let last = LLVMBuildAdd(b, address, self.number(size - 1), none);
                    let missing = LLVMBuildAnd(b, load(address), need(first), none);
                    let part = LLVMBuildAnd(b, load(last), need(second), none);
                    LLVMBuildOr(b, missing, part, none)
                } else if aligned && size.is_multiple_of(8) {
                    let mut differs = load(address);
                    for granule in 1..size / 8 {
                        let place = LLVMBuildAdd(b, address, self.number(granule * 8), none);
                        differs = LLVMBuildOr(b, differs, load(place), none);
                    }
                    LLVMBuildAnd(b, differs, whole, none)
                } else {
                    // The first granule from the address on, whole ones, and
                    // the last up to the last byte, which may be the same.
                    let place = LLVMBuildAnd(b, address, self.number(7), none);
                    let mut missing = LLVMBuildAnd(b, load(address), below(place, true), none);
                    for granule in 1..size / 8 {
                        let place = LLVMBuildAdd(b, address, self.number(granule * 8), none);
                        let part = LLVMBuildAnd(b, load(place), whole, none);
                        missing = LLVMBuildOr(b, missing, part, none);
                    }
                    let last = LLVMBuildAdd(b, address, self.number(size - 1), none);
                    let place = LLVMBuildAnd(b, last, self.number(7), none);
                    let over = LLVMBuildXor(b, place, self.number(7), none);
                    let part = LLVMBuildAnd(b, load(last), below(over, false), none);
                    LLVMBuildOr(b, missing, part, none)
                };
                let cold = LLVMBuildICmp(
                    b,
                    LLVMIntPredicate::LLVMIntNE,
                    missing,
                    self.number(0),
                    none,
                );
                shim::dh_split_if(cold, end, 1)
            }
        };
        self.stand(cold_end);
        let mut arguments = [address, self.describe(mark, place, 0)];
        self.call(function, c"__deadheat_ifr_start", &mut arguments, mark);
    }

    /// Code that nobody compiled with monitors may call this function and
    /// synchronise, unseen, after it returns: stop there if such code is loaded
    /// (and always in Rust, whose standard library is such code).
    fn leave(&self, function: LLVMValueRef) -> bool {
        if !called_from_outside(function) {
            return false;
        }
        let always = placement::is_rust(function);
        let mut changed = false;
        for block in ir::blocks(function) {
            // SAFETY: a live block with a terminator.
            let end = unsafe { LLVMGetBasicBlockTerminator(block) };
            let resumes = ir::opcode(end) == LLVMOpcode::LLVMResume;
            if ir::opcode(end) != LLVMOpcode::LLVMRet && !resumes {
                continue;
            }
            // SAFETY: a live instruction; the list is only read.
            let before = unsafe { LLVMGetPreviousInstruction(end) };
            // SAFETY: checked not to be null.
            if !before.is_null() && unsafe { shim::dh_is_musttail(before) } != 0 {
                continue;
            }
            changed = true;
            self.stand(end);
            if always || resumes {
                self.call(function, c"__deadheat_ifr_release", &mut [], end);
                continue;
            }
            let flag = self.global(c"__deadheat_ifr_foreign", self.i8, false);
            // SAFETY: a live builder and a global of one byte.
            unsafe {
                let set = LLVMBuildLoad2(self.builder, self.i8, flag, c"".as_ptr());
                let zero = LLVMConstInt(self.i8, 0, 0);
                let cold = LLVMBuildICmp(
                    self.builder,
                    LLVMIntPredicate::LLVMIntNE,
                    set,
                    zero,
                    c"".as_ptr(),
                );
                let inside = shim::dh_split_if(cold, end, 1);
                self.stand(inside);
            }
            self.call(function, c"__deadheat_ifr_release", &mut [], end);
        }
        changed
    }
}

/// Visible to other files, or its address is used.
fn called_from_outside(function: LLVMValueRef) -> bool {
    // SAFETY: a live function; uses are only read.
    unsafe {
        if !matches!(
            LLVMGetLinkage(function),
            LLVMLinkage::LLVMInternalLinkage | LLVMLinkage::LLVMPrivateLinkage
        ) {
            return true;
        }
        let mut usage = LLVMGetFirstUse(function);
        while !usage.is_null() {
            let user = LLVMGetUser(usage);
            let direct = !LLVMIsACallInst(user).is_null() || !LLVMIsAInvokeInst(user).is_null();
            if !direct || LLVMGetCalledValue(user) != function {
                return true;
            }
            // The function may also be an argument of the call.
            for index in 0..LLVMGetNumArgOperands(user) {
                if LLVMGetOperand(user, index) == function {
                    return true;
                }
            }
            usage = LLVMGetNextUse(usage);
        }
    }
    false
}
