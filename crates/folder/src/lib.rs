//! Files of folders that come from elsewhere: recordings, stores, packs.
//!
//! A recording may come from a bug tracker. Whoever made it chose what its
//! names stand for: a link to a file of ours, a pipe that nobody writes to,
//! `/dev/zero`. So everything below the folder that the user named is reached
//! through a [`Place`], which guarantees:
//!
//! - no link is followed, neither at the end nor on the way: every part of a
//!   name is looked up in the folder opened before it (`openat` with
//!   `O_NOFOLLOW`), and no part can be `..`;
//! - what is opened is a regular file and not larger than the caller says;
//!   opening never waits;
//! - what is written is a file made for it (`O_EXCL`), put in place by a rename
//!   inside the opened folder.
//!
//! The folder itself is opened as the user named it: links that lead there are
//! the user's. Files that debug info or a recording name by an absolute path
//! are opened with [`open_regular`]: links are followed, since they are the
//! machine's own, and the rest holds.

mod contents;

pub use contents::{HUGE, copy_contents, each_block, is_empty};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Why something in a folder is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it is a symbolic link, and links in such a folder are not followed")]
    Link,
    #[error("it is {0}, not a regular file")]
    Kind(&'static str),
    #[error("it is {0}, not a folder")]
    NotAFolder(&'static str),
    #[error("it is larger than {limit} bytes, the most it can have")]
    TooLarge { limit: u64 },
    #[error("its name leads out of the folder")]
    Outside,
    #[error("it has a second name, which may lie outside the folder")]
    SecondName,
    #[error("folders lie in folders more than {0} deep")]
    TooDeep(u32),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        io::Error::other(refusal)
    }
}

/// JSON texts of recordings: the arguments and the environment of a program
/// are a few megabytes at most, a table of mapped files too.
pub const TEXT: u64 = 64 << 20;

/// Streams of recordings, and copies of mapped files: read piece by piece. No
/// file system here has larger files.
pub const STREAM: u64 = 1 << 50;

/// A name below a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    root: PathBuf,
    names: Vec<OsString>,
}

impl Place {
    /// The folder that the user named.
    pub fn of(root: &Path) -> Place {
        Place {
            root: root.to_path_buf(),
            names: Vec::new(),
        }
    }

    /// A name in this folder. One that is no single name cannot be opened.
    pub fn join(&self, name: impl AsRef<OsStr>) -> Place {
        let mut place = self.clone();
        place.names.push(name.as_ref().to_os_string());
        place
    }

    /// For sentences; nothing is opened by it.
    pub fn path(&self) -> PathBuf {
        self.names
            .iter()
            .fold(self.root.clone(), |path, name| path.join(name))
    }

