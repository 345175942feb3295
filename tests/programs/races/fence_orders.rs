// Fences around relaxed operations, which leave no instruction behind.
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::thread;
static READY: AtomicUsize = AtomicUsize::new(0);
static mut VALUE: u32 = 0;
fn main() {
    let writer = thread::spawn(|| {
        unsafe { VALUE = 1 };
        fence(Ordering::Release);
        READY.store(1, Ordering::Relaxed);
    });
    let reader = thread::spawn(|| {
        while READY.load(Ordering::Relaxed) != 1 {
            thread::yield_now();
        }
        fence(Ordering::Acquire);
        unsafe { VALUE }
    });
    writer.join().unwrap();
    println!("{}", reader.join().unwrap());
}
