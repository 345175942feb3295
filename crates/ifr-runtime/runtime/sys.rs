//! System calls, made directly: the program may have replaced or interposed
//! any library function, and errno is not ours to change.

use core::arch::asm;

unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the kernel keeps all
    // registers but rcx, r11 and rax.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

pub const PAGE: usize = 4096;

/// Fresh zeroed memory of our own; null if there is none.
pub fn map(bytes: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let at = unsafe { call(9, [0, bytes, 3, 0x22, usize::MAX, 0]) };
    if at < 0 {
        core::ptr::null_mut()
    } else {
        at as *mut u8
    }
}

/// Reserves `bytes` at exactly `at`, zero-filled on demand and not counted as
/// committed; false if anything is in the way.
pub fn reserve(at: usize, bytes: usize) -> bool {
    // SAFETY: MAP_FIXED_NOREPLACE touches no existing mapping.
    unsafe {
        let got = call(9, [at, bytes, 3, 0x10_4022, usize::MAX, 0]);
        if got as usize != at {
            if got > 0 {
                call(11, [got as usize, bytes, 0, 0, 0, 0]);
            }
            return false;
        }
        // No huge pages (the shadow is sparse), not in core dumps.
        call(28, [at, bytes, 15, 0, 0, 0]);
        call(28, [at, bytes, 16, 0, 0, 0]);
    }
    true
}

/// Gives the memory of whole pages of our own back; they read as zeros.
pub fn forget(at: *mut u8, bytes: usize) {
    // SAFETY: MADV_DONTNEED on an anonymous mapping of our own.
    unsafe { call(28, [at as usize, bytes & !(PAGE - 1), 4, 0, 0, 0]) };
}

/// Changes the protection of whole pages (1 read, 2 write, 4 execute).
pub fn protect(at: usize, bytes: usize, how: usize) {
    // SAFETY: the caller's own pages.
    unsafe { call(10, [at, bytes, how, 0, 0, 0]) };
}

pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the slice is readable.
        let done = unsafe {
            call(
                1,
                [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        };
        if done == -4 {
            continue;
        }
        if done <= 0 {
            return;
        }
        bytes = bytes.get(done as usize..).unwrap_or(&[]);
    }
}

/// Reads a whole small file into `buffer`; how many bytes.
pub fn read_file(path: &core::ffi::CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: the path ends in a zero; the buffer is writable for its length.
    unsafe {
        let fd = call(
            257,
            [
                -100isize as usize,
                path.as_ptr() as usize,
                0o2000000,
                0,
                0,
                0,
            ],
        );
        if fd < 0 {
            return 0;
        }
        let mut total = 0;
        while let Some(rest) = buffer.get_mut(total..).filter(|rest| !rest.is_empty()) {
            let got = call(
                0,
                [fd as usize, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0],
            );
            if got == -4 {
                continue;
            }
            if got <= 0 {
                break;
            }
            total += got as usize;
        }
        call(3, [fd as usize, 0, 0, 0, 0, 0]);
        total
    }
}

pub fn exit_group(code: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call(231, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

pub fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(186, [0; 6]) as u32 }
}

pub fn process_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(39, [0; 6]) as u32 }
}

/// The processor's own clock.
pub fn cycles() -> u64 {
    // SAFETY: reads a counter that user code may read.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// How many processors this process may use.
pub fn processors() -> u64 {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the length given; it returns how much.
    let bytes = unsafe {
        call(
            204,
            [0, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0],
        )
    };
    if bytes <= 0 {
        return 1;
    }
    mask.iter().map(|word| u64::from(word.count_ones())).sum()
}

pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { call(24, [0; 6]) };
}

pub fn sleep_micros(micros: u64) {
    let time = [micros / 1_000_000, micros % 1_000_000 * 1000];
    // SAFETY: the time is readable.
    unsafe { call(35, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// An anonymous file; negative on failure.
pub fn memory_file() -> i32 {
    // SAFETY: the name ends in a zero.
    unsafe { call(319, [c"deadheat-ifr".as_ptr() as usize, 0, 0, 0, 0, 0]) as i32 }
}

pub fn rewind(fd: i32) {
    // SAFETY: only the file position changes.
    unsafe { call(8, [fd as usize, 0, 0, 0, 0, 0]) };
}

pub fn close(fd: i32) {
    // SAFETY: the descriptor is ours.
    unsafe { call(3, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Runs a program with `stdin` as its standard input, waits for it, and gives
/// its exit code; None if it could not be run.
pub fn run(
    path: *const u8,
    arguments: &[*const u8],
    environment: *const *const u8,
    stdin: i32,
) -> Option<i32> {
    // SAFETY: the child does nothing but system calls before it becomes
    // another program; `arguments` ends in a null; fork, not vfork, so that it
    // touches nothing of ours.
    unsafe {
        // Without SIGCHLD as exit signal the program never hears of the child.
        let child = call(56, [0, 0, 0, 0, 0, 0]);
        if child < 0 {
            return None;
        }
        if child == 0 {
            call(33, [stdin as usize, 0, 0, 0, 0, 0]);
            call(
                59,
                [
                    path as usize,
                    arguments.as_ptr() as usize,
                    environment as usize,
                    0,
                    0,
                    0,
                ],
            );
            exit_group(127);
        }
        let mut status = 0i32;
        // __WALL: also children that do not signal.
        while call(
            61,
            [
                child as usize,
                (&raw mut status) as usize,
                0x4000_0000,
                0,
                0,
                0,
            ],
        ) == -4
        {}
        (status & 0x7f == 0)
            .then_some(status >> 8 & 0xff)
            .filter(|code| *code != 127)
    }
}

/// Delivers `signal` to this process with its default action.
pub fn die_of(signal: i32) -> ! {
    // struct kernel_sigaction with everything zero is SIG_DFL.
    let default = [0usize; 4];
    let unblock = 1u64 << (signal - 1);
    // SAFETY: both structures are readable; the process ends.
    unsafe {
        call(13, [signal as usize, default.as_ptr() as usize, 0, 8, 0, 0]);
        call(14, [1, (&raw const unblock) as usize, 0, 8, 0, 0]);
        call(
            234,
            [
                process_id() as usize,
                thread_id() as usize,
                signal as usize,
                0,
                0,
                0,
            ],
        );
    }
    exit_group(128 + signal)
}
