// MISSED at stripped: a check of a flag looks like an acquire load there.
// A fence before a relaxed load gives that load nothing.
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread;
static READY: AtomicUsize = AtomicUsize::new(0);
static mut VALUE: u32 = 0;
fn main() {
    let writer = thread::spawn(|| {
        unsafe { VALUE = 1 }; // RACE value
        READY.store(1, Ordering::Release);
    });
    let reader = thread::spawn(|| {
        let mut seen = 0;
        while seen != 1 {
            thread::yield_now();
            fence(Ordering::Acquire);
            seen = READY.load(Ordering::Relaxed);
        }
        unsafe { VALUE } // RACE value
    });
    writer.join().unwrap();
    println!("{}", reader.join().unwrap());
}
