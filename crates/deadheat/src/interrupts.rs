//! Ctrl-C while a program is recorded is meant for the program: it ends of it or
//! not, and what it did until then is looked at. Like `system(3)`, with the
//! difference that signals are not ignored but handled by doing nothing, because
//! what is ignored the program would inherit.

/// What the keyboard sends to all processes in front of it.
const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

/// This process outlives the keyboard's signals until it is dropped.
pub struct Spared {
    before: [libc::sigaction; 2],
}

extern "C" fn nothing(_: i32) {}

impl Spared {
    pub fn begin() -> Spared {
        // SAFETY: zero is a valid `sigaction`; the handler does nothing, and what
        // it interrupts is begun again.
        let before = SIGNALS.map(|signal| unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before = action;
            action.sa_sigaction = nothing as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, &mut before);
            before
        });
        Spared { before }
    }

    /// In the process that becomes the program: as it was.
    pub fn restore(&self) {
        for (signal, before) in SIGNALS.iter().zip(&self.before) {
            // SAFETY: puts back what `begin` found.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}

impl Drop for Spared {
    fn drop(&mut self) {
        self.restore();
    }
}
