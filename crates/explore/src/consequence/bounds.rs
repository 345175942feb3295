//! Arrays outside the heap: accesses by index that leave the variable they begin
//! in, global or on the stack (paper 003, section 4.6; KLEE's objects).
//!
//! `bases` says of an instruction which byte of a variable its index is added
//! to. Debug info says which variable that is and where it ends. An access from
//! there that lies, wholly or in part, outside the variable is an error, in a
//! neighbour as well as in padding.
//!
//! An optimiser may begin at a byte of a neighbour (`table - 4` for
//! `table[i - 1]`), so the source text is asked as well: a line that the
//! instruction was written on, or inlined into, has to name the variable, and
//! none may name the one that the access lands in, but for elements by number. Guarantee: what is reported
//! is an access by index from a variable that its line names, to bytes that are
//! not the variable's. Not seen: pointers that are kept in memory or come
//! as arguments, an index that stays inside the variable (from one field to the
//! next), code without debug info or without its source, and an instruction after
//! many times.

use super::bases::{Around, Indexed, Root, indexed};
use super::code::{Origin, origin_of};
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use race::Frame;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use symbols::{LoadedModule, Module, ModuleMap};
use vm::context::Registers;

/// Bytes of code that are searched, and accesses that are looked at.
const SEARCHED: u64 = 4 << 20;
const ACCESSES: usize = 4_096;

/// Times an access is looked at.
const OFTEN: u32 = 20_000;

/// Larger files are generated.
const LARGEST_SOURCE: u64 = 8 << 20;

/// The operand of an instruction, as far as its address is computed from general
/// registers.
#[derive(Debug, Clone, Copy)]
struct Operand {
    base: Option<usize>,
    index: Option<usize>,
    scale: u64,
    displacement: u64,
    size: u64,
    write: bool,
}

impl Operand {
    fn of(instruction: &Instruction) -> Option<Operand> {
        let number = |register: Register| match register {
            Register::None | Register::RIP => Some(None),
            register if register.is_gpr64() => Some(Some(register.number())),
            _ => None,
        };
        let write = (0..instruction.op_count())
            .find(|operand| instruction.op_kind(*operand) == OpKind::Memory)
            .is_some_and(|operand| {
                let access = iced_x86::InstructionInfoFactory::new()
                    .info(instruction)
                    .op_access(operand);
                !matches!(
                    access,
                    iced_x86::OpAccess::Read | iced_x86::OpAccess::CondRead
                )
            });
        Some(Operand {
            base: number(instruction.memory_base())?,
            index: number(instruction.memory_index())?,
            scale: u64::from(instruction.memory_index_scale()),
            displacement: instruction.memory_displacement64(),
            size: instruction.memory_size().size() as u64,
            write,
        })
    }

    fn address(&self, bias: u64, registers: &Registers) -> u64 {
        let get = |number: Option<usize>| number.map_or(0, |number| registers.gpr[number]);
        let from_code = self.base.is_none() && self.index.is_none();
        get(self.base)
            .wrapping_add(get(self.index).wrapping_mul(self.scale))
            .wrapping_add(self.displacement)
            .wrapping_add(if from_code { bias } else { 0 })
    }
}

/// The bytes that an access may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Extent {
    Fixed(Range<u64>),
    /// From the canonical frame address, which is so far from this register.
    Frame {
        register: usize,
        distance: i64,
        start: i64,
        size: u64,
    },
}

impl Extent {
    fn now(&self, registers: &Registers) -> Range<u64> {
        match self {
            Extent::Fixed(range) => range.clone(),
            Extent::Frame {
                register,
                distance,
                start,
                size,
            } => {
                let frame = registers.gpr[*register].wrapping_add_signed(*distance);
                let start = frame.wrapping_add_signed(*start);
                start..start.saturating_add(*size)
            }
        }
    }
}

/// An access that is looked at.
struct Bound {
    operand: Operand,
    extent: Extent,
    bias: u64,
    /// The variable, and the lines that the instruction was written on.
    name: String,
    lines: Rc<[String]>,
    times: u32,
}

/// An access outside its variable.
pub struct Outside {
    pub address: u64,
    pub size: u64,
    pub write: bool,
    pub detail: String,
}

#[derive(Default)]
pub struct Bounds {
    bounds: FxHashMap<u64, Bound>,
    searched: u64,
    /// Modules that were looked through, by where they are.
    known: BTreeSet<(u64, PathBuf)>,
    sources: HashMap<PathBuf, Option<Vec<String>>>,
    /// The program's own code without debug info, and code beyond the limits.
    without_debug_info: BTreeSet<String>,
    is_cut: bool,
}

