//! Which functions an instruction was written in: the function out of line
//! and the calls inlined into it.
//!
//! A unit's functions are listed by one pass over it when an address of it is
//! first asked for, the inlined calls of a function by one pass over the
//! function. Nothing here recurses over the nesting that a file claims to
//! have, so that no file can exhaust the stack.

use crate::bytes::Bytes;
use crate::debug::{DebugInfo, Entry, Slice, load_sections, text};
use crate::elf::Elf;
use gimli::{AttributeValue, Dwarf, Range, Unit, UnitOffset, UnitRef};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Inlined calls at one instruction; more are cut off.
const LONGEST_INLINING: usize = 256;

/// A function at an instruction: the call of the next inner one, if that is
/// inlined, is at `call_file` and `call_line`.
pub(crate) struct FunctionAt<'a> {
    pub(crate) entry: Entry<'a>,
    /// Where this inlined function is called; none for one out of line.
    pub(crate) call_file: Option<u64>,
    pub(crate) call_line: Option<u32>,
    pub(crate) call_column: Option<u32>,
}

/// The functions at an instruction, innermost first.
pub(crate) struct Chain<'a> {
    pub(crate) functions: Vec<FunctionAt<'a>>,
    /// The unit that has the file names.
    pub(crate) unit: UnitRef<'a, Slice>,
}

/// Which units have code where.
#[derive(Default)]
pub(crate) struct UnitRanges {
    /// In order of begin; the second number is the largest end so far.
    ranges: Vec<(Range, u64, usize)>,
    /// Units that do not say.
    unknown: Vec<usize>,
}

/// What has been found out about one unit.
#[derive(Default)]
pub(crate) struct UnitFunctions {
    split: OnceCell<Option<Split>>,
    /// Functions with code, in order of address.
    functions: OnceCell<Vec<(Range, UnitOffset)>>,
    inlined: RefCell<HashMap<usize, Arc<Vec<Inlined>>>>,
}

/// A unit in a file of its own (`-gsplit-dwarf`).
struct Split {
    unit: Unit<Slice>,
    dwarf: Arc<Dwarf<Slice>>,
}

/// An inlined call within a function.
struct Inlined {
    /// Inlined calls around it.
    level: usize,
    offset: UnitOffset,
    ranges: Vec<Range>,
    call_file: Option<u64>,
    call_line: Option<u32>,
    call_column: Option<u32>,
}

