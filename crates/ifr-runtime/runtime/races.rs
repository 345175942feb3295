//! The races seen so far: one record per pair of sites, in memory of our own.

use crate::history::Side;
use crate::spin::Spin;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Pairs of sites that are kept; later ones are only counted.
pub const MOST: usize = 1024;

#[repr(C)]
pub struct Record {
    pub instances: AtomicU64,
    pub address: usize,
    pub sides: [Side; 2],
    /// Told by a later record that knows the other side as well.
    superseded: AtomicBool,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
pub static LOCK: Spin = Spin::new();

pub fn records() -> &'static [Record] {
    let at = RECORDS.load(Ordering::Acquire);
    if at.is_null() {
        return &[];
    }
    // SAFETY: the first COUNT records are complete and never change but for
    // their atomic counter.
    unsafe { core::slice::from_raw_parts(at, COUNT.load(Ordering::Acquire)) }
}

/// Those that are to be told.
pub fn current() -> impl Iterator<Item = &'static Record> {
    records()
        .iter()
        .filter(|record| !record.superseded.load(Ordering::Relaxed))
}

pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Counts the pair if it is known; true if it was.
pub fn count_again(sites: (usize, usize)) -> bool {
    for record in records() {
        let known = (record.sides[0].site, record.sides[1].site);
        // A pair whose other side is no longer known is taken for any pair
        // with this side.
        if known == sites
            || (known.1, known.0) == sites
            || (sites.1 == 0 && (known.0 == sites.0 || known.1 == sites.0))
        {
            if record.superseded.load(Ordering::Relaxed) {
                continue;
            }
            record.instances.fetch_add(1, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// Records a race; `mine` came second.
pub fn add(address: usize, mine: &Side, theirs: &Side) {
    if count_again((mine.site, theirs.site)) {
        return;
    }
    let _held = LOCK.lock();
    if count_again((mine.site, theirs.site)) {
        return;
    }
    let count = COUNT.load(Ordering::Relaxed);
    if count == MOST {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let mut at = RECORDS.load(Ordering::Relaxed);
    if at.is_null() {
        at = sys::map(MOST * size_of::<Record>()).cast();
        if at.is_null() {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        RECORDS.store(at, Ordering::Release);
    }
    // A pair that was seen before without its other side is this one.
    let mut instances = 1;
    for record in current().filter(|record| record.sides[1].site == 0) {
        let known = record.sides[0].site;
        if theirs.site != 0 && (known == mine.site || known == theirs.site) {
            instances += record.instances.load(Ordering::Relaxed);
            record.superseded.store(true, Ordering::Relaxed);
        }
    }
    // SAFETY: the record at `count` is ours until COUNT says it is complete.
    unsafe {
        at.add(count).write(Record {
            instances: AtomicU64::new(instances),
            address,
            sides: [*mine, *theirs],
            superseded: AtomicBool::new(false),
        });
    }
    COUNT.store(count + 1, Ordering::Release);
}

/// A forked child reports its own races only.
pub fn forget() {
    LOCK.reset();
    COUNT.store(0, Ordering::Relaxed);
}
