//! mmap and its family. All address decisions are the vm's (`space`).

use super::fd::{HostFile, Identity, Object};
use super::{Call, Halt, Outcome};
use crate::host;
use crate::machine::Vm;
use crate::space::{Backing, Mapping, Placement, Request};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DONTNEED_LOCKED: i32 = 24;

/// Advice that changes what the guest reads.
const CHANGES: [i32; 4] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    DONTNEED_LOCKED,
];

/// Advice that changes nothing here: hints, and requests about forks that
/// would break snapshots. MADV_WIPEONFORK is not known, because programs must
/// know that it is not done.
const HINTS: [i32; 18] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
    libc::MADV_KEEPONFORK,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_COLLAPSE,
];

/// Copies of files that are mapped and that the guest may write, by identity.
#[derive(Default)]
pub struct SharedFiles {
    copies: BTreeMap<Identity, File>,
    /// The path under which each is mapped.
    paths: BTreeMap<Identity, PathBuf>,
}

impl SharedFiles {
    /// Copies them all for a process that goes on by itself; returns the new
    /// ones by path.
    pub fn separate(&mut self) -> std::io::Result<Vec<(PathBuf, File)>> {
        let mut separate = Vec::new();
        for (identity, copy) in &mut self.copies {
            let own = memory_file()?;
            let mut position = 0;
            let mut buffer = vec![0; 1 << 16];
            loop {
                let count = copy.read_at(&mut buffer, position)?;
                if count == 0 {
                    break;
                }
                own.write_all_at(&buffer[..count], position)?;
                position += count as u64;
            }
            own.set_len(copy.metadata()?.len())?;
            if let Some(path) = self.paths.get(identity) {
                separate.push((path.clone(), own.try_clone()?));
            }
            *copy = own;
        }
        Ok(separate)
    }
}

