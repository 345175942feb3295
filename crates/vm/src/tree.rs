//! The process tree of a recording: numbers for its processes, and the order
//! in which they wrote to the standard streams.
//!
//! A guest fork is a fork of the vm. All processes of the tree share one page
//! of memory. While recording it hands out process numbers and the numbers of
//! writes to the standard streams; while replaying it says whose write is next.
//!
//! A replay never hangs on that order: a process that was killed while
//! recording may have taken a number that no recording tells of, so when every
//! living process waits, the smallest number goes; and when a process fails,
//! it says so here and all others stop.

use crate::lock_waits::{LockWaits, Waiting};
use crate::shared_futexes::SharedFutexes;
use crate::{Error, layout};
use folder::Place;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes a replay can have at one time.
const SLOTS: usize = 4096;

#[repr(C)]
struct Shared {
    /// Number of the next process.
    next_process: AtomicU32,
    /// Replay: processes that still run.
    living: AtomicU32,
    /// Replay: one of them has failed.
    failed: AtomicU32,
    /// Recording: number of the next write. Replay: whose turn it is.
    turn: AtomicU64,
    /// Replay: the write each process waits for, plus one.
    wanted: [AtomicU64; SLOTS],
    /// Recording: turns taken by processes that share memory, and how many
    /// wait for one.
    turns: AtomicU64,
    waiting: AtomicU32,
    /// Recording: the latest virtual time at which one of them made a call.
    latest: AtomicU64,
    /// Recording: who waits for futexes in shared memory.
    futexes: SharedFutexes,
    /// Recording: who waits for a lock on a file.
    locks: LockWaits,
}

/// What a replay does at a guest fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Children {
    /// Replays the child too, in a process of its own.
    All,
    /// Only the processes on this path are replayed, one after the other, up
    /// to the last of them.
    Path(Vec<u32>),
    /// The child is left out.
    None,
}

pub struct Tree {
    shared: &'static Shared,
    /// The number of this process.
    pub number: u32,
    pub directory: PathBuf,
    pub children: Children,
    /// This host process was forked by the vm for a guest process.
    pub forked: bool,
    /// Other processes may write to the standard streams.
    pub ordered: bool,
    /// A file whose first byte's lock is the turn and whose second's is the
    /// right to write to a standard stream: the kernel takes locks back from a
    /// process that is killed.
    turn: OwnedFd,
    /// The recording's folder, once its path may be out of reach.
    opened: Option<OwnedFd>,
}

/// The right to write to a standard stream, given back when dropped.
pub struct OutputLock {
    file: i32,
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // Unlocking what is locked cannot fail.
        let _ = lock(self.file, OUTPUT_BYTE, libc::F_UNLCK);
    }
}

const TURN_BYTE: i64 = 0;
const OUTPUT_BYTE: i64 = 1;
/// Every process that records locks the byte this far behind its id.
const PROCESS_BYTES: i64 = 1 << 16;

