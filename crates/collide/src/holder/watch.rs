//! Data breakpoints (paper 002, section 3.2.1) by `perf_event_open`.
//!
//! Nobody is stopped to arm one and no code runs in the target. With the
//! rights for it (`CAP_PERFMON`, or a low `perf_event_paranoid`) one event per
//! CPU and slot serves any number of threads, as DataCollider's
//! inter-processor interrupt does; otherwise every thread of the target gets
//! its own. A program with few threads gets events of its own in any case: to
//! set one takes an interrupt of the CPU its thread is on, and there are no more
//! of those than there are threads beside the held one. Either way an event is
//! opened once and moved from address to address. A hit is a record in a ring buffer with the registers and the top
//! of the stack of the thread that made the access, taken by the kernel in the
//! trap itself: the thread is caught in the act without being stopped.
//!
//! The trap comes after the access, so the instruction pointer is that of the
//! next instruction (of the instruction itself inside `rep`).

use super::perf::{Attributes, FLAG_DISABLED, FLAG_EXCLUDE_HV, FLAG_EXCLUDE_KERNEL, Ring, open};
use super::ptrace::Tid;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Debug registers of an x86-64 CPU.
pub const SLOTS: usize = 4;
/// Bytes of stack the kernel copies with each hit; the rest is read from the
/// live stack right after.
pub const STACK_BYTES: u32 = 8192;
/// Registers asked for: ax bx cx dx si di bp sp ip flags, r8 to r15.
const REGISTER_MASK: u64 = 0x00ff_03ff;
const REGISTER_COUNT: usize = 18;

const PERF_TYPE_BREAKPOINT: u32 = 5;
const SAMPLE_IP: u64 = 1;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_ADDR: u64 = 1 << 3;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;
const RECORD_SAMPLE: u32 = 9;
const IOC_DISABLE: libc::Ioctl = 0x2401;
const IOC_SET_OUTPUT: libc::Ioctl = 0x2405;
const IOC_ID: libc::Ioctl = 0x8008_2407;
const IOC_MODIFY_ATTRIBUTES: libc::Ioctl = 0x4008_240b;

/// Which accesses trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Trap {
    Writes = 2,
    ReadsAndWrites = 3,
}

/// An aligned piece of memory that one debug register can watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub length: u64,
}

/// Cuts an access into pieces of 1, 2, 4 or 8 aligned bytes, as few as
/// possible.
pub fn pieces(address: u64, size: u64) -> Vec<Piece> {
    let end = address.saturating_add(size);
    let mut at = address;
    let mut pieces = Vec::new();
    while at < end {
        let mut length = 8;
        while !at.is_multiple_of(length) || at + length > end {
            length /= 2;
        }
        pieces.push(Piece {
            address: at,
            length,
        });
        at += length;
    }
    pieces
}

/// A hit of a data breakpoint.
#[derive(Debug, Clone)]
pub struct Hit {
    pub slot: usize,
    pub pid: Tid,
    pub tid: Tid,
    /// The address that was watched.
    pub address: u64,
    /// Where the CPU was: in the kernel if it made the access on the thread's
    /// behalf.
    pub ip: u64,
    /// ax bx cx dx si di bp sp ip flags r8…r15 of the user code.
    pub registers: [u64; REGISTER_COUNT],
    /// Stack from `sp` upwards.
    pub stack: Vec<u8>,
}

impl Hit {
    /// The kernel made the access, inside a system call of the thread.
    pub fn in_kernel(&self) -> bool {
        self.ip >= 1 << 63
    }
}

/// The events of one CPU or one thread: up to four, with one ring.
struct Bank {
    pid: i32,
    cpu: i32,
    events: [Option<(OwnedFd, u64)>; SLOTS],
    /// Which of them are armed.
    armed: [bool; SLOTS],
    ring: Option<Ring>,
    ring_slot: usize,
}

impl Bank {
    fn new(pid: i32, cpu: i32) -> Bank {
        Bank {
            pid,
            cpu,
            events: [const { None }; SLOTS],
            armed: [false; SLOTS],
            ring: None,
            ring_slot: 0,
        }
    }

