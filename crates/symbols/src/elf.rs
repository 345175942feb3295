//! One ELF file, opened: segments, sections, build id, and the way to the
//! separate file that holds its debug info.

use crate::bytes::Bytes;
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Architecture, LittleEndian, Object, ObjectSection, SectionFlags};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where distributions install separate debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// A section that claims to be compressed better than this has a malformed
/// header (zlib cannot exceed 1032:1; debug info is below 10:1).
const BEST_COMPRESSION: u64 = 1100;

/// A `PT_LOAD` segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Link-time addresses, `.bss` included.
    pub addresses: Range<u64>,
    pub file_offset: u64,
    pub file_size: u64,
    pub executable: bool,
}

/// A section that occupies memory when the module is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// Link-time addresses.
    pub addresses: Range<u64>,
    pub executable: bool,
    pub writable: bool,
}

pub(crate) struct Elf {
    // Declared before `bytes`, from which it borrows.
    pub(crate) file: ElfFile64<'static, LittleEndian>,
    pub(crate) bytes: Arc<Bytes>,
    /// Empty for an image that came from memory.
    path: PathBuf,
    segments: Vec<Segment>,
}

impl Elf {
    pub(crate) fn open(path: &Path) -> Option<Elf> {
        Elf::parse(Bytes::open(path)?, path)
    }

    /// ELF for x86-64 only; anything else is none.
    pub(crate) fn parse(bytes: Arc<Bytes>, path: &Path) -> Option<Elf> {
        // SAFETY: `bytes` is kept in the struct that holds the borrower and
        // dropped after it.
        let slice = unsafe { bytes.pinned() };
        let file = ElfFile64::<LittleEndian>::parse(slice).ok()?;
        if file.architecture() != Architecture::X86_64 {
            return None;
        }
        let endian = LittleEndian;
        let segments = file
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(endian) == PT_LOAD)
            .map(|header| {
                let start = header.p_vaddr(endian);
                Segment {
                    addresses: start..start.saturating_add(header.p_memsz(endian)),
                    file_offset: header.p_offset(endian),
                    file_size: header.p_filesz(endian),
                    executable: header.p_flags(endian).0 & PF_X.0 != 0,
                }
            })
            .collect();
        Some(Elf {
            file,
            bytes,
            path: path.to_path_buf(),
            segments,
        })
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(crate) fn sections(&self) -> Vec<Section> {
        self.file
            .sections()
            .filter_map(|section| {
                let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
                    return None;
                };
                let has = |flag: object::elf::SectionFlags| sh_flags.0 & flag.0 != 0;
                has(object::elf::SHF_ALLOC).then(|| Section {
                    name: section.name().unwrap_or("?").to_string(),
                    addresses: section.address()..section.address().saturating_add(section.size()),
                    executable: has(object::elf::SHF_EXECINSTR),
                    writable: has(object::elf::SHF_WRITE),
                })
            })
            .collect()
    }

    pub(crate) fn build_id(&self) -> Option<&[u8]> {
        self.file.build_id().ok().flatten()
    }

    pub(crate) fn has_section(&self, name: &str) -> bool {
        self.file.section_by_name(name).is_some_and(|section| {
            section.size() > 0 && section.file_range().is_some_and(|(_, size)| size > 0)
        })
    }

    /// Link-time address and bytes of a section, decompressed; a section
    /// without bytes in this file (`NOBITS`, as in separate debug files) is
    /// none.
    pub(crate) fn section(&self, name: &str) -> Option<(u64, Arc<Bytes>, Range<usize>)> {
        let section = self.file.section_by_name(name)?;
        let compressed = section.compressed_data().ok()?;
        let size = compressed.data.len() as u64;
        if compressed.uncompressed_size > size.saturating_mul(BEST_COMPRESSION) {
            return None;
        }
        let address = section.address();
        match compressed.decompress().ok()? {
            // An empty section's slice need not lie in the file.
            std::borrow::Cow::Borrowed([]) => None,
            std::borrow::Cow::Borrowed(slice) => {
                let file = self.bytes.as_slice().as_ptr() as usize;
                let start = (slice.as_ptr() as usize).checked_sub(file)?;
                let end = start.checked_add(slice.len())?;
                Some((address, Arc::clone(&self.bytes), start..end))
            }
            std::borrow::Cow::Owned(bytes) => {
                let length = bytes.len();
                Some((address, Bytes::owned(bytes), 0..length))
            }
        }
    }

    /// The bytes that the file has for a link-time address.
    pub(crate) fn bytes_at(&self, address: u64, length: usize) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|segment| {
            segment.addresses.contains(&address)
                && address - segment.addresses.start < segment.file_size
        })?;
        let start = segment
            .file_offset
            .checked_add(address - segment.addresses.start)?;
        let start = usize::try_from(start).ok()?;
        self.bytes.as_slice().get(start..start.checked_add(length)?)
    }

    /// The separate debug file of this one, found by build id and by
    /// `.gnu_debuglink`, with what belongs to another build refused.
    pub(crate) fn separate_debug_file(&self) -> Option<Elf> {
        let build_id = self.build_id();
        if let Some(path) = build_id.and_then(|id| build_id_path(Path::new(DEBUG_ROOT), id))
            && let Some(elf) = Elf::open(&path)
            && elf.build_id() == build_id
        {
            return Some(elf);
        }
        let (name, checksum) = self.file.gnu_debuglink().ok().flatten()?;
        for path in debug_link_paths(&self.path, name) {
            if path == self.path {
                continue;
            }
            let Some(elf) = Elf::open(&path) else {
                continue;
            };
            let same_build = match (build_id, elf.build_id()) {
                (Some(ours), Some(theirs)) => ours == theirs,
                _ => crc32(elf.bytes.as_slice()) == checksum,
            };
            if same_build {
                return Some(elf);
            }
        }
        None
    }

    /// The file of shared debug info (made by dwz) that this debug file
    /// refers to.
    pub(crate) fn supplementary_debug_file(&self) -> Option<Elf> {
        let (name, build_id) = self.file.gnu_debugaltlink().ok().flatten()?;
        let named = Path::new(OsStr::from_bytes(name));
        let beside = self.path.parent().map(|folder| folder.join(named));
        let by_id = build_id_path(Path::new(DEBUG_ROOT), build_id);
        [Some(named.to_path_buf()), beside, by_id]
            .into_iter()
            .flatten()
            .filter_map(|path| Elf::open(&path))
            .find(|elf| elf.build_id() == Some(build_id))
    }
}

