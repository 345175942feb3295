//! Moving bytes from one descriptor to another: sendfile, splice, tee,
//! vmsplice, copy_file_range.
//!
//! Between host descriptors the host moves them and only the number is
//! written down, unless they go to a standard stream, which a replay shows.

use super::fd::{Kind, Object};
use super::file::{WOULD_BLOCK, ready};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::thread::{Wait, WaitOn};
use crate::{host, memory};

/// Most bytes moved through a buffer at a time.
const CHUNK: usize = 1 << 16;

/// Where bytes come from.
enum Source {
    /// A host file, at this position.
    File(i32, u64),
    /// Here they are.
    Bytes(Vec<u8>),
}

impl Vm {
    pub(super) fn sys_sendfile(&mut self, call: &mut Call) -> Outcome {
        let [output, input, offset, count, ..] = call.arguments;
        let (output, input) = (output as i32, input as i32);
        let start = if offset == 0 {
            None
        } else {
            Some(memory::get::<u64>(offset)?)
        };
        let count = count.min(0x7fff_f000);
        loop {
            let moved = call.done;
            if moved >= count {
                break;
            }
            let position = match start {
                Some(start) => start + moved,
                None => self.position(input)?,
            };
            let most = (count - moved).min(CHUNK as u64) as usize;
            let source = self.source(input, position, most)?;
            match self.pump(call, output, source, most) {
                Ok(0) => break,
                Ok(sent) if sent > 0 => {
                    call.done += sent as u64;
                    if start.is_none() {
                        self.advance(input, sent as u64)?;
                    }
                }
                Err(Halt::Block(wait)) => return Err(Halt::Block(wait)),
                _ if call.done > 0 => break,
                other => return other,
            }
        }
        if let Some(start) = start {
            memory::put(offset, start + call.done)?;
        }
        Ok(call.done as i64)
    }

    /// Position of a file that can be read at one.
    fn position(&mut self, fd: i32) -> Result<u64, Halt> {
        if let Some(host) = self.host_use(fd)?
            && !host.positioned
        {
            let arguments = [host.number as u64, 0, libc::SEEK_CUR as u64, 0, 0, 0];
            let position = self.host_call(libc::SYS_lseek, arguments)?;
            return u64::try_from(position).map_err(|_| Halt::Errno(libc::EINVAL));
        }
        Ok(self.kernel.fds.get(fd)?.offset)
    }

    fn advance(&mut self, fd: i32, by: u64) -> Result<(), Halt> {
        if let Some(host) = self.host_use(fd)?
            && !host.positioned
        {
            let arguments = [host.number as u64, by, libc::SEEK_CUR as u64, 0, 0, 0];
            self.host_call(libc::SYS_lseek, arguments)?;
            return Ok(());
        }
        self.kernel.fds.get(fd)?.offset += by;
        Ok(())
    }

