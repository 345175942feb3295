//! The debug info of one module: which functions, inlined ones included, an
//! instruction was written in, and on which line.
//!
//! Everything is lazy: opening reads the unit headers, a lookup parses the
//! functions and lines of its own compilation unit only. `addr2line` is used
//! for lines; functions are in [`crate::functions`], because `addr2line`
//! recurses over inlined calls and a malformed file could exhaust the stack.

use crate::bytes::Bytes;
use crate::demangle::demangle;
use crate::elf::Elf;
use crate::functions::{UnitFunctions, UnitRanges, file_name};
use crate::pointers::GlobalPointer;
use crate::variables::Global;
use addr2line::Context;
use gimli::{
    AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, SectionId, Unit, UnitHeader,
    UnitOffset, UnitRef,
};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) type Slice = EndianSlice<'static, LittleEndian>;

/// How many `DW_AT_abstract_origin` and `DW_AT_specification` links are
/// followed before a chain is taken for a cycle.
pub(crate) const LONGEST_CHAIN: usize = 16;

/// Demangled names kept per module before the cache starts over.
const CACHED_NAMES: usize = 1 << 16;

/// How far from an instruction without a line one is looked for, in bytes.
const LONGEST_GAP: u64 = 64;

/// A function at an instruction, innermost first in a list of them.
pub(crate) struct SourceFrame {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

pub(crate) struct DebugInfo {
    pub(crate) context: Context<Slice>,
    pub(crate) dwarf: Arc<Dwarf<Slice>>,
    pub(crate) units: Units,
    supplementary_units: Units,
    pub(crate) unit_ranges: OnceCell<UnitRanges>,
    pub(crate) unit_functions: Vec<UnitFunctions>,
    /// Variables with a fixed address, in order of address.
    pub(crate) globals: OnceCell<Vec<Global>>,
    /// Those that point to something with fields.
    pub(crate) pointers: OnceCell<Vec<GlobalPointer>>,
    /// Which classes named like atomics are atomics.
    pub(crate) atomic_classes: RefCell<HashMap<(usize, usize), bool>>,
    names: RefCell<HashMap<(usize, usize), Option<String>>>,
    /// What all of the above borrows from, split DWARF files included; last,
    /// so that it is dropped last.
    bytes: RefCell<Vec<Arc<Bytes>>>,
}

impl DebugInfo {
    /// `elf` is the module or its separate debug file; none if it has no
    /// debug info that can be read.
    pub(crate) fn load(elf: &Elf) -> Option<DebugInfo> {
        if !elf.has_section(".debug_info") {
            return None;
        }
        let mut bytes = Vec::new();
        let mut dwarf = load_sections(elf, SectionId::name, &mut bytes);
        if let Some(shared) = elf.supplementary_debug_file() {
            dwarf.set_sup(load_sections(&shared, SectionId::name, &mut bytes));
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let dwarf = Arc::new(dwarf);
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf)).ok()?;
        let units = Units::of(&dwarf);
        let unit_functions = (0..units.len()).map(|_| UnitFunctions::default()).collect();
        let supplementary_units = dwarf.sup().map(Units::of).unwrap_or_default();
        Some(DebugInfo {
            context,
            dwarf,
            units,
            supplementary_units,
            unit_ranges: OnceCell::new(),
            unit_functions,
            globals: OnceCell::new(),
            pointers: OnceCell::new(),
            atomic_classes: RefCell::default(),
            names: RefCell::default(),
            bytes: RefCell::new(bytes),
        })
    }