/// An empty file in memory.
fn memory_file() -> std::io::Result<File> {
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
    pub(super) fn replayed_copy(&mut self, fd: i32) -> Option<&File> {
        let Object::Host(file) = &self.kernel.fds.peek_fd(fd)?.object else {
            return None;
        };
        self.kernel.shared_files.copies.get(&file.identity?)
    }

    /// The copy to map in place of `original`, made if need be. None
    /// for a file that the guest only reads: nothing can tell a private
    /// mapping from a shared one then.
    fn stand_in(&mut self, fd: i32, path: &Path, original: &File) -> Result<Option<File>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let writable = description.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let Object::Host(HostFile {
            identity: Some(identity),
            ..
        }) = &description.object
        else {
            return Ok(None);
        };
        let identity = *identity;
        if let Some(copy) = self.kernel.shared_files.copies.get(&identity) {
            return copy.try_clone().map(Some).map_err(failed);
        }
        if !writable {
            return Ok(None);
        }
        let copy = memory_file().map_err(failed)?;
        folder::copy_contents(original, &copy).map_err(failed)?;
        let second = copy.try_clone().map_err(failed)?;
        self.kernel.shared_files.copies.insert(identity, copy);
        let path = path.to_path_buf();
        self.kernel.shared_files.paths.insert(identity, path);
        Ok(Some(second))
    }

    pub(super) fn sys_mmap(&mut self, call: &Call) -> Outcome {
        let [address, length, protection, flags, fd, offset] = call.arguments;
        let flags = flags as i32;
        let protection = protection as i32 & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        let kind = flags & libc::MAP_TYPE;
        let shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
        if !shared && kind != libc::MAP_PRIVATE {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if offset % crate::layout::PAGE != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let placement = if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
            Placement::FixedNoReplace(address)
        } else if flags & libc::MAP_FIXED != 0 {
            Placement::Fixed(address)
        } else if flags & libc::MAP_32BIT != 0 {
            Placement::Below(1 << 31)
        } else if address != 0 {
            Placement::Hint(address)
        } else {
            Placement::Anywhere
        };
        let mut request = Request {
            length,
            protection,
            shared,
            backing: Backing::Anonymous,
            file: None,
        };
        let mut exchanged = shared;
        let mut opened = None;
        let zeros = flags & libc::MAP_ANONYMOUS == 0
            && matches!(self.kernel.fds.peek_fd(fd as i32).map(|file| &file.object),
                Some(Object::Host(HostFile { path: Some(path), .. })) if path == Path::new("/dev/zero"));
        if flags & libc::MAP_ANONYMOUS == 0 && !zeros {
            let writable = shared && protection & libc::PROT_WRITE != 0;
            exchanged = shared && self.may_be_written(fd as i32);
            if exchanged {
                self.take_turn_now()?;
            }
            let (path, mut file) = self.file_to_map(fd as i32, writable)?;
            // A replay must not write to the world, nor see its changes: it
            // maps a copy, the same one at every mapping of the file. (What the
            // guest writes to a file later shows in private mappings as well,
            // where they have not been written to.)
            if !self.io.is_live() {
                match self.stand_in(fd as i32, &path, &file)? {
                    Some(copy) => file = copy,
                    None => request.shared = false,
                }
            }
            request.file = Some((file.as_raw_fd(), offset));
            request.backing = Backing::File {
                path: Arc::new(path),
                offset,
            };
            opened = Some(file);
        }
        let committed = flags & libc::MAP_NORESERVE == 0
            && protection & libc::PROT_WRITE != 0
            && (!shared || request.file.is_none());
        let locked = flags & libc::MAP_LOCKED != 0;
        self.room_for_locked(length, locked)?;
        let mapped = if self.has_room(length, committed) {
            self.space.map(placement, request)
        } else {
            Err(crate::space::ENOMEM)
        };
        if let Some(file) = opened
            && self.io.is_live()
        {
            // The description's own descriptor.
            let _ = file.into_raw_fd();
        }
        match mapped {
            Ok(start) => {
                if shared {
                    self.space.mark_shared(start);
                }
                if exchanged {
                    self.space.mark_exchanged(start);
                    self.refresh_mapping(fd as i32, flags, start, length, protection)?;
                }
                if locked {
                    self.space
                        .set_locked(start..start + crate::layout::page_up(length), true);
                }
                self.memory_changed(start, length);
                Ok(start as i64)
            }
            Err(errno) => Ok(errno),
        }
    }

    /// Another process may write the file behind `fd` while it is mapped: it
    /// is open for writing, or it exists to be shared.
    fn may_be_written(&self, fd: i32) -> bool {
        let Some(description) = self.kernel.fds.peek_fd(fd) else {
            return false;
        };
        let Object::Host(file) = &description.object else {
            return false;
        };
        description.flags & libc::O_ACCMODE == libc::O_RDWR
            || file
                .path
                .as_ref()
                .is_some_and(|path| path.starts_with("/dev/shm"))
    }

    /// A file mapped shared once more: what the first mapping did not show may
    /// have changed since.
    fn refresh_mapping(
        &mut self,
        fd: i32,
        flags: i32,
        start: u64,
        length: u64,
        protection: i32,
    ) -> Result<(), Halt> {
        /// Longer mappings are not written down again.
        const MOST: u64 = 16 << 20;
        if flags & libc::MAP_ANONYMOUS != 0 || length > MOST {
            return Ok(());
        }
        let identity = match self.kernel.fds.peek_fd(fd).map(|one| &one.object) {
            Some(Object::Host(file)) => file.identity,
            _ => None,
        };
        let Some(identity) = identity else {
            return Ok(());
        };
        if !self.kernel.shared_memory.seen_file(identity) || protection & libc::PROT_WRITE == 0 {
            return Ok(());
        }
        self.io.external(crate::io::tag::MEMORY, || {
            (0, vec![(start, length as usize)])
        })?;
        Ok(())
    }

    /// A mapping was made at `start`: stale code goes, observers are told.
    fn memory_changed(&mut self, start: u64, length: u64) {
        let range = start..start + crate::layout::page_up(length);
        self.code_changed(range.clone());
        self.tell_unmapped(range.clone());
        self.tell_code_in(range);
    }

    /// Tells observers of executable file mappings in a range.
    fn tell_code_in(&mut self, range: std::ops::Range<u64>) {
        if !self.observed() {
            return;
        }
        let code: Vec<_> = self
            .space
            .mappings()
            .filter(|(part, mapping)| {
                part.start < range.end
                    && range.start < part.end
                    && mapping.protection & libc::PROT_EXEC != 0
            })
            .filter_map(|(part, mapping)| match &mapping.backing {
                Backing::File { path, offset } => Some((part, path.clone(), *offset)),
                _ => None,
            })
            .collect();
        for (part, path, offset) in code {
            self.tell_code_mapped(part, &path, offset);
        }
    }

    pub(super) fn sys_munmap(&mut self, address: u64, length: u64) -> Outcome {
        match self.space.unmap(address, length) {
            Ok(range) => {
                self.code_changed(range.clone());
                self.tell_unmapped(range);
                Ok(0)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_mprotect(&mut self, address: u64, length: u64, protection: u64) -> Outcome {
        let protection = protection as i32 & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        match self.space.protect(address, length, protection) {
            Ok((range, result)) => {
                self.code_changed(range.clone());
                self.tell_code_in(range);
                Ok(result)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_mremap(&mut self, call: &Call) -> Outcome {
        let [old, old_length, new_length, flags, new, _] = call.arguments;
        match self
            .space
            .remap(old, old_length, new_length, flags as i32, new)
        {
            Ok((address, moved)) => {
                if let Some(range) = moved {
                    self.code_changed(range);
                    self.code_changed(address..address + crate::layout::page_up(new_length));
                }
                Ok(address as i64)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_brk(&mut self, wanted: u64) -> Outcome {
        let growth = wanted.saturating_sub(self.space.brk);
        let refused = growth > 0
            && (!self.has_room(growth, true) || self.room_for_locked(growth, false).is_err());
        if refused {
            return Ok(self.space.brk as i64);
        }
        Ok(self.space.set_brk(wanted) as i64)
    }

    /// What an advice is refused for in one mapping, as by the kernel.
    fn refuses_advice(mapping: &Mapping, advice: i32) -> Option<i32> {
        let anonymous = !matches!(mapping.backing, Backing::File { .. });
        let writable = mapping.protection & libc::PROT_WRITE != 0;
        match advice {
            DONTNEED_LOCKED => None,
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE if mapping.locked => {
                Some(libc::EINVAL)
            }
            libc::MADV_FREE if !anonymous || mapping.shared => Some(libc::EINVAL),
            libc::MADV_REMOVE if anonymous && !mapping.shared => Some(libc::EINVAL),
            libc::MADV_REMOVE if !mapping.shared || !writable => Some(libc::EACCES),
            _ => None,
        }
    }

    pub(super) fn sys_madvise(&mut self, address: u64, length: u64, advice: u64) -> Outcome {
        let advice = advice as i32;
        let end = length
            .checked_next_multiple_of(crate::layout::PAGE)
            .and_then(|length| address.checked_add(length));
        let known = HINTS.contains(&advice) || CHANGES.contains(&advice);
        let Some(end) = end.filter(|_| known && address.is_multiple_of(crate::layout::PAGE)) else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        let parts: Vec<_> = self
            .space
            .mappings()
            .map(|(range, mapping)| (range.start.max(address)..range.end.min(end), mapping))
            .filter(|(part, _)| part.start < part.end)
            .map(|(part, mapping)| (part, Self::refuses_advice(mapping, advice)))
            .collect();
        let mut covered = 0;
        for (part, refused) in parts {
            if let Some(errno) = refused {
                return Err(Halt::Errno(errno));
            }
            covered += part.end - part.start;
            if CHANGES.contains(&advice) {
                self.change_by_advice(part, advice)?;
            }
        }
        // What is mapped has been done all the same.
        if covered < end - address {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        Ok(0)
    }

    /// Advice that changes what the guest reads.
    fn change_by_advice(&mut self, part: Range<u64>, advice: i32) -> Result<(), Halt> {
        // MADV_FREE may or may not keep the contents; dropping them at once is
        // the deterministic choice. Locked is what the guest has locked, not
        // the host.
        let advice = match advice {
            libc::MADV_FREE | DONTNEED_LOCKED => libc::MADV_DONTNEED,
            other => other,
        };
        // SAFETY: a guest range.
        let result = unsafe {
            host::syscall(
                libc::SYS_madvise,
                [part.start, part.end - part.start, advice as u64, 0, 0, 0],
            )
        };
        if result < 0 {
            return Err(Halt::Errno(-result as i32));
        }
        self.code_changed(part);
        Ok(())
    }
}