    fn source(&mut self, fd: i32, position: u64, most: usize) -> Result<Source, Halt> {
        match &self.kernel.fds.get(fd)?.object {
            Object::Host(file) if file.kind == Kind::Regular => {
                Ok(Source::File(file.number(), position))
            }
            Object::Bytes { content, .. } => {
                let start = (position as usize).min(content.len());
                let end = (start + most).min(content.len());
                Ok(Source::Bytes(content[start..end].to_vec()))
            }
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    /// Moves up to `most` bytes to `output` once, waiting if it has no room.
    fn pump(&mut self, call: &mut Call, output: i32, source: Source, most: usize) -> Outcome {
        let description = self.kernel.fds.get(output)?;
        if description.flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Halt::Errno(libc::EBADF));
        }
        let Some(host) = self.host_use(output)? else {
            let most = match self.inner_room(call, output)? {
                Some(room) => most.min(room),
                None => most,
            };
            let bytes = self.fetch(source, most)?;
            let mut one = call.clone();
            one.done = 0;
            return self.write_object(&mut one, output, &bytes);
        };
        let mapped = self.is_mapped(output);
        let shown = mapped
            || matches!(&self.kernel.fds.get(output)?.object,
                Object::Host(file) if file.standard_stream.is_some());
        let position = host.positioned.then_some(host.offset);
        let _order = self.lock_output(output);
        let (result, bytes) = self.io.external_bytes(libc::SYS_sendfile as u32, || {
            if host.kind != Kind::Regular && !ready(host.number, libc::POLLOUT) {
                return (WOULD_BLOCK, Vec::new());
            }
            let mut bytes = match source {
                Source::File(fd, at) => match read_at(fd, at, most) {
                    Ok(bytes) => bytes,
                    Err(errno) => return (errno, Vec::new()),
                },
                Source::Bytes(bytes) => bytes,
            };
            if matches!(host.kind, Kind::Fifo | Kind::Character) {
                bytes.truncate(4096);
            }
            let result = write_once(host.number, host.kind, position, &bytes);
            bytes.truncate(result.max(0) as usize);
            (result, if shown { bytes } else { Vec::new() })
        })?;
        if result == WOULD_BLOCK {
            if !host.blocking() {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for_host(call, host.number, libc::POLLOUT);
        }
        if result > 0 && position.is_some() {
            self.kernel.fds.get(output)?.offset += result as u64;
        }
        if mapped {
            self.wrote_bytes_to_mapped(output, position, &bytes)?;
        }
        self.wrote_bytes(output, &bytes)?;
        Ok(result)
    }

    /// The bytes themselves, for something inside the vm.
    fn fetch(&mut self, source: Source, most: usize) -> Result<Vec<u8>, Halt> {
        match source {
            Source::Bytes(mut bytes) => {
                bytes.truncate(most);
                Ok(bytes)
            }
            Source::File(fd, at) => {
                let (result, bytes) = self.io.external_bytes(libc::SYS_pread64 as u32, || {
                    match read_at(fd, at, most) {
                        Ok(bytes) => (0, bytes),
                        Err(errno) => (errno, Vec::new()),
                    }
                })?;
                if result < 0 {
                    return Err(Halt::Errno(-result as i32));
                }
                Ok(bytes)
            }
        }
    }

    /// Room in a pipe inside the vm; waits for some. None for things that
    /// take what they are given.
    fn inner_room(&mut self, call: &Call, fd: i32) -> Result<Option<usize>, Halt> {
        let id = self.kernel.fds.id(fd)?;
        let writable = self.readiness(id).unwrap_or(0) & (libc::POLLOUT | libc::POLLERR);
        let blocking = self.kernel.fds.get(fd)?.flags & libc::O_NONBLOCK == 0;
        let (object, room) = match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(end) => {
                let pipe = end.pipe.borrow();
                (pipe.id, Some(pipe.capacity - pipe.buffer.len()))
            }
            Object::Pair(end) => (end.id(), Some(4096)),
            _ => return Ok(None),
        };
        if writable == 0 {
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for(call, Vec::new(), vec![object], None);
        }
        Ok(room)
    }

    pub(super) fn sys_copy_file_range(&mut self, call: &Call) -> Outcome {
        let [input, from, output, to, length, flags] = call.arguments;
        let source = self.host_only(input as i32, libc::EINVAL)?;
        let target = self.host_only(output as i32, libc::EINVAL)?;
        let shown = matches!(&self.kernel.fds.get(output as i32)?.object,
            Object::Host(file) if file.standard_stream.is_some());
        if shown || self.is_mapped(output as i32) {
            // A replay must be able to show it: let the program write it.
            return Err(Halt::Errno(libc::EXDEV));
        }
        let mut positions = [0u64; 2];
        let mut pointers = [0u64; 2];
        let guest = [from, to];
        for (index, host) in [source, target].iter().enumerate() {
            if guest[index] != 0 {
                positions[index] = memory::get(guest[index])?;
            } else if host.positioned {
                positions[index] = host.offset;
            } else {
                continue;
            }
            pointers[index] = (&raw mut positions[index]) as u64;
        }
        let arguments = [
            source.number as u64,
            pointers[0],
            target.number as u64,
            pointers[1],
            length,
            flags,
        ];
        let before = positions;
        let result = self.host_call(libc::SYS_copy_file_range, arguments)?;
        if result > 0 {
            for (index, fd) in [input, output].into_iter().enumerate() {
                let after = before[index] + result as u64;
                if guest[index] != 0 {
                    memory::put(guest[index], after)?;
                } else if pointers[index] != 0 {
                    self.kernel.fds.get(fd as i32)?.offset = after;
                }
            }
        }
        Ok(result)
    }

