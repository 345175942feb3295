//! The modules of one address space.
//!
//! Fed with file mappings as a program makes them (or as `/proc/PID/maps`
//! lists them), it answers questions about addresses of the running program.

use crate::cfi::ReadMemory;
use crate::module::Module;
use crate::pointers::Pointed;
use crate::roles::Role;
use crate::table::FunctionSymbol;
use crate::unwind::StackFrame;
use crate::variables::Variable;
use race::{Frame, Site};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Page size of x86-64: mappings begin at the page that holds a segment's
/// first byte.
const PAGE: u64 = 4096;

/// The vdso is a few pages; more is not read.
const LARGEST_VDSO: u64 = 1 << 20;

#[derive(Debug, Clone)]
struct Mapping {
    end: u64,
    module: Arc<Module>,
    file_offset: u64,
    /// Address of the program minus link-time address.
    bias: OnceLock<u64>,
}

/// A module at one place in the address space.
#[derive(Debug, Clone)]
pub struct LoadedModule<'a> {
    pub module: &'a Module,
    /// Address in the program minus link-time address.
    pub bias: u64,
    /// From its first to its last mapping.
    pub range: Range<u64>,
}

/// The modules of one address space.
#[derive(Debug, Clone, Default)]
pub struct ModuleMap {
    mappings: BTreeMap<u64, Mapping>,
    modules: HashMap<PathBuf, Arc<Module>>,
}

impl ModuleMap {
    pub fn new() -> ModuleMap {
        ModuleMap::default()
    }

