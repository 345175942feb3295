//! From names to addresses: where `table.rows[3].count` is and what is stored
//! there.
//!
//! The way goes through the debug info: a global or static variable by its
//! name, then fields, elements and what pointers point at. What depends on
//! memory (an index, a pointer) is left as a step for whoever has the memory.

use crate::debug::{DebugInfo, Entry};
use crate::module::Module;
use crate::types::{Member, children, is_alias};

/// Nesting of types before it is taken for a cycle.
const DEEPEST: usize = 64;

/// One step of a path, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// `.name`; goes through a pointer by itself.
    Field(String),
    /// `[i]`, of an array or a pointer.
    Element,
    /// `*`
    Target,
}

/// One step of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceStep {
    Offset(u64),
    /// The index is multiplied by this; there are so many, if that is known.
    Element {
        size: u64,
        length: Option<u64>,
    },
    /// The address is read from memory.
    Load,
}

/// What is stored at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Integer { size: u64, signed: bool },
    Pointer,
    Array { length: Option<u64> },
    Float,
    Other,
}

/// Where something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPlace {
    /// Link-time address of the variable.
    pub start: u64,
    pub steps: Vec<PlaceStep>,
    pub shape: Shape,
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    #[error("there is no debug info to find variables in; compile with -g")]
    NoDebugInfo,
    #[error("there is no global or static variable of that name{}", hint(.0))]
    Unknown(Vec<String>),
    #[error("there are {0} variables of that name; write its full name (namespace::name)")]
    Ambiguous(usize),
    #[error("{type_name} has no field `{field}`{}", hint(.known))]
    NoField {
        /// Index of the step in the path.
        step: usize,
        type_name: String,
        field: String,
        known: Vec<String>,
    },
    #[error("it is neither an array nor a pointer")]
    NotIndexed { step: usize },
    #[error("it is not a pointer")]
    NotAPointer { step: usize },
    #[error("a bit field cannot be looked at")]
    BitField { step: usize },
}

impl PlaceError {
    /// The step of the path that goes wrong; none for the variable itself.
    pub fn step(&self) -> Option<usize> {
        match self {
            PlaceError::NoDebugInfo | PlaceError::Unknown(_) | PlaceError::Ambiguous(_) => None,
            PlaceError::NoField { step, .. }
            | PlaceError::NotIndexed { step }
            | PlaceError::NotAPointer { step }
            | PlaceError::BitField { step } => Some(*step),
        }
    }
}

fn hint(known: &[String]) -> String {
    if known.is_empty() {
        return String::new();
    }
    format!(" (there are {})", known.join(", "))
}

/// A type with the leading dimensions of an array used up.
#[derive(Clone, Copy)]
struct At<'a> {
    entry: Entry<'a>,
    used: usize,
}

impl Module {
    /// Where `name` and the path from there lead.
    pub fn place_named(&self, name: &str, path: &[PathStep]) -> Result<NamedPlace, PlaceError> {
        let debug = self.debug().ok_or(PlaceError::NoDebugInfo)?;
        debug.place_named(name, path)
    }
}

