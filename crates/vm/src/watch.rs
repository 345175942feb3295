//! How far a vm has come, for whoever waits for it.
//!
//! A vm runs in a process of its own; the counter lies in memory that it
//! shares with the one that waits. Copies of the world count as well.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static COUNTER: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// From now on every vm of this process, and of processes it forks, adds the
/// instructions it has run to `counter`.
pub fn count_into(counter: Option<&'static AtomicU64>) {
    let counter = counter.map_or(std::ptr::null_mut(), |counter| {
        std::ptr::from_ref(counter).cast_mut()
    });
    COUNTER.store(counter, Ordering::Relaxed);
}

/// A slice of so many instructions is over.
pub(crate) fn add(instructions: u64) {
    let counter = COUNTER.load(Ordering::Relaxed);
    // SAFETY: null, or made from a reference that lives for ever.
    if let Some(counter) = unsafe { counter.as_ref() } {
        counter.fetch_add(instructions, Ordering::Relaxed);
    }
}
