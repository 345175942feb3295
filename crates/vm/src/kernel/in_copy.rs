//! System calls in a copy of the world: answered from the recording, with
//! output captured and files overlaid (see `copy`).

use super::fd::{DescriptionId, HostUse, Kind, Object};
use super::file::{Range, gather, scatter, total};
use super::{Call, Halt, Outcome};
use crate::copy::{Arrived, Asking, Captured, stream_key};
use crate::io::Written;
use crate::machine::Vm;
use crate::{host, memory};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Which argument says what a call is about.
enum About {
    Descriptor(usize),
    /// Index of the directory descriptor, if there is one, and of the path.
    Path(Option<usize>, usize),
    Nothing,
}

fn about(number: i64) -> About {
    match number {
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_readlink
        | libc::SYS_unlink
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_truncate
        | libc::SYS_statfs
        | libc::SYS_rename
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_chdir => About::Path(None, 0),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat
        | libc::SYS_unlinkat
        | libc::SYS_mkdirat
        | libc::SYS_statx
        | libc::SYS_fchmodat
        | libc::SYS_utimensat
        | libc::SYS_renameat
        | libc::SYS_renameat2 => About::Path(Some(0), 1),
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_shutdown
        | libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_getsockopt
        | libc::SYS_setsockopt
        | libc::SYS_fstat
        | libc::SYS_fstatfs
        | libc::SYS_lseek
        | libc::SYS_ioctl
        | libc::SYS_fcntl
        | libc::SYS_getdents
        | libc::SYS_getdents64
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_fadvise64
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_flock
        | libc::SYS_splice => About::Descriptor(0),
        libc::SYS_sendfile => About::Descriptor(1),
        libc::SYS_mmap => About::Descriptor(4),
        _ => About::Nothing,
    }
}

/// Asking the host changes nothing there.
fn is_harmless(call: &Call) -> bool {
    let reads = |flags: u64| {
        flags as i32 & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND)
            == libc::O_RDONLY
    };
    match call.number as i64 {
        libc::SYS_open => reads(call.arguments[1]),
        libc::SYS_openat => reads(call.arguments[2]),
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_access
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlink
        | libc::SYS_readlinkat
        | libc::SYS_statfs
        | libc::SYS_getcwd
        | libc::SYS_uname
        | libc::SYS_sysinfo
        | libc::SYS_mincore
        | libc::SYS_sched_getaffinity
        | libc::SYS_getuid
        | libc::SYS_geteuid
        | libc::SYS_getgid
        | libc::SYS_getegid => true,
        _ => false,
    }
}

impl Vm {
    /// What a call is about.
    pub(super) fn asking(&self, call: &Call) -> Asking {
        let stream = match about(call.number as i64) {
            About::Nothing => match call.arguments[0] {
                small @ 0..4096 => stream_key(&[b"question", &small.to_le_bytes()]),
                _ => 0,
            },
            About::Descriptor(index) => {
                let stream = self.stream_of(call.arguments[index] as i32);
                let [_, one, two, ..] = call.arguments;
                match call.number as i64 {
                    libc::SYS_ioctl | libc::SYS_fcntl => {
                        stream_key(&[&stream.to_le_bytes(), &one.to_le_bytes()])
                    }
                    libc::SYS_lseek => stream_key(&[&stream.to_le_bytes(), &two.to_le_bytes()]),
                    libc::SYS_getsockopt | libc::SYS_setsockopt => stream_key(&[
                        &stream.to_le_bytes(),
                        &one.to_le_bytes(),
                        &two.to_le_bytes(),
                    ]),
                    _ => stream,
                }
            }
            About::Path(directory, index) => {
                let path = memory::read_c_string(call.arguments[index], 4096).unwrap_or_default();
                let from = directory.map_or(libc::AT_FDCWD, |index| call.arguments[index] as i32);
                if path.is_empty() {
                    self.stream_of(from)
                } else if path.starts_with(b"/") || from == libc::AT_FDCWD {
                    stream_key(&[b"path", &path])
                } else {
                    stream_key(&[b"path", &path, &self.stream_of(from).to_le_bytes()])
                }
            }
        };
        Asking {
            stream,
            now: self.now(),
            position: None,
            arguments: call.arguments,
            harmless: is_harmless(call),
        }
    }

    /// The stream behind a descriptor; 0 for things inside the vm.
    pub(super) fn stream_of(&self, fd: i32) -> u64 {
        match self.kernel.fds.id(fd) {
            Ok(id) => self.stream_of_description(id),
            Err(_) => 0,
        }
    }

