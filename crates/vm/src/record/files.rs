//! Files that the program mapped, by hash.
//!
//! A recording outlives the installation of other packages: what that rewrites
//! (the loader's cache, archives of locales, small libraries) is copied when it
//! is mapped, like files the program may change and files outside packages.
//! Large programs and libraries are referred to by path and hash: they change
//! only with their own package, and a replay checks. `pack` copies them too.
//! Files that are read, not mapped, are in the recording as input.

use super::{RecordError, read_json, write_json};
use folder::{HUGE, Place, copy_contents, each_block, is_empty};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

pub type FileIndex = u32;

/// One version of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    #[serde(with = "super::bytes")]
    path: Vec<u8>,
    size: u64,
    hash: String,
    /// The recording has a copy under `files/HASH`.
    stored: bool,
}

impl MappedFile {
    pub fn path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(&self.path))
    }
}

impl fmt::Display for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copied = if self.stored { ", copied" } else { "" };
        write!(
            f,
            "{} ({} bytes, {}{copied})",
            self.path().display(),
            self.size,
            self.hash
        )
    }
}

/// One process's table of mapped files; their copies are shared by all
/// processes of the recording.
pub struct Files {
    directory: PathBuf,
    process: u32,
    list: Vec<MappedFile>,
    /// Bytes copied because the file is small.
    small: u64,
}

/// Directories whose files belong to installed packages. /etc is none: its
/// caches and settings change with every package.
const STABLE: [&str; 7] = [
    "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/opt/", "/nix/",
];

/// Files of packages up to this size are copied: six of seven of Debian's
/// libraries are smaller. Copying this much takes half a millisecond.
const SMALL: u64 = 1 << 20;

/// The same for files that are no programs: caches and archives, which are
/// written anew when other packages come. Debian's locale-archive has 3 MB with
/// one language; with all 500 it has 220.
const SMALL_DATA: u64 = 16 << 20;

/// All that a process has copied because it is small: thirty libraries and a
/// few archives. A store of a hundred recordings stays below 4 GB, and as a
/// rule far below, because they share their copies.
const ALL_SMALL: u64 = 32 << 20;

/// Recordings of a store that may have the same file, the latest first.
const SIBLINGS: u64 = 4;

impl Files {
    pub fn create(directory: &Path, process: u32) -> Self {
        Files {
            directory: directory.to_path_buf(),
            process,
            list: Vec::new(),
            small: 0,
        }
    }

    /// The recording is reached by another name from now on.
    pub fn relocate(&mut self, directory: PathBuf) {
        self.directory = directory;
    }

    fn table(&self) -> Place {
        Place::of(&self.directory)
            .join(self.process.to_string())
            .join("files.json")
    }

