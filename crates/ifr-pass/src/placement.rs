//! Where monitors start (paper 004, sections 3.3, 3.4 and 3.6).
//!
//! Candidates are the starts of blocks and the points after acquires, releases
//! and unknown calls; a location whose parts are defined in between starts
//! right after the definition (short scope). A forward pass then removes what
//! is started already on every path, the paper's redundant starts. Starts at
//! one point stay together, so that lowering makes one guarded group of them:
//! the paper's one call for several variables.
//!
//! Placeholders: `__deadheat_ifr_mark(address, description)`,
//! `__deadheat_ifr_range_mark(lo, row, stride, rows, description)`,
//! `__deadheat_ifr_string_mark(source, target)`, `__deadheat_ifr_stop_mark()`.

use crate::effects::Bulk;
use crate::ranges::Extent;
use crate::regions::{self, Location, Must, Regions, Set};
use crate::shim::{self, Session};
use crate::{effects, ir};
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{LLVMIntPredicate, LLVMOpcode};
use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr::null_mut;

pub const MARK: &CStr = c"__deadheat_ifr_mark";
pub const RANGE_MARK: &CStr = c"__deadheat_ifr_range_mark";
pub const STRING_MARK: &CStr = c"__deadheat_ifr_string_mark";
pub const STOP_MARK: &CStr = c"__deadheat_ifr_stop_mark";

/// Bits of a description; the low 16 are the size.
pub mod describe {
    pub const WRITE: u64 = 1 << 16;
    /// The address is a multiple of 8.
    pub const ALIGNED_8: u64 = 1 << 17;
    /// The access lies within one 8-byte granule.
    pub const ONE_GRANULE: u64 = 1 << 18;
    /// Started after the definition of its address (section 3.6).
    pub const SHORT_SCOPE: u64 = 1 << 19;
    /// The address is a multiple of 4.
    pub const ALIGNED_4: u64 = 1 << 21;
    /// May be left to chance where nothing speaks for a race (section 8).
    pub const ADAPTIVE: u64 = 1 << 22;
    /// The address is new in every turn of a loop.
    pub const IN_LOOP: u64 = 1 << 23;
    /// One of the accesses is volatile: meant to meet atomic ones.
    pub const VOLATILE: u64 = 1 << 24;
    /// The site counts inline and calls the run-time only when it is due.
    pub const GATED: u64 = 1 << 25;
    /// From this bit on: the site's place in the table of shares.
    pub const PLACE: u32 = 32;
}

/// What is started at a point, by strength.
#[derive(Clone, PartialEq, Eq)]
struct Started {
    strong: Set,
    weak: Set,
}

struct Start {
    at: LLVMValueRef,
    location: usize,
    write: bool,
    short: bool,
    in_loop: bool,
}

/// Inserts placeholders into `function`.
pub fn place(function: LLVMValueRef, session: Session) {
    ir::set_mark(function, ir::PLACED);
    // SAFETY: a live function with a body.
    unsafe { shim::dh_gather_variables(function) };
    let regions = regions::read(function, session);
    let mut starts = match regions.analysed().then(|| choose(&regions)).flatten() {
        Some(starts) => starts,
        None => at_each_access(&regions),
    };
    // An address that is new in every turn of a loop is short in scope too,
    // wherever in the turn its monitor starts.
    for start in &mut starts {
        let location = &regions.locations[start.location].location;
        let varies = |value: LLVMValueRef| {
            // SAFETY: live values of the session's function.
            unsafe { shim::dh_varies_in_loop(session.0, value, ir::parent(start.at)) != 0 }
        };
        start.in_loop =
            varies(location.base) || (!location.index.is_null() && varies(location.index));
        start.short |= start.in_loop;
    }
    let emit = Emit::new(function);
    for group in join(&starts, &regions) {
        emit.mark(&group);
    }
    for block in &regions.blocks {
        for step in &block.steps {
            for bulk in &step.effect.bulk {
                emit.bulk(step.instruction, bulk);
            }
            if step.effect.stop_before {
                emit.stop(step.instruction);
            }
        }
    }
    for range in &regions.ranges {
        emit.range(range);
    }
    emit.end();
}

/// Starts at one point on neighbouring bytes, as one.
struct Joined {
    at: LLVMValueRef,
    location: Location,
    alignment: u64,
    volatile: bool,
    write: bool,
    short: bool,
    in_loop: bool,
    /// The access whose line the report names.
    from: LLVMValueRef,
}

