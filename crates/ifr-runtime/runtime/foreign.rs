//! Code that synchronises by itself: libraries compiled without monitors that
//! contain locked instructions of their own. What happens inside them is not
//! seen, so all monitors are stopped on the way in, and when a function they
//! call back returns to them.
//!
//! On the way in: the entries of the instrumented modules' offset tables that
//! lead into such a library are pointed at a small piece of code that counts
//! the epoch and goes on. On the way back: the flag `__deadheat_ifr_foreign`
//! makes instrumented functions count at their end.
//!
//! Libraries that are known to synchronise only by interposed functions or only
//! inside themselves are trusted; the report names them.

use crate::decode::has_locked_instruction;
use crate::sys;
use crate::text::{self, Text};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

unsafe extern "C" {
    static __deadheat_ifr_foreign: AtomicU8;
    fn __deadheat_ifr_release();
    fn dl_iterate_phdr(
        visit: unsafe extern "C" fn(*const Info, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    alignment: u64,
}

#[repr(C)]
struct Info {
    base: usize,
    name: *const c_char,
    headers: *const Header,
    count: u16,
}

const LOAD: u32 = 1;
const EXECUTABLE: u32 = 1;
const UNWIND: u32 = 0x6474_e550;

/// By the start of the file name.
const TRUSTED: &[&[u8]] = &[
    b"libc.so",
    b"libm.so",
    b"ld-linux",
    b"libpthread",
    b"libdl.so",
    b"librt.so",
    b"libgcc_s",
    b"libstdc++",
    b"linux-vdso",
    b"libresolv",
    b"libcrypt.so",
    b"libutil.so",
    b"libz.so",
    b"libbz2",
    b"liblzma",
    b"libzstd.so",
    b"libnss_",
    b"libatomic.so",
];

const MOST: usize = 64;
static NAMES: [AtomicPtr<u8>; MOST] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST];
static IS_FOREIGN: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The starts of functions, in order, as the header of the unwind tables lists
/// them: pairs of distances from that header.
#[derive(Clone, Copy)]
struct Starts<'a> {
    header: usize,
    pairs: &'a [[i32; 2]],
}

impl<'a> Starts<'a> {
    /// Of the header at `header`; nothing if it is in an unusual form.
    ///
    /// # Safety
    /// `size` bytes must be there as long as this lives.
    unsafe fn read(header: usize, size: usize) -> Option<Self> {
        // Version 1, a pointer of four bytes, a count of four, a table of
        // distances from here.
        const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        if size < 12 || header % 4 != 0 {
            return None;
        }
        // SAFETY: the caller's promise; aligned, and any bits are numbers.
        unsafe {
            if *(header as *const [u8; 4]) != USUAL {
                return None;
            }
            let count = *((header + 8) as *const u32) as usize;
            (count <= (size - 12) / 8).then(|| Starts {
                header,
                pairs: core::slice::from_raw_parts((header + 12) as *const [i32; 2], count),
            })
        }
    }

    /// The last that is not above `address`.
    fn of(&self, address: usize) -> Option<usize> {
        let start = |pair: &[i32; 2]| self.header.wrapping_add_signed(pair[0] as isize);
        let above = self.pairs.partition_point(|pair| start(pair) <= address);
        self.pairs.get(above.checked_sub(1)?).map(start)
    }
}

unsafe extern "C" fn look(info: *const Info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes a live description; its strings and headers
    // stay while the module is loaded.
    unsafe {
        let info = &*info;
        let path =
            core::slice::from_raw_parts(info.name.cast::<u8>(), text::length(info.name.cast()));
        // The executable itself has no name here, nor does the vdso on some.
        if path.is_empty() {
            return 0;
        }
        let at = COUNT.load(Ordering::Relaxed);
        let (Some(name_at), Some(kind_at)) = (NAMES.get(at), IS_FOREIGN.get(at)) else {
            return 0;
        };
        let name = base_name(path);
        let trusted = TRUSTED.iter().any(|known| name.starts_with(known));
        let headers = core::slice::from_raw_parts(info.headers, info.count as usize);
        let starts = headers
            .iter()
            .find(|header| header.kind == UNWIND)
            .and_then(|header| {
                Starts::read(
                    info.base + header.address as usize,
                    header.memory_size as usize,
                )
            });
        let mut locked = false;
        let monitored = is_monitored(info);
        for header in headers {
            if header.kind == LOAD && header.flags & EXECUTABLE != 0 && !trusted {
                let start = info.base + header.address as usize;
                let code =
                    core::slice::from_raw_parts(start as *const u8, header.memory_size as usize);
                locked |=
                    has_locked_instruction(code, |at| starts?.of(start + at)?.checked_sub(start));
            }
        }
        let foreign = locked && !monitored;
        name_at.store(info.name.cast_mut().cast(), Ordering::Relaxed);
        kind_at.store(
            if foreign {
                2
            } else if trusted {
                1
            } else {
                0
            },
            Ordering::Relaxed,
        );
        COUNT.store(at + 1, Ordering::Relaxed);
        if foreign {
            for header in headers {
                if header.kind == LOAD && header.flags & EXECUTABLE != 0 {
                    let next = FOREIGN_COUNT.load(Ordering::Relaxed);
                    if let Some((lo, hi)) = FOREIGN_CODE.get(next) {
                        let start = info.base + header.address as usize;
                        lo.store(start, Ordering::Relaxed);
                        hi.store(start + header.memory_size as usize, Ordering::Relaxed);
                        FOREIGN_COUNT.store(next + 1, Ordering::Relaxed);
                    }
                }
            }
            __deadheat_ifr_foreign.store(1, Ordering::Relaxed);
        }
    }
    0
}

