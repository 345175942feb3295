//! Pipes inside the vm.
//!
//! Bytes in a queue, the kernel's rules for atomic writes, and two counters
//! that say how often bytes arrived and room appeared (edge-triggered epoll
//! asks). When another process is to share a pipe it becomes a host pipe with
//! the same bytes in it.

use super::fd::{DescriptionId, HostFile, Kind, Object, ObjectId};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

/// Writes up to this size are not split (PIPE_BUF).
const ATOM: usize = 4096;

pub struct Pipe {
    pub id: ObjectId,
    pub buffer: VecDeque<u8>,
    pub capacity: usize,
    pub reader: bool,
    pub writer: bool,
    /// How often bytes came or the writer left, and how often room appeared
    /// or the reader left.
    pub events: [u64; 2],
    /// The host pipe this one has become.
    host: Option<[Option<OwnedFd>; 2]>,
}

#[derive(Clone)]
pub struct PipeEnd {
    pub pipe: Rc<RefCell<Pipe>>,
    pub write: bool,
}

impl Hash for PipeEnd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Pipe {
            id,
            buffer,
            capacity,
            reader,
            writer,
            events,
            host,
        } = &*self.pipe.borrow();
        (self.write, id, buffer, capacity, reader, writer, events).hash(state);
        host.is_some().hash(state);
    }
}

impl PipeEnd {
    pub fn readiness(&self) -> i16 {
        let pipe = self.pipe.borrow();
        let mut ready = 0;
        if self.write {
            if pipe.capacity - pipe.buffer.len() >= ATOM.min(pipe.capacity) {
                ready |= libc::POLLOUT | libc::POLLWRNORM;
            }
            if !pipe.reader {
                ready |= libc::POLLERR;
            }
        } else {
            if !pipe.buffer.is_empty() {
                ready |= libc::POLLIN | libc::POLLRDNORM;
            }
            if !pipe.writer {
                ready |= libc::POLLHUP;
            }
        }
        ready
    }
}

impl Vm {
    pub(super) fn sys_pipe(&mut self, address: u64, flags: i32) -> Outcome {
        let known = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_DIRECT;
        if flags & !known != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        self.kernel.fds.room_for(2)?;
        let pipe = Rc::new(RefCell::new(Pipe {
            id: self.kernel.fds.new_object(),
            buffer: VecDeque::new(),
            capacity: 65536,
            reader: true,
            writer: true,
            events: [0; 2],
            host: None,
        }));
        let cloexec = flags & libc::O_CLOEXEC != 0;
        let mut numbers = [0i32; 2];
        for (number, write) in numbers.iter_mut().zip([false, true]) {
            let end = PipeEnd {
                pipe: pipe.clone(),
                write,
            };
            let mode = if write {
                libc::O_WRONLY
            } else {
                libc::O_RDONLY
            };
            let flags = mode | flags & libc::O_NONBLOCK;
            *number = self.kernel.fds.open(0, Object::Pipe(end), flags, cloexec)?;
        }
        if memory::put(address, numbers).is_err() {
            for number in numbers {
                self.kernel.fds.close(number)?;
            }
            return Err(Halt::Errno(libc::EFAULT));
        }
        Ok(0)
    }