impl DebugInfo {
    fn place_named(&self, name: &str, path: &[PathStep]) -> Result<NamedPlace, PlaceError> {
        let globals = self.globals.get_or_init(|| self.collect_globals());
        let mut exact: Vec<(u64, Entry<'_>)> = Vec::new();
        let mut last: Vec<(u64, Entry<'_>)> = Vec::new();
        let mut similar = Vec::new();
        for global in globals.iter().filter(|global| global.piece.is_none()) {
            let Some(unit) = self.units.unit(&self.dwarf, global.unit) else {
                continue;
            };
            let entry = Entry {
                unit: unit.unit_ref(&self.dwarf),
                offset: global.offset,
                supplementary: false,
            };
            let Some(full) = self.full_name(entry) else {
                continue;
            };
            let short = full.rsplit("::").next().unwrap_or(&full);
            if full == name {
                exact.push((global.start, entry));
            } else if short == name {
                last.push((global.start, entry));
            } else if short.eq_ignore_ascii_case(name)
                || (name.len() > 2 && (short.starts_with(name) || name.starts_with(short)))
            {
                similar.push(full);
            }
        }
        let mut found = if exact.is_empty() { last } else { exact };
        found.dedup_by_key(|(start, _)| *start);
        let (start, entry) = match found.as_slice() {
            [] => {
                similar.sort();
                similar.dedup();
                similar.truncate(4);
                return Err(PlaceError::Unknown(similar));
            }
            [only] => *only,
            several => return Err(PlaceError::Ambiguous(several.len())),
        };
        let at = self
            .type_of(entry)
            .ok_or_else(|| PlaceError::Unknown(Vec::new()))?;
        let mut at = At {
            entry: self.bare(at),
            used: 0,
        };
        let mut steps = Vec::new();
        for (index, step) in path.iter().enumerate() {
            at = self.step(at, step, index, &mut steps)?;
        }
        Ok(NamedPlace {
            start,
            steps,
            shape: self.shape(at),
        })
    }

    /// The type behind its other names and qualifiers.
    fn bare<'a>(&'a self, entry: Entry<'a>) -> Entry<'a> {
        let mut entry = entry;
        for _ in 0..DEEPEST {
            let aliased = entry
                .unit
                .entry(entry.offset)
                .is_ok_and(|die| is_alias(die.tag()));
            match aliased.then(|| self.type_of(entry)).flatten() {
                Some(next) => entry = next,
                None => break,
            }
        }
        entry
    }

    fn tag(&self, entry: Entry<'_>) -> Option<gimli::DwTag> {
        entry.unit.entry(entry.offset).ok().map(|die| die.tag())
    }

    fn is_pointer(&self, at: At<'_>) -> bool {
        matches!(
            self.tag(at.entry),
            Some(
                gimli::DW_TAG_pointer_type
                    | gimli::DW_TAG_reference_type
                    | gimli::DW_TAG_rvalue_reference_type
            )
        )
    }

    fn target<'a>(&'a self, at: At<'a>) -> Option<At<'a>> {
        if !self.is_pointer(at) {
            return None;
        }
        let entry = self.bare(self.type_of(at.entry)?);
        Some(At { entry, used: 0 })
    }

    fn step<'a>(
        &'a self,
        at: At<'a>,
        step: &PathStep,
        index: usize,
        steps: &mut Vec<PlaceStep>,
    ) -> Result<At<'a>, PlaceError> {
        match step {
            PathStep::Target => {
                let target = self
                    .target(at)
                    .ok_or(PlaceError::NotAPointer { step: index })?;
                steps.push(PlaceStep::Load);
                Ok(target)
            }
            PathStep::Element => {
                let not_indexed = PlaceError::NotIndexed { step: index };
                if let Some(target) = self.target(at) {
                    let size = self.size_of(target.entry).ok_or(not_indexed)?;
                    steps.push(PlaceStep::Load);
                    steps.push(PlaceStep::Element { size, length: None });
                    return Ok(target);
                }
                if self.tag(at.entry) != Some(gimli::DW_TAG_array_type) {
                    return Err(not_indexed);
                }
                let lengths = self.dimensions(at.entry);
                let element = self.type_of(at.entry).ok_or(not_indexed.clone())?;
                let rest = lengths.get(at.used + 1..).unwrap_or(&[]);
                let mut size = self.size_of(element).ok_or(not_indexed.clone())?;
                for length in rest {
                    size = length
                        .and_then(|length| size.checked_mul(length))
                        .ok_or(not_indexed.clone())?;
                }
                steps.push(PlaceStep::Element {
                    size,
                    length: lengths.get(at.used).copied().flatten(),
                });
                Ok(if rest.is_empty() {
                    At {
                        entry: self.bare(element),
                        used: 0,
                    }
                } else {
                    At {
                        used: at.used + 1,
                        ..at
                    }
                })
            }
            PathStep::Field(name) => {
                let class = match self.target(at) {
                    Some(target) => {
                        steps.push(PlaceStep::Load);
                        target
                    }
                    None => at,
                };
                let mut known = Vec::new();
                let found = self.field(class.entry, name, 0, &mut known);
                let Some((offset, member)) = found else {
                    known.truncate(8);
                    return Err(PlaceError::NoField {
                        step: index,
                        type_name: self
                            .name_of(class.entry)
                            .map_or_else(|| "it".to_string(), |name| format!("`{name}`")),
                        field: name.clone(),
                        known,
                    });
                };
                if member.bit_field_size.is_some() {
                    return Err(PlaceError::BitField { step: index });
                }
                steps.push(PlaceStep::Offset(offset));
                Ok(At {
                    entry: self.bare(member.type_entry),
                    used: 0,
                })
            }
        }
    }