    /// The mappings of a running process.
    ///
    /// # Errors
    /// When `/proc/PID/maps` cannot be read: no such process, or no right to
    /// look at it.
    pub fn from_proc_maps(pid: u32) -> io::Result<ModuleMap> {
        let text = std::fs::read(format!("/proc/{pid}/maps"))?;
        let mut map = ModuleMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some(line) = ProcMapsLine::parse(line) {
                map.insert_line(pid, &line);
            }
        }
        Ok(map)
    }

    fn insert_line(&mut self, pid: u32, line: &ProcMapsLine<'_>) {
        let range = line.range.clone();
        if line.path.starts_with(b"/") {
            let deleted = line.path.strip_suffix(b" (deleted)");
            let path = Path::new(OsStr::from_bytes(deleted.unwrap_or(line.path)));
            if !self.modules.contains_key(path) {
                let inside = match deleted {
                    Some(_) => PathBuf::from(format!(
                        "/proc/{pid}/map_files/{:x}-{:x}",
                        range.start, range.end
                    )),
                    None => {
                        let mut root = PathBuf::from(format!("/proc/{pid}/root"));
                        root.push(path.strip_prefix("/").unwrap_or(path));
                        root
                    }
                };
                // Debug files are looked for beside the module: its own path
                // is better than the one through /proc where both work.
                let same_file = deleted.is_none()
                    && match (std::fs::metadata(path), std::fs::metadata(&inside)) {
                        (Ok(plain), Ok(inside)) => {
                            use std::os::unix::fs::MetadataExt;
                            (plain.dev(), plain.ino()) == (inside.dev(), inside.ino())
                        }
                        (Ok(_), Err(_)) => true,
                        (Err(_), _) => false,
                    };
                let module = if same_file {
                    Module::open(path)
                } else {
                    Module::open_copy(path, &inside)
                };
                self.modules.insert(path.to_path_buf(), Arc::new(module));
            }
            self.insert(range, path, line.file_offset);
        } else if line.path == b"[vdso]" {
            let size = range.end.saturating_sub(range.start).min(LARGEST_VDSO);
            let mut image = vec![0; size as usize];
            let read = std::fs::File::open(format!("/proc/{pid}/mem"))
                .and_then(|memory| memory.read_exact_at(&mut image, range.start));
            let module = match read {
                Ok(()) => Module::from_memory("[vdso]", image),
                Err(_) => Module::without_file(Path::new("[vdso]")),
            };
            self.insert_module(range, Arc::new(module), 0);
        } else if line.executable {
            let name = if line.path.is_empty() {
                OsStr::new("[generated code]")
            } else {
                OsStr::from_bytes(line.path)
            };
            self.insert_module(range, Arc::new(Module::without_file(Path::new(name))), 0);
        }
    }

    /// A file was mapped; what was mapped there before is gone. Mappings of
    /// data and code of a module alike, so that its variables are found.
    pub fn insert(&mut self, range: Range<u64>, path: &Path, file_offset: u64) {
        let module = match self.modules.get(path) {
            Some(module) => Arc::clone(module),
            None => {
                let module = Arc::new(Module::open(path));
                self.modules.insert(path.to_path_buf(), Arc::clone(&module));
                module
            }
        };
        self.insert_module(range, module, file_offset);
    }

    /// As [`insert`](Self::insert), for a module opened by the caller: a copy
    /// of the file, an image in memory, generated code.
    pub fn insert_module(&mut self, range: Range<u64>, module: Arc<Module>, file_offset: u64) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        self.mappings.insert(
            range.start,
            Mapping {
                end: range.end,
                module,
                file_offset,
                bias: OnceLock::new(),
            },
        );
    }

    /// From now on `path` means the bytes of `copy`, for later insertions.
    pub fn substitute(&mut self, path: &Path, copy: &Path) {
        self.modules
            .insert(path.to_path_buf(), Arc::new(Module::open_copy(path, copy)));
    }

    /// The range was unmapped, or mapped to something that is no module.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<u64> = self
            .mappings
            .range(..range.end)
            .rev()
            .take_while(|(_, mapping)| mapping.end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            let Some(mapping) = self.mappings.remove(&start) else {
                continue;
            };
            if mapping.end > range.end {
                let rest = Mapping {
                    file_offset: mapping.file_offset.wrapping_add(range.end - start),
                    ..mapping.clone()
                };
                self.mappings.insert(range.end, rest);
            }
            if start < range.start {
                let rest = Mapping {
                    end: range.start,
                    ..mapping
                };
                self.mappings.insert(start, rest);
            }
        }
    }

    /// The module at an address and the link-time address there. `.bss`
    /// behind a module's last file mapping belongs to the module.
    pub fn find(&self, address: u64) -> Option<(&Module, u64)> {
        self.locate(address)
            .map(|(module, bias)| (module, address.wrapping_sub(bias)))
    }

    fn locate(&self, address: u64) -> Option<(&Module, u64)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        let bias = self.bias(*start, mapping);
        let module = mapping.module.as_ref();
        if address < mapping.end {
            return Some((module, bias));
        }
        let link_time = address.wrapping_sub(bias);
        module
            .segments()
            .iter()
            .any(|segment| segment.addresses.contains(&link_time))
            .then_some((module, bias))
    }

    /// A file page can belong to two segments (the end of one, the beginning
    /// of the next); then the bias that another mapping of the module has
    /// decides.
    fn bias(&self, start: u64, mapping: &Mapping) -> u64 {
        *mapping.bias.get_or_init(|| {
            let candidates = bias_candidates(start, mapping);
            match candidates.as_slice() {
                [] => start.wrapping_sub(mapping.file_offset),
                [only] => *only,
                [first, ..] => {
                    let before = self.mappings.range(..start).rev();
                    let after = self.mappings.range(start..).skip(1);
                    before
                        .chain(after)
                        .filter(|(_, other)| Arc::ptr_eq(&other.module, &mapping.module))
                        .find_map(|(start, other)| match bias_candidates(*start, other)[..] {
                            [only] if candidates.contains(&only) => Some(only),
                            _ => None,
                        })
                        .unwrap_or(*first)
                }
            }
        })
    }

    /// Every module with its place, in order of address.
    pub fn modules(&self) -> Vec<LoadedModule<'_>> {
        let mut loaded: Vec<LoadedModule<'_>> = Vec::new();
        for (start, mapping) in &self.mappings {
            let bias = self.bias(*start, mapping);
            let module = mapping.module.as_ref();
            let known = loaded
                .iter_mut()
                .find(|known| std::ptr::eq(known.module, module) && known.bias == bias);
            match known {
                Some(known) => known.range.end = mapping.end,
                None => loaded.push(LoadedModule {
                    module,
                    bias,
                    range: *start..mapping.end,
                }),
            }
        }
        loaded
    }

    /// The frames at an address, innermost first, inlined ones included;
    /// always at least one. A return address stands behind its call: the
    /// frames, and their `offset`, are then those of the byte before it.
    pub fn frames(&self, address: u64, is_return_address: bool) -> Vec<Frame> {
        let address = address.wrapping_sub(u64::from(is_return_address));
        match self.find(address) {
            Some((module, offset)) => module.frames(offset),
            None => vec![Frame {
                offset: Some(address),
                ..Frame::default()
            }],
        }
    }

    /// The static place of an instruction.
    pub fn site(&self, address: u64) -> Site {
        match self.find(address) {
            Some((module, offset)) => module.site(offset),
            None => Site {
                offset: Some(address),
                ..Site::default()
            },
        }
    }

    /// Every function of that (mangled) name, with addresses of the program.
    pub fn functions_named(&self, name: &str) -> Vec<(&Module, FunctionSymbol)> {
        self.modules()
            .into_iter()
            .flat_map(|loaded| {
                loaded
                    .module
                    .functions_named(name)
                    .into_iter()
                    .map(move |function| (loaded.module, moved(function, loaded.bias)))
            })
            .collect()
    }

    /// The function whose symbol covers an address.
    pub fn function_at(&self, address: u64) -> Option<FunctionSymbol> {
        let (module, bias) = self.locate(address)?;
        let function = module.function_at(address.wrapping_sub(bias))?;
        Some(moved(function, bias))
    }

    /// The global or static variable at an address, down to the field.
    pub fn variable_at(&self, address: u64) -> Option<Variable> {
        self.variable_over(address, 1)
    }

    /// The global or static variable at an address and the part of it that has
    /// `size` bytes there.
    pub fn variable_over(&self, address: u64, size: u64) -> Option<Variable> {
        let (module, bias) = self.locate(address)?;
        let variable = module.variable_over(address.wrapping_sub(bias), size)?;
        let variable = self
            .of_library(module, &variable, address.wrapping_sub(bias), size)
            .unwrap_or(variable);
        Some(Variable {
            start: variable.start.wrapping_add(bias),
            part: variable
                .part
                .map(|(start, size)| (start.wrapping_add(bias), size)),
            ..variable
        })
    }

    /// The address is in a table of the dynamic linker: of no variable, only of
    /// ways to some.
    pub fn is_linked_table(&self, address: u64) -> bool {
        self.find(address)
            .is_some_and(|(module, offset)| module.is_linked_table(offset))
    }

    /// A program has room for the variables of libraries that it uses (copy
    /// relocations). Their types are in the library's debug info only.
    fn of_library(
        &self,
        owner: &Module,
        copy: &Variable,
        address: u64,
        size: u64,
    ) -> Option<Variable> {
        let symbol = owner.data_at(copy.start)?;
        let is_known = copy.part.is_some() || !owner.has_debug_info();
        if is_known || symbol.start != copy.start || copy.size == 0 {
            return None;
        }
        let loaded = self.modules();
        let originals = loaded
            .iter()
            .filter(|other| !std::ptr::eq(other.module, owner) && other.module.has_debug_info())
            .flat_map(|other| {
                let named = other.module.variables_named(&symbol.name);
                named.into_iter().map(move |found| (other.module, found))
            });
        let moved = |start: u64, from: u64| start.wrapping_sub(from).wrapping_add(copy.start);
        let moved_back = |at: u64, to: u64| at.wrapping_sub(copy.start).wrapping_add(to);
        originals
            .filter(|(_, found)| found.size == copy.size)
            .find_map(|(module, found)| {
                let original = module.variable_over(moved_back(address, found.start), size)?;
                let (start, size) = original.part?;
                Some(Variable {
                    start: copy.start,
                    part: Some((moved(start, found.start), size)),
                    ..original
                })
            })
    }

    /// The variable on the stack that `address` is in, if it is one of this
    /// frame's function or of those inlined into it, and the part of it that has
    /// `size` bytes there.
    pub fn local_over(
        &self,
        frame: &StackFrame,
        read: &mut ReadMemory<'_>,
        address: u64,
        size: u64,
    ) -> Option<Variable> {
        let (module, offset) = self.find(frame.instruction())?;
        module.local_over(offset, &frame.registers, read, (address, size))
    }

    /// The functions whose code the frame's instruction is, innermost first.
    pub fn roles(&self, frame: &StackFrame) -> Vec<Role> {
        match self.find(frame.instruction()) {
            Some((module, offset)) => module.roles(offset),
            None => Vec::new(),
        }
    }

    /// What the bytes at `address` are by a global pointer to `block`:
    /// `nodes[3].next`. `wanted` says which modules' globals are asked.
    pub fn globally_pointed_at(
        &self,
        wanted: impl Fn(&Module) -> bool,
        read: &mut ReadMemory<'_>,
        bytes: (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        self.modules()
            .into_iter()
            .filter(|loaded| wanted(loaded.module))
            .find_map(|loaded| {
                let bias = loaded.bias;
                loaded.module.globally_pointed_at(bias, read, bytes, block)
            })
    }

    /// What the bytes at `address` are by a pointer that is in scope in this
    /// frame and points into `block`: `node.next` for a `struct node *`.
    pub fn pointed_at(
        &self,
        frame: &StackFrame,
        read: &mut ReadMemory<'_>,
        (address, size): (u64, u64),
        block: &Range<u64>,
    ) -> Option<Pointed> {
        let (module, offset) = self.find(frame.instruction())?;
        module.pointed_at(offset, frame, read, (address, size), block)
    }
}

