//! Clocks and sleeps in virtual time.

use super::{Call, Halt, Outcome};
use crate::clock::NANOSECONDS_PER_QUESTION;
use crate::machine::Vm;
use crate::memory;
use crate::thread::{Wait, WaitOn};

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds of a timespec; EINVAL if it is out of range.
pub(super) fn nanoseconds(time: libc::timespec) -> Result<u64, Halt> {
    if time.tv_sec < 0 || !(0..SECOND as i64).contains(&time.tv_nsec) {
        return Err(Halt::Errno(libc::EINVAL));
    }
    Ok((time.tv_sec as u64)
        .saturating_mul(SECOND)
        .saturating_add(time.tv_nsec as u64))
}

pub(super) fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / SECOND) as i64,
        tv_nsec: (nanoseconds % SECOND) as i64,
    }
}

impl Vm {
    /// The virtual moment named by the timespec at `address`: absolute or from
    /// now, by the real-time or the monotonic clock. No address, no deadline.
    pub(super) fn deadline(
        &self,
        address: u64,
        absolute: bool,
        realtime: bool,
    ) -> Result<Option<u64>, Halt> {
        if address == 0 {
            return Ok(None);
        }
        let time = nanoseconds(memory::get(address)?)?;
        Ok(Some(match (absolute, realtime) {
            (false, _) => self.now().saturating_add(time),
            (true, false) => self.when_shown(time),
            (true, true) => self.when_shown(time.saturating_sub(self.clock.realtime_offset)),
        }))
    }

    /// What the running thread is shown as CLOCK_MONOTONIC.
    pub(crate) fn shown_time(&self) -> u64 {
        let Some(counted) = self.counted_time() else {
            return self.now();
        };
        if let Some(thread) = self.threads.get(&self.current) {
            thread.times_asked.set(thread.times_asked.get() + 1);
        }
        counted
    }

    fn counted_time(&self) -> Option<u64> {
        let from = self.clock.counted_from?;
        let thread = self.threads.get(&self.current)?;
        Some(from + thread.times_asked.get() * NANOSECONDS_PER_QUESTION)
    }

    /// The virtual time that the running thread means by a CLOCK_MONOTONIC of its
    /// own.
    pub(super) fn when_shown(&self, time: u64) -> u64 {
        match self.counted_time() {
            Some(counted) => self.now().saturating_add(time.saturating_sub(counted)),
            None => time,
        }
    }

    /// Time of one of the kernel's clocks.
    pub(super) fn clock_time(&self, clock: u64) -> Result<u64, Halt> {
        Ok(match clock as i32 {
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | 11 /* TAI */ => {
                self.shown_time() + self.clock.realtime_offset
            }
            libc::CLOCK_MONOTONIC
            | libc::CLOCK_MONOTONIC_RAW
            | libc::CLOCK_MONOTONIC_COARSE
            | libc::CLOCK_BOOTTIME => self.shown_time(),
            libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID
                if self.clock.counted_from.is_some() =>
            {
                self.shown_time()
            }
            libc::CLOCK_PROCESS_CPUTIME_ID => {
                self.instructions() / crate::clock::INSTRUCTIONS_PER_NANOSECOND
            }
            libc::CLOCK_THREAD_CPUTIME_ID => {
                self.executed(self.current) / crate::clock::INSTRUCTIONS_PER_NANOSECOND
            }
            // Clocks of other threads and processes: pthread_getcpuclockid.
            dynamic if dynamic < 0 => {
                let tid = !(dynamic >> 3);
                match self.threads.values().find(|thread| thread.tid == tid) {
                    Some(thread) if dynamic & 4 != 0 => {
                        self.executed(thread.id) / crate::clock::INSTRUCTIONS_PER_NANOSECOND
                    }
                    _ => self.instructions() / crate::clock::INSTRUCTIONS_PER_NANOSECOND,
                }
            }
            _ => return Err(Halt::Errno(libc::EINVAL)),
        })
    }

    pub(super) fn sys_clock_gettime(&mut self, clock: u64, address: u64) -> Outcome {
        let time = self.clock_time(clock)?;
        memory::put(address, timespec(time))?;
        Ok(0)
    }

