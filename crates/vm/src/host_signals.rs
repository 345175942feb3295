//! Signals that reach the vm's own process from outside while it records.
//!
//! The host handler only notes the signal and, if translated code is running,
//! makes its slice end at the next block: it takes `BREAK` from the
//! instruction counter and says so in the context, so the exact count can be
//! restored. The vm takes the notes between slices, writes them to the
//! recording and makes them pending for the guest. Like `fault`, the handler
//! touches neither thread-local storage nor the allocator.
//!
//! The SIGPIPE of a write that failed is not noted: the guest gets its own from
//! the result of the write, which needs no record. Of what the guest ignores the
//! host ignores what has effects of its own there (children reaped by nobody,
//! background writes to a terminal).

use crate::context::{BREAK, Context};
use crate::kernel::signal::SignalInfo;
use crate::{Error, fault, host, interruption, layout, recorder};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Notes not yet taken: a ring with one writer (the handler, which is never
/// interrupted by another signal) and one reader (the vm).
const ROOM: usize = 256;
static mut NOTES: [[u8; 128]; ROOM] = [[0; 128]; ROOM];
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Another process of the recording has sent SIGKILL.
static KILLED: AtomicBool = AtomicBool::new(false);

/// What it sends in SIGKILL's place: one that every vm handles.
const REQUEST: i32 = libc::SIGFPE;
const REQUEST_CODE: i32 = -100;
const REQUEST_VALUE: u64 = 0x6465_6164_6865_6174;

/// Signals that ask a program to come to its end.
pub const ENDING: [i32; 2] = [libc::SIGINT, libc::SIGTERM];

/// A vm that has not died so long after it was asked to is killed.
const GRACE_SECONDS: u64 = 10;

/// Signals that were ignored when the process started, before the Rust
/// run-time changed SIGPIPE.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_ignored;

extern "C" fn note_ignored() {
    let mut ignored = 0;
    for signal in 1..=64 {
        // SAFETY: reads the action of a signal into a local; the C library
        // refuses its own signals with an error.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
            {
                ignored |= 1 << (signal - 1);
            }
        }
    }
    IGNORED_AT_START.store(ignored, Ordering::Relaxed);
}

/// The set of signals this process was started with as ignored.
pub fn ignored_at_start() -> u64 {
    IGNORED_AT_START.load(Ordering::Relaxed)
}

/// The C library keeps 32 and 33 for itself, SIGKILL and SIGSTOP belong to
/// the kernel, exceptions to `fault`.
fn ours(signal: i32) -> bool {
    (1..=64).contains(&signal)
        && ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(&signal)
        && !fault::SIGNALS.contains(&signal)
}

/// Notes every signal from outside from now on.
pub fn install() -> Result<(), Error> {
    for signal in (1..=64).filter(|signal| ours(*signal)) {
        if ignored_at_start() & (1 << (signal - 1)) == 0 {
            set_action(signal, noting as *const () as usize, 0);
        }
    }
    Ok(())
}

/// The kernel sends this for a write of this process that nobody can read. What
/// the guest sends itself does not come this way.
fn is_own_pipe(signal: i32, info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes a valid structure, whose sender is set in all
    // signals that processes and broken pipes make.
    signal == libc::SIGPIPE
        && unsafe { (*info).si_code == libc::SI_USER && (*info).si_pid() == libc::getpid() }
}