    fn stream_of_description(&self, id: DescriptionId) -> u64 {
        match self
            .kernel
            .fds
            .peek(id)
            .map(|description| &description.object)
        {
            Some(Object::Host(file)) if file.stream != 0 => file.stream,
            Some(Object::Host(file)) => match &file.path {
                Some(path) => stream_key(&[b"file", path.as_os_str().as_bytes()]),
                None => stream_key(&[b"description", &id.to_le_bytes()]),
            },
            _ => 0,
        }
    }

    /// A name for a new stream of this origin.
    pub(super) fn new_stream(&mut self, origin: &[&[u8]]) -> u64 {
        let origin = stream_key(origin);
        let count = self.kernel.made.entry(origin).or_default();
        *count += 1;
        stream_key(&[&origin.to_le_bytes(), &count.to_le_bytes()])
    }

    fn absolute(&mut self, path: &[u8]) -> PathBuf {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        match self.io.copy() {
            Some(copy) => copy.directory.join(path),
            None => path.to_path_buf(),
        }
    }

    /// Calls whose effect a copy only imagines: they change the overlay.
    pub(super) fn imagine(&mut self, call: &Call) -> Option<Outcome> {
        let [first, second, third, fourth, ..] = call.arguments;
        let path_at = |vm: &mut Vm, address: u64| -> Option<PathBuf> {
            let path = memory::read_c_string(address, 4096).ok()?;
            Some(vm.absolute(&path))
        };
        match call.number as i64 {
            libc::SYS_unlink => {
                let path = path_at(self, first)?;
                self.io.copy()?.overlay.remove(&path);
            }
            libc::SYS_unlinkat if third as i32 & libc::AT_REMOVEDIR == 0 => {
                let path = path_at(self, second)?;
                self.io.copy()?.overlay.remove(&path);
            }
            libc::SYS_rename => {
                let (from, to) = (path_at(self, first)?, path_at(self, second)?);
                self.io.copy()?.overlay.rename(&from, &to);
            }
            libc::SYS_renameat | libc::SYS_renameat2 => {
                let (from, to) = (path_at(self, second)?, path_at(self, fourth)?);
                self.io.copy()?.overlay.rename(&from, &to);
            }
            libc::SYS_truncate => {
                let path = path_at(self, first)?;
                self.io.copy()?.overlay.truncate(&path, second);
            }
            libc::SYS_ftruncate => {
                self.host_use(first as i32).ok()??;
                let path = self.overlay_path(first as i32);
                self.io.copy()?.overlay.truncate(&path, second);
                if let Err(halt) = self.set_mapped_length(first as i32, second) {
                    return Some(Err(halt));
                }
            }
            _ => return None,
        }
        Some(Ok(0))
    }

    /// The path a descriptor's file has in the overlay.
    fn overlay_path(&self, fd: i32) -> PathBuf {
        match self
            .kernel
            .fds
            .peek_fd(fd)
            .map(|description| &description.object)
        {
            Some(Object::Host(file)) if file.path.is_some() => {
                file.path.clone().unwrap_or_default()
            }
            _ => PathBuf::from(format!("descriptor {fd}")),
        }
    }

    /// The answer to a question of the guest; its bytes go where this call
    /// wants them.
    pub(super) fn answer_in_copy(
        &mut self,
        number: i64,
        arguments: [u64; 6],
        written: impl FnOnce(i64) -> Vec<Written>,
    ) -> Outcome {
        let Some(copy) = self.io.copy() else {
            return Err(Halt::Errno(libc::ENOSYS));
        };
        let asking = copy.asking;
        if let Some(effect) = copy.inputs().answer(&asking, number as u32) {
            if effect.result >= 0 && !effect.writes.is_empty() {
                // Lengths that the call itself returns come first.
                for ((_, bytes), (target, room)) in effect.writes.iter().zip(written(effect.result))
                {
                    memory::write(target, &bytes[..bytes.len().min(room.max(4))])?;
                }
            }
            return Ok(effect.result);
        }
        if number == libc::SYS_getrandom {
            let [buffer, length, ..] = arguments;
            let length = length.min(1 << 20);
            let bytes: Vec<u8> = (0..length.div_ceil(8))
                .flat_map(|_| copy.random.next().to_le_bytes())
                .take(length as usize)
                .collect();
            memory::write(buffer, &bytes)?;
            return Ok(length as i64);
        }
        if asking.harmless {
            // SAFETY: a call that only asks, with guest ranges that the kernel
            // checks or strings that live across it.
            return Ok(unsafe { host::syscall(number, arguments) });
        }
        Ok(self.io.external(number as u32, || (0, Vec::new()))?)
    }

