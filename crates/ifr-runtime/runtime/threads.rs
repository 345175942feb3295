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
//!
//! The end of a thread orders its accesses before what follows its join, and
//! before nothing else. So the monitors that are active when a joinable thread
//! ends stay active until it is joined or detached: it has *ended*, keeps its
//! number and counts as live. (The paper's monitors end with their thread.) And
//! the join orders them for the thread that joins, its *heir*, alone: for the
//! others they are active until the heir's next release. Its stack and its
//! thread-local storage are another's as soon as it is joined; nothing is
//! believed about them after the end.

use crate::spin::Spin;
use crate::{history, options, shadow, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub const MOST: usize = 255;
/// Where the epoch begins in a word, and what is below it.
pub const EPOCH: u32 = 17;
pub const LOW: u64 = (1 << EPOCH) - 1;
const ONE_EPOCH: u64 = 1 << EPOCH;
/// No word is so small.
const CAPPED: u64 = 1;

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
    /// Under `cap` what `now` is otherwise, which is `CAPPED` then: the inline
    /// code asks for the shares only where it finds that.
    pub capped: AtomicU64,
    /// One word per site: see `__deadheat_ifr_due`.
    pub counts: AtomicPtr<AtomicU32>,
}

impl Local {
    /// The thread's word, or 0 while it shall not start monitors.
    #[inline]
    pub fn now(&self) -> u64 {
        let now = self.now.load(Ordering::Relaxed);
        if now == CAPPED {
            self.capped.load(Ordering::Relaxed)
        } else {
            now
        }
    }

