//! Resource limits. They bind the guest, not the vm, which needs room of its
//! own: the vm keeps them and applies each where it matters.
//!
//! Descriptors and address space are counted by the vm. A file's size is left
//! to the host's kernel, which has the limit for the length of a call that
//! writes (`host::within_file_size`). Processor time is counted in
//! instructions, like every clock of it, so SIGXCPU comes at the same
//! instruction in every run (`timer`). The number of processes is the host's
//! business while it forks; threads are counted here.

use super::{Halt, Outcome};
use crate::host;
use crate::machine::Vm;
use crate::memory;
use std::os::unix::fs::MetadataExt;

const RESOURCES: usize = 16;

/// Of these the vm takes what it may have, whatever the guest was given.
const TAKEN_WHOLE: [u32; 3] = [libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE, libc::RLIMIT_CPU];

/// Room kept for the vm's own descriptors.
const OWN_DESCRIPTORS: u64 = 128;

#[derive(Default, Hash)]
pub struct Limits {
    /// Soft and hard limits, as the guest sees them.
    limits: [[u64; 2]; RESOURCES],
    /// Descriptors the vm may have altogether.
    descriptors: u64,
    /// Bytes of memory and swap that the machine has.
    memory: u64,
    /// The guest has set its number of processes.
    processes_set: bool,
}

