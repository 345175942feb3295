//! What an address of data is: a global or static variable, a field or
//! element of it, a variable on a stack.

use crate::cfi::{ReadMemory, run};
use crate::debug::{DebugInfo, Entry};
use crate::demangle::demangle;
use crate::module::Module;
use crate::registers::Registers;
use crate::types::{Part, children};
use gimli::{AttributeValue, Expression, Location, UnitOffset, Value};

/// A variable and the part of it that an address is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Demangled name of the whole variable.
    pub name: String,
    /// The part, as one would write it: `stats.total`, `table[3].next`;
    /// `stats+8` where types are not known.
    pub path: String,
    /// Address and size of the whole variable. In the address space for
    /// answers of a `ModuleMap`, link-time for answers of a `Module`.
    pub start: u64,
    pub size: u64,
    /// Address and size of the part, where types are known.
    pub part: Option<(u64, u64)>,
    /// Type of the part.
    pub type_name: Option<String>,
    /// The part, or what it is in, is declared volatile.
    pub volatile: bool,
    /// The part is of an atomic type (`_Atomic`, `std::atomic<…>`,
    /// `core::sync::atomic::Atomic…`).
    pub atomic: bool,
    /// Source line of the declaration.
    pub line: Option<u32>,
    /// The function whose local variable it is.
    pub function: Option<String>,
}

/// A variable with a fixed place.
pub(crate) struct Global {
    pub(crate) start: u64,
    /// An optimiser has given parts of it places of their own: where this part
    /// is in the variable, and its size.
    pub(crate) piece: Option<(u64, u64)>,
    pub(crate) unit: usize,
    pub(crate) offset: UnitOffset,
}

/// Variables that begin before an address and are looked at for one that
/// covers it.
const LOOK_BACK: usize = 8;

/// Nesting of blocks in a function.
const DEEPEST_BLOCK: usize = 128;

impl Module {
    /// The variable at a link-time address, by debug info, else by its
    /// symbol.
    pub fn variable_at(&self, address: u64) -> Option<Variable> {
        self.variable_over(address, 1)
    }

    /// The variable at a link-time address and the part of it that has `size`
    /// bytes there.
    pub fn variable_over(&self, address: u64, size: u64) -> Option<Variable> {
        if let Some(debug) = self.debug()
            && let Some(mut variable) = debug.global_over(address, size)
        {
            // Static locals of C++ are qualified in their symbol only.
            if let Some(symbol) = self.data_at(variable.start)
                && symbol.start == variable.start
                && symbol.name.starts_with("_Z")
            {
                let name = demangle(&symbol.name);
                variable.path.replace_range(..variable.name.len(), &name);
                variable.name = name;
            }
            return Some(variable);
        }
        // The dynamic linker's tables are named by one symbol without a size: a
        // slot there is no variable, only the way to one.
        let is_table = self.is_linked_table(address);
        let symbol = self.data_at(address).filter(|_| !is_table)?;
        let name = demangle(&symbol.name);
        let path = match address - symbol.start {
            0 => name.clone(),
            offset => format!("{name}+{offset}"),
        };
        Some(Variable {
            name,
            path,
            start: symbol.start,
            size: symbol.size,
            part: None,
            type_name: None,
            volatile: false,
            atomic: false,
            line: None,
            function: None,
        })
    }

    /// The dynamic linker's own: addresses of variables and functions.
    pub fn is_linked_table(&self, address: u64) -> bool {
        self.section_at(address)
            .is_some_and(|section| section.name.starts_with(".got") || section.name == ".dynamic")
    }

    /// The local variable at `address` of the function that executes the
    /// instruction at link-time `pc` with these registers.
    pub(crate) fn local_over(
        &self,
        pc: u64,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
        (address, size): (u64, u64),
    ) -> Option<Variable> {
        let cfa = self.cfa(pc, registers, read)?;
        let frame = (pc, cfa, registers);
        self.debug()?.local_over(frame, read, (address, size))
    }

