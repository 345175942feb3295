//! Reading and writing: read, write and their vectored and positioned forms,
//! lseek and mapping, on files outside and on things inside the vm.
//!
//! A blocking call on an outside stream never stops the other threads: the
//! attempt is made without waiting, "would have to wait" is written down like
//! any result, and the thread waits for the descriptor. O_NONBLOCK is the
//! guest's own business: it is kept in the description and never set on a
//! descriptor that others may share.

use super::fd::{HostFile, HostUse, Kind, Object};
use super::{Call, Halt, Outcome};
use crate::Error;
use crate::io::Written;
use crate::machine::Vm;
use crate::thread::{HostInterest, Wait, WaitOn};
use crate::{host, memory, protection};
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

/// Result of an attempt that would have to wait: the kernel's own internal
/// "restart" number, which no call returns to a program.
pub(crate) const WOULD_BLOCK: i64 = -512;

const EAGAIN: i64 = -(libc::EAGAIN as i64);
const EOPNOTSUPP: i64 = -(libc::EOPNOTSUPP as i64);

/// The most one read or write transfers, as in the kernel.
const MOST: u64 = 0x7fff_f000;

/// Guaranteed free when a pipe or terminal polls writable.
const PIPE_ATOM: u64 = 4096;

/// A range of guest memory.
pub type Range = (u64, u64);

/// Polls one host descriptor without waiting.
pub(super) fn ready(fd: i32, events: i16) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one entry, on the stack.
    unsafe { libc::poll(&mut entry, 1, 0) != 0 }
}

/// The guest's iovec array.
pub(super) fn vectors(address: u64, count: u64) -> Result<Vec<Range>, Halt> {
    if count > 1024 {
        return Err(Halt::Errno(libc::EINVAL));
    }
    let mut total = 0u64;
    let mut ranges = Vec::with_capacity(count as usize);
    for index in 0..count {
        let base = memory::get::<u64>(address + index * 16)?;
        let length = memory::get::<u64>(address + index * 16 + 8)?;
        if length > i64::MAX as u64 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let length = length.min(MOST - total);
        if length > 0 && (memory::is_vm(base) || memory::is_vm(base.saturating_add(length - 1))) {
            return Err(Halt::Errno(libc::EFAULT));
        }
        total += length;
        ranges.push((base, length));
    }
    Ok(ranges)
}

pub(super) fn total(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(_, length)| length).sum()
}

/// The first `length` bytes of the ranges.
pub(super) fn filled(ranges: &[Range], length: u64) -> Vec<Written> {
    let mut left = length;
    let mut written = Vec::new();
    for (base, size) in ranges {
        let part = left.min(*size);
        if part > 0 {
            written.push((*base, part as usize));
        }
        left -= part;
    }
    written
}

/// All bytes of the ranges.
pub(super) fn gather(ranges: &[Range]) -> Result<Vec<u8>, Halt> {
    let mut bytes = Vec::with_capacity(total(ranges) as usize);
    for (base, length) in ranges {
        bytes.extend(memory::read_vec(*base, *length as usize)?);
    }
    Ok(bytes)
}

/// Spreads `bytes` over the ranges.
pub(super) fn scatter(ranges: &[Range], mut bytes: &[u8]) -> Result<(), Halt> {
    for (base, length) in ranges {
        let (part, rest) = bytes.split_at(bytes.len().min(*length as usize));
        memory::write(*base, part)?;
        bytes = rest;
    }
    Ok(())
}

/// The ranges without their first `skip` bytes, `most` bytes at most.
pub(super) fn section(ranges: &[Range], mut skip: u64, mut most: u64) -> Vec<Range> {
    let mut result = Vec::new();
    for (base, length) in ranges {
        let skipped = skip.min(*length);
        skip -= skipped;
        let part = (length - skipped).min(most);
        most -= part;
        if part > 0 {
            result.push((base + skipped, part));
        }
    }
    result
}

