//! Timers that send signals: alarm, setitimer and the timer_create family, in
//! virtual time.
//!
//! Timers are looked at between slices only, and slices end where the next
//! timer is due, so expiry falls on the same instruction in every run. Timers
//! of processor time count instructions.

use super::signal::{SI_KERNEL, SI_TIMER, SignalInfo, Target};
use super::time::{nanoseconds, timespec};
use super::{Call, Halt, Outcome};
use crate::clock::INSTRUCTIONS_PER_NANOSECOND;
use crate::machine::Vm;
use crate::{Error, memory};
use std::collections::BTreeMap;

/// What a timer's moments are measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Monotonic,
    Realtime,
    Processor,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Notify {
    Nothing,
    /// An interval timer's signal to the process.
    Interval(i32),
    /// The processor time that the process may have is used up.
    ProcessorLimit,
    /// A POSIX timer's signal.
    Signal {
        signal: i32,
        value: u64,
        target: Target,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Timer {
    base: Base,
    notify: Notify,
    /// Monotonic or processor time at which it expires.
    deadline: Option<u64>,
    interval: u64,
    /// Expiries since its pending signal was made.
    missed: u32,
    /// What timer_getoverrun says.
    overrun: u32,
}

/// Interval timers have these keys, the limit of processor time the one below;
/// POSIX timers count from 0.
const ITIMERS: [u32; 3] = [u32::MAX - 2, u32::MAX - 1, u32::MAX];
const PROCESSOR_LIMIT: u32 = u32::MAX - 3;

const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Default, Hash)]
pub struct Timers {
    timers: BTreeMap<u32, Timer>,
}

impl Timers {
    /// A child has no timers.
    pub fn after_fork(&mut self) {
        self.timers.clear();
    }

    /// Interval timers live on in the new program, POSIX timers do not.
    pub fn after_exec(&mut self) {
        self.timers.retain(|key, _| *key >= PROCESSOR_LIMIT);
    }
}

impl Vm {
    fn processor_time(&self) -> u64 {
        self.instructions() / INSTRUCTIONS_PER_NANOSECOND
    }

    fn timer_now(&self, base: Base) -> u64 {
        match base {
            Base::Monotonic | Base::Realtime => self.now(),
            Base::Processor => self.processor_time(),
        }
    }

