//! Finished text on its way to standard output or standard error.
//!
//! Nothing is printed in any other way: the standard library's macros panic
//! where a stream cannot be written. Here that is an error to be told; only a
//! reader that has gone away (`| head`) is none. A stream that was closed when
//! the process started would be replaced by the standard library with one that
//! swallows everything. So it is looked at before, and gets one that cannot be
//! written to: whoever writes is told so, a program that is run among them.

use crate::Stream;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// Standard streams that were closed at the start, a bit for each.
static CLOSED: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_closed;

extern "C" fn note_closed() {
    for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: only asks about a descriptor.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << stream, Ordering::Relaxed);
            // SAFETY: only opens and closes descriptors of its own; where that
            // fails the standard library does as ever.
            unsafe {
                let unwritable = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
                if unwritable >= 0 && unwritable != stream {
                    libc::dup2(unwritable, stream);
                    libc::close(unwritable);
                }
            }
        }
    }
}

/// The stream was closed when the process started: whatever is printed is lost.
pub fn is_closed(stream: Stream) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << number(stream)) != 0
}

fn number(stream: Stream) -> i32 {
    match stream {
        Stream::Stdout => libc::STDOUT_FILENO,
        Stream::Stderr => libc::STDERR_FILENO,
    }
}

/// Prints finished text. A reader that has gone away (`| head`) is no error.
pub fn print_text(text: &str, stream: Stream) -> io::Result<()> {
    if is_closed(stream) && !text.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let written = match stream {
        Stream::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        Stream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A sentence beside the result, on standard error. Nobody may be reading.
pub fn say(sentence: &str) {
    let _ = print_text(&format!("{sentence}\n"), Stream::Stderr);
}