    /// Where the canonical frame address is at link-time `pc`, if a register says
    /// it: which of the general ones, and how far above it.
    pub fn frame_address(&self, pc: u64) -> Option<(usize, i64)> {
        let row = self.cfi()?.row(pc)?;
        let (register, offset) = row.frame_address()?;
        Some((Registers::number_of(register)?, offset))
    }

    /// The local variable whose memory the byte `offset` from the canonical frame
    /// address is, in the code at link-time `pc`; it begins at `start` from there.
    /// Only variables that lie in the frame all the time are found.
    pub fn local_in_frame(&self, pc: u64, offset: i64) -> Option<Variable> {
        // Any frame will do that nothing else is near.
        const FRAME: u64 = 1 << 46;
        let (register, above) = self.frame_address(pc)?;
        let mut registers = Registers::default();
        registers.general[register] = FRAME.wrapping_add_signed(above.checked_neg()?);
        let place = (FRAME.wrapping_add_signed(offset), 1);
        let mut variable = self.local_over(pc, &registers, &mut |_| None, place)?;
        variable.start = variable.start.wrapping_sub(FRAME);
        Some(variable)
    }

    /// The canonical frame address at link-time `pc`.
    pub(crate) fn cfa(
        &self,
        pc: u64,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<u64> {
        let cfi = self.cfi()?;
        let row = cfi.row(pc)?;
        cfi.cfa(&row, registers, read)
    }
}

impl DebugInfo {
    fn global_over(&self, address: u64, bytes: u64) -> Option<Variable> {
        let globals = self.globals.get_or_init(|| self.collect_globals());
        let behind = globals.partition_point(|global| global.start <= address);
        globals[..behind]
            .iter()
            .rev()
            .take(LOOK_BACK)
            .find_map(|global| {
                let unit = self.units.unit(&self.dwarf, global.unit)?;
                let entry = Entry {
                    unit: unit.unit_ref(&self.dwarf),
                    offset: global.offset,
                    supplementary: false,
                };
                let Some((before, size)) = global.piece else {
                    return self.describe(entry, global.start, (address, bytes), None);
                };
                let left = size
                    .checked_sub(address - global.start)
                    .filter(|left| *left > 0)?;
                let start = global.start.wrapping_sub(before);
                self.describe(entry, start, (address, bytes.min(left)), None)
            })
    }

    /// `entry`, a variable that begins at `start`, if it covers `address`.
    fn describe(
        &self,
        entry: Entry<'_>,
        start: u64,
        (address, bytes): (u64, u64),
        function: Option<String>,
    ) -> Option<Variable> {
        let type_entry = self.type_of(entry)?;
        let size = self.size_of(type_entry)?;
        let offset = address.checked_sub(start)?;
        if offset >= size {
            return None;
        }
        let name = self.full_name(entry)?;
        let part: Part = self.part(type_entry, offset, bytes.min(size - offset));
        let line = self
            .attribute(entry, gimli::DW_AT_decl_line)
            .and_then(|(_, value)| value.udata_value()?.try_into().ok());
        Some(Variable {
            path: format!("{name}{}", part.path),
            name,
            start,
            size,
            part: part
                .size
                .map(|size| (start.wrapping_add(part.offset), size)),
            type_name: part.type_name,
            volatile: part.volatile,
            atomic: part.atomic,
            line,
            function,
        })
    }

    /// Every variable with a fixed address, in order of address: one pass
    /// over all entries, made when a variable is first asked for.
    pub(crate) fn collect_globals(&self) -> Vec<Global> {
        let mut globals = Vec::new();
        for index in 0..self.units.len() {
            if let Some(unit) = self.units.unit(&self.dwarf, index) {
                let unit = unit.unit_ref(&self.dwarf);
                // A malformed unit ends itself only.
                let _ = collect_unit(unit, index, &mut globals);
            }
        }
        globals.sort_by_key(|global| (global.start, global.unit, global.offset.0));
        globals
    }