/// Widest monitor that is checked inline, in bytes.
pub const WIDEST: u64 = 32;

/// Puts starts on neighbouring fields and elements together: the paper's one
/// call for several variables, and one check for several bytes.
fn join(starts: &[Start], regions: &Regions) -> Vec<Joined> {
    let mut joined: Vec<Joined> = starts
        .iter()
        .map(|start| {
            let seen = &regions.locations[start.location];
            Joined {
                at: start.at,
                location: seen.location,
                alignment: seen.alignment,
                volatile: seen.volatile,
                write: start.write,
                short: start.short,
                in_loop: start.in_loop,
                from: match seen.write {
                    Some(write) if start.write => write,
                    _ => seen.any,
                },
            }
        })
        .collect();
    // Stable: groups keep the order of their points, members of a group stand
    // by address.
    let mut order: HashMap<LLVMValueRef, usize> = HashMap::new();
    for (index, start) in starts.iter().enumerate() {
        order.entry(start.at).or_insert(index);
    }
    joined.sort_by_key(|one| {
        (
            order[&one.at],
            one.write,
            one.location.base as usize,
            one.location.index as usize,
            one.location.scale,
            one.location.offset,
        )
    });
    let mut out: Vec<Joined> = Vec::new();
    for next in joined {
        if let Some(last) = out.last_mut() {
            let (a, b) = (&last.location, &next.location);
            let end = a.offset.saturating_add_unsigned(a.size);
            let both_end = end.max(b.offset.saturating_add_unsigned(b.size));
            let size = both_end.saturating_sub(a.offset).unsigned_abs();
            if last.at == next.at
                && last.write == next.write
                && (a.base, a.index, a.scale) == (b.base, b.index, b.scale)
                && b.offset <= end
                && size <= WIDEST
            {
                last.location.size = size;
                last.volatile |= next.volatile;
                last.short &= next.short;
                last.in_loop &= next.in_loop;
                continue;
            }
        }
        out.push(next);
    }
    out
}

/// A start right before each access, unless the same was started before in its
/// block and goes on: the fallback for huge functions, in one look at each
/// instruction.
fn at_each_access(regions: &Regions) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut started: HashMap<usize, bool> = HashMap::new();
    for block in &regions.blocks {
        started.clear();
        for step in &block.steps {
            if let (Some(location), Some(access)) = (step.location, step.effect.access) {
                let strong = started.get(&location);
                if strong.is_none_or(|strong| access.write && !strong) {
                    started.insert(location, access.write);
                    starts.push(Start {
                        at: step.instruction,
                        location,
                        write: access.write,
                        short: true,
                        in_loop: false,
                    });
                }
            }
            if step.effect.kills_forward || step.effect.stop_before {
                started.clear();
            }
            for number in &step.defines {
                started.remove(number);
            }
        }
    }
    starts
}

/// What may start at a point: locations, and whether they must be written.
type Open = Vec<(usize, bool)>;

/// What may start at each point of a block, in order: first its start, then the
/// points after steps.
struct Points {
    start: Open,
    /// The step that the point comes after, and what may start there. What was
    /// just defined is short in scope.
    after: Vec<(usize, Open)>,
}

fn open(sets: &Must) -> Open {
    sets.any
        .numbers()
        .map(|number| (number, sets.write.has(number)))
        .collect()
}

/// Looks at a block backwards, once.
fn points(regions: &Regions, block: usize) -> Points {
    let cut = &regions.blocks[block];
    let mut after = Vec::new();
    let mut sets = regions.at_end(block);
    for (index, step) in cut.steps.iter().enumerate().rev() {
        // SAFETY: a live instruction.
        if unsafe { shim::dh_can_insert_after(step.instruction) } != 0 {
            if step.effect.kills_forward || step.effect.kills_backward {
                after.push((index, open(&sets)));
            } else if !step.defines.is_empty() {
                let defined = step
                    .defines
                    .iter()
                    .filter(|&&number| sets.any.has(number))
                    .map(|&number| (number, sets.write.has(number)))
                    .collect();
                after.push((index, defined));
            }
        }
        Regions::before(step, &mut sets);
    }
    after.reverse();
    Points {
        start: open(&regions.at_start[block]),
        after,
    }
}

