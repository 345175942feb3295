//! Which threads are on a CPU, by the kernel's own record of their turns.
//!
//! To set or clear a data breakpoint of a thread the kernel interrupts the CPU
//! that the thread was on last, whether it is there now or not: with 64 threads
//! on two CPUs that is an interrupt of the other CPU for half of them, twice a
//! sample. But only who is on a CPU can collide with a thread that is held for
//! some tens of microseconds. So each thread of a program with many gets an
//! event that counts nothing and records when its turns begin and end
//! (`PERF_RECORD_SWITCH`), which needs no rights; its newest record is one load
//! away and says where the thread is now.
//!
//! A record costs the program some tenths of a microsecond, and so does every
//! event that a thread has, armed or not, at the beginning and end of each turn.
//! So it is looked at now and then how often the threads take turns
//! (`Switching`), and a program in which they do all the time is treated with
//! more care.

use super::perf::{
    Attributes, FLAG_CONTEXT_SWITCH, FLAG_EXCLUDE_HV, FLAG_EXCLUDE_KERNEL, Ring, open,
};
use super::ptrace::Tid;
use super::task;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const RECORD_SWITCH: u32 = 14;
const SWITCH_OUT: u16 = 1 << 13;

/// The turns of the threads that are followed.
#[derive(Default)]
pub struct Running {
    /// `None` for those that cannot be followed.
    threads: HashMap<Tid, Option<Turns>>,
}

struct Turns {
    ring: Ring,
    /// It was seen blocked when there was no record yet.
    blocked: bool,
    /// Keeps the event alive.
    _event: OwnedFd,
}

impl Turns {
    fn follow(tid: Tid) -> io::Result<Turns> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_DUMMY,
            size: size_of::<Attributes>() as u32,
            flags: FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV | FLAG_CONTEXT_SWITCH,
            ..Attributes::default()
        };
        let event = open(&attributes, tid, -1)?;
        Ok(Turns {
            ring: Ring::map_newest(event.as_raw_fd(), 1)?,
            blocked: false,
            _event: event,
        })
    }
}

impl Running {
    pub fn follow(&mut self, tid: Tid) {
        self.threads
            .entry(tid)
            .or_insert_with(|| Turns::follow(tid).ok());
    }

    pub fn follows(&self, tid: Tid) -> bool {
        self.threads.contains_key(&tid)
    }

    pub fn forget(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }

    /// How many are followed, or cannot be.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Whether the thread is on a CPU; `None` if that is not known. `blocked`
    /// says whether it sleeps in the kernel, and is asked only of a thread that
    /// has had no turn since it is followed.
    pub fn is_on(&mut self, tid: Tid, blocked: impl FnOnce() -> bool) -> Option<bool> {
        let turns = self.threads.get_mut(&tid)?.as_mut()?;
        match turns.ring.newest() {
            Some((RECORD_SWITCH, flags)) => Some(flags & SWITCH_OUT == 0),
            Some(_) => None,
            None => {
                turns.blocked = turns.blocked || blocked();
                turns.blocked.then_some(false)
            }
        }
    }
}

/// How often the threads of the program take turns.
#[derive(Default)]
pub struct Switching {
    threads: HashMap<Tid, Seen>,
    looked: Option<Instant>,
}

struct Seen {
    at: Instant,
    switches: u64,
    per_second: f64,
}

/// Threads looked at: some hundred microseconds.
const LOOKED_AT: usize = 16;
/// And how often.
const LOOKS_APART: Duration = Duration::from_millis(400);

impl Switching {
    /// Looks at some of the threads, the same as last time as far as they are
    /// still there, unless the last look is not long ago.
    pub fn look(&mut self, threads: impl Iterator<Item = Tid>, now: Instant) {
        let soon = |looked| now.duration_since(looked) < LOOKS_APART;
        if self.looked.is_some_and(soon) {
            return;
        }
        self.looked = Some(now);
        let mut threads: Vec<Tid> = threads.collect();
        threads.sort_unstable_by_key(|tid| !self.threads.contains_key(tid));
        for tid in threads.into_iter().take(LOOKED_AT) {
            let Some(switches) = task::switches(tid) else {
                continue;
            };
            let seen = self.threads.entry(tid).or_insert(Seen {
                at: now,
                switches,
                per_second: 0.0,
            });
            let passed = now.duration_since(seen.at).as_secs_f64();
            if passed > 0.0 {
                seen.per_second = switches.saturating_sub(seen.switches) as f64 / passed;
                (seen.at, seen.switches) = (now, switches);
            }
        }
    }

    pub fn forget(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }

    /// Turns per second of a program of so many threads, by those looked at.
    pub fn per_second(&self, threads: usize) -> f64 {
        let known: f64 = self.threads.values().map(|seen| seen.per_second).sum();
        known * threads as f64 / self.threads.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// Sleeps, then spins, and says so.
    #[test]
    fn turns_are_told() {
        let (tid, spin, end) = (
            AtomicI32::new(0),
            AtomicBool::new(false),
            AtomicBool::new(false),
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes no argument.
                tid.store(unsafe { libc::gettid() }, Ordering::Relaxed);
                while !spin.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let patience = Instant::now() + Duration::from_secs(20);
            while tid.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let tid = tid.load(Ordering::Relaxed);
            let mut running = Running::default();
            running.follow(tid);
            if running.threads[&tid].is_none() {
                // No perf events here at all: nothing is known, nothing is said.
                assert_eq!(running.is_on(tid, || true), None);
                end.store(true, Ordering::Relaxed);
                spin.store(true, Ordering::Relaxed);
                return;
            }
            // It sleeps most of the time, and spins later: both are seen.
            let mut see = |wanted: bool| {
                let mut seen = false;
                while !seen && Instant::now() < patience {
                    std::thread::sleep(Duration::from_micros(100));
                    seen = running.is_on(tid, || false) == Some(wanted);
                }
                seen
            };
            let slept = see(false);
            spin.store(true, Ordering::Relaxed);
            let span = see(true);
            end.store(true, Ordering::Relaxed);
            assert!(slept && span, "slept {slept}, span {span}");
        });
    }

    #[test]
    fn turns_are_counted() {
        // SAFETY: takes no argument.
        let tid = unsafe { libc::gettid() };
        let mut switching = Switching::default();
        let begun = Instant::now();
        switching.look([tid].into_iter(), begun);
        assert_eq!(switching.per_second(1), 0.0);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        switching.look([tid].into_iter(), begun + Duration::from_secs(1));
        // Each sleep ended a turn; of a thread that nobody has looked at the
        // same is believed.
        assert!(switching.per_second(1) >= 20.0);
        assert!(switching.per_second(2) >= 40.0);
    }
}
