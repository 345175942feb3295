//! fcntl, flock, dup and close_range.

use super::fd::{Kind, Object};
use super::file::WOULD_BLOCK;
use super::limits::SYS_RESOURCE;
use super::{Call, Halt, Outcome};
use crate::host;
use crate::machine::Vm;
use crate::memory;

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_GETOWNER_UIDS: i32 = 17;
const F_DUPFD_QUERY: i32 = 1027;
const F_CREATED_QUERY: i32 = 1028;

/// Flags that F_SETFL can change.
const SETTABLE: i32 =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;

impl Vm {
    pub(super) fn sys_dup2(&mut self, fd: i32, to: i32, flags: Option<i32>) -> Outcome {
        let is_dup3 = flags.is_some();
        let flags = flags.unwrap_or(0);
        if flags & !libc::O_CLOEXEC != 0 || (is_dup3 && fd == to) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if fd == to {
            self.kernel.fds.id(fd)?;
            return Ok(i64::from(to));
        }
        self.kernel
            .fds
            .duplicate_to(fd, to, flags & libc::O_CLOEXEC != 0)
    }

    pub(super) fn sys_close_range(&mut self, first: u64, last: u64, flags: u64) -> Outcome {
        const CLOEXEC: u32 = 4;
        const UNSHARE: u32 = 2;
        let (first, last) = (first as u32, last as u32);
        if first > last || flags as u32 & !(CLOEXEC | UNSHARE) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let numbers: Vec<i32> = self
            .kernel
            .fds
            .numbers()
            .filter(|fd| (first..=last).contains(&(*fd as u32)))
            .collect();
        for fd in numbers {
            if flags as u32 & CLOEXEC != 0 {
                self.kernel.fds.set_close_on_exec(fd, true)?;
            } else {
                self.kernel.fds.close(fd)?;
            }
        }
        Ok(0)
    }

