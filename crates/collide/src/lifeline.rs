//! How the front end learns that the holder dies before the kernel lets go of
//! the target, and has the time to put the breakpoints back.
//!
//! A process that is killed loses, in this order (`do_exit` of the kernel): the
//! robust mutexes that it holds, its memory, its descriptors with the data
//! breakpoints, and only then its tracees, which run on from there. Its parent
//! and whoever polls its pidfd are told after that, when it is too late.
//!
//! So a thread of the holder, the canary, holds a robust mutex for all its life,
//! and the front end's warden sleeps in locking it: it is woken first. The canary
//! does nothing else and has a real-time priority if that is allowed. On a busy
//! machine the thread that does the holder's work may wait some milliseconds for
//! a CPU to die on. And the holder has a `Brake`: a descriptor that the kernel
//! cannot close before it has waited for all CPUs, some milliseconds. Until then
//! every thread that runs into a breakpoint stops, and no thread that is stopped
//! runs on. The last thread of a process to die closes what all have: so the
//! canary has descriptors of its own, that is none, and those of the thread that
//! traces the target are closed by that one.
//!
//! The order is what every Linux with robust mutexes (2.6.17) does, and promised
//! by nobody; without it, or without the brake, the warden comes too late for
//! some: a program may die of SIGTRAP that would have lived.

use std::io::{self, Read, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn check(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A mutex in memory that front end and holder share, and the pipe by which the
/// holder says that it has it.
pub struct Lifeline {
    mutex: *mut libc::pthread_mutex_t,
    told: io::PipeReader,
    tell: io::PipeWriter,
}

struct Canary {
    mutex: *mut libc::pthread_mutex_t,
    tell: io::PipeWriter,
}

// SAFETY: as for `Watched`.
unsafe impl Send for Canary {}

impl Canary {
    fn live(mut self) {
        be_first();
        // SAFETY: initialised by `Lifeline::new`; the kernel gives it up.
        if unsafe { libc::pthread_mutex_lock(self.mutex) } != 0
            || self.tell.write_all(&[1]).is_err()
        {
            return;
        }
        drop(self.tell);
        // SAFETY: leaves this thread without descriptors and the others with
        // theirs; it uses none from here on. Refused before Linux 5.9.
        unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, CLOSE_RANGE_UNSHARE) };
        loop {
            // SAFETY: takes nothing. All signals are blocked but SIGKILL.
            unsafe { libc::pause() };
        }
    }
}

const CLOSE_RANGE_UNSHARE: u32 = 2;

fn block_signals() -> io::Result<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both are written in whole by these calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        check(libc::pthread_sigmask(
            libc::SIG_SETMASK,
            all.as_ptr(),
            before.as_mut_ptr(),
        ))?;
        Ok(before.assume_init())
    }
}

/// Asks for a real-time priority for this thread: it sleeps until the one moment
/// in which microseconds count. A refusal makes it later, no more.
pub fn be_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads one sched_param; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
}

/// The front end's end of it.
pub struct Watched {
    mutex: *mut libc::pthread_mutex_t,
    told: io::PipeReader,
}

// SAFETY: a mutex in memory that is never unmapped; that is what it is for.
unsafe impl Send for Watched {}

impl Lifeline {
    pub fn new() -> io::Result<Lifeline> {
        let (told, tell) = io::pipe()?;
        // SAFETY: a fresh anonymous mapping; page-aligned, and larger than a
        // mutex, which is initialised in place and stays there.
        let mutex = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                size_of::<libc::pthread_mutex_t>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let mutex = memory.cast::<libc::pthread_mutex_t>();
            let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            let kind = kind.as_mut_ptr();
            check(libc::pthread_mutexattr_init(kind))?;
            check(libc::pthread_mutexattr_setpshared(
                kind,
                libc::PTHREAD_PROCESS_SHARED,
            ))?;
            check(libc::pthread_mutexattr_setrobust(
                kind,
                libc::PTHREAD_MUTEX_ROBUST,
            ))?;
            check(libc::pthread_mutex_init(mutex, kind))?;
            mutex
        };
        Ok(Lifeline { mutex, told, tell })
    }

    /// For the holder: a thread of it has the mutex from now on until the end
    /// of the process.
    pub fn hold(self) -> io::Result<()> {
        let Lifeline { mutex, tell, .. } = self;
        let canary = Canary { mutex, tell };
        // It inherits what is blocked: signals are for the thread that works.
        let before = block_signals()?;
        let begun = std::thread::Builder::new()
            .name("canary".into())
            .spawn(move || canary.live());
        // SAFETY: reads one sigset_t.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
        };
        begun.map(drop)
    }

    /// For the front end, after the holder has begun.
    pub fn watch(self) -> Watched {
        Watched {
            mutex: self.mutex,
            told: self.told,
        }
    }
}

