use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
fn main() {
    let flag = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&flag);
    let sleeper = thread::spawn(move || {
        while !theirs.load(Ordering::Acquire) {
            thread::park();
        }
        println!("awake");
    });
    flag.store(true, Ordering::Release);
    sleeper.thread().unpark();
    sleeper.join().unwrap();
}