    pub fn open(directory: &Path, process: u32) -> Result<Self, RecordError> {
        let mut files = Files::create(directory, process);
        let table = files.table();
        files.list = match read_json(&table) {
            // A process that mapped nothing has no table.
            Err(RecordError::Read { error, .. })
                if error.kind() == std::io::ErrorKind::NotFound =>
            {
                Vec::new()
            }
            list => list?,
        };
        // They name files.
        let is_hash = |entry: &MappedFile| {
            entry.hash.len() == 32 && entry.hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        match files.list.iter().all(is_hash) {
            true => Ok(files),
            false => Err(RecordError::damaged(&table.path(), "a hash is none")),
        }
    }

    pub fn list(&self) -> &[MappedFile] {
        &self.list
    }

    /// Notes the file open as `file` and known as `path`; copies it if it may
    /// change (`writable`: the program has it open for writing).
    pub fn add(
        &mut self,
        path: &Path,
        file: &File,
        writable: bool,
    ) -> Result<FileIndex, RecordError> {
        let (size, hash) = if writable {
            hash_file(path, file)?
        } else {
            known_hash(path, file)?
        };
        let name = path.as_os_str().as_bytes();
        let known = self
            .list
            .iter()
            .position(|entry| entry.path == name && entry.hash == hash);
        if let Some(index) = known {
            return Ok(index as FileIndex);
        }
        let stable = STABLE.iter().any(|prefix| path.starts_with(prefix));
        let changes = writable || !stable;
        let small = !changes && self.small + size <= ALL_SMALL && is_small(file, size);
        if small {
            self.small += size;
        }
        let store = changes || small;
        if store && !self.has(&hash, size) && (writable || !self.share(&hash, size)) {
            self.store(file, &hash)?;
        }
        self.list.push(MappedFile {
            path: name.to_vec(),
            size,
            hash,
            stored: store,
        });
        write_json(&self.table(), &self.list)?;
        Ok((self.list.len() - 1) as FileIndex)
    }

    fn stored(&self, hash: &str) -> Place {
        Place::of(&self.directory).join("files").join(hash)
    }

    /// A process of the tree has stored it already.
    fn has(&self, hash: &str, size: u64) -> bool {
        let facts = self
            .stored(hash)
            .open(size)
            .and_then(|file| file.metadata());
        facts.is_ok_and(|facts| facts.size() == size)
    }

    /// Gives a file of another recording of the same store a second name here.
    /// Copies are never written to. False if there is none.
    fn share(&self, hash: &str, size: u64) -> bool {
        let number = || -> Option<u64> { self.directory.file_name()?.to_str()?.parse().ok() };
        let (Some(store), Some(number)) = (self.directory.parent(), number()) else {
            return false;
        };
        // There numbers are descriptors.
        if store.starts_with("/proc") {
            return false;
        }
        let target = self.stored(hash);
        let folder = Place::of(&self.directory).join("files").ensure_folder();
        let latest = number.saturating_sub(SIBLINGS)..number;
        folder.is_ok()
            && latest.rev().any(|sibling| {
                let place = Place::of(store).join(sibling.to_string());
                let there = place.join("files").join(hash);
                let same = |place: &Place| {
                    let file = place.open(size).ok()?;
                    let found = known_hash(&place.path(), &file).ok()?;
                    (found.1 == hash).then_some(())
                };
                if same(&there).is_none() || target.link_to(&there).is_err() {
                    return false;
                }
                // It may have been changed meanwhile.
                let is_right = same(&target).is_some();
                if !is_right {
                    // What cannot be removed is replaced when it is stored.
                    let _ = target.remove();
                }
                is_right
            })
    }

    fn store(&self, file: &File, hash: &str) -> Result<(), RecordError> {
        let folder = Place::of(&self.directory).join("files");
        folder
            .ensure_folder()
            .map_err(|error| RecordError::write(&folder.path(), error))?;
        // Another process of the tree may be storing the same file.
        let target = self.stored(hash);
        target
            .replace(|copy| copy_contents(file, copy))
            .map_err(|error| RecordError::write(&target.path(), error))
    }

    /// Files outside of the recording that are what they were; of those that it
    /// has copies of not the ones larger than `largest`.
    pub fn unchanged(&self, largest: u64) -> Vec<PathBuf> {
        let is_unchanged = |entry: &MappedFile| {
            let path = entry.path();
            if entry.stored && entry.size > largest {
                return false;
            }
            let Ok(file) = folder::open_regular(path, folder::STREAM) else {
                return false;
            };
            file.metadata()
                .is_ok_and(|facts| facts.size() == entry.size)
                && known_hash(path, &file).is_ok_and(|(_, hash)| hash == entry.hash)
        };
        let unchanged = self.list.iter().filter(|entry| is_unchanged(entry));
        unchanged.map(|entry| entry.path().to_path_buf()).collect()
    }

    /// Opens the file that was mapped in the recorded run, checked.
    pub fn open_mapped(&self, index: FileIndex) -> Result<(PathBuf, File), RecordError> {
        let Some(entry) = self.list.get(index as usize) else {
            return Err(RecordError::damaged(
                &self.table().path(),
                &format!("file number {index} is missing"),
            ));
        };
        let original = entry.path().to_path_buf();
        if entry.stored {
            let place = self.stored(&entry.hash);
            let path = place.path();
            let file = place
                .open(entry.size)
                .map_err(|error| RecordError::read(&path, error))?;
            if known_hash(&path, &file)?.1 != entry.hash {
                return Err(RecordError::damaged(
                    &path,
                    "its contents are not what was recorded",
                ));
            }
            return Ok((original, file));
        }
        let file = match folder::open_regular(&original, folder::STREAM) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(RecordError::FileChanged { path: original });
            }
            other => other.map_err(|error| RecordError::read(&original, error))?,
        };
        let size = file.metadata().map_or(0, |facts| facts.size());
        if size != entry.size || known_hash(&original, &file)?.1 != entry.hash {
            return Err(RecordError::FileChanged { path: original });
        }
        Ok((original, file))
    }

    /// Copies every file into the recording that is not there yet; returns
    /// how many.
    pub fn pack(&mut self) -> Result<usize, RecordError> {
        let mut packed = 0;
        for index in 0..self.list.len() {
            if self.list[index].stored {
                continue;
            }
            let (_, file) = self.open_mapped(index as FileIndex)?;
            let hash = self.list[index].hash.clone();
            self.store(&file, &hash)?;
            self.list[index].stored = true;
            packed += 1;
        }
        write_json(&self.table(), &self.list)?;
        Ok(packed)
    }
}

/// Small enough to be copied whatever it is, or no program and small for that.
fn is_small(file: &File, size: u64) -> bool {
    const ELF: [u8; 4] = *b"\x7fELF";
    let mut start = [0; ELF.len()];
    let mut is_program = || file.read_exact_at(&mut start, 0).is_ok() && start == ELF;
    size <= SMALL || (size <= SMALL_DATA && !is_program())
}

/// What tells that a file has not changed since it was hashed: device, inode,
/// size, and the times of the last change of contents and of inode.
type Version = [i64; 7];

thread_local! {
    /// Hashes known in this process (and taken along by its forks).
    static KNOWN: std::cell::RefCell<std::collections::HashMap<Version, String>> =
        std::cell::RefCell::default();
}

