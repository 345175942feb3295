//! Releases seen where they happen: the run-time defines the functions of the
//! C library that publish something to another thread, counts the epoch, and
//! goes on to the real one. Being symbols of the executable they are found
//! first by every library, so calls through pointers and from code that was
//! compiled without monitors are seen too (paper 004, section 3.4 leaves those
//! out and says how they could be had).
//!
//! A release is whatever another thread can wait for or look up: unlocking,
//! signalling, posting, creating and ending threads; writing to a pipe, a
//! socket or an event; sending a signal; giving memory back. The end of a thread
//! is one when it is joined (see `threads`).

use crate::monitor::{self, Asker};
use crate::threads;
use crate::{exit, history, options, races, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

type Word = usize;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    fn malloc_usable_size(block: *mut c_void) -> usize;
    fn pthread_key_create(key: *mut u32, end: Option<unsafe extern "C" fn(*mut c_void)>) -> c_int;
    fn pthread_setspecific(key: u32, value: *const c_void) -> c_int;
    fn __register_atfork(
        before: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        module: *mut c_void,
    ) -> c_int;
    fn pthread_attr_getstacksize(attributes: *const c_void, size: *mut usize) -> c_int;
    fn pthread_attr_getdetachstate(attributes: *const c_void, state: *mut c_int) -> c_int;
    fn pthread_getattr_default_np(attributes: *mut c_void) -> c_int;
    fn pthread_attr_destroy(attributes: *mut c_void) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const u64, old: *mut u64) -> c_int;
}

const NEXT: *mut c_void = usize::MAX as *mut c_void;

/// The function that ours stands before.
pub struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Real {
            name,
            at: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    fn get(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // Condition variables changed their layout once; the old version must
        // not be taken for the new one.
        let versioned = self.name.to_bytes().starts_with(b"pthread_cond_");
        // SAFETY: both names end in a zero.
        let found = unsafe {
            let new = if versioned {
                dlvsym(NEXT, self.name.as_ptr(), c"GLIBC_2.3.2".as_ptr())
            } else {
                core::ptr::null_mut()
            };
            if new.is_null() {
                dlsym(NEXT, self.name.as_ptr())
            } else {
                new
            }
        };
        if found.is_null() {
            missing(self.name);
        }
        self.at.store(found, Ordering::Relaxed);
        found
    }
}

#[cold]
fn missing(name: &CStr) -> ! {
    let mut text = crate::text::Text::to(2);
    text.str("deadheat: the program calls ")
        .bytes(name.to_bytes())
        .str(", which no loaded library defines\n")
        .flush();
    sys::exit_group(70)
}

/// Functions that release and are otherwise passed through. All arguments are
/// words in registers (none of these takes floating point or a structure by
/// value), the result is a word.
macro_rules! releasing {
    ($($name:ident ( $($argument:ident),* );)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: Word),*) -> Word {
                static REAL: Real = Real::new(unsafe {
                    // SAFETY: the literal ends in the zero that is put there.
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                threads::release();
                // SAFETY: the real function of this name takes these words.
                unsafe {
                    let real: unsafe extern "C" fn($($argument: Word),*) -> Word =
                        core::mem::transmute(REAL.get());
                    real($($argument),*)
                }
            }
        )*
    };
}

releasing! {
    pthread_mutex_unlock(a);
    pthread_rwlock_unlock(a);
    pthread_spin_unlock(a);
    pthread_cond_wait(a, b);
    pthread_cond_timedwait(a, b, c);
    pthread_cond_clockwait(a, b, c, d);
    pthread_cond_signal(a);
    pthread_cond_broadcast(a);
    pthread_barrier_wait(a);
    pthread_mutex_destroy(a);
    pthread_cancel(a);
    pthread_sigqueue(a, b, c);
    sem_post(a);
    sem_close(a);
    mtx_unlock(a);
    cnd_wait(a, b);
    cnd_timedwait(a, b, c);
    cnd_signal(a);
    cnd_broadcast(a);
    write(a, b, c);
    writev(a, b, c);
    pwrite(a, b, c, d);
    pwrite64(a, b, c, d);
    pwritev(a, b, c, d);
    send(a, b, c, d);
    sendto(a, b, c, d, e, f);
    sendmsg(a, b, c);
    sendmmsg(a, b, c, d);
    sendfile(a, b, c, d);
    sendfile64(a, b, c, d);
    splice(a, b, c, d, e, f);
    tee(a, b, c, d);
    vmsplice(a, b, c, d);
    eventfd_write(a, b);
    close(a);
    shutdown(a, b);
    connect(a, b, c);
    epoll_ctl(a, b, c, d);
    timerfd_settime(a, b, c, d);
    timer_settime(a, b, c, d);
    kill(a, b);
    raise(a);
    sigqueue(a, b, c);
    semop(a, b, c);
    semtimedop(a, b, c, d);
    msgsnd(a, b, c, d);
    mq_send(a, b, c, d);
    mq_timedsend(a, b, c, d, e);
    flock(a, b);
    lockf(a, b, c);
    ftruncate(a, b);
    rename(a, b);
    unlink(a);
    mkdir(a, b);
    rmdir(a);
    munmap(a, b);
    mremap(a, b, c, d, e);
    madvise(a, b, c);
    msync(a, b, c);
    mprotect(a, b, c);
    shmdt(a);
    brk(a);
    sbrk(a);
    funlockfile(a);
    aio_write(a);
    aio_read(a);
    lio_listio(a, b, c, d);
    posix_spawn(a, b, c, d, e, f);
    posix_spawnp(a, b, c, d, e, f);
}