/// One transfer by the host, in the form that fits.
struct Transfer {
    fd: i32,
    write: bool,
    ranges: Vec<Range>,
    position: Option<u64>,
    flags: u64,
}

impl Transfer {
    fn perform(&self) -> i64 {
        let number = match (self.write, self.position, self.flags, self.ranges.len()) {
            (false, None, 0, 1) => libc::SYS_read,
            (true, None, 0, 1) => libc::SYS_write,
            (false, Some(_), 0, 1) => libc::SYS_pread64,
            (true, Some(_), 0, 1) => libc::SYS_pwrite64,
            (false, _, _, _) => libc::SYS_preadv2,
            (true, _, _, _) => libc::SYS_pwritev2,
        };
        let fd = self.fd as u64;
        let position = self.position.unwrap_or(u64::MAX);
        let arguments = if self.flags == 0 && self.ranges.len() == 1 {
            [fd, self.ranges[0].0, self.ranges[0].1, position, 0, 0]
        } else {
            let vectors = self.ranges.as_ptr() as u64;
            [
                fd,
                vectors,
                self.ranges.len() as u64,
                position,
                0,
                self.flags,
            ]
        };
        // SAFETY: guest ranges, which the kernel checks; a range is laid out
        // as an iovec, two words.
        unsafe { host::syscall(number, arguments) }
    }

    /// Without waiting, on a descriptor that may be in blocking mode.
    fn attempt(&mut self, kind: Kind) -> i64 {
        let events = if self.write {
            libc::POLLOUT
        } else {
            libc::POLLIN
        };
        if kind != Kind::Regular && !ready(self.fd, events) {
            return WOULD_BLOCK;
        }
        let result = match kind {
            Kind::Socket => self.on_socket(),
            Kind::Fifo => {
                self.flags |= libc::RWF_NOWAIT as u64;
                let result = self.perform();
                if result == EOPNOTSUPP {
                    self.flags &= !(libc::RWF_NOWAIT as u64);
                    if self.write {
                        self.ranges = section(&self.ranges, 0, PIPE_ATOM);
                    }
                    self.perform()
                } else {
                    result
                }
            }
            Kind::Character if self.write => {
                self.ranges = section(&self.ranges, 0, PIPE_ATOM);
                self.perform()
            }
            _ => self.perform(),
        };
        if result == EAGAIN {
            WOULD_BLOCK
        } else {
            result
        }
    }

    fn on_socket(&self) -> i64 {
        let mut message: libc::msghdr =
            // SAFETY: all zeros is an empty message.
            unsafe { std::mem::zeroed() };
        message.msg_iov = self.ranges.as_ptr() as *mut libc::iovec;
        message.msg_iovlen = self.ranges.len();
        let number = if self.write {
            libc::SYS_sendmsg
        } else {
            libc::SYS_recvmsg
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header lives across the call; guest ranges are checked
        // by the kernel.
        unsafe {
            host::syscall(
                number,
                [
                    self.fd as u64,
                    &raw const message as u64,
                    flags as u64,
                    0,
                    0,
                    0,
                ],
            )
        }
    }
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
        if self.io.is_copy() {
            return self.answer_in_copy(number, arguments, written);
        }
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

    /// The call has to wait, unless a signal handler is to run first.
    pub(super) fn wait_for<T>(
        &mut self,
        call: &Call,
        host: Vec<HostInterest>,
        objects: Vec<u64>,
        deadline: Option<u64>,
    ) -> Result<T, Halt> {
        if call.interrupted {
            return Err(Halt::Errno(libc::EINTR));
        }
        let current = self.current;
        self.kernel.fds.wait_for(current, objects);
        Err(Halt::Block(Wait {
            on: if host.is_empty() {
                WaitOn::Objects
            } else {
                WaitOn::Host(host)
            },
            deadline,
        }))
    }

    /// Waits for a host descriptor, at most until the call's limit.
    pub(super) fn wait_for_host<T>(
        &mut self,
        call: &Call,
        fd: i32,
        events: i16,
    ) -> Result<T, Halt> {
        self.wait_for(
            call,
            vec![HostInterest { fd, events }],
            Vec::new(),
            call.limit,
        )
    }

    pub(super) fn sys_read(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, ..] = call.arguments;
        self.read_into(call, fd as i32, &[(buffer, length.min(MOST))], None, 0)
    }