impl Watched {
    /// Returns when the holder dies.
    pub fn await_end(mut self) {
        // The end of the pipe: it died before it had the mutex.
        if self.told.read_exact(&mut [0]).is_ok() {
            // SAFETY: initialised by `Lifeline::new`. Held by the holder, so
            // this says EOWNERDEAD when it has died.
            unsafe { libc::pthread_mutex_lock(self.mutex) };
        }
    }
}

/// While a process has this, its death takes some milliseconds more: the kernel
/// ends the watch of a file after everybody who may look at it has looked away
/// (a grace period of fsnotify's SRCU), and closing the descriptor waits for
/// that. Measured in 400 kills on a busy machine: 20 ms in the middle, 0.5 to
/// 302 ms; 0.1 ms without.
pub struct Brake {
    /// Never closed but by the end of the process.
    notify: ManuallyDrop<OwnedFd>,
    watch: i32,
    /// What is watched: nobody else knows it, so nothing is ever told.
    _file: OwnedFd,
}

impl Brake {
    pub fn set() -> io::Result<Brake> {
        let own = |fd: libc::c_int| match fd {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the calls below return a descriptor that nobody else owns.
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        };
        // SAFETY: a constant string and flags.
        let file = own(unsafe { libc::memfd_create(c"brake".as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: takes flags only.
        let notify = own(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) })?;
        let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
        // SAFETY: the path ends with a NUL and outlives the call.
        let watch = unsafe {
            libc::inotify_add_watch(
                notify.as_raw_fd(),
                path.as_ptr().cast(),
                libc::IN_DELETE_SELF,
            )
        };
        if watch < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Brake {
            notify: ManuallyDrop::new(notify),
            watch,
            _file: file,
        })
    }
}

impl Drop for Brake {
    /// Ends the watch and lets the kernel wait in its own time: at the end of
    /// the process the descriptor is closed at once.
    fn drop(&mut self) {
        // SAFETY: integers. A failure costs some milliseconds.
        unsafe { libc::inotify_rm_watch(self.notify.as_raw_fd(), self.watch) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn pidfd(pid: i32) -> OwnedFd {
        // SAFETY: takes integers and returns a fresh descriptor.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd as i32)
        }
    }

    fn is_gone(process: &OwnedFd, patience: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, as said.
        unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) == 1 }
    }

    /// A process that is killed is known to die before the kernel has let go
    /// of what it holds.
    #[test]
    fn death_is_known_before_it_is_complete() {
        let mut early = 0;
        for _ in 0..8 {
            let lifeline = Lifeline::new().unwrap();
            // SAFETY: the child makes system calls, locks, and waits to be
            // killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let _brake = Brake::set();
                let _ = lifeline.hold();
                loop {
                    // SAFETY: takes nothing.
                    unsafe { libc::pause() };
                }
            }
            let process = pidfd(child);
            let watched = lifeline.watch();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(child, libc::SIGKILL) };
            });
            watched.await_end();
            early += u32::from(!is_gone(&process, Duration::ZERO));
            assert!(is_gone(&process, Duration::from_secs(20)));
            killer.join().unwrap();
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        // The thread that looks may itself have to wait for a CPU.
        assert!(early >= 4, "{early} of 8");
    }

    #[test]
    fn a_holder_that_never_was_is_dead() {
        let begun = Instant::now();
        Lifeline::new().unwrap().watch().await_end();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
