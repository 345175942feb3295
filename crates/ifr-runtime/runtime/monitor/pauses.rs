//! Waiting with a monitor active, so that short regions of different threads meet
//! (beyond paper 004, whose threads meet by chance; the delays are those of paper
//! 002). A pause can only make a race be seen, never a report false.
//!
//! Two kinds. A thread waits where it is for the first time, some times: threads
//! that have just begun, and threads that live for microseconds, would seldom meet
//! otherwise. Later it waits where another thread has used the same bytes and one of
//! them writes, a few percent of its time. All such sites have their turn: those
//! where the thread has waited least come first, so that what it does seldom is
//! waited for as well. What a thread does not use of its time it may use later, up
//! to a limit: one that works for a moment every second waits longer then, and at
//! several sites.
//!
//! While a thread waits, what others do with the same bytes is not left to chance
//! where that costs nothing elsewhere (sites that count inline stay as they are), and
//! their monitors do not replace its own: an own monitor that is not started makes
//! no report false.

use crate::threads::{SITES, Thread};
use crate::{options, sys};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const PAUSE_MICROS: u64 = 150;
/// The first ones of a thread are longer: the next thread takes that long to begin,
/// and longer still where processors are busy: so the first of the process are,
/// where something is written.
const FIRST_MICROS: u64 = 500;
const FIRST_PAUSES: u32 = 2;
const VERY_FIRST_MICROS: u64 = 1500;
const VERY_FIRST_PAUSES: u32 = 16;
/// First pauses of one thread, of one that has created others (what it uses is
/// mostly made for them, and they should begin) unless others use the same, and of
/// all.
const PAUSES: u32 = 16;
const CREATORS_PAUSES: u32 = 2;
const ALL_PAUSES: u32 = 64;
static PAUSED: AtomicU32 = AtomicU32::new(0);
/// A thread that has started so many monitors has been at most of its sites.
const SETTLED: u64 = 1 << 12;

/// Later pauses: one in so many cycles, some 3 milliseconds, for a thread, and all
/// threads together four times as often.
const OWN_CYCLES: u64 = 1 << 23;
const ALL_CYCLES: u64 = 1 << 21;
/// So many may be made up for, a quarter of what is left at once but no more than
/// the length of so many.
const SAVED: u64 = 64;
const AT_ONCE: u64 = 4;
const LONGEST: u64 = 10;
/// Who has saved so many does not wait for the others, as long as such threads
/// together wait one in so many cycles: where all work under one lock they mostly
/// rest, and each would stop all others with it.
const PATIENT: u64 = 8;
const RESTED_CYCLES: u64 = 1 << 22;
static ALL: AtomicU64 = AtomicU64::new(0);
static RESTED: AtomicU64 = AtomicU64::new(0);
/// So many sites where it has waited more often than elsewhere are passed by before
/// one of them is taken.
const PATIENCE: u32 = 32;

unsafe extern "C" {
    /// How many threads wait at granules with this number, defined in `entry`.
    #[link_name = "__deadheat_ifr_watched"]
    static WATCHED: [AtomicU8; 256];
}

fn watched(address: usize) -> Option<&'static AtomicU8> {
    // SAFETY: the table is there from the start, and its bytes are atomic.
    unsafe { &WATCHED }.get(address >> 3 & 0xff)
}

/// Whether a thread may be waiting with a monitor on `address`.
#[inline]
pub fn is_watched(address: usize) -> bool {
    watched(address).is_some_and(|waiting| waiting.load(Ordering::Relaxed) != 0)
}