    pub(super) fn sys_write(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, ..] = call.arguments;
        self.write_from(call, fd as i32, &[(buffer, length.min(MOST))], None, 0)
    }

    pub(super) fn sys_pread(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, position, ..] = call.arguments;
        let position = checked_position(position)?;
        self.read_into(
            call,
            fd as i32,
            &[(buffer, length.min(MOST))],
            Some(position),
            0,
        )
    }

    pub(super) fn sys_pwrite(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, position, ..] = call.arguments;
        let position = checked_position(position)?;
        self.write_from(
            call,
            fd as i32,
            &[(buffer, length.min(MOST))],
            Some(position),
            0,
        )
    }

    /// readv, preadv and preadv2.
    pub(super) fn sys_readv(&mut self, call: &mut Call) -> Outcome {
        let (fd, ranges, position, flags) = vectored_arguments(call)?;
        self.read_into(call, fd, &ranges, position, flags)
    }

    pub(super) fn sys_writev(&mut self, call: &mut Call) -> Outcome {
        let (fd, ranges, position, flags) = vectored_arguments(call)?;
        self.write_from(call, fd, &ranges, position, flags)
    }

    pub(super) fn read_into(
        &mut self,
        call: &mut Call,
        fd: i32,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        let result = self.read_bytes(call, fd, ranges, position, flags)?;
        if self.observed() && result > 0 {
            // Told after the call itself, which may order it.
            self.kernel_writes.extend(filled(ranges, result as u64));
        }
        Ok(result)
    }

    fn read_bytes(
        &mut self,
        call: &mut Call,
        fd: i32,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        let description = self.kernel.fds.get(fd)?;
        if description.flags & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Halt::Errno(libc::EBADF));
        }
        for (base, length) in ranges {
            self.space_for_writing(*base, *length);
        }
        if let Some(host) = self.host_use(fd)? {
            return self.read_host(call, fd, host, ranges, position, flags);
        }
        if position.is_some() && !self.seekable(fd)? {
            return Err(Halt::Errno(libc::ESPIPE));
        }
        let length = total(ranges) as usize;
        let description = self.kernel.fds.get(fd)?;
        if let Object::Bytes { content, .. } = &description.object {
            let at = position.unwrap_or(description.offset);
            let start = (at as usize).min(content.len());
            let part = content[start..(start + length).min(content.len())].to_vec();
            scatter(ranges, &part)?;
            if position.is_none() {
                self.kernel.fds.get(fd)?.offset = at + part.len() as u64;
            }
            return Ok(part.len() as i64);
        }
        let bytes = self.read_object(call, fd, length)?;
        scatter(ranges, &bytes)?;
        Ok(bytes.len() as i64)
    }

    fn seekable(&mut self, fd: i32) -> Result<bool, Halt> {
        Ok(match &self.kernel.fds.get(fd)?.object {
            Object::Host(file) => matches!(file.kind, Kind::Regular | Kind::Directory),
            Object::Bytes { .. } | Object::Listing(_) => true,
            _ => false,
        })
    }

    /// Takes up to `length` bytes from something inside the vm.
    pub(super) fn read_object(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(_) => self.read_pipe(call, fd, length),
            Object::Pair(_) => self.read_pair(call, fd, length),
            Object::Event(_) => self.read_event(call, fd, length),
            Object::Timer(_) => self.read_timer(call, fd, length),
            Object::Signals(_) => self.read_signals(call, fd, length),
            Object::Listing(_) => Err(Halt::Errno(libc::EISDIR)),
            Object::Epoll(_) | Object::Host(_) | Object::Bytes { .. } => {
                Err(Halt::Errno(libc::EINVAL))
            }
        }
    }

    fn read_host(
        &mut self,
        call: &mut Call,
        fd: i32,
        host: HostUse,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        if self.io.is_copy() {
            return self.read_in_copy(call, fd, host, ranges, position, flags);
        }
        let mut transfer = Transfer {
            fd: host.number,
            write: false,
            ranges: ranges.to_vec(),
            position,
            flags,
        };
        if host.positioned || position.is_some() {
            let at = position.unwrap_or(host.offset);
            transfer.position = Some(at);
            self.io.ask_at(at);
            let result = self.io.external(libc::SYS_read as u32, || {
                let result = transfer.perform();
                (result, filled(ranges, result.max(0) as u64))
            })?;
            if position.is_none() && result > 0 {
                self.kernel.fds.get(fd)?.offset += result as u64;
            }
            return Ok(result);
        }
        let result = self.io.external(libc::SYS_read as u32, || {
            let result = transfer.attempt(host.kind);
            (result, filled(ranges, result.max(0) as u64))
        })?;
        if result != WOULD_BLOCK {
            return Ok(result);
        }
        if !host.blocking() || flags & libc::RWF_NOWAIT as u64 != 0 {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        self.socket_limit(call, fd, 0, libc::EAGAIN)?;
        self.wait_for_host(call, host.number, libc::POLLIN)
    }

    pub(super) fn write_from(
        &mut self,
        call: &mut Call,
        fd: i32,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        let result = self.write_bytes(call, fd, ranges, position, flags)?;
        if self.observed() && result > 0 {
            for (address, length) in filled(ranges, result as u64) {
                self.tell_kernel_access(address, length as u64, false);
            }
        }
        Ok(result)
    }

    fn write_bytes(
        &mut self,
        call: &mut Call,
        fd: i32,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        if position.is_some() && self.host_use(fd)?.is_none() && !self.seekable(fd)? {
            return Err(Halt::Errno(libc::ESPIPE));
        }
        let description = self.kernel.fds.get(fd)?;
        if description.flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Halt::Errno(libc::EBADF));
        }
        if let Object::Host(HostFile {
            memory_of: Some(process),
            ..
        }) = description.object
        {
            return self.write_own_memory(fd, process, ranges, position);
        }
        if let Some(host) = self.host_use(fd)? {
            return self.write_host(call, fd, host, ranges, position, flags);
        }
        let bytes = gather(ranges)?;
        self.write_object(call, fd, &bytes)
    }

    /// Writes to /proc/self/mem: any memory of the guest's, whatever its
    /// protection. A child that inherited its parent's may not.
    fn write_own_memory(
        &mut self,
        fd: i32,
        process: i32,
        ranges: &[Range],
        position: Option<u64>,
    ) -> Outcome {
        if process != self.kernel.process.pid {
            return self.refuse("writing to the memory of another process", libc::EACCES);
        }
        let bytes = gather(ranges)?;
        let length = bytes.len() as u64;
        let start = position.unwrap_or(self.kernel.fds.get(fd)?.offset);
        let end = start.checked_add(length).ok_or(Halt::Errno(libc::EIO))?;
        if !self.change_memory(start, &bytes) {
            return Err(Halt::Errno(libc::EIO));
        }
        if position.is_none() {
            self.kernel.fds.get(fd)?.offset = end;
        }
        Ok(length as i64)
    }

    /// Writes to something inside the vm.
    pub(super) fn write_object(&mut self, call: &mut Call, fd: i32, bytes: &[u8]) -> Outcome {
        match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(_) => self.write_pipe(call, fd, bytes),
            Object::Pair(_) => self.write_pair(call, fd, bytes),
            Object::Event(_) => self.write_event(call, fd, bytes),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    fn write_host(
        &mut self,
        call: &mut Call,
        fd: i32,
        host: HostUse,
        ranges: &[Range],
        position: Option<u64>,
        flags: u64,
    ) -> Outcome {
        if self.io.is_copy() {
            return self.write_in_copy(fd, host, ranges, position);
        }
        let mut transfer = Transfer {
            fd: host.number,
            write: true,
            ranges: ranges.to_vec(),
            position,
            flags,
        };
        if host.positioned || position.is_some() {
            transfer.position = Some(position.unwrap_or(host.offset));
            let _order = self.lock_output(fd);
            let result = self.io.external(libc::SYS_write as u32, || {
                let mut result = transfer.perform();
                // Files of /proc that take what is written and have no places.
                if result == -i64::from(libc::ESPIPE) && position.is_none() {
                    transfer.position = None;
                    result = transfer.perform();
                }
                (result, Vec::new())
            })?;
            if position.is_none() && result > 0 {
                self.kernel.fds.get(fd)?.offset += result as u64;
            }
            let at = transfer
                .position
                .filter(|_| host.flags & libc::O_APPEND == 0);
            self.wrote_to_mapped(fd, at, &filled(ranges, result.max(0) as u64))?;
            self.wrote(fd, ranges, result)?;
            return Ok(result);
        }
        let whole = total(ranges);
        loop {
            transfer.ranges = section(ranges, call.done, MOST);
            if transfer.ranges.is_empty() {
                transfer.ranges = vec![ranges.first().map_or((0, 0), |range| (range.0, 0))];
            }
            let part = transfer.ranges.clone();
            let order = self.lock_output(fd);
            let result = self.io.external(libc::SYS_write as u32, || {
                (transfer.attempt(host.kind), Vec::new())
            })?;
            if result > 0 {
                self.wrote_to_mapped(fd, None, &filled(&part, result as u64))?;
                self.wrote(fd, &part, result)?;
            }
            drop(order);
            if result == WOULD_BLOCK {
                if !host.blocking() || call.interrupted {
                    if call.done > 0 {
                        return Ok(call.done as i64);
                    }
                    return Err(Halt::Errno(if call.interrupted {
                        libc::EINTR
                    } else {
                        libc::EAGAIN
                    }));
                }
                self.socket_limit(call, fd, 1, libc::EAGAIN)?;
                return self.wait_for_host(call, host.number, libc::POLLOUT);
            }
            if result < 0 {
                if call.done > 0 {
                    return Ok(call.done as i64);
                }
                return Ok(result);
            }
            call.done += result as u64;
            // A blocking write to a stream ends when all is written; other
            // things may take less.
            let goes_on = matches!(host.kind, Kind::Fifo | Kind::Socket | Kind::Character);
            if call.done >= whole || result == 0 || !goes_on {
                return Ok(call.done as i64);
            }
        }
    }

    /// Sets when a socket's receive (0) or send (1) gives up, the first time;
    /// fails with `errno` when that has come.
    pub(super) fn socket_limit(
        &mut self,
        call: &mut Call,
        fd: i32,
        direction: usize,
        errno: i32,
    ) -> Result<(), Halt> {
        if call.again {
            if call.limit.is_some_and(|limit| limit <= self.now()) {
                return Err(Halt::Errno(errno));
            }
            return Ok(());
        }
        let now = self.now();
        if let Object::Host(file) = &self.kernel.fds.get(fd)?.object {
            call.limit = file.timeouts[direction].map(|timeout| now + timeout);
        }
        Ok(())
    }

    pub(super) fn sys_lseek(&mut self, fd: i32, offset: u64, whence: u64) -> Outcome {
        let Some(host) = self.host_use(fd)? else {
            let description = self.kernel.fds.get(fd)?;
            let size = match &description.object {
                Object::Bytes { content, .. } => content.len() as i64,
                Object::Listing(_) => 0,
                _ => return Err(Halt::Errno(libc::ESPIPE)),
            };
            let base = match whence as i32 {
                libc::SEEK_SET => 0,
                libc::SEEK_CUR => description.offset as i64,
                libc::SEEK_END => size,
                _ => return Err(Halt::Errno(libc::EINVAL)),
            };
            let target = base
                .checked_add(offset as i64)
                .filter(|target| *target >= 0);
            let target = target.ok_or(Halt::Errno(libc::EINVAL))?;
            description.offset = target as u64;
            return Ok(target);
        };
        if !host.positioned {
            return self.host_call(
                libc::SYS_lseek,
                [host.number as u64, offset, whence, 0, 0, 0],
            );
        }
        let target = match whence as i32 {
            libc::SEEK_SET => offset as i64,
            libc::SEEK_CUR => (host.offset as i64)
                .checked_add(offset as i64)
                .ok_or(Halt::Errno(libc::EOVERFLOW))?,
            // The end, holes and data: the file knows.
            _ => {
                let arguments = [host.number as u64, offset, whence, 0, 0, 0];
                let recorded = self.host_call(libc::SYS_lseek, arguments)?;
                match self.length_in_copy(fd)? {
                    Some(length) if whence as i32 == libc::SEEK_END => {
                        (length as i64).saturating_add(offset as i64)
                    }
                    _ => recorded,
                }
            }
        };
        if target < 0 {
            let direct = matches!(whence as i32, libc::SEEK_SET | libc::SEEK_CUR);
            return Ok(if direct {
                -i64::from(libc::EINVAL)
            } else {
                target
            });
        }
        self.kernel.fds.get(fd)?.offset = target as u64;
        Ok(target)
    }

    /// Path and handle of a file the guest wants to map. While recording the
    /// handle is the description's own and must not be closed (`into_raw_fd`):
    /// closing another would drop the process's record locks on the file. The
    /// recording says whether the host maps it.
    pub(super) fn file_to_map(
        &mut self,
        fd: i32,
        (protection, shared): (i32, bool),
        offset: u64,
    ) -> Result<(PathBuf, File), Halt> {
        let description = self.kernel.fds.get(fd)?;
        let flags = description.flags;
        let writable = shared && protection & libc::PROT_WRITE != 0;
        let Object::Host(file) = &description.object else {
            return Err(Halt::Errno(libc::ENODEV));
        };
        if flags & libc::O_ACCMODE == libc::O_WRONLY
            || (writable && flags & libc::O_ACCMODE != libc::O_RDWR)
        {
            return Err(Halt::Errno(libc::EACCES));
        }
        if file.kind != Kind::Regular {
            return Err(Halt::Errno(libc::ENODEV));
        }
        let number = file.number();
        let path = file.path.clone().unwrap_or_default();
        let writable = writable || flags & libc::O_ACCMODE != libc::O_RDONLY;
        let opened = self.io.mapped_file(writable, || {
            host_maps(number, (protection, shared), offset)?;
            // SAFETY: open as long as the description lives; the caller does
            // not close it.
            Ok((path, unsafe { File::from_raw_fd(number) }))
        })?;
        opened.map_err(|error| Halt::Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// The guest has written the first `length` bytes of `ranges` to `fd`: a
    /// replay shows what went to the standard streams.
    pub(super) fn wrote(&mut self, fd: i32, ranges: &[Range], length: i64) -> Result<(), Halt> {
        if length <= 0 {
            return Ok(());
        }
        let Some(stream) = self.standard_stream(fd) else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        if !self.io.is_live() {
            for (address, length) in filled(ranges, length as u64) {
                bytes.extend(memory::read_vec(address, length)?);
            }
        }
        self.show_output(stream, &bytes)
    }

    /// Like `wrote`, for bytes that never were in guest memory.
    pub(super) fn wrote_bytes(&mut self, fd: i32, bytes: &[u8]) -> Result<(), Halt> {
        match self.standard_stream(fd) {
            Some(stream) if !bytes.is_empty() => self.show_output(stream, bytes),
            _ => Ok(()),
        }
    }

    pub(super) fn standard_stream(&self, fd: i32) -> Option<i32> {
        match &self.kernel.fds.peek_fd(fd)?.object {
            Object::Host(file) => file.standard_stream,
            _ => None,
        }
    }

    /// A replay shows what went to a standard stream, in the order in which
    /// the processes of a tree wrote it.
    fn show_output(&mut self, stream: i32, bytes: &[u8]) -> Result<(), Halt> {
        let order = self.order_output()?;
        if self.io.is_live() || !self.shows_output() {
            return Ok(());
        }
        self.await_turn(order)?;
        let shown = self.show_bytes(stream, bytes);
        self.had_turn(order);
        shown
    }

    /// Writes the program's output to a stream of ours. A recording may come
    /// from anybody: on a terminal nothing in it moves the cursor.
    pub(super) fn show_bytes(&self, stream: i32, bytes: &[u8]) -> Result<(), Halt> {
        // SAFETY: asks about a descriptor; no other preconditions.
        let is_terminal = unsafe { libc::isatty(stream) } == 1;
        let bytes = match is_terminal && !self.shows_raw {
            true => race::plain_bytes(bytes),
            false => bytes.into(),
        };
        let name = if stream == 2 { "error" } else { "output" };
        match write_to(stream, &bytes) {
            Ok(()) => Ok(()),
            // Whoever reads it may have gone away; the replay is not concerned.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Halt::Fatal(Error::Machine(format!(
                "cannot write what the program writes to standard {name}: {error}"
            )))),
        }
    }

    /// The host is about to write to a guest range: nothing keeps it from that.
    pub(crate) fn space_for_writing(&mut self, address: u64, length: u64) {
        if let Some(end) = address.checked_add(length) {
            protection::lift_range(address..end);
        }
    }
}

