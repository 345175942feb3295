//! Progress of a long phase, on one line of standard error.
//!
//! Silent unless standard error is a terminal, so logs and pipes stay clean,
//! and silent for phases that end quickly. The line is wiped when the phase is
//! over or given up.
//!
//! The work of a phase is done by forked processes that hold no threads, and
//! whoever waits for them sleeps in a read. So the line is drawn by a small
//! process of its own, which looks at a counter in memory it shares with all
//! of them; it dies with the process that started it.

use crate::options::terminal_columns;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A phase shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(700);
/// Time between two lines.
const PACE: Duration = Duration::from_millis(150);

/// What a phase's counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Instructions of the program; shown as a share of the total, or in
    /// millions.
    Instructions,
    /// Anything that comes one by one, by its name.
    Steps(&'static str),
}

/// One phase, `playing both orders of 12 races`; ends when it is dropped.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    /// The process that draws, if somebody is there to look.
    artist: Option<libc::pid_t>,
    counter: Option<&'static AtomicU64>,
}

impl Progress {
    /// Whether anybody would see progress.
    pub fn wanted() -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        std::io::stderr().is_terminal() && !dumb
    }

    /// Begins a phase of `total` units, if it is known how many. The calling
    /// process must have one thread only.
    pub fn new(label: &str, unit: Unit, total: Option<u64>) -> Self {
        let started = Instant::now();
        let counter = Self::wanted().then(shared_counter).flatten();
        let artist = counter.and_then(|counter| {
            counter.store(0, Ordering::Relaxed);
            let line = Line {
                label: label.to_string(),
                unit,
                total,
            };
            start_artist(line, counter, started)
        });
        Progress {
            started,
            artist,
            counter,
        }
    }

    /// The counter of this phase, shared with every process forked from now
    /// on; none if nobody looks.
    pub fn counter(&self) -> Option<&'static AtomicU64> {
        self.counter
    }

    /// `done` units are behind us. Cheap: call it as often as you like.
    pub fn at(&self, done: u64) {
        if let Some(counter) = self.counter {
            counter.store(done, Ordering::Relaxed);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(artist) = self.artist else {
            return;
        };
        // SAFETY: ends and reaps a process that this phase started; its number
        // cannot belong to another one before it is waited for.
        unsafe {
            libc::kill(artist, libc::SIGKILL);
            libc::waitpid(artist, std::ptr::null_mut(), 0);
        }
        if self.started.elapsed() >= PATIENCE {
            // A terminal that cannot be written to must not stop the work.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// One word of memory that all processes forked later share with this one.
fn shared_counter() -> Option<&'static AtomicU64> {
    static COUNTER: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *COUNTER.get_or_init(|| {
        // SAFETY: a fresh anonymous mapping, touching nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page is zeroed, aligned, large enough and never
        // unmapped.
        Some(unsafe { &*page.cast::<AtomicU64>() })
    })
}

/// Starts the process that draws `line`.
fn start_artist(line: Line, counter: &AtomicU64, started: Instant) -> Option<libc::pid_t> {
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    // SAFETY: this process has one thread; the child only draws, and leaves by
    // a signal or `_exit`.
    match unsafe { libc::fork() } {
        -1 => None,
        0 => {
            // SAFETY: a plain request about this process.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: getppid has no preconditions.
            while unsafe { libc::getppid() } == parent {
                let so_far = started.elapsed();
                if so_far >= PATIENCE {
                    let mut text = line.at(counter.load(Ordering::Relaxed), so_far);
                    let columns = terminal_columns(libc::STDERR_FILENO).unwrap_or(80);
                    text = text.chars().take(columns.saturating_sub(1)).collect();
                    if write!(std::io::stderr(), "\r\x1b[K{text}").is_err() {
                        break;
                    }
                }
                std::thread::sleep(PACE);
            }
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        child => Some(child),
    }
}

/// What the line says.
struct Line {
    label: String,
    unit: Unit,
    total: Option<u64>,
}

impl Line {
    fn at(&self, done: u64, so_far: Duration) -> String {
        let Line { label, unit, total } = self;
        let seconds = so_far.as_secs();
        let total = total.filter(|total| *total > 0);
        let done = total.map_or(done, |total| done.min(total));
        let left = match (total, done) {
            (None, _) | (_, 0) => String::new(),
            (Some(total), _) => {
                let left = so_far.as_secs_f64() * (total - done) as f64 / done as f64;
                format!(", about {left:.0} s left")
            }
        };
        match (unit, total) {
            (Unit::Instructions, Some(total)) => {
                let percent = 100.0 * done as f64 / total as f64;
                format!("{label}: {percent:.0} %, {seconds} s{left}")
            }
            (Unit::Instructions, None) => {
                let millions = done / 1_000_000;
                format!("{label}: {millions} million instructions, {seconds} s")
            }
            (Unit::Steps(name), Some(total)) => {
                format!("{label}: {done} of {total} {name}, {seconds} s{left}")
            }
            (Unit::Steps(name), None) => format!("{label}: {done} {name}, {seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(unit: Unit, total: Option<u64>) -> Line {
        Line {
            label: "classifying".into(),
            unit,
            total,
        }
    }

    #[test]
    fn lines_say_how_far_and_how_long() {
        let known = line(Unit::Steps("races"), Some(340));
        assert_eq!(
            known.at(34, Duration::from_secs(10)),
            "classifying: 34 of 340 races, 10 s, about 90 s left"
        );
        assert_eq!(
            known.at(0, Duration::from_secs(1)),
            "classifying: 0 of 340 races, 1 s"
        );
        let share = line(Unit::Instructions, Some(2_000_000_000));
        assert_eq!(
            share.at(500_000_000, Duration::from_secs(2)),
            "classifying: 25 %, 2 s, about 6 s left"
        );
        assert_eq!(
            share.at(3_000_000_000, Duration::from_secs(8)),
            "classifying: 100 %, 8 s, about 0 s left"
        );
        let open = line(Unit::Instructions, None);
        assert_eq!(
            open.at(7_300_000, Duration::from_secs(2)),
            "classifying: 7 million instructions, 2 s"
        );
    }
}
