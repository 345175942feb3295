//! System calls that take a path.
//!
//! Paths go to the host as they are, except those that lead through /proc or
//! /dev back to the process itself: there the guest must see itself, not the
//! vm (`place`).

use super::fd::{HostFile, Kind, Object, identity_from, identity_of};
use super::file::WOULD_BLOCK;
use super::proc_files::Shown;
use super::{Call, Halt, Opening, Outcome};
use crate::machine::Vm;
use crate::thread::{HostInterest, Wait, WaitOn};
use crate::{host, memory};
use std::ffi::{CString, OsString};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Where a path leads.
pub(super) enum Place {
    /// To the host, by this path.
    Host(Vec<u8>),
    /// To one of the guest's own descriptors.
    Descriptor(i32),
    /// To the guest's program.
    Executable,
    /// To something of /proc that the vm writes itself; with the host's path.
    Shown(Shown, Vec<u8>),
    /// To the memory of a process.
    Memory(Vec<u8>),
}

/// The memory of this very process.
const OWN_MEMORY: &[u8] = b"/proc/self/mem";

/// A recorded path, if it is one (and not `pipe:[…]` and the like).
pub(super) fn real_path(path: Vec<u8>) -> Option<PathBuf> {
    path.starts_with(b"/")
        .then(|| PathBuf::from(OsString::from_vec(path)))
}

fn c_string(path: Vec<u8>) -> Result<CString, Halt> {
    CString::new(path).map_err(|_| Halt::Errno(libc::ENOENT))
}

/// Creation flags, which are not kept in a description.
const TRANSIENT: i32 =
    libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_NOCTTY;

impl Vm {
    pub(super) fn guest_path(&self, address: u64) -> Result<Vec<u8>, Halt> {
        let path = memory::read_c_string(address, 4096)?;
        if path.len() >= 4096 {
            return Err(Halt::Errno(libc::ENAMETOOLONG));
        }
        Ok(path)
    }

    /// Where `path` leads, seen from `directory`.
    pub(super) fn place(&mut self, directory: i32, path: Vec<u8>) -> Place {
        let full = if path.starts_with(b"/") {
            path.clone()
        } else {
            let base = match self.kernel.fds.peek_fd(directory).map(|file| &file.object) {
                Some(Object::Listing(listing)) => listing.path.as_bytes().to_vec(),
                Some(Object::Host(HostFile {
                    path: Some(base), ..
                })) if base.starts_with("/proc") || base.starts_with("/dev") => {
                    base.as_os_str().as_bytes().to_vec()
                }
                _ => return Place::Host(path),
            };
            if path.is_empty() {
                return Place::Host(path);
            }
            [&base[..], b"/", &path].concat()
        };
        self.place_in_proc(&full).unwrap_or(Place::Host(path))
    }

