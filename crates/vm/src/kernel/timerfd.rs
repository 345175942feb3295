//! timerfd inside the vm, in virtual time.

use super::fd::{DescriptionId, HostFile, Kind, Object, ObjectId};
use super::time::{nanoseconds, timespec};
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;
use std::os::fd::{FromRawFd, OwnedFd};
#[derive(Hash)]
pub struct Timer {
    pub id: ObjectId,
    realtime: bool,
    /// Virtual time of the next expiry that has not been read.
    pub next: Option<u64>,
    /// Nanoseconds between expiries; zero for once.
    interval: u64,
    /// How often it was set.
    pub events: [u64; 2],
}

impl Timer {
    /// Expiries up to `now` that nobody has read.
    pub fn expired(&self, now: u64) -> u64 {
        match self.next {
            Some(next) if next <= now => {
                1 + (now - next).checked_div(self.interval).unwrap_or_default()
            }
            _ => 0,
        }
    }

    pub fn readiness(&self, now: u64) -> i16 {
        if self.expired(now) > 0 {
            libc::POLLIN | libc::POLLRDNORM
        } else {
            0
        }
    }

    /// When it will be readable, if it is not.
    pub fn wakes_at(&self, now: u64) -> Option<u64> {
        self.next.filter(|next| *next > now)
    }
}

impl Vm {
    pub(super) fn sys_timerfd_create(&mut self, clock: u64, flags: i32) -> Outcome {
        let realtime = match clock as i32 {
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_ALARM => true,
            libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_BOOTTIME_ALARM => false,
            _ => return Err(Halt::Errno(libc::EINVAL)),
        };
        if flags & !(libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let timer = Timer {
            id: self.kernel.fds.new_object(),
            realtime,
            next: None,
            interval: 0,
            events: [0; 2],
        };
        let fd = self.kernel.fds.open(
            0,
            Object::Timer(timer),
            libc::O_RDWR | flags & libc::O_NONBLOCK,
            flags & libc::TFD_CLOEXEC != 0,
        )?;
        Ok(i64::from(fd))
    }

    fn timer(&mut self, fd: i32) -> Result<&mut Timer, Halt> {
        match &mut self.kernel.fds.get(fd)?.object {
            Object::Timer(timer) => Ok(timer),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_timerfd_settime(&mut self, call: &Call) -> Outcome {
        let [fd, flags, new, old, ..] = call.arguments;
        if let Some(host) = self.host_use(fd as i32)? {
            return self.host_timer(libc::SYS_timerfd_settime, host.number, call);
        }
        let now = self.now();
        let offset = self.clock.realtime_offset;
        let interval = nanoseconds(memory::get(new)?)?;
        let value = nanoseconds(memory::get(new + 16)?)?;
        if old != 0 {
            self.sys_timerfd_gettime(fd, old)?;
        }
        let meant = [0, offset].map(|offset| self.when_shown(value.saturating_sub(offset)));
        let timer = self.timer(fd as i32)?;
        timer.interval = interval;
        timer.next = match (value, flags as i32 & libc::TFD_TIMER_ABSTIME != 0) {
            (0, _) => None,
            (value, false) => Some(now.saturating_add(value)),
            (_, true) => Some(meant[usize::from(timer.realtime)]),
        };
        timer.events[0] += 1;
        let id = timer.id;
        self.wake_objects(id);
        Ok(0)
    }

    pub(super) fn sys_timerfd_gettime(&mut self, fd: u64, address: u64) -> Outcome {
        if let Some(host) = self.host_use(fd as i32)? {
            return self.host_call_writing(
                libc::SYS_timerfd_gettime,
                [host.number as u64, address, 0, 0, 0, 0],
                |_| vec![(address, 32)],
            );
        }
        let now = self.now();
        let timer = self.timer(fd as i32)?;
        let left = match timer.next {
            None => 0,
            Some(next) if next > now => next - now,
            Some(next) => match timer.interval {
                0 => 0,
                interval => interval - (now - next) % interval,
            },
        };
        let interval = timer.interval;
        memory::put(address, timespec(interval))?;
        memory::put(address + 16, timespec(left))?;
        Ok(0)
    }

    fn host_timer(&mut self, number: i64, fd: i32, call: &Call) -> Outcome {
        let mut arguments = call.arguments;
        arguments[0] = fd as u64;
        let old = arguments[3];
        self.host_call_writing(number, arguments, |_| {
            if old == 0 { vec![] } else { vec![(old, 32)] }
        })
    }

    pub(super) fn read_timer(
        &mut self,
        call: &mut Call,
        fd: i32,
        length: usize,
    ) -> Result<Vec<u8>, Halt> {
        if length < 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let now = self.now();
        let blocking = self.kernel.fds.get(fd)?.flags & libc::O_NONBLOCK == 0;
        let timer = self.timer(fd)?;
        let count = timer.expired(now);
        if count == 0 {
            if !blocking {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            let (id, wakes) = (timer.id, timer.wakes_at(now));
            return self.wait_for(call, Vec::new(), vec![id], wakes);
        }
        timer.next = match (timer.next, timer.interval) {
            (Some(next), interval) if interval > 0 => Some(next + count * interval),
            _ => None,
        };
        Ok(count.to_le_bytes().to_vec())
    }

    pub(super) fn externalise_timer(&mut self, id: DescriptionId) -> Result<(), Halt> {
        let (live, now) = (self.io.is_live(), self.now());
        let description = self.kernel.fds.by_id(id)?;
        let Object::Timer(timer) = &description.object else {
            return Ok(());
        };
        let object = timer.id;
        let mut fd = None;
        if live {
            let clock = if timer.realtime {
                libc::CLOCK_REALTIME
            } else {
                libc::CLOCK_MONOTONIC
            };
            let setting = libc::itimerspec {
                it_interval: timespec(timer.interval),
                it_value: timespec(timer.next.map_or(0, |next| next.saturating_sub(now).max(1))),
            };
            // SAFETY: no preconditions; the setting lives across the call.
            unsafe {
                let number = libc::timerfd_create(clock, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK);
                if number < 0 {
                    return Err(Halt::Errno(libc::EMFILE));
                }
                libc::timerfd_settime(number, 0, &setting, std::ptr::null_mut());
                fd = Some(OwnedFd::from_raw_fd(number));
            }
        }
        description.object = Object::Host(HostFile::new(fd, Kind::Other));
        self.wake_objects(object);
        Ok(())
    }
}
