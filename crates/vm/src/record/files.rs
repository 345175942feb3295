//! Files that the program mapped, by hash.
//!
//! Programs and libraries are referred to by path and hash: they change
//! rarely, and a replay checks. Files the program may change, or that lie
//! where files come and go, are copied into the recording when they are
//! mapped. `pack` copies the rest.

use super::{RecordError, write_json};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
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

/// The recording's table of mapped files, shared by its processes.
pub struct Files {
    directory: PathBuf,
    list: Vec<MappedFile>,
}

/// Directories whose files belong to installed packages.
const STABLE: [&str; 8] = [
    "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/opt/", "/etc/", "/nix/",
];

impl Files {
    pub fn create(directory: &Path) -> Self {
        Files {
            directory: directory.to_path_buf(),
            list: Vec::new(),
        }
    }

    fn table(&self) -> PathBuf {
        self.directory.join("files.json")
    }

    pub fn open(directory: &Path) -> Result<Self, RecordError> {
        let mut files = Files::create(directory);
        let path = files.table();
        match fs::read(&path) {
            Ok(text) => {
                files.list = serde_json::from_slice(&text)
                    .map_err(|error| RecordError::damaged(&path, &error.to_string()))?;
                Ok(files)
            }
            Err(error) => Err(RecordError::read(&path, error)),
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
        let (size, hash) = hash_file(path, file)?;
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
            self.store(path, file, &hash)?;
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

    fn stored_path(&self, hash: &str) -> PathBuf {
        self.directory.join("files").join(hash)
    }

    fn store(&self, path: &Path, file: &File, hash: &str) -> Result<(), RecordError> {
        let target = self.stored_path(hash);
        let folder = self.directory.join("files");
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder)
            .map_err(|error| RecordError::write(&folder, error))?;
        let mut copy = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&target)
            .map_err(|error| RecordError::write(&target, error))?;
        let mut source = reopen(path, file)?;
        std::io::copy(&mut source, &mut copy)
            .map_err(|error| RecordError::write(&target, error))?;
        Ok(())
    }

    /// Opens the file that was mapped in the recorded run, checked.
    pub fn open_mapped(&self, index: FileIndex) -> Result<(PathBuf, File), RecordError> {
        let Some(entry) = self.list.get(index as usize) else {
            return Err(RecordError::damaged(
                &self.table(),
                &format!("file number {index} is missing"),
            ));
        };
        let original = entry.path().to_path_buf();
        if entry.stored {
            let path = self.stored_path(&entry.hash);
            let file = File::open(&path).map_err(|error| RecordError::read(&path, error))?;
            if hash_file(&path, &file)?.1 != entry.hash {
                return Err(RecordError::damaged(
                    &path,
                    "its contents are not what was recorded",
                ));
            }
            return Ok((original, file));
        }
        let file = File::open(&original).map_err(|error| RecordError::read(&original, error))?;
        if hash_file(&original, &file)?.1 != entry.hash {
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
            let (path, file) = self.open_mapped(index as FileIndex)?;
            let hash = self.list[index].hash.clone();
            self.store(&path, &file, &hash)?;
            self.list[index].stored = true;
            packed += 1;
        }
        write_json(&self.table(), &self.list)?;
        Ok(packed)
    }
}

/// A second handle with a position of its own.
fn reopen(path: &Path, file: &File) -> Result<File, RecordError> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|error| RecordError::read(path, error))
}

fn hash_file(path: &Path, file: &File) -> Result<(u64, String), RecordError> {
    let mut source = reopen(path, file)?;
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 1 << 18];
    let mut size = 0;
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return Ok((size, format!("{:032x}", hash.digest128()))),
            Ok(count) => {
                hash.update(&buffer[..count]);
                size += count as u64;
            }
            Err(error) => return Err(RecordError::read(path, error)),
        }
    }
}
