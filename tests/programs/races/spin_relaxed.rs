// MISSED at stripped: a check of a flag looks like an acquire load there.
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
struct Flag {
    ready: AtomicBool,
    value: UnsafeCell<u32>,
}
unsafe impl Sync for Flag {}
static FLAG: Flag = Flag {
    ready: AtomicBool::new(false),
    value: UnsafeCell::new(0),
};
fn main() {
    let other = thread::spawn(|| {
        unsafe { *FLAG.value.get() = 7 }; // RACE value
        FLAG.ready.store(true, Ordering::Relaxed);
    });
    while !FLAG.ready.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    println!("{}", unsafe { *FLAG.value.get() }); // RACE value
    other.join().unwrap();
}
