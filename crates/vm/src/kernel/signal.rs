//! Signals.

use super::{Call, Halt, Outcome};
use crate::Error;
use crate::machine::{GuestFault, Vm};
use crate::memory;
use crate::record::ProcessStatus;
use crate::schedule::SliceEnd;

/// The kernel's own form of a signal action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

// SAFETY: four integers without padding.
unsafe impl memory::Plain for Action {}

pub struct Signals {
    actions: [Action; 65],
}

impl Default for Signals {
    fn default() -> Self {
        Signals {
            actions: [Action::default(); 65],
        }
    }
}

impl Vm {
    pub(super) fn sys_rt_sigaction(&mut self, call: &Call) -> Outcome {
        let [signal, new, old, size, ..] = call.arguments;
        if !(1..=64).contains(&signal) || size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let slot = signal as usize;
        let previous = self.kernel.signals.actions[slot];
        if new != 0 {
            if signal as i32 == libc::SIGKILL || signal as i32 == libc::SIGSTOP {
                return Err(Halt::Errno(libc::EINVAL));
            }
            self.kernel.signals.actions[slot] = memory::get(new)?;
        }
        if old != 0 {
            memory::put(old, previous)?;
        }
        Ok(0)
    }

    pub(super) fn sys_rt_sigprocmask(&mut self, call: &Call) -> Outcome {
        let [how, set, old, size, ..] = call.arguments;
        if size != 8 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let current = self.current;
        let Some(thread) = self.threads.get_mut(&current) else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        let previous = thread.signal_mask;
        if set != 0 {
            let set = memory::get::<u64>(set)?;
            thread.signal_mask = match how as i32 {
                libc::SIG_BLOCK => previous | set,
                libc::SIG_UNBLOCK => previous & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(Halt::Errno(libc::EINVAL)),
            };
        }
        if old != 0 {
            memory::put(old, previous)?;
        }
        Ok(0)
    }

    pub(super) fn sys_tgkill(&mut self, call: &Call) -> Outcome {
        let signal = call.arguments[2] as i32;
        if signal == 0 {
            return Ok(0);
        }
        self.ended = Some(ProcessStatus::Killed(signal));
        Err(Halt::NoReturn)
    }

    /// A signal that came from outside becomes pending.
    pub(crate) fn signal_from_outside(&mut self, _thread: u32, _info: &[u8]) {}

    /// Runs the handler of a pending signal, if there is one.
    pub(crate) fn deliver_signals(&mut self) -> Result<Option<SliceEnd>, Error> {
        Ok(None)
    }

    /// The instruction at rip faulted.
    pub(crate) fn guest_fault(
        &mut self,
        signal: i32,
        _code: i32,
        address: u64,
    ) -> Result<Option<SliceEnd>, Error> {
        let regs = *self.regs();
        self.fault = Some(GuestFault {
            moment: self.moment(),
            signal,
            pc: regs.rip,
            address,
            regs,
        });
        self.ended = Some(ProcessStatus::Killed(signal));
        Ok(Some(SliceEnd::Exited))
    }
}