    fn set(&mut self, slot: usize, attributes: &Attributes, pages: usize) -> io::Result<()> {
        if let Some((fd, _)) = &self.events[slot] {
            // SAFETY: the ioctl reads one perf_event_attr.
            let answer = unsafe {
                libc::ioctl(
                    fd.as_raw_fd(),
                    IOC_MODIFY_ATTRIBUTES,
                    std::ptr::from_ref(attributes),
                )
            };
            if answer == 0 {
                self.armed[slot] = true;
                return Ok(());
            }
            return Err(io::Error::last_os_error());
        }
        let mut closed = *attributes;
        closed.flags |= FLAG_DISABLED;
        let fd = open(&closed, self.pid, self.cpu)?;
        match &self.ring {
            None => {
                self.ring = Some(Ring::map(fd.as_raw_fd(), pages)?);
                self.ring_slot = slot;
                super::wake::on(fd.as_raw_fd())?;
            }
            Some(_) => {
                let output = self.events[self.ring_slot]
                    .as_ref()
                    .map_or(-1, |(fd, _)| fd.as_raw_fd());
                // SAFETY: SET_OUTPUT takes a descriptor.
                if unsafe { libc::ioctl(fd.as_raw_fd(), IOC_SET_OUTPUT, output) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        let mut id = 0u64;
        // SAFETY: IOC_ID writes one u64.
        if unsafe { libc::ioctl(fd.as_raw_fd(), IOC_ID, &raw mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.events[slot] = Some((fd, id));
        self.set(slot, attributes, pages)
    }

    fn clear(&mut self, slot: usize) {
        if std::mem::take(&mut self.armed[slot])
            && let Some((fd, _)) = &self.events[slot]
        {
            // SAFETY: DISABLE takes no argument.
            unsafe { libc::ioctl(fd.as_raw_fd(), IOC_DISABLE, 0) };
        }
    }

    fn drain(&self, each: &mut impl FnMut(Hit)) {
        let Some(ring) = &self.ring else { return };
        if ring.is_empty() {
            return;
        }
        ring.drain(|kind, body| {
            if kind != RECORD_SAMPLE {
                return;
            }
            if let Some((id, mut hit)) = parse(body)
                && let Some(slot) = self
                    .events
                    .iter()
                    .position(|event| event.as_ref().is_some_and(|(_, own)| *own == id))
            {
                hit.slot = slot;
                each(hit);
            }
        });
    }
}

fn parse(body: &[u8]) -> Option<(u64, Hit)> {
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?))
    };
    let id = word(0)?;
    let ip = word(8)?;
    let ids = word(16)?;
    let address = word(24)?;
    let abi = word(32)?;
    let mut at = 40;
    let mut registers = [0; REGISTER_COUNT];
    if abi != 0 {
        for register in &mut registers {
            *register = word(at)?;
            at += 8;
        }
    }
    let size = word(at)? as usize;
    at += 8;
    let mut stack = Vec::new();
    if size != 0 {
        let copied = word(at + size)? as usize;
        stack.extend_from_slice(body.get(at..at + copied.min(size))?);
    }
    let hit = Hit {
        slot: 0,
        pid: ids as u32 as i32,
        tid: (ids >> 32) as i32,
        address,
        ip,
        registers,
        stack,
    };
    Some((id, hit))
}

/// How far the events reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    PerCpu,
    PerThread,
    /// Debug registers cannot be had: repeated reads only.
    None,
}

/// All data breakpoints of one session.
pub struct Watchpoints {
    scope: Scope,
    sees_kernel: bool,
    why_not: Option<String>,
    /// Where the probe will write what it has found out.
    answer: Option<OwnedFd>,
    cpus: Vec<Bank>,
    threads: HashMap<Tid, Bank>,
    busy: [bool; SLOTS],
    /// Slots that can be had at all: somebody else may own a register.
    usable: [bool; SLOTS],
    /// Events per CPU are allowed and not used yet: with more threads than
    /// this they will be.
    few: Option<usize>,
    /// Events of threads do not stay open.
    hectic: bool,
    lacks_room: bool,
}

const CPU_RING_PAGES: usize = 64;
const THREAD_RING_PAGES: usize = 8;
/// What is tried, the best first, and whether it sees the kernel's accesses.
const ATTEMPTS: [(Scope, bool); 3] = [
    (Scope::PerCpu, true),
    (Scope::PerThread, true),
    (Scope::PerThread, false),
];
/// Threads per CPU up to which events of their own are the cheaper ones.
const FEW_PER_CPU: usize = 2;
/// The same whatever the CPUs: those that sleep are not watched in a short hold.
const FEW: usize = 8;

impl Watchpoints {
    /// Begins to find out what this user may do, in a child: the kernel takes
    /// some ten milliseconds to open the first event, and the program need not
    /// wait for that. `per_thread` forbids the per-CPU way (`--unprivileged`).
    pub fn probe(per_thread: bool) -> io::Result<Watchpoints> {
        let mut watch = Watchpoints {
            scope: Scope::None,
            sees_kernel: true,
            why_not: None,
            answer: None,
            cpus: Vec::new(),
            threads: HashMap::new(),
            busy: [false; SLOTS],
            usable: [true; SLOTS],
            few: None,
            hectic: false,
            lacks_room: false,
        };
        let (answer, report) = super::launch::pipe()?;
        // SAFETY: the holder has one thread.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child == 0 {
            let findings = watch.try_all(per_thread);
            // SAFETY: the bytes of an array; ends the child at once.
            unsafe {
                libc::write(
                    report.as_raw_fd(),
                    findings.as_ptr().cast(),
                    size_of_val(&findings),
                );
                libc::_exit(0);
            }
        }
        watch.answer = Some(answer);
        Ok(watch)
    }

