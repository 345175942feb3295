//! The table of planted breakpoints, in memory that holder and front end
//! share.
//!
//! The holder writes an entry before it plants and clears it after it has put
//! the byte back. If the holder is killed (`kill -9`), the front end's warden
//! thread is told before the kernel lets go of the target (`lifeline`), and puts
//! back every byte that is still entered, sites of live code first. So each
//! process cleans up after the other. What remains is the time between the kill
//! and the warden's writes, some tens of microseconds for live code: a thread
//! that runs into a breakpoint then stops as usual, but nobody takes its SIGTRAP
//! away, and it dies of that (`holder/news.rs`, window 2).

use crate::lifeline::{Watched, be_first};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The byte a code breakpoint consists of.
pub const INT3: u8 = 0xcc;
/// Breakpoints that may stand at one time; the first `LIVE` entries are kept
/// for sites of live code, which the warden restores first.
pub const CAPACITY: usize = 8192;
pub const LIVE: usize = 1024;

#[repr(C)]
struct Entry {
    address: AtomicU64,
    /// Process whose memory it is, 0 if the entry is free.
    pid: AtomicU32,
    original: AtomicU32,
}

/// How often the warden looks again until the holder is dead: a look at a table
/// without entries takes five microseconds.
const AGAIN: Duration = Duration::from_micros(200);

/// Shared by the two processes; each has its own value of this type on the
/// same memory.
pub struct PlantedTable {
    entries: *const Entry,
    free: Vec<u32>,
    free_live: Vec<u32>,
}

// SAFETY: the memory consists of atomics only and outlives both processes'
// use of it.
unsafe impl Send for PlantedTable {}

impl PlantedTable {
    pub fn new() -> io::Result<PlantedTable> {
        // Populated: the front end looks at it when every microsecond counts.
        // SAFETY: a fresh anonymous mapping; zeroed, which is "free" for
        // every entry.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                CAPACITY * size_of::<Entry>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(PlantedTable {
            entries: memory.cast(),
            free: (LIVE as u32..CAPACITY as u32).rev().collect(),
            free_live: (0..LIVE as u32).rev().collect(),
        })
    }

    fn entry(&self, index: u32) -> &Entry {
        let index = (index as usize).min(CAPACITY - 1);
        // SAFETY: in bounds by the line above; the mapping is never unmapped.
        unsafe { &*self.entries.add(index) }
    }

    /// Enters a breakpoint that is about to be planted; `None` if the table
    /// is full.
    pub fn enter(&mut self, pid: i32, address: u64, original: u8, live: bool) -> Option<u32> {
        let index = if live {
            self.free_live.pop().or_else(|| self.free.pop())?
        } else {
            self.free.pop()?
        };
        let entry = self.entry(index);
        entry.address.store(address, Ordering::Relaxed);
        entry.original.store(u32::from(original), Ordering::Relaxed);
        entry.pid.store(pid as u32, Ordering::Release);
        Some(index)
    }

    /// Clears the entry of a breakpoint that stands no more.
    pub fn clear(&mut self, index: u32) {
        self.entry(index).pid.store(0, Ordering::Release);
        if (index as usize) < LIVE {
            self.free_live.push(index);
        } else {
            self.free.push(index);
        }
    }

    /// The memory of the entry's address space is now reached through another
    /// task.
    pub fn reassign(&self, index: u32, pid: i32) {
        self.entry(index).pid.store(pid as u32, Ordering::Release);
    }

    /// Puts back every byte still entered, and clears the entries of those; says
    /// how many there were.
    fn restore_all(&self) -> usize {
        let mut restored = 0;
        let mut memory: Option<(u32, std::fs::File)> = None;
        for index in 0..CAPACITY as u32 {
            let entry = self.entry(index);
            let pid = entry.pid.load(Ordering::Acquire);
            if pid == 0 {
                continue;
            }
            if memory.as_ref().is_none_or(|(open, _)| *open != pid) {
                memory = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(format!("/proc/{pid}/mem"))
                    .ok()
                    .map(|file| (pid, file));
            }
            let Some((_, file)) = &memory else { continue };
            let address = entry.address.load(Ordering::Relaxed);
            let mut byte = [0];
            // Entered but not planted yet, or already put back: leave it.
            if file.read_at(&mut byte, address).is_ok() && byte[0] == INT3 {
                let original = entry.original.load(Ordering::Relaxed) as u8;
                if file.write_at(&[original], address).is_ok() {
                    entry.pid.store(0, Ordering::Release);
                    restored += 1;
                }
            }
        }
        restored
    }
}

/// Waits for the holder to end and cleans up if it did not do so itself.
pub struct Warden {
    thread: std::thread::JoinHandle<usize>,
}

impl Warden {
    pub fn watch(pid: i32, holder: Watched, table: PlantedTable) -> io::Result<Warden> {
        // SAFETY: pidfd_open takes integers and returns a fresh descriptor.
        let process = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        let thread = std::thread::Builder::new()
            .name("warden".into())
            .spawn(move || {
                be_first();
                holder.await_end();
                let mut restored = table.restore_all();
                // The thread that plants may be in the middle of a write, and
                // ends it before it dies.
                while !is_gone(&process, AGAIN) {
                    restored += table.restore_all();
                }
                restored + table.restore_all()
            })?;
        Ok(Warden { thread })
    }

    /// Waits until the holder has ended; says how many breakpoints it had
    /// left behind.
    pub fn finish(self) -> usize {
        self.thread.join().unwrap_or(0)
    }
}

/// Whether a process has ended, or does so in this time.
fn is_gone(process: &OwnedFd, patience: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: patience.subsec_nanos().into(),
    };
    // SAFETY: one pollfd and one timespec, as said; no signal mask.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const patience, std::ptr::null()) != 0 }
}
