//! What is known about the code that makes an access.
//!
//! Three questions, answered once per instruction: whose code is it (the
//! program's, the dynamic linker's, the C library's, a threading run-time's);
//! does its value feed a branch (rule 3: a spin or a check); is it an atomic
//! operation by debug info, and of which order (rule 4).
//!
//! Accesses of the dynamic linker are not looked at, nor those of the C
//! library to its own memory (stream buffers and locks, locale tables): they
//! are guarded by means that leave no trace in its symbols. What the C library
//! reads and writes on the program's behalf (`memcpy`, `fread`) counts like
//! the program's own accesses. In a statically linked program the C library is
//! the code without debug info; where nothing has any, everything is taken for
//! the program.

use crate::fences::Edges;
use crate::golang::{self, Package};
use crate::known::{self, Known};
use crate::source::{Shape, Sources};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use symbols::{AtomicOperation, AtomicUse, Module, ModuleMap, Position, StackFrame};

/// Whose code an instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    #[default]
    Program,
    /// The dynamic linker.
    Linker,
    /// The C library.
    CLibrary,
    /// A run-time system whose every access is synchronisation.
    Threading,
    /// The Go run-time.
    GoRuntime,
    /// Go's `sync` and `sync/atomic`.
    GoSync,
}

/// What a locked instruction is to readers of a Go `sync.RWMutex`, which are
/// not in order among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Enters,
    Leaves,
    /// It is none of theirs.
    None,
}

/// What debug info says about an access that is one plain instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    pub acquires: bool,
    pub releases: bool,
    pub order_unknown: bool,
    /// It stores, whatever was there before: where it does not release, what
    /// was published before is no longer read here.
    pub stores: bool,
    /// The word is of a type that has atomic operations only.
    pub typed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    pc: u64,
    origin: Origin,
    feeds_branch: Option<bool>,
    begins_exchange: Option<bool>,
    atomic: Option<Option<Atomic>>,
}

const CACHE: usize = 1 << 14;

pub struct Code {
    pub modules: ModuleMap,
    facts: Vec<Facts>,
    /// Writable memory of the C library's own, with the code it belongs to:
    /// the linker maps data over the file after the code.
    library_data: Vec<(Range<u64>, Range<u64>)>,
    hooks: FxHashMap<u64, Known>,
    /// Granules of static memory of a statically linked program: the C
    /// library's or not.
    static_data: FxHashMap<u64, bool>,
    /// What debug info and source text said before: of an address, whether its
    /// variable is atomic; of an access, which atomic operation it is.
    atomic_variables: FxHashMap<u64, bool>,
    atomics_in_source: FxHashMap<(u64, u64, Shape, bool), Option<Atomic>>,
    readers: FxHashMap<u64, Reader>,
    string_readers: FxHashMap<u64, bool>,
    sources: Sources,
    info: InstructionInfoFactory,
    /// Functions that make no edges, by name.
    forgotten: Vec<String>,
}

impl Default for Code {
    fn default() -> Self {
        Code {
            modules: ModuleMap::new(),
            forgotten: Vec::new(),
            facts: vec![Facts::default(); CACHE],
            library_data: Vec::new(),
            hooks: FxHashMap::default(),
            static_data: FxHashMap::default(),
            atomic_variables: FxHashMap::default(),
            atomics_in_source: FxHashMap::default(),
            readers: FxHashMap::default(),
            string_readers: FxHashMap::default(),
            sources: Sources::default(),
            info: InstructionInfoFactory::new(),
        }
    }
}

fn has_any(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|begin| name.starts_with(begin))
}

fn module_origin(name: &str) -> Origin {
    if has_any(name, &["ld-linux", "ld-2", "ld.so", "ld-musl"]) {
        Origin::Linker
    } else if has_any(
        name,
        &[
            "libc.so",
            "libc-2",
            "libpthread",
            "librt.so",
            "librt-2",
            "libdl.so",
            "libdl-2",
            "libm.so",
            "libm-2",
            "libresolv",
            "libnss_",
            "libmvec",
            "libc.musl",
            "libanl",
        ],
    ) {
        Origin::CLibrary
    } else if has_any(name, &["libgomp", "libomp", "libiomp"]) {
        Origin::Threading
    } else {
        Origin::Program
    }
}