    fn local_over(
        &self,
        (pc, cfa, registers): (u64, u64, &Registers),
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
    ) -> Option<Variable> {
        let frame = self.frame_at(pc, cfa, registers, read)?;
        let mut found = None;
        // Inner scopes come later and win: they hide outer names.
        self.visit_locals(frame.function, pc, &mut |child, function| {
            let place = self.locate(child, pc, Some(&frame), registers, read);
            if let Some(Place::Memory(start)) = place {
                let owner = self.full_name(function);
                let variable = self.describe(child, start, bytes, owner);
                if variable.is_some() {
                    found = variable;
                }
            }
        });
        found
    }

    /// Calls `visit` with every variable and parameter that is in scope at `pc`,
    /// and the function it is one of; inner ones last.
    pub(crate) fn visit_locals<'a>(
        &'a self,
        function: Entry<'a>,
        pc: u64,
        visit: &mut dyn FnMut(Entry<'a>, Entry<'a>),
    ) {
        let mut scopes = vec![(function, function, 0)];
        while let Some((scope, function, depth)) = scopes.pop() {
            for child in children(scope) {
                let Ok(die) = child.unit.entry(child.offset) else {
                    break;
                };
                match die.tag() {
                    gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                        visit(child, function);
                    }
                    gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine
                        if depth < DEEPEST_BLOCK && covers(child, pc) =>
                    {
                        let inlined = die.tag() == gimli::DW_TAG_inlined_subroutine;
                        let function = if inlined { child } else { function };
                        scopes.push((child, function, depth + 1));
                    }
                    _ => {}
                }
            }
        }
    }

    /// The function out of line at `pc` and what its locations are relative
    /// to.
    pub(crate) fn frame_at(
        &self,
        pc: u64,
        cfa: u64,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<FrameBase<'_>> {
        let (innermost, offsets) = self.function_entries(pc)?;
        let function = Entry {
            offset: *offsets.last()?,
            ..innermost
        };
        let die = function.unit.entry(function.offset).ok()?;
        let base = match die.attr_value(gimli::DW_AT_frame_base) {
            Some(AttributeValue::Exprloc(expression)) => {
                match place(function, expression, registers, Some((0, cfa)), read) {
                    Some(Place::Memory(address)) => address,
                    Some(Place::Register(register)) => registers.dwarf(register)?,
                    _ => cfa,
                }
            }
            _ => cfa,
        };
        Some(FrameBase {
            function,
            base,
            cfa,
        })
    }

    /// Where a variable or parameter is at `pc`. Without a frame only
    /// constants are found.
    pub(crate) fn locate(
        &self,
        entry: Entry<'_>,
        pc: u64,
        frame: Option<&FrameBase<'_>>,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<Place> {
        let die = entry.unit.entry(entry.offset).ok()?;
        if let Some(value) = die.attr_value(gimli::DW_AT_const_value) {
            let number = value
                .udata_value()
                .or_else(|| value.sdata_value().map(|number| number as u64))?;
            return Some(Place::Constant(number));
        }
        let bases = frame.map(|frame| (frame.base, frame.cfa));
        match die.attr_value(gimli::DW_AT_location)? {
            AttributeValue::Exprloc(expression) => place(entry, expression, registers, bases, read),
            list => {
                let mut locations = entry.unit.attr_locations(list).ok()??;
                let mut elsewhere = Vec::new();
                while let Ok(Some(location)) = locations.next() {
                    let here = place(entry, location.data, registers, bases, read);
                    if (location.range.begin..location.range.end).contains(&pc) {
                        return here;
                    }
                    elsewhere.push(here);
                }
                // Ranges of an inlined call often end just before or begin
                // just behind the instruction; a parameter that is the same
                // constant wherever it is known is that constant here too.
                match elsewhere.as_slice() {
                    [Some(Place::Constant(first)), rest @ ..]
                        if rest.iter().all(
                            |other| matches!(other, Some(Place::Constant(value)) if value == first),
                        ) =>
                    {
                        Some(Place::Constant(*first))
                    }
                    _ => None,
                }
            }
        }
    }
}

