//! The guest's descriptor table.
//!
//! Descriptor numbers are the guest's own; behind each is a shared description
//! (as in the kernel), behind that an object. Host descriptors exist only
//! while recording: a replay has none.

use super::{Halt, Outcome};
use crate::machine::Vm;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

pub type DescriptionId = u32;

/// An open file description.
pub struct Description {
    pub object: Object,
    /// O_APPEND, O_NONBLOCK and the access mode.
    pub flags: i32,
    /// Position, where the vm keeps it.
    pub offset: u64,
    references: u32,
}

pub enum Object {
    /// Something outside the vm.
    Host(HostFile),
}

pub struct HostFile {
    /// None while replaying.
    pub fd: Option<OwnedFd>,
    /// Where it was opened, if it has a path.
    pub path: Option<PathBuf>,
    /// Inherited as this standard stream; a replay shows its output.
    pub standard_stream: Option<i32>,
    /// A regular file whose position the vm keeps; others are streams or
    /// share their position with another process.
    pub positioned: bool,
}

impl HostFile {
    /// The host's number; -1 while replaying, where it is never used.
    pub fn number(&self) -> i32 {
        self.fd.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    description: DescriptionId,
    close_on_exec: bool,
}

#[derive(Default)]
pub struct Descriptors {
    table: BTreeMap<i32, Entry>,
    descriptions: BTreeMap<DescriptionId, Description>,
    next: DescriptionId,
}

/// Highest number of descriptors a process may have.
pub const LIMIT: i32 = 1 << 16;

impl Descriptors {
    /// Opens a new description at the lowest free number from `from` on.
    pub fn open(
        &mut self,
        from: i32,
        object: Object,
        flags: i32,
        close_on_exec: bool,
    ) -> Result<i32, Halt> {
        let id = self.next;
        self.next += 1;
        self.descriptions.insert(
            id,
            Description {
                object,
                flags,
                offset: 0,
                references: 0,
            },
        );
        let fd = self.lowest_free(from)?;
        self.install(fd, id, close_on_exec);
        Ok(fd)
    }

    fn lowest_free(&self, from: i32) -> Result<i32, Halt> {
        let mut candidate = from;
        for fd in self.table.range(from..).map(|(fd, _)| *fd) {
            if fd != candidate {
                break;
            }
            candidate += 1;
        }
        if candidate < LIMIT {
            Ok(candidate)
        } else {
            Err(Halt::Errno(libc::EMFILE))
        }
    }

    fn install(&mut self, fd: i32, description: DescriptionId, close_on_exec: bool) {
        let entry = Entry {
            description,
            close_on_exec,
        };
        if let Some(description) = self.descriptions.get_mut(&description) {
            description.references += 1;
        }
        if let Some(old) = self.table.insert(fd, entry) {
            self.release(old.description);
        }
    }

    fn release(&mut self, id: DescriptionId) {
        if let Some(description) = self.descriptions.get_mut(&id) {
            description.references -= 1;
            if description.references == 0 {
                self.descriptions.remove(&id);
            }
        }
    }

    fn entry(&self, fd: i32) -> Result<Entry, Halt> {
        self.table.get(&fd).copied().ok_or(Halt::Errno(libc::EBADF))
    }

    pub fn get(&mut self, fd: i32) -> Result<&mut Description, Halt> {
        let id = self.entry(fd)?.description;
        self.descriptions
            .get_mut(&id)
            .ok_or(Halt::Errno(libc::EBADF))
    }

    pub fn close(&mut self, fd: i32) -> Result<(), Halt> {
        let entry = self.table.remove(&fd).ok_or(Halt::Errno(libc::EBADF))?;
        self.release(entry.description);
        Ok(())
    }

    /// A second number for the same description.
    pub fn duplicate(&mut self, fd: i32, from: i32, close_on_exec: bool) -> Outcome {
        let id = self.entry(fd)?.description;
        let new = self.lowest_free(from)?;
        self.install(new, id, close_on_exec);
        Ok(i64::from(new))
    }

    pub fn duplicate_to(&mut self, fd: i32, to: i32, close_on_exec: bool) -> Outcome {
        let id = self.entry(fd)?.description;
        if !(0..LIMIT).contains(&to) {
            return Err(Halt::Errno(libc::EBADF));
        }
        self.install(to, id, close_on_exec);
        Ok(i64::from(to))
    }

    pub fn close_on_exec(&self, fd: i32) -> Result<bool, Halt> {
        Ok(self.entry(fd)?.close_on_exec)
    }

    pub fn set_close_on_exec(&mut self, fd: i32, value: bool) -> Result<(), Halt> {
        let entry = self.table.get_mut(&fd).ok_or(Halt::Errno(libc::EBADF))?;
        entry.close_on_exec = value;
        Ok(())
    }
}

impl Vm {
    /// The host descriptor behind a guest's, and the description's state.
    pub(super) fn host_file(&mut self, fd: i32) -> Result<(i32, bool, u64, i32), Halt> {
        let description = self.kernel.fds.get(fd)?;
        let Object::Host(file) = &description.object;
        Ok((
            file.number(),
            file.positioned,
            description.offset,
            description.flags,
        ))
    }
}

impl Vm {
    /// The descriptors the guest inherits: the ones this process was started
    /// with, less the vm's own.
    pub(crate) fn inherit_descriptors(&mut self) -> Result<(), crate::Error> {
        let mut opened = Vec::new();
        let (_, facts) = self.io.external_bytes(crate::io::tag::PROCESS, || {
            let mut facts = Vec::new();
            for number in 0..3 {
                // SAFETY: duplicating a descriptor; failure means it is closed.
                let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 64) };
                if copy < 0 {
                    continue;
                }
                // SAFETY: just made, owned by nobody else; F_GETFL has no
                // preconditions.
                let (fd, flags) = unsafe {
                    (
                        OwnedFd::from_raw_fd(copy),
                        libc::fcntl(number, libc::F_GETFL),
                    )
                };
                opened.push(Some(fd));
                facts.push(number as u8);
                facts.extend_from_slice(&flags.to_le_bytes());
            }
            (0, facts)
        })?;
        let mut opened = opened.into_iter();
        for fact in facts.chunks_exact(5) {
            let number = i32::from(fact[0]);
            let flags = i32::from_le_bytes([fact[1], fact[2], fact[3], fact[4]]);
            let object = Object::Host(HostFile {
                fd: opened.next().flatten(),
                path: None,
                standard_stream: (number > 0).then_some(number),
                positioned: false,
            });
            // Numbers 0 to 2 are always free here.
            let _ = self.kernel.fds.open(number, object, flags, false);
        }
        Ok(())
    }
}