/// Functions that tell a failure by their result, which may be that a thread is
/// gone.
macro_rules! asking {
    ($($name:ident ( $($argument:ident),* ) if $asks:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: Word),*) -> Word {
                static REAL: Real = Real::new(unsafe {
                    // SAFETY: the literal ends in the zero that is put there.
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                threads::release();
                // SAFETY: the real function of this name takes these words.
                let result = unsafe {
                    let real: unsafe extern "C" fn($($argument: Word),*) -> Word =
                        core::mem::transmute(REAL.get());
                    real($($argument),*)
                };
                if result as c_int != 0 && $asks {
                    threads::ends_were_seen();
                }
                result
            }
        )*
    };
}

/// System calls that find a thread gone.
const TKILL: Word = 200;
const TGKILL: Word = 234;
const TGSIGQUEUEINFO: Word = 297;

asking! {
    pthread_kill(a, b) if true;
    tgkill(a, b, c) if true;
    syscall(a, b, c, d, e, f, g) if matches!(a, TKILL | TGKILL | TGSIGQUEUEINFO);
}

/// Functions that wait for the end of the thread `a` and give 0 once it has
/// ended.
macro_rules! joining {
    ($($name:ident ( $($argument:ident),* );)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(a: Word, $($argument: Word),*) -> Word {
                static REAL: Real = Real::new(unsafe {
                    // SAFETY: the literal ends in the zero that is put there.
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                let thread = threads::current();
                if let Some(thread) = &thread {
                    thread.joining.store(a, Ordering::Relaxed);
                }
                // SAFETY: the real function of this name takes these words.
                let result = unsafe {
                    let real: unsafe extern "C" fn(Word, $($argument: Word),*) -> Word =
                        core::mem::transmute(REAL.get());
                    real(a, $($argument),*)
                };
                if let Some(thread) = &thread {
                    thread.joining.store(0, Ordering::Relaxed);
                }
                if result as c_int == 0 {
                    threads::inherit(a);
                }
                result
            }
        )*
    };
}

joining! {
    pthread_join(b);
    pthread_tryjoin_np(b);
    pthread_timedjoin_np(b, c);
    pthread_clockjoin_np(b, c, d);
    thrd_join(b);
}

/// Before and after the real function: the thread may begin and end in between.
macro_rules! detaching {
    ($($name:ident ( $argument:ident );)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($argument: Word) -> Word {
                static REAL: Real = Real::new(unsafe {
                    // SAFETY: the literal ends in the zero that is put there.
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                threads::release();
                threads::detached($argument);
                // SAFETY: the real function of this name takes a handle.
                let result = unsafe {
                    let real: unsafe extern "C" fn(Word) -> Word =
                        core::mem::transmute(REAL.get());
                    real($argument)
                };
                threads::joined($argument);
                result
            }
        )*
    };
}

detaching! {
    pthread_detach(a);
    thrd_detach(a);
}

static SETROBUST: Real = Real::new(c"pthread_mutexattr_setrobust");

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutexattr_setrobust(attributes: *mut c_void, robust: c_int) -> c_int {
    if robust != 0 {
        threads::ROBUST.store(true, Ordering::Relaxed);
        threads::ends_were_seen();
    }
    // SAFETY: the real function.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, c_int) -> c_int =
            core::mem::transmute(SETROBUST.get());
        real(attributes, robust)
    }
}

// ---- memory ---------------------------------------------------------------

static FREE: Real = Real::new(c"free");
static REALLOC: Real = Real::new(c"realloc");
static REALLOCARRAY: Real = Real::new(c"reallocarray");
/// While the real functions are being looked up, a block to be freed is left.
static LOOKING: AtomicBool = AtomicBool::new(true);
/// Set by freeing nothing: shows that the program's `free` is the one here.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// Where the caller of this function is, for the report of a free.
macro_rules! asker {
    () => {{
        let frame: usize;
        // SAFETY: reads a register.
        unsafe {
            core::arch::asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack));
        }
        frame
    }};
}