    /// The field of that name, also in bases and anonymous members.
    fn field<'a>(
        &'a self,
        class: Entry<'a>,
        name: &str,
        depth: usize,
        known: &mut Vec<String>,
    ) -> Option<(u64, Member<'a>)> {
        if depth > DEEPEST {
            return None;
        }
        let mut inner = Vec::new();
        for child in children(class) {
            let Some(member) = self.member(child) else {
                continue;
            };
            match &member.name {
                Some(own) if own == name => return Some((member.offset, member)),
                Some(own) => known.push(own.clone()),
                None => inner.push(member),
            }
        }
        inner.into_iter().find_map(|member| {
            let below = self.bare(member.type_entry);
            let (offset, found) = self.field(below, name, depth + 1, known)?;
            Some((member.offset + offset, found))
        })
    }

    fn shape(&self, at: At<'_>) -> Shape {
        let Ok(die) = at.entry.unit.entry(at.entry.offset) else {
            return Shape::Other;
        };
        let size = self.size_of(at.entry);
        let number = |name| die.attr_value(name).and_then(|value| value.udata_value());
        match (die.tag(), size) {
            (gimli::DW_TAG_array_type, _) => Shape::Array {
                length: self.dimensions(at.entry).get(at.used).copied().flatten(),
            },
            (gimli::DW_TAG_enumeration_type, Some(size @ (1 | 2 | 4 | 8))) => {
                let signed = self.type_of(at.entry).is_some_and(|entry| {
                    matches!(
                        self.shape(At {
                            entry: self.bare(entry),
                            used: 0
                        }),
                        Shape::Integer { signed: true, .. }
                    )
                });
                Shape::Integer { size, signed }
            }
            (gimli::DW_TAG_base_type, Some(size)) => {
                let encoding = die.attr_value(gimli::DW_AT_encoding);
                let signed = matches!(
                    encoding,
                    Some(gimli::AttributeValue::Encoding(
                        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char
                    ))
                );
                match encoding {
                    Some(gimli::AttributeValue::Encoding(
                        gimli::DW_ATE_float | gimli::DW_ATE_complex_float,
                    )) => Shape::Float,
                    _ if matches!(size, 1 | 2 | 4 | 8) => Shape::Integer { size, signed },
                    _ => Shape::Other,
                }
            }
            (
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type,
                Some(size @ (1 | 2 | 4 | 8)),
            ) if number(gimli::DW_AT_declaration).is_none() => {
                // A class around one number: `std::atomic<int>`, `AtomicU64`.
                match self.only_member(at.entry) {
                    Some(Shape::Integer {
                        size: inner,
                        signed,
                    }) if inner == size => Shape::Integer { size, signed },
                    Some(Shape::Pointer) if size == 8 => Shape::Pointer,
                    _ => Shape::Other,
                }
            }
            _ if self.is_pointer(at) => Shape::Pointer,
            _ => Shape::Other,
        }
    }

    /// The shape of the one thing that fills a class.
    fn only_member(&self, class: Entry<'_>) -> Option<Shape> {
        let mut entry = class;
        for _ in 0..DEEPEST {
            let size = self.size_of(entry)?;
            let member = children(entry)
                .into_iter()
                .filter_map(|child| self.member(child))
                .find(|member| {
                    member.offset == 0 && self.size_of(member.type_entry) == Some(size)
                })?;
            entry = self.bare(member.type_entry);
            let tag = self.tag(entry)?;
            if !matches!(
                tag,
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
            ) {
                return Some(self.shape(At { entry, used: 0 }));
            }
        }
        None
    }
}
