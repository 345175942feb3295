//! The sampling set of a module: every instruction that accesses memory and
//! may be sampled (paper 002, section 3.1.1).
//!
//! The paper needs debugging symbols to disassemble. Here function bounds come
//! from symbols (Go's function table among them) or unwind tables, whichever a
//! module has, so stripped programs work. A breakpoint planted into data would change what
//! the program reads, so data between instructions must never be taken for
//! code: a function is swept linearly only if everything in it decodes, no
//! branch lands inside an instruction and nobody refers to its bytes as data;
//! otherwise only what its own control flow reaches is used.
//!
//! Left out: accesses to the own stack and thread-local ones, locked
//! instructions and `xchg`, reads of constants, the PLT, and routines that
//! synchronise or are internal to the C library, the loader and allocators
//! (`scope`). Of Go also the check of the stack's end that functions begin with,
//! and whatever else they read of their goroutine's descriptor: the scheduler
//! writes there to have them give way.

use crate::instruction::{Analyser, LONGEST, decode};
use crate::scope::Scope;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use symbols::Module;

/// One program location that accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeSite {
    /// Link-time address.
    pub address: u64,
    pub length: u8,
    /// rbp is the frame pointer here.
    pub frame: bool,
    /// Whoever executes this goes on to the next site of the set: there is
    /// no jump, call or return between the two.
    pub falls_through: bool,
    /// Of which of the next sites it can be told here what they touch; the
    /// lowest bit stands for the next one.
    pub foretells: u8,
    pub bytes: [u8; LONGEST],
}

/// Sites after one that are looked at for whether they can be told.
const FORESIGHT: usize = 6;

#[derive(Debug, Default)]
pub struct SamplingSet {
    /// In order of address.
    pub sites: Vec<CodeSite>,
    /// Why nothing of the module is sampled.
    pub nothing: Option<&'static str>,
}

/// Builds the sampling set of a module. `string_functions` are entry points
/// that the C library has chosen at run time (`memcpy` and its like), which
/// no symbol names in a stripped library.
pub fn build(module: &Module, scope: &Scope, string_functions: &HashSet<u64>) -> SamplingSet {
    let code = Code::of(module);
    if code.is_empty() {
        return SamplingSet {
            sites: Vec::new(),
            nothing: Some("its file cannot be read"),
        };
    }
    let functions = functions(module, &code);
    if functions.is_empty() {
        return SamplingSet {
            sites: Vec::new(),
            nothing: Some("it has neither symbols nor unwind tables"),
        };
    }
    let sampled: HashSet<u64> = functions
        .iter()
        .filter(|(start, function)| {
            let is_string_function = string_functions.contains(*start);
            scope.samples(
                module,
                function.name.as_deref(),
                **start,
                is_string_function,
            )
        })
        .map(|(start, _)| *start)
        .collect();
    if sampled.is_empty() {
        return SamplingSet::default();
    }
    let constant = |address: u64| {
        module
            .section_at(address)
            .is_some_and(|section| !section.writable)
    };
    let mut collector = Collector {
        code: &code,
        constant,
        is_go: is_go(module),
        analyser: Analyser::default(),
    };
    let mut body = Body::default();
    // Addresses in code that are used as data.
    let mut data = Vec::new();
    let mut swept = Vec::new();
    for (start, function) in &functions {
        let range = *start..function.end;
        if sampled.contains(start) {
            body.sweep(&code, range.clone());
            for instruction in &body.instructions {
                data.extend(data_reference(instruction, &code, &functions));
            }
            let mut sites = Vec::new();
            if !body.doubtful {
                collector.sites(&mut body, &mut sites);
            }
            swept.push((range, body.doubtful, sites));
        } else {
            // Most of a C library: nothing of it is kept.
            for instruction in code.instructions(range) {
                data.extend(data_reference(&instruction, &code, &functions));
            }
        }
    }
    data.sort_unstable();
    data.dedup();
    let mut sites = Vec::new();
    for (range, doubtful, found) in swept {
        if doubtful || any_in(&data, &range) {
            collector.sites(&mut Body::follow(&code, range, &data), &mut sites);
        } else {
            sites.extend(found);
        }
    }
    sites.sort_by_key(|site| site.address);
    sites.dedup_by_key(|site| site.address);
    SamplingSet {
        sites,
        nothing: None,
    }
}