    pub(super) fn sys_clock_getres(&mut self, clock: u64, address: u64) -> Outcome {
        self.clock_time(clock)?;
        if address != 0 {
            memory::put(address, timespec(1))?;
        }
        Ok(0)
    }

    pub(super) fn sys_gettimeofday(&mut self, time: u64, zone: u64) -> Outcome {
        let now = self.clock_time(libc::CLOCK_REALTIME as u64)?;
        if time != 0 {
            let value = libc::timeval {
                tv_sec: (now / SECOND) as i64,
                tv_usec: (now % SECOND / 1000) as i64,
            };
            memory::put(time, value)?;
        }
        if zone != 0 {
            memory::put(zone, 0u64)?;
        }
        Ok(0)
    }

    /// adjtimex and clock_adjtime show how the host's clock is kept; nobody sets
    /// it from here.
    pub(super) fn sys_adjtimex(&mut self, address: u64) -> Outcome {
        const TIME: usize = 72;
        const STATUS: usize = 40;
        const NANOSECONDS: u8 = 0x20;
        if memory::get::<u32>(address)? != 0 {
            return Err(Halt::Errno(libc::EPERM));
        }
        let (result, mut state) = self.io.external_bytes(libc::SYS_adjtimex as u32, || {
            // Zeros ask and change nothing.
            let mut state = vec![0u8; size_of::<libc::timex>()];
            let arguments = [state.as_mut_ptr() as u64, 0, 0, 0, 0, 0];
            // SAFETY: the buffer is a timex's size.
            let result = unsafe { crate::host::syscall(libc::SYS_adjtimex, arguments) };
            (result, state)
        })?;
        if result >= 0
            && let Some(field) = state.get_mut(TIME..TIME + 16)
        {
            // The time itself is the guest's, in microseconds.
            let now = self.clock_time(libc::CLOCK_REALTIME as u64)?;
            field[..8].copy_from_slice(&(now / SECOND).to_le_bytes());
            field[8..].copy_from_slice(&(now % SECOND / 1000).to_le_bytes());
            state[STATUS + 1] &= !NANOSECONDS;
            memory::write(address, &state)?;
        }
        Ok(result)
    }

    /// Only one clock can be set at all, and not by a guest.
    pub(super) fn sys_clock_settime(&mut self, clock: u64) -> Outcome {
        self.clock_time(clock)?;
        match clock as i32 {
            libc::CLOCK_REALTIME => Err(Halt::Errno(libc::EPERM)),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_time(&mut self, address: u64) -> Outcome {
        let seconds = (self.clock_time(libc::CLOCK_REALTIME as u64)? / SECOND) as i64;
        if address != 0 {
            memory::put(address, seconds)?;
        }
        Ok(seconds)
    }

    pub(super) fn sys_nanosleep(&mut self, call: &mut Call, request: u64, rest: u64) -> Outcome {
        if !call.again {
            call.deadline = self.deadline(request, false, false)?;
        }
        self.sleep(call, rest)
    }

    pub(super) fn sys_clock_nanosleep(&mut self, call: &mut Call) -> Outcome {
        let [clock, flags, request, rest, ..] = call.arguments;
        let absolute = flags as i32 & libc::TIMER_ABSTIME != 0;
        if !call.again {
            self.clock_time(clock)?;
            let realtime = clock as i32 == libc::CLOCK_REALTIME;
            call.deadline = self.deadline(request, absolute, realtime)?;
        }
        self.sleep(call, if absolute { 0 } else { rest })
    }

    fn sleep(&mut self, call: &mut Call, rest: u64) -> Outcome {
        let Some(mut deadline) = call.deadline else {
            return Err(Halt::Errno(libc::EFAULT));
        };
        let now = self.now();
        let slack = self
            .threads
            .get(&self.current)
            .map_or(0, |thread| thread.timer_slack);
        if !call.again && deadline > now {
            deadline = deadline.saturating_add(slack);
        }
        if deadline <= now {
            // A sleep of nothing gives way, as natively.
            return Err(Halt::Yield(0));
        }
        if call.interrupted {
            if rest != 0 {
                let left = (deadline - now).saturating_sub(slack);
                memory::put(rest, timespec(left))?;
            }
            return Err(Halt::Errno(libc::EINTR));
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Time,
            deadline: Some(deadline),
        }))
    }
}