/// Walks one block forwards, giving each start to `visit`.
fn walk(
    regions: &Regions,
    block: usize,
    points: &Points,
    started: &mut Started,
    mut visit: impl FnMut(LLVMValueRef, usize, bool, bool),
) {
    let cut = &regions.blocks[block];
    for &number in &cut.phis {
        started.strong.remove(number);
        started.weak.remove(number);
    }
    // SAFETY: a live block.
    let first = unsafe { shim::dh_first_insertion(cut.block) };
    if !first.is_null() {
        started.begin(&points.start, first, false, &mut visit);
    }
    let mut points = points.after.iter().peekable();
    for (index, step) in cut.steps.iter().enumerate() {
        for &number in &step.defines {
            started.strong.remove(number);
            started.weak.remove(number);
        }
        if step.effect.kills_forward {
            started.strong.clear();
            started.weak.clear();
        }
        if let Some((_, open)) = points.next_if(|(after, _)| *after == index) {
            // SAFETY: not a terminator, so something follows.
            let next = unsafe { LLVMGetNextInstruction(step.instruction) };
            let short = !(step.effect.kills_forward || step.effect.kills_backward);
            started.begin(open, next, short, &mut visit);
        }
    }
}

impl Started {
    fn begin(
        &mut self,
        open: &Open,
        at: LLVMValueRef,
        short: bool,
        visit: &mut impl FnMut(LLVMValueRef, usize, bool, bool),
    ) {
        for &(number, write) in open {
            let held = if write { &self.strong } else { &self.weak };
            if !held.has(number) {
                visit(at, number, write, short);
            }
            self.weak.add(number);
            if write {
                self.strong.add(number);
            }
        }
    }
}

/// Where releases cut a huge function into pieces, the sets that survive them
/// are started again after each: more starts than this for every access are not
/// worth their code.
const MOST_PER_ACCESS: usize = 16;

/// The starts, without those that are redundant; none if there were too many.
fn choose(regions: &Regions) -> Option<Vec<Start>> {
    let count = regions.locations.len();
    let blocks = regions.blocks.len();
    let predecessors = regions.predecessors();
    let accesses: usize = regions.blocks.iter().map(|block| block.steps.len()).sum();
    let most = (accesses + 64).saturating_mul(MOST_PER_ACCESS);
    let mut all = Vec::with_capacity(blocks);
    let mut sum = 0;
    for block in 0..blocks {
        let points = points(regions, block);
        sum += points.start.len()
            + points
                .after
                .iter()
                .map(|(_, open)| open.len())
                .sum::<usize>();
        if sum > most {
            return None;
        }
        all.push(points);
    }
    let nothing = Started {
        strong: Set::empty(count),
        weak: Set::empty(count),
    };
    let everything = Started {
        strong: Set::full(count),
        weak: Set::full(count),
    };
    let mut at_end = vec![everything.clone(); blocks];
    let entry = |block: usize, at_end: &[Started]| {
        if block == 0 || predecessors[block].is_empty() {
            return nothing.clone();
        }
        let mut started = everything.clone();
        for &before in &predecessors[block] {
            started.strong.meet(&at_end[before].strong);
            started.weak.meet(&at_end[before].weak);
        }
        started
    };
    let mut waiting = vec![true; blocks];
    let mut changed = true;
    while changed {
        changed = false;
        for block in 0..blocks {
            if !std::mem::take(&mut waiting[block]) {
                continue;
            }
            let mut started = entry(block, &at_end);
            walk(regions, block, &all[block], &mut started, |_, _, _, _| {});
            if started != at_end[block] {
                at_end[block] = started;
                changed = true;
                for &next in &regions.blocks[block].successors {
                    waiting[next] = true;
                }
            }
        }
    }
    let mut starts = Vec::new();
    for (block, points) in all.iter().enumerate() {
        let mut started = entry(block, &at_end);
        walk(
            regions,
            block,
            points,
            &mut started,
            |at, location, write, short| {
                starts.push(Start {
                    at,
                    location,
                    write,
                    short,
                    in_loop: false,
                });
            },
        );
    }
    Some(starts)
}

/// Writes placeholders into the function.
struct Emit {
    function: LLVMValueRef,
    module: LLVMModuleRef,
    builder: LLVMBuilderRef,
    i64: LLVMTypeRef,
    void: LLVMTypeRef,
}

impl Emit {
    fn new(function: LLVMValueRef) -> Self {
        let module = ir::module_of(function);
        // SAFETY: a live module; the builder is disposed of in `end`.
        unsafe {
            let context = LLVMGetModuleContext(module);
            Emit {
                function,
                module,
                builder: LLVMCreateBuilderInContext(context),
                i64: LLVMInt64TypeInContext(context),
                void: LLVMVoidTypeInContext(context),
            }
        }
    }

