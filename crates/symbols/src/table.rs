//! The symbol tables of a module: functions and data by address and by name.
//!
//! `.symtab` (of the module or of its separate debug file) and `.dynsym` are
//! read together. Where several names share an address the one people use
//! wins: fewest leading underscores, then global before weak before local.

use crate::elf::Elf;
use crate::pclntab;
use object::elf::{STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, STT_TLS};
use object::read::elf::{Sym, SymbolTable as ElfSymbols, VersionTable};
use object::{LittleEndian, Object, ObjectSection, SectionFlags};
use std::collections::HashMap;
use std::ops::Range;

type Header = object::elf::FileHeader64<LittleEndian>;

/// A function of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSymbol {
    /// As in the symbol table: mangled, without a version.
    pub name: String,
    /// `GLIBC_2.34`, for exported functions of versioned libraries.
    pub version: Option<String>,
    /// Address of the first instruction. In the address space for answers of a
    /// `ModuleMap`, link-time for answers of a `Module`.
    pub start: u64,
    /// 0 where the symbol has no size (assembly).
    pub size: u64,
    /// The symbol names a resolver that returns the real function (IFUNC).
    pub indirect: bool,
}

/// A global or static variable of a module, by its symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSymbol {
    pub name: String,
    pub start: u64,
    pub size: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    start: u64,
    /// First address behind it; derived from the next symbol where the
    /// symbol has no size.
    end: u64,
    size: u64,
    name: &'static str,
    version: Option<&'static str>,
    indirect: bool,
    /// Lower is better among names of one address.
    rank: u32,
}

/// Borrows from the ELF files it was built from: their owner keeps the table
/// and drops it before them.
#[derive(Default)]
pub(crate) struct SymbolTable {
    functions: Vec<Entry>,
    data: Vec<Entry>,
    thread_local: Vec<Entry>,
    by_name: HashMap<&'static str, Vec<u32>>,
    data_by_name: HashMap<&'static str, Vec<u32>>,
}

impl SymbolTable {
    /// `sources`: the module, then its separate debug file.
    pub(crate) fn build(sources: &[&Elf]) -> SymbolTable {
        let mut table = SymbolTable::default();
        let mut named = false;
        for elf in sources {
            let sections = SectionRanges::of(elf);
            table.read(elf.file.elf_symbol_table(), None, &sections);
            named |= elf.file.elf_symbol_table().iter().next().is_some();
            let versions = elf
                .file
                .elf_section_table()
                .versions(LittleEndian, elf.file.data())
                .ok()
                .flatten();
            table.read(
                elf.file.elf_dynamic_symbol_table(),
                versions.as_ref(),
                &sections,
            );
        }
        // Only what is exported has names yet.
        if !named {
            for (start, end, name) in sources.iter().flat_map(|elf| pclntab::of_module(elf)) {
                table.functions.push(Entry {
                    start,
                    end,
                    size: end.saturating_sub(start),
                    name,
                    version: None,
                    indirect: false,
                    rank: 0,
                });
            }
        }
        for list in [
            &mut table.functions,
            &mut table.data,
            &mut table.thread_local,
        ] {
            list.sort_by(|a, b| {
                (a.start, a.rank, a.name, a.version).cmp(&(b.start, b.rank, b.name, b.version))
            });
            list.dedup_by(|later, kept| {
                let same = later.start == kept.start && later.name == kept.name;
                if same {
                    kept.size = kept.size.max(later.size);
                    kept.end = kept.end.max(later.end);
                    kept.version = kept.version.or(later.version);
                }
                same
            });
            end_unsized_at_the_next(list);
        }
        table.by_name = index_names(&table.functions);
        table.data_by_name = index_names(&table.data);
        table
    }

    fn read(
        &mut self,
        symbols: &ElfSymbols<'static, Header>,
        versions: Option<&VersionTable<'static, Header>>,
        sections: &SectionRanges,
    ) {
        let endian = LittleEndian;
        for (index, symbol) in symbols.enumerate() {
            if symbol.is_undefined(endian) {
                continue;
            }
            let Ok(name) = symbol.name(endian, symbols.strings()) else {
                continue;
            };
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            // `.symtab` writes the version into the name.
            let (name, written) = match name.split_once('@') {
                Some((name, version)) => (name, Some(version.trim_start_matches('@'))),
                None => (name, None),
            };
            if name.is_empty() {
                continue;
            }
            let version = written.or_else(|| {
                let versions = versions?;
                let index = versions.version_index(endian, index).index();
                let version = versions.version(index).ok()??;
                std::str::from_utf8(version.name()).ok()
            });
            let start = symbol.st_value(endian);
            let size = symbol.st_size(endian);
            let kind = symbol.st_type();
            let section = sections.at(start);
            let executable = section.as_ref().is_some_and(|(_, executable)| *executable);
            let label = kind == STT_NOTYPE && executable && !name.starts_with(['.', '$']);
            let list = if kind == STT_FUNC || kind == STT_GNU_IFUNC || label {
                &mut self.functions
            } else if kind == STT_OBJECT {
                &mut self.data
            } else if kind == STT_TLS {
                &mut self.thread_local
            } else {
                continue;
            };
            let binding = symbol.st_bind();
            let underscores = name.bytes().take_while(|byte| *byte == b'_').count() as u32;
            // A mangled name's underscore is not a mark of an internal alias.
            let underscores = if name.starts_with("_Z") || name.starts_with("_R") {
                0
            } else {
                underscores
            };
            let rank = u32::from(kind == STT_NOTYPE) * 1000
                + underscores * 4
                + match binding {
                    STB_GLOBAL => 0,
                    STB_WEAK => 1,
                    _ => 2,
                };
            let end = match (size, section) {
                (0, Some((range, _))) if kind != STT_TLS => range.end,
                _ => start.saturating_add(size),
            };
            list.push(Entry {
                start,
                end,
                size,
                name,
                version,
                indirect: kind == STT_GNU_IFUNC,
                rank,
            });
        }
    }

