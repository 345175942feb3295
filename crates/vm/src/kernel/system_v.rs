//! System V shared memory, semaphores and message queues.
//!
//! The objects are the host's: processes of the guest, and native ones, meet
//! there. Calls that would wait are made without waiting and tried again.
//! Attached memory is shared memory like any other (`shared_memory`).

use super::{Call, Halt, Outcome};
use crate::layout::page_up;
use crate::machine::Vm;
use crate::space::{Placement, Request, SharedObject};
use crate::thread::{Wait, WaitOn};
use crate::{host, memory};
use std::os::fd::AsRawFd;

const IPC_NOWAIT: u64 = 0o4000;
const IPC_STAT: i32 = 2;
const IPC_INFO: i32 = 3;

/// Sizes of what the commands about all sets, queues and segments fill in.
const SEMINFO: usize = 40;
const MSGINFO: usize = 32;
const SHMINFO: usize = 72;
const SHM_INFO: usize = 48;

/// Sizes of the kernel's structures.
const SHMID_DS: usize = 112;
const SEMID_DS: usize = 104;
const MSQID_DS: usize = 120;

/// Longest attached memory whose contents are written down.
const MOST: u64 = 1 << 30;

impl Vm {
    /// The call is made again before long, unless a signal comes or its time
    /// is over.
    fn try_again(&self, call: &Call, timed_out: i32) -> Outcome {
        match self.wait_is_over(call) {
            Some(libc::ETIMEDOUT) => Err(Halt::Errno(timed_out)),
            Some(errno) => Err(Halt::Errno(errno)),
            None => Err(Halt::Block(Wait {
                on: WaitOn::Retry,
                deadline: call.deadline,
            })),
        }
    }

    /// What waits in an object that is removed meanwhile is told so; the object
    /// itself is unknown by then.
    fn removed_meanwhile(call: &Call, result: i64) -> i64 {
        if call.again && result == -i64::from(libc::EINVAL) {
            -i64::from(libc::EIDRM)
        } else {
            result
        }
    }

    pub(super) fn sys_semop(&mut self, call: &mut Call) -> Outcome {
        let [set, operations, count, timeout, ..] = call.arguments;
        if count > 500 {
            return Err(Halt::Errno(libc::E2BIG));
        }
        let mut words = memory::read_vec(operations, count as usize * 6)?;
        let patient = words
            .chunks_exact(6)
            .any(|word| u64::from(u16::from_le_bytes([word[4], word[5]])) & IPC_NOWAIT == 0);
        if !call.again && call.number as i64 == libc::SYS_semtimedop {
            call.deadline = self.deadline(timeout, false, false)?;
        }
        for word in words.chunks_exact_mut(6) {
            word[5] |= (IPC_NOWAIT >> 8) as u8;
        }
        let result = self.io.external(libc::SYS_semop as u32, || {
            let arguments = [set, words.as_ptr() as u64, count, 0, 0, 0];
            // SAFETY: the operations are a buffer of ours.
            let result = unsafe { host::syscall(libc::SYS_semop, arguments) };
            (result, Vec::new())
        })?;
        if result == -i64::from(libc::EAGAIN) && patient {
            return self.try_again(call, libc::EAGAIN);
        }
        Ok(Self::removed_meanwhile(call, result))
    }

    pub(super) fn sys_semctl(&mut self, call: &Call) -> Outcome {
        let [set, _, command, argument, ..] = call.arguments;
        const GETALL: i32 = 13;
        let size = match command as i32 {
            IPC_STAT | 18 | 20 => SEMID_DS,
            IPC_INFO | 19 => SEMINFO,
            GETALL => {
                let (_, count) = self.io.external_bytes(libc::SYS_semctl as u32, || {
                    let mut facts = [0u8; SEMID_DS];
                    let at = facts.as_mut_ptr() as u64;
                    // SAFETY: the structure fits the buffer.
                    let result = unsafe {
                        host::syscall(libc::SYS_semctl, [set, 0, IPC_STAT as u64, at, 0, 0])
                    };
                    // The number of semaphores comes behind the permissions
                    // and two times.
                    (result, facts[80..88].to_vec())
                })?;
                let count = count.try_into().map_or(0, u64::from_le_bytes);
                count as usize * 2
            }
            _ => return self.host_call(libc::SYS_semctl, call.arguments),
        };
        self.host_call_writing(libc::SYS_semctl, call.arguments, |_| vec![(argument, size)])
    }

    pub(super) fn sys_msgsnd(&mut self, call: &Call) -> Outcome {
        let [queue, message, size, flags, ..] = call.arguments;
        let arguments = [queue, message, size, flags | IPC_NOWAIT, 0, 0];
        let result = self.host_call(libc::SYS_msgsnd, arguments)?;
        if result == -i64::from(libc::EAGAIN) && flags & IPC_NOWAIT == 0 {
            return self.try_again(call, libc::EAGAIN);
        }
        Ok(Self::removed_meanwhile(call, result))
    }

    pub(super) fn sys_msgrcv(&mut self, call: &Call) -> Outcome {
        let [queue, message, size, kind, flags, _] = call.arguments;
        let arguments = [queue, message, size, kind, flags | IPC_NOWAIT, 0];
        let result = self.host_call_writing(libc::SYS_msgrcv, arguments, |length| {
            vec![(message, 8 + length as usize)]
        })?;
        if result == -i64::from(libc::ENOMSG) && flags & IPC_NOWAIT == 0 {
            return self.try_again(call, libc::EAGAIN);
        }
        Ok(Self::removed_meanwhile(call, result))
    }