    /// Opens an event of each kind until one can be had: its number in
    /// `ATTEMPTS`, and the last error.
    fn try_all(&mut self, per_thread: bool) -> [i32; 2] {
        let mut error = 0;
        for (number, (scope, sees_kernel)) in ATTEMPTS.into_iter().enumerate() {
            if scope == Scope::PerCpu && per_thread {
                continue;
            }
            self.sees_kernel = sees_kernel;
            let mut attributes = self.attributes(0x1000, 8, Trap::Writes);
            attributes.flags |= FLAG_DISABLED;
            let (pid, cpu) = if scope == Scope::PerCpu {
                (-1, 0)
            } else {
                (0, -1)
            };
            match open(&attributes, pid, cpu) {
                Ok(_) => return [number as i32, error],
                Err(failure) => error = failure.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        [-1, error]
    }

    /// Takes what the probe has found out, waiting for it if need be. Whether
    /// that is news.
    pub fn settle(&mut self) -> bool {
        let Some(answer) = self.answer.take() else {
            return false;
        };
        let mut findings = [-1, libc::EIO];
        // SAFETY: reads at most the bytes of the array.
        unsafe {
            libc::read(
                answer.as_raw_fd(),
                findings.as_mut_ptr().cast(),
                size_of_val(&findings),
            )
        };
        let [number, error] = findings;
        if error != 0 {
            self.why_not = Some(io::Error::from_raw_os_error(error).to_string());
        }
        let found = usize::try_from(number)
            .ok()
            .and_then(|number| ATTEMPTS.get(number));
        if let Some((scope, sees_kernel)) = found {
            self.scope = Scope::PerThread;
            self.sees_kernel = *sees_kernel;
            if *scope == Scope::PerCpu {
                self.few = Some((FEW_PER_CPU * online_cpus().len()).max(FEW));
            }
        }
        true
    }

    /// Makes the events suit a program of so many threads, which take turns all
    /// the time or do not (`hectic`). With more threads than events of their own
    /// are good for, or if turns would become dearer by them, the events of CPUs
    /// are used if that is allowed; else those of threads are closed after every
    /// sample of a hectic program. To be called while no slot is in use.
    pub fn suit(&mut self, threads: usize, hectic: bool) {
        if self.busy != [false; SLOTS] {
            return;
        }
        if self.few.is_some_and(|few| hectic || threads > few) {
            self.few = None;
            // They hold the registers that the others need.
            self.threads.clear();
            self.scope = Scope::PerCpu;
            self.open_on_cpus();
        }
        self.hectic = hectic;
        self.tidy();
    }

    fn tidy(&mut self) {
        if self.hectic && self.busy == [false; SLOTS] {
            self.threads.clear();
        }
    }

    /// Opens the events of every CPU. Half of them watch writes, half watch
    /// reads and writes: to change the kind of an event on a CPU makes the
    /// kernel wait for all CPUs, milliseconds in which a thread would be held.
    fn open_on_cpus(&mut self) {
        self.cpus = online_cpus()
            .into_iter()
            .map(|cpu| Bank::new(-1, cpu))
            .collect();
        for slot in 0..SLOTS {
            let trap = [Trap::Writes, Trap::ReadsAndWrites][slot * 2 / SLOTS];
            // An address that no program has.
            let attributes = self.attributes(0x1000, 8, trap);
            let opened = self.cpus.iter_mut().try_for_each(|bank| {
                bank.set(slot, &attributes, CPU_RING_PAGES)?;
                bank.clear(slot);
                Ok::<(), io::Error>(())
            });
            if let Err(error) = opened {
                self.why_not = Some(error.to_string());
                self.usable[slot] = false;
            }
        }
        if self.usable == [false; SLOTS] {
            self.scope = Scope::None;
        }
    }

    /// The slots that can watch this kind of access.
    fn slots(&self, trap: Trap) -> std::ops::Range<usize> {
        match (self.scope, trap) {
            (Scope::None, _) => 0..0,
            (Scope::PerThread, _) => 0..SLOTS,
            (Scope::PerCpu, Trap::Writes) => 0..SLOTS / 2,
            (Scope::PerCpu, Trap::ReadsAndWrites) => SLOTS / 2..SLOTS,
        }
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// So many threads have events of their own and will keep them.
    pub fn stays_per_thread(&self, threads: usize) -> bool {
        self.scope == Scope::PerThread && self.few.is_none_or(|few| threads <= few)
    }

    pub fn sees_kernel(&self) -> bool {
        self.sees_kernel
    }

    /// Why there are no debug registers, in the kernel's words.
    pub fn why_not(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    fn attributes(&self, address: u64, length: u64, trap: Trap) -> Attributes {
        Attributes {
            kind: PERF_TYPE_BREAKPOINT,
            size: size_of::<Attributes>() as u32,
            sample_period: 1,
            sample_type: SAMPLE_IDENTIFIER
                | SAMPLE_IP
                | SAMPLE_TID
                | SAMPLE_ADDR
                | SAMPLE_REGS_USER
                | SAMPLE_STACK_USER,
            flags: FLAG_EXCLUDE_HV
                | if self.sees_kernel {
                    0
                } else {
                    FLAG_EXCLUDE_KERNEL
                },
            wakeup_events: 1,
            bp_type: trap as u32,
            bp_addr: address,
            bp_len: length,
            sample_regs_user: REGISTER_MASK,
            sample_stack_user: STACK_BYTES,
            ..Attributes::default()
        }
    }

    /// Slots nobody uses now.
    pub fn unused(&self) -> usize {
        (0..SLOTS).filter(|slot| self.is_free(*slot)).count()
    }

    fn is_free(&self, slot: usize) -> bool {
        self.usable[slot] && !self.busy[slot]
    }

    /// Those of them that can watch this kind of access.
    pub fn free(&self, trap: Trap) -> usize {
        self.slots(trap).filter(|slot| self.is_free(*slot)).count()
    }

    /// Arms one slot: at `cpu_address` on every CPU, or on each of `threads`
    /// at the address that goes with it. `None` if no slot can be had.
    pub fn arm(
        &mut self,
        trap: Trap,
        length: u64,
        threads: &[(Tid, u64)],
        cpu_address: u64,
    ) -> Option<usize> {
        let slot = self.slots(trap).find(|slot| self.is_free(*slot))?;
        let result = match self.scope {
            Scope::PerCpu => {
                let attributes = self.attributes(cpu_address, length, trap);
                self.cpus
                    .iter_mut()
                    .try_for_each(|bank| bank.set(slot, &attributes, CPU_RING_PAGES))
            }
            _ => self.arm_threads(slot, trap, length, threads),
        };
        match result {
            Ok(()) => {
                self.busy[slot] = true;
                Some(slot)
            }
            Err(error) => {
                self.why_not = Some(error.to_string());
                self.clear(slot);
                // Somebody else owns the register: do without it.
                if error.raw_os_error() == Some(libc::ENOSPC) {
                    self.usable[slot] = false;
                    if self.usable == [false; SLOTS] {
                        self.scope = Scope::None;
                    }
                }
                None
            }
        }
    }

    fn arm_threads(
        &mut self,
        slot: usize,
        trap: Trap,
        length: u64,
        threads: &[(Tid, u64)],
    ) -> io::Result<()> {
        for (tid, address) in threads {
            let attributes = self.attributes(*address, length, trap);
            let mut set = self.set_thread(*tid, slot, &attributes);
            if set.as_ref().is_err_and(is_lack_of_room) {
                // Those that are not armed can be opened again.
                self.threads.retain(|_, bank| bank.armed != [false; SLOTS]);
                set = self.set_thread(*tid, slot, &attributes);
            }
            match set {
                Ok(()) => {}
                // The thread has just ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) if is_lack_of_room(&error) => self.lacks_room = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn set_thread(&mut self, tid: Tid, slot: usize, attributes: &Attributes) -> io::Result<()> {
        self.threads
            .entry(tid)
            .or_insert_with(|| Bank::new(tid, -1))
            .set(slot, attributes, THREAD_RING_PAGES)
    }

    /// How many CPUs have events of their own.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Limits of this user kept a thread from being watched.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    fn clear(&mut self, slot: usize) {
        for bank in self.cpus.iter_mut().chain(self.threads.values_mut()) {
            bank.clear(slot);
        }
    }

    /// Disarms a slot. Whatever it caught is in the rings when this returns.
    pub fn disarm(&mut self, slot: usize) {
        self.clear(slot);
    }

    /// Makes a disarmed and drained slot available again.
    pub fn release(&mut self, slot: usize) {
        self.busy[slot] = false;
        self.tidy();
    }

    pub fn forget_thread(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }

    /// Takes all hits out of all rings.
    pub fn drain(&self, mut each: impl FnMut(Hit)) {
        for bank in self.cpus.iter().chain(self.threads.values()) {
            bank.drain(&mut each);
        }
    }

    /// Whether any ring holds a hit; a few loads per CPU or thread.
    pub fn any_hit(&self) -> bool {
        self.cpus
            .iter()
            .chain(self.threads.values())
            .any(|bank| bank.ring.as_ref().is_some_and(|ring| !ring.is_empty()))
    }
}

/// Open files, or memory that may be locked, have come to an end.
fn is_lack_of_room(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::EPERM | libc::ENOMEM)
    )
}

fn online_cpus() -> Vec<i32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            cpus.extend(first..=last);
        }
    }
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(address: u64, size: u64) -> Vec<(u64, u64)> {
        let pieces = pieces(address, size);
        pieces.iter().map(|p| (p.address, p.length)).collect()
    }

    #[test]
    fn aligned_accesses_take_one_register() {
        for size in [1, 2, 4, 8] {
            assert_eq!(lengths(0x1000, size), [(0x1000, size)]);
        }
    }

    #[test]
    fn unaligned_and_wide_accesses_take_more() {
        assert_eq!(lengths(0x1003, 4), [(0x1003, 1), (0x1004, 2), (0x1006, 1)]);
        assert_eq!(lengths(0x1000, 16), [(0x1000, 8), (0x1008, 8)]);
        assert_eq!(lengths(0x1004, 16), [(0x1004, 4), (0x1008, 8), (0x1010, 4)]);
    }
}