fn moved(function: FunctionSymbol, bias: u64) -> FunctionSymbol {
    FunctionSymbol {
        start: function.start.wrapping_add(bias),
        ..function
    }
}

/// The biases under which a mapping can be (part of) a segment of its file,
/// the likeliest first.
fn bias_candidates(start: u64, mapping: &Mapping) -> Vec<u64> {
    let offset = mapping.file_offset;
    let mut candidates: Vec<(bool, u64)> = mapping
        .module
        .segments()
        .iter()
        .filter_map(|segment| {
            let first_page = segment.file_offset & !(PAGE - 1);
            let end = segment.file_offset.checked_add(segment.file_size)?;
            (first_page <= offset && offset < end).then(|| {
                let link_time = segment
                    .addresses
                    .start
                    .wrapping_sub(segment.file_offset)
                    .wrapping_add(offset);
                (first_page != offset, start.wrapping_sub(link_time))
            })
        })
        .collect();
    candidates.sort_by_key(|(inside, _)| *inside);
    let mut biases: Vec<u64> = Vec::new();
    for (_, bias) in candidates {
        if !biases.contains(&bias) {
            biases.push(bias);
        }
    }
    biases
}

struct ProcMapsLine<'a> {
    range: Range<u64>,
    executable: bool,
    file_offset: u64,
    path: &'a [u8],
}

