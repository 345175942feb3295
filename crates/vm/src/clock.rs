//! Virtual time: a function of instructions executed, plus jumps.
//!
//! Two instructions take a nanosecond, so a program that measures itself sees
//! roughly real durations. When every thread sleeps and nothing outside is
//! awaited, time jumps to the next timer; when something outside is awaited,
//! it goes on by what really passed. Jumps are part of the recorded schedule.

pub const INSTRUCTIONS_PER_NANOSECOND: u64 = 2;

#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// Nanoseconds of CLOCK_MONOTONIC at the start.
    pub monotonic_origin: u64,
    /// What to add to have CLOCK_REALTIME.
    pub realtime_offset: u64,
    /// Nanoseconds jumped.
    pub jumped: u64,
}

impl Clock {
    /// CLOCK_MONOTONIC after `instructions` instructions of all threads.
    pub fn monotonic(&self, instructions: u64) -> u64 {
        self.monotonic_origin + self.jumped + instructions / INSTRUCTIONS_PER_NANOSECOND
    }
}