/// Whether one of the sorted addresses is in the range.
fn any_in(addresses: &[u64], range: &Range<u64>) -> bool {
    let first = addresses.partition_point(|address| *address < range.start);
    addresses
        .get(first)
        .is_some_and(|address| *address < range.end)
}

/// The module has Go's table of functions.
pub fn is_go(module: &Module) -> bool {
    module
        .sections()
        .iter()
        .any(|section| section.name.ends_with(".gopclntab") || section.name == ".go.buildinfo")
}

/// An access to the descriptor of the running goroutine: through r14, which
/// holds it in compiled code, or the comparison of the stack pointer that
/// functions in assembler begin with.
fn is_of_goroutine(instruction: &Instruction) -> bool {
    instruction.memory_base() == Register::R14
        || (instruction.mnemonic() == Mnemonic::Cmp
            && instruction.op0_register() == Register::RSP
            && instruction.op1_kind() == OpKind::Memory)
}

/// The function's extent as far as tables tell it.
struct Function {
    end: u64,
    name: Option<String>,
}

/// Executable sections with their bytes.
struct Code<'a> {
    sections: Vec<(Range<u64>, &'a [u8])>,
}

impl<'a> Code<'a> {
    fn of(module: &'a Module) -> Code<'a> {
        let sections = module
            .sections()
            .iter()
            .filter(|section| section.executable && !section.name.starts_with(".plt"))
            .filter(|section| !matches!(section.name.as_str(), ".init" | ".fini"))
            .filter_map(|section| {
                let range = section.addresses.clone();
                let length = usize::try_from(range.end - range.start).ok()?;
                Some((range.clone(), module.bytes_at(range.start, length)?))
            })
            .collect();
        Code { sections }
    }

    fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    fn contains(&self, address: u64) -> bool {
        self.section(address).is_some()
    }

    fn section(&self, address: u64) -> Option<&(Range<u64>, &'a [u8])> {
        self.sections
            .iter()
            .find(|(range, _)| range.contains(&address))
    }

    /// Bytes of one section from `start` on, up to `end` at most.
    fn from(&self, start: u64, end: u64) -> &'a [u8] {
        self.section(start).map_or(&[], |(range, bytes)| {
            let first = (start - range.start) as usize;
            let last = (end.min(range.end) - range.start) as usize;
            bytes.get(first..last).unwrap_or_default()
        })
    }

    fn instruction(&self, address: u64) -> Option<Instruction> {
        let (range, bytes) = self.section(address)?;
        let at = (address - range.start) as usize;
        let end = bytes.len().min(at + LONGEST);
        decode(&bytes[at..end], address)
    }

    /// One instruction after the other, up to the end of the range or the
    /// first that does not decode.
    fn instructions(&self, range: Range<u64>) -> impl Iterator<Item = Instruction> + use<'a> {
        let bytes = self.from(range.start, range.end + LONGEST as u64);
        let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        std::iter::from_fn(move || {
            if decoder.ip() >= range.end {
                return None;
            }
            Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
        })
    }

    fn bytes(&self, address: u64, length: usize) -> [u8; LONGEST] {
        let mut copy = [0; LONGEST];
        if let Some((range, bytes)) = self.section(address) {
            let at = (address - range.start) as usize;
            let length = length.min(LONGEST).min(bytes.len() - at);
            copy[..length].copy_from_slice(&bytes[at..at + length]);
        }
        copy
    }
}