    /// What opening a file came to, with the overlay in mind.
    pub(super) fn opened_in_copy(
        &mut self,
        name: &[u8],
        flags: i32,
        result: i64,
        facts: Vec<u8>,
    ) -> (i64, Vec<u8>) {
        if !self.io.is_copy() {
            return (result, facts);
        }
        let path = match facts.get(17..) {
            Some(path) if result >= 0 => PathBuf::from(std::ffi::OsStr::from_bytes(path)),
            _ => self.absolute(name),
        };
        let Some(copy) = self.io.copy() else {
            return (result, facts);
        };
        let creates = flags & libc::O_CREAT != 0;
        let exists = match copy.overlay.exists(&path) {
            Some(exists) => exists,
            None => result >= 0 && !(creates && result == crate::io::NOTHING_LEFT),
        };
        if !exists && !creates {
            let missing = copy.overlay.exists(&path) == Some(false);
            return if missing {
                (-i64::from(libc::ENOENT), Vec::new())
            } else {
                (result, facts)
            };
        }
        if result < 0 && result != crate::io::NOTHING_LEFT && !exists {
            return (result, facts);
        }
        let regular = result < 0 || facts.first() == Some(&Kind::Regular.code());
        if regular && (flags & libc::O_TRUNC != 0 || !exists) && flags & libc::O_ACCMODE != 0 {
            copy.overlay.truncate(&path, 0);
        }
        if result >= 0 {
            return (result, facts);
        }
        let mut facts = vec![Kind::Regular.code()];
        facts.extend([0; 16]);
        facts.extend(path.as_os_str().as_bytes());
        (0, facts)
    }

    /// The length of a file that the copy has changed.
    pub(super) fn length_in_copy(&mut self, fd: i32) -> Result<Option<u64>, Halt> {
        if !self.io.is_copy() {
            return Ok(None);
        }
        let path = self.overlay_path(fd);
        let before = std::fs::metadata(&path).map_or(0, |data| data.len());
        Ok(self
            .io
            .copy()
            .and_then(|copy| copy.overlay.length(&path, before)))
    }

    pub(super) fn read_in_copy(
        &mut self,
        call: &mut Call,
        fd: i32,
        host: HostUse,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        let length = total(ranges) as usize;
        let stream = self.stream_of(fd);
        let path = self.overlay_path(fd);
        if host.kind == Kind::Regular && (host.positioned || position.is_some()) {
            let at = position.unwrap_or(host.offset);
            let Some(copy) = self.io.copy() else {
                return Err(Halt::Errno(libc::EIO));
            };
            copy.inputs();
            let inputs = &copy.known_inputs;
            let bytes = copy.overlay.read(&path, at, length, |at, length| {
                inputs.contents(stream, at, length)
            });
            scatter(ranges, &bytes)?;
            if position.is_none() {
                self.kernel.fds.get(fd)?.offset = at + bytes.len() as u64;
            }
            return Ok(bytes.len() as i64);
        }
        match self.io.arrive(libc::SYS_read as u32, length) {
            Arrived::Now(effect) => {
                if effect.result > 0 {
                    let bytes: Vec<u8> = effect
                        .writes
                        .into_iter()
                        .flat_map(|(_, bytes)| bytes)
                        .collect();
                    scatter(ranges, &bytes)?;
                }
                Ok(effect.result)
            }
            Arrived::NotYet => {
                if let Some(bytes) = self.device(&path, length) {
                    scatter(ranges, &bytes)?;
                    return Ok(bytes.len() as i64);
                }
                if !host.blocking() || flags & libc::RWF_NOWAIT as u64 != 0 {
                    return Err(Halt::Errno(libc::EAGAIN));
                }
                self.socket_limit(call, fd, 0, libc::EAGAIN)?;
                self.wait_for_host(call, host.number, libc::POLLIN)
            }
        }
    }