impl Vm {
    /// Reads the host's limits once, at the start.
    pub(crate) fn read_limits(&mut self) -> Result<(), crate::Error> {
        let (_, bytes) = self.io.external_bytes(crate::io::tag::PROCESS, || {
            let mut bytes = Vec::new();
            for resource in 0..RESOURCES {
                let mut limit = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                // SAFETY: plain in- and out-parameters; the vm takes all that
                // it may have, since it has files, descriptors and work of its
                // own beside the guest's.
                unsafe {
                    libc::getrlimit(resource as u32, &mut limit);
                    if TAKEN_WHOLE.contains(&(resource as u32)) {
                        let all = libc::rlimit {
                            rlim_cur: limit.rlim_max,
                            rlim_max: limit.rlim_max,
                        };
                        libc::setrlimit(resource as u32, &all);
                    }
                }
                bytes.extend_from_slice(&limit.rlim_cur.to_le_bytes());
                bytes.extend_from_slice(&limit.rlim_max.to_le_bytes());
            }
            bytes.extend_from_slice(&machine_memory().to_le_bytes());
            (0, bytes)
        })?;
        let words = bytes.chunks_exact(8).map(|bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        let limits = self.kernel.limits.limits.as_flattened_mut();
        for (limit, word) in limits.iter_mut().zip(words) {
            *limit = word;
        }
        let [_, hard] = self.kernel.limits.limits[libc::RLIMIT_NOFILE as usize];
        self.kernel.limits.descriptors = hard;
        let memory = bytes.last_chunk::<8>();
        self.kernel.limits.memory = memory.map_or(u64::MAX, |word| u64::from_le_bytes(*word));
        self.apply_limits();
        Ok(())
    }

    /// True if the guest may have `length` more bytes of address space; with
    /// `committed` it wants memory behind them, of which the kernel refuses
    /// more than there is.
    pub(super) fn has_room(&self, length: u64, committed: bool) -> bool {
        let limit = self.kernel.limits.limits[libc::RLIMIT_AS as usize][0];
        let fits =
            limit == libc::RLIM_INFINITY || self.space.size().saturating_add(length) <= limit;
        fits && (!committed || length <= self.kernel.limits.memory)
    }

    /// How large a stack may grow.
    pub(super) fn stack_limit(&self) -> u64 {
        self.kernel.limits.limits[libc::RLIMIT_STACK as usize][0]
    }

    fn apply_limits(&mut self) {
        let soft = self.kernel.limits.limits[libc::RLIMIT_NOFILE as usize][0];
        // Every descriptor of the guest may become one of the host's, and the
        // vm has some of its own.
        let most = self.kernel.limits.descriptors;
        let most = most.saturating_sub(OWN_DESCRIPTORS).max(most / 2);
        self.kernel.fds.limit = soft.min(most).min(1 << 20) as i32;
        let [file_size, _] = self.kernel.limits.limits[libc::RLIMIT_FSIZE as usize];
        if self.io.is_live() {
            host::limit_file_size(file_size);
        }
        self.set_processor_limit();
    }

    /// Second of processor time at which SIGXCPU is due, if there is one, and
    /// the one at which SIGKILL is.
    pub(super) fn processor_limit(&self) -> (Option<u64>, u64) {
        let [soft, hard] = self.kernel.limits.limits[libc::RLIMIT_CPU as usize];
        // As the kernel has it, zero seconds are one.
        let due = soft.min(hard).max(1);
        ((soft != libc::RLIM_INFINITY).then_some(due), hard.max(1))
    }

    /// SIGXCPU has been sent: the next one comes a second later.
    pub(super) fn next_processor_second(&mut self) {
        let [soft, _] = &mut self.kernel.limits.limits[libc::RLIMIT_CPU as usize];
        *soft = soft.saturating_add(1);
        self.set_processor_limit();
    }

    /// Forks with the guest's own limit of processes in force, if it has set
    /// one.
    pub(super) fn within_processes<T>(&self, fork: impl FnOnce() -> T) -> T {
        let [soft, _] = self.kernel.limits.limits[libc::RLIMIT_NPROC as usize];
        if self.kernel.limits.processes_set {
            host::within_limit(libc::RLIMIT_NPROC, soft, fork)
        } else {
            fork()
        }
    }

    /// Fails if the guest has set a limit of processes that another thread
    /// would exceed. Threads are the vm's: the host cannot count them.
    pub(super) fn room_for_thread(&mut self) -> Result<(), Halt> {
        if !self.kernel.limits.processes_set || self.identity()?[1] == 0 {
            return Ok(());
        }
        let user = self.identity()?[0];
        let (others, _) = self
            .io
            .external_bytes(crate::io::tag::PROCESS, || (tasks_of(user), Vec::new()))?;
        let [soft, _] = self.kernel.limits.limits[libc::RLIMIT_NPROC as usize];
        let threads = self.threads.len() as u64 - 1;
        if (others.max(0) as u64).saturating_add(threads) >= soft {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        Ok(())
    }

    /// The process has CAP_SYS_RESOURCE, which not every root has.
    fn may_raise_limits(&mut self) -> Result<bool, Halt> {
        const SYS_RESOURCE: u32 = 24;
        const VERSION_3: u32 = 0x2008_0522;
        let has = self.io.external(crate::io::tag::PROCESS, || {
            let header = [VERSION_3, 0];
            let mut sets = [0u32; 6];
            let arguments = [header.as_ptr() as u64, sets.as_mut_ptr() as u64, 0, 0, 0, 0];
            // SAFETY: a header of this version and room for its two sets.
            let result = unsafe { host::syscall(libc::SYS_capget, arguments) };
            let has = result == 0 && sets[0] & (1 << SYS_RESOURCE) != 0;
            (i64::from(has), Vec::new())
        })?;
        Ok(has == 1)
    }

    pub(super) fn sys_prlimit(&mut self, pid: u64, resource: u64, new: u64, old: u64) -> Outcome {
        if pid != 0 && pid as i32 != self.kernel.process.pid {
            return Err(Halt::Errno(libc::ESRCH));
        }
        let limits = self.kernel.limits.limits.get(resource as usize);
        let current = *limits.ok_or(Halt::Errno(libc::EINVAL))?;
        let wanted = if new == 0 {
            None
        } else {
            Some(memory::get::<[u64; 2]>(new)?)
        };
        if let Some([soft, hard]) = wanted {
            if soft > hard {
                return Err(Halt::Errno(libc::EINVAL));
            }
            if hard > current[1] && !self.may_raise_limits()? {
                return Err(Halt::Errno(libc::EPERM));
            }
        }
        if old != 0 {
            memory::put(old, current)?;
        }
        if let Some(limits) = wanted {
            self.kernel.limits.limits[resource as usize] = limits;
            self.kernel.limits.processes_set |= resource as u32 == libc::RLIMIT_NPROC;
            self.apply_limits();
            return self.armed(0);
        }
        Ok(0)
    }
}

/// Tasks of a user that the host knows.
fn tasks_of(user: u32) -> i64 {
    let mut tasks = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().as_encoded_bytes()[0].is_ascii_digit();
        if is_process && entry.metadata().is_ok_and(|data| data.uid() == user) {
            let threads = std::fs::read_dir(entry.path().join("task"));
            tasks += threads.map_or(0, |threads| threads.count() as i64);
        }
    }
    tasks
}

/// Memory and swap of this machine, in bytes.
fn machine_memory() -> u64 {
    // SAFETY: plain out-parameter.
    unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        if libc::sysinfo(&mut info) != 0 {
            return u64::MAX;
        }
        (info.totalram + info.totalswap).saturating_mul(u64::from(info.mem_unit))
    }
}