/// The C library is part of this file.
fn contains_c_library(module: &Module) -> bool {
    !module.functions_named("__libc_start_main").is_empty()
        && module_origin(module.name()) == Origin::Program
}

/// An OpenMP run-time is part of this file.
fn contains_openmp(module: &Module) -> bool {
    !module.functions_named("GOMP_parallel").is_empty()
}

/// A function of libgomp, by its name.
fn is_openmp(function: &str) -> bool {
    has_any(
        function,
        &[
            "GOMP_",
            "gomp_",
            "omp_",
            "GOACC_",
            "goacc_",
            "acc_",
            "priority_",
            "prio_splay",
            "splay_tree",
            "htab_",
            "initialize_env",
            "initialize_team",
            "team_destructor",
        ],
    )
}

fn is_go(module: &Module) -> bool {
    !module.functions_named("runtime.schedule").is_empty()
}

/// Go's compiler has a byte read where a pointer must not be nil, and makes
/// nothing of it: `test [pointer], al`.
fn is_nil_check(module: &Module, offset: u64) -> bool {
    /// The longest form of that instruction.
    const LENGTH: usize = 8;
    let bytes = module.bytes_at(offset, LENGTH).unwrap_or_default();
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    instruction.code() == iced_x86::Code::Test_rm8_r8
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_register() == Register::AL
}

/// Fences that are instructions: `mfence`, and an addition of nothing to the
/// top of the stack with a lock.
fn fence_instructions(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let is_fence = |rest: &[u8]| match rest {
        [0x0f, 0xae, 0xf0, ..] => true,
        [0xf0, rest @ ..] => {
            let rest = rest.strip_prefix(&[0x48]).unwrap_or(rest);
            // `or` or `add` of a byte, to the word at the stack pointer or a
            // byte's distance from it.
            matches!(
                rest,
                [0x83, 0x0c | 0x04, 0x24, 0, ..] | [0x83, 0x4c | 0x44, 0x24, _, 0, ..]
            )
        }
        _ => false,
    };
    (0..code.len()).filter(move |at| is_fence(&code[*at..]))
}

impl Code {
    /// These functions make no edges.
    pub fn forget(&mut self, symbols: &[String]) {
        self.forgotten = symbols.to_vec();
    }

