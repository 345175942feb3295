//! How a program that is being recorded is brought to its end from outside.
//!
//! First it gets the signal, as it would natively; the keyboard has sent it
//! already. If it lives on it is ended as if by SIGKILL, and every process of
//! it with it: the vm takes that at the end of a slice and finishes its
//! recording. Only what does not answer then is killed, and loses a tenth of a
//! second of its recording.

use crate::host_signals;
use crate::interruption::{self, Cause};
use std::time::{Duration, Instant};

/// The keyboard's signal has reached the program by now, if it was sent by the
/// keyboard.
const KEYBOARD: Duration = Duration::from_millis(30);

/// A program that handles the signal has this long to come to its end.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// The same where nothing comes after the recording: a server that was asked to
/// end may have much to put away.
pub(crate) const LONG_LAST_WORDS: Duration = Duration::from_millis(1_500);

/// A vm finishes its recording in this time: a slice, and what is to be written.
const FINISH: Duration = Duration::from_millis(300);

/// How far it has come.
pub(crate) struct Ending {
    /// Signals that the program had got before the end was asked for.
    reached: u32,
    told: bool,
    asked: bool,
}

impl Ending {
    /// `reached` counts the signals that guests had got when the program was
    /// started: the end may have been asked for before anybody looks.
    pub fn since(reached: u32) -> Ending {
        Ending {
            reached,
            told: false,
            asked: false,
        }
    }

    /// Does the next step when it is time. False: the process `pid` is to be
    /// killed.
    pub fn goes_on(&mut self, pid: i32) -> bool {
        let Some((cause, ago)) = interruption::asked() else {
            self.reached = interruption::reached();
            return true;
        };
        if !self.told && (ago >= KEYBOARD || cause == Cause::Budget) {
            self.told = true;
            let by_keyboard = self.reached != interruption::reached();
            let signal = match cause {
                Cause::Signal(signal) => signal,
                Cause::Budget => libc::SIGTERM,
            };
            if !by_keyboard || cause == Cause::Budget {
                // SAFETY: our own child, not yet reaped.
                unsafe { libc::kill(pid, signal) };
            }
        }
        if ago < LAST_WORDS && !interruption::is_urgent() {
            return true;
        }
        if !self.asked {
            self.asked = true;
            ask(&interruption::recording());
        }
        if ago < LAST_WORDS + FINISH {
            return true;
        }
        kill(&interruption::recording());
        false
    }
}

fn ask(processes: &[i32]) {
    for process in processes {
        host_signals::ask_to_die(*process);
    }
}

fn kill(processes: &[i32]) {
    for process in processes {
        // SAFETY: a process of the program, which this one started.
        unsafe { libc::kill(*process, libc::SIGKILL) };
    }
}

/// The program's first process, this one, was ended: ends the others.
pub(crate) fn end_others() {
    const STEP: Duration = Duration::from_millis(10);
    let own = std::process::id() as i32;
    let others = || -> Vec<i32> {
        let all = interruption::recording().into_iter();
        all.filter(|process| *process != own).collect()
    };
    ask(&others());
    let begun = Instant::now();
    while !others().is_empty() && begun.elapsed() < FINISH {
        std::thread::sleep(STEP);
    }
    kill(&others());
}
