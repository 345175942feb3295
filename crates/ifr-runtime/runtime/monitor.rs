//! Starting a monitor: check against the others, then publish (paper 004,
//! sections 4.1 and 4.2). Reached only when the inline check finds no active
//! monitor of this thread's own.
//!
//! As in the paper there is one monitor per location: a new one replaces what
//! is there. A strong monitor conflicts with any active one of another thread,
//! a weak one with a strong one. The conflict of the masks is tested before
//! the other thread's epoch is loaded.

mod atomics;
mod pauses;
mod ranges;

use crate::history::{Held, Noted, Side};
use crate::shadow::{self, ACCESSED, SHARED, WRITTEN};
use crate::threads::{self, Local, SITES, Thread, WORDS};
use crate::{options, races, sys};
pub use atomics::atomic;
use core::sync::atomic::{AtomicU8, Ordering, fence};
pub use pauses::forget;
use pauses::{is_watched, pause};
pub use ranges::{range, string};

const MANY: u8 = 255;
/// Bits of a description, as the pass writes them; the low 16 are the size.
pub const WRITE: u64 = 1 << 16;
/// One of the accesses is volatile.
pub const VOLATILE: u64 = 1 << 24;
/// The site counts inline when it is due.
const GATED: u64 = 1 << 25;
/// May be left to chance.
const ADAPTIVE: u64 = 1 << 22;
/// From this bit on: the site's place in the share table.
pub const PLACE: u32 = 32;

/// Under `cap=N` a site starts at most N times so many monitors between two
/// ticks, however often its thread releases.
const RELEASES_PER_TICK: u32 = 2;
/// After so many monitors of a thread all its sites have their share again.
const REFILL_COUNT: u64 = 1 << 14;

/// Of the weak monitors on what another thread used last, one in so many is
/// published.
const PUBLISHED: u64 = 8;

/// So many monitors of a thread are not left to chance, whoever asks for them.
const CERTAIN: u64 = 1 << 15;

/// So many monitors of a site on what others use as well are certain (and so many
/// in a thread that has started very many); after so many times that number fewer
/// are left, and then few.
const CERTAIN_AT_SITE: u32 = 1 << 10;
const CERTAIN_AT_LAST: u32 = 64;
const MANY_AT_SITE: u32 = 32;
const VERY_MANY_AT_SITE: u32 = 256;

/// From so many on a thread's monitors are left to chance more often.
pub const VERY_MANY: u64 = 1 << 17;

/// So many of a thread's monitors are always published.
const ALL_PUBLISHED: u64 = 1 << 12;

/// Who asks, from where.
#[derive(Clone, Copy)]
pub struct Asker {
    pub site: usize,
    pub frame: usize,
    /// One of the accesses is volatile.
    pub volatile: bool,
}

impl Asker {
    pub fn at(site: usize, frame: usize) -> Self {
        Asker {
            site,
            frame,
            volatile: false,
        }
    }
}

/// Whether the monitor in `held` (of another thread) is still active.
fn active(held: u64) -> bool {
    WORDS
        .get((held >> 56) as usize)
        .is_some_and(|published| published.word.load(Ordering::Acquire) == held | threads::LOW)
}

fn epoch_of(word: u64) -> u64 {
    (word & !(0xff << 56)) >> threads::EPOCH
}

/// A monitor that is asked for and stands against an active one.
#[derive(Clone, Copy)]
struct Clash {
    address: usize,
    /// Bytes of the granule at which they meet.
    bytes: u64,
    size: u32,
    write: bool,
    freed: bool,
    atomic: bool,
    /// The other's word, of a slot or of a line.
    held: u64,
    walked: bool,
}

