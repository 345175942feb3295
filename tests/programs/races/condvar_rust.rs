use std::sync::{Arc, Condvar, Mutex};
use std::thread;
fn main() {
    let pair = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let other = {
        let pair = pair.clone();
        thread::spawn(move || {
            for i in 0..10 {
                pair.0.lock().unwrap().push(i);
                pair.1.notify_one();
            }
        })
    };
    let mut held = pair.0.lock().unwrap();
    while held.len() < 10 {
        held = pair.1.wait(held).unwrap();
    }
    println!("{}", held.iter().sum::<i32>());
    drop(held);
    other.join().unwrap();
}