    /// The functions whose code the instruction at link-time `address` is,
    /// innermost first; empty where there is no debug info for it.
    pub(crate) fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let (mut frames, innermost) = self.frames_at(address);
        let Some(first) = frames.first_mut() else {
            return frames;
        };
        // Code that the optimiser merged or moved has no line of its own; the
        // nearest instruction of the same function, first before it, has.
        if first.line.is_none() && innermost.is_some() {
            let before = (1..=LONGEST_GAP).filter_map(|distance| address.checked_sub(distance));
            let behind = (1..=LONGEST_GAP).filter_map(|distance| address.checked_add(distance));
            let nearest = before
                .chain(behind)
                .map(|address| self.frames_at(address))
                .filter(|(_, function)| *function == innermost)
                .find_map(|(frames, _)| frames.into_iter().next().filter(|f| f.line.is_some()));
            if let Some(nearest) = nearest {
                *first = nearest;
            }
        }
        frames
    }

    /// The frames at an address and the entry of the innermost function.
    fn frames_at(&self, address: u64) -> (Vec<SourceFrame>, Option<UnitOffset>) {
        let place = self.context.find_location(address).ok().flatten();
        let mut file = place
            .as_ref()
            .and_then(|place| place.file.map(str::to_string));
        let mut line = place.and_then(|place| place.line);
        let Some(chain) = self.functions_at(address) else {
            let known = file.is_some().then_some(SourceFrame {
                function: None,
                file,
                line,
            });
            return (known.into_iter().collect(), None);
        };
        let innermost = chain.functions.first().map(|found| found.entry.offset);
        let frames = chain
            .functions
            .iter()
            .map(|found| {
                let call_file = found
                    .call_file
                    .and_then(|index| file_name(chain.unit, index));
                SourceFrame {
                    function: self.full_name(found.entry),
                    file: std::mem::replace(&mut file, call_file),
                    line: std::mem::replace(&mut line, found.call_line).filter(|line| *line != 0),
                }
            })
            .collect();
        (frames, innermost)
    }

    /// The code of every row of the line tables whose file and line are
    /// wanted, with the number of the wish.
    pub(crate) fn code_of(
        &self,
        wanted: &dyn Fn(&str, u32) -> Vec<usize>,
    ) -> Vec<(std::ops::Range<u64>, usize)> {
        let Ok(rows) = self.context.find_location_range(0, u64::MAX) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (start, size, place) in rows {
            let (Some(file), Some(line)) = (place.file, place.line) else {
                continue;
            };
            let range = start..start.saturating_add(size);
            found.extend(
                wanted(file, line)
                    .into_iter()
                    .map(|number| (range.clone(), number)),
            );
        }
        found
    }

    /// The demangled name of a function or variable.
    pub(crate) fn full_name(&self, entry: Entry<'_>) -> Option<String> {
        if let Some(known) = self.names.borrow().get(&entry.identity()) {
            return known.clone();
        }
        let linkage = self
            .attribute(entry, gimli::DW_AT_linkage_name)
            .or_else(|| self.attribute(entry, gimli::DW_AT_MIPS_linkage_name));
        let name = match linkage.and_then(|(owner, value)| text(owner.unit, value)) {
            Some(linkage) => Some(demangle(&linkage)),
            None => self.name_of(entry),
        };
        let mut names = self.names.borrow_mut();
        if names.len() >= CACHED_NAMES {
            names.clear();
        }
        names.insert(entry.identity(), name.clone());
        name
    }

    /// The function entries (subprogram or inlined subroutine) at an address,
    /// innermost first.
    pub(crate) fn function_entries(&self, address: u64) -> Option<(Entry<'_>, Vec<UnitOffset>)> {
        let chain = self.functions_at(address)?;
        let offsets = chain
            .functions
            .iter()
            .map(|found| found.entry.offset)
            .collect();
        Some((chain.functions.first()?.entry, offsets))
    }

    /// Keeps what readers borrow from for as long as the readers.
    pub(crate) fn keep(&self, bytes: Vec<Arc<Bytes>>) {
        self.bytes.borrow_mut().extend(bytes);
    }

    /// The line on which the innermost function at an address is declared;
    /// that of its first instruction where the compiler (Go before 1.21) does
    /// not say.
    pub(crate) fn function_line(&self, address: u64) -> Option<u32> {
        let (entry, _) = self.function_entries(address)?;
        self.line_of_function(entry)
    }

    pub(crate) fn line_of_function(&self, entry: Entry<'_>) -> Option<u32> {
        if let Some((_, value)) = self.attribute(entry, gimli::DW_AT_decl_line) {
            return value.udata_value()?.try_into().ok();
        }
        let die = entry.unit.entry(entry.offset).ok()?;
        if die.tag() != gimli::DW_TAG_subprogram {
            return None;
        }
        let start = entry
            .unit
            .attr_address(die.attr_value(gimli::DW_AT_low_pc)?)
            .ok()??;
        self.context.find_location(start).ok()??.line
    }

    /// An attribute of an entry or of what it is an instance or a completion
    /// of, with the entry it was found on.
    pub(crate) fn attribute<'a>(
        &'a self,
        entry: Entry<'a>,
        name: gimli::DwAt,
    ) -> Option<(Entry<'a>, AttributeValue<Slice>)> {
        let mut entry = entry;
        for _ in 0..LONGEST_CHAIN {
            let die = entry.unit.entry(entry.offset).ok()?;
            if let Some(value) = die.attr_value(name) {
                return Some((entry, value));
            }
            let link = die
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| die.attr_value(gimli::DW_AT_specification))?;
            entry = self.follow(entry, link)?;
        }
        None
    }

    /// The entry that a reference attribute of `from` points at.
    pub(crate) fn follow<'a>(
        &'a self,
        from: Entry<'a>,
        reference: AttributeValue<Slice>,
    ) -> Option<Entry<'a>> {
        match reference {
            AttributeValue::UnitRef(offset) => Some(Entry { offset, ..from }),
            AttributeValue::DebugInfoRef(offset) if from.supplementary => {
                self.supplementary_entry(offset)
            }
            AttributeValue::DebugInfoRef(offset) => {
                let (unit, offset) = self.units.find(&self.dwarf, offset)?;
                Some(Entry {
                    unit: unit.unit_ref(&self.dwarf),
                    offset,
                    supplementary: false,
                })
            }
            AttributeValue::DebugInfoRefSup(offset) => self.supplementary_entry(offset),
            _ => None,
        }
    }

    fn supplementary_entry(&self, offset: DebugInfoOffset) -> Option<Entry<'_>> {
        let dwarf = self.dwarf.sup()?;
        let (unit, offset) = self.supplementary_units.find(dwarf, offset)?;
        Some(Entry {
            unit: unit.unit_ref(dwarf),
            offset,
            supplementary: true,
        })
    }
}