    pub(crate) fn function_at(&self, address: u64) -> Option<FunctionSymbol> {
        covering(&self.functions, address).map(Entry::function)
    }

    pub(crate) fn data_at(&self, address: u64) -> Option<DataSymbol> {
        covering(&self.data, address).map(Entry::data)
    }

    pub(crate) fn thread_local_at(&self, offset: u64) -> Option<DataSymbol> {
        covering(&self.thread_local, offset).map(Entry::data)
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = FunctionSymbol> + '_ {
        self.functions.iter().map(Entry::function)
    }

    pub(crate) fn data(&self) -> impl Iterator<Item = DataSymbol> + '_ {
        self.data.iter().map(Entry::data)
    }

    pub(crate) fn functions_named(&self, name: &str) -> Vec<FunctionSymbol> {
        let indices = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        indices
            .iter()
            .filter_map(|index| self.functions.get(*index as usize))
            .map(Entry::function)
            .collect()
    }

    pub(crate) fn data_named(&self, name: &str) -> Vec<DataSymbol> {
        let indices = self.data_by_name.get(name).map_or(&[][..], Vec::as_slice);
        indices
            .iter()
            .filter_map(|index| self.data.get(*index as usize))
            .map(Entry::data)
            .collect()
    }
}

impl Entry {
    fn function(&self) -> FunctionSymbol {
        FunctionSymbol {
            name: self.name.to_string(),
            version: self.version.map(str::to_string),
            start: self.start,
            size: self.size,
            indirect: self.indirect,
        }
    }

    fn data(&self) -> DataSymbol {
        DataSymbol {
            name: self.name.to_string(),
            start: self.start,
            size: self.size,
        }
    }
}

/// How far back a symbol may begin, in symbols, that still covers an address
/// behind other symbols (nested labels of assembly).
const LOOK_BACK: usize = 32;

/// The best-ranked entry of the latest address that covers `address`.
fn covering(list: &[Entry], address: u64) -> Option<&Entry> {
    let behind = list.partition_point(|entry| entry.start <= address);
    let found = list[..behind]
        .iter()
        .rev()
        .take(LOOK_BACK)
        .find(|entry| address < entry.end)?;
    // Entries of one start are in order of rank: take the first that covers.
    let first = list.partition_point(|entry| entry.start < found.start);
    list[first..behind].iter().find(|entry| address < entry.end)
}

fn end_unsized_at_the_next(list: &mut [Entry]) {
    let mut next_start = u64::MAX;
    let mut current = u64::MAX;
    for entry in list.iter_mut().rev() {
        if entry.start != current {
            next_start = current;
            current = entry.start;
        }
        if entry.size == 0 {
            entry.end = entry.end.min(next_start);
        }
    }
}

fn index_names(list: &[Entry]) -> HashMap<&'static str, Vec<u32>> {
    let mut names: HashMap<&'static str, Vec<u32>> = HashMap::with_capacity(list.len());
    for (entry, index) in list.iter().zip(0..) {
        names.entry(entry.name).or_default().push(index);
    }
    names
}

/// Loaded sections in order of address.
struct SectionRanges(Vec<(Range<u64>, bool)>);

impl SectionRanges {
    fn of(elf: &Elf) -> SectionRanges {
        let mut ranges: Vec<_> = elf
            .file
            .sections()
            .filter_map(|section| match section.flags() {
                SectionFlags::Elf { sh_flags, .. }
                    if sh_flags.0 & object::elf::SHF_ALLOC.0 != 0
                        && sh_flags.0 & object::elf::SHF_TLS.0 == 0 =>
                {
                    let executable = sh_flags.0 & object::elf::SHF_EXECINSTR.0 != 0;
                    let start = section.address();
                    Some((start..start.saturating_add(section.size()), executable))
                }
                _ => None,
            })
            .collect();
        ranges.sort_by_key(|(range, _)| (range.start, range.end));
        SectionRanges(ranges)
    }

    fn at(&self, address: u64) -> Option<(Range<u64>, bool)> {
        let behind = self.0.partition_point(|(range, _)| range.start <= address);
        let (range, executable) = self.0[..behind].last()?;
        range
            .contains(&address)
            .then(|| (range.clone(), *executable))
    }
}