    /// Code was mapped: finds the functions to follow in it and, if memory
    /// orders matter (`exact`), the fences.
    pub fn mapped(&mut self, range: Range<u64>, path: &Path, offset: u64, exact: bool) -> Vec<u64> {
        self.modules.insert(range.clone(), path, offset);
        self.facts.fill(Facts::default());
        self.static_data.clear();
        self.atomic_variables.clear();
        self.atomics_in_source.clear();
        self.readers.clear();
        self.string_readers.clear();
        let loaded = self.modules.modules();
        let Some(loaded) = loaded
            .iter()
            .find(|loaded| loaded.module.path() == path && loaded.range.contains(&range.start))
        else {
            return Vec::new();
        };
        let (module, bias) = (loaded.module, loaded.bias);
        let origin = module_origin(module.name());
        let mut found: Vec<(u64, Known)> = Vec::new();
        if origin != Origin::Linker {
            for (name, known) in known::FUNCTIONS {
                let forgotten = self.forgotten.iter().any(|forgotten| forgotten == name);
                // What is forgotten makes no edges, but is still the library's
                // own business.
                let known = if forgotten { &Known::Quiet } else { known };
                for function in module.functions_named(name) {
                    if !function.indirect {
                        found.push((function.start.wrapping_add(bias), *known));
                    }
                }
            }
            if origin == Origin::CLibrary || contains_c_library(module) {
                let listed = |name: &str| known::FUNCTIONS.iter().any(|(known, _)| *known == name);
                for function in module.functions() {
                    if function.name.starts_with(known::QUIET_PREFIX)
                        && !listed(&function.name)
                        && !known::NOT_QUIET.contains(&function.name.as_str())
                    {
                        found.push((function.start.wrapping_add(bias), Known::Quiet));
                    }
                }
            }
        }
        if origin == Origin::Program {
            for (start, arguments) in module.order_arguments() {
                found.push((start.wrapping_add(bias), Known::AtomicOperation(arguments)));
            }
            if exact && !is_go(module) {
                let fences = self.sources.fences_of(module);
                let moved = |(address, edges): (u64, Edges)| {
                    (address.wrapping_add(bias), Known::Fence(edges))
                };
                found.extend(fences.into_iter().map(moved));
            }
        }
        if is_go(module) {
            for function in module.functions() {
                if let Some(call) = golang::known(&function.name) {
                    found.push((function.start.wrapping_add(bias), Known::Go(call)));
                }
            }
        }
        if origin == Origin::Threading || contains_openmp(module) {
            for function in module.functions() {
                if let Some(known) = known::openmp(&function.name) {
                    found.push((function.start.wrapping_add(bias), known));
                }
            }
        }
        if origin == Origin::CLibrary {
            for section in module.sections() {
                if section.writable {
                    let data = section.addresses.start.wrapping_add(bias)
                        ..section.addresses.end.wrapping_add(bias);
                    self.library_data.push((range.clone(), data));
                }
            }
        }
        let mut code = vec![0; (range.end - range.start) as usize];
        if vm::memory::read(range.start, &mut code).is_ok() {
            if exact && origin == Origin::Program {
                let fences = fence_instructions(&code).map(|at| range.start + at as u64);
                found.extend(fences.map(|address| (address, Known::Fence(Edges::BOTH))));
            }
            let magic = known::CLIENT_REQUEST;
            for at in 0..code.len().saturating_sub(magic.len()) {
                if code[at] == magic[0] && code[at..at + magic.len()] == magic {
                    // Hooked at the exchange, when the arguments are ready.
                    let exchange = range.start + at as u64 + 16;
                    found.push((exchange, Known::ClientRequest));
                }
            }
        }
        found.retain(|(address, _)| range.contains(address));
        for (address, known) in &found {
            self.hooks.entry(*address).or_insert(*known);
        }
        found.into_iter().map(|(address, _)| address).collect()
    }

    pub fn unmapped(&mut self, range: Range<u64>) {
        self.modules.remove(range.clone());
        self.hooks.retain(|address, _| !range.contains(address));
        self.library_data
            .retain(|(code, _)| code.end <= range.start || code.start >= range.end);
        self.facts.fill(Facts::default());
    }

