//! Scheduling calls: policies, priorities and processor masks.
//!
//! The vm decides itself who runs, by the schedule that is recorded. So what
//! the guest asks for is checked as by a kernel, kept per thread, inherited and
//! shown again, but changes nothing: SCHED_FIFO gives no precedence. Questions
//! about other processes go to the host.

use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::memory;

/// What a thread has asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheduling {
    policy: i32,
    priority: i32,
    /// Its children are not real-time.
    resets_on_fork: bool,
    /// The processors it may run on, if it has set them.
    affinity: Option<Vec<u8>>,
}

impl Scheduling {
    /// What a new thread or process has from the one that made it.
    pub fn inherited(&self) -> Self {
        let mut inherited = self.clone();
        if self.resets_on_fork {
            inherited.resets_on_fork = false;
            if is_real_time(self.policy) {
                (inherited.policy, inherited.priority) = (libc::SCHED_OTHER, 0);
            }
        }
        inherited
    }
}

/// CAP_SYS_NICE: any policy and priority.
const SYS_NICE: u32 = 23;

/// `struct sched_attr` as it was first.
const ATTRIBUTES: usize = 48;
const LARGEST_ATTRIBUTES: u64 = 4096;
const RESET_FLAG: u64 = 1;

const ROUND_ROBIN_SLICE: u64 = 100_000_000;
const FAIR_SLICE: u64 = 4_000_000;

fn is_real_time(policy: i32) -> bool {
    [libc::SCHED_FIFO, libc::SCHED_RR].contains(&policy)
}

impl Vm {
    /// The thread of this process that a call means; None for another process.
    fn scheduled(&self, tid: u64) -> Result<Option<u32>, Halt> {
        match tid as i32 {
            ..0 => Err(Halt::Errno(libc::EINVAL)),
            0 => Ok(Some(self.current)),
            tid => Ok(self
                .threads
                .values()
                .find(|thread| thread.tid == tid)
                .map(|thread| thread.id)),
        }
    }

    fn scheduling(&self, thread: u32) -> Scheduling {
        let thread = self.threads.get(&thread);
        thread.map_or(Scheduling::default(), |thread| thread.scheduling.clone())
    }

    /// All calls that name a process or thread, but those about processors.
    pub(super) fn sys_sched(&mut self, call: &Call) -> Outcome {
        let [tid, b, c, d, ..] = call.arguments;
        let number = call.number as i64;
        let pointer = match number {
            libc::SYS_sched_setscheduler => c,
            libc::SYS_sched_getscheduler => 1,
            _ => b,
        };
        if pointer == 0 {
            return Err(Halt::Errno(match number {
                libc::SYS_sched_rr_get_interval => libc::EFAULT,
                _ => libc::EINVAL,
            }));
        }
        let Some(thread) = self.scheduled(tid)? else {
            return self.host_call_writing(number, call.arguments, |_| match number {
                libc::SYS_sched_getparam => vec![(b, 4)],
                libc::SYS_sched_rr_get_interval => vec![(b, 16)],
                libc::SYS_sched_getattr => vec![(b, (c as usize).min(ATTRIBUTES))],
                _ => Vec::new(),
            });
        };
        let now = self.scheduling(thread);
        match number {
            libc::SYS_sched_getscheduler => {
                let reset = i32::from(now.resets_on_fork) * libc::SCHED_RESET_ON_FORK;
                Ok(i64::from(now.policy | reset))
            }
            libc::SYS_sched_getparam => {
                memory::put(b, now.priority)?;
                Ok(0)
            }
            libc::SYS_sched_rr_get_interval => {
                let slice = match now.policy {
                    libc::SCHED_RR => ROUND_ROBIN_SLICE,
                    libc::SCHED_FIFO => 0,
                    _ => FAIR_SLICE,
                };
                memory::put(b, super::time::timespec(slice))?;
                Ok(0)
            }
            libc::SYS_sched_setscheduler => {
                let wanted = Scheduling {
                    policy: b as i32 & !libc::SCHED_RESET_ON_FORK,
                    priority: memory::get(c)?,
                    resets_on_fork: b as i32 & libc::SCHED_RESET_ON_FORK != 0,
                    affinity: now.affinity.clone(),
                };
                self.schedule(thread, &now, wanted)
            }
            libc::SYS_sched_setparam => {
                let priority = memory::get(b)?;
                self.schedule(
                    thread,
                    &now,
                    Scheduling {
                        priority,
                        ..now.clone()
                    },
                )
            }
            libc::SYS_sched_getattr => self.show_attributes(&now, b, c, d),
            libc::SYS_sched_setattr => {
                let wanted = self.read_attributes(&now, b, c)?;
                self.schedule(thread, &now, wanted)
            }
            _ => Err(Halt::Errno(libc::ENOSYS)),
        }
    }