#[cold]
#[inline(never)]
fn report(thread: &Thread, asker: Asker, clash: Clash) {
    let mut theirs = Side::UNKNOWN;
    theirs.number = (clash.held >> 56) as usize;
    let Some(other) = threads::other(theirs.number) else {
        return;
    };
    if !other.is_believed(clash.address, thread.number) {
        return;
    }
    let held = Held {
        address: clash.address,
        epoch: epoch_of(clash.held),
        bytes: clash.bytes,
        walked: clash.walked,
        must_write: !clash.write,
    };
    // Most are known already; a site that is gone is taken for one of those.
    other.history.find(held, &mut theirs);
    // Volatile accesses are meant to meet atomic ones: older code has no others.
    if clash.atomic && (theirs.site == 0 || theirs.volatile) {
        return;
    }
    if races::count_again((asker.site, theirs.site)) {
        return;
    }
    let mut mine = Side::UNKNOWN;
    mine.site = asker.site;
    mine.write = clash.write;
    mine.freed = clash.freed;
    mine.atomic = clash.atomic;
    mine.size = clash.size;
    mine.number = thread.number;
    mine.kernel_id = thread.kernel_id.load(Ordering::Relaxed);
    mine.depth = crate::history::walk(asker.frame, thread.stack_top, &mut mine.frames);
    mine.created_at = thread.created_at;
    theirs.kernel_id = other.kernel_id.load(Ordering::Relaxed);
    theirs.created_at = other.created_at;
    if !other.history.find_patiently(held, &mut theirs) {
        theirs.size = 0;
        theirs.write = if clash.walked {
            clash.held & WRITTEN != 0
        } else {
            clash.held >> 8 & clash.bytes != 0
        };
    }
    races::add(clash.address, &mine, &theirs);
}

fn use_page(user: &AtomicU8, me: u8) {
    let known = user.load(Ordering::Relaxed);
    if known != me && known != MANY {
        user.store(if known == 0 { me } else { MANY }, Ordering::Relaxed);
    }
}

/// Whether the granule that had this word is no longer one thread's alone.
#[inline]
fn shared_by(held: u64, me: u8) -> u64 {
    if held != 0 && (held >> 56) as u8 != me {
        SHARED
    } else {
        held & SHARED
    }
}

