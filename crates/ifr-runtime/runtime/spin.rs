//! A lock that never calls into the program's libraries.

use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};

pub struct Spin(AtomicU32);

pub struct Held<'a>(&'a Spin);

impl Spin {
    pub const fn new() -> Self {
        Spin(AtomicU32::new(0))
    }

    pub fn lock(&self) -> Held<'_> {
        let mut tries = 0u32;
        while self
            .0
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            tries += 1;
            if tries > 100 {
                sys::yield_now();
            }
            core::hint::spin_loop();
        }
        Held(self)
    }

    /// For places that must not wait, such as a handler of a fatal signal.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        self.0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then_some(Held(self))
    }

    /// In a forked child whose parent's other threads may have held it.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}
