//! What memory without a name is: by the type of a pointer to it.
//!
//! Heap blocks have no debug info, but the code that works on them has: a
//! variable in scope that points to a `struct node` and lies at or before the
//! bytes in question makes them `node.next`. Only variables whose place is sure
//! are asked: memory, and of callers the registers that a callee keeps. Where
//! none is in scope a global pointer says the same, and with a name of its own:
//! `buffers[3].size`.

use crate::cfi::ReadMemory;
use crate::debug::{DebugInfo, Entry};
use crate::module::Module;
use crate::roles::LONGEST_TYPE;
use crate::types::children;
use crate::unwind::StackFrame;
use crate::variables::{FrameBase, Place};
use gimli::UnitOffset;
use race::without_indices;
use std::ops::Range;

/// Bytes that a pointer leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointed {
    /// `node.next`, with the name of the type: the same for every element.
    pub kind: String,
    /// As one would write it: `node.next`, or by the name of a global pointer,
    /// `nodes[3].next`.
    pub path: String,
    /// Bytes from the pointer.
    distance: u64,
}

/// A variable with a fixed place, or a field of one, that points to something with
/// fields.
pub(crate) struct GlobalPointer {
    start: u64,
    unit: usize,
    /// The entry of the variable or field.
    offset: UnitOffset,
    /// As one would write it: `buffers`, `pool.nodes`.
    name: Option<String>,
}

/// Structures in structures that are searched for pointers, and pointers of one
/// variable that are kept.
const DEEPEST: usize = 6;
const MOST: usize = 64;

/// What the standard libraries call the pointer inside a container: elements are
/// written as the container's own.
const OF_CONTAINERS: [&str; 4] = [
    "._M_impl._M_start",
    ".__begin_",
    "._M_t._M_t._M_head_impl",
    "._M_ptr",
];

impl Module {
    pub(crate) fn pointed_at(
        &self,
        pc: u64,
        frame: &StackFrame,
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        let cfa = self.cfa(pc, &frame.registers, read)?;
        let debug = self.debug()?;
        let base = debug.frame_at(pc, cfa, &frame.registers, read)?;
        let mut best: Option<Pointed> = None;
        debug.visit_locals(base.function, pc, &mut |variable, _| {
            let found = debug.by_pointer(variable, (pc, frame, &base), read, bytes, block);
            // The nearest pointer says most: others lead to what it is in.
            if let Some(found) = found
                && best
                    .as_ref()
                    .is_none_or(|best| found.distance < best.distance)
            {
                best = Some(found);
            }
        });
        best
    }
}

impl Module {
    /// As [`pointed_at`](Self::pointed_at), by a global pointer of this module.
    pub(crate) fn globally_pointed_at(
        &self,
        bias: u64,
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        self.debug()?.by_global_pointer(bias, read, bytes, block)
    }
}

impl DebugInfo {
    fn by_global_pointer(
        &self,
        bias: u64,
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        let pointers = self.pointers.get_or_init(|| self.collect_pointers());
        pointers.iter().find_map(|pointer| {
            let value = read(pointer.start.wrapping_add(bias))?;
            if value != block.start {
                return None;
            }
            let unit = self.units.unit(&self.dwarf, pointer.unit)?;
            let variable = Entry {
                unit: unit.unit_ref(&self.dwarf),
                offset: pointer.offset,
                supplementary: false,
            };
            self.reached(variable, value, bytes, block, pointer.name.clone())
        })
    }

    fn collect_pointers(&self) -> Vec<GlobalPointer> {
        let globals = self.globals.get_or_init(|| self.collect_globals());
        let mut found = Vec::new();
        for global in globals.iter().filter(|global| global.piece.is_none()) {
            let Some(unit) = self.units.unit(&self.dwarf, global.unit) else {
                continue;
            };
            let variable = Entry {
                unit: unit.unit_ref(&self.dwarf),
                offset: global.offset,
                supplementary: false,
            };
            let mut fields = Vec::new();
            let name = self.full_name(variable).unwrap_or_default();
            self.collect_fields(variable, (0, &name), DEEPEST, &mut fields);
            found.extend(
                fields
                    .into_iter()
                    // Types of other units are not numbered alike.
                    .filter(|(entry, ..)| std::ptr::eq(entry.unit.unit, variable.unit.unit))
                    .filter(|(entry, ..)| !entry.supplementary)
                    .map(|(entry, offset, name)| GlobalPointer {
                        start: global.start.wrapping_add(offset),
                        unit: global.unit,
                        offset: entry.offset,
                        name: (!name.is_empty()).then_some(name),
                    }),
            );
        }
        found
    }