    pub(super) fn sys_splice(&mut self, call: &mut Call) -> Outcome {
        let [input, from, output, to, length, flags] = call.arguments;
        let (input, output) = (input as i32, output as i32);
        let most = (length as usize).min(CHUNK);
        let is_pipe = |object: &Object| match object {
            Object::Pipe(_) => true,
            Object::Host(file) => file.kind == Kind::Fifo,
            _ => false,
        };
        let in_pipe = is_pipe(&self.kernel.fds.get(input)?.object);
        let out_pipe = is_pipe(&self.kernel.fds.get(output)?.object);
        if !in_pipe && !out_pipe {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if (in_pipe && from != 0) || (out_pipe && to != 0) {
            return Err(Halt::Errno(libc::ESPIPE));
        }
        let source_flags = self.kernel.fds.get(input)?.flags;
        let target_flags = self.kernel.fds.get(output)?.flags;
        if source_flags & libc::O_ACCMODE == libc::O_WRONLY
            || target_flags & libc::O_ACCMODE == libc::O_RDONLY
        {
            return Err(Halt::Errno(libc::EBADF));
        }
        let appends = !out_pipe && target_flags & libc::O_APPEND != 0;
        if appends || self.is_same_pipe(input, output) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut no_wait = call.clone();
        if flags as u32 & libc::SPLICE_F_NONBLOCK != 0 {
            no_wait.interrupted = true;
        }
        let hosts = (self.host_use(input)?, self.host_use(output)?);
        if let (Some(source), Some(target)) = hosts {
            if source.positioned && from == 0 || target.positioned && to == 0 {
                // The host keeps the position from here on.
                for fd in [input, output] {
                    let id = self.kernel.fds.id(fd)?;
                    self.externalise_one(id)?;
                }
            }
            return self.host_splice(call, source.number, target.number, flags);
        }
        if let Object::Pipe(end) = &self.kernel.fds.get(input)?.object {
            let end = end.clone();
            let bytes: Vec<u8> = end
                .pipe
                .borrow()
                .buffer
                .iter()
                .copied()
                .take(most)
                .collect();
            if bytes.is_empty() {
                // Waits, or finds the end.
                return self
                    .read_pipe(&mut no_wait, input, most)
                    .map(|bytes| bytes.len() as i64)
                    .map_err(as_busy);
            }
            let mut seek = None;
            if to != 0 {
                let old = self.kernel.fds.get(output)?.offset;
                self.kernel.fds.get(output)?.offset = memory::get(to)?;
                seek = Some(old);
            }
            let moved = self.pump(&mut no_wait, output, Source::Bytes(bytes), most);
            if let Some(old) = seek {
                let description = self.kernel.fds.get(output)?;
                let now = std::mem::replace(&mut description.offset, old);
                memory::put(to, now)?;
            }
            let moved = moved.map_err(as_busy)?;
            let mut pipe = end.pipe.borrow_mut();
            pipe.buffer.drain(..moved.max(0) as usize);
            pipe.events[1] += 1;
            let id = pipe.id;
            drop(pipe);
            self.wake_objects(id);
            return Ok(moved);
        }
        // Something into a pipe inside the vm.
        let room = self
            .inner_room(&no_wait, output)
            .map_err(as_busy)?
            .unwrap_or(most)
            .min(most);
        let bytes = match &self.kernel.fds.get(input)?.object {
            Object::Host(file) if file.kind == Kind::Regular => {
                let position = if from == 0 {
                    self.position(input)?
                } else {
                    memory::get(from)?
                };
                let source = self.source(input, position, room)?;
                let bytes = self.fetch(source, room)?;
                if from == 0 {
                    self.advance(input, bytes.len() as u64)?;
                } else {
                    memory::put(from, position + bytes.len() as u64)?;
                }
                bytes
            }
            Object::Host(_) => self.read_stream(&no_wait, input, room).map_err(as_busy)?,
            _ => self
                .read_object(&mut no_wait, input, room)
                .map_err(as_busy)?,
        };
        let mut one = call.clone();
        one.done = 0;
        self.write_object(&mut one, output, &bytes)
    }

    /// Bytes of a host stream for the vm itself.
    fn read_stream(&mut self, call: &Call, fd: i32, most: usize) -> Result<Vec<u8>, Halt> {
        let host = self.host_only(fd, libc::EINVAL)?;
        let (result, bytes) = self.io.external_bytes(libc::SYS_splice as u32, || {
            if !ready(host.number, libc::POLLIN) {
                return (WOULD_BLOCK, Vec::new());
            }
            let mut bytes = vec![0u8; most];
            let arguments = [
                host.number as u64,
                bytes.as_mut_ptr() as u64,
                most as u64,
                0,
                0,
                0,
            ];
            // SAFETY: the buffer is ours and as long as said.
            let result = unsafe { host::syscall(libc::SYS_read, arguments) };
            bytes.truncate(result.max(0) as usize);
            (result, bytes)
        })?;
        if result == WOULD_BLOCK {
            if !host.blocking() {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for_host(call, host.number, libc::POLLIN);
        }
        if result < 0 {
            return Err(Halt::Errno(-result as i32));
        }
        Ok(bytes)
    }

    /// Both ends are the host's.
    fn host_splice(&mut self, call: &Call, input: i32, output: i32, flags: u64) -> Outcome {
        let [_, from, out, to, length, _] = call.arguments;
        if let Object::Host(file) = &self.kernel.fds.get(out as i32)?.object
            && file.standard_stream.is_some()
        {
            // A replay must be able to show it: let the program write it.
            return Err(Halt::Errno(libc::EINVAL));
        }
        let arguments = [
            input as u64,
            from,
            output as u64,
            to,
            length,
            flags | u64::from(libc::SPLICE_F_NONBLOCK),
        ];
        let result = self.io.external(libc::SYS_splice as u32, || {
            if !ready(input, libc::POLLIN) || !ready(output, libc::POLLOUT) {
                return (WOULD_BLOCK, Vec::new());
            }
            // SAFETY: the positions are guest pointers, checked by the kernel.
            let result = unsafe { host::syscall(libc::SYS_splice, arguments) };
            let again = result == -i64::from(libc::EAGAIN);
            let written = [from, to]
                .iter()
                .filter(|address| **address != 0)
                .map(|address| (*address, 8))
                .collect();
            (if again { WOULD_BLOCK } else { result }, written)
        })?;
        if result != WOULD_BLOCK {
            return Ok(result);
        }
        if flags as u32 & libc::SPLICE_F_NONBLOCK != 0 {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        // One of them is ready all the time: look again soon.
        let soon = self.now() + 1_000_000;
        if call.interrupted {
            return Err(Halt::Errno(libc::EINTR));
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Host(Vec::new()),
            deadline: Some(soon),
        }))
    }

    pub(super) fn sys_tee(&mut self, call: &mut Call) -> Outcome {
        let [input, output, length, flags, ..] = call.arguments;
        let (input, output) = (input as i32, output as i32);
        let hosts = (self.host_use(input)?, self.host_use(output)?);
        if let (Some(source), Some(target)) = hosts {
            let flags = flags | u64::from(libc::SPLICE_F_NONBLOCK);
            let arguments = [
                source.number as u64,
                target.number as u64,
                length,
                flags,
                0,
                0,
            ];
            return self.host_call(libc::SYS_tee, arguments);
        }
        let (source, _) = self.pipe_end(input)?;
        self.pipe_end(output)?;
        if self.is_same_pipe(input, output) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut no_wait = call.clone();
        if flags as u32 & libc::SPLICE_F_NONBLOCK != 0 {
            no_wait.interrupted = true;
        }
        let room = self
            .inner_room(&no_wait, output)
            .map_err(as_busy)?
            .unwrap_or(0);
        let most = room.min(length as usize);
        let bytes: Vec<u8> = source
            .pipe
            .borrow()
            .buffer
            .iter()
            .copied()
            .take(most)
            .collect();
        if bytes.is_empty() {
            return self
                .read_pipe(&mut no_wait, input, most)
                .map(|bytes| bytes.len() as i64)
                .map_err(as_busy);
        }
        let mut one = call.clone();
        one.done = 0;
        self.write_pipe(&mut one, output, &bytes)
    }

    /// To or from a pipe as writev and readv would.
    /// Both are ends of one pipe inside the vm. Of others the host says it.
    fn is_same_pipe(&self, one: i32, other: i32) -> bool {
        let pipe = |fd| match &self.kernel.fds.peek_fd(fd)?.object {
            Object::Pipe(end) => Some(end.pipe.as_ptr()),
            _ => None,
        };
        pipe(one).is_some() && pipe(one) == pipe(other)
    }

    pub(super) fn sys_vmsplice(&mut self, call: &mut Call) -> Outcome {
        let [fd, vector, count, ..] = call.arguments;
        let fd = fd as i32;
        let room = match &self.kernel.fds.get(fd)?.object {
            Object::Pipe(end) if end.write => {
                let pipe = end.pipe.borrow();
                pipe.capacity.saturating_sub(pipe.buffer.len())
            }
            Object::Pipe(_) => 0,
            Object::Host(file) if file.kind == Kind::Fifo => 0,
            _ => return Err(Halt::Errno(libc::EBADF)),
        };
        let mut ranges = super::file::vectors(vector, count)?;
        if room > 0 && !call.again {
            // It waits for some room, not for all.
            let mut left = room as u64;
            for (_, length) in &mut ranges {
                *length = left.min(*length);
                left -= *length;
            }
        }
        if self.kernel.fds.get(fd)?.flags & libc::O_ACCMODE == libc::O_RDONLY {
            self.read_into(call, fd, &ranges, None, 0)
        } else {
            self.write_from(call, fd, &ranges, None, 0)
        }
    }
}

/// A call that was told not to wait says EAGAIN instead of EINTR.
fn as_busy(halt: Halt) -> Halt {
    match halt {
        Halt::Errno(libc::EINTR) => Halt::Errno(libc::EAGAIN),
        other => other,
    }
}

fn read_at(fd: i32, position: u64, most: usize) -> Result<Vec<u8>, i64> {
    let mut bytes = vec![0u8; most];
    let arguments = [
        fd as u64,
        bytes.as_mut_ptr() as u64,
        most as u64,
        position,
        0,
        0,
    ];
    // SAFETY: the buffer is ours and as long as said.
    let result = unsafe { host::syscall(libc::SYS_pread64, arguments) };
    if result < 0 {
        return Err(result);
    }
    bytes.truncate(result as usize);
    Ok(bytes)
}

/// One write that does not wait, of bytes of our own.
fn write_once(fd: i32, kind: Kind, position: Option<u64>, bytes: &[u8]) -> i64 {
    let (address, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
    // SAFETY: the buffer is ours and as long as said.
    let result = unsafe {
        match (kind, position) {
            (_, Some(position)) => {
                let arguments = [fd as u64, address, length, position, 0, 0];
                host::syscall(libc::SYS_pwrite64, arguments)
            }
            (Kind::Socket, None) => {
                host::syscall(libc::SYS_sendto, [fd as u64, address, length, flags, 0, 0])
            }
            _ => host::syscall(libc::SYS_write, [fd as u64, address, length, 0, 0, 0]),
        }
    };
    if result == -i64::from(libc::EAGAIN) {
        WOULD_BLOCK
    } else {
        result
    }
}