/// One granule; `bytes` is the mask of those accessed. Its site is noted unless
/// a walk was noted for it. Says whether it is published and another thread has
/// used the granule, and one of them writes.
#[inline]
unsafe fn granule<const NOTE: bool>(
    thread: &Thread,
    now: u64,
    address: usize,
    bytes: u64,
    write: bool,
    size: u32,
    asker: Asker,
) -> bool {
    // SAFETY: the tables are reserved while any `now` is not 0.
    let (slot, (slot_user, line_user)) = unsafe { (shadow::slot(address), shadow::page(address)) };
    let me = (now >> 56) as u8;
    let need = bytes | if write { bytes << 8 } else { 0 };
    let ranged = line_user.load(Ordering::Relaxed);
    if ranged != 0 {
        // SAFETY: as above.
        let line = unsafe { shadow::line(address) }.load(Ordering::Relaxed);
        let enough = if write { WRITTEN } else { ACCESSED };
        if (line ^ now) >> threads::EPOCH == 0 {
            if line & enough != 0 {
                // Covered by a walk of this thread; the slot spares the next
                // call.
                let shared = shared_by(slot.load(Ordering::Relaxed), me);
                slot.store(now & !threads::LOW | shared | need, Ordering::Relaxed);
                use_page(slot_user, me);
                return false;
            }
        } else if line != 0
            && (line >> 56) as u8 != me
            && (write || line & WRITTEN != 0)
            && active(line)
        {
            let clash = Clash {
                address,
                bytes: 0xff,
                size,
                write,
                freed: false,
                atomic: false,
                held: line,
                walked: true,
            };
            report(thread, asker, clash);
        }
    }
    let held = slot.load(Ordering::Relaxed);
    if (held ^ now) >> threads::EPOCH == 0 {
        if held & need == need {
            return false;
        }
        if NOTE {
            note(thread, now, address, bytes, size, write, asker);
        }
        slot.store(held | need, Ordering::Relaxed);
        use_page(slot_user, me);
        false
    } else {
        let met = bytes & if write { held } else { held >> 8 };
        let owner = (held >> 56) as u8;
        if met & 0xff != 0 && owner != me && active(held) {
            let clash = Clash {
                address,
                bytes: met & 0xff,
                size,
                write,
                freed: false,
                atomic: false,
                held,
                walked: false,
            };
            report(thread, asker, clash);
        }
        // What many threads only read would go back and forth between their
        // caches with every monitor: all of them check, few publish. And the
        // monitor of a thread that waits is left where it is: it is to meet more
        // than the first that comes.
        if owner != me
            && owner != 0
            && ((!write && started_many(thread)) || (is_watched(address) && active(held)))
        {
            // That it is not its owner's alone is said at once, unless the
            // owner has changed it meanwhile: an old word must not come back.
            if held & SHARED == 0 {
                let _ = slot.compare_exchange(
                    held,
                    held | SHARED,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            return false;
        }
        if NOTE {
            note(thread, now, address, bytes, size, write, asker);
        }
        let shared = shared_by(held, me);
        slot.store(now & !threads::LOW | shared | need, Ordering::Relaxed);
        use_page(slot_user, me);
        shared != 0 && (write || held & 0xff00 != 0)
    }
}

/// Whether this monitor is one of those that need not be published.
#[inline]
fn started_many(thread: &Thread) -> bool {
    let started = thread.started.load(Ordering::Relaxed);
    started > ALL_PUBLISHED && !started.is_multiple_of(PUBLISHED)
}

fn noted(thread: &Thread, now: u64, write: bool, asker: Asker) -> Noted {
    Noted {
        epoch: epoch_of(now),
        site: asker.site,
        frame: asker.frame,
        stack_top: thread.stack_top,
        write,
        volatile: asker.volatile,
    }
}

/// Writes down who starts a monitor, before others can see it: whoever reports
/// it finds its site.
fn note(
    thread: &Thread,
    now: u64,
    address: usize,
    bytes: u64,
    size: u32,
    write: bool,
    asker: Asker,
) {
    let noted = noted(thread, now, write, asker);
    thread.history.note(address, bytes, size, noted);
    fence(Ordering::Release);
}

/// Granule by granule over `lo..hi`; says whether one of them is shared.
unsafe fn granules<const NOTE: bool>(
    thread: &Thread,
    now: u64,
    lo: usize,
    hi: usize,
    write: bool,
    size: u32,
    asker: Asker,
) -> bool {
    let mut at = lo;
    let mut shared = false;
    while at < hi {
        let end = ((at | 7) + 1).min(hi);
        let bytes = ((1u64 << (end - at)) - 1) << (at & 7);
        // SAFETY: the caller's promise.
        shared |= unsafe { granule::<NOTE>(thread, now, at, bytes, write, size, asker) };
        at = end;
    }
    shared
}

/// Whether `cap` leaves this site a monitor. A site that has used up its share
/// writes the thread's key into its word of the share table, and the inline
/// code passes it by until the key is above that: until the next release, or,
/// when the share of a whole tick is used up, until the next tick.
#[inline]
fn within_cap(thread: &mut Thread, local: &Local, place: usize) -> bool {
    let cap = options::CAP.load(Ordering::Relaxed);
    cap == 0 || charge(thread, local, place, cap)
}

fn charge(thread: &mut Thread, local: &Local, place: usize, cap: u32) -> bool {
    let key = local.key.load(Ordering::Relaxed);
    let (Some(account), Some(word)) = (
        thread.accounts.get_mut(place % SITES),
        thread.shares.get(place % SITES),
    ) else {
        return true;
    };
    if account.key != key {
        if account.key >> 32 != key >> 32 {
            account.in_tick = 0;
        }
        account.key = key;
        account.since_release = 0;
    }
    account.since_release += 1;
    account.in_tick += 1;
    if account.in_tick >= cap.saturating_mul(RELEASES_PER_TICK) {
        word.store(key | 0xffff_ffff, Ordering::Relaxed);
    } else if account.since_release >= cap {
        word.store(key, Ordering::Relaxed);
    }
    account.since_release <= cap
}

/// One more monitor was asked for. Every so many of them the shares are filled
/// up again, also in a thread that never releases.
#[inline]
fn count(thread: &Thread, local: &Local) {
    let started = thread.started.load(Ordering::Relaxed) + 1;
    thread.started.store(started, Ordering::Relaxed);
    if started.is_multiple_of(REFILL_COUNT) {
        let key = local.key.load(Ordering::Relaxed);
        local.key.store(key.wrapping_add(2), Ordering::Relaxed);
    }
}

/// The next prize is 8 to 23 draws away, once the thread has started many, and 128
/// to 255 once it has started very many; the address stirs the choice, so that no
/// site of a loop is left out for ever.
#[inline]
fn refill_lottery(thread: &Thread, local: &Local, address: usize, asker: Asker) {
    let started = thread.started.load(Ordering::Relaxed);
    if local.lottery.load(Ordering::Relaxed) as i64 <= 0 && started > CERTAIN {
        let stir = ((address >> 3) ^ (asker.site >> 2)) as u64;
        let draws = match started > VERY_MANY {
            true => 128 + (stir & 127),
            false => 8 + (stir & 15),
        };
        local.lottery.store(draws, Ordering::Relaxed);
    }
}

/// Whether a monitor is left to chance and not drawn: what no other thread has
/// ever used, or what others only read, is monitored with some probability only
/// (paper 004, section 8), written bytes more often than those that are read. The same as at the entry of
/// `__deadheat_ifr_start`.
///
/// # Safety
/// The tables must be reserved.
#[inline]
unsafe fn not_drawn(
    thread: &Thread,
    local: &Local,
    now: u64,
    address: usize,
    write: bool,
    asker: Asker,
) -> bool {
    // SAFETY: the caller's promise.
    let held = unsafe { shadow::slot(address) }.load(Ordering::Relaxed);
    let mine = (held ^ now) >> 56 == 0;
    let alone = mine && held & SHARED == 0;
    if held != 0 && !alone && (write || held & 0xff00 != 0) {
        return false;
    }
    let left = local.lottery.load(Ordering::Relaxed) as i64 - if write { 3 } else { 1 };
    local.lottery.store(left as u64, Ordering::Relaxed);
    if left > 0 {
        return true;
    }
    refill_lottery(thread, local, address, asker);
    false
}

/// How many monitors the site may leave out on what others use as well: none at
/// first, then two of three, of many five to eight, and of very many 20 to 27.
#[inline]
fn begin_again(thread: &Thread, address: usize, place: usize) {
    let place = place % SITES;
    let (Some(starts), Some(skips)) = (thread.starts.get(place), thread.skips.get(place)) else {
        return;
    };
    let started = starts.load(Ordering::Relaxed).saturating_add(1);
    starts.store(started, Ordering::Relaxed);
    let certain = match thread.started.load(Ordering::Relaxed) {
        ..VERY_MANY => CERTAIN_AT_SITE,
        _ => CERTAIN_AT_LAST,
    };
    let left_out = match started / certain {
        0 => 0,
        ..MANY_AT_SITE => 2,
        ..VERY_MANY_AT_SITE => 5 + (address >> 3 & 3) as u32,
        _ => 20 + (address >> 3 & 7) as u32,
    };
    skips.store(left_out, Ordering::Relaxed);
}

/// A monitor on `size` bytes; the slow side of the inline check.
pub fn start(address: usize, description: u64, asker: Asker) {
    let local = threads::local();
    let now = local.now();
    let Some(thread) = threads::current() else {
        return;
    };
    if now == 0 || thread.enter_busy() {
        return;
    }
    let spent = Spent::begin();
    if description & ADAPTIVE != 0 {
        refill_lottery(thread, local, address, asker);
        begin_again(thread, address, (description >> PLACE) as usize);
    }
    let mut shared = false;
    if within_cap(thread, local, (description >> PLACE) as usize) {
        let size = (description & 0xffff) as usize;
        let write = description & WRITE != 0;
        count(thread, local);
        // SAFETY: `now` is not 0, so the tables are reserved.
        shared = unsafe {
            if (address & 7) + size <= 8 {
                let bytes = ((1u64 << size) - 1) << (address & 7);
                granule::<true>(thread, now, address, bytes, write, size as u32, asker)
            } else {
                granules::<true>(
                    thread,
                    now,
                    address,
                    address.wrapping_add(size),
                    write,
                    size as u32,
                    asker,
                )
            }
        };
    }
    spent.end(thread);
    let write = description & WRITE != 0;
    pause(
        thread,
        address,
        (description >> PLACE) as usize,
        write,
        shared,
    );
    thread.busy.store(false, Ordering::Relaxed);
}

/// Time spent in the run-time, measured when there is a budget for it.
struct Spent(u64);

impl Spent {
    #[inline]
    fn begin() -> Self {
        Spent(if options::BUDGET.load(Ordering::Relaxed) != 0 {
            sys::cycles()
        } else {
            0
        })
    }

    #[inline]
    fn end(self, thread: &Thread) {
        if self.0 != 0 {
            let spent = thread.spent.load(Ordering::Relaxed);
            thread.spent.store(
                spent.wrapping_add(sys::cycles().wrapping_sub(self.0)),
                Ordering::Relaxed,
            );
        }
    }
}

/// Slots of others in `lo..hi` of one page, against a range.
unsafe fn scan_slots(
    thread: &Thread,
    now: u64,
    lo: usize,
    hi: usize,
    write: bool,
    freed: bool,
    asker: Asker,
) {
    let me = (now >> 56) as u8;
    let mut at = lo & !7;
    while at < hi {
        // SAFETY: the tables are reserved.
        let held = unsafe { shadow::slot(at) }.load(Ordering::Relaxed);
        if held != 0 {
            let met = if write { held & 0xff } else { held >> 8 & 0xff };
            if met != 0 && (held >> 56) as u8 != me && active(held) {
                let clash = Clash {
                    address: at,
                    bytes: met,
                    size: (hi - lo).min(u32::MAX as usize) as u32,
                    write,
                    freed,
                    atomic: false,
                    held,
                    walked: false,
                };
                report(thread, asker, clash);
            }
        }
        at += 8;
    }
}

/// Above this a freed block's monitors are stopped with all others instead of
/// one by one.
const SMALL: usize = 512;
/// At most this much of a freed block is compared with the others' monitors.
const LOOKED_AT: usize = 1 << 16;

/// A block goes back to its allocator: a write of all of it, after which it may
/// belong to anybody, so no monitor of this thread may stay on it.
pub fn free(address: usize, size: usize, asker: Asker) {
    if !threads::is_ready() || threads::alone() {
        return;
    }
    let local = threads::local();
    let now = local.now();
    let Some(thread) = threads::current() else {
        return;
    };
    let joining = thread.joining.load(Ordering::Relaxed);
    if joining != 0 {
        // What the library gives back for the thread that has ended.
        threads::joined(joining);
    }
    if thread.inherited.load(Ordering::Relaxed) != 0 {
        threads::give_up_inheritance(thread);
    }
    if now == 0 || thread.enter_busy() {
        threads::release();
        return;
    }
    // By the address of the call, as the others are by their number.
    let place = asker.site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    if !within_cap(thread, local, place) {
        threads::release();
        thread.busy.store(false, Ordering::Relaxed);
        return;
    }
    let me = (now >> 56) as u8;
    // A slot that names its thread and no epoch is no monitor; it says that the
    // bytes were this thread's alone, as they mostly will be again.
    let stop = size > SMALL;
    let hi = address + size.min(LOOKED_AT);
    let mut page = address;
    while page < hi {
        let end = ((page | 4095) + 1).min(hi);
        // SAFETY: `now` is not 0, so the tables are reserved.
        unsafe {
            let (slot_user, line_user) = shadow::page(page);
            let (single, ranged) = (
                slot_user.load(Ordering::Relaxed),
                line_user.load(Ordering::Relaxed),
            );
            if single != 0 && single != me {
                scan_slots(thread, now, page, end, true, true, asker);
            }
            if ranged != 0 {
                let mut at = page & !63;
                while at < end {
                    let line = shadow::line(at);
                    let held = line.load(Ordering::Relaxed);
                    if (held >> 56) as u8 == me {
                        // Its other bytes lose their monitor as well.
                        line.store(0, Ordering::Relaxed);
                    } else if held != 0 && at >= address && active(held) {
                        let clash = Clash {
                            address: at,
                            bytes: 0xff,
                            size: size.min(u32::MAX as usize) as u32,
                            write: true,
                            freed: true,
                            atomic: false,
                            held,
                            walked: true,
                        };
                        report(thread, asker, clash);
                    }
                    at += 64;
                }
            }
            if single == MANY || (!stop && single == me) {
                let mut at = page & !7;
                while at < end {
                    let slot = shadow::slot(at);
                    let held = slot.load(Ordering::Relaxed);
                    if held & SHARED != 0 || (!stop && (held >> 56) as u8 == me) {
                        slot.store(now & (0xff << 56), Ordering::Relaxed);
                    }
                    at += 8;
                }
            }
        }
        page = end;
    }
    if stop {
        threads::release();
    }
    thread.busy.store(false, Ordering::Relaxed);
}
