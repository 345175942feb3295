//! One file that is mapped into a program: everything that can be asked in
//! link-time addresses.

use crate::bytes::Bytes;
use crate::cfi::Cfi;
use crate::debug::DebugInfo;
use crate::demangle::demangle;
use crate::elf::{Elf, Section, Segment};
use crate::table::{DataSymbol, FunctionSymbol, SymbolTable};
use race::{Frame, Site};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

enum Source {
    File(PathBuf),
    Memory(Arc<Bytes>),
    /// Nothing to read: generated code, a deleted file.
    Nowhere,
}

/// An executable, a library, the vdso or a region of generated code.
///
/// Opened when first asked something. A file that is missing, unreadable or
/// not ELF for x86-64 answers every question with nothing; its name and the
/// offsets into it remain known.
///
/// All addresses here are link-time ones; [`crate::ModuleMap`] speaks of
/// addresses of the running program.
pub struct Module {
    name: String,
    path: PathBuf,
    source: Source,
    image: OnceLock<Option<Image>>,
}

/// Fields that borrow from `elf` and `separate` stand before them.
struct Image {
    symbols: OnceLock<SymbolTable>,
    debug: OnceLock<Option<Mutex<DebugInfo>>>,
    cfi: OnceLock<Cfi>,
    sections: OnceLock<Vec<Section>>,
    separate: OnceLock<Option<Elf>>,
    elf: Elf,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Module {
    /// The module of a file on disk.
    pub fn open(path: &Path) -> Module {
        Module::with_source(path, Source::File(path.to_path_buf()))
    }

    /// The module that the program knows as `path` and whose bytes are in
    /// another file (a packed copy, another mount).
    pub fn open_copy(path: &Path, copy: &Path) -> Module {
        Module::with_source(path, Source::File(copy.to_path_buf()))
    }

    /// The module of an ELF image in memory, such as `[vdso]`.
    pub fn from_memory(name: &str, image: Vec<u8>) -> Module {
        Module::with_source(Path::new(name), Source::Memory(Bytes::owned(image)))
    }

    /// A region of code of which only the name is known.
    pub fn without_file(name: &Path) -> Module {
        Module::with_source(name, Source::Nowhere)
    }

    fn with_source(path: &Path, source: Source) -> Module {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Module {
            name: name.to_string_lossy().into_owned(),
            path: path.to_path_buf(),
            source,
            image: OnceLock::new(),
        }
    }

    /// File name without its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path as the program mapped it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn image(&self) -> Option<&Image> {
        self.image
            .get_or_init(|| {
                let elf = match &self.source {
                    Source::File(path) => Elf::open(path)?,
                    Source::Memory(bytes) => Elf::parse(Arc::clone(bytes), Path::new(""))?,
                    Source::Nowhere => return None,
                };
                Some(Image {
                    symbols: OnceLock::new(),
                    debug: OnceLock::new(),
                    cfi: OnceLock::new(),
                    sections: OnceLock::new(),
                    separate: OnceLock::new(),
                    elf,
                })
            })
            .as_ref()
    }

    /// The file could be opened as ELF.
    pub fn is_readable(&self) -> bool {
        self.image().is_some()
    }

    /// There is debug info with types and lines, in the file or beside it.
    pub fn has_debug_info(&self) -> bool {
        self.debug().is_some()
    }

    pub fn build_id(&self) -> Option<&[u8]> {
        self.image()?.elf.build_id()
    }

    pub fn segments(&self) -> &[Segment] {
        self.image().map_or(&[], |image| image.elf.segments())
    }

    /// Sections that are loaded (`.text`, `.plt`, `.data`, `.bss` …).
    pub fn sections(&self) -> &[Section] {
        self.image().map_or(&[], |image| {
            image.sections.get_or_init(|| image.elf.sections())
        })
    }

    pub fn section_at(&self, address: u64) -> Option<&Section> {
        self.sections()
            .iter()
            .find(|section| section.addresses.contains(&address))
    }

    /// What the file has for a link-time address (code, constants).
    pub fn bytes_at(&self, address: u64, length: usize) -> Option<&[u8]> {
        self.image()?.elf.bytes_at(address, length)
    }

    pub(crate) fn symbols(&self) -> Option<&SymbolTable> {
        let image = self.image()?;
        Some(
            image
                .symbols
                .get_or_init(|| SymbolTable::build(&image.sources())),
        )
    }

    pub(crate) fn cfi(&self) -> Option<&Cfi> {
        let image = self.image()?;
        Some(image.cfi.get_or_init(|| Cfi::load(&image.sources())))
    }

