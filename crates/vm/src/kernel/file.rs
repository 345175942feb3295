//! Files and streams outside the vm.

use super::fd::{HostFile, Object};
use super::{Call, Halt, Outcome};
use crate::io::Written;
use crate::machine::Vm;
use crate::thread::{HostInterest, Wait, WaitOn};
use crate::{host, memory};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// Result of an attempt that would have to wait: the kernel's own internal
/// "restart" number, which no call returns to a program.
pub(super) const WOULD_BLOCK: i64 = -512;

/// Polls one host descriptor without waiting.
fn ready(fd: i32, events: i16) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one entry, on the stack.
    unsafe { libc::poll(&mut entry, 1, 0) != 0 }
}

impl Vm {
    /// A host call that writes nothing to guest memory.
    pub(super) fn host_call(&mut self, number: i64, arguments: [u64; 6]) -> Outcome {
        self.host_call_writing(number, arguments, |_| Vec::new())
    }

    /// A host call; `written` tells from its result which guest ranges it
    /// wrote. Guest pointers go to the host as they are: a bad one is EFAULT.
    pub(super) fn host_call_writing(
        &mut self,
        number: i64,
        arguments: [u64; 6],
        written: impl FnOnce(i64) -> Vec<Written>,
    ) -> Outcome {
        Ok(self.io.external(number as u32, || {
            // SAFETY: the arguments are guest ranges or plain values, vetted
            // by the handler that builds them.
            let result = unsafe { host::syscall(number, arguments) };
            let ranges = if result >= 0 {
                written(result)
            } else {
                Vec::new()
            };
            (result, ranges)
        })?)
    }

    /// A host call on a stream that may have to wait for `events`.
    fn stream_call(
        &mut self,
        fd: i32,
        flags: i32,
        events: i16,
        number: i64,
        arguments: [u64; 6],
        written: impl FnOnce(i64) -> Vec<Written>,
    ) -> Outcome {
        let result = self.io.external(number as u32, || {
            if flags & libc::O_NONBLOCK == 0 && !ready(fd, events) {
                return (WOULD_BLOCK, Vec::new());
            }
            // SAFETY: as in `host_call_writing`.
            let result = unsafe { host::syscall(number, arguments) };
            let ranges = if result >= 0 {
                written(result)
            } else {
                Vec::new()
            };
            (result, ranges)
        })?;
        if result == WOULD_BLOCK {
            return Err(Halt::Block(Wait {
                on: WaitOn::Host(vec![HostInterest { fd, events }]),
                deadline: None,
            }));
        }
        Ok(result)
    }

    pub(super) fn sys_read(&mut self, call: &Call) -> Outcome {
        let [fd, buffer, length, ..] = call.arguments;
        let (host, positioned, offset, flags) = self.host_file(fd as i32)?;
        let written = |result: i64| vec![(buffer, result as usize)];
        if positioned {
            let arguments = [host as u64, buffer, length, offset, 0, 0];
            let result = self.host_call_writing(libc::SYS_pread64, arguments, written)?;
            self.move_offset(fd as i32, result)?;
            return Ok(result);
        }
        let arguments = [host as u64, buffer, length, 0, 0, 0];
        self.stream_call(
            host,
            flags,
            libc::POLLIN,
            libc::SYS_read,
            arguments,
            written,
        )
    }

    pub(super) fn sys_write(&mut self, call: &Call) -> Outcome {
        let [fd, buffer, length, ..] = call.arguments;
        let (host, positioned, offset, flags) = self.host_file(fd as i32)?;
        let result = if positioned {
            let arguments = [host as u64, buffer, length, offset, 0, 0];
            let result = self.host_call(libc::SYS_pwrite64, arguments)?;
            self.move_offset(fd as i32, result)?;
            result
        } else {
            let arguments = [host as u64, buffer, length, 0, 0, 0];
            let nothing = |_| Vec::new();
            self.stream_call(
                host,
                flags,
                libc::POLLOUT,
                libc::SYS_write,
                arguments,
                nothing,
            )?
        };
        self.wrote(fd as i32, buffer, result)?;
        Ok(result)
    }

