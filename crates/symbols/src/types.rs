//! From bytes of a variable to the field or element they belong to, and
//! whether that is volatile or atomic.
//!
//! Several bytes belong to the smallest part that has them all: what copies a
//! structure is about the structure, not about its first field. Bit-fields share
//! bytes, so these are named by all that are in them.

use crate::debug::{DebugInfo, Entry, text};
use gimli::{AttributeValue, DwTag};

/// Nesting of types before it is taken for a cycle.
const DEEPEST: usize = 64;

/// Where in a value a byte lies.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// `.total`, `[3].next`, `.{on,ready}` for bit-fields that share the bytes,
    /// `+4` for padding; empty for a scalar.
    pub(crate) path: String,
    /// Name of the part's type, where it has one.
    pub(crate) type_name: Option<String>,
    /// Offset of the part's first byte in the value, and its size.
    pub(crate) offset: u64,
    pub(crate) size: Option<u64>,
    pub(crate) volatile: bool,
    pub(crate) atomic: bool,
}

impl DebugInfo {
    /// The type of a variable, member or parameter.
    pub(crate) fn type_of<'a>(&'a self, entry: Entry<'a>) -> Option<Entry<'a>> {
        let (owner, reference) = self.attribute(entry, gimli::DW_AT_type)?;
        self.follow(owner, reference)
    }

    pub(crate) fn name_of(&self, entry: Entry<'_>) -> Option<String> {
        let (owner, value) = self.attribute(entry, gimli::DW_AT_name)?;
        text(owner.unit, value)
    }

    /// Bytes that a value of the type takes.
    pub(crate) fn size_of(&self, entry: Entry<'_>) -> Option<u64> {
        let mut entry = entry;
        let mut count = 1u64;
        for _ in 0..DEEPEST {
            let die = entry.unit.entry(entry.offset).ok()?;
            let size = die
                .attr_value(gimli::DW_AT_byte_size)
                .and_then(|value| value.udata_value());
            match (die.tag(), size) {
                (_, Some(size)) => return size.checked_mul(count),
                (gimli::DW_TAG_array_type, None) => {
                    for length in self.dimensions(entry) {
                        count = count.checked_mul(length?)?;
                    }
                }
                (
                    gimli::DW_TAG_pointer_type
                    | gimli::DW_TAG_reference_type
                    | gimli::DW_TAG_rvalue_reference_type,
                    None,
                ) => return count.checked_mul(8),
                _ => {}
            }
            entry = self.follow(entry, die.attr_value(gimli::DW_AT_type)?)?;
        }
        None
    }

    /// Lengths of an array, outermost first; none for `[]`.
    pub(crate) fn dimensions(&self, array: Entry<'_>) -> Vec<Option<u64>> {
        let mut lengths = Vec::new();
        for child in children(array) {
            let Ok(die) = child.unit.entry(child.offset) else {
                break;
            };
            if die.tag() == gimli::DW_TAG_subrange_type {
                let number = |name| die.attr_value(name).and_then(|value| value.udata_value());
                let length = number(gimli::DW_AT_count).or_else(|| {
                    // gcc writes `[]` as an upper bound of -1.
                    number(gimli::DW_AT_upper_bound)?.checked_add(1)
                });
                lengths.push(length);
            }
        }
        lengths
    }