    /// Devices that never run dry.
    fn device(&mut self, path: &Path, length: usize) -> Option<Vec<u8>> {
        match path.to_str()? {
            "/dev/null" => Some(Vec::new()),
            "/dev/zero" => Some(vec![0; length]),
            "/dev/urandom" | "/dev/random" => {
                let copy = self.io.copy()?;
                Some(
                    (0..length.div_ceil(8))
                        .flat_map(|_| copy.random.next().to_le_bytes())
                        .take(length)
                        .collect(),
                )
            }
            _ => None,
        }
    }

    /// Everything is accepted at once: a copy's readers are patient.
    pub(super) fn write_in_copy(
        &mut self,
        fd: i32,
        host: HostUse,
        ranges: &[Range],
        position: Option<u64>,
    ) -> Outcome {
        let bytes = gather(ranges)?;
        let moment = self.moment();
        let path = self.overlay_path(fd);
        let name = self.stream_name(fd);
        let Some(copy) = self.io.copy() else {
            return Err(Halt::Errno(libc::EIO));
        };
        let taken = copy.known_inputs.taken;
        if host.kind == Kind::Regular && (host.positioned || position.is_some()) {
            let at = position.unwrap_or(host.offset);
            copy.overlay.write(&path, at, &bytes, moment, taken);
            if position.is_none() {
                self.kernel.fds.get(fd)?.offset = at + bytes.len() as u64;
            }
            self.wrote_bytes_to_mapped(fd, Some(at), &bytes)?;
        } else if !bytes.is_empty() && (name.starts_with("fd ") || path != Path::new("/dev/null")) {
            copy.outputs.write(&name, &bytes, moment, taken);
            self.show_in_copy(&name, &bytes)?;
        }
        Ok(bytes.len() as i64)
    }

    /// A copy that somebody watches shows what goes to the standard streams.
    fn show_in_copy(&self, name: &str, bytes: &[u8]) -> Result<(), Halt> {
        match name {
            _ if !self.shows_output() => Ok(()),
            "fd 1" => self.show_bytes(1, bytes),
            "fd 2" => self.show_bytes(2, bytes),
            _ => Ok(()),
        }
    }

    fn stream_name(&self, fd: i32) -> String {
        match self
            .kernel
            .fds
            .peek_fd(fd)
            .map(|description| &description.object)
        {
            Some(Object::Host(file)) => match (file.standard_stream, &file.path) {
                (Some(number), _) => format!("fd {number}"),
                (None, Some(path)) => path.display().to_string(),
                (None, None) => format!("fd {fd} ({:04x})", file.stream & 0xffff),
            },
            _ => format!("fd {fd}"),
        }
    }

    pub(super) fn readiness_in_copy(&mut self, id: DescriptionId) -> i16 {
        let now = self.now();
        let members = match self
            .kernel
            .fds
            .peek(id)
            .map(|description| &description.object)
        {
            Some(Object::Epoll(epoll)) => epoll.outer_members(),
            Some(Object::Host(file)) if file.kind == Kind::Regular => {
                return libc::POLLIN | libc::POLLOUT;
            }
            _ => {
                let stream = self.stream_of_description(id);
                let there = self
                    .io
                    .copy()
                    .is_some_and(|copy| copy.inputs().ready(stream, now).0);
                let readable = libc::POLLIN | libc::POLLRDNORM;
                let writable = libc::POLLOUT | libc::POLLWRNORM;
                return writable | if there { readable } else { 0 };
            }
        };
        let any = members
            .into_iter()
            .any(|(member, events)| member != id && self.readiness_in_copy(member) & events != 0);
        if any { libc::POLLIN } else { 0 }
    }

    /// Changes when something new has arrived.
    pub(super) fn arrivals_in_copy(&mut self, id: DescriptionId) -> u64 {
        let now = self.now();
        let stream = self.stream_of_description(id);
        self.io
            .copy()
            .map_or(0, |copy| copy.inputs().ready(stream, now).1)
    }

    /// In a copy: everything written since it was made.
    pub fn captured(&mut self) -> Vec<Captured> {
        let Some(copy) = self.io.copy() else {
            return Vec::new();
        };
        let mut captured = copy.outputs.captured();
        captured.extend(copy.overlay.captured());
        captured
    }

    /// In a copy: keeps the bytes of this output from `offset` on.
    pub fn keep_output_from(&mut self, name: &str, offset: u64) {
        if let Some(copy) = self.io.copy() {
            copy.outputs.keep_from(name, offset);
        }
    }

    /// In a copy: how many inputs it has taken.
    pub fn inputs_taken(&mut self) -> u64 {
        self.io.copy().map_or(0, |copy| copy.known_inputs.taken)
    }
}