/// The hash of a file that nobody is writing through a mapping; computed once
/// per version of the file.
fn known_hash(path: &Path, file: &File) -> Result<(u64, String), RecordError> {
    let data = file
        .metadata()
        .map_err(|error| RecordError::read(path, error))?;
    let version = [
        data.dev() as i64,
        data.ino() as i64,
        data.size() as i64,
        data.mtime(),
        data.mtime_nsec(),
        data.ctime(),
        data.ctime_nsec(),
    ];
    if let Some(hash) = KNOWN.with_borrow(|known| known.get(&version).cloned()) {
        return Ok((data.size(), hash));
    }
    let (size, hash) = hash_file(path, file)?;
    // A file changed in this very tick of the clock may change again in it.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs() as i64);
    if now - data.ctime() > 2 {
        KNOWN.with_borrow_mut(|known| known.insert(version, hash.clone()));
    }
    Ok((size, hash))
}

fn hash_file(path: &Path, file: &File) -> Result<(u64, String), RecordError> {
    let huge = file.metadata().is_ok_and(|data| data.size() >= HUGE);
    let mut hash = Xxh3::new();
    let size = each_block(file, |position, block| {
        if huge && is_empty(block) {
            return Ok(());
        }
        if huge {
            hash.update(&position.to_le_bytes());
        }
        hash.update(block);
        Ok(())
    })
    .map_err(|error| RecordError::read(path, error))?;
    Ok((size, format!("{:032x}", hash.digest128())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("deadheat-{name}-{}", std::process::id()));
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        (path, file)
    }

    #[test]
    fn a_huge_file_is_hashed_by_what_is_in_it() {
        let (path, file) = temporary("huge");
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", 1 << 39).unwrap();
        let (size, hash) = hash_file(&path, &file).unwrap();
        assert_eq!(size, 1 << 40);
        let (second, copy) = temporary("copy-of-huge");
        copy_contents(&file, &copy).unwrap();
        assert_eq!(hash_file(&second, &copy).unwrap(), (size, hash.clone()));
        assert!(copy.metadata().unwrap().blocks() < 4096);
        std::fs::remove_file(second).unwrap();
        // A zero that was written is no other than one in a hole.
        file.write_all_at(&[0], 1 << 38).unwrap();
        assert_eq!(hash_file(&path, &file).unwrap().1, hash);
        file.write_all_at(b"y", 1 << 38).unwrap();
        assert_ne!(hash_file(&path, &file).unwrap().1, hash);
        std::fs::remove_file(path).unwrap();
    }

    /// A store with two recordings.
    fn recordings() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let store = tempfile::tempdir().unwrap();
        let paths = ["1", "2"].map(|name| store.path().join(name));
        for path in &paths {
            std::fs::create_dir_all(path.join("0")).unwrap();
        }
        let [first, second] = paths;
        (store, first, second)
    }

    #[test]
    fn small_files_of_packages_are_copied() {
        let (_store, first, _) = recordings();
        let mut files = Files::create(&first, 0);
        let (path, file) = temporary("small");
        let mut add = |name: &str, size: u64, start: &[u8]| {
            // Other contents, another hash.
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(name.as_bytes(), size - 64).unwrap();
            file.write_all_at(start, 0).unwrap();
            let index = files.add(Path::new(name), &file, false).unwrap();
            files.list()[index as usize].stored
        };
        assert!(add("/etc/ld.so.cache", SMALL_DATA + 1, b"glibc"));
        assert!(add("/home/me/program", 9 * SMALL, b"\x7fELF"));
        assert!(add("/usr/lib/small.so", SMALL, b"\x7fELF"));
        assert!(!add("/usr/lib/large.so", SMALL + 1, b"\x7fELF"));
        assert!(add("/usr/lib/locale/locale-archive", 3 << 20, b"\x09"));
        assert!(!add("/usr/lib/locale/all", SMALL_DATA + 1, b"\x09"));
        assert!(add("/usr/share/one", 14 << 20, b"one"));
        assert!(add("/usr/share/two", 13 << 20, b"two"));
        assert!(!add("/usr/share/three", 4 << 20, b"3"), "no room is left");
        assert!(add("/usr/share/four", 64 << 10, b"4"), "this one fits");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn recordings_of_a_store_share_copies_that_are_right() {
        let (_store, first, second) = recordings();
        let (path, file) = temporary("shared");
        file.write_all_at(b"what is in it", 0).unwrap();
        let name = Path::new("/usr/lib/one.so");
        let stored = |directory: &Path| {
            let mut files = Files::create(directory, 0);
            let index = files.add(name, &file, false).unwrap();
            let (original, _) = files.open_mapped(index).unwrap();
            assert_eq!(original, name);
            directory
                .join("files")
                .join(&files.list()[index as usize].hash)
        };
        let one = stored(&first);
        let two = stored(&second);
        let inode = |path: &Path| path.metadata().unwrap().ino();
        assert_eq!(inode(&one), inode(&two));
        // One that was changed is not taken.
        std::fs::remove_file(&two).unwrap();
        std::fs::write(&one, b"something els").unwrap();
        let two = stored(&second);
        assert_ne!(inode(&one), inode(&two));
        assert_eq!(std::fs::read(two).unwrap(), b"what is in it");
        std::fs::remove_file(path).unwrap();
    }
}
