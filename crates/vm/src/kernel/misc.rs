//! Calls that concern the machine, the user and the process's limits.

use super::{Call, Halt, Outcome};
use crate::clock::INSTRUCTIONS_PER_NANOSECOND;
use crate::layout::{self, PAGE, page_up};
use crate::machine::Vm;
use crate::memory;
use crate::space::Backing;
use crate::thread::TIMER_SLACK;
use std::collections::{BTreeMap, BTreeSet};

/// What the guest has set and is shown again.
#[derive(Default, Hash)]
pub struct Machine {
    /// CPU masks that were set, by thread id.
    affinity: BTreeMap<i32, Vec<u8>>,
    personality: u64,
    pub no_new_privileges: bool,
    dumpable: Option<u64>,
    /// Unknown requests already complained about.
    pub reported_ioctls: BTreeSet<u32>,
}

impl Vm {
    /// A line for the user about something the guest is refused. A replay is
    /// silent: it was said when it happened.
    pub(crate) fn say(&self, what: &str) {
        if self.io.is_live() {
            crate::host::say(&format!("deadheat: {}", race::plain_lines(what)));
        }
    }

    pub(super) fn sys_arch_prctl(&mut self, code: u64, address: u64) -> Outcome {
        const SET_GS: u64 = 0x1001;
        const SET_FS: u64 = 0x1002;
        const GET_FS: u64 = 0x1003;
        const GET_GS: u64 = 0x1004;
        match code {
            // The kernel refuses what is no address of a program's.
            SET_FS | SET_GS if address >= layout::GUEST_TOP || memory::is_vm(address) => {
                return Err(Halt::Errno(libc::EPERM));
            }
            SET_FS => self.regs().fs_base = address,
            SET_GS => self.regs().gs_base = address,
            GET_FS => memory::put(address, self.regs().fs_base)?,
            GET_GS => memory::put(address, self.regs().gs_base)?,
            // CET, AMX permissions and the like: not for the guest.
            _ => return Err(Halt::Errno(libc::EINVAL)),
        }
        Ok(0)
    }

    pub(super) fn sys_getrandom(&mut self, call: &Call) -> Outcome {
        let [buffer, ..] = call.arguments;
        self.host_call_writing(libc::SYS_getrandom, call.arguments, |result| {
            vec![(buffer, result as usize)]
        })
    }

