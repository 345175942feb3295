//! Monitors on many bytes at once: arrays in loops, rows `stride` apart, strings
//! (beyond paper 004, whose monitors are on single variables). Whole lines of 64
//! bytes have one monitor each, what is left over is monitored by granules; a walk
//! that the thread has made in this epoch is not made again.

use super::{
    ADAPTIVE, Asker, Clash, GATED, PLACE, Spent, WRITE, active, count, granules, not_drawn, noted,
    pause, report, scan_slots, use_page, within_cap,
};
use crate::shadow::{self, ACCESSED, WRITTEN};
use crate::threads::{self, Thread, WALKS, Walk};
use crate::{entry, options};
use core::sync::atomic::{Ordering, fence};

/// Shorter rows are monitored by their granules.
const SHORT_ROW: usize = 128;
/// Longer ones are not left to chance.
const CHANCE_ROW: usize = 1024;
/// How much of a row is monitored under `cap`.
const CAPPED_ROW: usize = 1024;

/// Whole lines `lo..hi`, both multiples of 64.
unsafe fn lines(thread: &Thread, now: u64, lo: usize, hi: usize, write: bool, asker: Asker) {
    let me = (now >> 56) as u8;
    let flags = ACCESSED | if write { WRITTEN } else { 0 };
    let mut page = lo;
    while page < hi {
        let end = ((page | 4095) + 1).min(hi);
        // SAFETY: the tables are reserved.
        let (slot_user, line_user) = unsafe { shadow::page(page) };
        let others = line_user.load(Ordering::Relaxed);
        use_page(line_user, me);
        let mut at = page;
        while at < end {
            // SAFETY: the tables are reserved.
            let line = unsafe { shadow::line(at) };
            let held = line.load(Ordering::Relaxed);
            if (held ^ now) >> threads::EPOCH == 0 {
                if held & flags != flags {
                    line.store(held | flags, Ordering::Relaxed);
                }
            } else {
                if others != 0
                    && others != me
                    && held != 0
                    && (held >> 56) as u8 != me
                    && (write || held & WRITTEN != 0)
                    && active(held)
                {
                    let clash = Clash {
                        address: at,
                        bytes: 0xff,
                        size: 64,
                        write,
                        freed: false,
                        atomic: false,
                        held,
                        walked: true,
                    };
                    report(thread, asker, clash);
                }
                line.store(now & !threads::LOW | flags, Ordering::Relaxed);
            }
            at += 64;
        }
        let single = slot_user.load(Ordering::Relaxed);
        if single != 0 && single != me {
            // SAFETY: the tables are reserved.
            unsafe { scan_slots(thread, now, page, end, write, false, asker) };
        }
        page = end;
    }
}

fn walked_already(thread: &Thread, now: u64, lo: usize, hi: usize, write: bool) -> bool {
    thread.walks.iter().any(|walk| {
        walk.now == now
            && walk.stride == 0
            && walk.lo <= lo
            && hi <= walk.hi
            && (walk.write != 0 || !write)
    })
}

fn remember(thread: &mut Thread, walk: Walk) {
    let at = thread.next_walk % WALKS;
    thread.next_walk = at + 1;
    thread.walks[at] = walk;
}

/// One row of bytes.
unsafe fn row(thread: &mut Thread, now: u64, lo: usize, hi: usize, write: bool, asker: Asker) {
    if walked_already(thread, now, lo, hi, write) {
        return;
    }
    let (first, last) = ((lo + 63) & !63, hi & !63);
    let size = (hi - lo).min(0xffff) as u32;
    // SAFETY: the caller's promise.
    unsafe {
        if last <= first {
            granules::<false>(thread, now, lo, hi, write, size, asker);
            return;
        }
        granules::<false>(thread, now, lo, first, write, (first - lo) as u32, asker);
        lines(thread, now, first, last, write, asker);
        granules::<false>(thread, now, last, hi, write, (hi - last) as u32, asker);
    }
    let walk = Walk {
        lo,
        hi,
        now,
        write: u64::from(write),
        stride: 0,
        row: 0,
    };
    remember(thread, walk);
}