    /// The pointers in a variable or field: entry, offset and name of each.
    fn collect_fields<'a>(
        &'a self,
        entry: Entry<'a>,
        (offset, name): (u64, &str),
        depth: usize,
        found: &mut Vec<(Entry<'a>, u64, String)>,
    ) {
        if found.len() >= MOST || depth == 0 {
            return;
        }
        if self.class_behind(entry).is_some() {
            let of_container = OF_CONTAINERS.iter().find_map(|end| name.strip_suffix(end));
            found.push((entry, offset, of_container.unwrap_or(name).to_string()));
            return;
        }
        let class = self
            .type_of(entry)
            .and_then(|entry| self.without_aliases(entry))
            .filter(|class| self.is_class(*class));
        for child in class.map(children).unwrap_or_default() {
            if let Some(member) = self.member(child) {
                let path = match &member.name {
                    Some(field) => format!("{name}.{field}"),
                    None => name.to_string(),
                };
                let at = offset.wrapping_add(member.offset);
                self.collect_fields(child, (at, &path), depth - 1, found);
            }
        }
    }

    /// What a pointer or reference points to, if that has fields.
    fn class_behind<'a>(&'a self, variable: Entry<'a>) -> Option<Entry<'a>> {
        let pointer = self.without_aliases(self.type_of(variable)?)?;
        let is_pointer = matches!(
            pointer.unit.entry(pointer.offset).ok()?.tag(),
            gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type
        );
        let class = self.without_aliases(self.type_of(pointer).filter(|_| is_pointer)?)?;
        self.is_class(class).then_some(class)
    }

    /// What the class that a pointer leads to is called: by the name that the
    /// declaration uses, because in C many classes have no other.
    fn name_behind(&self, variable: Entry<'_>) -> Option<String> {
        let pointer = self.without_aliases(self.type_of(variable)?)?;
        let mut target = self.type_of(pointer)?;
        for _ in 0..LONGEST_TYPE {
            if let Some(name) = self.name_of(target) {
                return Some(name);
            }
            target = self.type_of(target)?;
        }
        None
    }

    fn by_pointer(
        &self,
        variable: Entry<'_>,
        (pc, frame, base): (u64, &StackFrame, &FrameBase<'_>),
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        self.class_behind(variable)?;
        let value = match self.locate(variable, pc, Some(base), &frame.registers, read)? {
            Place::Memory(place) => read(place)?,
            Place::Register(register) if is_known(register, frame) => {
                frame.registers.dwarf(register)?
            }
            _ => return None,
        };
        self.reached(variable, value, bytes, block, None)
    }

    /// What the bytes are to a pointer variable with this value.
    fn reached(
        &self,
        variable: Entry<'_>,
        value: u64,
        (address, bytes): (u64, u64),
        block: &Range<u64>,
        name: Option<String>,
    ) -> Option<Pointed> {
        let class = self.class_behind(variable)?;
        let size = self.size_of(class).filter(|size| *size > 0)?;
        let distance = address.checked_sub(value)?;
        if !block.contains(&value) || !block.contains(&address) {
            return None;
        }
        let class_name = self.name_behind(variable)?;
        let (index, rest) = (distance / size, distance % size);
        let part = self.part(class, rest, bytes.min(size - rest).max(1)).path;
        let is_one = block.end - block.start < 2 * size;
        let path = match name {
            Some(name) if is_one => match part.strip_prefix('.') {
                Some(field) => format!("{name}->{field}"),
                None => format!("*{name}{part}"),
            },
            Some(name) => format!("{name}[{index}]{part}"),
            None => format!("{class_name}{part}"),
        };
        Some(Pointed {
            kind: without_indices(&format!("{class_name}{part}")),
            path,
            distance,
        })
    }
}

/// The register has the value that it had in this frame: rbx, rbp and r12 to r15
/// always do.
fn is_known(register: gimli::Register, frame: &StackFrame) -> bool {
    !frame.is_return_address || matches!(register.0, 3 | 6 | 12..=15)
}
