//! Threads and their epochs.
//!
//! Each monitored thread has a number (1 to 254) and publishes one word, alone
//! in its cache line: `thread:8 | epoch:39 | ones:17`. Adding `1 << 17` to it
//! stops all its monitors. A number that is used again continues its epoch, so
//! a dead thread's slots never look alive.
//!
//! The thread-local `now` (what the inline checks compare with) is that word,
//! or 0 while this thread shall not start monitors: one thread alone (paper
//! 004, section 4.4), outside a sampling window, more than 254 threads. Others
//! may write a thread's `now` under the registry's lock; the worst that the
//! unsynchronised meeting with the owner can do is to leave an old epoch there,
//! whose monitors nobody believes.

use crate::spin::Spin;
use crate::{history, options, shadow, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub const MOST: usize = 255;
/// Where the epoch begins in a word, and what is below it.
pub const EPOCH: u32 = 17;
pub const LOW: u64 = (1 << EPOCH) - 1;
const ONE_EPOCH: u64 = 1 << EPOCH;

#[repr(C, align(128))]
pub struct Published {
    pub word: AtomicU64,
}

pub static WORDS: [Published; MOST] = [const {
    Published {
        word: AtomicU64::new(0),
    }
}; MOST];

/// What the inline code and the entry points find at `__deadheat_ifr_tls`.
#[repr(C)]
pub struct Local {
    pub now: AtomicU64,
    pub word: AtomicPtr<AtomicU64>,
    pub thread: AtomicPtr<Thread>,
    /// Names the time since the last release for the caps: `tick:32 |
    /// releases:32`. Grows with every release and every tick of the sampler.
    pub key: AtomicU64,
    /// Weak monitors on what was read before, until the next that is started.
    pub lottery: AtomicU64,
    /// One word per site: the inline code passes a site by while its word is
    /// not below the key. Null without `cap`.
    pub shares: AtomicPtr<AtomicU64>,
    /// Under `cap` what `now` is otherwise, which stays 0: the inline code asks
    /// for the shares only where it finds a 0.
    pub capped: AtomicU64,
    /// One word per site: see `sampled` of the pass.
    pub counts: AtomicPtr<AtomicU32>,
}

impl Local {
    /// The thread's word, or 0 while it shall not start monitors.
    #[inline]
    pub fn now(&self) -> u64 {
        let now = self.now.load(Ordering::Relaxed);
        if now == 0 {
            self.capped.load(Ordering::Relaxed)
        } else {
            now
        }
    }

    fn set(&self, word: u64) {
        let (now, capped) = if options::CAP.load(Ordering::Relaxed) == 0 {
            (word, 0)
        } else {
            (0, word)
        };
        self.now.store(now, Ordering::Relaxed);
        self.capped.store(capped, Ordering::Relaxed);
    }
}

/// How a walk is remembered so that repeating it costs nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Walk {
    pub lo: usize,
    pub hi: usize,
    pub now: u64,
    pub write: u64,
    /// Distance and length of its rows; 0 and 0 if it is one.
    pub stride: usize,
    pub row: usize,
}

pub const WALKS: usize = 8;
/// Sites with a share of their own under `cap`; the pass numbers them modulo
/// this.
pub const SITES: usize = 1 << 14;

/// A site's account under `cap`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Account {
    pub key: u64,
    pub since_release: u32,
    pub in_tick: u32,
}

#[repr(C)]
pub struct Thread {
    pub number: usize,
    pub local: AtomicPtr<Local>,
    pub kernel_id: AtomicU32,
    pub stack_top: usize,
    /// Set while the run-time works for this thread: a signal handler that
    /// comes in between is not monitored.
    pub busy: AtomicBool,
    pub started: AtomicU64,
    pub walks: [Walk; WALKS],
    pub next_walk: usize,
    pub history: history::History,
    /// Where the key stood when the record's last thread ended.
    pub last_key: u64,
    pub accounts: [Account; SITES],
    pub shares: [AtomicU64; SITES],
    pub counts: [AtomicU32; SITES],
    /// Processor cycles in the run-time, under `budget`.
    pub spent: AtomicU64,
    /// Return addresses of the call that created it, innermost first.
    pub created_at: [usize; 8],
}