impl<'a> ProcMapsLine<'a> {
    /// `7f01…-7f02… r-xp 00002000 fd:01 1234    /usr/lib/libc.so.6`
    fn parse(line: &'a [u8]) -> Option<ProcMapsLine<'a>> {
        let mut rest = line;
        let mut field = || {
            let end = rest.iter().position(|byte| *byte == b' ');
            let (field, behind) = rest.split_at(end.unwrap_or(rest.len()));
            rest = behind.trim_ascii_start();
            std::str::from_utf8(field).ok()
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let range = hex(start)?..hex(end)?;
        let executable = field()?.as_bytes().get(2) == Some(&b'x');
        let file_offset = hex(field()?)?;
        let _device = field()?;
        let _inode = field()?;
        Some(ProcMapsLine {
            range,
            executable,
            file_offset,
            path: rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_read_with_spaces_in_its_path() {
        let line = b"7f0010-7f0020 r-xp 00002000 fd:01 1234       /opt/my app/lib x.so (deleted)";
        let parsed = ProcMapsLine::parse(line).unwrap();
        assert_eq!(parsed.range, 0x7f0010..0x7f0020);
        assert!(parsed.executable);
        assert_eq!(parsed.file_offset, 0x2000);
        assert_eq!(parsed.path, b"/opt/my app/lib x.so (deleted)");
        let anonymous = ProcMapsLine::parse(b"10-20 rw-p 00000000 00:00 0").unwrap();
        assert_eq!(anonymous.path, b"");
        assert!(ProcMapsLine::parse(b"nonsense").is_none());
    }

    #[test]
    fn a_mapping_in_the_middle_splits_the_old_one() {
        let mut map = ModuleMap::new();
        let (a, b) = (Path::new("/nowhere/a"), Path::new("/nowhere/b"));
        map.insert(0x1000..0x9000, a, 0);
        map.insert(0x3000..0x5000, b, 0x100);
        let place = |address| {
            map.find(address)
                .map(|(module, offset)| (module.name().to_string(), offset))
        };
        assert_eq!(place(0x0fff), None);
        assert_eq!(place(0x1000), Some(("a".into(), 0)));
        assert_eq!(place(0x2fff), Some(("a".into(), 0x1fff)));
        assert_eq!(place(0x3001), Some(("b".into(), 0x101)));
        assert_eq!(place(0x5000), Some(("a".into(), 0x4000)));
        assert_eq!(place(0x9000), None);
        let modules = map.modules();
        assert_eq!(modules.len(), 2);
        assert_eq!(modules[0].range, 0x1000..0x9000);
        map.remove(0..u64::MAX);
        assert!(map.modules().is_empty());
    }
}