    pub(super) fn sys_fcntl(&mut self, call: &Call) -> Outcome {
        let [fd, command, argument, ..] = call.arguments;
        let fd = fd as i32;
        match command as i32 {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                if argument as i32 >= self.kernel.fds.limit || (argument as i32) < 0 {
                    return Err(Halt::Errno(libc::EINVAL));
                }
                let cloexec = command as i32 == libc::F_DUPFD_CLOEXEC;
                self.kernel.fds.duplicate(fd, argument as i32, cloexec)
            }
            libc::F_GETFD => Ok(i64::from(self.kernel.fds.close_on_exec(fd)?)),
            libc::F_SETFD => {
                let cloexec = argument as i32 & libc::FD_CLOEXEC != 0;
                self.kernel.fds.set_close_on_exec(fd, cloexec)?;
                Ok(0)
            }
            libc::F_GETFL => Ok(i64::from(self.kernel.fds.get(fd)?.flags)),
            libc::F_SETFL => self.set_flags(fd, argument as i32),
            libc::F_SETLKW
            | libc::F_OFD_SETLKW
            | libc::F_SETLK
            | libc::F_OFD_SETLK
            | libc::F_GETLK
            | libc::F_OFD_GETLK => self.record_lock(call),
            libc::F_GETPIPE_SZ => match &self.kernel.fds.get(fd)?.object {
                Object::Pipe(end) => Ok(end.pipe.borrow().capacity as i64),
                _ => self.descriptor_call(call, libc::EBADF, None),
            },
            libc::F_SETPIPE_SZ => {
                if let Object::Pipe(end) = &self.kernel.fds.get(fd)?.object {
                    const MOST: usize = 1 << 20;
                    let end = end.clone();
                    let wanted = argument as u32 as usize;
                    if wanted > 1 << 31 {
                        return Err(Halt::Errno(libc::EINVAL));
                    }
                    let capacity = wanted.max(4096).next_power_of_two();
                    let grows = capacity > end.pipe.borrow().capacity;
                    if grows && capacity > MOST && !self.has_capability(SYS_RESOURCE)? {
                        return Err(Halt::Errno(libc::EPERM));
                    }
                    let mut pipe = end.pipe.borrow_mut();
                    if capacity < pipe.buffer.len() {
                        return Err(Halt::Errno(libc::EBUSY));
                    }
                    pipe.capacity = capacity;
                    return Ok(capacity as i64);
                }
                self.descriptor_call(call, libc::EBADF, None)
            }
            libc::F_ADD_SEALS | libc::F_GET_SEALS => self.descriptor_call(call, libc::EINVAL, None),
            // Who gets which signal when something comes: the host's
            // description notes it, and the host sends it.
            libc::F_SETOWN | libc::F_GETOWN | F_SETSIG | F_GETSIG => {
                self.outside_descriptor(fd)?;
                self.descriptor_call(call, libc::EINVAL, None)
            }
            F_SETOWN_EX => self.set_owner(call),
            F_GETOWN_EX | F_GETOWNER_UIDS => {
                self.outside_descriptor(fd)?;
                self.descriptor_call(call, libc::EINVAL, Some((argument, 8)))
            }
            F_DUPFD_QUERY => {
                let same = self.kernel.fds.id(fd)? == self.kernel.fds.id(argument as i32)?;
                Ok(i64::from(same))
            }
            F_CREATED_QUERY => match self.kernel.fds.get(fd)?.object {
                Object::Host(_) => self.descriptor_call(call, libc::EINVAL, None),
                _ => Ok(0),
            },
            libc::F_SETLEASE | libc::F_GETLEASE | libc::F_NOTIFY => {
                self.descriptor_call(call, libc::EINVAL, None)
            }
            _ => {
                self.kernel.fds.get(fd)?;
                Err(Halt::Errno(libc::EINVAL))
            }
        }
    }

    /// A pipe or the like inside the vm becomes the host's, as at a fork: its
    /// other end has to be there as well.
    fn outside_descriptor(&mut self, fd: i32) -> Result<(), Halt> {
        match self.kernel.fds.get(fd)?.object {
            Object::Host(_) => Ok(()),
            _ => self.externalise(),
        }
    }

    /// F_SETOWN_EX. The threads of this process are the vm's alone: to the host
    /// each of them is the process.
    fn set_owner(&mut self, call: &Call) -> Outcome {
        const THREAD: i32 = 0;
        const PROCESS: i32 = 1;
        let [fd, command, argument, ..] = call.arguments;
        self.outside_descriptor(fd as i32)?;
        let host = self.host_only(fd as i32, libc::EINVAL)?.number;
        let [mut kind, mut owner] = memory::get::<[i32; 2]>(argument)?;
        if kind == THREAD && self.threads.values().any(|thread| thread.tid == owner) {
            (kind, owner) = (PROCESS, self.kernel.process.pid);
        }
        Ok(self.io.external(libc::SYS_fcntl as u32, || {
            let owner = [kind, owner];
            let arguments = [host as u64, command, owner.as_ptr() as u64, 0, 0, 0];
            // SAFETY: an f_owner_ex of ours.
            let result = unsafe { host::syscall(libc::SYS_fcntl, arguments) };
            (result, Vec::new())
        })?)
    }

    fn set_flags(&mut self, fd: i32, flags: i32) -> Outcome {
        let id = self.kernel.fds.id(fd)?;
        let description = self.kernel.fds.get(fd)?;
        let old = description.flags;
        description.flags = old & !SETTABLE | flags & SETTABLE;
        let append = (old ^ flags) & libc::O_APPEND != 0;
        let regular = matches!(&description.object,
            Object::Host(file) if file.kind == Kind::Regular);
        if append && regular {
            // The end of the file is the host's to find, so the position goes
            // there as well.
            self.externalise_one(id)?;
            let host = self.host_only(fd, libc::EBADF)?;
            let host_flags = (flags & libc::O_APPEND) as u64;
            let arguments = [
                host.number as u64,
                libc::F_SETFL as u64,
                host_flags,
                0,
                0,
                0,
            ];
            return self.host_call(libc::SYS_fcntl, arguments);
        }
        if (old ^ flags) & libc::O_ASYNC != 0 {
            return self.set_async(fd, flags & libc::O_ASYNC != 0);
        }
        Ok(0)
    }

    /// The host sends SIGIO, or another signal, when something comes.
    pub(super) fn set_async(&mut self, fd: i32, on: bool) -> Outcome {
        self.outside_descriptor(fd)?;
        let Some(host) = self.host_use(fd)? else {
            return Ok(0);
        };
        Ok(self.io.external(libc::SYS_fcntl as u32, || {
            let on = i32::from(on);
            let request = libc::FIOASYNC;
            let arguments = [host.number as u64, request, &raw const on as u64, 0, 0, 0];
            // SAFETY: a number of ours.
            let result = unsafe { host::syscall(libc::SYS_ioctl, arguments) };
            // Where there is no such thing, fcntl says nothing.
            let told = if result == -i64::from(libc::ENOTTY) {
                0
            } else {
                result
            };
            (told, Vec::new())
        })?)
    }

    pub(super) fn sys_flock(&mut self, call: &Call) -> Outcome {
        let [fd, operation, ..] = call.arguments;
        let host = self.host_only(fd as i32, libc::EBADF)?;
        let attempt = operation | libc::LOCK_NB as u64;
        let arguments = [host.number as u64, attempt, 0, 0, 0, 0];
        if operation as i32 & libc::LOCK_NB != 0 {
            return self.host_call(libc::SYS_flock, arguments);
        }
        self.attempt_lock(call, libc::SYS_flock, arguments)
    }

    fn attempt_lock(&mut self, call: &Call, number: i64, arguments: [u64; 6]) -> Outcome {
        let result = self.io.external(number as u32, || {
            // SAFETY: the lock's description is a guest pointer, which the
            // kernel checks.
            let result = unsafe { host::syscall(number, arguments) };
            let busy = [libc::EAGAIN, libc::EACCES].map(|errno| -i64::from(errno));
            let result = if busy.contains(&result) {
                WOULD_BLOCK
            } else {
                result
            };
            (result, Vec::new())
        })?;
        if result != WOULD_BLOCK {
            return Ok(result);
        }
        self.wait_for_lock(call)
    }
}