// ---- the way in -----------------------------------------------------------

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

const DYNAMIC: u32 = 2;
const RELRO: u32 = 0x6474_e552;
const GLOBAL_DATA: u64 = 6;
const JUMP_SLOT: u64 = 7;

/// Tables of a module's dynamic section.
#[derive(Default)]
struct Tables {
    strings: (usize, usize),
    jumps: (usize, usize),
    relocations: (usize, usize),
}

unsafe fn tables(info: &Info) -> Tables {
    let mut tables = Tables::default();
    // SAFETY: the loader's description of a loaded module; the dynamic section
    // ends in a zero tag, and glibc has made its pointers absolute (values
    // below the base are those it has not).
    unsafe {
        let headers = core::slice::from_raw_parts(info.headers, info.count as usize);
        let Some(header) = headers.iter().find(|header| header.kind == DYNAMIC) else {
            return tables;
        };
        let absolute = |value: usize| {
            if value < info.base {
                info.base + value
            } else {
                value
            }
        };
        let mut entry = (info.base + header.address as usize) as *const Dynamic;
        while (*entry).tag != 0 {
            let value = (*entry).value;
            match (*entry).tag {
                5 => tables.strings.0 = absolute(value),
                10 => tables.strings.1 = value,
                23 => tables.jumps.0 = absolute(value),
                2 => tables.jumps.1 = value,
                7 => tables.relocations.0 = absolute(value),
                8 => tables.relocations.1 = value,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    tables
}

/// Instrumented code names the run-time.
unsafe fn is_monitored(info: &Info) -> bool {
    // SAFETY: the string table lies in the loaded module.
    unsafe {
        let (at, length) = tables(info).strings;
        at != 0
            && core::slice::from_raw_parts(at as *const u8, length)
                .windows(15)
                .any(|window| window == b"__deadheat_ifr_")
    }
}

/// Address ranges of the foreign libraries' code.
static FOREIGN_CODE: [(AtomicUsize, AtomicUsize); MOST] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; MOST];
static FOREIGN_COUNT: AtomicUsize = AtomicUsize::new(0);

fn is_foreign_code(address: usize) -> bool {
    FOREIGN_CODE
        .iter()
        .take(FOREIGN_COUNT.load(Ordering::Relaxed))
        .any(|(lo, hi)| (lo.load(Ordering::Relaxed)..hi.load(Ordering::Relaxed)).contains(&address))
}

/// Gates are made here, 48 bytes each.
static GATES: AtomicUsize = AtomicUsize::new(0);
static GATES_USED: AtomicUsize = AtomicUsize::new(0);
const GATE: usize = 48;
const GATE_ROOM: usize = 1 << 20;

/// A piece of code that counts the epoch and goes on to `target`.
unsafe fn gate(target: usize) -> Option<usize> {
    if GATES.load(Ordering::Relaxed) == 0 {
        let room = sys::map(GATE_ROOM) as usize;
        if room == 0 {
            return None;
        }
        GATES.store(room, Ordering::Relaxed);
    }
    let used = GATES_USED.load(Ordering::Relaxed);
    if (used + 1) * GATE > GATE_ROOM {
        return None;
    }
    GATES_USED.store(used + 1, Ordering::Relaxed);
    let at = GATES.load(Ordering::Relaxed) + used * GATE;
    // sub rsp, 8; call [release]; add rsp, 8; jmp [target]
    let code: [u8; 20] = [
        0x48, 0x83, 0xec, 0x08, 0xff, 0x15, 22, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0xff, 0x25, 20, 0,
        0, 0,
    ];
    // SAFETY: inside our own writable mapping; the two words that the code
    // reads stand at 32 and 40.
    unsafe {
        for (place, byte) in code.iter().enumerate() {
            ((at + place) as *mut u8).write(*byte);
        }
        ((at + 32) as *mut usize).write(__deadheat_ifr_release as *const () as usize);
        ((at + 40) as *mut usize).write(target);
    }
    Some(at)
}

unsafe extern "C" fn redirect(info: *const Info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a loaded module whose relocations
    // are done; slots are words of its offset table.
    unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.headers, info.count as usize);
        let is_program = *info.name == 0;
        if !is_program && !is_monitored(info) {
            return 0;
        }
        let found = tables(info);
        for (at, length) in [found.jumps, found.relocations] {
            if at == 0 {
                continue;
            }
            let list = core::slice::from_raw_parts(
                at as *const Relocation,
                length / size_of::<Relocation>(),
            );
            for relocation in list {
                if !matches!(relocation.info & 0xffff_ffff, GLOBAL_DATA | JUMP_SLOT) {
                    continue;
                }
                let slot = (info.base + relocation.offset) as *mut usize;
                if !is_foreign_code(*slot) {
                    continue;
                }
                let Some(gate) = gate(*slot) else {
                    continue;
                };
                let page = slot as usize & !(sys::PAGE - 1);
                let read_only = headers.iter().any(|header| {
                    header.kind == RELRO
                        && (info.base + header.address as usize
                            ..info.base + (header.address + header.memory_size) as usize)
                            .contains(&(slot as usize))
                });
                sys::protect(page, sys::PAGE, 3);
                slot.write(gate);
                if read_only {
                    sys::protect(page, sys::PAGE, 1);
                }
            }
        }
    }
    0
}

