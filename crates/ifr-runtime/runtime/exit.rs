//! Start of the program and its end: settings are read before anything of the
//! program runs, and races are told when it exits, calls `_exit`, or dies of a
//! signal.
//!
//! The run-time knows addresses only. It writes them down in lines of text (the
//! form is read by the crate `ifr-runtime`) and hands them to `deadheat
//! ifr-report`, whose path the pass put into the program; where that cannot be
//! run it prints modules and offsets itself.

use crate::history::Side;
use crate::text::{self, Text};
use crate::{foreign, interpose, options, races, sys, threads};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

unsafe extern "C" {
    fn on_exit(work: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn fflush(stream: *mut c_void) -> c_int;
}

/// How the program ends.
#[derive(Clone, Copy)]
pub enum End {
    Code(c_int),
    Signal(c_int),
}

static TOLD: AtomicBool = AtomicBool::new(false);
static ENVIRONMENT: AtomicPtr<*const u8> = AtomicPtr::new(core::ptr::null_mut());

#[used]
#[unsafe(link_section = ".preinit_array")]
static START: unsafe extern "C" fn(c_int, *const *const u8, *const *const u8) = start;

unsafe extern "C" fn start(
    _count: c_int,
    arguments: *const *const u8,
    environment: *const *const u8,
) {
    ENVIRONMENT.store(environment.cast_mut(), Ordering::Relaxed);
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    // SAFETY: the environment is a list of strings that ends in a null.
    unsafe {
        let mut at = environment;
        while !at.is_null() && !(*at).is_null() {
            let length = text::length(*at);
            let entry = core::slice::from_raw_parts(*at, length);
            if let Some(value) = entry.strip_prefix(b"DEADHEAT_IFR=")
                && let Err(piece) = options::read(value)
            {
                Text::to(2)
                    .str("deadheat: DEADHEAT_IFR does not know `")
                    .bytes(piece)
                    .str("`; it takes sample=PERCENT, cap=N, budget=PERCENT, signal=N, exitcode=N, json=FILE, stats=1, off=1, with commas between\n")
                    .flush();
                sys::exit_group(2);
            }
            at = at.add(1);
        }
    }
    if !threads::prepare() && options::OFF.load(Ordering::Relaxed) == 0 {
        Text::to(2)
            .str("deadheat: no room for the shadow memory (a limit on address space, or overcommit_memory=2?); the program runs without monitors\n")
            .flush();
    }
    // The arguments lie above every frame of the main thread.
    interpose::prepare(arguments as usize);
    foreign::prepare();
    // SAFETY: registered first, so it runs after the program's own handlers.
    unsafe { on_exit(at_exit, core::ptr::null_mut()) };
    for signal in FATAL {
        catch(signal);
    }
    let asked = options::SIGNAL.load(Ordering::Relaxed) as c_int;
    if asked != 0 && threads::is_ready() {
        on_demand(asked);
    }
}

unsafe extern "C" fn at_exit(code: c_int, _: *mut c_void) {
    let wanted = tell(End::Code(code));
    if wanted != code {
        // SAFETY: flushes all streams, as exit would have done after us.
        unsafe { fflush(core::ptr::null_mut()) };
        sys::exit_group(wanted);
    }
}

// ---- signals ----------------------------------------------------------------

/// SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGTERM, SIGINT.
const FATAL: [c_int; 7] = [4, 6, 7, 8, 11, 15, 2];

/// glibc's `struct sigaction` on x86-64.
#[repr(C)]
struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int;
}

unsafe extern "C" fn dying(signal: c_int) {
    tell(End::Signal(signal));
    sys::die_of(signal)
}

/// Takes a fatal signal that the program was started with at its default; the
/// program may still take it over.
fn catch(signal: c_int) {
    let mut before = Action {
        handler: 0,
        mask: [0; 16],
        flags: 0,
        restorer: 0,
    };
    let action = Action {
        handler: dying as *const () as usize,
        mask: [0; 16],
        // SA_RESETHAND | SA_ONSTACK
        flags: 0x8000_0000u32 as c_int | 0x0800_0000,
        restorer: 0,
    };
    // SAFETY: both structures have glibc's layout.
    unsafe {
        if sigaction(signal, core::ptr::null(), &mut before) == 0 && before.handler == 0 {
            sigaction(signal, &action, core::ptr::null_mut());
        }
    }
}

