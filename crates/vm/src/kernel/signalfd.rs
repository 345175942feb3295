//! signalfd: signals read from a descriptor.
//!
//! It shows whoever reads it the signals of his own process, so a fork needs
//! nothing: each vm has its own.

use super::fd::{Object, ObjectId};
use super::signal::SignalInfo;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;

/// Woken whenever a signal becomes pending.
pub const SIGNALS: ObjectId = 0;

/// Size of a signalfd_siginfo.
const RECORD: usize = 128;

impl Vm {
    /// signalfd and signalfd4.
    pub(super) fn sys_signalfd(&mut self, call: &Call, flags: i32) -> Outcome {
        let [fd, mask, size, ..] = call.arguments;
        if size != 8 || flags & !(libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let unblockable = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        let mask = memory::get::<u64>(mask)? & !unblockable;
        if fd as i32 != -1 {
            let Object::Signals(old) = &mut self.kernel.fds.get(fd as i32)?.object else {
                return Err(Halt::Errno(libc::EINVAL));
            };
            *old = mask;
            self.wake_objects(SIGNALS);
            return Ok(i64::from(fd as i32));
        }
        let fd = self.kernel.fds.open(
            0,
            Object::Signals(mask),
            libc::O_RDWR | flags & libc::O_NONBLOCK,
            flags & libc::SFD_CLOEXEC != 0,
        )?;
        Ok(i64::from(fd))
    }

    pub(super) fn read_signals(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let blocking = description.flags & libc::O_NONBLOCK == 0;
        let Object::Signals(mask) = description.object else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        if length < RECORD {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut bytes = Vec::new();
        while bytes.len() + RECORD <= length
            && let Some(info) = self.take_pending(mask)
        {
            bytes.extend(record(&info));
        }
        if bytes.is_empty() {
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for(call, vec![super::poll::OUTSIDE], vec![SIGNALS], None);
        }
        Ok(bytes)
    }
}

/// A siginfo in signalfd's layout.
fn record(info: &SignalInfo) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    // (from, to, length): signal, errno and code; sender; status or value.
    for (from, to, length) in [
        (0, 0, 12),
        (16, 12, 8),
        (24, 40, 4),
        (24, 44, 4),
        (24, 48, 8),
        (32, 56, 16),
    ] {
        record[to..to + length].copy_from_slice(&info.bytes[from..from + length]);
    }
    record
}
