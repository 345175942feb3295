//! The same done right: nothing to report.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Hands a value from one thread to another by a flag.
pub fn hand_over(value: u64) -> u64 {
    let slot = Mutex::new(0);
    let ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *slot.lock().unwrap() = value;
            ready.store(true, Ordering::Release);
        });
        while !ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        *slot.lock().unwrap()
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(super::hand_over(7), 7);
    }
}