    pub(super) fn sys_set_tid_address(&mut self, address: u64) -> Outcome {
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.clear_child_tid = address;
        }
        Ok(i64::from(self.current_tid()))
    }

    pub(super) fn sys_set_robust_list(&mut self, head: u64) -> Outcome {
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.robust_list = head;
        }
        Ok(0)
    }

    pub(super) fn sys_get_robust_list(&mut self, tid: i32, head: u64, length: u64) -> Outcome {
        let own = self.current_tid();
        let wanted = if tid == 0 { own } else { tid };
        let thread = self.threads.values().find(|thread| thread.tid == wanted);
        let list = thread.ok_or(Halt::Errno(libc::ESRCH))?.robust_list;
        memory::put(head, list)?;
        memory::put(length, 24u64)?;
        Ok(0)
    }

    /// Real and effective user, real and effective group.
    pub(super) fn identity(&mut self) -> Result<[u32; 4], Halt> {
        let (_, bytes) = self.io.external_bytes(libc::SYS_getuid as u32, || {
            // SAFETY: no preconditions.
            let ids = unsafe {
                [
                    libc::getuid(),
                    libc::geteuid(),
                    libc::getgid(),
                    libc::getegid(),
                ]
            };
            (0, ids.iter().flat_map(|id| id.to_le_bytes()).collect())
        })?;
        let mut ids = [0; 4];
        for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(4)) {
            *id = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(ids)
    }

    /// getresuid, getresgid.
    pub(super) fn sys_getres(&mut self, call: &Call) -> Outcome {
        let [a, b, c, ..] = call.arguments;
        self.host_call_writing(call.number as i64, call.arguments, |_| {
            vec![(a, 4), (b, 4), (c, 4)]
        })
    }

    pub(super) fn sys_getgroups(&mut self, call: &Call) -> Outcome {
        let [size, list, ..] = call.arguments;
        self.host_call_writing(libc::SYS_getgroups, call.arguments, |result| {
            if size as i32 > 0 {
                vec![(list, result as usize * 4)]
            } else {
                Vec::new()
            }
        })
    }

    pub(super) fn sys_capget(&mut self, call: &Call) -> Outcome {
        let [header, data, ..] = call.arguments;
        let arguments = call.arguments;
        let result = self.io.external(libc::SYS_capget as u32, || {
            // SAFETY: guest pointers, checked by the kernel.
            let result = unsafe { crate::host::syscall(libc::SYS_capget, arguments) };
            // The kernel writes the version it wants even when it refuses.
            let mut written = vec![(header, 8)];
            if result >= 0 && data != 0 {
                // The first version has one set of capabilities, the others two.
                const FIRST: u32 = 0x1998_0330;
                let first = memory::get::<u32>(header).is_ok_and(|version| version == FIRST);
                written.push((data, if first { 12 } else { 24 }));
            }
            (result, written)
        })?;
        Ok(result)
    }

    pub(super) fn sys_uname(&mut self, address: u64) -> Outcome {
        self.host_call_writing(libc::SYS_uname, [address, 0, 0, 0, 0, 0], |_| {
            vec![(address, size_of::<libc::utsname>())]
        })
    }

    pub(super) fn sys_sysinfo(&mut self, address: u64) -> Outcome {
        self.host_call_writing(libc::SYS_sysinfo, [address, 0, 0, 0, 0, 0], |_| {
            vec![(address, size_of::<libc::sysinfo>())]
        })
    }

    /// Calls that change whom the process is. The kernel then hides /proc/self
    /// from it, which the vm needs.
    pub(super) fn sys_set_identity(&mut self, call: &Call) -> Outcome {
        let result = self.host_call(call.number as i64, call.arguments)?;
        if self.io.is_live() {
            // SAFETY: no preconditions.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        }
        Ok(result)
    }

    /// The user changes: the recording has to stay writable.
    pub(super) fn sys_set_user(&mut self, call: &Call) -> Outcome {
        let wanted = match call.number as i64 {
            libc::SYS_setreuid | libc::SYS_setresuid => call.arguments[1],
            _ => call.arguments[0],
        } as u32;
        // SAFETY: no preconditions.
        let privileged = unsafe { libc::geteuid() } == 0;
        if self.io.is_live() && privileged && wanted != 0 && wanted != u32::MAX {
            self.hand_recording_to(wanted)?;
        }
        self.sys_set_identity(call)
    }

    fn hand_recording_to(&mut self, user: u32) -> Result<(), Halt> {
        let Some(tree) = &mut self.tree else {
            return Ok(());
        };
        let Some(directory) = tree.hand_to(user) else {
            return Ok(());
        };
        if let crate::io::Io::Record { files, .. } = &mut self.io {
            files.relocate(directory);
        }
        Ok(())
    }

    pub(super) fn sys_getrusage(&mut self, who: u64, address: u64) -> Outcome {
        let size = size_of::<libc::rusage>();
        let result =
            self.host_call_writing(libc::SYS_getrusage, [who, address, 0, 0, 0, 0], |_| {
                vec![(address, size)]
            })?;
        // CPU time of the guest is what its clocks say.
        let instructions = match who as i32 {
            libc::RUSAGE_SELF => self.instructions(),
            libc::RUSAGE_THREAD => self.executed(self.current),
            _ => return Ok(result),
        };
        if result == 0 {
            let nanoseconds = instructions / INSTRUCTIONS_PER_NANOSECOND;
            let time = libc::timeval {
                tv_sec: (nanoseconds / 1_000_000_000) as i64,
                tv_usec: (nanoseconds % 1_000_000_000 / 1000) as i64,
            };
            memory::put(address, time)?;
            memory::put(address + 16, [0u64; 2])?;
        }
        Ok(result)
    }

    pub(super) fn sys_times(&mut self, address: u64) -> Outcome {
        const TICK: u64 = 10_000_000;
        if address != 0 {
            let user = self.instructions() / INSTRUCTIONS_PER_NANOSECOND / TICK;
            memory::put(address, [user, 0, 0, 0])?;
        }
        Ok((self.now() / TICK) as i64)
    }

    /// The thread a scheduling call means: the guest's own, or ESRCH.
    fn known_tid(&self, tid: u64) -> Result<i32, Halt> {
        let tid = tid as i32;
        if tid == 0 {
            return Ok(self.current_tid());
        }
        if tid == self.kernel.process.pid || self.threads.values().any(|thread| thread.tid == tid) {
            return Ok(tid);
        }
        Err(Halt::Errno(libc::ESRCH))
    }

    pub(super) fn sys_sched_getaffinity(&mut self, tid: u64, size: u64, mask: u64) -> Outcome {
        let tid = self.known_tid(tid)?;
        if let Some(set) = self.kernel.machine.affinity.get(&tid) {
            if (size as usize) < set.len() {
                return Err(Halt::Errno(libc::EINVAL));
            }
            memory::write(mask, set)?;
            return Ok(set.len() as i64);
        }
        self.host_call_writing(
            libc::SYS_sched_getaffinity,
            [0, size, mask, 0, 0, 0],
            |result| vec![(mask, result as usize)],
        )
    }

    /// Kept and shown again; the vm's one thread runs where it likes.
    pub(super) fn sys_sched_setaffinity(&mut self, tid: u64, size: u64, mask: u64) -> Outcome {
        let tid = self.known_tid(tid)?;
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
        self.kernel.machine.affinity.insert(tid, wanted);
        Ok(0)
    }

    /// sched_getscheduler, sched_getparam, sched_rr_get_interval, and the
    /// setters, which a deterministic scheduler takes note of but not more.
    pub(super) fn sys_sched(&mut self, call: &Call) -> Outcome {
        let [tid, b, c, ..] = call.arguments;
        self.known_tid(tid)?;
        match call.number as i64 {
            libc::SYS_sched_getscheduler => Ok(0),
            libc::SYS_sched_getparam => {
                memory::put(b, 0u32)?;
                Ok(0)
            }
            libc::SYS_sched_rr_get_interval => {
                memory::put(b, super::time::timespec(4_000_000))?;
                Ok(0)
            }
            libc::SYS_sched_setscheduler => {
                let policy = b as i32 & !libc::SCHED_RESET_ON_FORK;
                match policy {
                    libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => {
                        if memory::get::<i32>(c)? == 0 {
                            Ok(0)
                        } else {
                            Err(Halt::Errno(libc::EINVAL))
                        }
                    }
                    libc::SCHED_FIFO | libc::SCHED_RR | 6 => Err(Halt::Errno(libc::EPERM)),
                    _ => Err(Halt::Errno(libc::EINVAL)),
                }
            }
            libc::SYS_sched_setparam => {
                if memory::get::<i32>(b)? == 0 {
                    Ok(0)
                } else {
                    Err(Halt::Errno(libc::EINVAL))
                }
            }
            libc::SYS_sched_getattr => {
                let size = (c as usize).min(48);
                if size < 48 {
                    return Err(Halt::Errno(libc::EINVAL));
                }
                let mut attributes = [0u8; 48];
                attributes[0] = 48;
                memory::write(b, &attributes)?;
                Ok(0)
            }
            _ => Ok(0),
        }
    }

    pub(super) fn sys_sched_priority(&mut self, policy: u64, highest: bool) -> Outcome {
        match policy as i32 {
            libc::SCHED_FIFO | libc::SCHED_RR => Ok(if highest { 99 } else { 1 }),
            libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE | 6 => Ok(0),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_getcpu(&mut self, cpu: u64, node: u64) -> Outcome {
        for address in [cpu, node] {
            if address != 0 {
                memory::put(address, 0u32)?;
            }
        }
        Ok(0)
    }

    /// One host thread runs all guest threads, so every barrier is in force
    /// already.
    pub(super) fn sys_membarrier(&mut self, command: u64) -> Outcome {
        const COMMANDS: u64 = 0x7f;
        match command {
            0 => Ok(COMMANDS as i64),
            command if command.is_power_of_two() && command & COMMANDS != 0 => Ok(0),
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }

    pub(super) fn sys_personality(&mut self, wanted: u64) -> Outcome {
        let old = self.kernel.machine.personality;
        if wanted as u32 != u32::MAX {
            self.kernel.machine.personality = u64::from(wanted as u32);
        }
        Ok(old as i64)
    }

    fn fully_mapped(&self, address: u64, length: u64) -> Result<(), Halt> {
        let end = address
            .checked_add(page_up(length))
            .ok_or(Halt::Errno(libc::ENOMEM))?;
        let mut at = address;
        while at < end {
            match self.space.find(at) {
                Some((range, _)) => at = range.end,
                None => return Err(Halt::Errno(libc::ENOMEM)),
            }
        }
        Ok(())
    }

    /// mlock and munlock: pages are never paged out of a recording anyway.
    pub(super) fn sys_mlock(&mut self, address: u64, length: u64) -> Outcome {
        let start = address & !(PAGE - 1);
        self.fully_mapped(start, length + (address - start))?;
        Ok(0)
    }

    /// Shared file pages are the host's page cache: nothing is kept back that
    /// would have to be written.
    pub(super) fn sys_msync(&mut self, address: u64, length: u64, flags: u64) -> Outcome {
        let known = libc::MS_ASYNC | libc::MS_SYNC | libc::MS_INVALIDATE;
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if !address.is_multiple_of(PAGE)
            || flags as i32 & !known != 0
            || flags as i32 & both == both
        {
            return Err(Halt::Errno(libc::EINVAL));
        }
        self.fully_mapped(address, length)?;
        Ok(0)
    }

    pub(super) fn sys_mincore(&mut self, address: u64, length: u64, vector: u64) -> Outcome {
        if !address.is_multiple_of(PAGE) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        self.fully_mapped(address, length)?;
        let pages = page_up(length) / PAGE;
        memory::write(vector, &vec![1; pages as usize])?;
        Ok(0)
    }

    /// PR_SET_VMA names anonymous memory for /proc/PID/maps. The name is
    /// checked and not shown.
    fn name_mapping(&self, call: &Call) -> Outcome {
        const LONGEST: usize = 80;
        let [_, what, start, length, name, _] = call.arguments;
        if what != 0 || !start.is_multiple_of(PAGE) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if name != 0 {
            let name = memory::read_c_string(name, LONGEST)?;
            let bad = |byte: &u8| !(b' '..=b'~').contains(byte) || b"\\`$[]".contains(byte);
            if name.len() == LONGEST || name.iter().any(bad) {
                return Err(Halt::Errno(libc::EINVAL));
            }
        }
        let end = start.saturating_add(page_up(length));
        let mut parts = self.space.mappings();
        let inside =
            |(range, _): &(std::ops::Range<u64>, _)| range.start < end && start < range.end;
        if parts.any(|part| inside(&part) && matches!(part.1.backing, Backing::File { .. })) {
            return Err(Halt::Errno(libc::EBADF));
        }
        self.fully_mapped(start, length)?;
        Ok(0)
    }

    pub(super) fn sys_prctl(&mut self, call: &Call) -> Outcome {
        const PR_SET_VMA: i32 = 0x5356_4d41;
        const PR_GET_SPECULATION_CTRL: i32 = 52;
        const PR_SET_SPECULATION_CTRL: i32 = 53;
        let [option, argument, ..] = call.arguments;
        let current = self.current;
        match option as i32 {
            libc::PR_SET_NAME => {
                let name = memory::read_c_string(argument, 15)?;
                if let Some(thread) = self.threads.get_mut(&current) {
                    thread.name = [0; 16];
                    thread.name[..name.len()].copy_from_slice(&name);
                }
                Ok(0)
            }
            libc::PR_GET_NAME => {
                let name = self
                    .threads
                    .get(&current)
                    .map_or([0; 16], |thread| thread.name);
                memory::put(argument, name)?;
                Ok(0)
            }
            libc::PR_GET_DUMPABLE => Ok(self.kernel.machine.dumpable.unwrap_or(1) as i64),
            libc::PR_SET_DUMPABLE => {
                if argument > 1 {
                    return Err(Halt::Errno(libc::EINVAL));
                }
                self.kernel.machine.dumpable = Some(argument);
                Ok(0)
            }
            libc::PR_SET_NO_NEW_PRIVS => {
                self.kernel.machine.no_new_privileges = true;
                Ok(0)
            }
            libc::PR_GET_NO_NEW_PRIVS => Ok(i64::from(self.kernel.machine.no_new_privileges)),
            libc::PR_GET_PDEATHSIG | libc::PR_GET_CHILD_SUBREAPER => {
                self.host_call_writing(libc::SYS_prctl, call.arguments, |_| vec![(argument, 4)])
            }
            libc::PR_SET_PDEATHSIG
            | libc::PR_SET_CHILD_SUBREAPER
            | libc::PR_CAPBSET_READ
            | libc::PR_CAPBSET_DROP
            | libc::PR_SET_KEEPCAPS
            | libc::PR_GET_KEEPCAPS
            | libc::PR_GET_SECUREBITS
            | libc::PR_SET_SECUREBITS
            | libc::PR_CAP_AMBIENT => self.host_call(libc::SYS_prctl, call.arguments),
            libc::PR_GET_TIMERSLACK => Ok(self
                .threads
                .get(&current)
                .map_or(0, |thread| thread.timer_slack as i64)),
            libc::PR_SET_TIMERSLACK => {
                if let Some(thread) = self.threads.get_mut(&current) {
                    // Zero asks for the default.
                    thread.timer_slack = match argument {
                        0 => TIMER_SLACK,
                        slack => slack,
                    };
                }
                Ok(0)
            }
            libc::PR_GET_TSC => {
                let faults = self
                    .threads
                    .get(&current)
                    .is_some_and(|thread| thread.time_stamps_fault);
                let answer = if faults {
                    libc::PR_TSC_SIGSEGV
                } else {
                    libc::PR_TSC_ENABLE
                };
                memory::put(argument, answer)?;
                Ok(0)
            }
            libc::PR_SET_TSC => {
                let faults = match argument as i32 {
                    libc::PR_TSC_ENABLE => false,
                    libc::PR_TSC_SIGSEGV => true,
                    _ => return Err(Halt::Errno(libc::EINVAL)),
                };
                if let Some(thread) = self.threads.get_mut(&current) {
                    thread.time_stamps_fault = faults;
                }
                Ok(0)
            }
            // The host's processor, and what its kernel does about it.
            libc::PR_MCE_KILL
            | libc::PR_MCE_KILL_GET
            | PR_GET_SPECULATION_CTRL
            | PR_SET_SPECULATION_CTRL => self.host_call(libc::SYS_prctl, call.arguments),
            libc::PR_SET_MM if argument as i32 == libc::PR_SET_MM_MAP_SIZE => {
                const MAP_SIZE: u32 = 104;
                memory::put(call.arguments[2], MAP_SIZE)?;
                Ok(0)
            }
            libc::PR_SET_MM => Err(Halt::Errno(libc::EPERM)),
            libc::PR_SET_SECCOMP => self.refuse("prctl with PR_SET_SECCOMP", libc::EINVAL),
            libc::PR_SET_THP_DISABLE | libc::PR_GET_THP_DISABLE | libc::PR_GET_SECCOMP => Ok(0),
            PR_SET_VMA => self.name_mapping(call),
            // Seccomp filters would bind the vm, not the guest; the rest
            // concerns hardware or a kernel the guest does not see.
            _ => Err(Halt::Errno(libc::EINVAL)),
        }
    }
}
