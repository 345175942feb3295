//! A counter that two threads add to without synchronisation.

use std::cell::UnsafeCell;

pub struct Counter(UnsafeCell<u64>);

// SAFETY: none; that is the bug.
unsafe impl Sync for Counter {}

impl Counter {
    pub const fn new() -> Self {
        Counter(UnsafeCell::new(0))
    }

    #[inline(never)]
    pub fn add(&self) {
        // SAFETY: the pointer is good; the access races.
        unsafe { *self.0.get() += 1 } // RACE with itself
    }

    pub fn get(&mut self) -> u64 {
        *self.0.get_mut()
    }
}

impl Default for Counter {
    fn default() -> Self {
        Counter::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for the two to meet, however fast the code is.
    const ROUNDS: usize = if cfg!(debug_assertions) {
        50_000
    } else {
        5_000_000
    };

    #[test]
    fn two_threads_count() {
        let mut counter = Counter::new();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..ROUNDS {
                        counter.add();
                    }
                });
            }
        });
        assert!(counter.get() > 0);
    }
}