    pub(super) fn sys_msgctl(&mut self, call: &Call) -> Outcome {
        let [_, command, buffer, ..] = call.arguments;
        match command as i32 {
            IPC_STAT | 11 | 13 => self.host_call_writing(libc::SYS_msgctl, call.arguments, |_| {
                vec![(buffer, MSQID_DS)]
            }),
            IPC_INFO | 12 => self.host_call_writing(libc::SYS_msgctl, call.arguments, |_| {
                vec![(buffer, MSGINFO)]
            }),
            _ => self.host_call(libc::SYS_msgctl, call.arguments),
        }
    }

    pub(super) fn sys_shmctl(&mut self, call: &Call) -> Outcome {
        let [_, command, buffer, ..] = call.arguments;
        match command as i32 {
            IPC_STAT | 13 | 15 => self.host_call_writing(libc::SYS_shmctl, call.arguments, |_| {
                vec![(buffer, SHMID_DS)]
            }),
            IPC_INFO => self.host_call_writing(libc::SYS_shmctl, call.arguments, |_| {
                vec![(buffer, SHMINFO)]
            }),
            14 => self.host_call_writing(libc::SYS_shmctl, call.arguments, |_| {
                vec![(buffer, SHM_INFO)]
            }),
            _ => self.host_call(libc::SYS_shmctl, call.arguments),
        }
    }

    /// The vm chooses the address, and the host attaches there.
    pub(super) fn sys_shmat(&mut self, call: &Call) -> Outcome {
        const READ_ONLY: u64 = 0o10000;
        const ROUND: u64 = 0o20000;
        const REPLACE: u64 = 0o40000;
        const EXECUTE: u64 = 0o100000;
        let [id, wanted, flags, ..] = call.arguments;
        self.take_turn_now()?;
        let (size, _) = self.io.external_bytes(libc::SYS_shmctl as u32, || {
            let mut facts = [0u8; SHMID_DS];
            let arguments = [id, IPC_STAT as u64, facts.as_mut_ptr() as u64, 0, 0, 0];
            // SAFETY: the structure fits the buffer.
            let result = unsafe { host::syscall(libc::SYS_shmctl, arguments) };
            // The size comes behind the permissions.
            let size = facts[48..56].try_into().map_or(0, i64::from_le_bytes);
            (if result < 0 { result } else { size }, Vec::new())
        })?;
        if size < 0 {
            return Ok(size);
        }
        if size as u64 > MOST {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        let placement = match wanted {
            0 => Placement::Anywhere,
            address if flags & ROUND != 0 => Placement::Fixed(crate::layout::page_down(address)),
            address if flags & REPLACE != 0 => Placement::Fixed(address),
            address => Placement::FixedNoReplace(address),
        };
        let mut protection = libc::PROT_READ;
        if flags & READ_ONLY == 0 {
            protection |= libc::PROT_WRITE;
        }
        if flags & EXECUTE != 0 {
            protection |= libc::PROT_EXEC;
        }
        let object = SharedObject::Segment(id as i32);
        let mut request = Request {
            shared: true,
            object: Some(object),
            ..Request::anonymous(size as u64, protection)
        };
        if !self.io.is_live() {
            // All attachments of one segment show the same.
            let failed =
                |error: std::io::Error| Halt::Errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
            let (copy, new) = self.kernel.shared_files.of(object).map_err(failed)?;
            if new {
                copy.set_len(page_up(size as u64)).map_err(failed)?;
            }
            request.file = Some((copy.as_raw_fd(), 0));
        }
        let start = match self.space.map(placement, request) {
            Ok(start) => start,
            Err(errno) => return Ok(errno),
        };
        let length = page_up(size as u64);
        let (attached, contents) = self.io.external_bytes(libc::SYS_shmat as u32, || {
            let flags = (flags & READ_ONLY) | REPLACE;
            // SAFETY: replaces a guest mapping made just now.
            let result = unsafe { host::syscall(libc::SYS_shmat, [id, start, flags, 0, 0, 0]) };
            let contents = memory::read_vec(start, length as usize);
            (result.min(0), contents.unwrap_or_default())
        })?;
        if attached < 0 {
            // A range made just now.
            let _ = self.space.unmap(start, length);
            return Ok(attached);
        }
        if !self.io.is_live() {
            for (index, page) in contents.chunks(crate::layout::PAGE as usize).enumerate() {
                if page.iter().any(|byte| *byte != 0) {
                    let at = start + index as u64 * crate::layout::PAGE;
                    self.space.force_write(at, page);
                }
            }
        }
        self.space.mark_exchanged(start);
        self.space.shares_files = true;
        self.kernel.shared_memory.attached.insert(start, length);
        self.memory_written(start..start + length);
        self.code_changed(start..start + length);
        Ok(start as i64)
    }

    pub(super) fn sys_shmdt(&mut self, address: u64) -> Outcome {
        let Some(length) = self.kernel.shared_memory.attached.remove(&address) else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        self.sys_munmap(address, length)
    }

    /// The process behind a pidfd gets a signal.
    pub(super) fn sys_pidfd_send_signal(&mut self, call: &Call) -> Outcome {
        let [fd, signal, info, flags, ..] = call.arguments;
        let host = self.host_only(fd as i32, libc::EBADF)?;
        let arguments = [host.number as u64, signal, info, flags, 0, 0];
        self.host_call(libc::SYS_pidfd_send_signal, arguments)
    }
}