    fn end(self) {
        // SAFETY: created in `new`, used nowhere after this.
        unsafe { LLVMDisposeBuilder(self.builder) };
    }

    fn number(&self, value: u64) -> LLVMValueRef {
        // SAFETY: a live type.
        unsafe { LLVMConstInt(self.i64, value, 0) }
    }

    fn call(&self, name: &CStr, arguments: &mut [LLVMValueRef], from: LLVMValueRef) {
        // SAFETY: the types fit: all arguments are 64-bit integers, the
        // builder stands at a live instruction.
        unsafe {
            let mut kinds = vec![self.i64; arguments.len()];
            let kind = LLVMFunctionType(self.void, kinds.as_mut_ptr(), kinds.len() as u32, 0);
            let mut target = LLVMGetNamedFunction(self.module, name.as_ptr());
            if target.is_null() {
                target = LLVMAddFunction(self.module, name.as_ptr(), kind);
                shim::dh_mark_placeholder(target);
            }
            let call = LLVMBuildCall2(
                self.builder,
                kind,
                target,
                arguments.as_mut_ptr(),
                arguments.len() as u32,
                c"".as_ptr(),
            );
            shim::dh_set_location(call, from, self.function);
        }
    }

    /// Stands before `at` with no source position of its own.
    fn stand(&self, at: LLVMValueRef) {
        // SAFETY: a live instruction and builder.
        unsafe {
            LLVMPositionBuilderBefore(self.builder, at);
            LLVMSetCurrentDebugLocation2(self.builder, null_mut());
        }
    }

    fn integer(&self, pointer: LLVMValueRef) -> LLVMValueRef {
        // SAFETY: a live pointer in scope at the builder.
        unsafe { LLVMBuildPtrToInt(self.builder, pointer, self.i64, c"".as_ptr()) }
    }

    fn widen(&self, value: LLVMValueRef, signed: bool) -> LLVMValueRef {
        // SAFETY: a live integer of at most 64 bits.
        unsafe {
            if LLVMGetIntTypeWidth(LLVMTypeOf(value)) == 64 {
                value
            } else if signed {
                LLVMBuildSExt(self.builder, value, self.i64, c"".as_ptr())
            } else {
                LLVMBuildZExt(self.builder, value, self.i64, c"".as_ptr())
            }
        }
    }

    fn mark(&self, start: &Joined) {
        let location = &start.location;
        self.stand(start.at);
        let mut address = self.integer(location.base);
        // SAFETY: all parts of the expression are in scope here: the sets lose
        // a location where one of its parts is defined.
        unsafe {
            if !location.index.is_null() {
                let index = self.widen(location.index, true);
                let scaled = LLVMBuildMul(
                    self.builder,
                    index,
                    self.number(location.scale as u64),
                    c"".as_ptr(),
                );
                address = LLVMBuildAdd(self.builder, address, scaled, c"".as_ptr());
            }
            if location.offset != 0 {
                address = LLVMBuildAdd(
                    self.builder,
                    address,
                    self.number(location.offset as u64),
                    c"".as_ptr(),
                );
            }
        }
        let mut description = location.size;
        if start.write {
            description |= describe::WRITE;
        }
        if start.short {
            description |= describe::SHORT_SCOPE;
        }
        if start.in_loop {
            description |= describe::IN_LOOP;
        }
        if start.volatile {
            description |= describe::VOLATILE;
        }
        if location.size <= 8 && start.alignment >= location.size.next_power_of_two() {
            description |= describe::ONE_GRANULE;
        }
        if start.alignment >= 8 {
            description |= describe::ALIGNED_8;
        }
        if start.alignment >= 4 {
            description |= describe::ALIGNED_4;
        }
        self.call(MARK, &mut [address, self.number(description)], start.from);
    }

    /// Stands where the call has returned; `false` if other ways lead there too.
    fn stand_behind(&self, call: LLVMValueRef) -> bool {
        // SAFETY: a live call; where something follows it, it is not the end of
        // its block, and an invoke has a block to return to.
        let next = unsafe {
            if shim::dh_can_insert_after(call) != 0 {
                LLVMGetNextInstruction(call)
            } else if ir::opcode(call) == LLVMOpcode::LLVMInvoke {
                let returned = LLVMGetNormalDest(call);
                let way = LLVMGetFirstUse(LLVMBasicBlockAsValue(returned));
                if way.is_null() || !LLVMGetNextUse(way).is_null() {
                    return false;
                }
                shim::dh_first_insertion(returned)
            } else {
                null_mut()
            }
        };
        if next.is_null() {
            return false;
        }
        self.stand(next);
        true
    }