    /// A function that a call named: the body of a task.
    pub fn follow(&mut self, address: u64, known: Known) -> bool {
        match self.hooks.entry(address) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(known);
                true
            }
        }
    }

    pub fn known_at(&self, address: u64) -> Option<Known> {
        self.hooks.get(&address).copied()
    }

    /// The address is in the C library's static memory. In a statically
    /// linked program that is what has no debug info.
    pub fn is_library_data(&mut self, address: u64) -> bool {
        if self
            .library_data
            .iter()
            .any(|(_, data)| data.contains(&address))
        {
            return true;
        }
        if let Some(known) = self.static_data.get(&(address >> 3)) {
            return *known;
        }
        let Some((module, _)) = self.modules.find(address) else {
            return false;
        };
        let answer = contains_c_library(module)
            && module.has_debug_info()
            && self
                .modules
                .variable_at(address)
                .is_none_or(|variable| variable.type_name.is_none());
        self.static_data.insert(address >> 3, answer);
        answer
    }

    fn index(pc: u64) -> usize {
        (pc ^ (pc >> 14)) as usize & (CACHE - 1)
    }

    pub fn origin(&mut self, pc: u64) -> Origin {
        let known = &self.facts[Self::index(pc)];
        if known.pc == pc {
            return known.origin;
        }
        let origin = self.find_origin(pc);
        self.facts[Self::index(pc)] = Facts {
            pc,
            origin,
            ..Facts::default()
        };
        origin
    }

    fn find_origin(&self, pc: u64) -> Origin {
        let Some((module, offset)) = self.modules.find(pc) else {
            return Origin::Program;
        };
        let origin = module_origin(module.name());
        if origin != Origin::Program {
            return origin;
        }
        if is_go(module) {
            if is_nil_check(module, offset) {
                return Origin::GoRuntime;
            }
            // The innermost inlined function: fast paths of `sync` are
            // inlined into their callers.
            let inlined = module
                .frames(offset)
                .into_iter()
                .next()
                .and_then(|frame| frame.function);
            let name = inlined.or_else(|| Some(module.function_at(offset)?.name));
            return match name.as_deref().map(golang::package) {
                Some(Package::Runtime) => Origin::GoRuntime,
                Some(Package::Sync) => Origin::GoSync,
                Some(Package::Other) | None => Origin::Program,
            };
        }
        let without_source = || {
            module
                .frames(offset)
                .first()
                .is_none_or(|frame| frame.file.is_none())
        };
        if contains_openmp(module)
            && module
                .function_at(offset)
                .is_some_and(|function| is_openmp(&function.name))
            && without_source()
        {
            return Origin::Threading;
        }
        if contains_c_library(module) && module.has_debug_info() && without_source() {
            return Origin::CLibrary;
        }
        Origin::Program
    }

    /// The instruction is in a function of the C library that reads a string
    /// as far as its end. The names are of the implementations that the
    /// processor chooses among: `__strlen_avx2`.
    pub fn reads_string(&mut self, pc: u64) -> bool {
        if let Some(known) = self.string_readers.get(&pc) {
            return *known;
        }
        let answer = self.modules.function_at(pc).is_some_and(|function| {
            let name = function.name.trim_start_matches('_');
            let name = name.strip_prefix("GI_").unwrap_or(name);
            let name = name.trim_start_matches('_');
            has_any(name, &["str", "stpcpy", "stpncpy", "rawmemchr"])
        });
        self.string_readers.insert(pc, answer);
        answer
    }

    /// Which part of Go's `sync.RWMutex` a locked instruction is.
    pub fn reader(&mut self, pc: u64) -> Reader {
        if let Some(known) = self.readers.get(&pc) {
            return *known;
        }
        let frames = self.modules.frames(pc, false);
        let named = |end: &str| {
            frames.iter().any(|frame| {
                let name = frame.function.as_deref().unwrap_or("");
                name.starts_with("sync.(*RWMutex).") && name.ends_with(end)
            })
        };
        let reader = if named("RUnlock") {
            Reader::Leaves
        } else if named("RLock") {
            Reader::Enters
        } else {
            Reader::None
        };
        self.readers.insert(pc, reader);
        reader
    }

    /// Program code of a file without debug info.
    pub fn is_bare(&mut self, pc: u64) -> bool {
        self.origin(pc) == Origin::Program
            && self
                .modules
                .find(pc)
                .is_some_and(|(module, _)| !module.has_debug_info())
    }

    /// The value this instruction loads decides a branch soon after, or a
    /// compare-and-swap of the same place follows, which decides by it.
    pub fn feeds_branch(&mut self, pc: u64) -> bool {
        self.origin(pc);
        let index = Self::index(pc);
        if let Some(answer) = self.facts[index].feeds_branch {
            return answer;
        }
        let answer = self.branch_fed_by(pc).is_some();
        self.facts[index].feeds_branch = Some(answer);
        answer
    }

    /// The load is the first half of a loop around a compare-and-swap: an atomic
    /// change that the processor has no instruction for.
    pub fn begins_exchange(&mut self, pc: u64) -> bool {
        self.origin(pc);
        let index = Self::index(pc);
        if let Some(answer) = self.facts[index].begins_exchange {
            return answer;
        }
        let answer = self.exchange_follows(pc);
        self.facts[index].begins_exchange = Some(answer);
        answer
    }

    /// A compare-and-swap follows that expects the value loaded.
    fn exchange_follows(&mut self, pc: u64) -> bool {
        /// Between them is only the computation of the new value.
        const WINDOW: usize = 24;
        let mut bytes = [0; 8 * WINDOW];
        if vm::memory::read(pc, &mut bytes).is_err() {
            return false;
        }
        let mut decoder = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE);
        let load = decoder.decode();
        if load.mnemonic() != Mnemonic::Mov || load.op0_kind() != OpKind::Register {
            return false;
        }
        let mut copies = vec![load.op0_register().full_register()];
        // Without optimisation values go through the frame.
        let mut slots: Vec<(Register, Register, u32, u64)> = Vec::new();
        for _ in 0..WINDOW {
            let instruction = decoder.decode();
            // A largest value is only exchanged for a larger one.
            let goes_on = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            );
            if instruction.is_invalid() || !goes_on {
                return false;
            }
            if instruction.mnemonic() == Mnemonic::Cmpxchg && instruction.has_lock_prefix() {
                return copies.contains(&Register::RAX);
            }
            let copied = instruction.mnemonic() == Mnemonic::Mov
                && match instruction.op1_kind() {
                    OpKind::Register => {
                        copies.contains(&instruction.op1_register().full_register())
                    }
                    OpKind::Memory => slots.contains(&operand(&instruction)),
                    _ => false,
                };
            if instruction.op0_kind() == OpKind::Memory && instruction.mnemonic() == Mnemonic::Mov {
                let slot = operand(&instruction);
                slots.retain(|known| *known != slot);
                if copied && slot.0 == Register::RBP {
                    slots.push(slot);
                }
            }
            for used in self.info.info(&instruction).used_registers() {
                let register = used.register().full_register();
                if matches!(
                    used.access(),
                    OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite
                ) {
                    copies.retain(|copy| *copy != register);
                    if copied {
                        copies.push(register);
                    }
                }
            }
        }
        false
    }

    /// Target of the conditional branch that the loaded value decides.
    fn branch_fed_by(&mut self, pc: u64) -> Option<u64> {
        /// A compiler puts the test near the load.
        const WINDOW: usize = 16;
        let mut bytes = [0; 15 * WINDOW];
        let mut length = bytes.len();
        while length > 0 && vm::memory::read(pc, &mut bytes[..length]).is_err() {
            length /= 2;
        }
        let mut decoder = Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE);
        let mut carriers: Vec<Register> = Vec::new();
        // Without optimisation values go through the frame.
        let mut slots: Vec<(Register, u64)> = Vec::new();
        let mut flags_carry = false;
        // The place that was loaded from, while its registers are unchanged.
        let mut place = None;
        for step in 0..WINDOW {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return None;
            }
            if step == 0 {
                place = Some(operand(&instruction));
            } else if instruction.mnemonic() == Mnemonic::Cmpxchg
                && instruction.has_lock_prefix()
                && place == Some(operand(&instruction))
            {
                return Some(instruction.next_ip());
            }
            match instruction.flow_control() {
                FlowControl::ConditionalBranch => {
                    if flags_carry {
                        return Some(instruction.near_branch_target());
                    }
                    continue;
                }
                FlowControl::Next => {}
                FlowControl::UnconditionalBranch => {
                    // Loops at -O0 test at their end: follow the jump.
                    let target = instruction.near_branch_target();
                    let behind = target.wrapping_sub(pc);
                    if target > instruction.ip() && behind < length as u64 {
                        if decoder.set_position(behind as usize).is_err() {
                            return None;
                        }
                        decoder.set_ip(target);
                        continue;
                    }
                    return None;
                }
                _ => return None,
            }
            let slot = (instruction.memory_index() == Register::None
                && matches!(instruction.memory_base(), Register::RBP | Register::RSP))
            .then(|| {
                (
                    instruction.memory_base(),
                    instruction.memory_displacement64(),
                )
            });
            let info = self.info.info(&instruction);
            let uses = step == 0
                || (flags_carry && instruction.rflags_read() != 0)
                || (slot.is_some_and(|slot| slots.contains(&slot))
                    && info
                        .used_memory()
                        .iter()
                        .any(|used| matches!(used.access(), OpAccess::Read | OpAccess::ReadWrite)))
                || info.used_registers().iter().any(|used| {
                    matches!(
                        used.access(),
                        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite
                    ) && carriers.contains(&used.register().full_register())
                });
            // A compare-and-swap or a test sets flags from what it used.
            if instruction.rflags_modified() != 0 {
                flags_carry = uses;
            }
            if instruction.mnemonic() == Mnemonic::Cmp || instruction.mnemonic() == Mnemonic::Test {
                continue;
            }
            if let Some(slot) = slot
                && step > 0
                && info
                    .used_memory()
                    .iter()
                    .any(|used| used.access() == OpAccess::Write)
            {
                slots.retain(|known| *known != slot);
                if uses {
                    slots.push(slot);
                }
            }
            for used in info.used_registers() {
                let register = used.register().full_register();
                if !matches!(
                    used.access(),
                    OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite
                ) || !register.is_gpr64()
                {
                    continue;
                }
                if place.is_some_and(|(base, index, ..)| base == register || index == register) {
                    place = None;
                }
                if uses {
                    if !carriers.contains(&register) {
                        carriers.push(register);
                    }
                } else if used.access() == OpAccess::Write {
                    carriers.retain(|known| *known != register);
                }
            }
        }
        None
    }

    /// The value this instruction loads is the condition of a tight loop
    /// around it.
    pub fn spins(&mut self, pc: u64) -> bool {
        /// A loop with a call of `sched_yield` in it is no longer.
        const LONGEST: u64 = 96;
        self.branch_fed_by(pc)
            .is_some_and(|target| target <= pc && pc - target < LONGEST)
    }

    /// The atomic operation this instruction is, by debug info.
    pub fn atomic(&mut self, pc: u64) -> Option<Atomic> {
        self.origin(pc);
        let index = Self::index(pc);
        if let Some(answer) = self.facts[index].atomic {
            return answer;
        }
        let answer = self.modules.atomic_access(pc).map(|used| {
            let order = used.order.or_else(|| self.order_in_frame(pc));
            self.meaning(pc, &AtomicUse { order, ..used })
        });
        self.facts[index].atomic = Some(answer);
        answer
    }

    /// The memory order of an operation that is inlined without optimisation:
    /// a constant that the code before it has stored in the frame, where debug
    /// info says that the parameter is.
    fn order_in_frame(&mut self, pc: u64) -> Option<Ordering> {
        /// Stands for the frame pointer: only what is relative to it is known.
        const FRAME: u64 = 1 << 40;
        /// Code before the instruction that is looked at.
        const LONGEST: u64 = 1 << 16;
        let start = self.modules.function_at(pc)?.start;
        let length = pc.checked_sub(start).filter(|length| *length < LONGEST)?;
        let mut code = vec![0; length as usize];
        vm::memory::read(start, &mut code).ok()?;
        let stored = |address: u64| {
            let place = address.wrapping_sub(FRAME);
            let decoder = Decoder::with_ip(64, &code, start, DecoderOptions::NONE);
            let last = decoder
                .into_iter()
                .filter(|instruction| {
                    operand(instruction) == (Register::RBP, Register::None, 1, place)
                        && instruction.op0_kind() == OpKind::Memory
                        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
                })
                .last()?;
            let constant = last.mnemonic() == Mnemonic::Mov
                && matches!(last.op1_kind(), OpKind::Immediate8 | OpKind::Immediate32);
            constant.then(|| last.immediate(1))
        };
        let mut registers = symbols::Registers {
            general: [u64::MAX; 16],
            rip: pc,
        };
        registers.general[symbols::Registers::RBP] = FRAME;
        let frame = StackFrame {
            address: pc,
            is_return_address: false,
            registers,
        };
        let mut found = None;
        let used = self.modules.atomic_access_in(&frame, &mut |address| {
            found = stored(address);
            found
        })?;
        // What follows from other registers follows from nothing.
        found.and(used.order)
    }

    /// The function out of line that this instruction of an atomic operation is
    /// in, if it gets the memory order as an argument.
    pub fn operation_around(&self, pc: u64) -> Option<u64> {
        let start = self.modules.function_at(pc)?.start;
        matches!(self.hooks.get(&start), Some(Known::AtomicOperation(_))).then_some(start)
    }

    /// What an atomic operation means whose order is only known as it runs.
    pub fn atomic_of_order(&mut self, pc: u64, order: Ordering) -> Option<Atomic> {
        let used = self.modules.atomic_access(pc)?;
        Some(self.meaning(
            pc,
            &AtomicUse {
                order: Some(order),
                ..used
            },
        ))
    }

    /// Debug info says that the variable there is of an atomic type.
    pub fn is_atomic_variable(&mut self, address: u64) -> bool {
        let modules = &self.modules;
        *self.atomic_variables.entry(address).or_insert_with(|| {
            modules
                .variable_at(address)
                .is_some_and(|variable| variable.atomic)
        })
    }

    /// The atomic operation that the source line of this instruction names;
    /// `word` says that others use the word atomically.
    pub fn atomic_in_source(
        &mut self,
        pc: u64,
        shape: Shape,
        address: u64,
        word: bool,
    ) -> Option<Atomic> {
        let key = (pc, address, shape, word);
        if let Some(known) = self.atomics_in_source.get(&key) {
            return *known;
        }
        let answer = self.find_atomic_in_source(pc, shape, address, word);
        self.atomics_in_source.insert(key, answer);
        answer
    }

    fn find_atomic_in_source(
        &mut self,
        pc: u64,
        shape: Shape,
        address: u64,
        word: bool,
    ) -> Option<Atomic> {
        let (module, offset) = self.modules.find(pc)?;
        if !module.has_debug_info() {
            return None;
        }
        let site = self.modules.site(pc);
        let (file, line) = (site.file?, site.line?);
        let place = module.position(offset);
        let place = place
            .filter(|place| place.line == line)
            .unwrap_or(Position { line, column: 0 });
        let variable = self.modules.variable_at(address);
        let name = variable.as_ref().map(|variable| {
            let last = variable.path.rsplit('.').next().unwrap_or("");
            last.split('[').next().unwrap_or(last)
        });
        self.sources
            .atomic(Path::new(&file), place, shape, name, word)
    }

    fn meaning(&mut self, pc: u64, used: &AtomicUse) -> Atomic {
        let stores = used.operation == AtomicOperation::Store;
        let changes = used.operation == AtomicOperation::ReadModifyWrite;
        let (acquires, releases) = match used.order {
            None => (true, true),
            // A relaxed increment (a counter, one more reference) is no half
            // of a fence's edge; other relaxed operations may be.
            Some(Ordering::Relaxed) => {
                let half = !used.function.contains("add") && self.may_lose_fences(pc);
                (half, half)
            }
            Some(Ordering::Acquire) => (true, false),
            // The last reference is given up with a release and a fence.
            Some(Ordering::Release) => (changes && self.may_lose_fences(pc), true),
            Some(_) => (true, true),
        };
        // Whether it fails is known to nobody but the program.
        let acquires = acquires
            || used
                .failure
                .is_some_and(|order| Edges::from(order).acquires);
        Atomic {
            typed: !used.function.contains("atomic_ref") && !used.function.starts_with("__atomic_"),
            acquires: acquires && !stores,
            releases,
            order_unknown: used.order.is_none()
                || (used.order == Some(Ordering::Relaxed) && releases),
            stores,
        }
    }

    /// The operation is inlined into code of Rust's own library: that comes
    /// optimised and without its source, so its fences cannot be found.
    fn may_lose_fences(&self, pc: u64) -> bool {
        let frames = self.modules.frames(pc, false);
        let caller = frames.iter().find(|frame| {
            let name = frame.function.as_deref().unwrap_or("");
            !name.contains("sync::atomic::")
        });
        caller
            .and_then(|frame| frame.file.as_deref())
            .is_some_and(|file| file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/"))
    }

    /// The order of a fence that is an instruction, or of a function out of
    /// line that is a fence; none if the address is of neither.
    pub fn fence_order(&mut self, pc: u64) -> Option<Option<Ordering>> {
        let used = self.modules.atomic_access(pc)?;
        (used.operation == AtomicOperation::Fence)
            .then(|| used.order.or_else(|| self.order_in_frame(pc)))
    }
}

/// A memory operand as it is written in an instruction.
fn operand(instruction: &Instruction) -> (Register, Register, u32, u64) {
    (
        instruction.memory_base(),
        instruction.memory_index(),
        instruction.memory_index_scale(),
        instruction.memory_displacement64(),
    )
}