    fn schedule(&mut self, thread: u32, now: &Scheduling, wanted: Scheduling) -> Outcome {
        let known = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
        let fits = match wanted.policy {
            policy if is_real_time(policy) => (1..=99).contains(&wanted.priority),
            policy => known.contains(&policy) && wanted.priority == 0,
        };
        if !fits {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let most = self.priority_limit();
        let more = is_real_time(wanted.policy)
            && ((wanted.policy != now.policy && most == 0)
                || (wanted.priority > now.priority && wanted.priority as u64 > most));
        let keeps_reset = wanted.resets_on_fork || !now.resets_on_fork;
        if (more || !keeps_reset) && !self.has_capability(SYS_NICE)? {
            return Err(Halt::Errno(libc::EPERM));
        }
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.scheduling = wanted;
        }
        Ok(0)
    }

    fn show_attributes(&self, now: &Scheduling, at: u64, size: u64, flags: u64) -> Outcome {
        let size = size as u32;
        if (size as usize) < ATTRIBUTES || u64::from(size) > LARGEST_ATTRIBUTES || flags != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mut attributes = [0; ATTRIBUTES];
        attributes[..4].copy_from_slice(&(ATTRIBUTES as u32).to_le_bytes());
        attributes[4..8].copy_from_slice(&now.policy.to_le_bytes());
        attributes[8] = now.resets_on_fork as u8;
        attributes[20..24].copy_from_slice(&now.priority.to_le_bytes());
        memory::write(at, &attributes)?;
        Ok(0)
    }

    fn read_attributes(&self, now: &Scheduling, at: u64, flags: u64) -> Result<Scheduling, Halt> {
        let size = match memory::get::<u32>(at)? {
            0 => ATTRIBUTES as u64,
            size => u64::from(size),
        };
        if flags as u32 != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if !(ATTRIBUTES as u64..=LARGEST_ATTRIBUTES).contains(&size) {
            memory::put(at, ATTRIBUTES as u32)?;
            return Err(Halt::Errno(libc::E2BIG));
        }
        let policy = memory::get::<i32>(at + 4)?;
        // Deadlines would have to be kept.
        const DEADLINE: i32 = 6;
        if policy == DEADLINE {
            return Err(Halt::Errno(libc::EPERM));
        }
        Ok(Scheduling {
            policy,
            priority: memory::get(at + 20)?,
            resets_on_fork: memory::get::<u64>(at + 8)? & RESET_FLAG != 0,
            affinity: now.affinity.clone(),
        })
    }

    pub(super) fn sys_sched_priority(&mut self, policy: u64, highest: bool) -> Outcome {
        match policy as i32 {
            libc::SCHED_FIFO | libc::SCHED_RR => Ok(if highest { 99 } else { 1 }),
            libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE | 6 => Ok(0),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_sched_getaffinity(&mut self, tid: u64, size: u64, mask: u64) -> Outcome {
        let thread = self.scheduled(tid)?;
        if let Some(thread) = thread
            && let Some(set) = self.scheduling(thread).affinity
        {
            if (size as usize) < set.len() || !size.is_multiple_of(8) {
                return Err(Halt::Errno(libc::EINVAL));
            }
            memory::write(mask, &set)?;
            return Ok(set.len() as i64);
        }
        let asked = if thread.is_some() { 0 } else { tid };
        self.host_call_writing(
            libc::SYS_sched_getaffinity,
            [asked, size, mask, 0, 0, 0],
            |result| vec![(mask, result as usize)],
        )
    }

    /// Kept and shown again; the vm's one thread runs where it likes.
    pub(super) fn sys_sched_setaffinity(&mut self, call: &Call) -> Outcome {
        let [tid, size, mask, ..] = call.arguments;
        let Some(thread) = self.scheduled(tid)? else {
            return self.host_call(libc::SYS_sched_setaffinity, call.arguments);
        };
        let (length, allowed) =
            self.io
                .external_bytes(libc::SYS_sched_getaffinity as u32, || {
                    let mut set = vec![0u8; 128];
                    // SAFETY: the buffer is as long as said.
                    let length = unsafe {
                        crate::host::syscall(
                            libc::SYS_sched_getaffinity,
                            [0, 128, set.as_mut_ptr() as u64, 0, 0, 0],
                        )
                    };
                    set.truncate(length.max(0) as usize);
                    (length, set)
                })?;
        let mut wanted = memory::read_vec(mask, size.min(1024) as usize)?;
        wanted.resize(length.max(0) as usize, 0);
        for (wanted, allowed) in wanted.iter_mut().zip(allowed) {
            *wanted &= allowed;
        }
        if wanted.iter().all(|byte| *byte == 0) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.scheduling.affinity = Some(wanted);
        }
        Ok(0)
    }

    /// The first processor on which the thread may run.
    pub(super) fn sys_getcpu(&mut self, cpu: u64, node: u64) -> Outcome {
        let set = self.scheduling(self.current).affinity.unwrap_or_default();
        let first = set
            .iter()
            .position(|byte| *byte != 0)
            .map_or(0, |at| at as u32 * 8 + set[at].trailing_zeros());
        for (address, value) in [(cpu, first), (node, 0)] {
            if address != 0 {
                memory::put(address, value)?;
            }
        }
        Ok(0)
    }
}
