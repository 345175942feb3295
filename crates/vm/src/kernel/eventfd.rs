//! eventfd inside the vm.

use super::fd::{DescriptionId, HostFile, Kind, Object, ObjectId};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use std::os::fd::{FromRawFd, OwnedFd};
#[derive(Hash)]
pub struct EventCounter {
    pub id: ObjectId,
    value: u64,
    semaphore: bool,
    /// How often it was raised and lowered.
    pub events: [u64; 2],
}

impl EventCounter {
    pub fn readiness(&self) -> i16 {
        let mut ready = 0;
        if self.value > 0 {
            ready |= libc::POLLIN | libc::POLLRDNORM;
        }
        if self.value < u64::MAX - 1 {
            ready |= libc::POLLOUT | libc::POLLWRNORM;
        }
        ready
    }
}

impl Vm {
    pub(super) fn sys_eventfd(&mut self, value: u64, flags: i32) -> Outcome {
        if flags & !(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let counter = EventCounter {
            id: self.kernel.fds.new_object(),
            value: u64::from(value as u32),
            semaphore: flags & libc::EFD_SEMAPHORE != 0,
            events: [0; 2],
        };
        let fd = self.kernel.fds.open(
            0,
            Object::Event(counter),
            libc::O_RDWR | flags & libc::O_NONBLOCK,
            flags & libc::EFD_CLOEXEC != 0,
        )?;
        Ok(i64::from(fd))
    }

    pub(super) fn read_event(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        let description = self.kernel.fds.get(fd)?;
        let blocking = description.flags & libc::O_NONBLOCK == 0;
        let Object::Event(counter) = &mut description.object else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        if length < 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let id = counter.id;
        if counter.value == 0 {
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for(call, Vec::new(), vec![id], None);
        }
        let taken = if counter.semaphore { 1 } else { counter.value };
        counter.value -= taken;
        counter.events[1] += 1;
        self.wake_objects(id);
        Ok(taken.to_le_bytes().to_vec())
    }

    pub(super) fn write_event(&mut self, call: &mut Call, fd: i32, bytes: &[u8]) -> Outcome {
        let description = self.kernel.fds.get(fd)?;
        let blocking = description.flags & libc::O_NONBLOCK == 0;
        let Object::Event(counter) = &mut description.object else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        let Some(Ok(word)) = bytes.get(..8).map(<[u8; 8]>::try_from) else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        let added = u64::from_le_bytes(word);
        if added == u64::MAX {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let id = counter.id;
        if added > u64::MAX - 1 - counter.value {
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            return self.wait_for(call, Vec::new(), vec![id], None);
        }
        counter.value += added;
        counter.events[0] += 1;
        self.wake_objects(id);
        Ok(8)
    }

    pub(super) fn externalise_event(&mut self, id: DescriptionId) -> Result<(), Halt> {
        let live = self.io.is_live();
        let description = self.kernel.fds.by_id(id)?;
        let Object::Event(counter) = &description.object else {
            return Ok(());
        };
        let (object, value, semaphore) = (counter.id, counter.value, counter.semaphore);
        let mut fd = None;
        if live {
            let mut flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            if semaphore {
                flags |= libc::EFD_SEMAPHORE;
            }
            // SAFETY: no preconditions; the write is of our own eight bytes.
            unsafe {
                let number = libc::eventfd(0, flags);
                if number < 0 {
                    return Err(Halt::Errno(libc::EMFILE));
                }
                if value > 0 {
                    libc::write(number, (&raw const value).cast(), 8);
                }
                fd = Some(OwnedFd::from_raw_fd(number));
            }
        }
        description.object = Object::Host(HostFile::new(fd, Kind::Other));
        self.wake_objects(object);
        Ok(())
    }
}