pub(crate) fn load_sections(
    elf: &Elf,
    name: impl Fn(SectionId) -> &'static str,
    keep: &mut Vec<Arc<Bytes>>,
) -> Dwarf<Slice> {
    let empty = EndianSlice::new(&[], LittleEndian);
    let loaded = Dwarf::load(|id| {
        let Some((_, bytes, range)) = elf.section(name(id)) else {
            return Ok::<_, std::convert::Infallible>(empty);
        };
        // SAFETY: the bytes go into `keep`, which the owner of the readers
        // holds and drops after them.
        let slice = unsafe { bytes.pinned() };
        keep.push(bytes);
        Ok(EndianSlice::new(
            slice.get(range).unwrap_or(&[]),
            LittleEndian,
        ))
    });
    match loaded {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

/// A debugging information entry, by where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) unit: UnitRef<'a, Slice>,
    pub(crate) offset: UnitOffset,
    pub(crate) supplementary: bool,
}

impl Entry<'_> {
    /// The same in every lookup: which unit (they do not move once parsed)
    /// and which byte of it.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.unit.unit) as usize, self.offset.0)
    }
}

/// The compilation units of one `.debug_info`, parsed when first needed.
#[derive(Default)]
pub(crate) struct Units {
    headers: Vec<UnitHeader<Slice>>,
    parsed: Vec<OnceCell<Option<Unit<Slice>>>>,
}

impl Units {
    fn of(dwarf: &Dwarf<Slice>) -> Units {
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        let parsed = headers.iter().map(|_| OnceCell::new()).collect();
        Units { headers, parsed }
    }

    pub(crate) fn len(&self) -> usize {
        self.headers.len()
    }

    pub(crate) fn unit(&self, dwarf: &Dwarf<Slice>, index: usize) -> Option<&Unit<Slice>> {
        let header = self.headers.get(index)?;
        self.parsed
            .get(index)?
            .get_or_init(|| dwarf.unit(*header).ok())
            .as_ref()
    }

    fn find(
        &self,
        dwarf: &Dwarf<Slice>,
        offset: DebugInfoOffset,
    ) -> Option<(&Unit<Slice>, UnitOffset)> {
        let behind = self
            .headers
            .partition_point(|header| header.offset().0 <= offset.0);
        let unit = self.unit(dwarf, behind.checked_sub(1)?)?;
        Some((unit, offset.to_unit_offset(&unit.header)?))
    }
}

/// A string attribute, as text.
pub(crate) fn text(unit: UnitRef<'_, Slice>, value: AttributeValue<Slice>) -> Option<String> {
    let string = unit.attr_string(value).ok()?;
    Some(string.to_string_lossy().into_owned())
}
