use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
struct Shared(UnsafeCell<[u64; 4]>);
unsafe impl Sync for Shared {}
fn main() {
    let shared = Arc::new(Shared(UnsafeCell::new([0; 4])));
    let theirs = Arc::clone(&shared);
    let writer = thread::spawn(move || {
        for i in 0..50u64 {
            unsafe { std::ptr::write((theirs.0.get() as *mut u64).add(2), i) }; // RACE cell
        }
    });
    let mut sum = 0;
    for _ in 0..50 {
        sum += black_box(unsafe { std::ptr::read((shared.0.get() as *const u64).add(2)) }); // RACE cell
    }
    writer.join().unwrap();
    println!("{}", sum >= 1 || sum == 0);
}