impl Thread {
    /// Marks the record as in use; true if it was already. Only this thread
    /// and its signal handlers write the mark, so no locked exchange is needed.
    #[inline]
    pub fn enter_busy(&self) -> bool {
        let before = self.busy.load(Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        before
    }
}

struct Registry {
    threads: [AtomicPtr<Thread>; MOST],
    used: [AtomicBool; MOST],
}

static REGISTRY: Registry = Registry {
    threads: [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST],
    used: [const { AtomicBool::new(false) }; MOST],
};
pub static LOCK: Spin = Spin::new();
static LIVE: AtomicU32 = AtomicU32::new(0);
static READY: AtomicBool = AtomicBool::new(false);
/// Outside a sampling window nobody starts monitors.
static WINDOW: AtomicBool = AtomicBool::new(true);
pub static UNMONITORED: AtomicU32 = AtomicU32::new(0);

pub fn is_ready() -> bool {
    READY.load(Ordering::Relaxed)
}

pub fn alone() -> bool {
    LIVE.load(Ordering::Relaxed) <= 1
}

/// This thread's block at `__deadheat_ifr_tls`.
pub fn local() -> &'static Local {
    let at: *const Local;
    // SAFETY: the symbol is defined in `entry`; every thread has its block.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + __deadheat_ifr_tls@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) at, options(nostack, readonly));
        &*at
    }
}

/// The record of this thread, if it is monitored.
pub fn current() -> Option<&'static mut Thread> {
    // SAFETY: the record lives as long as the process; only its own thread
    // takes it mutably, and `busy` keeps signal handlers out.
    unsafe { local().thread.load(Ordering::Relaxed).as_mut() }
}

/// The record of thread `number`, for reading its history.
pub fn other(number: usize) -> Option<&'static Thread> {
    // SAFETY: records are never unmapped.
    unsafe {
        REGISTRY
            .threads
            .get(number)?
            .load(Ordering::Acquire)
            .as_ref()
    }
}

/// Reserves the shadow. Without it nothing is monitored.
pub fn prepare() -> bool {
    if options::OFF.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let ready = shadow::reserve();
    READY.store(ready, Ordering::Relaxed);
    ready
}

/// Nothing will be monitored.
pub fn give_up() {
    READY.store(false, Ordering::Relaxed);
}

/// Stops all monitors of this thread: to be called before every release.
#[inline]
pub fn release() {
    let local = local();
    // SAFETY: null or the published word of this thread.
    let Some(word) = (unsafe { local.word.load(Ordering::Relaxed).as_ref() }) else {
        return;
    };
    // Only this thread writes its word.
    let next = word.load(Ordering::Relaxed).wrapping_add(ONE_EPOCH);
    word.store(next, Ordering::Release);
    let key = local.key.load(Ordering::Relaxed);
    local.key.store(key.wrapping_add(2), Ordering::Relaxed);
    if local.now.load(Ordering::Relaxed) != 0 {
        local.now.store(next, Ordering::Relaxed);
    } else if local.capped.load(Ordering::Relaxed) != 0 {
        local.capped.store(next, Ordering::Relaxed);
    }
}