impl DebugInfo {
    /// The functions at a link-time address; none where debug info knows of
    /// no function.
    pub(crate) fn functions_at(&self, address: u64) -> Option<Chain<'_>> {
        let ranges = self.unit_ranges.get_or_init(|| UnitRanges::collect(self));
        let behind = ranges
            .ranges
            .partition_point(|(range, _, _)| range.begin <= address);
        let known = ranges.ranges[..behind]
            .iter()
            .rev()
            .take_while(|(_, largest_end, _)| address < *largest_end)
            .filter(|(range, _, _)| address < range.end)
            .map(|(_, _, unit)| *unit);
        known
            .chain(ranges.unknown.iter().copied())
            .find_map(|unit| self.functions_of_unit_at(unit, address))
    }

    pub(crate) fn functions_of_unit_at(&self, index: usize, address: u64) -> Option<Chain<'_>> {
        let skeleton = self.units.unit(&self.dwarf, index)?;
        let known = self.unit_functions.get(index)?;
        let split = known
            .split
            .get_or_init(|| self.load_split(skeleton))
            .as_ref();
        let unit = match split {
            Some(split) => split.unit.unit_ref(&split.dwarf),
            None => skeleton.unit_ref(&self.dwarf),
        };
        let functions = known.functions.get_or_init(|| list_functions(unit));
        let behind = functions.partition_point(|(range, _)| range.begin <= address);
        let (_, function) = functions[..behind]
            .iter()
            .rev()
            .take(8)
            .find(|(range, _)| address < range.end)?;
        let inlined = Arc::clone(
            known
                .inlined
                .borrow_mut()
                .entry(function.0)
                .or_insert_with(|| Arc::new(list_inlined(unit, *function))),
        );
        let at = |offset, call: Option<&Inlined>| FunctionAt {
            entry: Entry {
                unit,
                offset,
                supplementary: false,
            },
            call_file: call.and_then(|call| call.call_file),
            call_line: call.and_then(|call| call.call_line),
            call_column: call.and_then(|call| call.call_column),
        };
        let mut chain = vec![at(*function, None)];
        for call in inlined.iter() {
            let found = chain.len() - 1;
            if call.level < found || found == LONGEST_INLINING {
                break;
            }
            if call.level == found && contains(&call.ranges, address) {
                chain.push(at(call.offset, Some(call)));
            }
        }
        chain.reverse();
        Some(Chain {
            functions: chain,
            unit: skeleton.unit_ref(&self.dwarf),
        })
    }

    /// The file that a skeleton unit names.
    fn load_split(&self, skeleton: &Unit<Slice>) -> Option<Split> {
        skeleton.dwo_id?;
        let name = skeleton.dwo_name().ok()??;
        let name = self.dwarf.attr_string(skeleton, name).ok()?;
        let mut file = PathBuf::new();
        if let Some(folder) = skeleton.comp_dir {
            file.push(OsStr::from_bytes(folder.slice()));
        }
        file.push(OsStr::from_bytes(name.slice()));
        let elf = Elf::open(&file)?;
        let mut bytes: Vec<Arc<Bytes>> = Vec::new();
        let mut dwarf = load_sections(
            &elf,
            |id| id.dwo_name().unwrap_or("no such section"),
            &mut bytes,
        );
        self.keep(bytes);
        dwarf.make_dwo(&self.dwarf);
        let header = dwarf.units().next().ok()??;
        let mut unit = dwarf.unit(header).ok()?;
        // A file of another build would name the wrong functions.
        if unit.dwo_id != skeleton.dwo_id {
            return None;
        }
        unit.copy_relocated_attributes(skeleton);
        Some(Split {
            unit,
            dwarf: Arc::new(dwarf),
        })
    }
}

impl UnitRanges {
    fn collect(debug: &DebugInfo) -> UnitRanges {
        let mut found = UnitRanges::default();
        for index in 0..debug.units.len() {
            let Some(unit) = debug.units.unit(&debug.dwarf, index) else {
                continue;
            };
            let before = found.ranges.len();
            if let Ok(mut ranges) = debug.dwarf.unit_ranges(unit) {
                while let Ok(Some(range)) = ranges.next() {
                    if is_code(&range) {
                        found.ranges.push((range, 0, index));
                    }
                }
            }
            if found.ranges.len() == before {
                found.unknown.push(index);
            }
        }
        found
            .ranges
            .sort_by_key(|(range, _, unit)| (range.begin, range.end, *unit));
        let mut largest_end = 0;
        for (range, largest, _) in &mut found.ranges {
            largest_end = largest_end.max(range.end);
            *largest = largest_end;
        }
        found
    }
}

/// Code of dropped sections is at address 0.
fn is_code(range: &Range) -> bool {
    range.begin != 0 && range.begin < range.end
}

fn contains(ranges: &[Range], address: u64) -> bool {
    ranges
        .iter()
        .any(|range| range.begin <= address && address < range.end)
}

/// The address attributes of an entry while they are read.
#[derive(Default)]
struct CodeAttributes {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<AttributeValue<Slice>>,
}

