use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread;
fn main() {
    let table = Arc::new(RwLock::new(vec![0u32; 8]));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (their_table, their_gate) = (Arc::clone(&table), Arc::clone(&gate));
    let writer = thread::spawn(move || {
        for i in 0..20 {
            their_table.write().unwrap()[i % 8] += 1;
        }
        *their_gate.0.lock().unwrap() = true;
        their_gate.1.notify_all();
    });
    let mut open = gate.0.lock().unwrap();
    while !*open {
        open = gate.1.wait(open).unwrap();
    }
    drop(open);
    println!("{}", table.read().unwrap()[3]);
    writer.join().unwrap();
}
