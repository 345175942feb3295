// Two consumers look whether there is something left and take it in two
// steps, each of them under the lock.
// HUNT fails: exit 101
use std::sync::{Arc, Mutex};
use std::thread;

fn work(rounds: u64) -> u64 {
    let factor: u64 = std::env::var("HUNT_WORK")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    (0..rounds * 100 * factor).fold(1, |value: u64, round| {
        std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round))
    })
}

fn consume(queue: &Mutex<Vec<u32>>) -> u32 {
    work(200);
    let mut sum = 0;
    while !queue.lock().unwrap().is_empty() { // DECIDES
        let item = queue.lock().unwrap().pop(); // DECIDES
        sum += item.expect("there was one");
    }
    sum
}

fn main() {
    let queue = Arc::new(Mutex::new(vec![1, 2, 3]));
    let consumers = [0, 1].map(|_| {
        let queue = queue.clone();
        thread::spawn(move || consume(&queue))
    });
    let sum: u32 = consumers.map(|consumer| consumer.join().unwrap()).iter().sum();
    assert_eq!(sum, 6);
}