#[inline(never)]
fn giving_back(block: *mut c_void, frame: usize) {
    if threads::is_ready() && !threads::alone() {
        // This archive is compiled with frame pointers: `frame` is the frame
        // of `free`, whose return address is the site.
        // SAFETY: a live frame of this thread.
        let (frame, site) = unsafe { (*(frame as *const usize), *((frame + 8) as *const usize)) };
        // SAFETY: the program gives back a block it got from this allocator.
        let size = unsafe { malloc_usable_size(block) };
        monitor::free(block as usize, size, Asker::at(site, frame));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        IS_OURS.store(true, Ordering::Relaxed);
        return;
    }
    if LOOKING.load(Ordering::Relaxed) && FREE.at.load(Ordering::Relaxed).is_null() {
        return;
    }
    giving_back(block, asker!());
    // SAFETY: the real `free`.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void) = core::mem::transmute(FREE.get());
        real(block);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if !block.is_null() {
        giving_back(block, asker!());
    }
    // SAFETY: the real `realloc`.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void =
            core::mem::transmute(REALLOC.get());
        real(block, size)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    if !block.is_null() {
        giving_back(block, asker!());
    }
    // SAFETY: the real `reallocarray`.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void =
            core::mem::transmute(REALLOCARRAY.get());
        real(block, count, size)
    }
}

// ---- threads --------------------------------------------------------------

type Routine = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// What a new thread is to run; handed over in a slot of our own.
struct Birth {
    taken: AtomicBool,
    routine: AtomicPtr<c_void>,
    argument: AtomicPtr<c_void>,
    created_at: [AtomicUsize; 8],
    stack_size: AtomicUsize,
    detached: AtomicBool,
}

const BIRTHS: usize = 512;
static BIRTH: [Birth; BIRTHS] = [const {
    Birth {
        taken: AtomicBool::new(false),
        routine: AtomicPtr::new(core::ptr::null_mut()),
        argument: AtomicPtr::new(core::ptr::null_mut()),
        created_at: [const { AtomicUsize::new(0) }; 8],
        stack_size: AtomicUsize::new(0),
        detached: AtomicBool::new(false),
    }
}; BIRTHS];

/// How large stacks are that nobody asked for another size of.
static STACK_SIZE: AtomicUsize = AtomicUsize::new(8 << 20);
/// glibc's `PTHREAD_DESTRUCTOR_ITERATIONS`.
const ROUNDS: usize = 4;

static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static CREATE: Real = Real::new(c"pthread_create");
static THRD_CREATE: Real = Real::new(c"thrd_create");

/// In the last of the rounds in which a thread's keys are given up: what others
/// do in theirs is still seen.
unsafe extern "C" fn ended(round: *mut c_void) {
    let round = round as usize;
    if round < ROUNDS {
        // SAFETY: the key was made at start-up.
        unsafe {
            pthread_setspecific(KEY.load(Ordering::Relaxed), (round + 1) as *const c_void);
        }
        return;
    }
    threads::end();
}

fn begin(birth: &Birth) -> (*mut c_void, *mut c_void) {
    let top = 0usize;
    let mut created_at = [0; 8];
    for (place, value) in created_at.iter_mut().zip(&birth.created_at) {
        *place = value.load(Ordering::Relaxed);
    }
    let work = (
        birth.routine.load(Ordering::Relaxed),
        birth.argument.load(Ordering::Relaxed),
    );
    // Frames above this one are the library's.
    let origin = threads::Origin {
        stack_top: (&raw const top) as usize + 256,
        stack_size: birth.stack_size.load(Ordering::Relaxed),
        detached: birth.detached.load(Ordering::Relaxed),
        created_at: &created_at,
    };
    birth.taken.store(false, Ordering::Release);
    threads::enter(&origin);
    // SAFETY: the key was made at start-up; any value but null calls `ended`.
    unsafe { pthread_setspecific(KEY.load(Ordering::Relaxed), 1 as *const c_void) };
    work
}