    /// The part of a value of type `entry` that `size` bytes at `offset` belong
    /// to.
    pub(crate) fn part(&self, entry: Entry<'_>, offset: u64, size: u64) -> Part {
        let mut part = Part::default();
        let mut entry = entry;
        let mut rest = offset;
        let mut size = size.max(1);
        for _ in 0..DEEPEST {
            let Ok(die) = entry.unit.entry(entry.offset) else {
                break;
            };
            let own_name = die
                .attr_value(gimli::DW_AT_name)
                .and_then(|value| text(entry.unit, value));
            let next = match die.tag() {
                gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_union_type => {
                    part.type_name = own_name.clone().or(part.type_name);
                    part.size = self.size_of(entry);
                    if own_name.is_some_and(|name| self.is_atomic_class(entry, &name)) {
                        part.atomic = true;
                        break;
                    }
                    let member = match self.members_over(entry, rest, size) {
                        Members::One(member) => member,
                        Members::Bits(names) => {
                            part.path.push_str(&format!(".{{{}}}", names.join(",")));
                            break;
                        }
                        Members::Several => break,
                        Members::None => {
                            if rest > 0 {
                                part.path.push_str(&format!("+{rest}"));
                            }
                            break;
                        }
                    };
                    if let Some(name) = &member.name {
                        part.path.push('.');
                        part.path.push_str(name);
                    }
                    part.type_name = None;
                    // Bytes before it are padding, or of a base without fields.
                    let before = member.offset.saturating_sub(rest);
                    size = size.saturating_sub(before).max(1);
                    rest = rest.saturating_sub(member.offset);
                    part.offset += member.offset;
                    Some(member.type_entry)
                }
                gimli::DW_TAG_array_type => {
                    let element = self.type_of(entry);
                    let element_size = element.and_then(|element| self.size_of(element));
                    let (Some(element), Some(element_size @ 1..)) = (element, element_size) else {
                        break;
                    };
                    let mut index = rest / element_size;
                    if (rest % element_size).saturating_add(size) > element_size {
                        part.size = self.size_of(entry);
                        break;
                    }
                    rest %= element_size;
                    part.offset += index * element_size;
                    part.path.push_str(&self.indices(entry, &mut index));
                    Some(element)
                }
                tag => {
                    part.volatile |= tag == gimli::DW_TAG_volatile_type;
                    part.atomic |= tag == gimli::DW_TAG_atomic_type;
                    part.type_name = part.type_name.or(own_name);
                    if !is_alias(tag) {
                        part.size = self.size_of(entry);
                        None
                    } else {
                        self.type_of(entry)
                    }
                }
            };
            let Some(next) = next else {
                break;
            };
            entry = next;
        }
        part
    }

    /// `[2][1]`, from the number of an element in memory order.
    fn indices(&self, array: Entry<'_>, number: &mut u64) -> String {
        let lengths = self.dimensions(array);
        let mut indices = Vec::new();
        for length in lengths.iter().skip(1).rev() {
            match length {
                Some(length @ 1..) => {
                    indices.push(*number % length);
                    *number /= length;
                }
                _ => return format!("[{number}]"),
            }
        }
        indices.push(*number);
        indices
            .iter()
            .rev()
            .map(|index| format!("[{index}]"))
            .collect()
    }

    /// The members that `size` bytes at `offset` are of.
    fn members_over<'a>(&'a self, class: Entry<'a>, offset: u64, size: u64) -> Members<'a> {
        let end = offset.saturating_add(size);
        let mut flexible = None;
        let mut found: Vec<Member<'a>> = Vec::new();
        for child in children(class) {
            let Some(member) = self.member(child) else {
                continue;
            };
            match member
                .bit_field_size
                .or_else(|| self.size_of(member.type_entry))
            {
                Some(size @ 1..)
                    if member.offset < end && offset < member.offset.saturating_add(size) =>
                {
                    // The members of a union lie on one another, and on an empty
                    // base: the first with a name that has all the bytes speaks
                    // for them.
                    let has_all = member.offset <= offset && end - member.offset <= size;
                    let on_another = found.iter().any(|other| other.offset == member.offset);
                    if on_another && member.bit_field_size.is_none() {
                        let speaks = |other: &Member<'_>| other.has_all && other.name.is_some();
                        if has_all && !found.iter().any(speaks) {
                            found = vec![Member { has_all, ..member }];
                        }
                        continue;
                    }
                    found.push(Member { has_all, ..member });
                }
                // `[]` at the end of a structure.
                None | Some(0) if member.offset <= offset && member.is_array => {
                    flexible = Some(member);
                }
                _ => {}
            }
        }
        if found.len() > 1 && found.iter().all(|member| member.bit_field_size.is_some()) {
            return Members::Bits(found.into_iter().filter_map(|member| member.name).collect());
        }
        match (found.len(), flexible) {
            (0, Some(member)) => Members::One(member),
            (0, None) => Members::None,
            (1, _) => found.pop().map_or(Members::None, Members::One),
            _ => Members::Several,
        }
    }

