use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
fn main() {
    let slot: Arc<AtomicPtr<Vec<u32>>> = Arc::new(AtomicPtr::new(std::ptr::null_mut()));
    let other = {
        let slot = slot.clone();
        thread::spawn(move || {
            let made = Box::into_raw(Box::new(vec![1, 2, 3]));
            slot.store(made, Ordering::Release);
        })
    };
    let got = loop {
        let got = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !got.is_null() {
            break unsafe { Box::from_raw(got) };
        }
        thread::yield_now();
    };
    other.join().unwrap();
    println!("{}", got.iter().sum::<u32>());
}