    fn root(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(CWD, &self.root, flags, Mode::empty())?)
    }

    /// Opens the folder that the last name is in.
    fn parent(&self) -> io::Result<(OwnedFd, &OsStr)> {
        let (last, way) = self.names.split_last().ok_or(Refusal::Outside)?;
        let mut folder = self.root()?;
        for name in way {
            folder = step(&folder, name)?;
        }
        single(last)?;
        Ok((folder, last))
    }

    /// This place as an opened folder.
    fn folder(&self) -> io::Result<OwnedFd> {
        let mut folder = self.root()?;
        for name in &self.names {
            folder = step(&folder, name)?;
        }
        Ok(folder)
    }

    /// Opens a regular file of at most `limit` bytes for reading.
    pub fn open(&self, limit: u64) -> io::Result<File> {
        let (folder, name) = self.parent()?;
        open_in(&folder, name, OFlags::RDONLY, limit)
    }

    /// All of a file of at most `limit` bytes.
    pub fn read(&self, limit: u64) -> io::Result<Vec<u8>> {
        read_all(self.open(limit)?, limit)
    }

    /// Whether a regular file is there.
    pub fn is_file(&self) -> bool {
        self.kind() == Some(FileType::RegularFile)
    }

    /// Whether anything is there.
    pub fn exists(&self) -> bool {
        self.kind().is_some()
    }

    /// Whether a folder is there.
    pub fn is_folder(&self) -> bool {
        self.folder().is_ok()
    }

    fn kind(&self) -> Option<FileType> {
        let (folder, name) = self.parent().ok()?;
        let facts = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(facts.st_mode))
    }

    /// Makes a file that was not there, readable by its owner only.
    pub fn create(&self) -> io::Result<File> {
        let (folder, name) = self.parent()?;
        create_in(&folder, name)
    }

    /// Opens a file to append to, making it if there is none.
    pub fn append(&self) -> io::Result<File> {
        let (folder, name) = self.parent()?;
        let flags = OFlags::WRONLY | OFlags::APPEND;
        for _ in 0..8 {
            match open_in(&folder, name, flags, STREAM) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(file) if file.metadata()?.nlink() > 1 => return Err(Refusal::SecondName.into()),
                Ok(file) => return Ok(file),
            }
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::openat(&folder, name, flags, Mode::RUSR | Mode::WUSR) {
                // Another process of ours was faster.
                Err(Errno::EXIST) => {}
                other => return Ok(File::from(other?)),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Puts a new file in the place of whatever file has this name, whole or
    /// not at all.
    pub fn replace(&self, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let (folder, name) = self.parent()?;
        let mut half = name.to_os_string();
        half.push(format!(".{}.part", std::process::id()));
        let mut file = match create_in(&folder, &half) {
            // Left by a process of the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                rustix::fs::unlinkat(&folder, half.as_os_str(), AtFlags::empty())?;
                create_in(&folder, &half)?
            }
            other => other?,
        };
        let written = fill(&mut file).and_then(|()| {
            Ok(rustix::fs::renameat(
                &folder,
                half.as_os_str(),
                &folder,
                name,
            )?)
        });
        if written.is_err() {
            // The error that matters is the one returned.
            let _ = rustix::fs::unlinkat(&folder, half.as_os_str(), AtFlags::empty());
        }
        written
    }

    /// As [`Place::replace`], with these bytes.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(|file| file.write_all(bytes))
    }

    /// Makes this another name of a regular file; nothing had it before.
    pub fn link_to(&self, file: &Place) -> io::Result<()> {
        let (from, there) = file.parent()?;
        let (folder, name) = self.parent()?;
        let facts = rustix::fs::statat(&from, there, AtFlags::SYMLINK_NOFOLLOW)?;
        check(FileType::from_raw_mode(facts.st_mode))?;
        Ok(rustix::fs::linkat(
            &from,
            there,
            &folder,
            name,
            AtFlags::empty(),
        )?)
    }

    /// Makes a folder that was not there, open to its owner only.
    pub fn make_folder(&self) -> io::Result<()> {
        let (folder, name) = self.parent()?;
        Ok(rustix::fs::mkdirat(&folder, name, Mode::RWXU)?)
    }

    /// Makes a folder if there is none.
    pub fn ensure_folder(&self) -> io::Result<()> {
        match self.make_folder() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.folder().map(|_| ()),
            other => other,
        }
    }

    /// Removes a folder and all in it, or a file or link. Nothing there is
    /// fine.
    pub fn remove(&self) -> io::Result<()> {
        let (folder, name) = self.parent()?;
        match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => {
                // The standard library follows no links from here on.
                let opened = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
                std::fs::remove_dir_all(opened.join(name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The names in this folder, in order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let folder = self.folder()?;
        let mut names = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&folder, ".", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::new(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_os_string());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Copies what is in this folder into another one, which is there. Holes
    /// stay holes. Anything but files and folders is refused.
    pub fn copy_into(&self, to: &Place) -> Result<(), CopyError> {
        self.copy_level(to, 0)
    }

    fn copy_level(&self, to: &Place, depth: u32) -> Result<(), CopyError> {
        let read = |place: &Place, error| CopyError::Read {
            path: place.path(),
            error,
        };
        let write = |place: &Place, error| CopyError::Write {
            path: place.path(),
            error,
        };
        if depth > DEEPEST {
            return Err(read(self, Refusal::TooDeep(DEEPEST).into()));
        }
        for name in self.names().map_err(|error| read(self, error))? {
            let (one, other) = (self.join(&name), to.join(&name));
            if one.kind() == Some(FileType::Directory) {
                other
                    .ensure_folder()
                    .map_err(|error| write(&other, error))?;
                one.copy_level(&other, depth + 1)?;
                continue;
            }
            let file = one.open(STREAM).map_err(|error| read(&one, error))?;
            let copy = other.create().map_err(|error| write(&other, error))?;
            copy_contents(&file, &copy).map_err(|error| write(&other, error))?;
            // When a recording was made tells which files are newer.
            let made = file.metadata().and_then(|facts| facts.modified());
            made.and_then(|made| copy.set_modified(made))
                .map_err(|error| write(&other, error))?;
        }
        Ok(())
    }

    /// Bytes of all files in this folder.
    pub fn size(&self) -> u64 {
        self.size_of_level(0)
    }

    fn size_of_level(&self, depth: u32) -> u64 {
        let Ok(names) = self.names() else { return 0 };
        let size_of = |name: &OsString| {
            let place = self.join(name);
            match place.kind() {
                Some(FileType::Directory) if depth < DEEPEST => place.size_of_level(depth + 1),
                Some(FileType::RegularFile) => place
                    .open(u64::MAX)
                    .and_then(|file| file.metadata())
                    .map_or(0, |facts| facts.len()),
                _ => 0,
            }
        };
        names.iter().map(size_of).sum()
    }
}

/// Recordings have folders two deep, with those of other inputs in them five.
const DEEPEST: u32 = 16;

/// What could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot read {}: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
}

/// Makes a folder that the user named, open to its owner only.
pub fn make(path: &Path) -> io::Result<Place> {
    rustix::fs::mkdirat(CWD, path, Mode::RWXU)?;
    Ok(Place::of(path))
}

/// One name, of something in the folder itself.
fn single(name: &OsStr) -> io::Result<()> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(()),
        _ => Err(Refusal::Outside.into()),
    }
}

