//! The few host memory calls the vm makes for itself and for the guest.

use crate::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maps anonymous private memory at exactly `address`, which must be free.
pub fn map_fixed(address: u64, length: u64, protection: i32) -> Result<(), Error> {
    // SAFETY: MAP_FIXED_NOREPLACE never disturbs an existing mapping.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            length as usize,
            protection,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if got as u64 == address {
        return Ok(());
    }
    let reason = io::Error::last_os_error();
    Err(Error::Machine(format!(
        "cannot map {length:#x} bytes at {address:#x} for the vm: {reason}"
    )))
}

/// Makes memory of the vm unreadable.
pub fn forbid(address: u64, length: u64) -> Result<(), Error> {
    // SAFETY: only tables that nobody has a reference into are forbidden.
    let answer = unsafe {
        libc::mprotect(
            address as *mut libc::c_void,
            length as usize,
            libc::PROT_NONE,
        )
    };
    if answer == 0 {
        return Ok(());
    }
    let reason = io::Error::last_os_error();
    Err(Error::Machine(format!(
        "cannot protect {length:#x} bytes at {address:#x} for the vm: {reason}"
    )))
}

/// Maps private memory at exactly `address`, which must be free, with these
/// words in it. What is written over them can be forgotten at once.
pub fn map_words(address: u64, words: &[u64]) -> Result<(), Error> {
    let failed = |reason: io::Error| {
        Error::Machine(format!(
            "cannot map {} words at {address:#x} for the vm: {reason}",
            words.len()
        ))
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // SAFETY: a literal name; the descriptor is ours alone.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"words".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        File::from_raw_fd(fd)
    };
    file.write_all(&bytes).map_err(failed)?;
    // SAFETY: MAP_FIXED_NOREPLACE never disturbs an existing mapping.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes.len(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
            file.as_raw_fd(),
            0,
        )
    };
    if got as u64 == address {
        Ok(())
    } else {
        Err(failed(io::Error::last_os_error()))
    }
}

/// What `map_words` put there is there again; pages that nobody has written to
/// since are not touched.
///
/// # Safety
/// The range is a mapping of `map_words`, and nothing refers into it.
pub unsafe fn forget_writes(address: u64, length: u64) {
    // SAFETY: the caller vouches for the range.
    let result = unsafe {
        libc::madvise(
            address as *mut libc::c_void,
            length as usize,
            libc::MADV_DONTNEED,
        )
    };
    assert_eq!(result, 0, "a private mapping can be dropped");
}

/// A raw host system call: the kernel's own convention, negative errno on
/// failure.
///
/// # Safety
/// As unsafe as the call itself; pointers must be valid for the kernel or lie
/// in guest memory (where a bad one gives EFAULT).
pub unsafe fn syscall(number: i64, arguments: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller vouches for the call; rcx and r11 are clobbered by
    // the instruction.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// The guest's limit of a file's size.
static FILE_SIZE: AtomicU64 = AtomicU64::new(libc::RLIM_INFINITY);

pub fn limit_file_size(bytes: u64) {
    FILE_SIZE.store(bytes, Ordering::Relaxed);
}

/// Does what the guest asked for under its limit of a file's size, which the
/// vm itself is not bound by.
pub fn within_file_size<T>(work: impl FnOnce() -> T) -> T {
    match FILE_SIZE.load(Ordering::Relaxed) {
        libc::RLIM_INFINITY => work(),
        bytes => within_limit(libc::RLIMIT_FSIZE, bytes, work),
    }
}

/// Works under another soft limit, or the hard one if that is lower.
pub fn within_limit<T>(resource: u32, soft: u64, work: impl FnOnce() -> T) -> T {
    // SAFETY: plain in- and out-parameters.
    unsafe {
        let mut own: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(resource, &mut own) != 0 {
            return work();
        }
        let other = libc::rlimit {
            rlim_cur: soft.min(own.rlim_max),
            ..own
        };
        libc::setrlimit(resource, &other);
        let result = work();
        libc::setrlimit(resource, &own);
        result
    }
}

/// Ends this process without running anything else.
pub fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Ends this process the way the guest ended: by the same signal, or by
/// returning the code to exit with.
pub fn end_like(status: crate::record::ProcessStatus) -> i32 {
    match status {
        crate::record::ProcessStatus::Exited(code) => code,
        crate::record::ProcessStatus::Killed(signal) => {
            // SAFETY: restoring the default action and raising the signal; no
            // core file of the vm, the guest's state is in the recording.
            unsafe {
                let none = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::signal(signal, libc::SIG_DFL);
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
                libc::raise(signal);
            }
            128 + signal
        }
    }
}

/// A line on standard error. Nobody may be reading.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
