//! Sockets outside, and the socket calls on pairs inside the vm.
//!
//! Host sockets made for the guest are non-blocking on the host; whether a
//! call waits is the guest's flag. Everything received comes into the vm's
//! own buffers and is copied to the guest from there, because descriptors in
//! control messages must become the guest's numbers first.

use super::fd::{DescriptionId, HostFile, HostUse, Kind, Object};
use super::file::{Range, WOULD_BLOCK, gather, ready, scatter, total, vectors};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::thread::{Wait, WaitOn};
use crate::{host, memory};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const HEADER: usize = 16;
const MAX_NAME: usize = 128;
/// Largest control buffer the kernel accepts by default.
const MAX_CONTROL: usize = 20_480;

fn last_errno() -> i64 {
    -i64::from(
        std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    )
}

/// Sends bytes with descriptors on a host socket that has room.
pub(super) fn send_with_descriptors(socket: &OwnedFd, bytes: &[u8], descriptors: &[i32]) {
    let control = rights(descriptors);
    let vector = libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: all zeros is an empty message; the parts live across the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = (&raw const vector).cast_mut();
        message.msg_iovlen = 1;
        if !control.is_empty() {
            message.msg_control = control.as_ptr() as *mut libc::c_void;
            message.msg_controllen = control.len();
        }
        libc::sendmsg(
            socket.as_raw_fd(),
            &message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        );
    }
}

/// A control message that carries descriptors.
fn rights(descriptors: &[i32]) -> Vec<u8> {
    if descriptors.is_empty() {
        return Vec::new();
    }
    let payload: Vec<u8> = descriptors.iter().flat_map(|fd| fd.to_le_bytes()).collect();
    control_message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &payload)
}

fn control_message(level: i32, kind: i32, payload: &[u8]) -> Vec<u8> {
    let mut message = ((HEADER + payload.len()) as u64).to_le_bytes().to_vec();
    message.extend_from_slice(&level.to_le_bytes());
    message.extend_from_slice(&kind.to_le_bytes());
    message.extend_from_slice(payload);
    message.resize(message.len().next_multiple_of(8), 0);
    message
}

/// Level, type and payload of each control message.
fn control_messages(bytes: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at + HEADER <= bytes.len() {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        let length = u64::from_le_bytes(word) as usize;
        if length < HEADER || at + length > bytes.len() {
            break;
        }
        let number = |from: usize| {
            i32::from_le_bytes([
                bytes[from],
                bytes[from + 1],
                bytes[from + 2],
                bytes[from + 3],
            ])
        };
        messages.push((
            number(at + 8),
            number(at + 12),
            bytes[at + HEADER..at + length].to_vec(),
        ));
        at += length.next_multiple_of(8);
    }
    messages
}

/// A message to send.
struct Outgoing {
    ranges: Vec<Range>,
    name: Vec<u8>,
    control: Vec<u8>,
    flags: i32,
}

/// A message to receive.
struct Incoming {
    ranges: Vec<Range>,
    /// Where the sender's address goes, and how much fits.
    name: (u64, u32),
    control: (u64, u64),
    flags: i32,
}

/// What came.
#[derive(Default)]
struct Arrived {
    /// Bytes, or length of the whole message with MSG_TRUNC.
    result: i64,
    name_length: u32,
    control_length: u64,
    flags: i32,
}

