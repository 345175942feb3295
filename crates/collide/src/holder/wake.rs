//! What ends the holder's sleep: a thread that has stopped, the time, the front
//! end, a hit of a data breakpoint.
//!
//! The holder sleeps in `waitpid`, and the rest reaches it as signals that
//! interrupt the call. A thread that stops wakes a sleeper in `waitpid` in its
//! own place, on its own CPU, where the holder then works for as long as the
//! thread stands still; the others are not disturbed. Woken through a
//! descriptor the holder would run on the CPU it was on before, beside an idle
//! one, and push another thread of the program aside.
//!
//! A signal that arrives right before the sleep begins does not end it. The
//! alarm therefore rings again soon after, and orders are looked for at every
//! alarm that is not for a sample alone.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The alarm rings again after this long if nobody has set it anew.
const AGAIN: Duration = Duration::from_micros(500);

/// A descriptor had news since this was last looked at.
static NEWS: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    if signal == libc::SIGIO {
        NEWS.store(true, Ordering::Relaxed);
    }
}

/// Makes the signals that end a sleep do so and nothing else.
pub fn prepare() -> io::Result<()> {
    // SAFETY: the handler only stores to an atomic; all structures are local
    // and zero is valid for each of their fields.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        // No SA_RESTART: the sleep is to end.
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        for signal in [libc::SIGALRM, libc::SIGIO] {
            libc::sigaddset(&raw mut mask, signal);
            if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // Threads that stop are told by waitpid alone.
        action.sa_sigaction = libc::SIG_DFL;
        action.sa_flags = libc::SA_NOCLDSTOP;
        if libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) != 0
            || libc::sigprocmask(libc::SIG_UNBLOCK, &raw const mask, std::ptr::null_mut()) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// News on this descriptor end the sleep of this process.
pub fn on(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with integers on an open descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0
            || libc::fcntl(fd, libc::F_SETOWN, libc::getpid()) != 0
            || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether a descriptor has had news since this was last asked.
pub fn news() -> bool {
    NEWS.load(Ordering::Relaxed) && NEWS.swap(false, Ordering::Relaxed)
}

/// Ends a sleep at a time.
#[derive(Default)]
pub struct Alarm {
    set: Option<Instant>,
}

impl Alarm {
    /// Rings at `until`, and again until it is set anew.
    pub fn set(&mut self, until: Instant, now: Instant) {
        if self.set == Some(until) {
            return;
        }
        self.set = Some(until);
        let time = |duration: Duration| libc::timeval {
            tv_sec: duration.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(duration.subsec_micros()),
        };
        // Zero would be no alarm at all.
        let nap = until
            .saturating_duration_since(now)
            .max(Duration::from_micros(1));
        let timer = libc::itimerval {
            it_interval: time(AGAIN),
            it_value: time(nap),
        };
        // SAFETY: reads one itimerval.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }
}
