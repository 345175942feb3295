//! Which CPU a thread is on, and how the holder gets out of the way of others.
//!
//! The scheduler often wakes the holder on another CPU than that of the thread
//! that has stopped. There it pushes a thread of the program aside, which then
//! cannot collide with the one that is held. And when that one is resumed after
//! its CPU has been given to another, both take turns there, and the holder's CPU
//! stands idle for some milliseconds: a thread that has just run is not moved
//! away from what it has in its caches. In both cases the holder goes to the CPU
//! of the held thread.

use super::descriptors;
use super::ptrace::Tid;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

/// What `/proc/TID/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// It runs, or waits for its turn on the CPU.
    pub runs: bool,
    pub cpu: usize,
}

impl Place {
    fn parse(stat: &str) -> Option<Place> {
        // The name of a thread may hold anything.
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
        let runs = fields.next()? == "R";
        let cpu = fields.nth(35)?.parse().ok()?;
        Some(Place { runs, cpu })
    }
}

/// `/proc/TID/stat`, kept open once somebody has asked.
#[derive(Default)]
pub struct Placed {
    file: Option<File>,
}

impl Placed {
    pub fn look(&mut self, tid: Tid) -> Option<Place> {
        if self.file.is_none() {
            let file = File::open(format!("/proc/{tid}/stat")).ok()?;
            self.file = Some(descriptors::spare(file).ok()?);
        }
        let mut text = [0; 512];
        let got = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        Place::parse(std::str::from_utf8(&text[..got]).ok()?)
    }
}

/// The CPU that this process is on.
pub fn own_cpu() -> Option<usize> {
    // SAFETY: takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Goes to a CPU, if this process may run there, and is not bound to it.
pub fn go_to(cpu: usize) {
    const SIZE: usize = size_of::<libc::cpu_set_t>();
    if cpu >= SIZE * 8 {
        return;
    }
    // SAFETY: all-zero is an empty set, the calls read and write one set each,
    // and `cpu` has a bit in it.
    unsafe {
        let mut allowed: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        let mut only: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        if libc::sched_getaffinity(0, SIZE, &raw mut allowed) != 0
            || !libc::CPU_ISSET(cpu, &allowed)
        {
            return;
        }
        libc::CPU_SET(cpu, &mut only);
        if libc::sched_setaffinity(0, SIZE, &raw const only) == 0 {
            libc::sched_setaffinity(0, SIZE, &raw const allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_behind_any_name() {
        let rest = "4026 4025 0 -1 4194304 89 0 0 0 12 3 0 0 20 0 3 0 1845 226 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0";
        let runs = Place { runs: true, cpu: 5 };
        assert_eq!(
            Place::parse(&format!("12 (a) R 1 (b) R {rest}")),
            Some(runs)
        );
        let sleeps = Place::parse(&format!("12 (xz) S {rest}"));
        assert_eq!(
            sleeps,
            Some(Place {
                runs: false,
                cpu: 5
            })
        );
        assert_eq!(Place::parse("12 (xz) R 1"), None);
        assert_eq!(Place::parse(""), None);
    }

    #[test]
    fn a_thread_that_runs_is_on_one_of_the_cpus() {
        // SAFETY: takes nothing.
        let tid = unsafe { libc::gettid() };
        let place = Placed::default().look(tid).unwrap();
        assert!(place.runs);
        assert!(Placed::default().look(-1).is_none());
    }

    #[test]
    fn whoever_goes_to_a_cpu_is_there_and_free_to_leave() {
        std::thread::spawn(|| {
            let allowed = || {
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed:"));
                let words = line.unwrap().trim().rsplit(',');
                words
                    .map(|word| u32::from_str_radix(word, 16).unwrap())
                    .collect::<Vec<_>>()
            };
            let before = allowed();
            for cpu in (0..32).filter(|cpu| before[0] & (1 << cpu) != 0) {
                // Others may push it away right after.
                let came = (0..100).any(|_| {
                    go_to(cpu);
                    own_cpu() == Some(cpu)
                });
                assert!(came, "{cpu}");
                assert_eq!(allowed(), before);
            }
            go_to(usize::MAX);
            assert_eq!(allowed(), before);
        })
        .join()
        .unwrap();
    }
}