/// Function bounds by start address: the next function ends one that claims
/// to be longer.
fn functions(module: &Module, code: &Code<'_>) -> BTreeMap<u64, Function> {
    let mut found: BTreeMap<u64, Function> = BTreeMap::new();
    let mut add = |range: Range<u64>, name: Option<String>| {
        if range.is_empty() || !code.contains(range.start) {
            return;
        }
        let entry = found.entry(range.start).or_insert(Function {
            end: range.end,
            name: None,
        });
        entry.end = entry.end.max(range.end);
        // Of several names one that rules the function out is the telling
        // one; the shortest is the plainest otherwise.
        if let Some(name) = name
            && entry.name.as_ref().is_none_or(|old| name.len() < old.len())
        {
            entry.name = Some(name);
        }
    };
    for range in module.unwind_ranges() {
        add(range, None);
    }
    for symbol in module.functions() {
        add(symbol.start..symbol.start + symbol.size, Some(symbol.name));
    }
    let starts: Vec<u64> = found.keys().copied().collect();
    for pair in starts.windows(2) {
        if let Some(function) = found.get_mut(&pair[0]) {
            function.end = function.end.min(pair[1]);
        }
    }
    found
}

/// The instructions of one function.
#[derive(Default)]
struct Body {
    range: Range<u64>,
    instructions: Vec<Instruction>,
    /// There may be data among the instructions.
    doubtful: bool,
}

impl Body {
    /// One instruction after the other from the first byte on.
    fn of(code: &Code<'_>, range: Range<u64>) -> Body {
        let mut body = Body::default();
        body.sweep(code, range);
        body
    }

    /// The same, in the memory of this one.
    fn sweep(&mut self, code: &Code<'_>, range: Range<u64>) {
        self.instructions.clear();
        self.instructions.extend(code.instructions(range.clone()));
        let instructions = &self.instructions;
        let at = instructions
            .last()
            .map_or(range.start, Instruction::next_ip);
        let inside = |target: u64| {
            range.contains(&target)
                && instructions
                    .binary_search_by_key(&target, Instruction::ip)
                    .is_err()
        };
        // It ends early where something does not decode. Tables of functions
        // often count padding in, never a part of an instruction.
        self.doubtful = at != range.end
            || instructions
                .iter()
                .any(|instruction| branch_target(instruction).is_some_and(inside));
        self.range = range;
    }

    /// Only what direct control flow from the first byte reaches; stops at
    /// bytes that are used as data.
    fn follow(code: &Code<'_>, range: Range<u64>, data: &[u64]) -> Body {
        let mut reached: BTreeMap<u64, Instruction> = BTreeMap::new();
        let mut open = vec![range.start];
        while let Some(mut at) = open.pop() {
            while range.contains(&at) && !reached.contains_key(&at) {
                let Some(instruction) = code.instruction(at) else {
                    break;
                };
                let end = instruction.next_ip();
                if end > range.end || any_in(data, &(at..end)) {
                    break;
                }
                reached.insert(at, instruction);
                open.extend(branch_target(&instruction));
                if matches!(
                    instruction.flow_control(),
                    FlowControl::UnconditionalBranch
                        | FlowControl::IndirectBranch
                        | FlowControl::Return
                        | FlowControl::Exception
                        | FlowControl::Interrupt
                ) {
                    break;
                }
                at = end;
            }
        }
        // Instructions that overlap cannot both be meant.
        let all: Vec<Instruction> = reached.into_values().collect();
        let clear = |at: usize| {
            (at == 0 || all[at - 1].next_ip() <= all[at].ip())
                && (at + 1 == all.len() || all[at].next_ip() <= all[at + 1].ip())
        };
        let instructions = (0..all.len())
            .filter(|at| clear(*at))
            .map(|at| all[at])
            .collect();
        Body {
            range,
            instructions,
            doubtful: false,
        }
    }

    /// rbp is set from rsp and otherwise only restored.
    fn has_frame_pointer(&self) -> bool {
        let mut set = false;
        for instruction in &self.instructions {
            if instruction.op0_kind() != OpKind::Register
                || instruction.op0_register().full_register() != Register::RBP
            {
                continue;
            }
            match instruction.mnemonic() {
                Mnemonic::Pop | Mnemonic::Push | Mnemonic::Cmp | Mnemonic::Test => {}
                Mnemonic::Mov if instruction.op1_register() == Register::RSP => set = true,
                Mnemonic::Lea if instruction.memory_base() == Register::RSP => set = true,
                _ => return false,
            }
        }
        set
    }
}

/// Takes the sites out of functions.
struct Collector<'a, Constant> {
    code: &'a Code<'a>,
    /// Whether memory at an address is never written.
    constant: Constant,
    is_go: bool,
    analyser: Analyser,
}

