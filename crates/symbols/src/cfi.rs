//! Call frame information: how to find the caller's registers from any
//! instruction of a module.
//!
//! `.eh_frame` and `.debug_frame` (Go, code built without unwind tables) are
//! indexed together by one linear pass over their entries; the search table
//! `.eh_frame_hdr` is not needed and a damaged one does no harm.

use crate::bytes::Bytes;
use crate::debug::Slice;
use crate::elf::Elf;
use crate::registers::Registers;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, Encoding, EndianSlice, Evaluation,
    EvaluationResult, Expression, Format, LittleEndian, Location, Register, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, Value,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Reads eight bytes of the stopped program's memory.
pub type ReadMemory<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Rows kept per module before the cache starts over.
const CACHED_ROWS: usize = 1 << 16;

/// Operations of one DWARF expression before it is taken for a loop.
pub(crate) const LONGEST_EXPRESSION: u32 = 1000;

pub(crate) const ENCODING: Encoding = Encoding {
    address_size: 8,
    format: Format::Dwarf32,
    version: 4,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Eh,
    Debug,
}

struct Fde {
    start: u64,
    end: u64,
    kind: Kind,
    offset: usize,
}

/// The rules that hold at one instruction.
pub(crate) struct Row {
    cfa: CfaRule<usize>,
    rules: Vec<(Register, RegisterRule<usize>)>,
    return_address: Register,
    kind: Kind,
    /// The frame was made by the kernel to deliver a signal: its caller was
    /// interrupted, it did not call.
    pub(crate) is_signal_frame: bool,
}

impl Row {
    /// The register that the canonical frame address is above, and how far.
    pub(crate) fn frame_address(&self) -> Option<(Register, i64)> {
        match &self.cfa {
            CfaRule::RegisterAndOffset { register, offset } => Some((*register, *offset)),
            CfaRule::Expression(_) => None,
        }
    }
}

#[derive(Default)]
struct Cache {
    context: Option<UnwindContext<usize>>,
    rows: HashMap<u64, Option<Arc<Row>>>,
}

pub(crate) struct Cfi {
    eh_frame: EhFrame<Slice>,
    debug_frame: DebugFrame<Slice>,
    eh_bases: BaseAddresses,
    debug_bases: BaseAddresses,
    index: Vec<Fde>,
    cache: Mutex<Cache>,
    /// What the sections borrow from; last, so that it is dropped last.
    _bytes: Vec<Arc<Bytes>>,
}

impl Cfi {
    /// `sources`: the module, then its separate debug file.
    pub(crate) fn load(sources: &[&Elf]) -> Cfi {
        let mut keep = Vec::new();
        let mut section = |name: &str| {
            let found = sources.iter().find_map(|elf| elf.section(name));
            let Some((address, bytes, range)) = found else {
                return (0, EndianSlice::new(&[][..], LittleEndian));
            };
            // SAFETY: the bytes go into `_bytes`, the last field of the struct
            // that holds the readers.
            let slice = unsafe { bytes.pinned() };
            keep.push(bytes);
            let slice = slice.get(range).unwrap_or(&[]);
            (address, EndianSlice::new(slice, LittleEndian))
        };
        let (eh_address, eh_bytes) = section(".eh_frame");
        let (_, debug_bytes) = section(".debug_frame");
        let mut eh_bases = BaseAddresses::default().set_eh_frame(eh_address);
        for loaded in sources
            .first()
            .map(|elf| elf.sections())
            .unwrap_or_default()
        {
            eh_bases = match loaded.name.as_str() {
                ".text" => eh_bases.set_text(loaded.addresses.start),
                ".got" => eh_bases.set_got(loaded.addresses.start),
                ".eh_frame_hdr" => eh_bases.set_eh_frame_hdr(loaded.addresses.start),
                _ => eh_bases,
            };
        }
        let mut eh_frame = EhFrame::from(eh_bytes);
        eh_frame.set_address_size(8);
        let mut debug_frame = DebugFrame::from(debug_bytes);
        debug_frame.set_address_size(8);
        let debug_bases = BaseAddresses::default();
        let mut index = Vec::new();
        index_entries(&eh_frame, &eh_bases, Kind::Eh, &mut index);
        index_entries(&debug_frame, &debug_bases, Kind::Debug, &mut index);
        index.sort_by_key(|fde| (fde.start, fde.kind, fde.offset));
        Cfi {
            eh_frame,
            debug_frame,
            eh_bases,
            debug_bases,
            index,
            cache: Mutex::default(),
            _bytes: keep,
        }
    }

