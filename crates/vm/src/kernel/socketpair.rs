//! Socket pairs (AF_UNIX) inside the vm: stream, datagram and seqpacket.
//!
//! Each direction is a queue of messages; a message carries bytes and,
//! perhaps, descriptors (SCM_RIGHTS), which keep their descriptions alive
//! while in flight. When another process is to share a pair it becomes a host
//! pair with the same messages in it.

use super::fd::{DescriptionId, HostFile, Kind, Object, ObjectId};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;

/// Bytes that fit into one direction, as by default natively.
const CAPACITY: usize = 212_992;
#[derive(Hash)]
pub struct Message {
    pub bytes: VecDeque<u8>,
    pub descriptors: Vec<DescriptionId>,
}

/// One direction.
#[derive(Default, Hash)]
pub struct Lane {
    pub queue: VecDeque<Message>,
    size: usize,
    /// Nobody will write any more.
    write_closed: bool,
    /// Nobody will read any more.
    read_closed: bool,
}

pub struct Link {
    id: ObjectId,
    pub stream: bool,
    kind: i32,
    /// Lane `n` is read by side `n`.
    lanes: [Lane; 2],
    /// For each side: how often something arrived and how often room
    /// appeared.
    pub events: [[u64; 2]; 2],
    open: [bool; 2],
    host: Option<[Option<OwnedFd>; 2]>,
}

#[derive(Clone)]
pub struct PairEnd {
    pub link: Rc<RefCell<Link>>,
    pub side: usize,
}

impl Hash for PairEnd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Link {
            id,
            stream,
            kind,
            lanes,
            events,
            open,
            host,
        } = &*self.link.borrow();
        (self.side, id, stream, kind, lanes, events, open).hash(state);
        host.is_some().hash(state);
    }
}

impl PairEnd {
    pub fn id(&self) -> ObjectId {
        self.link.borrow().id
    }

    /// SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
    pub fn kind(&self) -> i32 {
        self.link.borrow().kind
    }

    pub fn readiness(&self) -> i16 {
        let link = self.link.borrow();
        let (inward, outward) = (&link.lanes[self.side], &link.lanes[1 - self.side]);
        let mut ready = 0;
        if !inward.queue.is_empty() || inward.write_closed || inward.read_closed {
            ready |= libc::POLLIN | libc::POLLRDNORM;
        }
        if inward.write_closed || inward.read_closed {
            ready |= libc::POLLRDHUP;
        }
        if outward.size < CAPACITY || outward.read_closed {
            ready |= libc::POLLOUT | libc::POLLWRNORM;
        }
        if inward.write_closed && outward.read_closed {
            ready |= libc::POLLHUP;
        }
        ready
    }

    /// Bytes that can be read at once (FIONREAD).
    pub fn available(&self) -> usize {
        let link = self.link.borrow();
        let lane = &link.lanes[self.side];
        if link.stream {
            lane.size
        } else {
            lane.queue.front().map_or(0, |message| message.bytes.len())
        }
    }
}

/// What was received.
#[derive(Default)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<DescriptionId>,
    /// Length of the whole message, if more than was asked for.
    pub full_length: usize,
}

impl Vm {
    pub(super) fn sys_socketpair(&mut self, call: &Call) -> Outcome {
        let [domain, kind, protocol, address, ..] = call.arguments;
        let flags = kind as i32 & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let kind = kind as i32 & !flags;
        if domain as i32 != libc::AF_UNIX {
            return Err(Halt::Errno(libc::EOPNOTSUPP));
        }
        if protocol != 0 && protocol != libc::AF_UNIX as u64 {
            return Err(Halt::Errno(libc::EPROTONOSUPPORT));
        }
        if !matches!(
            kind,
            libc::SOCK_STREAM | libc::SOCK_DGRAM | libc::SOCK_SEQPACKET
        ) {
            return Err(Halt::Errno(libc::ESOCKTNOSUPPORT));
        }
        self.kernel.fds.room_for(2)?;
        let link = Rc::new(RefCell::new(Link {
            id: self.kernel.fds.new_object(),
            stream: kind == libc::SOCK_STREAM,
            kind,
            lanes: [Lane::default(), Lane::default()],
            events: [[0; 2]; 2],
            open: [true; 2],
            host: None,
        }));
        let mut numbers = [0i32; 2];
        for (side, number) in numbers.iter_mut().enumerate() {
            let end = PairEnd {
                link: link.clone(),
                side,
            };
            *number = self.kernel.fds.open(
                0,
                Object::Pair(end),
                libc::O_RDWR | flags & libc::O_NONBLOCK,
                flags & libc::SOCK_CLOEXEC != 0,
            )?;
        }
        memory::put(address, numbers)?;
        Ok(0)
    }

