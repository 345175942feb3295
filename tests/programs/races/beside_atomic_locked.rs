// The same with a lock of its own around the plain change, all on one line.
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
struct Counts { plain: UnsafeCell<u64>, taken: AtomicBool, exact: AtomicUsize }
unsafe impl Sync for Counts {}
fn count(counts: &Counts) {
    for _ in 0..100 { while counts.taken.swap(true, Ordering::Acquire) { std::thread::yield_now(); } unsafe { *counts.plain.get() += 1 }; counts.exact.fetch_add(1, Ordering::Relaxed); counts.taken.store(false, Ordering::Release); }
}
fn main() {
    let counts = Arc::new(Counts { plain: UnsafeCell::new(0), taken: AtomicBool::new(false), exact: AtomicUsize::new(0) });
    let other = { let counts = counts.clone(); std::thread::spawn(move || count(&counts)) };
    count(&counts);
    other.join().unwrap();
    println!("{}", unsafe { *counts.plain.get() });
}
