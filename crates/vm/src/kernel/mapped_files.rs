//! Files that are mapped: what the guest writes to them by system calls shows in
//! mappings.
//!
//! While recording they are the host's. A replay, or a copy, must not write to the
//! world nor see its changes: it maps copies, one for each file that the guest may
//! write, and writes there what the guest writes.

use super::Halt;
use super::fd::Object;
use crate::io::Written;
use crate::machine::Vm;
use crate::space::SharedObject;
use crate::{host, memory};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// While replaying, and in copies: what stands for the objects that the guest may
/// write through mappings.
#[derive(Default)]
pub struct SharedFiles {
    copies: BTreeMap<SharedObject, File>,
}

impl Hash for SharedFiles {
    /// Their contents: what is not mapped at the moment can be mapped again.
    fn hash<H: Hasher>(&self, state: &mut H) {
        const PART: usize = 1 << 16;
        let SharedFiles { copies } = self;
        let mut bytes = vec![0; PART];
        for (object, copy) in copies {
            object.hash(state);
            let mut position = 0;
            // What cannot be read cannot be read in any copy.
            while let Ok(length @ 1..) = copy.read_at(&mut bytes, position) {
                state.write(&bytes[..length]);
                position += length as u64;
            }
            position.hash(state);
        }
    }
}

impl SharedFiles {
    /// Copies them all, for a process that goes on by itself.
    pub fn separate(&mut self) -> std::io::Result<()> {
        for copy in self.copies.values_mut() {
            let own = memory_file()?;
            folder::copy_contents(copy, &own)?;
            *copy = own;
        }
        Ok(())
    }

    pub fn get(&self, object: SharedObject) -> Option<&File> {
        self.copies.get(&object)
    }

    /// What stands for an object, made if need be; whether it was.
    pub fn of(&mut self, object: SharedObject) -> std::io::Result<(&File, bool)> {
        Ok(match self.copies.entry(object) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(entry) => (entry.insert(memory_file()?), true),
        })
    }
}

/// An empty file in memory.
pub(crate) fn memory_file() -> std::io::Result<File> {
    // SAFETY: a literal name; a new descriptor owned by nobody else.
    unsafe {
        let number = libc::memfd_create(c"replayed".as_ptr(), libc::MFD_CLOEXEC);
        if number < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(number))
    }
}

fn failed(error: std::io::Error) -> Halt {
    Halt::Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Vm {
    /// While replaying, the copy that stands for the file behind `fd` in
    /// mappings, if there is one: what the guest writes to the file
    /// goes there.
    fn replayed_copy(&self, fd: i32) -> Option<&File> {
        self.kernel.shared_files.get(self.file_object(fd)?)
    }

    /// The file behind a descriptor, as mappings know it.
    pub(super) fn file_object(&self, fd: i32) -> Option<SharedObject> {
        match &self.kernel.fds.peek_fd(fd)?.object {
            Object::Host(file) => file.identity.map(SharedObject::File),
            _ => None,
        }
    }

    /// Somebody may show the bytes of the file behind `fd`.
    pub(super) fn is_mapped(&self, fd: i32) -> bool {
        self.file_object(fd)
            .is_some_and(|object| self.space.shows(object))
    }

    /// The guest has written these ranges to the file behind `fd`, at `at` or at
    /// its end: mappings show it.
    pub(super) fn wrote_to_mapped(
        &mut self,
        fd: i32,
        mut at: Option<u64>,
        ranges: &[Written],
    ) -> Result<(), Halt> {
        if !self.is_mapped(fd) {
            return Ok(());
        }
        for (address, length) in ranges {
            let bytes = memory::read_vec(*address, *length)?;
            self.wrote_bytes_to_mapped(fd, at, &bytes);
            at = at.map(|at| at + *length as u64);
        }
        Ok(())
    }

    /// The same for bytes that were never in guest memory.
    pub(super) fn wrote_bytes_to_mapped(&mut self, fd: i32, at: Option<u64>, bytes: &[u8]) {
        if let Some(copy) = self.replayed_copy(fd) {
            let end = || copy.metadata().map_or(0, |facts| facts.len());
            // The copy is memory: there is room, or the next access tells.
            let _ = copy.write_all_at(bytes, at.unwrap_or_else(end));
        }
        match at {
            Some(at) => self.file_changed(fd, at..at.saturating_add(bytes.len() as u64)),
            None => self.file_changed(fd, 0..u64::MAX),
        }
    }

    /// The length of the file behind `fd` was set.
    pub(super) fn set_mapped_length(&mut self, fd: i32, length: u64) -> Result<(), Halt> {
        if let Some(copy) = self.replayed_copy(fd) {
            copy.set_len(length).map_err(failed)?;
        }
        self.file_changed(fd, length..u64::MAX);
        Ok(())
    }

    /// What fallocate has done to the file behind its first argument.
    pub(super) fn allocated_in_mapped(&mut self, mut arguments: [u64; 6]) {
        let fd = arguments[0] as i32;
        if let Some(copy) = self.replayed_copy(fd) {
            arguments[0] = copy.as_raw_fd() as u64;
            // SAFETY: a descriptor of the vm's and plain numbers.
            unsafe { host::syscall(libc::SYS_fallocate, arguments) };
        }
        self.file_changed(fd, 0..u64::MAX);
    }

    fn file_changed(&mut self, fd: i32, bytes: Range<u64>) {
        if let Some(object) = self.file_object(fd) {
            self.object_written(object, bytes);
        }
    }

    /// The copy to map in place of `original`, made if need be. None
    /// for a file that the guest only reads: nothing can tell a private
    /// mapping from a shared one then.
    pub(super) fn stand_in(&mut self, fd: i32, original: &File) -> Result<Option<File>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let writable = description.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let Some(object) = self.file_object(fd) else {
            return Ok(None);
        };
        if !writable && self.replayed_copy(fd).is_none() {
            return Ok(None);
        }
        let (copy, new) = self.kernel.shared_files.of(object).map_err(failed)?;
        if new {
            folder::copy_contents(original, copy).map_err(failed)?;
        }
        copy.try_clone().map(Some).map_err(failed)
    }
}