    fn move_offset(&mut self, fd: i32, result: i64) -> Result<(), Halt> {
        if result > 0 {
            self.kernel.fds.get(fd)?.offset += result as u64;
        }
        Ok(())
    }

    pub(super) fn sys_openat(&mut self, call: &Call) -> Outcome {
        let [directory, path, flags, mode, ..] = call.arguments;
        let flags = flags as i32;
        let name = memory::read_c_string(path, 4096)?;
        let directory = self.host_directory(directory as i32, &name)?;
        let mut opened = None;
        let (result, facts) = self.io.external_bytes(libc::SYS_openat as u32, || {
            let arguments = [
                directory as u64,
                path,
                (flags | libc::O_CLOEXEC) as u64,
                mode,
                0,
                0,
            ];
            // SAFETY: opening a guest-given path; a bad pointer is EFAULT.
            let result = unsafe { host::syscall(libc::SYS_openat, arguments) };
            if result < 0 {
                return (result, Vec::new());
            }
            // SAFETY: a descriptor just opened, owned by nobody else.
            let file = unsafe { OwnedFd::from_raw_fd(result as i32) };
            let regular = is_regular(file.as_raw_fd());
            let path = std::fs::read_link(format!("/proc/self/fd/{result}"));
            opened = Some(file);
            let mut facts = vec![u8::from(regular)];
            if let Ok(path) = path {
                facts.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
            (0, facts)
        })?;
        if result < 0 {
            return Ok(result);
        }
        use std::os::unix::ffi::OsStringExt;
        let path = facts
            .get(1..)
            .map(|path| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
        let object = Object::Host(HostFile {
            fd: opened,
            path,
            standard_stream: None,
            positioned: facts.first() == Some(&1) && flags & libc::O_APPEND == 0,
        });
        let fd = self.kernel.fds.open(
            0,
            object,
            flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC),
            flags & libc::O_CLOEXEC != 0,
        )?;
        Ok(i64::from(fd))
    }

    /// The host directory descriptor for an `*at` call.
    pub(super) fn host_directory(&mut self, fd: i32, path: &[u8]) -> Result<i32, Halt> {
        if fd == libc::AT_FDCWD || path.starts_with(b"/") {
            return Ok(libc::AT_FDCWD);
        }
        Ok(self.host_file(fd)?.0)
    }

    /// Path and handle of a file the guest wants to map.
    pub(super) fn file_to_map(&mut self, fd: i32, writable: bool) -> Result<(PathBuf, File), Halt> {
        let description = self.kernel.fds.get(fd)?;
        let Object::Host(file) = &description.object;
        let number = file.number();
        let path = file.path.clone().unwrap_or_default();
        let writable = writable || description.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let opened = self.io.mapped_file(writable, || {
            // SAFETY: duplicating a host descriptor that is open.
            let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
            if copy < 0 {
                return Err(std::io::Error::last_os_error());
            }
            // SAFETY: just made, owned by nobody else.
            Ok((path, unsafe { File::from_raw_fd(copy) }))
        })?;
        opened.map_err(|error| Halt::Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// The guest has written `length` bytes to `fd`: a replay shows what went
    /// to the standard streams.
    pub(super) fn wrote(&mut self, fd: i32, address: u64, length: i64) -> Result<(), Halt> {
        if self.io.is_live() || length <= 0 {
            return Ok(());
        }
        let Object::Host(file) = &self.kernel.fds.get(fd)?.object;
        if let Some(stream) = file.standard_stream {
            let bytes = memory::read_vec(address, length as usize)?;
            // Whoever reads the replay's output may have gone away; the replay
            // itself is not concerned.
            let _ = if stream == 2 {
                std::io::stderr().write_all(&bytes)
            } else {
                std::io::stdout()
                    .write_all(&bytes)
                    .and_then(|()| std::io::stdout().flush())
            };
        }
        Ok(())
    }
}

fn is_regular(fd: i32) -> bool {
    // SAFETY: plain out-parameter.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}
