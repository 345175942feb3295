use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
struct Lock {
    taken: AtomicBool,
    value: UnsafeCell<u32>,
}
unsafe impl Sync for Lock {}
static LOCK: Lock = Lock {
    taken: AtomicBool::new(false),
    value: UnsafeCell::new(0),
};
fn add() {
    for _ in 0..50 {
        while LOCK.taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        unsafe { *LOCK.value.get() += 1 };
        LOCK.taken.store(false, Ordering::Release);
    }
}
fn main() {
    let other = thread::spawn(add);
    add();
    other.join().unwrap();
    println!("{}", unsafe { *LOCK.value.get() });
}
