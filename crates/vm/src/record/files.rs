//! Files that the program mapped, by hash.
//!
//! Programs and libraries are referred to by path and hash: they change
//! rarely, and a replay checks. Files the program may change, or that lie
//! where files come and go, are copied into the recording when they are
//! mapped. `pack` copies the rest.

use super::{RecordError, read_json, write_json};
use folder::{HUGE, Place, copy_contents, each_block, is_empty};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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
}

/// Directories whose files belong to installed packages.
const STABLE: [&str; 8] = [
    "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/opt/", "/etc/", "/nix/",
];

impl Files {
    pub fn create(directory: &Path, process: u32) -> Self {
        Files {
            directory: directory.to_path_buf(),
            process,
            list: Vec::new(),
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
        let store = writable || !stable;
        if store {
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
        let file = folder::open_regular(&original, folder::STREAM)
            .map_err(|error| RecordError::read(&original, error))?;
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
    use std::os::unix::fs::FileExt;

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
}