fn step(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    single(name)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let facts = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Err(match FileType::from_raw_mode(facts.st_mode) {
                FileType::Symlink => Refusal::Link,
                kind => Refusal::NotAFolder(named(kind)),
            }
            .into())
        }
        other => Ok(other?),
    }
}

fn named(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something else",
    }
}

fn check(kind: FileType) -> Result<(), Refusal> {
    match kind {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Refusal::Link),
        other => Err(Refusal::Kind(named(other))),
    }
}

/// Looks before it opens: opening a device can have effects.
fn open_in(folder: &OwnedFd, name: &OsStr, how: OFlags, limit: u64) -> io::Result<File> {
    let facts = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    check(FileType::from_raw_mode(facts.st_mode))?;
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(Refusal::Link.into()),
        other => other?,
    };
    checked(File::from(opened), limit)
}

/// The same questions about what was opened in the end.
fn checked(file: File, limit: u64) -> io::Result<File> {
    let facts = rustix::fs::fstat(&file)?;
    check(FileType::from_raw_mode(facts.st_mode))?;
    if facts.st_size as u64 > limit {
        return Err(Refusal::TooLarge { limit }.into());
    }
    Ok(file)
}

fn create_in(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(file))
}

/// Files grow while they are read, and devices have no size.
fn read_all(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(Refusal::TooLarge { limit }.into());
    }
    Ok(bytes)
}

/// Opens a regular file of at most `limit` bytes that something from elsewhere
/// names: a source file, a library. Links are followed.
pub fn open_regular(path: &Path, limit: u64) -> io::Result<File> {
    let facts = rustix::fs::stat(path)?;
    check(FileType::from_raw_mode(facts.st_mode))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    checked(
        File::from(rustix::fs::open(path, flags, Mode::empty())?),
        limit,
    )
}

/// All of such a file.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_all(open_regular(path, limit)?, limit)
}