impl Bounds {
    /// Looks for accesses by index in modules that are new.
    pub fn search(&mut self, modules: &ModuleMap, directory: &Path) {
        for loaded in modules.modules() {
            let path = loaded.module.path().to_path_buf();
            if origin_of(loaded.module.name()) != Origin::Program
                || !self.known.insert((loaded.bias, path))
            {
                continue;
            }
            if !loaded.module.has_debug_info() {
                if loaded.module.is_readable() {
                    self.without_debug_info
                        .insert(loaded.module.name().to_string());
                }
                continue;
            }
            self.search_module(&loaded, directory);
        }
    }

    fn search_module(&mut self, loaded: &LoadedModule<'_>, directory: &Path) {
        let module = loaded.module;
        let code = Code {
            module,
            bias: loaded.bias,
        };
        for function in module.functions() {
            if self.searched > SEARCHED || self.bounds.len() >= ACCESSES {
                self.is_cut = true;
                return;
            }
            self.searched += function.size;
            let Some(bytes) = module.bytes_at(function.start, function.size as usize) else {
                continue;
            };
            let instructions: Vec<Instruction> =
                Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE)
                    .iter()
                    .collect();
            for access in indexed(&instructions, &code) {
                let at = instructions.partition_point(|known| known.ip() < access.pc);
                if let Some(bound) = self.bound(loaded, access, &instructions[at], directory) {
                    self.bounds
                        .insert(access.pc.wrapping_add(loaded.bias), bound);
                }
            }
        }
    }

    fn bound(
        &mut self,
        loaded: &LoadedModule<'_>,
        access: Indexed,
        instruction: &Instruction,
        directory: &Path,
    ) -> Option<Bound> {
        let module = loaded.module;
        let operand = Operand::of(instruction)?;
        let (name, extent) = match access.root {
            Root::Image => {
                let at = access.offset as u64;
                let variable = module.variable_at(at)?;
                // An array without a length at the end of a structure may have
                // been given elements: its symbol is as long as it is.
                let symbol = module
                    .data_at(variable.start)
                    .filter(|symbol| symbol.start == variable.start)
                    .map_or(0, |symbol| symbol.size);
                let start = variable.start.wrapping_add(loaded.bias);
                let size = variable.size.max(symbol);
                (
                    variable.name,
                    Extent::Fixed(start..start.checked_add(size)?),
                )
            }
            Root::Frame => {
                let (register, distance) = module.frame_address(access.pc)?;
                let variable = module.local_in_frame(access.pc, access.offset)?;
                let extent = Extent::Frame {
                    register,
                    distance,
                    start: variable.start as i64,
                    size: variable.size,
                };
                (variable.name, extent)
            }
        };
        let lines: Rc<[String]> = module
            .frames(access.pc)
            .iter()
            .filter_map(|frame| self.line(frame, directory))
            .collect();
        lines
            .iter()
            .any(|line| mentions(line, &name))
            .then_some(Bound {
                operand,
                extent,
                bias: loaded.bias,
                name,
                lines,
                times: 0,
            })
    }

    fn line(&mut self, frame: &Frame, directory: &Path) -> Option<String> {
        let path = directory.join(frame.file.as_ref()?);
        let number = frame.line?.checked_sub(1)?;
        let text = self.sources.entry(path).or_insert_with_key(|path| {
            let bytes = folder::read_regular(path, LARGEST_SOURCE).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            Some(text.lines().map(str::to_string).collect())
        });
        text.as_ref()?.get(number as usize).cloned()
    }

    /// Where to be told of a thread coming by.
    pub fn hooks(&self, range: &Range<u64>) -> Vec<u64> {
        self.bounds
            .keys()
            .copied()
            .filter(|pc| range.contains(pc))
            .collect()
    }

    /// A thread is about to execute the instruction at `pc`.
    pub fn passed(
        &mut self,
        pc: u64,
        modules: &ModuleMap,
        registers: &Registers,
    ) -> Option<Outside> {
        let bound = self.bounds.get_mut(&pc)?;
        bound.times = bound.times.saturating_add(1);
        if bound.times > OFTEN {
            return None;
        }
        let extent = bound.extent.now(registers);
        let (address, size) = (
            bound.operand.address(bound.bias, registers),
            bound.operand.size,
        );
        let end = address.checked_add(size)?;
        if extent.start <= address && end <= extent.end {
            return None;
        }
        let lands = lands_in(modules, registers, address, size);
        if let Some((name, _)) = &lands
            && (*name == bound.name || bound.lines.iter().any(|line| indexes(line, name)))
        {
            return None;
        }
        let length = extent.end - extent.start;
        let how_far = match address.checked_sub(extent.end) {
            Some(behind) => format!("{} behind its {length}", bytes(behind + 1)),
            None if address < extent.start => {
                format!("{} before its {length}", bytes(extent.start - address))
            }
            None => format!("across the end of its {length}"),
        };
        let lands = lands.map_or(String::new(), |(_, path)| format!(", in `{path}`"));
        Some(Outside {
            address,
            size,
            write: bound.operand.write,
            detail: format!("`{}`: {how_far}{lands}", bound.name),
        })
    }

    /// What was not looked at, in sentences.
    pub fn not_checked(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if !self.known.is_empty() {
            sentences.push(
                "the bounds of global and local arrays were checked only where a line of source \
                 indexes the array itself, not through pointers to it"
                    .to_string(),
            );
        }
        for module in &self.without_debug_info {
            sentences.push(format!(
                "the bounds of global and local arrays were not checked in {module}, which has no \
                 debug info"
            ));
        }
        if self.is_cut {
            sentences.push(format!(
                "the bounds of global and local arrays were checked in the first {} MiB of code or \
                 {ACCESSES} accesses only",
                SEARCHED >> 20
            ));
        }
        sentences
    }
}

