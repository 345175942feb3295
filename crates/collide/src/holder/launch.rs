//! Starting the program to be sampled: a child of the holder, so that no
//! special rights are needed to hold it (the Yama security module lets a
//! process trace its descendants), held before its first instruction.

use super::ptrace::{self, Tid};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: pipe2 fills two descriptors that nobody else owns.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// A program that is held and waits to be let go.
pub struct Launched {
    pub pid: Tid,
    go: OwnedFd,
    failed: OwnedFd,
}

impl Launched {
    /// Forks; the child waits until `go` and then calls exec.
    pub fn prepare(command: &[String]) -> io::Result<Launched> {
        let arguments: Vec<CString> = command
            .iter()
            .map(|argument| CString::new(argument.as_str()))
            .collect::<Result<_, _>>()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "argument holds a NUL"))?;
        let mut pointers: Vec<*const libc::c_char> =
            arguments.iter().map(|argument| argument.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let (wait, go) = pipe()?;
        let (failed, report) = pipe()?;
        // SAFETY: the holder has one thread; the child calls only
        // async-signal-safe functions on memory prepared before the fork.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            // SAFETY: as above; every pointer outlives the calls.
            unsafe {
                libc::close(go.as_raw_fd());
                let mut byte = 0u8;
                // The end of the pipe means that the holder has given up.
                if libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                    libc::_exit(127);
                }
                let mut nothing: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut nothing);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const nothing, std::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::execvp(pointers[0], pointers.as_ptr());
                let error = *libc::__errno_location();
                libc::write(report.as_raw_fd(), (&raw const error).cast(), 4);
                libc::_exit(127);
            }
        }
        Ok(Launched { pid, go, failed })
    }

    /// Takes hold of the child and lets it call exec. The first stop the
    /// holder sees is that of the exec.
    pub fn begin(&self) -> io::Result<()> {
        ptrace::seize(self.pid)?;
        // SAFETY: one byte from a valid address.
        unsafe { libc::write(self.go.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
        Ok(())
    }

    /// Why exec failed, once the child has ended without it.
    pub fn failure(&self) -> Option<io::Error> {
        let mut error = 0i32;
        // SAFETY: reads at most four bytes into an int. The writing end is
        // closed in the child by exec or exit, and the holder's copy below.
        let got = unsafe { libc::read(self.failed.as_raw_fd(), (&raw mut error).cast(), 4) };
        (got == 4).then(|| io::Error::from_raw_os_error(error))
    }
}