/// All of a file that the user named, at most `limit` bytes. It may be a pipe,
/// which is waited for.
pub fn read_named(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder with a file outside that nobody may touch, and all the kinds of
    /// names that could lead there or nowhere.
    fn hostile() -> (tempfile::TempDir, Place) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("rec");
        std::fs::create_dir_all(root.join("real")).unwrap();
        std::fs::write(outer.path().join("outside"), "theirs").unwrap();
        std::fs::write(root.join("file"), "ours").unwrap();
        std::fs::write(root.join("real/file"), "inner").unwrap();
        symlink("../outside", root.join("link")).unwrap();
        symlink("/no/such/file", root.join("dangling")).unwrap();
        symlink("..", root.join("way")).unwrap();
        symlink("/dev/zero", root.join("zero")).unwrap();
        rustix::fs::mknodat(
            CWD,
            root.join("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        (outer, Place::of(&root))
    }

    fn refusal<T: std::fmt::Debug>(result: io::Result<T>) -> Refusal {
        let error = result.expect_err("it must be refused");
        *error
            .get_ref()
            .and_then(|inner| inner.downcast_ref())
            .unwrap_or_else(|| panic!("{error}"))
    }

    #[test]
    fn only_regular_files_of_the_folder_are_read() {
        let (_outer, place) = hostile();
        assert_eq!(place.join("file").read(100).unwrap(), b"ours");
        assert_eq!(place.join("real").join("file").read(100).unwrap(), b"inner");
        for link in ["link", "dangling", "zero", "way"] {
            assert_eq!(refusal(place.join(link).read(100)), Refusal::Link);
            assert_eq!(refusal(place.join(link).append()), Refusal::Link);
        }
        for (name, kind) in [
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("real", "a folder"),
        ] {
            assert_eq!(refusal(place.join(name).read(100)), Refusal::Kind(kind));
            assert_eq!(refusal(place.join(name).append()), Refusal::Kind(kind));
        }
        let limit = Refusal::TooLarge { limit: 3 };
        assert_eq!(refusal(place.join("file").read(3)), limit);
        let way = place.join("way").join("outside");
        assert_eq!(refusal(way.read(100)), Refusal::Link);
        for name in [
            "..",
            ".",
            "",
            "real/file",
            "../outside",
            "/etc/passwd",
            "real/",
        ] {
            assert_eq!(
                refusal(place.join(name).read(100)),
                Refusal::Outside,
                "{name}"
            );
            let below = place.join(name).join("file");
            assert_eq!(refusal(below.read(100)), Refusal::Outside, "{name}");
        }
    }

    #[test]
    fn nothing_outside_is_written() {
        let (outer, place) = hostile();
        let outside = || std::fs::read(outer.path().join("outside")).unwrap();
        for name in ["link", "dangling", "zero", "pipe", "socket", "file"] {
            assert!(place.join(name).create().is_err(), "{name}");
            assert_eq!(outside(), b"theirs");
        }
        // What had the name is replaced, not written through.
        for name in ["link", "dangling", "zero", "pipe", "file"] {
            place.join(name).write(b"new").unwrap();
            assert_eq!(place.join(name).read(3).unwrap(), b"new");
            assert_eq!(outside(), b"theirs");
        }
        let way = place.join("way");
        assert_eq!(refusal(way.join("new").create()), Refusal::Link);
        assert_eq!(refusal(way.join("new").make_folder()), Refusal::Link);
        assert_eq!(refusal(way.join("outside").remove()), Refusal::Link);
        assert_eq!(refusal(way.ensure_folder()), Refusal::Link);
        way.remove().unwrap();
        assert_eq!(outside(), b"theirs");
        place.join("real").remove().unwrap();
        assert!(!place.join("real").is_folder());
        std::fs::hard_link(outer.path().join("outside"), outer.path().join("rec/hard")).unwrap();
        assert_eq!(refusal(place.join("hard").append()), Refusal::SecondName);
    }

    #[test]
    fn a_stale_half_file_is_not_written_through() {
        let (outer, place) = hostile();
        let half = format!("new.{}.part", std::process::id());
        symlink("../outside", outer.path().join("rec").join(half)).unwrap();
        place.join("new").write(b"new").unwrap();
        assert_eq!(
            std::fs::read(outer.path().join("outside")).unwrap(),
            b"theirs"
        );
    }

    #[test]
    fn folders_are_copied_without_what_leads_out() {
        let (outer, place) = hostile();
        let to = outer.path().join("copy");
        std::fs::create_dir(&to).unwrap();
        let refused = place.copy_into(&Place::of(&to)).unwrap_err().to_string();
        assert!(
            refused.contains("dangling: it is a symbolic link"),
            "{refused}"
        );
        for name in ["link", "dangling", "zero", "way", "pipe", "socket"] {
            place.join(name).remove().unwrap();
        }
        std::fs::remove_dir_all(&to).unwrap();
        std::fs::create_dir(&to).unwrap();
        place.copy_into(&Place::of(&to)).unwrap();
        assert_eq!(std::fs::read(to.join("real/file")).unwrap(), b"inner");
        assert_eq!(Place::of(&to).size(), 9);
    }

    #[test]
    fn files_named_by_others_are_regular_and_bounded() {
        let (outer, _) = hostile();
        let root = outer.path().join("rec");
        assert_eq!(read_regular(&root.join("link"), 10).unwrap(), b"theirs");
        let refused = |name: &str| refusal(read_regular(&root.join(name), 5));
        assert_eq!(refused("link"), Refusal::TooLarge { limit: 5 });
        assert_eq!(refused("pipe"), Refusal::Kind("a pipe"));
        assert_eq!(refused("zero"), Refusal::Kind("a device"));
        let limit = 1 << 16;
        let zero = read_named(Path::new("/dev/zero"), limit);
        assert_eq!(refusal(zero), Refusal::TooLarge { limit });
    }
}
