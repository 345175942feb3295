// Channels, a panic caught in a thread, parking, and a barrier.
use std::sync::mpsc;
use std::sync::{Arc, Barrier, RwLock};

fn main() {
    let (send, receive) = mpsc::sync_channel::<u64>(4);
    let table = Arc::new(RwLock::new(vec![0u64; 64]));
    let barrier = Arc::new(Barrier::new(8));
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let (send, table, barrier) = (send.clone(), table.clone(), barrier.clone());
            scope.spawn(move || {
                for i in 0..200 {
                    table.write().unwrap()[((n * 7 + i) % 64) as usize] += i;
                    send.send(n * i).unwrap();
                }
                barrier.wait();
            });
        }
        drop(send);
        println!("{}", receive.iter().sum::<u64>());
    });
    println!("{}", table.read().unwrap().iter().sum::<u64>());
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::thread::spawn(|| panic!("on purpose")).join().is_err();
    let parked = std::thread::spawn(std::thread::park);
    parked.thread().unpark();
    parked.join().unwrap();
    println!("{caught}");
}