unsafe extern "C" fn run_posix(birth: *mut c_void) -> *mut c_void {
    // SAFETY: `hand_over` passed this slot.
    let (routine, argument) = begin(unsafe { &*birth.cast::<Birth>() });
    // SAFETY: what the program gave to pthread_create.
    unsafe {
        let routine: Routine = core::mem::transmute(routine);
        routine(argument)
    }
}

unsafe extern "C" fn run_c11(birth: *mut c_void) -> c_int {
    // SAFETY: `hand_over` passed this slot.
    let (routine, argument) = begin(unsafe { &*birth.cast::<Birth>() });
    // SAFETY: what the program gave to thrd_create.
    unsafe {
        let routine: unsafe extern "C" fn(*mut c_void) -> c_int = core::mem::transmute(routine);
        routine(argument)
    }
}

fn hand_over(
    routine: *mut c_void,
    argument: *mut c_void,
    attributes: *const c_void,
    frame: usize,
) -> Option<&'static Birth> {
    let birth = BIRTH.iter().find(|birth| {
        birth
            .taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    })?;
    birth.routine.store(routine, Ordering::Relaxed);
    birth.argument.store(argument, Ordering::Relaxed);
    let (mut stack_size, mut detached) = (STACK_SIZE.load(Ordering::Relaxed), 0);
    if !attributes.is_null() {
        // SAFETY: the attributes that the program gives to pthread_create.
        unsafe {
            pthread_attr_getstacksize(attributes, &mut stack_size);
            pthread_attr_getdetachstate(attributes, &mut detached);
        }
    }
    birth.stack_size.store(stack_size, Ordering::Relaxed);
    birth.detached.store(detached != 0, Ordering::Relaxed);
    let mut frames = [0; 8];
    if let Some(thread) = threads::current() {
        history::walk(frame, thread.stack_top, &mut frames);
    }
    for (place, value) in birth.created_at.iter().zip(frames) {
        place.store(value, Ordering::Relaxed);
    }
    Some(birth)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create =
        unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, *mut c_void) -> c_int;
    let frame = asker!();
    // SAFETY: the real pthread_create.
    let real: Create = unsafe { core::mem::transmute(CREATE.get()) };
    // `expect_another` first: it may wake this thread's monitors.
    threads::expect_another();
    sampler();
    threads::release();
    let failed = match hand_over(routine, argument, attributes, frame) {
        Some(birth) => {
            let at = core::ptr::from_ref(birth).cast_mut().cast();
            // SAFETY: as the program asked, with our routine around its own.
            let failed = unsafe { real(thread, attributes, run_posix as *mut c_void, at) };
            if failed != 0 {
                birth.taken.store(false, Ordering::Release);
            }
            failed
        }
        // Too many at once: the thread runs without monitors.
        // SAFETY: as the program asked.
        None => unsafe { real(thread, attributes, routine, argument) },
    };
    if failed != 0 {
        threads::one_less();
    }
    failed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(
    thread: *mut c_void,
    routine: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;
    let frame = asker!();
    // SAFETY: the real thrd_create.
    let real: Create = unsafe { core::mem::transmute(THRD_CREATE.get()) };
    threads::expect_another();
    sampler();
    threads::release();
    let failed = match hand_over(routine, argument, core::ptr::null(), frame) {
        Some(birth) => {
            let at = core::ptr::from_ref(birth).cast_mut().cast();
            // SAFETY: as the program asked, with our routine around its own.
            let failed = unsafe { real(thread, run_c11 as *mut c_void, at) };
            if failed != 0 {
                birth.taken.store(false, Ordering::Release);
            }
            failed
        }
        // SAFETY: as the program asked.
        None => unsafe { real(thread, routine, argument) },
    };
    if failed != 0 {
        threads::one_less();
    }
    failed
}

// ---- once -----------------------------------------------------------------

// The routine's work is published when it ends, inside the real function, so
// the release must come between: the routine is wrapped. A thread is in one
// routine at a time, or in nested ones, which the saved pointer restores.
static ONCE: Real = Real::new(c"pthread_once");
static CALL_ONCE: Real = Real::new(c"call_once");

core::arch::global_asm!(
    ".section .tbss.__deadheat_ifr_once,\"awT\",@nobits",
    ".type __deadheat_ifr_once,@object",
    ".size __deadheat_ifr_once, 8",
    ".p2align 3",
    "__deadheat_ifr_once:",
    ".zero 8",
    ".text",
);