    pub(super) fn pipe_end(&mut self, fd: i32) -> Result<(PipeEnd, bool), Halt> {
        let description = self.kernel.fds.get(fd)?;
        let blocking = description.flags & libc::O_NONBLOCK == 0;
        match &description.object {
            Object::Pipe(end) => Ok((end.clone(), blocking)),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn read_pipe(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        let (end, blocking) = self.pipe_end(fd)?;
        let mut pipe = end.pipe.borrow_mut();
        if length == 0 {
            return Ok(Vec::new());
        }
        if pipe.buffer.is_empty() {
            if !pipe.writer {
                return Ok(Vec::new());
            }
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for(call, Vec::new(), vec![pipe.id], None);
        }
        let count = length.min(pipe.buffer.len());
        let bytes = pipe.buffer.drain(..count).collect();
        pipe.events[1] += 1;
        let id = pipe.id;
        drop(pipe);
        self.wake_objects(id);
        Ok(bytes)
    }

    pub(super) fn write_pipe(&mut self, call: &mut Call, fd: i32, bytes: &[u8]) -> Outcome {
        let (end, blocking) = self.pipe_end(fd)?;
        let mut pipe = end.pipe.borrow_mut();
        let id = pipe.id;
        if !pipe.reader {
            drop(pipe);
            if call.done > 0 {
                return Ok(call.done as i64);
            }
            return Err(Halt::Errno(libc::EPIPE));
        }
        let rest = bytes.get(call.done as usize..).unwrap_or_default();
        let room = pipe.capacity - pipe.buffer.len().min(pipe.capacity);
        let fits = if bytes.len() <= ATOM && room < bytes.len() {
            0
        } else {
            room.min(rest.len())
        };
        if fits > 0 {
            pipe.buffer.extend(&rest[..fits]);
            pipe.events[0] += 1;
        }
        drop(pipe);
        if fits > 0 {
            self.wake_objects(id);
            call.done += fits as u64;
        }
        if call.done as usize == bytes.len() {
            return Ok(call.done as i64);
        }
        if !blocking || call.interrupted {
            return match (call.done, blocking) {
                (0, true) => Err(Halt::Errno(libc::EINTR)),
                (0, false) => Err(Halt::Errno(libc::EAGAIN)),
                (done, _) => Ok(done as i64),
            };
        }
        self.wait_for(call, Vec::new(), vec![id], None)
    }

    pub(super) fn close_pipe(&mut self, end: &PipeEnd) {
        let mut pipe = end.pipe.borrow_mut();
        if end.write {
            pipe.writer = false;
            pipe.events[0] += 1;
        } else {
            pipe.reader = false;
            pipe.events[1] += 1;
        }
        let id = pipe.id;
        drop(pipe);
        self.wake_objects(id);
    }

    /// Turns one end of a pipe into an end of a host pipe; the first end to
    /// turn makes it and fills it.
    pub(super) fn externalise_pipe(&mut self, id: DescriptionId) -> Result<(), Halt> {
        let description = self.kernel.fds.by_id(id)?;
        let Object::Pipe(end) = &description.object else {
            return Ok(());
        };
        let end = end.clone();
        let mut pipe = end.pipe.borrow_mut();
        if pipe.host.is_none() {
            pipe.host = Some(if self.io.is_live() {
                host_pipe(&mut pipe.buffer)?
            } else {
                [None, None]
            });
        }
        let fd = pipe
            .host
            .as_mut()
            .and_then(|ends| ends[usize::from(end.write)].take());
        // Whoever waits looks again and finds a host descriptor.
        let object = pipe.id;
        // Once the other end is closed nobody else takes its descriptor.
        let other_open = if end.write { pipe.reader } else { pipe.writer };
        if let Some(ends) = &mut pipe.host
            && !other_open
        {
            ends[usize::from(!end.write)] = None;
        }
        drop(pipe);
        let description = self.kernel.fds.by_id(id)?;
        description.object = Object::Host(HostFile::new(fd, Kind::Fifo));
        self.wake_objects(object);
        Ok(())
    }
}

/// A host pipe holding the bytes of `buffer`.
fn host_pipe(buffer: &mut VecDeque<u8>) -> Result<[Option<OwnedFd>; 2], Halt> {
    let mut ends = [0i32; 2];
    // SAFETY: a place for two numbers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(Halt::Errno(libc::EMFILE));
    }
    let bytes: Vec<u8> = buffer.drain(..).collect();
    if bytes.len() > 65536 {
        // SAFETY: enlarging a pipe just made.
        unsafe { libc::fcntl(ends[1], libc::F_SETPIPE_SZ, bytes.len()) };
    }
    // SAFETY: writing our own bytes to a pipe just made, which has room.
    unsafe { libc::write(ends[1], bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: both just made, owned by nobody else.
    Ok(ends.map(|end| Some(unsafe { OwnedFd::from_raw_fd(end) })))
}