fn set_action(signal: i32, handler: usize, flags: i32) {
    // Reads and writes of a terminal by a background process must come back
    // instead of being tried again for ever.
    let restart = if signal == libc::SIGTTIN || signal == libc::SIGTTOU {
        0
    } else {
        libc::SA_RESTART
    };
    // SAFETY: the handler matches SA_SIGINFO's signature; every signal is
    // blocked while it runs.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restart | flags;
        libc::sigfillset(&mut action.sa_mask);
        for exception in fault::SIGNALS {
            libc::sigdelset(&mut action.sa_mask, exception);
        }
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// Notes a signal. Called by host handlers only.
pub fn note(info: *const libc::siginfo_t) {
    let written = WRITTEN.load(Ordering::Relaxed);
    if written - TAKEN.load(Ordering::Acquire) < ROOM {
        // SAFETY: the slot is free until `WRITTEN` moves on; a siginfo_t has
        // 128 bytes.
        unsafe {
            let slot = (&raw mut NOTES).cast::<[u8; 128]>().add(written % ROOM);
            std::ptr::copy_nonoverlapping(info.cast::<u8>(), slot.cast::<u8>(), 128);
        }
        WRITTEN.store(written + 1, Ordering::Release);
    }
}

/// Makes the running slice end if `pc` is in translated code.
pub fn break_slice(pc: u64) {
    if (layout::CACHE..layout::CACHE + layout::CACHE_SIZE).contains(&pc) {
        // SAFETY: the context is mapped before translated code runs, and that
        // code, interrupted here, changes the counter by single instructions.
        unsafe {
            let context = layout::CONTEXT as *mut Context;
            if (*context).broken == 0 {
                (*context).remaining -= BREAK;
                (*context).broken = BREAK;
            }
        }
    }
}

extern "C" fn noting(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if is_own_pipe(signal, info) {
        return;
    }
    note(info);
    if ENDING.contains(&signal) {
        interruption::has_reached();
    }
    // SAFETY: the kernel passes a valid context.
    let pc = unsafe {
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] as u64
    };
    break_slice(pc);
}

/// Asks another vm of the recording to end as if by SIGKILL; the kernel's
/// convention for errors.
pub fn ask_to_die(pid: i32) -> i64 {
    let mut info = SignalInfo::new(REQUEST, REQUEST_CODE);
    info.put(16, std::process::id());
    info.put_long(24, REQUEST_VALUE);
    let arguments = [
        pid as u64,
        REQUEST as u64,
        info.bytes.as_ptr() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: a siginfo_t of ours.
    unsafe { host::syscall(libc::SYS_rt_sigqueueinfo, arguments) }
}

/// True if the signal is such a request, which is then taken. For the host
/// handler: only system calls that a handler may make.
pub fn take_request(info: *const libc::siginfo_t) -> bool {
    // SAFETY: a siginfo_t has 128 bytes; the kernel's own code and value are
    // where `SignalInfo` puts them.
    let (code, value) = unsafe {
        let bytes = info.cast::<u8>();
        (
            bytes.add(8).cast::<i32>().read_unaligned(),
            bytes.add(24).cast::<u64>().read_unaligned(),
        )
    };
    if ![REQUEST_CODE, libc::SI_TIMER].contains(&code) || value != REQUEST_VALUE {
        return false;
    }
    if !KILLED.swap(true, Ordering::SeqCst) {
        // In case it waits for something that never comes.
        send_later(libc::SIGKILL, Duration::from_secs(GRACE_SECONDS));
    }
    true
}

/// Sends this process a signal after a while, with the value of a request. For
/// handlers as well: only system calls. If there can be no timer it does not
/// come.
fn send_later(signal: i32, after: Duration) {
    // SAFETY: out-parameters and structures on the stack.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr = REQUEST_VALUE as *mut libc::c_void;
        let mut timer = 0i32;
        let mut when: libc::itimerspec = std::mem::zeroed();
        when.it_value.tv_sec = after.as_secs() as i64;
        when.it_value.tv_nsec = after.subsec_nanos().into();
        let clock = libc::CLOCK_MONOTONIC as u64;
        let created = host::syscall(
            libc::SYS_timer_create,
            [
                clock,
                &raw const event as u64,
                &raw mut timer as u64,
                0,
                0,
                0,
            ],
        );
        if created == 0 {
            let when = &raw const when as u64;
            host::syscall(libc::SYS_timer_settime, [timer as u64, 0, when, 0, 0, 0]);
        }
    }
}

/// What ends the program when somebody asks for it from outside.
static ENDS: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicI32 = AtomicI32::new(0);
static ASKED_AT: AtomicU64 = AtomicU64::new(0);

/// Whoever asks the program to end wants it to end.
pub fn end_when_asked() {
    ENDS.store(true, Ordering::SeqCst);
}