/// A function out of line and what the locations of its variables are
/// relative to.
pub(crate) struct FrameBase<'a> {
    pub(crate) function: Entry<'a>,
    base: u64,
    cfa: u64,
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Memory(u64),
    Register(gimli::Register),
    Constant(u64),
}

fn place(
    entry: Entry<'_>,
    expression: Expression<crate::debug::Slice>,
    registers: &Registers,
    bases: Option<(u64, u64)>,
    read: &mut ReadMemory<'_>,
) -> Option<Place> {
    let mut evaluation = expression.evaluation(entry.unit.encoding());
    run(&mut evaluation, registers, bases, read)?;
    let [piece] = evaluation.as_result() else {
        return None;
    };
    match &piece.location {
        Location::Address { address } => Some(Place::Memory(*address)),
        Location::Register { register } => Some(Place::Register(*register)),
        Location::Value { value } => match value {
            Value::Generic(number) | Value::U64(number) => Some(Place::Constant(*number)),
            Value::I64(number) => Some(Place::Constant(*number as u64)),
            Value::U8(number) => Some(Place::Constant(u64::from(*number))),
            Value::U16(number) => Some(Place::Constant(u64::from(*number))),
            Value::U32(number) => Some(Place::Constant(u64::from(*number))),
            Value::I8(number) => Some(Place::Constant(*number as u64)),
            Value::I16(number) => Some(Place::Constant(*number as u64)),
            Value::I32(number) => Some(Place::Constant(*number as u64)),
            _ => None,
        },
        _ => None,
    }
}

/// A block or inlined call has code at `pc`.
fn covers(entry: Entry<'_>, pc: u64) -> bool {
    let Ok(die) = entry.unit.entry(entry.offset) else {
        return false;
    };
    let Ok(mut ranges) = entry.unit.die_ranges(&die) else {
        return false;
    };
    let mut any = false;
    while let Ok(Some(range)) = ranges.next() {
        any = true;
        if (range.begin..range.end).contains(&pc) {
            return true;
        }
    }
    // A block without ranges only groups declarations.
    !any && die.tag() == gimli::DW_TAG_lexical_block
}

fn collect_unit(
    unit: gimli::UnitRef<'_, crate::debug::Slice>,
    index: usize,
    globals: &mut Vec<Global>,
) -> gimli::Result<()> {
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        if abbreviation.tag() != gimli::DW_TAG_variable {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        for specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(*specification)?;
            if attribute.name() == gimli::DW_AT_location
                && let AttributeValue::Exprloc(expression) = attribute.value()
            {
                for (start, piece) in fixed_addresses(unit, expression) {
                    globals.push(Global {
                        start,
                        piece,
                        unit: index,
                        offset,
                    });
                }
            }
        }
    }
    Ok(())
}

/// The addresses of `DW_OP_addr` (with an offset where globals were merged), and
/// the piece of the variable that is there where it was split.
fn fixed_addresses(
    unit: gimli::UnitRef<'_, crate::debug::Slice>,
    expression: Expression<crate::debug::Slice>,
) -> Vec<(u64, Option<(u64, u64)>)> {
    let mut operations = expression.operations(unit.encoding());
    let mut found = Vec::new();
    let mut address = None;
    let mut before = 0;
    while let Ok(Some(operation)) = operations.next() {
        match operation {
            gimli::Operation::Address { address: base } => address = Some(base),
            gimli::Operation::AddressIndex { index } => address = unit.address(index).ok(),
            gimli::Operation::PlusConstant { value } => {
                address = address.map(|base: u64| base.wrapping_add(value));
            }
            gimli::Operation::Piece { size_in_bits, .. } => {
                let size = size_in_bits / 8;
                if let Some(start) = address.take() {
                    found.push((start, Some((before, size))));
                }
                before += size;
            }
            // `DW_OP_GNU_push_tls_address` and anything else is not fixed.
            _ => return found,
        }
    }
    found.extend(address.map(|start| (start, None)));
    // Variables of dropped sections have address 0.
    found.retain(|(start, _)| *start != 0);
    found
}