    pub(super) fn pair_end(&mut self, fd: i32) -> Result<Option<(PairEnd, bool)>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let blocking = description.flags & libc::O_NONBLOCK == 0;
        Ok(match &description.object {
            Object::Pair(end) => Some((end.clone(), blocking)),
            _ => None,
        })
    }

    pub(super) fn read_pair(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        let received = self.receive_pair(call, fd, length, 0)?;
        for id in received.descriptors {
            self.kernel.fds.release(id);
        }
        Ok(received.bytes)
    }

    pub(super) fn write_pair(&mut self, call: &mut Call, fd: i32, bytes: &[u8]) -> Outcome {
        self.send_pair(call, fd, bytes, &[], 0)
    }

    pub(super) fn receive_pair(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
        flags: i32,
    ) -> Result<Received, Halt> {
        let Some((end, blocking)) = self.pair_end(fd)? else {
            return Err(Halt::Errno(libc::ENOTSOCK));
        };
        let mut link = end.link.borrow_mut();
        let (id, stream) = (link.id, link.stream);
        let lane = &mut link.lanes[end.side];
        let all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        let short = stream && all && lane.size < length && lane.size < CAPACITY;
        if lane.queue.is_empty() || short {
            let over = lane.write_closed || lane.read_closed;
            if over && lane.queue.is_empty() {
                return Ok(Received::default());
            }
            let enough = short && call.interrupted && !lane.queue.is_empty();
            if !over && !enough {
                if !blocking || flags & libc::MSG_DONTWAIT != 0 {
                    if lane.queue.is_empty() {
                        return Err(Halt::Errno(libc::EAGAIN));
                    }
                } else {
                    return self.wait_for(call, Vec::new(), vec![id], None);
                }
            }
        }
        let mut received = Received::default();
        if flags & libc::MSG_PEEK != 0 {
            for message in &lane.queue {
                let part = message.bytes.len().min(length - received.bytes.len());
                received.bytes.extend(message.bytes.iter().take(part));
                received.full_length += message.bytes.len();
                if !stream || received.bytes.len() == length {
                    break;
                }
            }
            return Ok(received);
        }
        while let Some(message) = lane.queue.front_mut() {
            if !message.descriptors.is_empty() && !received.bytes.is_empty() {
                // Descriptors come with the bytes they were sent with.
                break;
            }
            received.descriptors.append(&mut message.descriptors);
            let whole = message.bytes.len();
            let part = whole.min(length - received.bytes.len());
            received.bytes.extend(message.bytes.drain(..part));
            received.full_length += whole;
            if !stream {
                lane.size -= whole;
                lane.queue.pop_front();
                break;
            }
            lane.size -= part;
            if message.bytes.is_empty() {
                lane.queue.pop_front();
            }
            if received.bytes.len() == length || !received.descriptors.is_empty() {
                break;
            }
        }
        link.events[1 - end.side][1] += 1;
        drop(link);
        self.wake_objects(id);
        Ok(received)
    }

    pub(super) fn send_pair(
        &mut self,
        call: &mut Call,
        fd: i32,
        bytes: &[u8],
        descriptors: &[DescriptionId],
        flags: i32,
    ) -> Outcome {
        let Some((end, blocking)) = self.pair_end(fd)? else {
            return Err(Halt::Errno(libc::ENOTSOCK));
        };
        let mut link = end.link.borrow_mut();
        let (id, stream) = (link.id, link.stream);
        let peer = 1 - end.side;
        let lane = &mut link.lanes[peer];
        if lane.read_closed || lane.write_closed {
            drop(link);
            if call.done > 0 {
                return Ok(call.done as i64);
            }
            let connection = stream || end.kind() == libc::SOCK_SEQPACKET;
            return Err(Halt::Errno(if connection {
                libc::EPIPE
            } else {
                libc::ECONNREFUSED
            }));
        }
        if !stream && bytes.len() > CAPACITY {
            return Err(Halt::Errno(libc::EMSGSIZE));
        }
        let rest = bytes.get(call.done as usize..).unwrap_or_default();
        let room = CAPACITY.saturating_sub(lane.size);
        let fits = match stream {
            // As in Linux: as long as there is any room, pieces of this size are
            // taken whole.
            true if room > 0 => rest.len().min(CAPACITY / 2 - 64),
            true => 0,
            false if room >= rest.len() => rest.len(),
            false => 0,
        };
        let whole_message = !stream && fits == rest.len();
        if fits > 0 || whole_message {
            let first = call.done == 0;
            lane.queue.push_back(Message {
                bytes: rest[..fits].iter().copied().collect(),
                descriptors: if first {
                    descriptors.to_vec()
                } else {
                    Vec::new()
                },
            });
            lane.size += fits;
            link.events[peer][0] += 1;
            drop(link);
            if first {
                for descriptor in descriptors {
                    self.kernel.fds.hold(*descriptor);
                }
            }
            self.wake_objects(id);
            call.done += fits as u64;
        } else {
            drop(link);
        }
        if call.done as usize == bytes.len() {
            return Ok(call.done as i64);
        }
        if !blocking || flags & libc::MSG_DONTWAIT != 0 || call.interrupted {
            return match (call.done, call.interrupted) {
                (0, true) => Err(Halt::Errno(libc::EINTR)),
                (0, false) => Err(Halt::Errno(libc::EAGAIN)),
                (done, _) => Ok(done as i64),
            };
        }
        self.wait_for(call, Vec::new(), vec![id], None)
    }

    pub(super) fn shutdown_pair(&mut self, end: &PairEnd, how: i32) -> Outcome {
        let mut link = end.link.borrow_mut();
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Halt::Errno(libc::EINVAL)),
        };
        if reads {
            link.lanes[end.side].read_closed = true;
        }
        if writes {
            link.lanes[1 - end.side].write_closed = true;
        }
        for events in link.events.as_flattened_mut() {
            *events += 1;
        }
        let id = link.id;
        drop(link);
        self.wake_objects(id);
        Ok(0)
    }

    pub(super) fn close_pair(&mut self, end: &PairEnd) {
        let mut link = end.link.borrow_mut();
        let side = end.side;
        link.open[side] = false;
        link.lanes[side].read_closed = true;
        link.lanes[1 - side].write_closed = true;
        let dropped: Vec<DescriptionId> = link.lanes[side]
            .queue
            .drain(..)
            .flat_map(|message| message.descriptors)
            .collect();
        link.lanes[side].size = 0;
        for events in link.events.as_flattened_mut() {
            *events += 1;
        }
        let id = link.id;
        drop(link);
        for descriptor in dropped {
            self.kernel.fds.release(descriptor);
        }
        self.wake_objects(id);
    }

    pub(super) fn externalise_pair(&mut self, id: DescriptionId) -> Result<(), Halt> {
        let Object::Pair(end) = &self.kernel.fds.by_id(id)?.object else {
            return Ok(());
        };
        let end = end.clone();
        let live = self.io.is_live();
        // Descriptors in flight go along.
        let flying: Vec<DescriptionId> = end
            .link
            .borrow()
            .lanes
            .iter()
            .flat_map(|lane| &lane.queue)
            .flat_map(|message| message.descriptors.clone())
            .collect();
        for descriptor in &flying {
            if *descriptor != id {
                self.externalise_one(*descriptor)?;
            }
        }
        let mut link = end.link.borrow_mut();
        let object = link.id;
        if link.host.is_none() {
            let mut ends = [None, None];
            if live {
                ends = host_pair(link.kind)?;
            }
            for side in 0..2 {
                let lane = std::mem::take(&mut link.lanes[side]);
                for mut message in lane.queue {
                    let numbers: Vec<i32> = message
                        .descriptors
                        .iter()
                        .filter_map(|id| match &self.kernel.fds.peek(*id)?.object {
                            Object::Host(file) => Some(file.number()),
                            _ => None,
                        })
                        .collect();
                    if let Some(writer) = &ends[1 - side] {
                        let bytes = message.bytes.make_contiguous();
                        super::socket::send_with_descriptors(writer, bytes, &numbers);
                    }
                    for descriptor in message.descriptors {
                        self.kernel.fds.release(descriptor);
                    }
                }
                if lane.write_closed
                    && let Some(writer) = &ends[1 - side]
                {
                    shut(writer, libc::SHUT_WR);
                }
                if lane.read_closed
                    && let Some(reader) = &ends[side]
                {
                    shut(reader, libc::SHUT_RD);
                }
            }
            for (end, open) in ends.iter_mut().zip(link.open) {
                if !open {
                    *end = None;
                }
            }
            link.host = Some(ends);
        }
        let fd = link.host.as_mut().and_then(|ends| ends[end.side].take());
        drop(link);
        let description = self.kernel.fds.by_id(id)?;
        description.object = Object::Host(HostFile::new(fd, Kind::Socket));
        self.wake_objects(object);
        Ok(())
    }
}

fn shut(socket: &OwnedFd, how: i32) {
    use std::os::fd::AsRawFd;
    // SAFETY: no preconditions.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

fn host_pair(kind: i32) -> Result<[Option<OwnedFd>; 2], Halt> {
    let mut ends = [0i32; 2];
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a place for two numbers.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return Err(Halt::Errno(libc::EMFILE));
    }
    // SAFETY: both just made, owned by nobody else.
    Ok(ends.map(|end| Some(unsafe { OwnedFd::from_raw_fd(end) })))
}