/// Gives the calling thread a number and a record.
pub fn enter(stack_top: usize, created_at: &[usize; 8]) {
    if !is_ready() {
        return;
    }
    let held = LOCK.lock();
    let Some(number) = (1..MOST).find(|&number| !REGISTRY.used[number].load(Ordering::Relaxed))
    else {
        UNMONITORED.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let mut record = REGISTRY.threads[number].load(Ordering::Relaxed);
    if record.is_null() {
        record = sys::map(size_of::<Thread>()).cast::<Thread>();
        if record.is_null() {
            UNMONITORED.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    REGISTRY.used[number].store(true, Ordering::Relaxed);
    let local = local();
    // SAFETY: fresh zeroed memory, or the record of a thread that has ended;
    // all-zero is a valid record.
    unsafe {
        (*record).number = number;
        (*record).stack_top = stack_top;
        (*record)
            .kernel_id
            .store(sys::thread_id(), Ordering::Relaxed);
        (*record)
            .local
            .store(core::ptr::from_ref(local).cast_mut(), Ordering::Relaxed);
        (*record).busy.store(false, Ordering::Relaxed);
        (*record).history.restart();
        (*record).created_at = *created_at;
    }
    REGISTRY.threads[number].store(record, Ordering::Release);
    let word = &WORDS[number].word;
    let epoch = (word.load(Ordering::Relaxed) & !(0xff << 56)) >> EPOCH;
    word.store(
        (number as u64) << 56 | (epoch + 1) << EPOCH | LOW,
        Ordering::Release,
    );
    local
        .word
        .store(core::ptr::from_ref(word).cast_mut(), Ordering::Relaxed);
    local.thread.store(record, Ordering::Relaxed);
    // SAFETY: this thread's own record.
    let (key, shares, counts) = unsafe {
        (
            (*record).last_key.wrapping_add(2),
            (&raw mut (*record).shares).cast::<AtomicU64>(),
            (&raw mut (*record).counts).cast::<AtomicU32>(),
        )
    };
    local.counts.store(counts, Ordering::Relaxed);
    local.key.store(key, Ordering::Relaxed);
    let capped = options::CAP.load(Ordering::Relaxed) != 0;
    local.shares.store(
        if capped {
            shares
        } else {
            core::ptr::null_mut()
        },
        Ordering::Relaxed,
    );
    if LIVE.load(Ordering::Relaxed) > 1 && WINDOW.load(Ordering::Relaxed) {
        local.set(word.load(Ordering::Relaxed));
    }
    drop(held);
}

/// The main thread counts as live from the start.
pub fn count_main() {
    LIVE.store(1, Ordering::Relaxed);
}

/// Called by a thread that is about to create another: from now on it is not
/// alone.
pub fn expect_another() {
    if !is_ready() {
        return;
    }
    let _held = LOCK.lock();
    if LIVE.fetch_add(1, Ordering::Relaxed) == 1 {
        wake_all();
    }
}

/// A thread could not be created or has ended.
pub fn one_less() {
    if !is_ready() {
        return;
    }
    let _held = LOCK.lock();
    if LIVE.fetch_sub(1, Ordering::Relaxed) == 2 {
        quiet_all();
    }
}

/// The calling thread starts no more monitors and gives its number back.
pub fn leave() {
    let local = local();
    release();
    local.set(0);
    let record = local.thread.swap(core::ptr::null_mut(), Ordering::Relaxed);
    local.word.store(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null or this thread's own record.
    if let Some(record) = unsafe { record.as_mut() } {
        record.last_key = local.key.load(Ordering::Relaxed);
        let _held = LOCK.lock();
        record.local.store(core::ptr::null_mut(), Ordering::Relaxed);
        if let Some(used) = REGISTRY.used.get(record.number) {
            used.store(false, Ordering::Relaxed);
        }
    }
    one_less();
}

fn each(mut work: impl FnMut(usize, &Local)) {
    for number in 1..MOST {
        if !REGISTRY.used[number].load(Ordering::Relaxed) {
            continue;
        }
        // SAFETY: under the lock, a used number's record points to the live
        // block of its thread, which clears it before it goes.
        unsafe {
            if let Some(record) = REGISTRY.threads[number].load(Ordering::Relaxed).as_ref()
                && let Some(local) = record.local.load(Ordering::Relaxed).as_ref()
            {
                work(number, local);
            }
        }
    }
}

fn wake_all() {
    if WINDOW.load(Ordering::Relaxed) {
        each(|number, local| {
            local.set(WORDS[number].word.load(Ordering::Relaxed));
        });
    }
}

fn quiet_all() {
    each(|_, local| local.set(0));
}

/// Opens or closes the sampling window.
pub fn window(open: bool) {
    let _held = LOCK.lock();
    WINDOW.store(open, Ordering::Relaxed);
    if !open {
        quiet_all();
    } else if LIVE.load(Ordering::Relaxed) > 1 {
        wake_all();
    }
}

/// Gives every site its share again, also in threads that never release.
pub fn refill() {
    let _held = LOCK.lock();
    each(|_, local| {
        let key = local.key.load(Ordering::Relaxed);
        local
            .key
            .store(key.wrapping_add(1 << 32), Ordering::Relaxed);
    });
}

/// In a forked child only the calling thread is left.
pub fn after_fork() {
    LOCK.reset();
    let mine = current().map_or(0, |thread| {
        thread.kernel_id.store(sys::thread_id(), Ordering::Relaxed);
        thread.number
    });
    for number in 1..MOST {
        if number != mine {
            REGISTRY.used[number].store(false, Ordering::Relaxed);
        }
    }
    LIVE.store(1, Ordering::Relaxed);
    WINDOW.store(true, Ordering::Relaxed);
    release();
    local().set(0);
}

/// Cycles that all threads spent in the run-time so far, and how many threads
/// there are.
pub fn spent() -> (u64, u64) {
    let spent = (1..MOST)
        .filter_map(other)
        .map(|thread| thread.spent.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add);
    (spent, u64::from(LIVE.load(Ordering::Relaxed)))
}

/// Sum over all records, for the statistics.
pub fn monitors_started() -> u64 {
    (1..MOST)
        .filter_map(other)
        .map(|thread| thread.started.load(Ordering::Relaxed))
        .sum()
}