/// Locks or unlocks one byte of a file, waiting as long as it takes.
fn lock(file: i32, byte: i64, kind: libc::c_int) -> std::io::Result<()> {
    loop {
        // SAFETY: a zeroed flock is valid; the descriptor is the tree's, which
        // lives as long as the vm.
        let result = unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = kind as libc::c_short;
            lock.l_start = byte;
            lock.l_len = 1;
            libc::fcntl(file, libc::F_SETLKW, &lock)
        };
        if result == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Tree {
    pub fn new(directory: PathBuf, children: Children) -> Result<Self, Error> {
        let length = layout::page_up(size_of::<Shared>() as u64) as usize;
        // SAFETY: a fresh shared mapping of zeros, which is a valid `Shared`,
        // never unmapped.
        let shared = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if memory == libc::MAP_FAILED {
                return Err(Error::Machine(format!(
                    "cannot map memory for the process tree: {}",
                    std::io::Error::last_os_error()
                )));
            }
            &*memory.cast::<Shared>()
        };
        // SAFETY: a literal name.
        let turn = unsafe { libc::memfd_create(c"turn".as_ptr(), libc::MFD_CLOEXEC) };
        if turn < 0 {
            return Err(Error::Machine(format!(
                "cannot make a lock for the process tree: {}",
                std::io::Error::last_os_error()
            )));
        }
        // SAFETY: just made, owned by nobody else.
        let turn = unsafe { OwnedFd::from_raw_fd(turn) };
        shared.next_process.store(1, Ordering::SeqCst);
        shared.living.store(1, Ordering::SeqCst);
        Ok(Tree {
            shared,
            number: 0,
            directory,
            children,
            forked: false,
            ordered: false,
            turn,
            opened: None,
        })
    }

    /// The guest becomes another user, who is to be able to write the
    /// recording, wherever it lies. Returns the folder's new name.
    pub fn hand_to(&mut self, user: u32) -> Option<PathBuf> {
        let folder = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(&self.directory)
            .ok()?;
        let name = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let files = self.directory.join("files");
        // It may be there already; if it cannot be made, storing says so.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&files);
        for path in [&self.directory, &files, &self.folder().path()] {
            // What cannot be given away shows when it is written.
            let _ = std::os::unix::fs::chown(path, Some(user), None);
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    let _ = std::os::unix::fs::chown(entry.path(), Some(user), None);
                }
            }
        }
        self.directory.clone_from(&name);
        self.opened = Some(folder.into());
        Some(name)
    }

    /// This process records, until it ends.
    pub fn announce(&self) {
        let byte = PROCESS_BYTES + i64::from(std::process::id());
        // Nobody else locks this byte. Without it the process is killed harder.
        let _ = lock(self.turn.as_raw_fd(), byte, libc::F_WRLCK);
        crate::interruption::announce();
    }

    /// Process `pid`, another one, is alive and records.
    pub fn has_process(&self, pid: i32) -> bool {
        // SAFETY: a zeroed flock is valid, and the call only fills it in.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as libc::c_short;
            lock.l_start = PROCESS_BYTES + i64::from(pid);
            lock.l_len = 1;
            libc::fcntl(self.turn.as_raw_fd(), libc::F_GETLK, &mut lock) == 0
                && lock.l_type != libc::F_UNLCK as libc::c_short
                && lock.l_pid == pid
        }
    }

    /// Waits for the turn among processes that share memory; returns its
    /// number.
    pub fn take_turn(&self) -> Result<u64, Error> {
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = lock(self.turn.as_raw_fd(), TURN_BYTE, libc::F_WRLCK);
        self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        taken.map_err(|error| {
            Error::Machine(format!("cannot lock memory that processes share: {error}"))
        })?;
        Ok(self.shared.turns.fetch_add(1, Ordering::SeqCst) + 1)
    }

    pub fn turn_is_wanted(&self) -> bool {
        self.shared.waiting.load(Ordering::SeqCst) != 0
    }

    pub fn give_turn(&self) {
        let turns = self.shared.turns.load(Ordering::SeqCst);
        // Unlocking what is locked cannot fail.
        let _ = lock(self.turn.as_raw_fd(), TURN_BYTE, libc::F_UNLCK);
        // Whoever waits gets it, not whoever is awake.
        let mut rounds = 0;
        while rounds < 70
            && self.turn_is_wanted()
            && self.shared.turns.load(Ordering::SeqCst) == turns
        {
            pause(rounds);
            rounds += 1;
        }
    }

    /// A thread of this process waits for a futex in shared memory; its place.
    pub fn futex_wait(&self, futex: u64, bitset: u32) -> u32 {
        self.shared.futexes.wait(futex, std::process::id(), bitset)
    }

    pub fn futex_is_woken(&self, place: u32) -> bool {
        self.shared.futexes.is_woken(place)
    }

    pub fn futex_leave(&self, place: u32) {
        self.shared.futexes.leave(place);
    }

    /// No thread of this process waits any more.
    pub fn forget_futexes(&self) {
        self.shared.futexes.forget(std::process::id());
    }

    pub fn futex_wake(&self, futex: u64, count: u32, bitset: u32) -> u32 {
        let alive = |process| self.is_alive(process);
        self.shared.futexes.wake(futex, count, bitset, alive)
    }

    pub fn futex_move(&self, futex: u64, other: u64, count: u32) -> u32 {
        let alive = |process| self.is_alive(process);
        self.shared.futexes.move_to(futex, other, count, alive)
    }

    fn is_alive(&self, process: u32) -> bool {
        process == std::process::id() || self.has_process(process as i32)
    }

    /// This process is about to try to lock a part of a file.
    pub fn try_lock(&self, again: bool) -> Waiting<'_> {
        self.shared.locks.try_lock(std::process::id(), again)
    }

    pub fn folder(&self) -> Place {
        Place::of(&self.directory).join(self.number.to_string())
    }

    pub fn publish_time(&self, now: u64) {
        self.shared.latest.fetch_max(now, Ordering::Relaxed);
    }

    pub fn latest_time(&self) -> u64 {
        self.shared.latest.load(Ordering::Relaxed)
    }

    pub fn next_number(&self) -> u32 {
        self.shared.next_process.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until no other process writes to a standard stream. None if that
    /// cannot be: the order may then be told wrongly.
    pub fn lock_output(&self) -> Option<OutputLock> {
        let file = self.turn.as_raw_fd();
        lock(file, OUTPUT_BYTE, libc::F_WRLCK).ok()?;
        Some(OutputLock { file })
    }

    /// Number of the next write to a standard stream, taken by whoever has just
    /// made it and still has the lock.
    pub fn next_write(&self) -> u64 {
        self.shared.turn.fetch_add(1, Ordering::SeqCst)
    }

    /// Output of this process is shown by a replay.
    pub fn shows_output(&self) -> bool {
        match &self.children {
            Children::Path(path) => path.last() == Some(&self.number),
            _ => true,
        }
    }

    /// A replay is about to fork.
    pub fn expect_child(&self) {
        self.shared.living.fetch_add(1, Ordering::SeqCst);
    }

    /// The process has replayed to its end.
    pub fn finished(&self) {
        self.shared.living.fetch_sub(1, Ordering::SeqCst);
    }

    pub fn fail(&self) {
        self.shared.failed.store(1, Ordering::SeqCst);
    }

    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::SeqCst) != 0
    }

    fn wanted(&self) -> &AtomicU64 {
        &self.shared.wanted[self.number as usize % SLOTS]
    }

    /// Waits until the write with this number may be shown. False: another
    /// process has failed.
    pub fn await_turn(&self, write: u64) -> bool {
        if self.children != Children::All {
            return true;
        }
        self.wanted().store(write + 1, Ordering::SeqCst);
        let mut rounds = 0u32;
        while self.shared.turn.load(Ordering::SeqCst) < write && !self.is_first_of_all(write) {
            if self.has_failed() {
                return false;
            }
            rounds += 1;
            if rounds.is_multiple_of(512) && child_crashed() {
                self.fail();
            }
            pause(rounds);
        }
        true
    }

    pub fn had_turn(&self, write: u64) {
        if self.children == Children::All {
            self.shared.turn.fetch_max(write + 1, Ordering::SeqCst);
            self.wanted().store(0, Ordering::SeqCst);
        }
    }

    /// Every living process waits, and none for an earlier write.
    fn is_first_of_all(&self, write: u64) -> bool {
        let living = self.shared.living.load(Ordering::SeqCst);
        let mut waiting = 0;
        for wanted in &self.shared.wanted {
            match wanted.load(Ordering::SeqCst) {
                0 => {}
                earlier if earlier < write + 1 => return false,
                _ => waiting += 1,
            }
        }
        waiting >= living
    }

    /// Waits for the replays of this process's children. False if one failed.
    pub fn join(&self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: plain out-parameter.
            let pid = unsafe { libc::waitpid(-1, &mut status, 0) };
            if pid < 0 {
                if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                    continue;
                }
                return !self.has_failed();
            }
            if status != 0 {
                self.fail();
            }
        }
    }
}

fn pause(rounds: u32) {
    if rounds < 64 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// A child of this process has ended badly without having said so.
fn child_crashed() -> bool {
    // SAFETY: plain out-parameter; WNOWAIT leaves the child waitable.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut info, flags) == 0
            && info.si_pid() != 0
            && (info.si_code != libc::CLD_EXITED || info.si_status() != 0)
    }
}