    /// Virtual time of the next timer that does not need the processor.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.kernel
            .timers
            .timers
            .values()
            .filter(|timer| timer.base != Base::Processor)
            .filter_map(|timer| timer.deadline)
            .min()
    }

    /// Instructions until the next timer of any kind expires.
    pub fn instructions_to_timer(&self) -> Option<u64> {
        self.kernel
            .timers
            .timers
            .values()
            .filter_map(|timer| {
                let left = timer.deadline?.saturating_sub(self.timer_now(timer.base));
                Some(left.saturating_mul(INSTRUCTIONS_PER_NANOSECOND).max(1))
            })
            .min()
    }

    /// Sends the signals of timers that are due.
    pub(crate) fn expire_timers(&mut self) -> Result<(), Error> {
        if self.kernel.timers.timers.is_empty() {
            return Ok(());
        }
        let (now, processor) = (self.now(), self.processor_time());
        let mut due = Vec::new();
        for (key, timer) in &mut self.kernel.timers.timers {
            let now = if timer.base == Base::Processor {
                processor
            } else {
                now
            };
            let Some(deadline) = timer.deadline.filter(|deadline| *deadline <= now) else {
                continue;
            };
            let mut expiries = 1;
            timer.deadline = None;
            if let Some(more) = (now - deadline).checked_div(timer.interval) {
                expiries += more;
                timer.deadline = Some(deadline + (more + 1) * timer.interval);
            }
            due.push((*key, expiries, timer.notify.clone()));
        }
        for (key, expiries, notify) in due {
            match notify {
                Notify::Nothing => {}
                Notify::Interval(signal) => {
                    self.send_signal(Target::Process, SignalInfo::new(signal, SI_KERNEL))?;
                }
                Notify::ProcessorLimit => self.processor_time_is_up()?,
                Notify::Signal {
                    signal,
                    value,
                    target,
                } => self.expire_posix(key, expiries, signal, value, target)?,
            }
        }
        Ok(())
    }

    /// Arms or disarms the limit of processor time.
    pub(super) fn set_processor_limit(&mut self) {
        let timers = &mut self.kernel.timers.timers;
        timers.remove(&PROCESSOR_LIMIT);
        if let (Some(second), _) = self.processor_limit() {
            let timer = Timer {
                base: Base::Processor,
                notify: Notify::ProcessorLimit,
                deadline: Some(second.saturating_mul(SECOND)),
                interval: 0,
                missed: 0,
                overrun: 0,
            };
            self.kernel.timers.timers.insert(PROCESSOR_LIMIT, timer);
        }
    }

    fn processor_time_is_up(&mut self) -> Result<(), Error> {
        let (_, last) = self.processor_limit();
        let signal = if self.processor_time() >= last.saturating_mul(SECOND) {
            libc::SIGKILL
        } else {
            libc::SIGXCPU
        };
        self.next_processor_second();
        self.send_signal(Target::Process, SignalInfo::new(signal, SI_KERNEL))
    }

    fn expire_posix(
        &mut self,
        key: u32,
        expiries: u64,
        signal: i32,
        value: u64,
        target: Target,
    ) -> Result<(), Error> {
        let pending = match target {
            Target::Process => self.kernel.signals.pending_of_timer(key),
            Target::Thread(thread) => self
                .threads
                .get_mut(&thread)
                .and_then(|thread| thread.signals.pending.of_timer(key)),
        };
        let Some(timer) = self.kernel.timers.timers.get_mut(&key) else {
            return Ok(());
        };
        if let Some(info) = pending {
            // One signal at a time; the rest is counted.
            timer.missed = timer.missed.saturating_add(expiries as u32);
            info.put(20, timer.missed);
            return Ok(());
        }
        timer.missed = (expiries - 1) as u32;
        let mut info = SignalInfo::new(signal, SI_TIMER);
        info.put(16, key);
        info.put(20, timer.missed);
        info.put_long(24, value);
        self.send_signal(target, info)
    }

    /// A timer's signal leaves the queue: its overrun is fixed.
    pub(super) fn timer_signal_taken(&mut self, info: &SignalInfo) {
        if info.code() == SI_TIMER {
            let mut key = [0; 4];
            key.copy_from_slice(&info.bytes[16..20]);
            if let Some(timer) = self.kernel.timers.timers.get_mut(&u32::from_le_bytes(key)) {
                timer.overrun = std::mem::take(&mut timer.missed);
            }
        }
    }

    /// After arming: a slice that would run past the expiry ends now.
    pub(super) fn armed(&self, result: i64) -> Outcome {
        match self.instructions_to_timer() {
            Some(left) if left < self.left_in_slice() => Err(Halt::Yield(result)),
            _ => Ok(result),
        }
    }

    fn itimer(&self, which: u64) -> Result<(u32, Base, i32), Halt> {
        Ok(match which {
            0 => (ITIMERS[0], Base::Monotonic, libc::SIGALRM),
            1 => (ITIMERS[1], Base::Processor, libc::SIGVTALRM),
            2 => (ITIMERS[2], Base::Processor, libc::SIGPROF),
            _ => return Err(Halt::Errno(libc::EINVAL)),
        })
    }

    /// Interval and time left, as setitimer and timer_gettime show them.
    fn shown(&self, key: u32) -> (u64, u64) {
        let Some(timer) = self.kernel.timers.timers.get(&key) else {
            return (0, 0);
        };
        let left = timer.deadline.map_or(0, |deadline| {
            deadline.saturating_sub(self.timer_now(timer.base)).max(1)
        });
        (timer.interval, left)
    }

    fn set_itimer(&mut self, which: u64, interval: u64, value: u64) -> Result<(), Halt> {
        let (key, base, signal) = self.itimer(which)?;
        if value == 0 {
            self.kernel.timers.timers.remove(&key);
            return Ok(());
        }
        let timer = Timer {
            base,
            notify: Notify::Interval(signal),
            deadline: Some(self.timer_now(base).saturating_add(value)),
            interval,
            missed: 0,
            overrun: 0,
        };
        self.kernel.timers.timers.insert(key, timer);
        Ok(())
    }

    pub(super) fn sys_alarm(&mut self, seconds: u64) -> Outcome {
        let (_, left) = self.shown(ITIMERS[0]);
        self.set_itimer(0, 0, (seconds & 0xffff_ffff) * 1_000_000_000)?;
        self.armed(left.div_ceil(1_000_000_000) as i64)
    }

    pub(super) fn sys_getitimer(&mut self, which: u64, old: u64) -> Outcome {
        let (key, ..) = self.itimer(which)?;
        let (interval, left) = self.shown(key);
        let micro = |nanoseconds: u64| {
            [
                nanoseconds / 1_000_000_000,
                nanoseconds % 1_000_000_000 / 1000,
            ]
        };
        memory::put(old, [micro(interval), micro(left)])?;
        Ok(0)
    }

    pub(super) fn sys_setitimer(&mut self, which: u64, new: u64, old: u64) -> Outcome {
        self.itimer(which)?;
        let words = if new == 0 {
            [0; 4]
        } else {
            memory::get::<[u64; 4]>(new)?
        };
        if words[1] >= 1_000_000 || words[3] >= 1_000_000 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let nano = |seconds: u64, micro: u64| {
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(micro * 1000)
        };
        if old != 0 {
            self.sys_getitimer(which, old)?;
        }
        self.set_itimer(which, nano(words[0], words[1]), nano(words[2], words[3]))?;
        self.armed(0)
    }

    pub(super) fn sys_timer_create(&mut self, clock: u64, event: u64, id: u64) -> Outcome {
        self.clock_time(clock)?;
        let base = match clock as i32 {
            libc::CLOCK_REALTIME => Base::Realtime,
            libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID => Base::Processor,
            dynamic if dynamic < 0 => Base::Processor,
            _ => Base::Monotonic,
        };
        let key = (0..PROCESSOR_LIMIT)
            .find(|key| !self.kernel.timers.timers.contains_key(key))
            .ok_or(Halt::Errno(libc::EAGAIN))?;
        let notify = if event == 0 {
            Notify::Signal {
                signal: libc::SIGALRM,
                value: u64::from(key),
                target: Target::Process,
            }
        } else {
            let value = memory::get::<u64>(event)?;
            let signal = memory::get::<i32>(event + 8)?;
            let tid = memory::get::<i32>(event + 16)?;
            let valid = (1..=64).contains(&signal);
            match memory::get::<i32>(event + 12)? {
                libc::SIGEV_NONE => Notify::Nothing,
                libc::SIGEV_SIGNAL | libc::SIGEV_THREAD if valid => Notify::Signal {
                    signal,
                    value,
                    target: Target::Process,
                },
                libc::SIGEV_THREAD_ID if valid => {
                    let thread = self.threads.values().find(|thread| thread.tid == tid);
                    Notify::Signal {
                        signal,
                        value,
                        target: Target::Thread(
                            thread
                                .map(|thread| thread.id)
                                .ok_or(Halt::Errno(libc::EINVAL))?,
                        ),
                    }
                }
                _ => return Err(Halt::Errno(libc::EINVAL)),
            }
        };
        memory::put(id, key)?;
        let timer = Timer {
            base,
            notify,
            deadline: None,
            interval: 0,
            missed: 0,
            overrun: 0,
        };
        self.kernel.timers.timers.insert(key, timer);
        Ok(0)
    }

    fn posix_timer(&mut self, id: u64) -> Result<&mut Timer, Halt> {
        let key = id as u32;
        if key >= PROCESSOR_LIMIT {
            return Err(Halt::Errno(libc::EINVAL));
        }
        self.kernel
            .timers
            .timers
            .get_mut(&key)
            .ok_or(Halt::Errno(libc::EINVAL))
    }

    pub(super) fn sys_timer_settime(&mut self, call: &Call) -> Outcome {
        let [id, flags, new, old, ..] = call.arguments;
        let base = self.posix_timer(id)?.base;
        let [interval, value] = memory::get::<[libc::timespec; 2]>(new)?;
        let (interval, value) = (nanoseconds(interval)?, nanoseconds(value)?);
        if old != 0 {
            self.sys_timer_gettime(id, old)?;
        }
        let absolute = flags as i32 & libc::TIMER_ABSTIME != 0;
        let deadline = match (absolute, base) {
            _ if value == 0 => None,
            (true, Base::Realtime) => {
                Some(self.when_shown(value.saturating_sub(self.clock.realtime_offset)))
            }
            (true, Base::Monotonic) => Some(self.when_shown(value)),
            (true, Base::Processor) => Some(value),
            (false, _) => Some(self.timer_now(base).saturating_add(value)),
        };
        let timer = self.posix_timer(id)?;
        timer.deadline = deadline;
        timer.interval = interval;
        timer.missed = 0;
        timer.overrun = 0;
        self.armed(0)
    }

    pub(super) fn sys_timer_gettime(&mut self, id: u64, current: u64) -> Outcome {
        self.posix_timer(id)?;
        let (interval, left) = self.shown(id as u32);
        memory::put(current, [timespec(interval), timespec(left)])?;
        Ok(0)
    }

    pub(super) fn sys_timer_getoverrun(&mut self, id: u64) -> Outcome {
        Ok(i64::from(self.posix_timer(id)?.overrun))
    }

    pub(super) fn sys_timer_delete(&mut self, id: u64) -> Outcome {
        self.posix_timer(id)?;
        self.kernel.timers.timers.remove(&(id as u32));
        Ok(0)
    }
}