/// Rows of a walk, `stride` apart.
#[derive(Clone, Copy)]
struct Rows {
    lo: usize,
    length: usize,
    stride: usize,
    count: usize,
}

/// Rows that are too short to be lines: a field of each structure, a column.
unsafe fn short_rows(thread: &mut Thread, now: u64, rows: Rows, write: bool, asker: Asker) -> bool {
    let walk = Walk {
        lo: rows.lo,
        hi: rows
            .lo
            .wrapping_add(rows.stride.wrapping_mul(rows.count - 1))
            .wrapping_add(rows.length),
        now,
        write: u64::from(write),
        stride: rows.stride,
        row: rows.length,
    };
    if thread.walks.contains(&walk) {
        return false;
    }
    let mut shared = false;
    let mut at = rows.lo;
    for _ in 0..rows.count {
        let end = at.wrapping_add(rows.length);
        let size = rows.length as u32;
        // SAFETY: the caller's promise.
        shared |= unsafe { granules::<false>(thread, now, at, end, write, size, asker) };
        at = at.wrapping_add(rows.stride);
    }
    remember(thread, walk);
    shared
}

/// `rows` rows of `length` bytes, `stride` apart (0 rows: just one).
pub fn range(lo: usize, length: usize, stride: usize, rows: usize, description: u64, asker: Asker) {
    let local = threads::local();
    let now = local.now();
    let Some(thread) = threads::current() else {
        return;
    };
    // Nothing that a program can access is as long as half the address space.
    if now == 0 || length == 0 || length > 1 << 46 || thread.enter_busy() {
        return;
    }
    let spent = Spent::begin();
    let write = description & WRITE != 0;
    if description & GATED != 0 {
        entry::due_again(thread, now, lo, description);
    }
    // SAFETY: `now` is not 0, so the tables are reserved.
    let passed_by = description & ADAPTIVE != 0
        && rows <= 1
        && length < CHANCE_ROW
        && unsafe { not_walked_by_others(now, lo, length) }
        && unsafe { not_drawn(thread, local, now, lo, write, asker) };
    let mut shared = false;
    if !passed_by && within_cap(thread, local, (description >> PLACE) as usize) {
        count(thread, local);
        let rows = Rows {
            lo,
            length,
            stride: if rows > 1 { stride } else { 0 },
            count: rows.max(1),
        };
        // SAFETY: `now` is not 0, so the tables are reserved.
        shared = unsafe { walk(thread, now, rows, write, asker) };
    }
    spent.end(thread);
    pause(thread, lo, (description >> PLACE) as usize, write, shared);
    thread.busy.store(false, Ordering::Relaxed);
}

/// Whether no other thread has a walk over the first and the last of the bytes.
unsafe fn not_walked_by_others(now: u64, lo: usize, length: usize) -> bool {
    // SAFETY: the caller's promise.
    let (first, last) = unsafe { (shadow::line(lo), shadow::line(lo + length - 1)) };
    [first, last].into_iter().all(|line| {
        let held = line.load(Ordering::Relaxed);
        held == 0 || (held ^ now) >> 56 == 0
    })
}

/// Whether every granule of `lo..hi` has this thread's monitor already.
unsafe fn all_active(now: u64, lo: usize, hi: usize, write: bool) -> bool {
    let mut at = lo;
    while at < hi {
        let end = ((at | 7) + 1).min(hi);
        let bytes = ((1u64 << (end - at)) - 1) << (at & 7);
        let need = bytes | if write { bytes << 8 } else { 0 };
        // SAFETY: the caller's promise.
        let held = unsafe { shadow::slot(at) }.load(Ordering::Relaxed);
        if (held ^ now) & (!threads::LOW | need) != 0 {
            return false;
        }
        at = end;
    }
    true
}