    fn place_in_proc(&mut self, path: &[u8]) -> Option<Place> {
        if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
            return None;
        }
        let text = std::str::from_utf8(path).ok()?;
        let mut parts: Vec<&str> = text
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        match parts.as_slice() {
            ["dev", "stdin"] => return Some(Place::Descriptor(0)),
            ["dev", "stdout"] => return Some(Place::Descriptor(1)),
            ["dev", "stderr"] => return Some(Place::Descriptor(2)),
            ["dev", "fd", ..] => {
                parts.splice(0..1, ["proc", "self"]);
            }
            ["proc", ..] => {}
            _ => return None,
        }
        let pid = self.kernel.process.pid;
        let mut thread = pid;
        let own = |name: &str| -> Option<i32> {
            if name == "self" {
                return Some(pid);
            }
            let tid = if name == "thread-self" {
                self.current_tid()
            } else {
                name.parse().ok()?
            };
            let known = tid == pid || self.threads.values().any(|thread| thread.tid == tid);
            known.then_some(tid)
        };
        let mut rest = parts.get(2..)?;
        if matches!(rest, ["mem"] | ["task", _, "mem"]) {
            let path = match own(parts[1]) {
                Some(_) => OWN_MEMORY.to_vec(),
                None => path.to_vec(),
            };
            return Some(Place::Memory(path));
        }
        if parts[1] == "thread-self" || own(parts[1])? != pid {
            thread = own(parts[1])?;
        }
        if let ["task", tid, inner @ ..] = rest {
            thread = own(tid)?;
            rest = inner;
        }
        let host = |rest: &[&str]| [b"/proc/self/", rest.join("/").as_bytes()].concat();
        let shown = match rest {
            ["exe"] => return Some(Place::Executable),
            ["fd"] => Shown::Descriptors,
            ["fd", number] => {
                return Some(Place::Descriptor(number.parse().unwrap_or(-1)));
            }
            ["fd", number, inner @ ..] => {
                let number = number.parse().unwrap_or(-1);
                let host = match self.kernel.fds.peek_fd(number).map(|file| &file.object) {
                    Some(Object::Host(file)) => file.number(),
                    _ => -1,
                };
                let path = format!("/proc/self/fd/{host}/{}", inner.join("/"));
                return Some(Place::Host(path.into_bytes()));
            }
            ["fdinfo", number] => Shown::DescriptorState(number.parse().unwrap_or(-1)),
            ["maps"] => Shown::Maps,
            ["smaps"] => Shown::DetailedMaps,
            ["status"] => Shown::Status(thread),
            ["stat"] => Shown::Stat(thread),
            ["statm"] => Shown::Sizes,
            ["cmdline"] => Shown::Arguments,
            ["environ"] => Shown::Environment,
            ["auxv"] => Shown::Vector,
            ["comm"] => Shown::Name(thread),
            ["task"] => Shown::Threads,
            rest => return Some(Place::Host(host(rest))),
        };
        Some(Place::Shown(shown, host(rest)))
    }

    /// The path to hand to the host.
    fn host_path(&mut self, directory: i32, path: Vec<u8>) -> Result<CString, Halt> {
        match self.place(directory, path) {
            Place::Host(path) | Place::Memory(path) | Place::Shown(_, path) => c_string(path),
            Place::Executable => {
                let path = self.kernel.process.executable.clone();
                c_string(path.into_os_string().into_vec())
            }
            Place::Descriptor(fd) => {
                let host = self.host_use(fd).map_err(|_| Halt::Errno(libc::ENOENT))?;
                let number = host.map_or(-1, |host| host.number);
                c_string(format!("/proc/self/fd/{number}").into_bytes())
            }
        }
    }

    /// A program's path with the guest's own /proc links followed.
    pub(super) fn program_path(&mut self, path: Vec<u8>) -> Vec<u8> {
        match self.place(libc::AT_FDCWD, path.clone()) {
            Place::Executable => {
                let executable = self.kernel.process.executable.clone();
                executable.into_os_string().into_vec()
            }
            Place::Descriptor(fd) => match self.kernel.fds.peek_fd(fd).map(|file| &file.object) {
                Some(Object::Host(HostFile {
                    path: Some(path), ..
                })) => path.as_os_str().as_bytes().to_vec(),
                _ => path,
            },
            Place::Host(_) | Place::Memory(_) | Place::Shown(..) => path,
        }
    }

    /// The host directory descriptor for an `*at` call.
    pub(super) fn host_directory(&mut self, fd: i32, path: &[u8]) -> Result<i32, Halt> {
        if fd == libc::AT_FDCWD || path.starts_with(b"/") {
            return Ok(libc::AT_FDCWD);
        }
        match &self.kernel.fds.get(fd)?.object {
            Object::Host(file) => Ok(file.number()),
            Object::Listing(_) => Ok(libc::AT_FDCWD),
            _ => Err(Halt::Errno(libc::ENOTDIR)),
        }
    }

    /// Replaces a path argument (and the directory it starts from) by what
    /// the host needs; the returned strings must live across the call.
    fn translate_path(
        &mut self,
        arguments: &mut [u64; 6],
        directory: Option<usize>,
        path: usize,
    ) -> Result<CString, Halt> {
        let text = self.guest_path(arguments[path])?;
        let from = directory.map_or(libc::AT_FDCWD, |index| arguments[index] as i32);
        if let Some(index) = directory {
            arguments[index] = self.host_directory(from, &text)? as u64;
        }
        let string = self.host_path(from, text)?;
        arguments[path] = string.as_ptr() as u64;
        Ok(string)
    }

    /// A host call with one path that writes nothing but `out` (address and
    /// length) to the guest.
    pub(super) fn path_call(
        &mut self,
        call: &Call,
        directory: Option<usize>,
        path: usize,
        out: Option<(u64, usize)>,
    ) -> Outcome {
        let mut arguments = call.arguments;
        let _string = self.translate_path(&mut arguments, directory, path)?;
        self.host_call_writing(call.number as i64, arguments, |_| out.into_iter().collect())
    }

    /// A host call with two paths.
    pub(super) fn two_path_call(
        &mut self,
        call: &Call,
        first: (Option<usize>, usize),
        second: (Option<usize>, usize),
    ) -> Outcome {
        let mut arguments = call.arguments;
        let _first = self.translate_path(&mut arguments, first.0, first.1)?;
        let _second = self.translate_path(&mut arguments, second.0, second.1)?;
        self.host_call(call.number as i64, arguments)
    }

    /// symlink and symlinkat: what the link says is kept as it is.
    pub(super) fn sys_symlink(&mut self, call: &Call) -> Outcome {
        if call.number as i64 == libc::SYS_symlink {
            self.path_call(call, None, 1, None)
        } else {
            self.path_call(call, Some(1), 2, None)
        }
    }

    pub(super) fn sys_open(&mut self, call: &Call) -> Outcome {
        let [path, flags, mode, ..] = call.arguments;
        self.open_path(call, libc::AT_FDCWD, path, flags as i32, mode)
    }

    pub(super) fn sys_creat(&mut self, call: &Call) -> Outcome {
        let [path, mode, ..] = call.arguments;
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        self.open_path(call, libc::AT_FDCWD, path, flags, mode)
    }

    pub(super) fn sys_openat(&mut self, call: &Call) -> Outcome {
        let [directory, path, flags, mode, ..] = call.arguments;
        self.open_path(call, directory as i32, path, flags as i32, mode)
    }

    /// openat2 with the plain `how`; a program that asks for more is told
    /// that the kernel is too old for it.
    pub(super) fn sys_openat2(&mut self, call: &Call) -> Outcome {
        let [directory, path, how, size, ..] = call.arguments;
        const SIZE: u64 = 24;
        const CREATES: i32 = libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY);
        /// All that Linux has so far.
        const KNOWN: u64 = 0o3777_7703;
        const RESOLVES: u64 = 0x3f;
        if size < SIZE {
            return Err(Halt::Errno(libc::EINVAL));
        }
        // Newer kernels may know more: nothing there may be asked for.
        if size > crate::layout::PAGE
            || memory::read_vec(how + SIZE, (size - SIZE) as usize)?
                .iter()
                .any(|byte| *byte != 0)
        {
            return Err(Halt::Errno(libc::E2BIG));
        }
        let [flags, mode, resolve] = memory::get::<[u64; 3]>(how)?;
        let creates = flags as i32 & CREATES != 0;
        if flags & !KNOWN != 0
            || mode & !0o7777 != 0
            || (mode != 0 && !creates)
            || resolve & !RESOLVES != 0
        {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if resolve != 0 {
            return Err(Halt::Errno(libc::ENOSYS));
        }
        self.open_path(call, directory as i32, path, flags as i32, mode)
    }

    fn open_path(
        &mut self,
        call: &Call,
        directory: i32,
        path: u64,
        flags: i32,
        mode: u64,
    ) -> Outcome {
        let name = self.guest_path(path)?;
        self.kernel.fds.room_for(1)?;
        let cloexec = flags & libc::O_CLOEXEC != 0;
        let mut stream = None;
        let mut host_flags = flags;
        let mut memory_of = None;
        let string = match self.place(directory, name.clone()) {
            // The vm writes there itself; a replay does it again.
            Place::Memory(path) if path == OWN_MEMORY => {
                host_flags &= !libc::O_ACCMODE;
                memory_of = Some(self.kernel.process.pid);
                c_string(path)?
            }
            // What is written there goes past the vm, and a replay lacks it.
            Place::Memory(path) if flags & libc::O_ACCMODE != libc::O_RDONLY => {
                self.say(&format!(
                    "{} cannot be written to; the program is told so (EACCES)",
                    String::from_utf8_lossy(&path)
                ));
                return Err(Halt::Errno(libc::EACCES));
            }
            Place::Host(path) | Place::Memory(path) => c_string(path)?,
            Place::Executable => self.host_path(directory, name.clone())?,
            Place::Descriptor(fd) => {
                let description = self
                    .kernel
                    .fds
                    .get(fd)
                    .map_err(|_| Halt::Errno(libc::ENOENT))?;
                match &description.object {
                    Object::Host(file) => stream = file.standard_stream,
                    Object::Pair(_) => return Err(Halt::Errno(libc::ENXIO)),
                    // A second description of the same thing; sharing the
                    // first one is as near as it gets.
                    _ => return self.kernel.fds.duplicate(fd, 0, cloexec),
                }
                self.host_path(directory, name.clone())?
            }
            Place::Shown(shown, path) => {
                if flags & libc::O_ACCMODE != libc::O_RDONLY {
                    c_string(path)?
                } else {
                    let object = self.show(shown, path)?;
                    let fd = self
                        .kernel
                        .fds
                        .open(0, object, flags & !TRANSIENT, cloexec)?;
                    return Ok(i64::from(fd));
                }
            }
        };
        let directory = self.host_directory(directory, &name)?;
        let mut opened = None;
        // A signal that interrupted an earlier opening left it behind.
        let current = self.current;
        let waiting = self
            .threads
            .get_mut(&current)
            .map(|thread| &mut thread.opening);
        let mut none = None;
        let opening = waiting.unwrap_or(&mut none);
        if !call.again {
            *opening = None;
        }
        let (result, facts) = self.io.external_bytes(libc::SYS_openat as u32, || {
            if opening.is_none() && Opening::may_wait(directory, &string, host_flags) {
                *opening = Opening::start(directory, &string, host_flags, mode);
            }
            let arguments = [
                directory as u64,
                string.as_ptr() as u64,
                (host_flags | libc::O_CLOEXEC) as u64,
                mode,
                0,
                0,
            ];
            let result = match opening {
                Some(waiting) => match waiting.answer() {
                    Some(result) => result,
                    None => return (WOULD_BLOCK, Vec::new()),
                },
                // SAFETY: the string lives across the call.
                None => unsafe { host::syscall(libc::SYS_openat, arguments) },
            };
            if result < 0 {
                return (result, Vec::new());
            }
            // SAFETY: a descriptor just opened, owned by nobody else.
            opened = Some(unsafe { OwnedFd::from_raw_fd(result as i32) });
            let path = std::fs::read_link(format!("/proc/self/fd/{result}"));
            let mut facts = vec![Kind::of(result as i32).code()];
            facts.extend(identity_of(result as i32));
            facts.extend(path.unwrap_or_default().into_os_string().into_vec());
            (0, facts)
        })?;
        if result == WOULD_BLOCK {
            let line = opening.as_ref().map_or(-1, Opening::line);
            return Err(Halt::Block(Wait {
                on: WaitOn::Host(vec![HostInterest {
                    fd: line,
                    events: libc::POLLIN,
                }]),
                deadline: None,
            }));
        }
        *opening = None;
        let (result, facts) = self.opened_in_copy(&name, flags, result, facts);
        if result < 0 {
            return Ok(result);
        }
        let kind = Kind::from_code(facts.first().copied().unwrap_or(0));
        let mut file = HostFile::new(opened, kind);
        file.path = real_path(facts.get(17..).unwrap_or_default().to_vec());
        if kind == Kind::Regular {
            file.identity = identity_from(facts.get(1..).unwrap_or_default());
        }
        file.standard_stream = stream;
        file.memory_of = memory_of;
        file.positioned = kind == Kind::Regular && flags & (libc::O_APPEND | libc::O_PATH) == 0;
        let fd = self
            .kernel
            .fds
            .open(0, Object::Host(file), flags & !TRANSIENT, cloexec)?;
        Ok(i64::from(fd))
    }

    /// stat, lstat, fstat and newfstatat.
    pub(super) fn sys_stat(&mut self, call: &Call) -> Outcome {
        let [a, b, c, d, ..] = call.arguments;
        let cwd = libc::AT_FDCWD;
        let (directory, path, buffer, flags) = match call.number as i64 {
            libc::SYS_fstat => return self.stat_descriptor(a as i32, b),
            libc::SYS_stat => (cwd, a, b, 0),
            libc::SYS_lstat => (cwd, a, b, libc::AT_SYMLINK_NOFOLLOW),
            _ => (a as i32, b, c, d as i32),
        };
        let name = self.guest_path(path)?;
        if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 && directory != cwd {
            return self.stat_descriptor(directory, buffer);
        }
        if let Place::Descriptor(fd) = self.place(directory, name.clone())
            && flags & libc::AT_SYMLINK_NOFOLLOW == 0
        {
            return self
                .stat_descriptor(fd, buffer)
                .map_err(|_| Halt::Errno(libc::ENOENT));
        }
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let number = self.host_directory(directory, &name)?;
        let string = self.link_path(directory, name, follow)?;
        let pointer = string.as_ptr() as u64;
        self.host_call_writing(
            libc::SYS_newfstatat,
            [number as u64, pointer, buffer, flags as u64, 0, 0],
            |_| vec![(buffer, size_of::<libc::stat>())],
        )
    }

    /// Like `host_path`, but a link of /proc itself if it is not followed.
    fn link_path(&mut self, directory: i32, path: Vec<u8>, follow: bool) -> Result<CString, Halt> {
        if !follow && matches!(self.place(directory, path.clone()), Place::Executable) {
            return c_string(b"/proc/self/exe".to_vec());
        }
        self.host_path(directory, path)
    }

    fn stat_descriptor(&mut self, fd: i32, buffer: u64) -> Outcome {
        if let Some(host) = self.host_use(fd)? {
            let result = self.host_call_writing(
                libc::SYS_fstat,
                [host.number as u64, buffer, 0, 0, 0, 0],
                |_| vec![(buffer, size_of::<libc::stat>())],
            )?;
            if result == 0
                && let Some(length) = self.length_in_copy(fd)?
            {
                let at = std::mem::offset_of!(libc::stat, st_size) as u64;
                memory::put(buffer + at, length)?;
            }
            return Ok(result);
        }
        let stat = self.object_stat(fd)?;
        // SAFETY: the bytes of a C structure without padding that matters.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const stat).cast::<u8>(), size_of::<libc::stat>())
        };
        memory::write(buffer, bytes)?;
        Ok(0)
    }

    /// What fstat says about something inside the vm.
    fn object_stat(&mut self, fd: i32) -> Result<libc::stat, Halt> {
        let now = self.now() + self.clock.realtime_offset;
        let id = self.kernel.fds.id(fd)?;
        let (mode, inode, size) = match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(end) => (libc::S_IFIFO | 0o600, end.pipe.borrow().id, 0),
            Object::Pair(end) => (libc::S_IFSOCK | 0o777, end.id() * 2 + end.side as u64, 0),
            Object::Listing(_) => (libc::S_IFDIR | 0o555, u64::from(id), 0),
            Object::Bytes { .. } => (libc::S_IFREG | 0o444, u64::from(id), 0),
            _ => (0o600, 1024, 0),
        };
        // SAFETY: a C structure of integers.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_mode = mode;
        stat.st_ino = inode + 0x10_0000;
        stat.st_dev = 14;
        stat.st_nlink = 1;
        stat.st_blksize = 4096;
        stat.st_size = size;
        let identity = self.identity()?;
        stat.st_uid = identity[1];
        stat.st_gid = identity[3];
        stat.st_atime = (now / 1_000_000_000) as i64;
        stat.st_mtime = stat.st_atime;
        stat.st_ctime = stat.st_atime;
        Ok(stat)
    }

    pub(super) fn sys_statx(&mut self, call: &Call) -> Outcome {
        let [directory, path, flags, mask, buffer, _] = call.arguments;
        // A null path means the descriptor, as an empty one does.
        let name = if path == 0 {
            Vec::new()
        } else {
            self.guest_path(path)?
        };
        let (directory, flags) = (directory as i32, flags as i32);
        let descriptor = if name.is_empty() && directory != libc::AT_FDCWD {
            Some(directory)
        } else {
            match self.place(directory, name.clone()) {
                Place::Descriptor(fd) if flags & libc::AT_SYMLINK_NOFOLLOW == 0 => Some(fd),
                _ => None,
            }
        };
        let empty = CString::default();
        let (number, string, flags) = match descriptor {
            Some(fd) => match self.host_use(fd)? {
                Some(host) => (host.number, empty, flags | libc::AT_EMPTY_PATH),
                None => return self.object_statx(fd, buffer),
            },
            None => {
                let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                let number = self.host_directory(directory, &name)?;
                (number, self.link_path(directory, name, follow)?, flags)
            }
        };
        self.host_call_writing(
            libc::SYS_statx,
            [
                number as u64,
                string.as_ptr() as u64,
                flags as u64,
                mask,
                buffer,
                0,
            ],
            |_| vec![(buffer, size_of::<libc::statx>())],
        )
    }

    fn object_statx(&mut self, fd: i32, buffer: u64) -> Outcome {
        let stat = self.object_stat(fd)?;
        // SAFETY: a C structure of integers.
        let mut full: libc::statx = unsafe { std::mem::zeroed() };
        full.stx_mask = libc::STATX_BASIC_STATS;
        full.stx_mode = stat.st_mode as u16;
        full.stx_ino = stat.st_ino;
        full.stx_nlink = 1;
        full.stx_blksize = 4096;
        full.stx_uid = stat.st_uid;
        full.stx_gid = stat.st_gid;
        full.stx_dev_minor = 14;
        // SAFETY: the bytes of a C structure.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const full).cast::<u8>(), size_of::<libc::statx>())
        };
        memory::write(buffer, bytes)?;
        Ok(0)
    }

    pub(super) fn sys_readlink(&mut self, call: &Call) -> Outcome {
        let [a, b, c, d, ..] = call.arguments;
        let (directory, path, buffer, size) = if call.number as i64 == libc::SYS_readlink {
            (libc::AT_FDCWD, a, b, c)
        } else {
            (a as i32, b, c, d)
        };
        if size as i32 <= 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let name = self.guest_path(path)?;
        let target = match self.place(directory, name.clone()) {
            Place::Executable => {
                let path = self.kernel.process.executable.clone();
                path.into_os_string().into_vec()
            }
            Place::Descriptor(fd) => {
                let id = self
                    .kernel
                    .fds
                    .id(fd)
                    .map_err(|_| Halt::Errno(libc::ENOENT))?;
                match self.object_name(id) {
                    Some(name) => name,
                    None => {
                        let string = self.host_path(directory, name)?;
                        return self.read_host_link(libc::AT_FDCWD, &string, buffer, size);
                    }
                }
            }
            Place::Host(_) | Place::Memory(_) | Place::Shown(..) => {
                let number = self.host_directory(directory, &name)?;
                let string = self.host_path(directory, name)?;
                return self.read_host_link(number, &string, buffer, size);
            }
        };
        let length = target.len().min(size as usize);
        memory::write(buffer, &target[..length])?;
        Ok(length as i64)
    }

    fn read_host_link(
        &mut self,
        directory: i32,
        path: &CString,
        buffer: u64,
        size: u64,
    ) -> Outcome {
        let pointer = path.as_ptr() as u64;
        self.host_call_writing(
            libc::SYS_readlinkat,
            [directory as u64, pointer, buffer, size, 0, 0],
            |result| vec![(buffer, result as usize)],
        )
    }

    pub(super) fn sys_getcwd(&mut self, buffer: u64, size: u64) -> Outcome {
        self.host_call_writing(libc::SYS_getcwd, [buffer, size, 0, 0, 0, 0], |result| {
            vec![(buffer, result as usize)]
        })
    }

    /// getdents64 and getdents.
    pub(super) fn sys_getdents(&mut self, call: &Call) -> Outcome {
        let [fd, buffer, size, ..] = call.arguments;
        if let Some(host) = self.host_use(fd as i32)? {
            let arguments = [host.number as u64, buffer, size, 0, 0, 0];
            return self.host_call_writing(call.number as i64, arguments, |result| {
                vec![(buffer, result as usize)]
            });
        }
        let description = self.kernel.fds.get(fd as i32)?;
        let Object::Listing(listing) = &description.object else {
            return Err(Halt::Errno(libc::ENOTDIR));
        };
        let (bytes, next) = listing.entries(description.offset as usize, size as usize);
        if bytes.is_empty() && !listing.at_end(description.offset as usize) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        description.offset = next as u64;
        memory::write(buffer, &bytes)?;
        Ok(bytes.len() as i64)
    }

    pub(super) fn sys_fchdir(&mut self, fd: i32) -> Outcome {
        let host = self.host_only(fd, libc::ENOTDIR)?;
        self.host_call(libc::SYS_fchdir, [host.number as u64, 0, 0, 0, 0, 0])
    }

    /// utimensat: a null path means the descriptor.
    pub(super) fn sys_utimensat(&mut self, call: &Call) -> Outcome {
        if call.arguments[1] != 0 {
            return self.path_call(call, Some(0), 1, None);
        }
        let host = self.host_only(call.arguments[0] as i32, libc::EINVAL)?;
        let mut arguments = call.arguments;
        arguments[0] = host.number as u64;
        self.host_call(libc::SYS_utimensat, arguments)
    }

    /// A host call on one descriptor (the first argument) that writes nothing
    /// but `out`; `errno` for things inside the vm.
    pub(super) fn descriptor_call(
        &mut self,
        call: &Call,
        errno: i32,
        out: Option<(u64, usize)>,
    ) -> Outcome {
        let host = self.host_only(call.arguments[0] as i32, errno)?;
        let mut arguments = call.arguments;
        arguments[0] = host.number as u64;
        self.host_call_writing(call.number as i64, arguments, |_| out.into_iter().collect())
    }

    pub(super) fn sys_ftruncate(&mut self, call: &Call) -> Outcome {
        let [fd, length, ..] = call.arguments;
        let result = self.descriptor_call(call, libc::EINVAL, None)?;
        if result == 0 {
            self.set_mapped_length(fd as i32, length)?;
        }
        Ok(result)
    }

    pub(super) fn sys_fallocate(&mut self, call: &Call) -> Outcome {
        let result = self.descriptor_call(call, libc::EINVAL, None)?;
        if result == 0 {
            self.allocated_in_mapped(call.arguments)?;
        }
        Ok(result)
    }

    pub(super) fn sys_memfd_create(&mut self, call: &Call) -> Outcome {
        let [_, flags, ..] = call.arguments;
        self.kernel.fds.room_for(1)?;
        let mut opened = None;
        let arguments = call.arguments;
        let (result, facts) = self.io.external_bytes(libc::SYS_memfd_create as u32, || {
            let mut arguments = arguments;
            arguments[1] = flags | libc::MFD_CLOEXEC as u64;
            // SAFETY: the name is a guest pointer, checked by the kernel.
            let result = unsafe { host::syscall(libc::SYS_memfd_create, arguments) };
            if result < 0 {
                return (result, Vec::new());
            }
            // SAFETY: just made, owned by nobody else.
            opened = Some(unsafe { OwnedFd::from_raw_fd(result as i32) });
            let path = std::fs::read_link(format!("/proc/self/fd/{result}"));
            let mut facts = identity_of(result as i32);
            facts.extend(path.unwrap_or_default().into_os_string().into_vec());
            (0, facts)
        })?;
        if result < 0 {
            return Ok(result);
        }
        let mut file = HostFile::new(opened, Kind::Regular);
        file.path = real_path(facts.get(16..).unwrap_or_default().to_vec());
        file.identity = identity_from(&facts);
        file.positioned = true;
        let cloexec = flags & libc::MFD_CLOEXEC as u64 != 0;
        let fd = self
            .kernel
            .fds
            .open(0, Object::Host(file), libc::O_RDWR, cloexec)?;
        Ok(i64::from(fd))
    }

    /// [l]getxattr, [l]listxattr and their forms for descriptors.
    pub(super) fn sys_get_attribute(&mut self, call: &Call) -> Outcome {
        let [_, b, c, d, ..] = call.arguments;
        let number = call.number as i64;
        let lists = matches!(
            number,
            libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr
        );
        let (buffer, size) = if lists { (b, c) } else { (c, d) };
        let mut arguments = call.arguments;
        let _string;
        if matches!(number, libc::SYS_fgetxattr | libc::SYS_flistxattr) {
            let host = self.host_only(arguments[0] as i32, libc::EOPNOTSUPP)?;
            arguments[0] = host.number as u64;
        } else {
            _string = self.translate_path(&mut arguments, None, 0)?;
        }
        self.host_call_writing(number, arguments, |result| {
            if size == 0 {
                Vec::new()
            } else {
                vec![(buffer, result as usize)]
            }
        })
    }

    pub(super) fn sys_inotify_add_watch(&mut self, call: &Call) -> Outcome {
        let host = self.host_only(call.arguments[0] as i32, libc::EINVAL)?;
        let mut arguments = call.arguments;
        let _string = self.translate_path(&mut arguments, None, 1)?;
        arguments[0] = host.number as u64;
        self.host_call(libc::SYS_inotify_add_watch, arguments)
    }

    pub(super) fn sys_inotify_init(&mut self, flags: i32) -> Outcome {
        self.open_host_object(
            libc::SYS_inotify_init1,
            [(libc::IN_CLOEXEC | libc::IN_NONBLOCK) as u64, 0, 0, 0, 0, 0],
            Kind::Other,
            libc::O_RDONLY | flags & libc::O_NONBLOCK,
            flags & libc::IN_CLOEXEC != 0,
        )
    }

    /// A host call that makes a descriptor.
    pub(super) fn open_host_object(
        &mut self,
        number: i64,
        arguments: [u64; 6],
        kind: Kind,
        flags: i32,
        cloexec: bool,
    ) -> Outcome {
        self.kernel.fds.room_for(1)?;
        let mut opened = None;
        let result = self.io.external(number as u32, || {
            // SAFETY: plain values.
            let result = unsafe { host::syscall(number, arguments) };
            if result >= 0 {
                // SAFETY: just made, owned by nobody else.
                opened = Some(unsafe { OwnedFd::from_raw_fd(result as i32) });
                return (0, Vec::new());
            }
            (result, Vec::new())
        })?;
        if result < 0 {
            return Ok(result);
        }
        let mut file = HostFile::new(opened, kind);
        let thread = self.current.to_le_bytes();
        file.stream = self.new_stream(&[b"made", &number.to_le_bytes(), &thread]);
        let object = Object::Host(file);
        Ok(i64::from(self.kernel.fds.open(0, object, flags, cloexec)?))
    }
}