/// Somebody asks for it with this signal, which the program gets as well.
pub fn ask_to_end(signal: i32) {
    if !ENDS.load(Ordering::SeqCst) {
        return;
    }
    let now = interruption::nanoseconds();
    if ASKED.swap(signal, Ordering::SeqCst) == 0 {
        ASKED_AT.store(now, Ordering::SeqCst);
        send_later(REQUEST, recorder::LONG_LAST_WORDS);
    } else if now - ASKED_AT.load(Ordering::SeqCst) >= interruption::TOGETHER.as_nanos() as u64 {
        KILLED.store(true, Ordering::SeqCst);
    }
}

/// The signal it was asked with.
pub fn asked_to_end() -> Option<i32> {
    let signal = ASKED.load(Ordering::SeqCst);
    (signal != 0).then_some(signal)
}

/// True if there are notes to take.
pub fn noted() -> bool {
    KILLED.load(Ordering::Acquire)
        || WRITTEN.load(Ordering::Acquire) != TAKEN.load(Ordering::Relaxed)
}

/// The oldest note; SIGKILL before all others.
pub fn take() -> Option<SignalInfo> {
    if KILLED.swap(false, Ordering::SeqCst) {
        return Some(SignalInfo::new(libc::SIGKILL, 0));
    }
    let taken = TAKEN.load(Ordering::Relaxed);
    if WRITTEN.load(Ordering::Acquire) == taken {
        return None;
    }
    // SAFETY: the writer has finished this slot and leaves it alone until
    // `TAKEN` moves on.
    let bytes = unsafe { NOTES[taken % ROOM] };
    TAKEN.store(taken + 1, Ordering::Release);
    Some(SignalInfo { bytes })
}

/// A forked child does not inherit pending signals.
pub fn forget() {
    KILLED.store(false, Ordering::SeqCst);
    TAKEN.store(WRITTEN.load(Ordering::Acquire), Ordering::Release);
}

/// The guest has set an action: what it ignores is ignored here, and children
/// report as it wants.
pub fn mirror(signal: i32, ignored: bool, flags: u64) {
    if !ours(signal) {
        return;
    }
    // What is ignored and blocked is waited for all the same (sigwaitinfo), so the
    // host ignores only what it, or deadheat, acts upon.
    let ends = ENDING.contains(&signal);
    let acts = ends || [libc::SIGCHLD, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
    if ignored && acts && !(ends && ENDS.load(Ordering::SeqCst)) {
        // SAFETY: ignoring a signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    } else {
        let mirrored = if signal == libc::SIGCHLD {
            flags as i32 & (libc::SA_NOCLDWAIT | libc::SA_NOCLDSTOP)
        } else {
            0
        };
        set_action(signal, noting as *const () as usize, mirrored);
    }
}

/// Blocks SIGTTIN and SIGTTOU as in the guest's mask: then a background
/// process may use the terminal.
pub fn block_terminal_signals(mask: u64) {
    for signal in [libc::SIGTTIN, libc::SIGTTOU] {
        let how = if mask & (1 << (signal - 1)) != 0 {
            libc::SIG_BLOCK
        } else {
            libc::SIG_UNBLOCK
        };
        // SAFETY: a set on the stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::sigprocmask(how, &set, std::ptr::null_mut());
        }
    }
}

/// Stops this process as the signal's default action would, until SIGCONT.
pub fn stop(signal: i32) {
    // SAFETY: the default action is in place only while the signal is raised.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        if signal != libc::SIGSTOP {
            libc::sigaction(signal, &default, &mut old);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, &mut before);
        libc::raise(signal);
        libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if signal != libc::SIGSTOP {
            libc::sigaction(signal, &old, std::ptr::null_mut());
        }
    }
}

/// Does something while no signal can come.
pub fn held<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sets on the stack.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, &mut before);
        let result = work();
        libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Waits with `ppoll` such that a signal noted before or during the wait ends
/// it.
pub fn poll(descriptors: &mut [libc::pollfd], timeout: Option<&libc::timespec>) -> i32 {
    // SAFETY: sets on the stack; the slice and the timespec live across the
    // call.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &all, &mut before);
        let count = if noted() {
            -1
        } else {
            libc::ppoll(
                descriptors.as_mut_ptr(),
                descriptors.len() as u64,
                timeout.map_or(std::ptr::null(), |time| time),
                &before,
            )
        };
        libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        count
    }
}