    fn set(&self, word: u64) {
        let (now, capped) = if options::CAP.load(Ordering::Relaxed) == 0 {
            (word, 0)
        } else {
            (if word == 0 { 0 } else { CAPPED }, word)
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
    /// How often each of them was due since it is warm. Right behind `counts`.
    pub turns: [AtomicU32; SITES],
    /// How many monitors each site may still leave out on what others use as well,
    /// and how many it has started. Right behind `turns`.
    pub skips: [AtomicU32; SITES],
    pub starts: [AtomicU32; SITES],
    /// Processor cycles in the run-time, under `budget`.
    pub spent: AtomicU64,
    /// Return addresses of the call that created it, innermost first.
    pub created_at: [usize; 8],
    /// Its `pthread_t`.
    pub handle: AtomicUsize,
    /// Where its stack may begin, and where its thread-local storage ends.
    stack_low: usize,
    stack_high: usize,
    detached: AtomicBool,
    /// Not 0 once it has ended and is to be joined: the order of the ends.
    ended: AtomicU64,
    /// The number of the thread that has joined it, and that thread's word then.
    heir: AtomicUsize,
    heir_word: AtomicU64,
    /// How many it has joined since it last gave memory back.
    pub inherited: AtomicU32,
    /// Which thread is joined by the call that this one is in.
    pub joining: AtomicUsize,
    /// Sites that were used by this thread before, and pauses so far.
    pub known: [AtomicU64; SITES / 64],
    pub pauses: AtomicU32,
    /// It has created a thread.
    pub creates: AtomicBool,
    /// Up to when it has used its time for pauses, by the processor's clock.
    pub paused_at: AtomicU64,
    /// How often it has waited at each site, how often it may at one, and how many
    /// it has passed by since.
    pub waits: [AtomicU32; SITES],
    pub wait_level: AtomicU32,
    pub passed_by: AtomicU32,
}

// `entry` takes it to be so.
const _: () = assert!(
    core::mem::offset_of!(Thread, turns) == core::mem::offset_of!(Thread, counts) + 4 * SITES
        && core::mem::offset_of!(Thread, skips) == core::mem::offset_of!(Thread, turns) + 4 * SITES
);

impl Thread {
    /// Marks the record as in use; true if it was already. Only this thread
    /// and its signal handlers write the mark, so no locked exchange is needed.
    #[inline]
    pub fn enter_busy(&self) -> bool {
        let before = self.busy.load(Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        before
    }

    /// Whether its active monitor on `address` is one for thread `number`: while
    /// it runs, and after its end until it is joined, or its heir releases.
    pub fn is_believed(&self, address: usize, number: usize) -> bool {
        if self.ended.load(Ordering::Relaxed) == 0 {
            return true;
        }
        let heir = self.heir.load(Ordering::Acquire);
        !(self.stack_low..self.stack_high).contains(&address)
            && (heir == 0 || (heir != number && self.waits_for(heir)))
    }

    /// Whether its heir has not released since.
    fn waits_for(&self, heir: usize) -> bool {
        let then = self.heir_word.load(Ordering::Relaxed);
        WORDS
            .get(heir)
            .is_some_and(|published| published.word.load(Ordering::Acquire) == then)
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
/// Threads that have ended so far and were to be joined.
static ENDS: AtomicU64 = AtomicU64::new(0);
/// Robust mutexes are released by the end of their owner, unseen: with them a
/// thread's monitors end before it.
pub static ROBUST: AtomicBool = AtomicBool::new(false);
/// Handles of threads that were detached before they ran; 0 is none.
static EARLY: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

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
    if local.now.load(Ordering::Relaxed) > CAPPED {
        local.now.store(next, Ordering::Relaxed);
    } else if local.capped.load(Ordering::Relaxed) != 0 {
        local.capped.store(next, Ordering::Relaxed);
    }
}

/// The calling thread's `pthread_t`.
fn handle() -> usize {
    let at: usize;
    // SAFETY: the block of every thread begins with its own address, which is
    // the thread's handle.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) at, options(nostack, readonly))
    };
    at
}

/// A number that nobody uses, or that of the thread that ended first and was not
/// joined. Under the lock.
fn free_number() -> Option<usize> {
    for thread in (1..MOST).filter_map(other) {
        let heir = thread.heir.load(Ordering::Relaxed);
        if thread.ended.load(Ordering::Relaxed) != 0 && heir != 0 && !thread.waits_for(heir) {
            retire(thread);
        }
    }
    let unused = (1..MOST).find(|&number| !REGISTRY.used[number].load(Ordering::Relaxed));
    unused.or_else(|| {
        let ended = |number: usize| {
            let thread = other(number)?;
            let order = thread.ended.load(Ordering::Relaxed);
            (order != 0).then_some((order, number, thread))
        };
        let (_, number, thread) = (1..MOST)
            .filter_map(ended)
            .min_by_key(|&(order, _, _)| order)?;
        retire(thread);
        Some(number)
    })
}

/// What is known of a thread before it runs.
pub struct Origin<'a> {
    pub stack_top: usize,
    pub stack_size: usize,
    pub detached: bool,
    pub created_at: &'a [usize; 8],
}

/// Gives the calling thread a number and a record.
pub fn enter(origin: &Origin<'_>) {
    if !is_ready() {
        return;
    }
    let handle = handle();
    let held = LOCK.lock();
    let early = EARLY
        .iter()
        .find(|early| early.load(Ordering::Relaxed) == handle);
    if let Some(early) = early {
        early.store(0, Ordering::Relaxed);
    }
    // The bound is for the compiler, which cannot know it.
    let Some(number) = free_number().filter(|&number| number < MOST) else {
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
        (*record).stack_top = origin.stack_top;
        (*record).stack_low = origin.stack_top.saturating_sub(origin.stack_size);
        (*record).stack_high = handle + sys::PAGE;
        (*record).handle.store(handle, Ordering::Relaxed);
        (*record).heir.store(0, Ordering::Relaxed);
        (*record).inherited.store(0, Ordering::Relaxed);
        (*record)
            .detached
            .store(origin.detached || early.is_some(), Ordering::Relaxed);
        (*record).ended.store(0, Ordering::Relaxed);
        (*record).joining.store(0, Ordering::Relaxed);
        (*record).pauses.store(0, Ordering::Relaxed);
        (*record).creates.store(false, Ordering::Relaxed);
        for word in &(*record).known {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
        (*record)
            .kernel_id
            .store(sys::thread_id(), Ordering::Relaxed);
        (*record)
            .local
            .store(core::ptr::from_ref(local).cast_mut(), Ordering::Relaxed);
        (*record).busy.store(false, Ordering::Relaxed);
        (*record).history.restart();
        (*record).created_at = *origin.created_at;
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
    if let Some(creator) = current() {
        creator.creates.store(true, Ordering::Relaxed);
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
    discount();
}

fn discount() {
    if LIVE.fetch_sub(1, Ordering::Relaxed) == 2 {
        quiet_all();
    }
}

/// The calling thread ends. If it is to be joined its monitors stay; all it may
/// still do is to stop them, by a release or by giving memory back.
pub fn end() {
    let local = local();
    // SAFETY: null or this thread's own record.
    if let Some(record) = unsafe { local.thread.load(Ordering::Relaxed).as_mut() } {
        let _held = LOCK.lock();
        if record.ended.load(Ordering::Relaxed) != 0 {
            return;
        }
        if !record.detached.load(Ordering::Relaxed) && !ROBUST.load(Ordering::Relaxed) {
            local.set(0);
            disinherit(record);
            record.last_key = local.key.load(Ordering::Relaxed);
            record.local.store(core::ptr::null_mut(), Ordering::Relaxed);
            let order = ENDS.fetch_add(1, Ordering::Relaxed) + 1;
            record.ended.store(order, Ordering::Relaxed);
            return;
        }
    }
    leave();
}

/// The monitors of a thread that has ended stop, and its number is free. Under
/// the lock.
fn retire(thread: &Thread) {
    // The thread itself may be about to count its epoch, on its way out: either
    // count is above what it was.
    if let Some(published) = WORDS.get(thread.number) {
        published.word.fetch_add(ONE_EPOCH, Ordering::AcqRel);
    }
    thread.ended.store(0, Ordering::Relaxed);
    thread.handle.store(0, Ordering::Relaxed);
    if let Some(used) = REGISTRY.used.get(thread.number) {
        used.store(false, Ordering::Relaxed);
    }
    if thread.heir.swap(0, Ordering::Relaxed) == 0 {
        discount();
    }
}

/// What the thread has joined stops. Under the lock.
fn disinherit(heir: &Thread) {
    if heir.inherited.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    for thread in (1..MOST).filter_map(other) {
        if thread.ended.load(Ordering::Relaxed) != 0
            && thread.heir.load(Ordering::Relaxed) == heir.number
        {
            retire(thread);
        }
    }
}

/// Memory that the joined ones used may be another's from now on.
pub fn give_up_inheritance(heir: &Thread) {
    let _held = LOCK.lock();
    disinherit(heir);
}

fn of_handle(handle: usize) -> Option<&'static Thread> {
    (1..MOST).find_map(|number| {
        let used = REGISTRY.used[number].load(Ordering::Relaxed);
        other(number).filter(|thread| used && thread.handle.load(Ordering::Relaxed) == handle)
    })
}

/// The thread was joined: what it did comes before what follows.
pub fn joined(handle: usize) {
    if !is_ready() {
        return;
    }
    let _held = LOCK.lock();
    if let Some(thread) = of_handle(handle)
        && thread.ended.load(Ordering::Relaxed) != 0
    {
        retire(thread);
    }
}

/// The calling thread has joined the other: for itself what that did comes
/// before what follows, for the rest once it releases.
pub fn inherit(handle: usize) {
    let Some(heir) = current() else {
        joined(handle);
        return;
    };
    let _held = LOCK.lock();
    let Some(thread) = of_handle(handle) else {
        return;
    };
    if thread.ended.load(Ordering::Relaxed) == 0 {
        return;
    }
    thread.handle.store(0, Ordering::Relaxed);
    let word = WORDS
        .get(heir.number)
        .map_or(0, |published| published.word.load(Ordering::Relaxed));
    thread.heir_word.store(word, Ordering::Relaxed);
    thread.heir.store(heir.number, Ordering::Release);
    heir.inherited.fetch_add(1, Ordering::Relaxed);
    discount();
}

/// Nobody will join the thread.
pub fn detached(handle: usize) {
    if !is_ready() {
        return;
    }
    let _held = LOCK.lock();
    match of_handle(handle) {
        Some(thread) if thread.ended.load(Ordering::Relaxed) != 0 => retire(thread),
        Some(thread) => thread.detached.store(true, Ordering::Relaxed),
        None => {
            let known = |early: &&AtomicUsize| early.load(Ordering::Relaxed) == handle;
            let unused = |early: &&AtomicUsize| early.load(Ordering::Relaxed) == 0;
            let place = EARLY.iter().find(known).or(EARLY.iter().find(unused));
            if let Some(early) = place {
                early.store(handle, Ordering::Relaxed);
            }
        }
    }
}

/// Somebody may have seen that threads are gone, by other means than a join.
pub fn ends_were_seen() {
    if !is_ready() {
        return;
    }
    let _held = LOCK.lock();
    for thread in (1..MOST).filter_map(other) {
        if thread.ended.load(Ordering::Relaxed) != 0 {
            retire(thread);
        }
    }
}

/// The calling thread starts no more monitors and gives its number back.
fn leave() {
    let local = local();
    release();
    local.set(0);
    let record = local.thread.swap(core::ptr::null_mut(), Ordering::Relaxed);
    local.word.store(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null or this thread's own record.
    if let Some(record) = unsafe { record.as_mut() } {
        record.last_key = local.key.load(Ordering::Relaxed);
        let _held = LOCK.lock();
        record.handle.store(0, Ordering::Relaxed);
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
            // What the other threads did, they did in the parent.
            WORDS[number].word.fetch_add(ONE_EPOCH, Ordering::Relaxed);
            if let Some(thread) = other(number) {
                thread.ended.store(0, Ordering::Relaxed);
                thread.heir.store(0, Ordering::Relaxed);
                thread.handle.store(0, Ordering::Relaxed);
            }
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
