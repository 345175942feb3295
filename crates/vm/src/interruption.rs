//! What ends work before it is done: Ctrl-C, SIGTERM, or time that is up.
//!
//! One process, which has called `begin`, is told; the state lies in a page that
//! it shares with every process it forks afterwards. So all of them see the same:
//! a replay or a copy looks at every slice (`Vm::run` answers
//! `Error::Interrupted`), whoever waits for a process kills it when it does not
//! answer, and loops ask `is_over` before they begin something new.
//!
//! The first signal is a request: there is time for a report. The second takes
//! away what was still allowed. The third ends everything at once, and so does
//! a timer if the report does not come.
//!
//! Guarantee: host time never decides a result. What was not finished when it
//! was over has no result.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A process that does not answer is killed so long after its work was over.
/// It looks at every slice, and a slice takes milliseconds.
pub const ANSWER: Duration = Duration::from_millis(300);

/// The report must have begun so long after the signal: two seconds are
/// promised, and a part of them is for printing.
const REPORT: Duration = Duration::from_millis(1_800);

/// Signals that come together are one: `timeout` and others send theirs to the
/// process and then to its group.
pub(crate) const TOGETHER: Duration = Duration::from_millis(250);

/// Recording processes that can be known at a time.
const RECORDING: usize = 1024;

const NANOSECONDS: u64 = 1_000_000_000;

#[repr(C)]
struct Shared {
    /// The process that is told.
    owner: AtomicI32,
    /// The first signal, 0 for none, and when it came.
    signal: AtomicI32,
    since: AtomicU64,
    /// How many came.
    times: AtomicU32,
    /// When time is up; 0 for never.
    deadline: AtomicU64,
    /// How much longer the work under way may take.
    allowance: AtomicU64,
    /// Signals that a vm has taken for its guest.
    reached: AtomicU32,
    /// Processes that record; 0 where there is none.
    recording: [AtomicI32; RECORDING],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Nothing is told yet: a signal ends the process at once.
static AT_ONCE: AtomicU32 = AtomicU32::new(1);

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the page that `begin` mapped and nobody unmaps.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// The host's time, for handlers as well.
pub(crate) fn nanoseconds() -> u64 {
    // SAFETY: plain out-parameter.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * NANOSECONDS + time.tv_nsec as u64
    }
}

/// Why work is over before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Signal(i32),
    /// Its time is up.
    Budget,
}

/// From now on SIGINT and SIGTERM end this process with 128 + their number, as
/// a shell would tell it; `be_patient` makes them requests.
pub fn begin() {
    // SAFETY: a fresh mapping of zeros, which is a valid `Shared`.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            // Without it signals do what they do by default.
            return;
        }
        let page = page.cast::<Shared>();
        (*page).owner.store(libc::getpid(), Ordering::Relaxed);
        SHARED.store(page, Ordering::Release);
    }
    // A file that may not grow is an error of the write, and told as one.
    handle(libc::SIGXFSZ, never);
    listen();
}

/// Handles the signals, again if somebody else has done so meanwhile.
pub fn listen() {
    if shared().is_some() {
        for signal in crate::host_signals::ENDING {
            handle(signal, told);
        }
        // Not when a signal has come: a guest may run then, and the C library's
        // `sigaction` reads thread-local storage.
        handle(libc::SIGALRM, too_late);
    }
}

/// From now on a signal is a request to come to an end.
pub fn be_patient() {
    AT_ONCE.store(0, Ordering::SeqCst);
}

fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: the handler matches SA_SIGINFO's signature and makes only calls
    // that a handler may make. Calls that it interrupts go on, but for `poll`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        // Not on the stack of a guest: its memory below the stack pointer is compared.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

extern "C" fn told(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(shared) = shared() else { return };
    // SAFETY: no preconditions; the kernel passes a valid siginfo_t.
    let (own, code) = unsafe { (libc::getpid(), (*info).si_code) };
    if shared.owner.load(Ordering::Relaxed) != own {
        // The keyboard reaches every process; one of them decides.
        return;
    }
    // A shell's background job is not meant by the keyboard.
    let ignored = crate::host_signals::ignored_at_start() & (1 << (signal - 1)) != 0;
    if ignored && code == libc::SI_KERNEL {
        return;
    }
    let (now, since) = (nanoseconds(), shared.since.load(Ordering::SeqCst));
    if since != 0 && now - since < TOGETHER.as_nanos() as u64 {
        return;
    }
    let before = shared.times.fetch_add(1, Ordering::SeqCst);
    if before == 0 {
        shared.signal.store(signal, Ordering::SeqCst);
        shared.since.store(now, Ordering::SeqCst);
    }
    if AT_ONCE.load(Ordering::SeqCst) != 0 || before >= 2 {
        give_up(shared);
    }
    if before == 0 {
        set_timer(REPORT);
    }
}

extern "C" fn too_late(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(shared) = shared() else { return };
    // SAFETY: no preconditions.
    let is_owner = shared.owner.load(Ordering::Relaxed) == unsafe { libc::getpid() };
    if is_owner && shared.since.load(Ordering::SeqCst) != 0 {
        const TEXT: &str = "deadheat: interrupted, and no report could be made in time\n";
        // SAFETY: the text is static; nobody may be reading.
        unsafe { libc::write(2, TEXT.as_ptr().cast(), TEXT.len()) };
        give_up(shared);
    }
}