/// Whether every line of `lo..hi`, and every granule of what is left over, has this
/// thread's monitor already.
unsafe fn all_covered(now: u64, lo: usize, hi: usize, write: bool) -> bool {
    let flags = ACCESSED | if write { WRITTEN } else { 0 };
    // SAFETY: the caller's promise.
    let by_line = |at: usize| {
        let held = unsafe { shadow::line(at) }.load(Ordering::Relaxed);
        (held ^ now) & (!threads::LOW | flags) == 0
    };
    let mut at = lo;
    while at < hi {
        let end = ((at | 63) + 1).min(hi);
        let whole = end - at == 64;
        // SAFETY: the caller's promise.
        if !by_line(at) && (whole || !unsafe { all_active(now, at, end, write) }) {
            return false;
        }
        at = end;
    }
    true
}

/// Monitors on all rows, or under `cap` on a sample of them. Says whether another
/// thread has used a short one of them.
///
/// # Safety
/// The tables must be reserved.
unsafe fn walk(thread: &mut Thread, now: u64, rows: Rows, write: bool, asker: Asker) -> bool {
    let Rows {
        lo,
        length,
        stride,
        count,
    } = rows;
    if count == 1 && length < SHORT_ROW {
        let (hi, size) = (lo.wrapping_add(length), length as u32);
        // SAFETY: the caller's promise.
        unsafe {
            if all_active(now, lo, hi, write) {
                return false;
            }
            if length <= 16 {
                return granules::<true>(thread, now, lo, hi, write, size, asker);
            }
            let noted = noted(thread, now, write, asker);
            thread.history.note_walk(lo, hi, 0, 0, noted);
            fence(Ordering::Release);
            return granules::<false>(thread, now, lo, hi, write, size, asker);
        }
    }
    // SAFETY: the caller's promise.
    if count == 1 && unsafe { all_covered(now, lo, lo.wrapping_add(length), write) } {
        return false;
    }
    let end = lo
        .wrapping_add(stride.wrapping_mul(count - 1))
        .wrapping_add(length);
    let row_of = if stride == 0 { 0 } else { length };
    thread
        .history
        .note_walk(lo, end, stride, row_of, noted(thread, now, write, asker));
    fence(Ordering::Release);
    // Under `cap` a walk is a sample of its rows and bytes, another one each
    // time.
    let cap = options::CAP.load(Ordering::Relaxed) as usize;
    let mut taken = rows;
    if cap != 0 {
        let turn = thread.started.load(Ordering::Relaxed) as usize;
        if count > cap {
            let every = count / cap;
            taken.lo = lo.wrapping_add(stride.wrapping_mul(turn % every));
            taken.stride = stride.wrapping_mul(every);
            taken.count = cap;
        }
        if length > CAPPED_ROW {
            let pieces = length / CAPPED_ROW;
            taken.lo = taken
                .lo
                .wrapping_add(turn.wrapping_mul(7) % pieces * CAPPED_ROW);
            taken.length = CAPPED_ROW;
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        if taken.length < SHORT_ROW {
            return short_rows(thread, now, taken, write, asker);
        }
        let mut at = taken.lo;
        for _ in 0..taken.count {
            row(thread, now, at, at.wrapping_add(taken.length), write, asker);
            at = at.wrapping_add(taken.stride);
        }
    }
    false
}

/// A string is read, and perhaps copied. Above the 32 bits of `place`: whether it
/// may be left to chance.
///
/// # Safety
/// `source` must be the string that the program is about to read.
pub unsafe fn string(source: usize, target: usize, place: u64, asker: Asker) {
    // SAFETY: the caller's promise.
    let length = unsafe { crate::text::length(source as *const u8) } + 1;
    let chance = if place >> 32 != 0 { ADAPTIVE } else { 0 };
    let description = place << PLACE | chance;
    range(source, length, 0, 0, description, asker);
    if target != 0 {
        range(target, length, 0, 0, description | WRITE, asker);
    }
}