    /// Link-time ranges that have unwind tables: function starts, also of
    /// stripped code.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut last = None;
        self.index.iter().filter_map(move |fde| {
            let range = fde.start..fde.end;
            (last.replace(range.clone()) != Some(range.clone())).then_some(range)
        })
    }

    pub(crate) fn range_at(&self, address: u64) -> Option<Range<u64>> {
        self.find(address).map(|fde| fde.start..fde.end)
    }

    fn find(&self, address: u64) -> Option<&Fde> {
        let behind = self.index.partition_point(|fde| fde.start <= address);
        let found = self.index[..behind]
            .iter()
            .rev()
            .take(8)
            .find(|fde| address < fde.end)?;
        let first = self.index.partition_point(|fde| fde.start < found.start);
        self.index[first..behind]
            .iter()
            .find(|fde| address < fde.end)
    }

    /// The rules at a link-time address.
    pub(crate) fn row(&self, address: u64) -> Option<Arc<Row>> {
        let mut cache = match self.cache.lock() {
            Ok(cache) => cache,
            Err(poisoned) => poisoned.into_inner(),
        };
        if let Some(row) = cache.rows.get(&address) {
            return row.clone();
        }
        let mut context = cache.context.take().unwrap_or_default();
        let row = self.find(address).and_then(|fde| match fde.kind {
            Kind::Eh => parse_row(&self.eh_frame, &self.eh_bases, fde, &mut context, address),
            Kind::Debug => parse_row(
                &self.debug_frame,
                &self.debug_bases,
                fde,
                &mut context,
                address,
            ),
        });
        cache.context = Some(context);
        if cache.rows.len() >= CACHED_ROWS {
            cache.rows.clear();
        }
        let row = row.map(Arc::new);
        cache.rows.insert(address, row.clone());
        row
    }

    /// The canonical frame address at `row`.
    pub(crate) fn cfa(
        &self,
        row: &Row,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<u64> {
        match &row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some(registers.dwarf(*register)?.wrapping_add_signed(*offset))
            }
            CfaRule::Expression(expression) => {
                evaluate(self.expression(row, expression)?, None, registers, read)
            }
        }
    }

    /// The caller's registers; none at the end of the stack or where memory
    /// cannot be read.
    pub(crate) fn caller(
        &self,
        row: &Row,
        registers: &Registers,
        read: &mut ReadMemory<'_>,
    ) -> Option<Registers> {
        let cfa = self.cfa(row, registers, read)?;
        let mut caller = *registers;
        caller.general[Registers::RSP] = cfa;
        let mut return_address = None;
        for (register, rule) in &row.rules {
            let value = match rule {
                RegisterRule::Undefined => None,
                RegisterRule::SameValue => registers.dwarf(*register),
                RegisterRule::Offset(offset) => Some(read(cfa.wrapping_add_signed(*offset))?),
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                RegisterRule::Register(other) => registers.dwarf(*other),
                RegisterRule::Expression(expression) => {
                    let expression = self.expression(row, expression)?;
                    let place = evaluate(expression, Some(cfa), registers, read)?;
                    Some(read(place)?)
                }
                RegisterRule::ValExpression(expression) => {
                    let expression = self.expression(row, expression)?;
                    Some(evaluate(expression, Some(cfa), registers, read)?)
                }
                RegisterRule::Constant(value) => Some(*value),
                _ => None,
            };
            if *register == row.return_address {
                return_address = value;
            } else if let Some(value) = value {
                caller.set_dwarf(*register, value);
            }
        }
        caller.rip = return_address?;
        Some(caller)
    }

    fn expression(
        &self,
        row: &Row,
        expression: &UnwindExpression<usize>,
    ) -> Option<Expression<Slice>> {
        match row.kind {
            Kind::Eh => expression.get(&self.eh_frame).ok(),
            Kind::Debug => expression.get(&self.debug_frame).ok(),
        }
    }
}