fn pending() -> &'static AtomicPtr<c_void> {
    let at: *const AtomicPtr<c_void>;
    // SAFETY: defined above; every thread has its own.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + __deadheat_ifr_once@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) at, options(nostack, readonly));
        &*at
    }
}

unsafe extern "C" fn run_once() {
    let routine = pending().load(Ordering::Relaxed);
    // SAFETY: `once` stored the program's routine.
    unsafe {
        let routine: unsafe extern "C" fn() = core::mem::transmute(routine);
        routine();
    }
    threads::release();
}

unsafe fn once(real: &Real, control: *mut c_void, routine: *mut c_void) -> c_int {
    let before = pending().swap(routine, Ordering::Relaxed);
    threads::release();
    // SAFETY: the real function of either name takes these; the result of
    // call_once is not looked at.
    let result = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int =
            core::mem::transmute(real.get());
        real(control, run_once as *mut c_void)
    };
    pending().store(before, Ordering::Relaxed);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_once(control: *mut c_void, routine: *mut c_void) -> c_int {
    // SAFETY: passed through.
    unsafe { once(&ONCE, control, routine) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn call_once(control: *mut c_void, routine: *mut c_void) {
    // SAFETY: passed through.
    unsafe { once(&CALL_ONCE, control, routine) };
}

// ---- processes ------------------------------------------------------------

static FORK: Real = Real::new(c"fork");
static EXIT: Real = Real::new(c"_exit");

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> c_int {
    threads::release();
    // SAFETY: the real fork, which runs `forked` in the child.
    unsafe {
        let real: unsafe extern "C" fn() -> c_int = core::mem::transmute(FORK.get());
        real()
    }
}

/// In the child of any fork, also those that the C library makes by itself.
unsafe extern "C" fn forked() {
    threads::after_fork();
    races::forget();
    monitor::forget();
    exit::new_process();
    SAMPLING.store(false, Ordering::Relaxed);
}

/// Functions that put another program into this process: what was found so far
/// is told before.
macro_rules! replacing {
    ($($name:ident ( $($argument:ident),* );)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: Word),*) -> Word {
                static REAL: Real = Real::new(unsafe {
                    // SAFETY: the literal ends in the zero that is put there.
                    CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                });
                threads::release();
                exit::before_exec();
                // SAFETY: the real function of this name takes these words.
                unsafe {
                    let real: unsafe extern "C" fn($($argument: Word),*) -> Word =
                        core::mem::transmute(REAL.get());
                    real($($argument),*)
                }
            }
        )*
    };
}

