// A relaxed change goes on with the release sequence.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
static STAGE: AtomicUsize = AtomicUsize::new(0);
static mut VALUE: u32 = 0;
fn main() {
    let writer = thread::spawn(|| {
        unsafe { VALUE = 1 };
        STAGE.store(1, Ordering::Release);
        STAGE.fetch_add(1, Ordering::Relaxed);
    });
    while STAGE.load(Ordering::Acquire) != 2 {
        thread::yield_now();
    }
    println!("{}", unsafe { VALUE });
    writer.join().unwrap();
}