impl Vm {
    pub(super) fn sys_socket(&mut self, domain: u64, kind: u64, protocol: u64) -> Outcome {
        let flags = kind as i32 & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let host_kind = kind | (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        self.open_host_object(
            libc::SYS_socket,
            [domain, host_kind, protocol, 0, 0, 0],
            Kind::Socket,
            libc::O_RDWR | flags & libc::O_NONBLOCK,
            flags & libc::SOCK_CLOEXEC != 0,
        )
    }

    /// The host socket behind a descriptor.
    fn socket(&mut self, fd: i32) -> Result<HostUse, Halt> {
        let host = self.host_only(fd, libc::ENOTSOCK)?;
        if host.kind == Kind::Socket {
            Ok(host)
        } else {
            Err(Halt::Errno(libc::ENOTSOCK))
        }
    }

    /// bind, listen and setsockopt: nothing comes back but a number.
    pub(super) fn sys_socket_set(&mut self, call: &Call) -> Outcome {
        let [fd, level, name, value, length, _] = call.arguments;
        if self.pair_end(fd as i32)?.is_some() {
            // A pair is bound to itself; its options change nothing here.
            return match call.number as i64 {
                libc::SYS_setsockopt => Ok(0),
                libc::SYS_listen => Err(Halt::Errno(libc::EINVAL)),
                _ => Err(Halt::Errno(libc::EINVAL)),
            };
        }
        let host = self.socket(fd as i32)?;
        let mut arguments = call.arguments;
        arguments[0] = host.number as u64;
        let result = self.host_call(call.number as i64, arguments)?;
        let timeout = match name as i32 {
            libc::SO_RCVTIMEO => Some(0),
            libc::SO_SNDTIMEO => Some(1),
            _ => None,
        };
        if call.number as i64 == libc::SYS_setsockopt
            && result == 0
            && level as i32 == libc::SOL_SOCKET
            && length >= 16
            && let Some(direction) = timeout
        {
            let time = memory::get::<libc::timeval>(value)?;
            let wait =
                time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_usec.max(0) as u64 * 1000;
            if let Object::Host(file) = &mut self.kernel.fds.get(fd as i32)?.object {
                file.timeouts[direction] = (wait > 0).then_some(wait);
            }
        }
        Ok(result)
    }

    pub(super) fn sys_getsockopt(&mut self, call: &Call) -> Outcome {
        let [fd, level, name, value, length, _] = call.arguments;
        let room = memory::get::<u32>(length)? as usize;
        if let Some((end, _)) = self.pair_end(fd as i32)? {
            if level as i32 != libc::SOL_SOCKET {
                return Err(Halt::Errno(libc::EOPNOTSUPP));
            }
            let number = match name as i32 {
                libc::SO_TYPE => end.kind(),
                libc::SO_DOMAIN => libc::AF_UNIX,
                libc::SO_SNDBUF | libc::SO_RCVBUF => 212_992,
                libc::SO_PEERCRED => {
                    let identity = self.identity()?;
                    let pid = self.kernel.process.pid as u32;
                    let words = [pid, identity[1], identity[3]];
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let part = room.min(bytes.len());
                    memory::write(value, &bytes[..part])?;
                    memory::put(length, part as u32)?;
                    return Ok(0);
                }
                _ => 0,
            };
            let part = room.min(4);
            memory::write(value, &number.to_le_bytes()[..part])?;
            memory::put(length, part as u32)?;
            return Ok(0);
        }
        let host = self.socket(fd as i32)?;
        let arguments = [host.number as u64, level, name, value, length, 0];
        self.host_call_writing(libc::SYS_getsockopt, arguments, |_| {
            let written = memory::get::<u32>(length).unwrap_or(0) as usize;
            vec![(length, 4), (value, written.min(room))]
        })
    }

    /// getsockname and getpeername.
    pub(super) fn sys_socket_name(&mut self, call: &Call) -> Outcome {
        let [fd, address, length, ..] = call.arguments;
        let room = memory::get::<u32>(length)? as usize;
        if self.pair_end(fd as i32)?.is_some() {
            if (room as i32) < 0 {
                return Err(Halt::Errno(libc::EINVAL));
            }
            let family = (libc::AF_UNIX as u16).to_le_bytes();
            memory::write(address, &family[..room.min(2)])?;
            memory::put(length, 2u32)?;
            return Ok(0);
        }
        let host = self.socket(fd as i32)?;
        let arguments = [host.number as u64, address, length, 0, 0, 0];
        self.host_call_writing(call.number as i64, arguments, |_| {
            let written = memory::get::<u32>(length).unwrap_or(0) as usize;
            vec![(length, 4), (address, written.min(room))]
        })
    }

    pub(super) fn sys_shutdown(&mut self, fd: i32, how: u64) -> Outcome {
        if let Some((end, _)) = self.pair_end(fd)? {
            return self.shutdown_pair(&end, how as i32);
        }
        let host = self.socket(fd)?;
        self.host_call(libc::SYS_shutdown, [host.number as u64, how, 0, 0, 0, 0])
    }

    pub(super) fn sys_connect(&mut self, call: &mut Call) -> Outcome {
        let [fd, address, length, ..] = call.arguments;
        if self.pair_end(fd as i32)?.is_some() {
            return Err(Halt::Errno(libc::EISCONN));
        }
        let host = self.socket(fd as i32)?;
        let connecting = match &self.kernel.fds.get(fd as i32)?.object {
            Object::Host(file) => file.connecting,
            _ => false,
        };
        let number = host.number;
        let resumed = call.again && connecting;
        let result = self.io.external(libc::SYS_connect as u32, || {
            // Made once more, it says what has become of the connection, and the
            // socket knows that it has one.
            if resumed && !ready(number, libc::POLLOUT) {
                return (WOULD_BLOCK, Vec::new());
            }
            // SAFETY: the address is a guest pointer, checked by the kernel.
            let result = unsafe {
                host::syscall(libc::SYS_connect, [number as u64, address, length, 0, 0, 0])
            };
            let goes_on = resumed && result == -i64::from(libc::EALREADY);
            (if goes_on { WOULD_BLOCK } else { result }, Vec::new())
        })?;
        let in_progress = result == -i64::from(libc::EINPROGRESS) || result == WOULD_BLOCK;
        if let Object::Host(file) = &mut self.kernel.fds.get(fd as i32)?.object {
            file.connecting = in_progress;
        }
        if !host.blocking() {
            return Ok(result);
        }
        if in_progress {
            self.socket_limit(call, fd as i32, 1, libc::EINPROGRESS)?;
            return self.wait_for_host(call, number, libc::POLLOUT);
        }
        if result == -i64::from(libc::EAGAIN) {
            // A UNIX socket whose listener is busy: nothing to poll for.
            if call.interrupted {
                return Err(Halt::Errno(libc::EINTR));
            }
            return Err(Halt::Block(Wait {
                on: WaitOn::Host(Vec::new()),
                deadline: Some(self.now() + 1_000_000),
            }));
        }
        Ok(result)
    }

    pub(super) fn sys_accept(&mut self, call: &mut Call, flags: i32) -> Outcome {
        let [fd, address, length, ..] = call.arguments;
        if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if self.pair_end(fd as i32)?.is_some() {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let host = self.socket(fd as i32)?;
        self.kernel.fds.room_for(1)?;
        let room = if address == 0 {
            0
        } else {
            memory::get::<u32>(length)? as usize
        };
        let mut opened = None;
        let number = host.number;
        let result = self.io.external(libc::SYS_accept4 as u32, || {
            // A socket that nobody can connect to says so at once.
            if !ready(number, libc::POLLIN) && is_listening(number) {
                return (WOULD_BLOCK, Vec::new());
            }
            let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
            // SAFETY: guest pointers, checked by the kernel.
            let result = unsafe {
                host::syscall(
                    libc::SYS_accept4,
                    [number as u64, address, length, flags, 0, 0],
                )
            };
            if result == -i64::from(libc::EAGAIN) {
                return (WOULD_BLOCK, Vec::new());
            }
            if result < 0 {
                return (result, Vec::new());
            }
            // SAFETY: just made, owned by nobody else.
            opened = Some(unsafe { OwnedFd::from_raw_fd(result as i32) });
            let mut written = Vec::new();
            if address != 0 {
                let length_now = memory::get::<u32>(length).unwrap_or(0) as usize;
                written = vec![(length, 4), (address, length_now.min(room))];
            }
            (0, written)
        })?;
        if result == WOULD_BLOCK {
            if !host.blocking() {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            self.socket_limit(call, fd as i32, 0, libc::EAGAIN)?;
            return self.wait_for_host(call, number, libc::POLLIN);
        }
        if result < 0 {
            return Ok(result);
        }
        let mut file = HostFile::new(opened, Kind::Socket);
        let listener = self.stream_of(fd as i32);
        file.stream = self.new_stream(&[b"accepted", &listener.to_le_bytes()]);
        let object = Object::Host(file);
        let new = self.kernel.fds.open(
            0,
            object,
            libc::O_RDWR | flags & libc::O_NONBLOCK,
            flags & libc::SOCK_CLOEXEC != 0,
        )?;
        Ok(i64::from(new))
    }

    pub(super) fn sys_sendto(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, flags, address, address_length] = call.arguments;
        let name = match address_length as u32 as usize {
            _ if address == 0 => Vec::new(),
            length @ ..=MAX_NAME => memory::read_vec(address, length)?,
            _ => return Err(Halt::Errno(libc::EINVAL)),
        };
        let message = Outgoing {
            ranges: vec![(buffer, length)],
            name,
            control: Vec::new(),
            flags: flags as i32,
        };
        self.send(call, fd as i32, &message)
    }

    /// The message header at `address`.
    fn outgoing(&self, address: u64, flags: i32) -> Result<Outgoing, Halt> {
        let header = memory::get::<[u64; 7]>(address)?;
        let [name, name_length, vector, count, control, control_length, _] = header;
        Ok(Outgoing {
            ranges: vectors(vector, count)?,
            name: if name == 0 {
                Vec::new()
            } else {
                memory::read_vec(name, (name_length as u32 as usize).min(MAX_NAME))?
            },
            control: if control == 0 {
                Vec::new()
            } else if control_length as usize > MAX_CONTROL {
                return Err(Halt::Errno(libc::ENOBUFS));
            } else {
                memory::read_vec(control, control_length as usize)?
            },
            flags,
        })
    }

    pub(super) fn sys_sendmsg(&mut self, call: &mut Call) -> Outcome {
        let [fd, header, flags, ..] = call.arguments;
        let message = self.outgoing(header, flags as i32)?;
        self.send(call, fd as i32, &message)
    }

    pub(super) fn sys_sendmmsg(&mut self, call: &mut Call) -> Outcome {
        let [fd, headers, count, flags, ..] = call.arguments;
        let count = count.min(1024);
        // `done` counts messages here; each message has a call of its own.
        while call.done < count {
            let header = headers + call.done * 64;
            let message = self.outgoing(header, flags as i32)?;
            let mut one = call.clone();
            one.done = 0;
            match self.send(&mut one, fd as i32, &message) {
                Ok(result) if result >= 0 => {
                    memory::put(header + 56, result as u32)?;
                    call.done += 1;
                }
                _ if call.done > 0 => return Ok(call.done as i64),
                Err(Halt::Block(wait)) => return Err(Halt::Block(wait)),
                other => return other,
            }
        }
        Ok(call.done as i64)
    }

    /// The descriptions that SCM_RIGHTS in `control` names.
    fn passed(&mut self, control: &[u8]) -> Result<Vec<DescriptionId>, Halt> {
        let mut ids = Vec::new();
        for (level, kind, payload) in control_messages(control) {
            if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
                for fd in payload.chunks_exact(4) {
                    let fd = i32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]);
                    ids.push(self.kernel.fds.id(fd)?);
                }
            }
        }
        Ok(ids)
    }

    fn send(&mut self, call: &mut Call, fd: i32, message: &Outgoing) -> Outcome {
        if self.pair_end(fd)?.is_some() {
            if !message.name.is_empty() {
                return Err(Halt::Errno(libc::EISCONN));
            }
            let passed = self.passed(&message.control)?;
            let bytes = gather(&message.ranges)?;
            return self.send_pair(call, fd, &bytes, &passed, message.flags);
        }
        let host = self.socket(fd)?;
        if self.io.is_copy() {
            return self.write_in_copy(fd, host, &message.ranges, None);
        }
        let control = self.host_control(&message.control)?;
        let whole = total(&message.ranges);
        let number = host.number;
        let flags = message.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        loop {
            let skip = call.done;
            let ranges = super::file::section(&message.ranges, skip, u64::MAX);
            let part = ranges.clone();
            let order = self.lock_output(fd);
            let result = self.io.external(libc::SYS_sendmsg as u32, || {
                // SAFETY: all zeros is an empty message; its parts live
                // across the call, guest ranges are checked by the kernel.
                let result = unsafe {
                    let mut header: libc::msghdr = std::mem::zeroed();
                    header.msg_iov = ranges.as_ptr() as *mut libc::iovec;
                    header.msg_iovlen = ranges.len();
                    if !message.name.is_empty() {
                        header.msg_name = message.name.as_ptr() as *mut libc::c_void;
                        header.msg_namelen = message.name.len() as u32;
                    }
                    if !control.is_empty() && skip == 0 {
                        header.msg_control = control.as_ptr() as *mut libc::c_void;
                        header.msg_controllen = control.len();
                    }
                    host::syscall(
                        libc::SYS_sendmsg,
                        [
                            number as u64,
                            &raw const header as u64,
                            flags as u64,
                            0,
                            0,
                            0,
                        ],
                    )
                };
                let again = result == -i64::from(libc::EAGAIN);
                (if again { WOULD_BLOCK } else { result }, Vec::new())
            })?;
            if result > 0 {
                self.wrote(fd, &part, result)?;
            }
            drop(order);
            if result == WOULD_BLOCK {
                let waits = host.blocking() && message.flags & libc::MSG_DONTWAIT == 0;
                if !waits || call.interrupted {
                    return match (call.done, waits) {
                        (0, true) => Err(Halt::Errno(libc::EINTR)),
                        (0, false) => Err(Halt::Errno(libc::EAGAIN)),
                        (done, _) => Ok(done as i64),
                    };
                }
                self.socket_limit(call, fd, 1, libc::EAGAIN)?;
                return self.wait_for_host(call, number, libc::POLLOUT);
            }
            if result < 0 {
                return Ok(if call.done > 0 {
                    call.done as i64
                } else {
                    result
                });
            }
            call.done += result as u64;
            if call.done >= whole || result == 0 {
                return Ok(call.done as i64);
            }
        }
    }

    /// Control messages with the guest's descriptors replaced by the host's.
    fn host_control(&mut self, control: &[u8]) -> Result<Vec<u8>, Halt> {
        let mut result = Vec::new();
        for (level, kind, payload) in control_messages(control) {
            if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
                let mut numbers = Vec::new();
                for fd in payload.chunks_exact(4) {
                    let fd = i32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]);
                    let id = self.kernel.fds.id(fd)?;
                    self.externalise_one(id)?;
                    let host = self.host_only(fd, libc::EINVAL)?;
                    numbers.push(host.number);
                }
                result.extend(rights(&numbers));
            } else {
                result.extend(control_message(level, kind, &payload));
            }
        }
        self.externalise_watched()?;
        Ok(result)
    }

    pub(super) fn sys_recvfrom(&mut self, call: &mut Call) -> Outcome {
        let [fd, buffer, length, flags, address, address_length] = call.arguments;
        let name = if address == 0 {
            (0, 0)
        } else {
            (address, memory::get::<u32>(address_length)?)
        };
        let message = Incoming {
            ranges: vec![(buffer, length.min(1 << 30))],
            name,
            control: (0, 0),
            flags: flags as i32,
        };
        let arrived = self.receive(call, fd as i32, &message)?;
        if address != 0 && arrived.result >= 0 {
            memory::put(address_length, arrived.name_length)?;
        }
        Ok(arrived.result)
    }

    pub(super) fn sys_recvmsg(&mut self, call: &mut Call) -> Outcome {
        let [fd, header, flags, ..] = call.arguments;
        self.receive_header(call, fd as i32, header, flags as i32)
    }

    fn receive_header(&mut self, call: &mut Call, fd: i32, address: u64, flags: i32) -> Outcome {
        let header = memory::get::<[u64; 7]>(address)?;
        let [name, name_length, vector, count, control, control_length, _] = header;
        let message = Incoming {
            ranges: vectors(vector, count)?,
            name: (name, if name == 0 { 0 } else { name_length as u32 }),
            control: (control, if control == 0 { 0 } else { control_length }),
            flags,
        };
        let arrived = self.receive(call, fd, &message)?;
        if arrived.result >= 0 {
            if name != 0 {
                memory::put(address + 8, arrived.name_length)?;
            }
            memory::put(address + 40, arrived.control_length)?;
            memory::put(address + 48, arrived.flags)?;
        }
        Ok(arrived.result)
    }

    pub(super) fn sys_recvmmsg(&mut self, call: &mut Call) -> Outcome {
        let [fd, headers, count, flags, timeout, _] = call.arguments;
        if !call.again && timeout != 0 {
            call.limit = self.deadline(timeout, false, false)?;
        }
        if call.again && self.out_of_time(call) && call.done == 0 {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        let count = count.min(1024);
        const WAIT_FOR_ONE: i32 = 0x10000;
        // The first message may be waited for; what is there already comes
        // with it.
        while call.done < count {
            let mut flags = flags as i32 & !WAIT_FOR_ONE;
            if call.done > 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            let header = headers + call.done * 64;
            let mut one = call.clone();
            one.done = 0;
            match self.receive_header(&mut one, fd as i32, header, flags) {
                Ok(result) if result >= 0 => {
                    memory::put(header + 56, result as u32)?;
                    call.done += 1;
                }
                _ if call.done > 0 => break,
                other => return other,
            }
        }
        Ok(call.done as i64)
    }

    fn receive(&mut self, call: &mut Call, fd: i32, message: &Incoming) -> Result<Arrived, Halt> {
        for (base, length) in &message.ranges {
            self.space_for_writing(*base, *length);
        }
        if self.pair_end(fd)?.is_some() {
            return self.receive_from_pair(call, fd, message);
        }
        let host = self.socket(fd)?;
        let number = host.number;
        let whole = total(&message.ranges);
        let skip = call.done;
        let length = (whole - skip.min(whole)) as usize;
        let control_room = (message.control.1 as usize).min(MAX_CONTROL);
        // Errors are never waited for.
        let at_once = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
        let waits = host.blocking() && message.flags & at_once == 0;
        let flags =
            message.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let mut opened = Vec::new();
        let (result, answer) = self.io.external_bytes(libc::SYS_recvmsg as u32, || {
            let mut answer = Answer::default();
            let result = answer.receive(number, length, control_room, flags);
            opened = std::mem::take(&mut answer.opened);
            (result, answer.into_bytes())
        })?;
        if result == WOULD_BLOCK {
            if skip > 0 && (!waits || call.interrupted) {
                return Ok(Arrived {
                    result: skip as i64,
                    ..Arrived::default()
                });
            }
            if !waits {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            self.socket_limit(call, fd, 0, libc::EAGAIN)?;
            return self.wait_for_host(call, number, libc::POLLIN);
        }
        if result < 0 {
            return Ok(Arrived {
                result: if skip > 0 { skip as i64 } else { result },
                ..Arrived::default()
            });
        }
        let answer = Answer::from_bytes(&answer);
        let ranges = super::file::section(&message.ranges, skip, u64::MAX);
        scatter(&ranges, &answer.data)?;
        let part = answer.name.len().min(message.name.1 as usize);
        memory::write(message.name.0, &answer.name[..part])?;
        let mut opened = opened.into_iter();
        let descriptors: Vec<DescriptionId> = answer
            .kinds
            .iter()
            .map(|kind| {
                let file = HostFile::new(opened.next(), Kind::from_code(*kind));
                self.kernel.fds.describe(Object::Host(file), libc::O_RDWR)
            })
            .collect();
        let (control_length, truncated) =
            self.deliver_control(message, &answer.control, descriptors)?;
        let mut arrived = Arrived {
            result: result + skip as i64,
            name_length: answer.name_length,
            control_length,
            flags: answer.flags & !libc::MSG_CMSG_CLOEXEC | truncated,
        };
        let partial = message.flags & libc::MSG_WAITALL != 0
            && message.flags & libc::MSG_PEEK == 0
            && waits
            && result > 0
            && (result as usize) < length
            && answer.flags & libc::MSG_EOR == 0;
        if partial {
            call.done += result as u64;
            if self.stream_socket(number)? {
                self.socket_limit(call, fd, 0, libc::EAGAIN)?;
                return self.wait_for_host(call, number, libc::POLLIN);
            }
            arrived.result = call.done as i64;
        }
        Ok(arrived)
    }

    fn stream_socket(&mut self, number: i32) -> Result<bool, Halt> {
        let kind = self.io.external(libc::SYS_getsockopt as u32, || {
            let mut kind = 0i32;
            let mut length = 4u32;
            // SAFETY: plain out-parameters.
            unsafe {
                libc::getsockopt(
                    number,
                    libc::SOL_SOCKET,
                    libc::SO_TYPE,
                    (&raw mut kind).cast(),
                    &mut length,
                );
            }
            (i64::from(kind), Vec::new())
        })?;
        Ok(kind == i64::from(libc::SOCK_STREAM))
    }

    /// Writes control messages to the guest, with new descriptors of its own
    /// for those that came; returns their length and MSG_CTRUNC if they did
    /// not fit.
    fn deliver_control(
        &mut self,
        message: &Incoming,
        control: &[u8],
        descriptors: Vec<DescriptionId>,
    ) -> Result<(u64, i32), Halt> {
        let room = message.control.1 as usize;
        let cloexec = message.flags & libc::MSG_CMSG_CLOEXEC != 0;
        let mut descriptors = descriptors.into_iter();
        let mut bytes = Vec::new();
        let mut truncated = 0;
        for (level, kind, payload) in control_messages(control) {
            if level != libc::SOL_SOCKET || kind != libc::SCM_RIGHTS {
                bytes.extend(control_message(level, kind, &payload));
                continue;
            }
            let fits = room.saturating_sub(bytes.len() + HEADER) / 4;
            let mut numbers: Vec<u8> = Vec::new();
            for (index, id) in descriptors.by_ref().take(payload.len() / 4).enumerate() {
                let installed = if index < fits {
                    self.kernel.fds.install_new(id, cloexec).ok()
                } else {
                    None
                };
                match installed {
                    Some(fd) => numbers.extend_from_slice(&fd.to_le_bytes()),
                    None => {
                        truncated = libc::MSG_CTRUNC;
                        // Never installed: taken and dropped at once.
                        self.kernel.fds.hold(id);
                        self.kernel.fds.release(id);
                    }
                }
            }
            if !numbers.is_empty() {
                bytes.extend(control_message(level, kind, &numbers));
            }
        }
        let part = bytes.len().min(room);
        if bytes.len().saturating_sub(7) > room {
            truncated = libc::MSG_CTRUNC;
        }
        memory::write(message.control.0, &bytes[..part])?;
        Ok((part as u64, truncated))
    }

    fn receive_from_pair(
        &mut self,
        call: &mut Call,
        fd: i32,
        message: &Incoming,
    ) -> Result<Arrived, Halt> {
        let length = total(&message.ranges) as usize;
        let received = self.receive_pair(call, fd, length, message.flags)?;
        scatter(&message.ranges, &received.bytes)?;
        let mut arrived = Arrived {
            result: received.bytes.len() as i64,
            ..Arrived::default()
        };
        let stream = self
            .pair_end(fd)?
            .is_some_and(|(end, _)| end.link.borrow().stream);
        if !stream && received.full_length > received.bytes.len() {
            arrived.flags |= libc::MSG_TRUNC;
            if message.flags & libc::MSG_TRUNC != 0 {
                arrived.result = received.full_length as i64;
            }
        }
        if !received.descriptors.is_empty() {
            let control = rights(&vec![0; received.descriptors.len()]);
            let descriptors = received.descriptors.clone();
            let (length, truncated) = self.deliver_control(message, &control, descriptors)?;
            // The message in flight held them.
            for id in received.descriptors {
                self.kernel.fds.release(id);
            }
            arrived.control_length = length;
            arrived.flags |= truncated;
        }
        Ok(arrived)
    }
}

fn is_listening(fd: i32) -> bool {
    let mut listening = 0i32;
    let mut length = 4u32;
    // SAFETY: plain out-parameters.
    unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            (&raw mut listening).cast(),
            &mut length,
        );
    }
    listening != 0
}