    pub(crate) fn member<'a>(&'a self, child: Entry<'a>) -> Option<Member<'a>> {
        let die = child.unit.entry(child.offset).ok()?;
        let is_base = die.tag() == gimli::DW_TAG_inheritance;
        if !is_base && die.tag() != gimli::DW_TAG_member
            || die.attr(gimli::DW_AT_external).is_some()
            || die.attr(gimli::DW_AT_declaration).is_some()
        {
            return None;
        }
        let number = |name| die.attr_value(name).and_then(|value| value.udata_value());
        let mut offset = match die.attr_value(gimli::DW_AT_data_member_location) {
            // A virtual base is not at a fixed place.
            Some(AttributeValue::Exprloc(_)) => return None,
            Some(value) => value.udata_value()?,
            None => 0,
        };
        let mut bit_field_size = None;
        if let Some(bits) = number(gimli::DW_AT_bit_size) {
            // Before DWARF 5 counted from the most significant bit of the
            // storage unit.
            let first = match number(gimli::DW_AT_bit_offset) {
                Some(from_top) => number(gimli::DW_AT_byte_size)
                    .or_else(|| self.size_of(self.type_of(child)?))?
                    .checked_mul(8)?
                    .checked_sub(from_top.checked_add(bits)?)?,
                None => number(gimli::DW_AT_data_bit_offset).unwrap_or(0),
            };
            offset = offset.checked_add(first / 8)?;
            bit_field_size = Some((first % 8).checked_add(bits)?.div_ceil(8));
        }
        let type_entry = self.type_of(child)?;
        let is_array = type_entry
            .unit
            .entry(type_entry.offset)
            .is_ok_and(|die| die.tag() == gimli::DW_TAG_array_type);
        let name = die
            .attr_value(gimli::DW_AT_name)
            .filter(|_| !is_base)
            .and_then(|value| text(child.unit, value));
        // Rust's tuple fields are `__0` in debug info, `.0` in the source.
        let name = name.map(|name| match name.strip_prefix("__") {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.to_string(),
            _ => name,
        });
        Some(Member {
            name,
            offset,
            type_entry,
            is_array,
            bit_field_size,
            has_all: false,
        })
    }

    /// `std::atomic<…>` and its bases, `core::sync::atomic::Atomic…`.
    fn is_atomic_class(&self, entry: Entry<'_>, name: &str) -> bool {
        let cpp = ["atomic<", "__atomic_base<", "atomic_ref<"]
            .iter()
            .any(|start| name.starts_with(start))
            || name == "atomic_flag"
            || name == "__atomic_flag_base";
        let rust = name.starts_with("Atomic");
        if !cpp && !rust {
            return false;
        }
        let mut known = self.atomic_classes.borrow_mut();
        *known.entry(entry.identity()).or_insert_with(|| {
            let scopes = scopes_of(entry);
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            if cpp {
                scopes.first() == Some(&"std")
            } else {
                matches!(scopes[..], ["core", "sync", "atomic", ..])
            }
        })
    }
}

pub(crate) struct Member<'a> {
    /// None for base classes and anonymous members.
    pub(crate) name: Option<String>,
    pub(crate) offset: u64,
    pub(crate) type_entry: Entry<'a>,
    is_array: bool,
    /// Bytes that a bit field lies in.
    pub(crate) bit_field_size: Option<u64>,
    /// All the bytes that were asked about are its.
    has_all: bool,
}

/// What members some bytes of a class are of.
enum Members<'a> {
    /// Padding.
    None,
    One(Member<'a>),
    /// Bit-fields that share the bytes, by name.
    Bits(Vec<String>),
    Several,
}

pub(crate) fn is_alias(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_atomic_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_template_alias
    )
}

/// The entries directly below one.
pub(crate) fn children(entry: Entry<'_>) -> Vec<Entry<'_>> {
    let mut found = Vec::new();
    let Ok(mut tree) = entry.unit.entries_tree(Some(entry.offset)) else {
        return found;
    };
    let Ok(root) = tree.root() else {
        return found;
    };
    let mut below = root.children();
    while let Ok(Some(child)) = below.next() {
        found.push(Entry {
            offset: child.entry().offset(),
            ..entry
        });
    }
    found
}

/// Names of the namespaces (modules) around an entry, outermost first. Debug
/// info has no way up, so the unit is walked from its beginning.
fn scopes_of(entry: Entry<'_>) -> Vec<String> {
    let mut scopes: Vec<(isize, String)> = Vec::new();
    let mut cursor = entry.unit.entries();
    while let Ok(Some(die)) = cursor.next_dfs() {
        let depth = die.depth();
        while scopes.last().is_some_and(|(outer, _)| *outer >= depth) {
            scopes.pop();
        }
        if die.offset() == entry.offset {
            return scopes.into_iter().map(|(_, name)| name).collect();
        }
        if die.tag() == gimli::DW_TAG_namespace {
            let name = die
                .attr_value(gimli::DW_AT_name)
                .and_then(|value| text(entry.unit, value));
            scopes.push((depth, name.unwrap_or_default()));
        }
    }
    Vec::new()
}