/// Takes the signal by which the user asks for what was found so far.
fn on_demand(signal: c_int) {
    let action = Action {
        handler: asked as *const () as usize,
        mask: [u64::MAX; 16],
        // SA_RESTART | SA_ONSTACK
        flags: 0x1000_0000 | 0x0800_0000,
        restorer: 0,
    };
    // SAFETY: the structure has glibc's layout.
    if unsafe { sigaction(signal, &action, core::ptr::null_mut()) } != 0 {
        Text::to(2)
            .str("deadheat: DEADHEAT_IFR=signal=")
            .number(signal as u64)
            .str(": this signal cannot be taken\n")
            .flush();
        sys::exit_group(2);
    }
}

/// Only system calls and our own memory: right in the middle of anything.
unsafe extern "C" fn asked(_: c_int) {
    publish(None);
}

// ---- telling ------------------------------------------------------------------

/// Tells of the races, once; what the process should exit with.
pub fn tell(end: End) -> c_int {
    let code = match end {
        End::Code(code) => code & 0xff,
        End::Signal(signal) => 128 + signal,
    };
    if TOLD.swap(true, Ordering::Relaxed) {
        return code;
    }
    if options::STATS.load(Ordering::Relaxed) != 0 {
        Text::to(2)
            .str("deadheat: ")
            .number(threads::monitors_started())
            .str(" monitors started\n")
            .flush();
    }
    publish(Some(end));
    let wanted = options::EXIT_CODE.load(Ordering::Relaxed) as c_int;
    if !races::records().is_empty() && code == 0 && wanted != 0 {
        return wanted;
    }
    code
}

/// Prints and writes what was found so far; `end` if the program ends with it.
fn publish(end: Option<End>) {
    // A last monitor may still be writing its record; nobody waits for it.
    let _held = races::LOCK.try_lock();
    let json = !options::JSON.load(Ordering::Relaxed).is_null();
    if races::records().is_empty() && !(json && threads::is_ready()) {
        return;
    }
    let log = sys::memory_file();
    let told = log >= 0 && {
        write_log(log, end);
        sys::rewind(log);
        let told = run_tool(log);
        sys::close(log);
        told
    };
    if !told {
        tell_plainly();
    }
}

static PROCESS: AtomicU32 = AtomicU32::new(0);

/// This is a forked child: it has told nothing yet.
pub fn new_process() {
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
    TOLD.store(false, Ordering::Relaxed);
}

/// Another program is about to take this one's place. Not in a child that only
/// borrows this memory (vfork).
pub fn before_exec() {
    if !races::records().is_empty() && PROCESS.load(Ordering::Relaxed) == sys::process_id() {
        tell(End::Code(0));
        // If that program cannot be started, this one goes on.
        races::forget();
        TOLD.store(false, Ordering::Relaxed);
    }
}

fn write_side(log: &mut Text, side: &Side) {
    log.str("side ")
        .str(side.kind())
        .str(" ")
        .number(u64::from(side.size))
        .str(" ")
        .number(u64::from(side.kernel_id))
        .str(" ")
        .number(side.number as u64)
        .str("\n");
    if side.site != 0 {
        log.str("frame ").hex(side.site as u64).str("\n");
        for &frame in side.frames.iter().take(side.depth) {
            log.str("frame ").hex(frame as u64).str("\n");
        }
    }
    for &frame in side.created_at.iter().take_while(|frame| **frame != 0) {
        log.str("created ").hex(frame as u64).str("\n");
    }
}