/// Looks through the modules that are loaded, and puts gates before those that
/// are foreign. Called at start-up and after a library was loaded.
pub fn prepare() {
    if !crate::threads::is_ready() {
        return;
    }
    COUNT.store(0, Ordering::Relaxed);
    FOREIGN_COUNT.store(0, Ordering::Relaxed);
    // SAFETY: `look` and `redirect` follow the protocol of the function; the
    // gates are made executable before any call can go through them, because
    // slots are changed only while they are not.
    unsafe {
        dl_iterate_phdr(look, core::ptr::null_mut());
        if FOREIGN_COUNT.load(Ordering::Relaxed) != 0 {
            if GATES.load(Ordering::Relaxed) != 0 {
                sys::protect(GATES.load(Ordering::Relaxed), GATE_ROOM, 7);
            }
            dl_iterate_phdr(redirect, core::ptr::null_mut());
            if GATES.load(Ordering::Relaxed) != 0 {
                sys::protect(GATES.load(Ordering::Relaxed), GATE_ROOM, 5);
            }
        }
    }
}

/// What was found, for the log.
pub fn write(log: &mut Text) {
    for (name, kind) in NAMES
        .iter()
        .zip(&IS_FOREIGN)
        .take(COUNT.load(Ordering::Relaxed))
    {
        let kind: &str = match kind.load(Ordering::Relaxed) {
            2 => "foreign ",
            1 => "trusted ",
            _ => continue,
        };
        let name = name.load(Ordering::Relaxed);
        // SAFETY: the loader's own string.
        let path = unsafe { core::slice::from_raw_parts(name, text::length(name)) };
        log.str(kind).bytes(base_name(path)).str("\n");
    }
}

struct Search {
    address: usize,
    base: usize,
    name: *const u8,
    found: bool,
}

unsafe extern "C" fn search(info: *const Info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: as in `look`; `data` is the caller's `Search`.
    unsafe {
        let (info, search) = (&*info, &mut *data.cast::<Search>());
        for header in core::slice::from_raw_parts(info.headers, info.count as usize) {
            let start = info.base + header.address as usize;
            if header.kind == LOAD
                && (start..start + header.memory_size as usize).contains(&search.address)
            {
                search.base = info.base;
                search.name = info.name.cast();
                search.found = true;
                return 1;
            }
        }
    }
    0
}

/// Writes `module+offset` for a code address.
pub fn name(out: &mut Text, address: usize) {
    let mut state = Search {
        address,
        base: 0,
        name: core::ptr::null(),
        found: false,
    };
    // SAFETY: `search` follows the protocol of the function.
    unsafe { dl_iterate_phdr(search, (&raw mut state).cast()) };
    if !state.found {
        out.hex(address as u64);
        return;
    }
    // SAFETY: the loader's own string.
    let path = unsafe { core::slice::from_raw_parts(state.name, text::length(state.name)) };
    let name = base_name(path);
    out.bytes(if name.is_empty() {
        b"the program"
    } else {
        name
    })
    .str("+")
    .hex((address - state.base) as u64);
}
