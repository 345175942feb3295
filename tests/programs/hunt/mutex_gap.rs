// The guard is dropped between the look and the change. Rust allows no data
// race here; the order of the critical sections decides.
// HUNT fails: exit 101
use std::sync::Mutex;
use std::thread;

static NEXT: Mutex<u32> = Mutex::new(0);

fn work(rounds: u64) -> u64 {
    let factor: u64 = std::env::var("HUNT_WORK")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    (0..rounds * 100 * factor).fold(1, |value: u64, round| {
        std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round))
    })
}

fn number() -> u32 {
    work(200);
    let mine = *NEXT.lock().unwrap(); // DECIDES
    *NEXT.lock().unwrap() = mine + 1; // DECIDES
    mine // DECIDES
}

fn main() {
    let threads = [thread::spawn(number), thread::spawn(number)];
    let numbers = threads.map(|thread| thread.join().unwrap());
    assert_ne!(numbers[0], numbers[1]);
}