fn index_entries<S: UnwindSection<Slice>>(
    section: &S,
    bases: &BaseAddresses,
    kind: Kind,
    index: &mut Vec<Fde>,
) {
    let mut cies = HashMap::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|section, bases, offset| {
            let key: usize = gimli::UnwindOffset::into(offset);
            if let Some(cie) = cies.get(&key) {
                return Ok(gimli::CommonInformationEntry::clone(cie));
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(key, cie.clone());
            Ok(cie)
        });
        let Ok(fde) = parsed else {
            continue;
        };
        let start = fde.initial_address();
        // Sections that the linker dropped leave entries at address 0.
        if start == 0 || fde.len() == 0 {
            continue;
        }
        index.push(Fde {
            start,
            end: start.saturating_add(fde.len()),
            kind,
            offset: fde.offset(),
        });
    }
}

fn parse_row<S: UnwindSection<Slice>>(
    section: &S,
    bases: &BaseAddresses,
    found: &Fde,
    context: &mut UnwindContext<usize>,
    address: u64,
) -> Option<Row> {
    let fde = section
        .fde_from_offset(bases, S::Offset::from(found.offset), S::cie_from_offset)
        .ok()?;
    let row: &UnwindTableRow<usize> = fde
        .unwind_info_for_address(section, bases, context, address)
        .ok()?;
    Some(Row {
        cfa: row.cfa().clone(),
        rules: row
            .registers()
            .map(|(register, rule)| (*register, rule.clone()))
            .collect(),
        return_address: fde.cie().return_address_register(),
        kind: found.kind,
        is_signal_frame: fde.is_signal_trampoline(),
    })
}

/// The value, or the address, that a DWARF expression of unwind tables
/// computes.
fn evaluate(
    expression: Expression<Slice>,
    initial: Option<u64>,
    registers: &Registers,
    read: &mut ReadMemory<'_>,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(ENCODING);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    run(&mut evaluation, registers, None, read)?;
    match evaluation.value_result() {
        Some(Value::Generic(value)) => Some(value),
        _ => match evaluation.result().as_slice() {
            [piece] => match piece.location {
                Location::Address { address } => Some(address),
                _ => None,
            },
            _ => None,
        },
    }
}

/// Runs an expression to its end; `frame_base` is `DW_AT_frame_base`'s value
/// and the canonical frame address, where known.
pub(crate) fn run(
    evaluation: &mut Evaluation<Slice>,
    registers: &Registers,
    frame: Option<(u64, u64)>,
    read: &mut ReadMemory<'_>,
) -> Option<()> {
    evaluation.set_max_iterations(LONGEST_EXPRESSION);
    let mut state = evaluation.evaluate().ok()?;
    for _ in 0..LONGEST_EXPRESSION {
        state = match state {
            EvaluationResult::Complete => return Some(()),
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(address)?;
                let word = match size {
                    8 => word,
                    1..8 => word & ((1 << (8 * u32::from(size))) - 1),
                    _ => return None,
                };
                evaluation.resume_with_memory(Value::Generic(word))
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(registers.dwarf(register)?))
            }
            EvaluationResult::RequiresFrameBase => evaluation.resume_with_frame_base(frame?.0),
            EvaluationResult::RequiresCallFrameCfa => {
                evaluation.resume_with_call_frame_cfa(frame?.1)
            }
            EvaluationResult::RequiresRelocatedAddress(address) => {
                evaluation.resume_with_relocated_address(address)
            }
            _ => return None,
        }
        .ok()?;
    }
    None
}
