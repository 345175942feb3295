use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread;
fn main() {
    let table = Arc::new(RwLock::new(HashMap::new()));
    let done = Arc::new((Mutex::new(0), Condvar::new()));
    let hits = Arc::new(AtomicUsize::new(0));
    for n in 0..3u32 {
        let (table, done, hits) = (table.clone(), done.clone(), hits.clone());
        thread::spawn(move || {
            for i in 0..10 {
                table.write().unwrap().insert((n, i), i);
                if table.read().unwrap().len() > 5 {
                    hits.fetch_add(1, Ordering::Relaxed);
                }
            }
            *done.0.lock().unwrap() += 1;
            done.1.notify_all();
        });
    }
    let mut count = done.0.lock().unwrap();
    while *count < 3 {
        count = done.1.wait(count).unwrap();
    }
    println!("{} {}", table.read().unwrap().len(), hits.load(Ordering::Relaxed) > 0);
}
