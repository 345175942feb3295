// A plain change on a line that also has an atomic operation is plain.
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
struct Counts { plain: UnsafeCell<u64>, exact: AtomicUsize }
unsafe impl Sync for Counts {}
#[inline(never)]
fn count(counts: &Counts) {
    for _ in 0..200 { unsafe { *counts.plain.get() += 1 }; counts.exact.fetch_add(1, Ordering::Relaxed); } // RACE plain
}
fn main() {
    let counts = Arc::new(Counts { plain: UnsafeCell::new(0), exact: AtomicUsize::new(0) });
    let other = { let counts = counts.clone(); std::thread::spawn(move || count(&counts)) };
    count(&counts);
    other.join().unwrap();
    println!("{}", unsafe { *counts.plain.get() });
}
