// MISSED at stripped: a check of a flag looks like an acquire load there.
// A relaxed store ends the release sequence, also one by the same thread.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
static STAGE: AtomicUsize = AtomicUsize::new(0);
static mut VALUE: u32 = 0;
fn main() {
    let writer = thread::spawn(|| {
        unsafe { VALUE = 1 }; // RACE value
        STAGE.store(1, Ordering::Release);
        STAGE.store(2, Ordering::Relaxed);
    });
    while STAGE.load(Ordering::Acquire) != 2 {
        thread::yield_now();
    }
    println!("{}", unsafe { VALUE }); // RACE value
    writer.join().unwrap();
}