/// Ends this process and all that records for it. For handlers.
fn give_up(shared: &Shared) -> ! {
    for process in &shared.recording {
        let pid = process.load(Ordering::SeqCst);
        if pid > 0 {
            // SAFETY: a process that this one has started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    // SAFETY: ends the process; others die with their parent.
    unsafe { libc::_exit(128 + shared.signal.load(Ordering::SeqCst)) }
}

fn set_timer(after: Duration) {
    let timer = libc::itimerval {
        it_interval: libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        },
        it_value: libc::timeval {
            tv_sec: after.as_secs() as libc::time_t,
            tv_usec: after.subsec_micros().into(),
        },
    };
    // SAFETY: a structure on the stack; no preconditions.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
}

/// The report is being shown: whoever reads it may take all the time there is.
pub fn reporting() {
    if signal().is_some() {
        set_timer(Duration::ZERO);
        // Whoever asks once more does not want to read it.
        AT_ONCE.store(1, Ordering::SeqCst);
    }
}

extern "C" fn never(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// The signal that asked for the end.
pub fn signal() -> Option<i32> {
    let signal = shared()?.signal.load(Ordering::SeqCst);
    (signal != 0).then_some(signal)
}

/// Signals that a vm has taken for its guest so far.
pub(crate) fn reached() -> u32 {
    shared().map_or(0, |shared| shared.reached.load(Ordering::SeqCst))
}

/// A vm has taken a signal for its guest. For handlers.
pub(crate) fn has_reached() {
    if let Some(shared) = shared() {
        shared.reached.fetch_add(1, Ordering::SeqCst);
    }
}

/// Somebody who waits has lost patience.
pub(crate) fn is_urgent() -> bool {
    shared().is_some_and(|shared| shared.times.load(Ordering::SeqCst) > 1)
}

/// How long ago the end was asked for, or time was up, and which.
pub fn asked() -> Option<(Cause, Duration)> {
    let shared = shared()?;
    let since = shared.since.load(Ordering::SeqCst);
    let deadline = shared.deadline.load(Ordering::SeqCst);
    if since == 0 && deadline == 0 {
        return None;
    }
    let now = nanoseconds();
    let ago = |then| Duration::from_nanos(now.saturating_sub(then));
    if since != 0 {
        let signal = shared.signal.load(Ordering::SeqCst);
        return Some((Cause::Signal(signal), ago(since)));
    }
    (deadline <= now).then(|| (Cause::Budget, ago(deadline)))
}

/// Why the work under way is over, if it is, what it was allowed included.
pub fn cause() -> Option<Cause> {
    over_for().map(|(cause, _)| cause)
}

/// The work under way is over.
pub fn is_over() -> bool {
    over_for().is_some()
}

/// How long it has been over.
pub(crate) fn over_for() -> Option<(Cause, Duration)> {
    let (cause, ago) = asked()?;
    let allowance = match is_urgent() {
        true => 0,
        false => shared()?.allowance.load(Ordering::SeqCst),
    };
    let left = ago.checked_sub(Duration::from_nanos(allowance))?;
    Some((cause, left))
}

/// While it lives, work may go on for a while when its end was asked for.
#[derive(Debug)]
pub struct Allowance {
    before: u64,
}

impl Allowance {
    pub fn of(time: Duration) -> Allowance {
        let before = shared().map_or(0, |shared| {
            shared
                .allowance
                .swap(time.as_nanos() as u64, Ordering::SeqCst)
        });
        Allowance { before }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if let Some(shared) = shared() {
            shared.allowance.store(self.before, Ordering::SeqCst);
        }
    }
}

/// While it lives, time is up after so long; sooner if it was before.
#[derive(Debug)]
pub struct Budget {
    before: u64,
}

impl Budget {
    pub fn of(time: Duration) -> Budget {
        let Some(shared) = shared() else {
            return Budget { before: 0 };
        };
        let before = shared.deadline.load(Ordering::SeqCst);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut end = nanoseconds().saturating_add(time);
        if before != 0 {
            end = end.min(before);
        }
        shared.deadline.store(end, Ordering::SeqCst);
        Budget { before }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(shared) = shared() {
            shared.deadline.store(self.before, Ordering::SeqCst);
        }
    }
}

/// This process records, until it ends.
pub(crate) fn announce() {
    let Some(shared) = shared() else { return };
    let own = std::process::id() as i32;
    for process in &shared.recording {
        let taken = process.load(Ordering::SeqCst);
        let is_free = taken == 0 || !is_alive(taken);
        if is_free
            && process
                .compare_exchange(taken, own, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        {
            return;
        }
    }
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe {
        libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }
}

/// Processes that record, in the order in which they began. One that has ended
/// is left out, and so is another process that has got its number since.
pub(crate) fn recording() -> Vec<i32> {
    let own = std::fs::read_link("/proc/self/exe").ok();
    let Some(shared) = shared() else {
        return Vec::new();
    };
    shared
        .recording
        .iter()
        .map(|process| process.load(Ordering::SeqCst))
        .filter(|pid| *pid > 0 && std::fs::read_link(format!("/proc/{pid}/exe")).ok() == own)
        .collect()
}

/// Nobody records any more.
pub(crate) fn forget_recording() {
    if let Some(shared) = shared() {
        for process in &shared.recording {
            process.store(0, Ordering::SeqCst);
        }
    }
}
