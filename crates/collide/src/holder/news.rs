//! What the kernel tells of the target's threads, taken so that little is lost
//! if the holder is killed at that moment.
//!
//! A thread that runs into an `int3` stops with its instruction pointer behind
//! it, about to receive SIGTRAP. If its tracer dies the kernel lets it run on,
//! from where it stands and with what it was about to receive. So there are
//! these windows for `kill -9`, in the order in which a thread passes them:
//!
//! 1. The breakpoint stands, nobody has run into it. The warden in the front
//!    end puts the byte back before the kernel lets go of anybody (`lifeline`).
//!    Nothing is lost.
//! 2. The thread has trapped and nobody has waited for it. The kernel delivers
//!    the SIGTRAP: the program dies. That includes whoever traps between the
//!    kill and the warden's write. Nobody but a thread of the dying process
//!    could take the signal away, and none of those runs again. The window is
//!    kept short: everybody who has stopped is taken before the first is dealt
//!    with, and again between the steps that take long (`gather`).
//! 3. Somebody has waited for the thread, and its instruction pointer has not
//!    been set back. The kernel has forgotten the signal, and the thread runs on
//!    in the middle of an instruction: a wrong result. **This must not be.** So
//!    the holder first only looks (`WNOWAIT`, the kernel keeps the signal), sets
//!    the thread back, and waits for it after that. A kill meanwhile is as in 2.
//! 4. The thread is set back and taken; the breakpoint may still stand. As in
//!    1: the byte is back before the thread runs on. Nothing is lost.
//! 5. A blocked SIGTRAP has not been blocked again (`repair_mask`). The thread
//!    runs on with SIGTRAP not blocked.
//! 6. The thread is held at its access, data breakpoints are armed. They end
//!    with the descriptors of the holder, before the kernel lets go. One that
//!    fires in the instant in which it is removed can raise a SIGTRAP of its
//!    own, as in 2.
//! 7. A child has been forked and not been cleaned of the breakpoints that stood
//!    (`Space::clean_copy`). It is let go with them, and dies of SIGTRAP at one.
//!
//! Single-instruction sites would not help in 2 or 3, hardware breakpoints on
//! code neither in 2: their SIGTRAP is delivered in the same way, and there are
//! four of them.

use super::Holder;
use super::ptrace::{self, Change, Registers, Tid, Told};
use std::time::Instant;

/// A change of state that has been taken from the kernel.
pub(super) struct News {
    pub(super) tid: Tid,
    pub(super) change: Change,
    /// When it was taken.
    pub(super) at: Instant,
    /// It has run into a breakpoint of ours and been set back: its registers
    /// as of the instruction.
    pub(super) breakpoint: Option<Registers>,
}

impl Holder {
    /// Takes everything that the kernel has to tell. Whether there is anybody
    /// left to wait for.
    pub(super) fn gather(&mut self) -> bool {
        loop {
            match ptrace::look() {
                Told::Nothing => return true,
                Told::NobodyLeft => return !self.news.is_empty(),
                Told::Of { tid, trap } => self.take(tid, trap),
            }
        }
    }

    /// The next change of state, if there is one.
    pub(super) fn next_news(&mut self) -> Option<News> {
        self.gather();
        self.news.pop_front()
    }

    /// The same, but sleeps until a task changes state or a signal arrives.
    pub(super) fn await_news(&mut self) -> Option<News> {
        if self.news.is_empty()
            && let Told::Of { tid, trap } = ptrace::await_change()
        {
            self.take(tid, trap);
        }
        self.news.pop_front()
    }

    fn take(&mut self, tid: Tid, trap: bool) {
        let breakpoint = if trap { self.set_back(tid) } else { None };
        if let Some(change) = ptrace::take(tid) {
            // It may have been killed since it was looked at.
            let breakpoint = breakpoint.filter(|_| change == Change::Signal(libc::SIGTRAP));
            self.news.push_back(News {
                tid,
                change,
                at: Instant::now(),
                breakpoint,
            });
        }
    }

    /// Sets a thread that has run into a breakpoint of ours back to its
    /// instruction.
    fn set_back(&mut self, tid: Tid) -> Option<Registers> {
        if ptrace::signal_code(tid).ok()? != ptrace::SI_KERNEL {
            return None;
        }
        let mut registers = ptrace::registers(tid).ok()?;
        registers.rip = registers.rip.wrapping_sub(1);
        if !self.tasks.contains_key(&tid) {
            self.adopt(tid);
        }
        let space = self.spaces.get(&self.tasks.get(&tid)?.space)?;
        if !space.has_planted(registers.rip) {
            return None;
        }
        ptrace::set_rip(tid, registers.rip).ok()?;
        Some(registers)
    }
}