impl CodeAttributes {
    fn read(&mut self, unit: UnitRef<'_, Slice>, attribute: &gimli::Attribute<Slice>) {
        let value = attribute.value();
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = unit.attr_address(value).ok().flatten(),
            gimli::DW_AT_high_pc => match unit.attr_address(value).ok().flatten() {
                Some(address) => self.high = Some(address),
                None => self.size = value.udata_value(),
            },
            gimli::DW_AT_ranges => self.list = Some(value),
            _ => {}
        }
    }

    fn ranges(self, unit: UnitRef<'_, Slice>) -> Vec<Range> {
        let mut found = Vec::new();
        if let Some(list) = self.list
            && let Ok(Some(mut ranges)) = unit.attr_ranges(list)
        {
            while let Ok(Some(range)) = ranges.next() {
                found.push(range);
            }
        } else if let Some(begin) = self.low {
            let end = self
                .high
                .or_else(|| begin.checked_add(self.size?))
                .unwrap_or(begin);
            found.push(Range { begin, end });
        }
        found.retain(is_code);
        found
    }
}

/// Every function of a unit that has code. A malformed entry ends the list.
fn list_functions(unit: UnitRef<'_, Slice>) -> Vec<(Range, UnitOffset)> {
    let mut functions = Vec::new();
    let _ = (|| -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut code = CodeAttributes::default();
            for specification in abbreviation.attributes() {
                code.read(unit, &entries.read_attribute(*specification)?);
            }
            let ranges = code.ranges(unit);
            functions.extend(ranges.into_iter().map(|range| (range, offset)));
        }
        Ok(())
    })();
    functions.sort_by_key(|(range, offset)| (range.begin, range.end, offset.0));
    functions
}

/// The inlined calls of a function with code, outer before inner.
fn list_inlined(unit: UnitRef<'_, Slice>, function: UnitOffset) -> Vec<Inlined> {
    let mut calls = Vec::new();
    let _ = (|| -> gimli::Result<()> {
        let mut entries = unit.entries_raw(Some(function))?;
        let outside = entries.next_depth();
        // Depths of the inlined calls around the current entry.
        let mut around: Vec<isize> = Vec::new();
        let mut first = true;
        while !entries.is_empty() && (first || entries.next_depth() > outside) {
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while around.last().is_some_and(|outer| *outer >= depth) {
                around.pop();
            }
            let tag = abbreviation.tag();
            if tag != gimli::DW_TAG_inlined_subroutine {
                entries.skip_attributes(abbreviation.attributes())?;
                // A function inside of this one is another function.
                if tag == gimli::DW_TAG_subprogram && !first {
                    while !entries.is_empty() && entries.next_depth() > depth {
                        if let Some(inner) = entries.read_abbreviation()? {
                            entries.skip_attributes(inner.attributes())?;
                        }
                    }
                }
                first = false;
                continue;
            }
            first = false;
            let mut code = CodeAttributes::default();
            let (mut call_file, mut call_line, mut call_column) = (None, None, None);
            let number = |attribute: &gimli::Attribute<Slice>| {
                attribute
                    .udata_value()
                    .and_then(|number| number.try_into().ok())
            };
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification)?;
                match attribute.name() {
                    gimli::DW_AT_call_file => {
                        call_file = match attribute.value() {
                            AttributeValue::FileIndex(index) => Some(index),
                            value => value.udata_value(),
                        }
                    }
                    gimli::DW_AT_call_line => call_line = number(&attribute),
                    gimli::DW_AT_call_column => call_column = number(&attribute),
                    _ => code.read(unit, &attribute),
                }
            }
            calls.push(Inlined {
                level: around.len(),
                offset,
                ranges: code.ranges(unit),
                call_file,
                call_line,
                call_column,
            });
            around.push(depth);
        }
        Ok(())
    })();
    calls
}

/// The path of a file of a unit's line table.
pub(crate) fn file_name(unit: UnitRef<'_, Slice>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let mut path = PathBuf::new();
    if let Some(folder) = unit.comp_dir {
        path.push(OsStr::from_bytes(folder.slice()));
    }
    // Folder 0 is the one of the compilation itself.
    if file.directory_index() != 0
        && let Some(folder) = file.directory(header)
    {
        path.push(text(unit, folder)?);
    }
    path.push(text(unit, file.path_name())?);
    Some(path.to_string_lossy().into_owned())
}