fn write_log(fd: i32, end: Option<End>) {
    let mut log = Text::to(fd);
    log.str("deadheat-ifr 1\n");
    let buffer = sys::map(FILE_BUFFER);
    let copy = |log: &mut Text, path: &CStr, change: fn(u8) -> u8| {
        if buffer.is_null() {
            return;
        }
        // SAFETY: mapped above with this size.
        let bytes = unsafe { core::slice::from_raw_parts_mut(buffer, FILE_BUFFER) };
        let length = sys::read_file(path, bytes);
        for &byte in bytes.iter().take(length) {
            log.bytes(&[change(byte)]);
        }
    };
    // Arguments end in zeros; a line break inside one would end the line.
    log.str("arguments ");
    copy(&mut log, c"/proc/self/cmdline", |byte| {
        if byte == b'\n' { b' ' } else { byte }
    });
    log.str("\n");
    match end {
        Some(End::Code(code)) => log.str("exit ").number((code & 0xff) as u64).str("\n"),
        Some(End::Signal(signal)) => log.str("signal ").number(signal as u64).str("\n"),
        None => &mut log,
    };
    log.str("monitors ")
        .number(threads::monitors_started())
        .str("\n");
    log.str("lost ").number(races::lost()).str("\n");
    log.str("unmonitored-threads ")
        .number(u64::from(threads::UNMONITORED.load(Ordering::Relaxed)))
        .str("\n");
    log.str("sample ")
        .number(u64::from(options::SAMPLE.load(Ordering::Relaxed)))
        .str("\n");
    log.str("cap ")
        .number(u64::from(options::CAP.load(Ordering::Relaxed)))
        .str("\n");
    log.str("budget ")
        .number(u64::from(options::BUDGET.load(Ordering::Relaxed)))
        .str("\n");
    foreign::write(&mut log);
    for record in races::current() {
        log.str("race ")
            .number(record.instances.load(Ordering::Relaxed))
            .str(" ")
            .hex(record.address as u64)
            .str("\n");
        for side in &record.sides {
            write_side(&mut log, side);
        }
    }
    log.str("maps\n");
    copy(&mut log, c"/proc/self/maps", |byte| byte);
}

/// Room for /proc/self/maps of a program with some ten thousand mappings.
const FILE_BUFFER: usize = 1 << 20;

core::arch::global_asm!(".weak __deadheat_ifr_tool");

/// The path of deadheat that the pass put beside `main`; null if there is none.
fn tool() -> *const u8 {
    let at: *const u8;
    // SAFETY: the address of a weak symbol, null if nobody defines it.
    unsafe {
        core::arch::asm!("mov {}, qword ptr [rip + __deadheat_ifr_tool@GOTPCREL]", out(reg) at,
            options(nostack, readonly, pure));
    }
    at
}

fn run_tool(log: i32) -> bool {
    let path = tool();
    if path.is_null() {
        return false;
    }
    let mut json = [0u8; options::LONGEST_NAME];
    let length = options::JSON_LENGTH.load(Ordering::Relaxed);
    let name = options::JSON.load(Ordering::Relaxed);
    let mut arguments: [*const u8; 5] = [core::ptr::null(); 5];
    arguments[0] = path;
    arguments[1] = c"ifr-report".as_ptr().cast();
    if !name.is_null() {
        // SAFETY: name and length were taken from the environment block.
        let given = unsafe { core::slice::from_raw_parts(name, length) };
        for (place, byte) in json.iter_mut().zip(given) {
            *place = *byte;
        }
        arguments[2] = c"--json-file".as_ptr().cast();
        arguments[3] = json.as_ptr();
    }
    // 2: the races are told, and so is why the JSON file cannot be written.
    let code = sys::run(path, &arguments, ENVIRONMENT.load(Ordering::Relaxed), log);
    matches!(code, Some(0 | 2))
}

/// Addresses by module, when nobody is there to name them.
fn tell_plainly() {
    let mut out = Text::to(2);
    for (number, record) in races::current().enumerate() {
        out.str("==================\ndata race #")
            .number(number as u64 + 1)
            .str("\n");
        for (which, side) in record.sides.iter().enumerate() {
            out.str(if which == 0 { "  " } else { "  previous " })
                .str(side.kind())
                .str(" of ")
                .number(u64::from(side.size))
                .str(" bytes at ")
                .hex(record.address as u64)
                .str(" by thread ")
                .number(u64::from(side.kernel_id))
                .str("\n");
            let mut depth = 0;
            let frames = side.frames.iter().take(side.depth);
            for &frame in core::iter::once(&side.site).chain(frames) {
                out.str("    #").number(depth).str(" ");
                foreign::name(&mut out, frame);
                out.str("\n");
                depth += 1;
            }
        }
    }
    if !races::records().is_empty() {
        out.str("==================\ndeadheat: the deadheat that compiled this program cannot be run here, so no lines are named; addr2line -e MODULE OFFSET does\n");
    }
}

/// Keeps the linker from dropping the interposed names' file.
#[used]
static NAME: unsafe extern "C" fn(*const c_char) -> usize = name_length;

unsafe extern "C" fn name_length(name: *const c_char) -> usize {
    // SAFETY: the caller's promise.
    unsafe { text::length(name.cast()) }
}