/// Waits with a monitor on `address` active. What others do with it meanwhile is
/// not left to chance (`entry`) and does not replace the monitor: most of theirs
/// would not be asked for in so short a time, and the first would be the last.
fn wait(address: usize, micros: u64) {
    if let Some(waiting) = watched(address) {
        waiting.fetch_add(1, Ordering::Relaxed);
        sys::sleep_micros(micros);
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the child of a fork nobody waits yet.
pub fn forget() {
    // SAFETY: as above.
    for waiting in unsafe { &WATCHED } {
        waiting.store(0, Ordering::Relaxed);
    }
}

/// Waits, if the thread has not used the site before and may still wait, or if it
/// is `shared` and it is time again.
#[inline]
pub fn pause(thread: &Thread, address: usize, place: usize, write: bool, shared: bool) {
    // What lies on its own stack is seldom another's.
    let here = (&raw const address) as usize;
    let own = (here..thread.stack_top).contains(&address);
    if own {
        return;
    }
    if thread.pauses.load(Ordering::Relaxed) < PAUSES
        && pause_once(thread, address, place % SITES, write, shared)
    {
        return;
    }
    // A thread with many monitors need not look at the clock at each.
    let started = thread.started.load(Ordering::Relaxed);
    if shared && (started < SETTLED || started.is_multiple_of(4)) {
        pause_again(thread, address, place % SITES);
    }
}

/// Whether somebody else decides when monitors run: no waiting then.
fn sampling() -> bool {
    options::SAMPLE.load(Ordering::Relaxed) < 100 || options::BUDGET.load(Ordering::Relaxed) != 0
}

/// Takes so many pauses from an account that earns one in `each` cycles. The account
/// is a moment: what lies between it and now is not used yet.
fn spend(account: &AtomicU64, clock: u64, each: u64, pauses: u64) {
    let oldest = clock.saturating_sub(SAVED * each);
    let since = account.load(Ordering::Relaxed).max(oldest);
    account.store(since + pauses * each, Ordering::Relaxed);
}

#[inline(never)]
fn pause_again(thread: &Thread, address: usize, place: usize) {
    let clock = sys::cycles();
    let mine = clock.saturating_sub(thread.paused_at.load(Ordering::Relaxed));
    if mine < OWN_CYCLES {
        return;
    }
    let all = clock.saturating_sub(ALL.load(Ordering::Relaxed));
    let rested = mine >= PATIENT * OWN_CYCLES && clock > RESTED.load(Ordering::Relaxed);
    if (all < ALL_CYCLES && !rested) || sampling() {
        return;
    }
    let Some(waits) = thread.waits.get(place) else {
        return;
    };
    let (times, level) = (
        waits.load(Ordering::Relaxed),
        thread.wait_level.load(Ordering::Relaxed),
    );
    if times > level {
        let passed = thread.passed_by.load(Ordering::Relaxed) + 1;
        if passed < PATIENCE {
            thread.passed_by.store(passed, Ordering::Relaxed);
            return;
        }
        thread.wait_level.store(level + 1, Ordering::Relaxed);
    }
    thread.passed_by.store(0, Ordering::Relaxed);
    waits.store(times.saturating_add(1), Ordering::Relaxed);
    let pauses = (mine / OWN_CYCLES / AT_ONCE).clamp(1, LONGEST);
    if rested {
        spend(&RESTED, clock, RESTED_CYCLES, pauses);
    } else {
        spend(&ALL, clock, ALL_CYCLES, pauses);
    }
    spend(&thread.paused_at, clock, OWN_CYCLES, pauses);
    wait(address, PAUSE_MICROS * pauses);
}

/// Says whether it has waited.
#[cold]
#[inline(never)]
fn pause_once(thread: &Thread, address: usize, place: usize, write: bool, shared: bool) -> bool {
    // Accesses at one point have one place: those that read, and those that write.
    let place = place ^ if write { SITES / 2 } else { 0 };
    let Some(word) = thread.known.get(place / 64) else {
        return false;
    };
    let known = word.load(Ordering::Relaxed);
    let bit = 1 << (place % 64);
    if known & bit != 0 {
        // By now it has seen most of its sites: no more of this.
        if thread.started.load(Ordering::Relaxed) > SETTLED {
            thread.pauses.store(PAUSES, Ordering::Relaxed);
        }
        return false;
    }
    word.store(known | bit, Ordering::Relaxed);
    let pauses = thread.pauses.load(Ordering::Relaxed);
    let creates = thread.creates.load(Ordering::Relaxed);
    if creates && !shared && pauses >= CREATORS_PAUSES {
        return false;
    }
    let before = match sampling() {
        true => ALL_PAUSES,
        false => PAUSED.fetch_add(1, Ordering::Relaxed),
    };
    if before >= ALL_PAUSES {
        thread.pauses.store(PAUSES, Ordering::Relaxed);
        return false;
    }
    thread.pauses.store(pauses + 1, Ordering::Relaxed);
    let micros = match pauses < FIRST_PAUSES && !creates {
        true if write && before < VERY_FIRST_PAUSES => VERY_FIRST_MICROS,
        true => FIRST_MICROS,
        false => PAUSE_MICROS,
    };
    wait(address, micros);
    true
}
