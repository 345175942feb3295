//! Virtual time: a function of instructions and system calls executed, plus
//! jumps.
//!
//! Two instructions take a nanosecond and a system call a hundred, so a program
//! that measures itself sees roughly real durations, and one that asks for the
//! time until it has come does not ask much more often than natively. When every thread sleeps and nothing outside is
//! awaited, time jumps to the next timer; when something outside is awaited,
//! it goes on by what really passed. Jumps are part of the recorded schedule.

pub const INSTRUCTIONS_PER_NANOSECOND: u64 = 2;

const NANOSECONDS_PER_CALL: u64 = 100;

#[derive(Debug, Clone, Copy, Default, Hash)]
pub struct Clock {
    /// Nanoseconds of CLOCK_MONOTONIC at the start.
    pub monotonic_origin: u64,
    /// What to add to have CLOCK_REALTIME.
    pub realtime_offset: u64,
    /// Nanoseconds jumped, and those that system calls have taken.
    pub jumped: u64,
    /// Clocks show how often a thread has asked since this time, not the time
    /// (`Vm::count_times`).
    pub counted_from: Option<u64>,
}

/// Between two times that a thread is shown, if they are counted.
pub const NANOSECONDS_PER_QUESTION: u64 = 1000;

impl Clock {
    /// A system call is made.
    pub fn call(&mut self) {
        self.jumped += NANOSECONDS_PER_CALL;
    }

    /// CLOCK_MONOTONIC after `instructions` instructions of all threads.
    pub fn monotonic(&self, instructions: u64) -> u64 {
        self.monotonic_origin + self.jumped + instructions / INSTRUCTIONS_PER_NANOSECOND
    }
}
