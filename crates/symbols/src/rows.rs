//! The rows of the line tables, function by function, with columns.
//!
//! Some operations leave no instruction behind: an acquire fence on x86-64 is
//! nothing but a limit for the optimiser. gcc still writes a row for it, at the
//! address of the instruction that follows; such rows without code are what
//! [`ModuleMap::frames`](crate::ModuleMap::frames) cannot show. They are given
//! here in the order of the table, each with every place that it stands for:
//! the line itself and the calls that are inlined there.

use crate::debug::{DebugInfo, Slice};
use crate::functions::file_name;
use crate::module::Module;
use gimli::{ColumnType, Unit};
use std::collections::{BTreeMap, HashMap};

/// A place in a source file; column 0 is the whole line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// One row: where the code is, and the places in wanted files that it was
/// written at, innermost first. Files are numbered as [`CodeRows`] names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeRow {
    pub address: u64,
    pub places: Vec<(usize, Position)>,
}

/// The rows of the functions out of line that have code from wanted files.
#[derive(Debug, Default)]
pub struct CodeRows {
    pub files: Vec<String>,
    /// The rows of each function, in order of address.
    pub functions: Vec<Vec<CodeRow>>,
}

impl Module {
    /// The rows of all functions with code from the files that are `wanted`,
    /// in link-time addresses.
    pub fn rows_of_files(&self, wanted: &mut dyn FnMut(&str) -> bool) -> CodeRows {
        self.debug()
            .map(|debug| debug.rows_of_files(wanted))
            .unwrap_or_default()
    }

    /// The innermost place that the instruction was written at.
    pub fn position(&self, address: u64) -> Option<Position> {
        self.debug()?.position(address)
    }
}

impl DebugInfo {
    fn rows_of_files(&self, wanted: &mut dyn FnMut(&str) -> bool) -> CodeRows {
        let mut found = CodeRows::default();
        let mut numbers: HashMap<String, Option<usize>> = HashMap::new();
        for index in 0..self.units.len() {
            let Some(unit) = self.units.unit(&self.dwarf, index) else {
                continue;
            };
            let mut number_of = |file: u64| -> Option<usize> {
                let name = file_name(unit.unit_ref(&self.dwarf), file)?;
                *numbers.entry(name).or_insert_with_key(|name| {
                    wanted(name).then(|| {
                        found.files.push(name.clone());
                        found.files.len() - 1
                    })
                })
            };
            let files = self.wanted_files(unit, &mut number_of);
            if files.is_empty() {
                continue;
            }
            let mut functions: BTreeMap<usize, Vec<CodeRow>> = BTreeMap::new();
            for (address, file, position) in line_rows(unit) {
                let Some(chain) = self.functions_of_unit_at(index, address) else {
                    continue;
                };
                let Some(function) = chain.functions.last() else {
                    continue;
                };
                let own = files.get(&file).map(|number| (*number, position));
                let calls = chain.functions.iter().filter_map(|found| {
                    let number = files.get(&found.call_file?)?;
                    let position = Position {
                        line: found.call_line?,
                        column: found.call_column.unwrap_or(0),
                    };
                    Some((*number, position))
                });
                let row = CodeRow {
                    address,
                    places: own.into_iter().chain(calls).collect(),
                };
                let function = function.entry.offset.0;
                functions.entry(function).or_default().push(row);
            }
            functions.retain(|_, rows| rows.iter().any(|row| !row.places.is_empty()));
            for mut rows in functions.into_values() {
                // Stable: rows of one address stay in the order of the table.
                rows.sort_by_key(|row| row.address);
                found.functions.push(rows);
            }
        }
        found
    }

    /// The files of a unit that are wanted, by their number in its table.
    fn wanted_files(
        &self,
        unit: &Unit<Slice>,
        number_of: &mut dyn FnMut(u64) -> Option<usize>,
    ) -> HashMap<u64, usize> {
        let Some(program) = &unit.line_program else {
            return HashMap::new();
        };
        let files = program.header().file_names().len() as u64;
        // Numbers begin at 0 or, before DWARF 5, at 1.
        (0..=files)
            .filter_map(|file| Some((file, number_of(file)?)))
            .collect()
    }

    fn position(&self, address: u64) -> Option<Position> {
        let place = self.context.find_location(address).ok()??;
        Some(Position {
            line: place.line?,
            column: place.column.unwrap_or(0),
        })
    }
}

/// The rows of a unit's line table that have a line. A malformed row ends them.
fn line_rows(unit: &Unit<Slice>) -> Vec<(u64, u64, Position)> {
    let mut found = Vec::new();
    let Some(program) = unit.line_program.clone() else {
        return found;
    };
    let mut rows = program.rows();
    while let Ok(Some((_, row))) = rows.next_row() {
        // Code of dropped sections is at address 0.
        let Some(line) = row.line().filter(|_| row.address() != 0) else {
            continue;
        };
        if row.end_sequence() {
            continue;
        }
        let position = Position {
            line: u32::try_from(line.get()).unwrap_or(u32::MAX),
            column: match row.column() {
                ColumnType::LeftEdge => 0,
                ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(u32::MAX),
            },
        };
        found.push((row.address(), row.file_index(), position));
    }
    found
}