replacing! {
    execv(a, b);
    execve(a, b, c);
    execvp(a, b);
    execvpe(a, b, c);
    fexecve(a, b, c);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(code: c_int) -> ! {
    let code = exit::tell(exit::End::Code(code));
    sys::exit_group(code)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(code: c_int) -> ! {
    let code = exit::tell(exit::End::Code(code));
    sys::exit_group(code)
}

// ---- libraries ------------------------------------------------------------

static DLOPEN: Real = Real::new(c"dlopen");

#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    threads::release();
    // SAFETY: the real dlopen.
    let handle = unsafe {
        let real: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
            core::mem::transmute(DLOPEN.get());
        real(name, flags)
    };
    if !handle.is_null() {
        crate::foreign::prepare();
    }
    handle
}

// ---- sampling -------------------------------------------------------------

static SAMPLING: AtomicBool = AtomicBool::new(false);

/// The cap is refilled this often: all sites of all threads at once, so that
/// those that meet are open together.
const REFILL_MICROS: u64 = 10_000;

/// How often the spent time is compared with the budget.
const BUDGET_MICROS: u64 = 1_000;

/// One percent of a sampling period of a tenth of a second. The paper's period
/// is a second, which programs of a second never see twice.
const WINDOW_MICROS: u64 = 1_000;

unsafe extern "C" fn sample(_: *mut c_void) -> *mut c_void {
    let share = u64::from(options::SAMPLE.load(Ordering::Relaxed));
    let budget = u64::from(options::BUDGET.load(Ordering::Relaxed));
    if budget != 0 && share >= 100 {
        keep_budget(budget);
    }
    if share < 100 {
        // The first window opens somewhere in the first period, so that short
        // programs are not always seen from their start.
        let phase = u64::from(sys::process_id()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        sys::sleep_micros(phase % ((100 - share) * WINDOW_MICROS));
    }
    loop {
        threads::refill();
        if share >= 100 {
            sys::sleep_micros(REFILL_MICROS);
            continue;
        }
        threads::window(true);
        sys::sleep_micros(share * WINDOW_MICROS);
        threads::window(false);
        sys::sleep_micros((100 - share) * WINDOW_MICROS);
    }
}

/// Monitors run while the time that they took is below `budget` percent of the
/// time that the threads had, of this and all periods before.
fn keep_budget(budget: u64) -> ! {
    let (mut before, _) = threads::spent();
    let mut clock = sys::cycles();
    let mut open = true;
    // What was spent above what was allowed; never saved up below nothing.
    let mut debt = 0i128;
    let mut periods = 0u64;
    loop {
        sys::sleep_micros(BUDGET_MICROS);
        let (spent, live) = threads::spent();
        let at = sys::cycles();
        let threads = live.min(sys::processors()).max(1);
        let had = at.wrapping_sub(clock).saturating_mul(threads);
        debt += i128::from(spent.wrapping_sub(before));
        debt = (debt - i128::from(had / 100 * budget)).max(0);
        (before, clock) = (spent, at);
        periods += 1;
        if periods.is_multiple_of(REFILL_MICROS / BUDGET_MICROS) {
            threads::refill();
        }
        if open != (debt == 0) {
            open = debt == 0;
            threads::window(open);
        }
    }
}

/// Starts the thread that opens and closes windows, once it is needed.
fn sampler() {
    let wanted = options::SAMPLE.load(Ordering::Relaxed) < 100
        || options::BUDGET.load(Ordering::Relaxed) != 0
        || options::CAP.load(Ordering::Relaxed) != 0;
    if !wanted || !threads::is_ready() || SAMPLING.swap(true, Ordering::Relaxed) {
        return;
    }
    type Create =
        unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, *mut c_void) -> c_int;
    if options::SAMPLE.load(Ordering::Relaxed) < 100 {
        threads::window(false);
    }
    let mut handle = 0usize;
    let (all, mut before) = ([u64::MAX; 16], [0u64; 16]);
    // SAFETY: the real functions; the thread never touches the program's data
    // and takes none of its signals.
    unsafe {
        let create: Create = core::mem::transmute(CREATE.get());
        pthread_sigmask(0, all.as_ptr(), before.as_mut_ptr());
        create(
            (&raw mut handle).cast(),
            core::ptr::null(),
            sample as *mut c_void,
            core::ptr::null_mut(),
        );
        pthread_sigmask(2, before.as_ptr(), core::ptr::null_mut());
    }
}

// ---- start-up -------------------------------------------------------------

/// Finds what must be known before the program runs, and registers the main
/// thread.
pub fn prepare(stack_top: usize) {
    for real in [&FREE, &REALLOC, &CREATE, &FORK, &EXIT] {
        real.get();
    }
    LOOKING.store(false, Ordering::Relaxed);
    // A program that brings its own `free` takes this one's place; blocks would
    // change owner unseen.
    // SAFETY: `free` of nothing does nothing, whoever defines it.
    unsafe {
        let found = dlsym(core::ptr::null_mut(), c"free".as_ptr());
        if !found.is_null() {
            let found: unsafe extern "C" fn(*mut c_void) = core::mem::transmute(found);
            found(core::ptr::null_mut());
        }
        __register_atfork(None, None, Some(forked), core::ptr::null_mut());
    }
    if !IS_OURS.load(Ordering::Relaxed) {
        threads::give_up();
        sys::write_all(
            2,
            b"deadheat: the program defines free itself, so memory changes owner unseen; it runs without monitors\n",
        );
        return;
    }
    let mut key = 0;
    // SAFETY: the key is written; `ended` takes any value.
    if unsafe { pthread_key_create(&mut key, Some(ended)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
    // A `pthread_attr_t`.
    let mut attributes = [0u64; 7];
    let at = attributes.as_mut_ptr().cast::<c_void>();
    let mut size = 0;
    // SAFETY: the structure is large enough, is written by the first call and
    // given up by the last.
    unsafe {
        if pthread_getattr_default_np(at) == 0 {
            if pthread_attr_getstacksize(at, &mut size) == 0 && size != 0 {
                STACK_SIZE.store(size, Ordering::Relaxed);
            }
            pthread_attr_destroy(at);
        }
    }
    threads::count_main();
    threads::enter(&threads::Origin {
        stack_top,
        stack_size: 0,
        detached: false,
        created_at: &[0; 8],
    });
}