impl<Constant: Fn(u64) -> bool + Copy> Collector<'_, Constant> {
    fn sites(&mut self, body: &mut Body, sites: &mut Vec<CodeSite>) {
        if self.is_go {
            body.instructions
                .retain(|instruction| !is_of_goroutine(instruction));
        }
        let frame = body.has_frame_pointer();
        // Where the instructions since the last site lead without a jump.
        let mut leads_to = None;
        // Where the sites that lead here without a jump are among them.
        let mut run: Vec<usize> = Vec::new();
        for (at, instruction) in body.instructions.iter().enumerate() {
            let led_here = leads_to == Some(instruction.ip());
            if led_here && instruction.flow_control() == FlowControl::Next {
                leads_to = Some(instruction.next_ip());
            } else if led_here {
                leads_to = None;
            }
            if self
                .analyser
                .sampled(instruction, frame, self.constant)
                .is_ok()
            {
                let address = instruction.ip();
                if led_here && let Some(last) = sites.last_mut() {
                    last.falls_through = true;
                } else {
                    run.clear();
                }
                let before = sites.iter_mut().rev().zip(run.iter().rev());
                for (ahead, (site, since)) in before.take(FORESIGHT).enumerate() {
                    let between = &body.instructions[*since..at];
                    if self.analyser.foretells(between, instruction) {
                        site.foretells |= 1 << ahead;
                    }
                }
                run.push(at);
                leads_to = (instruction.flow_control() == FlowControl::Next)
                    .then(|| instruction.next_ip());
                sites.push(CodeSite {
                    address,
                    length: instruction.len() as u8,
                    frame,
                    falls_through: false,
                    foretells: 0,
                    bytes: self.code.bytes(address, instruction.len()),
                });
            }
        }
    }
}

/// The address in code that an instruction uses as data.
fn data_reference(
    instruction: &Instruction,
    code: &Code<'_>,
    functions: &BTreeMap<u64, Function>,
) -> Option<u64> {
    if !instruction.is_ip_rel_memory_operand() {
        return None;
    }
    let target = instruction.ip_rel_memory_address();
    // The address of a function is taken to call it.
    let is_function = instruction.mnemonic() == Mnemonic::Lea && functions.contains_key(&target);
    (!is_function && code.contains(target)).then_some(target)
}

fn branch_target(instruction: &Instruction) -> Option<u64> {
    matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    )
    .then(|| instruction.near_branch_target())
    .filter(|target| *target != 0)
}

/// The instruction that ends where the program counter stands: what has just
/// been executed, unless that was a jump.
pub fn instruction_before(module: &Module, address: u64) -> Option<Instruction> {
    let code = Code::of(module);
    let range = module.unwind_range_at(address - 1).or_else(|| {
        let symbol = module.function_at(address - 1)?;
        Some(symbol.start..symbol.start + symbol.size)
    });
    let swept = range.and_then(|range| {
        let body = Body::of(&code, range.start..address);
        body.instructions
            .last()
            .filter(|instruction| instruction.next_ip() == address)
            .copied()
    });
    swept.or_else(|| {
        // No bounds known: the longest instruction that ends there and
        // touches memory.
        (1..=LONGEST as u64).rev().find_map(|length| {
            let instruction = code.instruction(address.checked_sub(length)?)?;
            let memory = (0..instruction.op_count())
                .any(|operand| instruction.op_kind(operand) == OpKind::Memory);
            (instruction.next_ip() == address && memory).then_some(instruction)
        })
    })
}

/// The instruction at an address.
pub fn instruction_at(module: &Module, address: u64) -> Option<Instruction> {
    Code::of(module).instruction(address)
}

/// Instructions of the function around an address, in order.
pub fn function_around(module: &Module, address: u64) -> Vec<Instruction> {
    let code = Code::of(module);
    let range = module.unwind_range_at(address).or_else(|| {
        let symbol = module.function_at(address)?;
        Some(symbol.start..symbol.start + symbol.size)
    });
    range.map_or_else(Vec::new, |range| Body::of(&code, range).instructions)
}