/// Writes all of `bytes`, whoever else writes to the stream. Not by the standard
/// library's streams: they take one that cannot be written for one that was
/// written.
fn write_to(stream: i32, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the bytes are readable; the descriptor is only written to.
        let written = unsafe { libc::write(stream, bytes.as_ptr().cast(), bytes.len()) };
        if let Ok(written) = usize::try_from(written) {
            bytes = &bytes[written..];
            continue;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            // The reader does not keep up.
            io::ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd {
                    fd: stream,
                    events: libc::POLLOUT,
                    revents: 0,
                };
                // SAFETY: one pollfd, as said.
                unsafe { libc::poll(&raw mut poll, 1, -1) };
            }
            _ => return Err(error),
        }
    }
    Ok(())
}

fn checked_position(position: u64) -> Result<u64, Halt> {
    if (position as i64) < 0 {
        return Err(Halt::Errno(libc::EINVAL));
    }
    Ok(position)
}

/// What [p]readv[2] and [p]writev[2] were called with.
fn vectored_arguments(call: &Call) -> Result<(i32, Vec<Range>, Option<u64>, u64), Halt> {
    let [fd, address, count, position, _, flags] = call.arguments;
    let (position, flags) = match call.number as i64 {
        libc::SYS_readv | libc::SYS_writev => (None, 0),
        libc::SYS_preadv | libc::SYS_pwritev => (Some(checked_position(position)?), 0),
        _ if position as i64 == -1 => (None, flags),
        _ => (Some(checked_position(position)?), flags),
    };
    Ok((fd as i32, vectors(address, count)?, position, flags))
}

/// Fails as the host does where it refuses to map a file: one that is sealed, or
/// on a file system that cannot. A replay maps something else, which would not
/// refuse.
fn host_maps(fd: i32, (protection, shared): (i32, bool), offset: u64) -> std::io::Result<()> {
    let flags = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let page = crate::layout::PAGE;
    let protection = crate::space::host_protection(protection);
    let arguments = [0, page, protection as u64, flags as u64, fd as u64, offset];
    // SAFETY: a mapping where nothing is, that nobody knows of, unmapped at once.
    unsafe {
        let address = host::syscall(libc::SYS_mmap, arguments);
        if address < 0 {
            return Err(std::io::Error::from_raw_os_error(-address as i32));
        }
        host::syscall(libc::SYS_munmap, [address as u64, page, 0, 0, 0, 0]);
    }
    Ok(())
}
