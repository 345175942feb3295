//! POSIX message queues.
//!
//! The queues are the host's: processes of the guest, and native ones, meet
//! there. Calls that would wait are made without waiting and tried again when
//! the host says that the queue is ready. The signal of a notification comes
//! to the vm from the host, like every signal from outside; the message of a
//! notification by thread arrives at the C library's own netlink socket.

use super::fd::Kind;
use super::file::WOULD_BLOCK;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::thread::{HostInterest, Wait, WaitOn};
use crate::{host, memory};

/// The kernel's `struct sigevent`: value, signal, kind of notification, and
/// room for what other calls put there.
const SIGEVENT: usize = 64;
const SIGNAL_AT: usize = 8;
const NOTIFY_AT: usize = 12;

/// Bytes that come back when a thread is to be told (`NOTIFY_COOKIE_LEN`).
const COOKIE: usize = 32;

impl Vm {
    pub(super) fn sys_mq_open(&mut self, call: &Call) -> Outcome {
        let [name, flags, mode, attributes, ..] = call.arguments;
        let flags = flags as i32;
        // The guest's O_NONBLOCK is kept by the vm.
        let host_flags = (flags & !libc::O_NONBLOCK | libc::O_CLOEXEC) as u64;
        self.open_host_object(
            libc::SYS_mq_open,
            [name, host_flags, mode, attributes, 0, 0],
            Kind::Other,
            flags & (libc::O_ACCMODE | libc::O_NONBLOCK),
            true,
        )
    }

    /// mq_timedsend and mq_timedreceive.
    pub(super) fn sys_mq_transfer(&mut self, call: &mut Call) -> Outcome {
        let [fd, message, size, priority, timeout, _] = call.arguments;
        let host = self.host_only(fd as i32, libc::EBADF)?;
        if !call.again {
            call.deadline = self.deadline(timeout, true, true)?;
        }
        let number = call.number as i64;
        let receives = number == libc::SYS_mq_timedreceive;
        let result = self.io.external(number as u32, || {
            // A time in the past: it never waits.
            let never = [0u64; 2];
            let arguments = [
                host.number as u64,
                message,
                size,
                priority,
                never.as_ptr() as u64,
                0,
            ];
            // SAFETY: guest pointers, and a time of ours.
            let result = unsafe { host::syscall(number, arguments) };
            if result == -i64::from(libc::ETIMEDOUT) {
                return (WOULD_BLOCK, Vec::new());
            }
            let mut written = Vec::new();
            if receives && result >= 0 {
                written.push((message, result as usize));
                if priority != 0 {
                    written.push((priority, 4));
                }
            }
            (result, written)
        })?;
        if result != WOULD_BLOCK {
            return Ok(result);
        }
        if host.flags & libc::O_NONBLOCK != 0 {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        if let Some(errno) = self.wait_is_over(call) {
            return Err(Halt::Errno(errno));
        }
        let events = if receives {
            libc::POLLIN
        } else {
            libc::POLLOUT
        };
        Err(Halt::Block(Wait {
            on: WaitOn::Host(vec![HostInterest {
                fd: host.number,
                events,
            }]),
            deadline: call.deadline,
        }))
    }

    pub(super) fn sys_mq_getsetattr(&mut self, call: &Call) -> Outcome {
        let [fd, new, old, ..] = call.arguments;
        let host = self.host_only(fd as i32, libc::EBADF)?;
        if new != 0 {
            let flags = memory::get::<u64>(new)? as i32;
            let description = self.kernel.fds.get(fd as i32)?;
            description.flags &= !libc::O_NONBLOCK;
            description.flags |= flags & libc::O_NONBLOCK;
        }
        if old == 0 {
            return Ok(0);
        }
        let arguments = [host.number as u64, 0, old, 0, 0, 0];
        let result =
            self.host_call_writing(libc::SYS_mq_getsetattr, arguments, |_| vec![(old, 64)])?;
        if result == 0 {
            memory::put(old, (host.flags & libc::O_NONBLOCK) as u64)?;
        }
        Ok(result)
    }

    /// Asks for word when a message comes into the empty queue, or no longer.
    pub(super) fn sys_mq_notify(&mut self, call: &Call) -> Outcome {
        let [fd, event, ..] = call.arguments;
        if event == 0 {
            let queue = self.host_only(fd as i32, libc::EBADF)?.number as u64;
            return self.host_call(libc::SYS_mq_notify, [queue, 0, 0, 0, 0, 0]);
        }
        let mut event: [u8; SIGEVENT] = memory::get(event)?;
        let word = |bytes: &[u8; SIGEVENT], at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut cookie = Vec::new();
        if word(&event, NOTIFY_AT) == libc::SIGEV_THREAD {
            // In place of the signal stands the socket that is told, and in
            // place of the value the address of what it is told.
            let at = u64::from_le_bytes(event[..8].try_into().unwrap_or_default());
            cookie = memory::read_vec(at, COOKIE)?;
            let socket = self.host_only(word(&event, SIGNAL_AT), libc::EBADF)?.number;
            event[..8].copy_from_slice(&(cookie.as_ptr() as u64).to_le_bytes());
            event[SIGNAL_AT..SIGNAL_AT + 4].copy_from_slice(&socket.to_le_bytes());
        }
        let queue = self.host_only(fd as i32, libc::EBADF)?.number as u64;
        let at = event.as_ptr() as u64;
        let result = self.host_call(libc::SYS_mq_notify, [queue, at, 0, 0, 0, 0])?;
        drop(cookie);
        Ok(result)
    }
}
