//! The debug info of one module: which functions, inlined ones included, an
//! instruction was written in, and on which line.
//!
//! Everything is lazy: opening reads the unit headers, a lookup parses the
//! functions and lines of its own compilation unit only (that is what
//! `addr2line` does and why it is used here).

use crate::bytes::Bytes;
use crate::demangle::demangle;
use crate::elf::Elf;
use crate::variables::Global;
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{
    AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, SectionId, Unit, UnitHeader,
    UnitOffset, UnitRef,
};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub(crate) type Slice = EndianSlice<'static, LittleEndian>;

/// How many `DW_AT_abstract_origin` and `DW_AT_specification` links are
/// followed before a chain is taken for a cycle.
pub(crate) const LONGEST_CHAIN: usize = 16;

/// A function at an instruction, innermost first in a list of them.
pub(crate) struct SourceFrame {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

pub(crate) struct DebugInfo {
    context: Context<Slice>,
    pub(crate) dwarf: Arc<Dwarf<Slice>>,
    pub(crate) units: Units,
    supplementary_units: Units,
    /// Variables with a fixed address, in order of address.
    pub(crate) globals: OnceCell<Vec<Global>>,
    /// Which classes named like atomics are atomics.
    pub(crate) atomic_classes: RefCell<HashMap<(bool, usize), bool>>,
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
        let supplementary_units = dwarf.sup().map(Units::of).unwrap_or_default();
        Some(DebugInfo {
            context,
            dwarf,
            units,
            supplementary_units,
            globals: OnceCell::new(),
            atomic_classes: RefCell::default(),
            bytes: RefCell::new(bytes),
        })
    }

    /// The functions whose code the instruction at link-time `address` is,
    /// innermost first; empty where there is no debug info for it.
    pub(crate) fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let mut frames = Vec::new();
        let Ok(mut found) = self.finish(self.context.find_frames(address)) else {
            return frames;
        };
        while let Ok(Some(frame)) = found.next() {
            let location = frame.location.as_ref();
            frames.push(SourceFrame {
                function: frame
                    .function
                    .and_then(|name| name.raw_name().ok().map(|name| demangle(&name))),
                file: location.and_then(|place| place.file.map(str::to_string)),
                line: location.and_then(|place| place.line),
            });
        }
        frames
    }

    /// The unit and the function entries (subprogram or inlined subroutine)
    /// at an address, innermost first.
    pub(crate) fn function_entries(&self, address: u64) -> Option<(Entry<'_>, Vec<UnitOffset>)> {
        let unit = self.finish(self.context.find_dwarf_and_unit(address))?;
        let mut found = self.finish(self.context.find_frames(address)).ok()?;
        let mut offsets = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            offsets.extend(frame.dw_die_offset);
        }
        let first = *offsets.first()?;
        Some((
            Entry {
                unit,
                offset: first,
                supplementary: false,
            },
            offsets,
        ))
    }

    /// The line on which the innermost function at an address is declared;
    /// that of its first instruction where the compiler (Go before 1.21) does
    /// not say.
    pub(crate) fn function_line(&self, address: u64) -> Option<u32> {
        let (entry, _) = self.function_entries(address)?;
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

    /// Completes a lookup, fetching split DWARF files where it asks for them.
    fn finish<L>(&self, mut lookup: LookupResult<L>) -> L::Output
    where
        L: LookupContinuation<Buf = Slice>,
    {
        loop {
            match lookup {
                LookupResult::Output(output) => return output,
                LookupResult::Load { load, continuation } => {
                    lookup = continuation.resume(self.load_split(&load));
                }
            }
        }
    }

    /// The `.dwo` file that a skeleton unit names.
    fn load_split(&self, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let path = load.path?;
        let mut file = std::path::PathBuf::new();
        if let Some(folder) = load.comp_dir {
            file.push(OsStr::from_bytes(folder.slice()));
        }
        file.push(Path::new(OsStr::from_bytes(path.slice())));
        let elf = Elf::open(&file)?;
        let mut bytes = self.bytes.borrow_mut();
        let mut dwarf = load_sections(
            &elf,
            |id| id.dwo_name().unwrap_or("no such section"),
            &mut bytes,
        );
        dwarf.make_dwo(&load.parent);
        Some(Arc::new(dwarf))
    }
}

fn load_sections(
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
    /// The same in every lookup: which file, which byte of `.debug_info`.
    pub(crate) fn identity(&self) -> (bool, usize) {
        let unit = self.unit.header.debug_info_offset();
        let unit = unit.map_or(0, |offset| offset.0);
        (self.supplementary, unit.wrapping_add(self.offset.0))
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