fn build_id_path(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(root.join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// gdb's order: beside the file, in `.debug` beside it, under the debug root.
fn debug_link_paths(own_path: &Path, name: &[u8]) -> Vec<PathBuf> {
    let name = OsStr::from_bytes(name);
    let Some(folder) = own_path.parent() else {
        return Vec::new();
    };
    let mut paths = vec![folder.join(name), folder.join(".debug").join(name)];
    if let Ok(absolute) = folder.canonicalize()
        && let Ok(relative) = absolute.strip_prefix("/")
    {
        paths.push(Path::new(DEBUG_ROOT).join(relative).join(name));
    }
    paths
}

/// The checksum of `.gnu_debuglink`: CRC-32 as in zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|index| {
        (0..8).fold(index as u32, |value, _| {
            (value >> 1) ^ (0xedb8_8320 & (value & 1).wrapping_neg())
        })
    });
    !bytes.iter().fold(!0u32, |crc, byte| {
        table[usize::from((crc as u8) ^ byte)] ^ (crc >> 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_one_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn build_ids_name_their_file() {
        assert_eq!(
            build_id_path(Path::new("/d"), &[0xab, 0x01, 0xff]),
            Some(PathBuf::from("/d/.build-id/ab/01ff.debug"))
        );
        assert_eq!(build_id_path(Path::new("/d"), &[1]), None);
        assert_eq!(build_id_path(Path::new("/d"), &[]), None);
    }
}
