use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
fn main() {
    let barrier = Arc::new(Barrier::new(3));
    let sum = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let (barrier, sum) = (barrier.clone(), sum.clone());
            thread::spawn(move || {
                sum.fetch_add(i, Ordering::Relaxed);
                barrier.wait();
                sum.load(Ordering::Relaxed)
            })
        })
        .collect();
    for thread in threads {
        println!("{}", thread.join().unwrap());
    }
}
