//! mmap and its family. All address decisions are the vm's (`space`).

use super::fd::{HostFile, Object};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::space::{Backing, Placement, Request};
use std::ops::Range;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::sync::Arc;

/// Flags of mmap that every kind of file knows.
const KNOWN_FLAGS: i32 = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_ANONYMOUS
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_GROWSDOWN
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT
    | 0x80
    | 0x3f << 26;

impl Vm {
    /// A use of memory just below a mapping that grows down lets it grow, as far
    /// as RLIMIT_STACK allows.
    pub(crate) fn grow_down(&mut self, address: u64) -> bool {
        let most = self.stack_limit();
        self.space.grow_down(address, most)
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
        let is_file = flags & libc::MAP_ANONYMOUS == 0;
        if is_file {
            self.kernel.fds.get(fd as i32)?;
            if length == 0 {
                return Err(Halt::Errno(libc::EINVAL));
            }
        }
        // This kind of sharing is there to have unknown flags refused.
        if kind == libc::MAP_SHARED_VALIDATE {
            match is_file {
                true if flags & !KNOWN_FLAGS != 0 => return Err(Halt::Errno(libc::EOPNOTSUPP)),
                true => {}
                false => return Err(Halt::Errno(libc::EINVAL)),
            }
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
        let grows_down = flags & libc::MAP_GROWSDOWN != 0;
        if grows_down && (shared || flags & libc::MAP_ANONYMOUS == 0) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut request = Request {
            shared,
            grows_down,
            ..Request::anonymous(length, protection)
        };
        let mut exchanged = shared;
        let mut opened = None;
        let zeros = flags & libc::MAP_ANONYMOUS == 0
            && matches!(self.kernel.fds.peek_fd(fd as i32).map(|file| &file.object),
                Some(Object::Host(HostFile { path: Some(path), .. })) if path == Path::new("/dev/zero"));
        if flags & libc::MAP_ANONYMOUS == 0 && !zeros {
            if offset.checked_add(crate::layout::page_up(length)).is_none() {
                return Err(Halt::Errno(libc::EOVERFLOW));
            }
            exchanged = shared && self.may_be_written(fd as i32);
            if exchanged {
                self.take_turn_now()?;
            }
            let (path, mut file) = self.file_to_map(fd as i32, (protection, shared), offset)?;
            // A replay must not write to the world, nor see its changes: it
            // maps a copy, the same one at every mapping of the file. (What the
            // guest writes to a file later shows in private mappings as well,
            // where they have not been written to.)
            if !self.io.is_live() {
                match self.stand_in(fd as i32, &file)? {
                    Some(copy) => file = copy,
                    None => request.shared = false,
                }
            }
            request.file = Some((file.as_raw_fd(), offset));
            request.object = self.file_object(fd as i32);
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
    pub(super) fn memory_changed(&mut self, start: u64, length: u64) {
        let range = start..start + crate::layout::page_up(length);
        self.code_changed(range.clone());
        self.tell_unmapped(range.clone());
        self.tell_code_in(range);
    }

    /// Tells observers, and the guard, of executable file mappings in a range.
    fn tell_code_in(&mut self, range: Range<u64>) {
        if !self.observed() && self.guard.is_none() {
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
        const SEMAPHORES: i32 = 8;
        const KNOWN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        const GROWS: i32 = libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
        let protection = protection as i32;
        let grows = protection & GROWS;
        if grows == GROWS || !address.is_multiple_of(crate::layout::PAGE) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if length == 0 {
            return Ok(0);
        }
        let end = address.wrapping_add(crate::layout::page_up(length));
        if end <= address {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        if protection & !(KNOWN | SEMAPHORES | GROWS) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let start = match grows {
            0 => Ok(address),
            libc::PROT_GROWSDOWN => self.space.start_of_growing(address, end),
            // Nothing grows up here; whether there is anything is asked first.
            _ if self.space.find(address).is_some() => Err(crate::space::EINVAL),
            _ => Err(crate::space::ENOMEM),
        };
        if let Ok(start) = start
            && self.makes_file_writable(start..end, protection)
        {
            self.ask_to_make_writable(start..end, protection & KNOWN)?;
        }
        let changed =
            start.and_then(|start| self.space.protect(start, end - start, protection & KNOWN));
        match changed {
            Ok((range, result)) => {
                self.code_changed(range.clone());
                self.tell_code_in(range);
                Ok(result)
            }
            Err(errno) => Ok(errno),
        }
    }

    /// A part of `range` shows a file to others and may be written from now on.
    fn makes_file_writable(&self, range: Range<u64>, protection: i32) -> bool {
        protection & libc::PROT_WRITE != 0
            && !self.io.is_copy()
            && self.space.mappings().any(|(part, mapping)| {
                part.start < range.end
                    && range.start < part.end
                    && mapping.shared
                    && mapping.protection & libc::PROT_WRITE == 0
                    && matches!(mapping.backing, Backing::File { .. })
            })
    }

    /// The host knows whether the file was open for writing when it was mapped, and
    /// whether it is sealed.
    fn ask_to_make_writable(&mut self, range: Range<u64>, protection: i32) -> Result<(), Halt> {
        let arguments = [
            range.start,
            range.end - range.start,
            crate::space::host_protection(protection) as u64,
            0,
            0,
            0,
        ];
        match self.host_call(libc::SYS_mprotect, arguments)? {
            0.. => Ok(()),
            // What there is before a hole is protected all the same.
            result if result == crate::space::ENOMEM => Ok(()),
            result => Err(Halt::Errno(-result as i32)),
        }
    }

    pub(super) fn sys_mremap(&mut self, call: &Call) -> Outcome {
        let [old, old_length, new_length, flags, new, _] = call.arguments;
        let growth =
            crate::layout::page_up(new_length).saturating_sub(crate::layout::page_up(old_length));
        if growth > 0 && !self.has_room(growth, false) {
            return Err(Halt::Errno(libc::ENOMEM));
        }
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
}