    fn bulk(&self, at: LLVMValueRef, bulk: &Bulk) {
        self.stand(at);
        let none = self.number(0);
        match *bulk {
            Bulk::Bytes {
                pointer,
                length,
                write,
            } => {
                let description = if write { describe::WRITE } else { 0 };
                let mut arguments = [
                    self.integer(pointer),
                    self.widen(length, false),
                    none,
                    none,
                    self.number(description),
                ];
                self.call(RANGE_MARK, &mut arguments, at);
            }
            Bulk::ByValue { pointer, size } => {
                let mut arguments = [self.integer(pointer), self.number(size), none, none, none];
                self.call(RANGE_MARK, &mut arguments, at);
            }
            Bulk::Printed { pointer, limit } => {
                // What was written is known when the call returns, and its region
                // goes on to the next release.
                if !self.stand_behind(at) {
                    return;
                }
                let printed = self.widen(at, true);
                // SAFETY: 64-bit integers in scope; a call that failed gives a
                // length that the run-time takes for none.
                let length = unsafe {
                    let b = self.builder;
                    let all = LLVMBuildAdd(b, printed, self.number(1), c"".as_ptr());
                    match limit.map(|limit| self.widen(limit, false)) {
                        Some(limit) => {
                            let fits = LLVMBuildICmp(
                                b,
                                LLVMIntPredicate::LLVMIntSLT,
                                all,
                                limit,
                                c"".as_ptr(),
                            );
                            let failed = LLVMBuildICmp(
                                b,
                                LLVMIntPredicate::LLVMIntSLE,
                                all,
                                none,
                                c"".as_ptr(),
                            );
                            let written = LLVMBuildSelect(b, fits, all, limit, c"".as_ptr());
                            LLVMBuildSelect(b, failed, none, written, c"".as_ptr())
                        }
                        None => all,
                    }
                };
                let mut arguments = [
                    self.integer(pointer),
                    length,
                    none,
                    none,
                    self.number(describe::WRITE),
                ];
                self.call(RANGE_MARK, &mut arguments, at);
            }
            Bulk::Length { string, write } => {
                // It may throw instead.
                if !self.stand_behind(at) {
                    return;
                }
                // SAFETY: 64-bit integers in scope.
                let length = unsafe {
                    let string = self.integer(string);
                    LLVMBuildAdd(self.builder, string, self.number(8), c"".as_ptr())
                };
                let description = if write { describe::WRITE } else { 0 };
                let mut arguments = [length, self.number(8), none, none, self.number(description)];
                self.call(RANGE_MARK, &mut arguments, at);
            }
            Bulk::String { source, target } => {
                let target = target.map_or(none, |target| self.integer(target));
                self.call(STRING_MARK, &mut [self.integer(source), target], at);
            }
        }
    }

    fn stop(&self, at: LLVMValueRef) {
        self.stand(at);
        self.call(STOP_MARK, &mut [], at);
    }

    fn range(&self, range: &crate::ranges::Range) {
        let none = self.number(0);
        let description = self.number(if range.write { describe::WRITE } else { 0 });
        match &range.extent {
            Extent::Before { at, lo, row, rows } => {
                self.stand(*at);
                let (stride, rows) = rows.unwrap_or((none, none));
                let mut arguments = [*lo, *row, stride, rows, description];
                self.call(RANGE_MARK, &mut arguments, range.access);
            }
            Extent::After {
                exits,
                first,
                last,
                size,
            } => {
                for &exit in exits {
                    // SAFETY: a live block.
                    let at = unsafe { shim::dh_first_insertion(exit) };
                    if at.is_null() {
                        continue;
                    }
                    self.stand(at);
                    let end = self.integer(*last);
                    // SAFETY: 64-bit integers in scope; the walk goes upwards.
                    let length = unsafe {
                        let span = LLVMBuildSub(self.builder, end, *first, c"".as_ptr());
                        LLVMBuildAdd(self.builder, span, self.number(*size), c"".as_ptr())
                    };
                    let mut arguments = [*first, length, none, none, description];
                    self.call(RANGE_MARK, &mut arguments, range.access);
                }
            }
        }
    }
}

/// Whether returning from `function` may return to code that synchronises
/// unseen: always possible for Rust code that the standard library calls.
pub fn is_rust(function: LLVMValueRef) -> bool {
    effects::is_rust_symbol(&ir::name(function))
}