fn bytes(number: u64) -> String {
    format!("{number} byte{}", if number == 1 { "" } else { "s" })
}

/// The variable that an access lands in, and the part of it.
fn lands_in(
    modules: &ModuleMap,
    registers: &Registers,
    address: u64,
    size: u64,
) -> Option<(String, String)> {
    let variable = modules.variable_over(address, size).or_else(|| {
        let machine = symbols::Registers {
            general: registers.gpr,
            rip: registers.rip,
        };
        let mut read = |address: u64| vm::memory::get::<u64>(address).ok();
        let frame = modules.walk(&machine, &mut read, 1).into_iter().next()?;
        modules.local_over(&frame, &mut read, address, size)
    })?;
    Some((variable.name, variable.path))
}

/// What follows each mention of a variable on a line, whatever it is qualified with.
fn mentioned<'a>(line: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let last = name.rsplit([':', '.']).next().unwrap_or(name).to_string();
    line.match_indices(move |letter: char| is_word(letter))
        .filter(move |(at, _)| !line[..*at].ends_with(is_word))
        .filter_map(move |(at, _)| {
            let rest = line[at..].strip_prefix(last.as_str())?;
            (!rest.starts_with(is_word)).then_some(rest)
        })
}

fn mentions(line: &str, name: &str) -> bool {
    mentioned(line, name).next().is_some()
}

/// A line may access any element of a variable: it names it, and not only with an
/// index that is a number, as a declaration does.
fn indexes(line: &str, name: &str) -> bool {
    mentioned(line, name).any(|rest| {
        let index = rest
            .trim_start()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .map(|(index, _)| index.trim());
        !index.is_some_and(|index| {
            !index.is_empty() && index.chars().all(|letter| letter.is_ascii_digit())
        })
    })
}

struct Code<'a> {
    module: &'a Module,
    bias: u64,
}

impl Code<'_> {
    fn is_data(&self, address: u64) -> bool {
        self.module.section_at(address).is_some_and(|section| {
            ["data", "bss", "common", "COMMON"]
                .iter()
                .any(|part| section.name.contains(part))
        })
    }
}

impl Around for Code<'_> {
    fn frame_address(&self, pc: u64) -> Option<(usize, i64)> {
        self.module.frame_address(pc)
    }

    fn is_fixed_data(&self, address: u64) -> bool {
        self.bias == 0 && self.is_data(address)
    }

    fn linked(&self, slot: u64) -> Option<u64> {
        if !self.module.is_linked_table(slot) {
            return None;
        }
        let there = vm::memory::get::<u64>(slot.wrapping_add(self.bias)).ok()?;
        let address = there.wrapping_sub(self.bias);
        self.is_data(address).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_mentions_whole_names() {
        assert!(mentions("    table[i - 1] = 0;", "table"));
        assert!(mentions("*ROWS.get_unchecked_mut(i)", "program::ROWS"));
        assert!(!mentions("    tables[i] = 0;", "table"));
        assert!(!mentions("    my_table[i] = 0;", "table"));
        assert!(indexes("table[i] = other[3]", "table"));
        assert!(!indexes("table[i] = other[3]", "other"));
        assert!(!indexes("int other[64]; table[i] = 1", "other"));
        assert!(indexes("table[i] = other[3] + *other", "other"));
    }

    #[test]
    fn an_extent_in_a_frame_moves_with_it() {
        let extent = Extent::Frame {
            register: 4,
            distance: 16,
            start: -8,
            size: 4,
        };
        let mut registers = Registers::default();
        registers.gpr[4] = 0x1000;
        assert_eq!(extent.now(&registers), 0x1008..0x100c);
    }
}