/// What one receive brought, as the recording keeps it.
#[derive(Default)]
struct Answer {
    name: Vec<u8>,
    name_length: u32,
    flags: i32,
    kinds: Vec<u8>,
    control: Vec<u8>,
    data: Vec<u8>,
    opened: Vec<OwnedFd>,
}

impl Answer {
    fn receive(&mut self, fd: i32, length: usize, control_room: usize, flags: i32) -> i64 {
        self.data = vec![0; length];
        self.name = vec![0; MAX_NAME];
        self.control = vec![0; control_room];
        let vector = libc::iovec {
            iov_base: self.data.as_mut_ptr().cast(),
            iov_len: length,
        };
        // SAFETY: all zeros is an empty message; all buffers are ours and
        // live across the call.
        let (result, header) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = (&raw const vector).cast_mut();
            header.msg_iovlen = 1;
            header.msg_name = self.name.as_mut_ptr().cast();
            header.msg_namelen = MAX_NAME as u32;
            header.msg_control = self.control.as_mut_ptr().cast();
            header.msg_controllen = control_room;
            (libc::recvmsg(fd, &mut header, flags), header)
        };
        if result < 0 {
            *self = Answer::default();
            let errno = last_errno();
            return if errno == -i64::from(libc::EAGAIN) {
                WOULD_BLOCK
            } else {
                errno
            };
        }
        self.data.truncate(result as usize);
        self.name_length = header.msg_namelen;
        self.name.truncate(header.msg_namelen as usize);
        self.control.truncate(header.msg_controllen);
        self.flags = header.msg_flags;
        for (level, kind, payload) in control_messages(&self.control) {
            if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
                for fd in payload.chunks_exact(4) {
                    let fd = i32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]);
                    self.kinds.push(Kind::of(fd).code());
                    // SAFETY: just received, owned by nobody else.
                    self.opened.push(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
        }
        result as i64
    }

    fn into_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.data.len() + 32);
        bytes.extend_from_slice(&self.name_length.to_le_bytes());
        bytes.extend_from_slice(&self.flags.to_le_bytes());
        for part in [&self.name, &self.kinds, &self.control] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Missing parts of a damaged record are empty.
    fn from_bytes(mut bytes: &[u8]) -> Answer {
        fn word(bytes: &mut &[u8]) -> u32 {
            match bytes.split_first_chunk::<4>() {
                Some((word, rest)) => {
                    *bytes = rest;
                    u32::from_le_bytes(*word)
                }
                None => 0,
            }
        }
        fn part(bytes: &mut &[u8]) -> Vec<u8> {
            let length = (word(bytes) as usize).min(bytes.len());
            let (part, rest) = bytes.split_at(length);
            *bytes = rest;
            part.to_vec()
        }
        let name_length = word(&mut bytes);
        let flags = word(&mut bytes) as i32;
        Answer {
            name_length,
            flags,
            name: part(&mut bytes),
            kinds: part(&mut bytes),
            control: part(&mut bytes),
            data: bytes.to_vec(),
            opened: Vec::new(),
        }
    }
}