    pub(crate) fn debug(&self) -> Option<MutexGuard<'_, DebugInfo>> {
        let image = self.image()?;
        let debug = image
            .debug
            .get_or_init(|| {
                DebugInfo::load(&image.elf)
                    .or_else(|| DebugInfo::load(image.separate()?))
                    .map(Mutex::new)
            })
            .as_ref()?;
        Some(match debug.lock() {
            Ok(debug) => debug,
            Err(poisoned) => poisoned.into_inner(),
        })
    }

    /// Functions in order of address, aliases included.
    pub fn functions(&self) -> impl Iterator<Item = FunctionSymbol> + '_ {
        self.symbols().into_iter().flat_map(SymbolTable::functions)
    }

    /// Variables in order of address, aliases included.
    pub fn variables(&self) -> impl Iterator<Item = DataSymbol> + '_ {
        self.symbols().into_iter().flat_map(SymbolTable::data)
    }

    /// Every function of that (mangled) name: statics of several files and
    /// several versions share one.
    pub fn functions_named(&self, name: &str) -> Vec<FunctionSymbol> {
        self.symbols()
            .map(|symbols| symbols.functions_named(name))
            .unwrap_or_default()
    }

    pub fn variables_named(&self, name: &str) -> Vec<DataSymbol> {
        self.symbols()
            .map(|symbols| symbols.data_named(name))
            .unwrap_or_default()
    }

    pub fn function_at(&self, address: u64) -> Option<FunctionSymbol> {
        self.symbols()?.function_at(address)
    }

    /// The variable whose symbol covers an address.
    pub fn data_at(&self, address: u64) -> Option<DataSymbol> {
        self.symbols()?.data_at(address)
    }

    /// The thread-local variable at an offset into the module's TLS block.
    pub fn thread_local_at(&self, offset: u64) -> Option<DataSymbol> {
        self.symbols()?.thread_local_at(offset)
    }

    /// Ranges with unwind tables in order of address: the functions of
    /// stripped code.
    pub fn unwind_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.cfi().into_iter().flat_map(Cfi::ranges)
    }

    /// The function's range by its unwind table.
    pub fn unwind_range_at(&self, address: u64) -> Option<Range<u64>> {
        self.cfi()?.range_at(address)
    }

    /// The frames at an address, innermost first, inlined ones included;
    /// always at least one. `offset` of every frame is `address`.
    pub fn frames(&self, address: u64) -> Vec<Frame> {
        let sources = self
            .debug()
            .map(|debug| debug.frames(address))
            .unwrap_or_default();
        let mut frames: Vec<Frame> = sources
            .into_iter()
            .map(|source| Frame {
                function: source.function,
                file: source.file,
                line: source.line,
                module: Some(self.name.clone()),
                offset: Some(address),
                inlined: true,
            })
            .collect();
        if frames.is_empty() {
            frames.push(Frame {
                module: Some(self.name.clone()),
                offset: Some(address),
                ..Frame::default()
            });
        }
        if let Some(outermost) = frames.last_mut() {
            outermost.inlined = false;
            // Libraries call their own functions by aliases (`__GI_…`) and
            // debug info knows only those: the exported name says more.
            let internal = |name: &String| name.starts_with("__");
            if outermost.function.as_ref().is_none_or(internal)
                && let Some(symbol) = self.function_at(address)
            {
                outermost.function = Some(demangle(&symbol.name));
            }
        }
        frames
    }

    /// The code that was written on certain lines: `wanted` is asked about
    /// each file and line of the line tables and names its wishes by number.
    /// Where another function was inlined into a line, that one's code is on
    /// its own lines.
    pub fn code_of_lines(
        &self,
        wanted: impl Fn(&str, u32) -> Vec<usize>,
    ) -> Vec<(Range<u64>, usize)> {
        self.debug()
            .map(|debug| debug.code_of(&wanted))
            .unwrap_or_default()
    }

    /// Where the function at `address` begins, for one without a name.
    pub(crate) fn unnamed_function(&self, frame: &Frame, address: u64) -> Option<u64> {
        let range = || self.unwind_range_at(address);
        frame
            .function
            .is_none()
            .then(range)?
            .map(|range| range.start)
    }

    /// The static place of an instruction.
    pub fn site(&self, address: u64) -> Site {
        let innermost = self.frames(address).into_iter().next().unwrap_or_default();
        Site {
            function_offset: self.unnamed_function(&innermost, address),
            module: innermost.module,
            offset: innermost.offset,
            function_line: innermost
                .file
                .as_ref()
                .and_then(|_| self.debug()?.function_line(address)),
            function: innermost.function,
            file: innermost.file,
            line: innermost.line,
        }
    }
}

impl Image {
    fn separate(&self) -> Option<&Elf> {
        self.separate
            .get_or_init(|| self.elf.separate_debug_file())
            .as_ref()
    }

    /// The module, then its separate debug file if symbols are to be had
    /// there only.
    fn sources(&self) -> Vec<&Elf> {
        let stripped = self.elf.file.elf_symbol_table().is_empty();
        let separate = stripped.then(|| self.separate()).flatten();
        std::iter::once(&self.elf).chain(separate).collect()
    }
}
