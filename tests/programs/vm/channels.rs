// Threads, channels, locks, condition variables and scoped threads of std.
// identity: output as natively
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, mpsc};
use std::thread;

fn main() {
    let (sender, receiver) = mpsc::sync_channel::<u64>(3);
    let total = Arc::new(Mutex::new(0u64));
    let table = Arc::new(RwLock::new(vec![0u64; 8]));
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let seen = AtomicU64::new(0);
    let workers: Vec<_> = (0..3u64)
        .map(|id| {
            let (sender, total) = (sender.clone(), Arc::clone(&total));
            let (table, gate) = (Arc::clone(&table), Arc::clone(&gate));
            thread::spawn(move || {
                let (lock, opened) = &*gate;
                let mut open = lock.lock().unwrap();
                while !*open {
                    open = opened.wait(open).unwrap();
                }
                drop(open);
                for i in 0..40 {
                    *total.lock().unwrap() += i * (id + 1);
                    table.write().unwrap()[(i % 8) as usize] += id;
                    sender.send(i + id).unwrap();
                }
            })
        })
        .collect();
    drop(sender);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    let sum: u64 = receiver.iter().sum();
    let panicked = workers.into_iter().filter(|_| true).map(|one| one.join()).filter(Result::is_err).count();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| seen.fetch_add(table.read().unwrap().iter().sum::<u64>(), Ordering::Relaxed));
        }
    });
    println!("sum {sum}, total {}, seen {}, panicked {panicked}", total.lock().unwrap(), seen.into_inner());
}
