// Two clerks sell the last seat: test and sale are not one step.
// HUNT fails: exit 101
use std::cell::UnsafeCell;
use std::thread;

struct Seats(UnsafeCell<i32>);

// SAFETY: none; that is the bug.
unsafe impl Sync for Seats {}

static SEATS: Seats = Seats(UnsafeCell::new(1));

fn work(rounds: u64) -> u64 {
    let factor: u64 = std::env::var("HUNT_WORK")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    (0..rounds * 100 * factor).fold(1, |value: u64, round| {
        std::hint::black_box(value.wrapping_mul(6364136223846793005).wrapping_add(round))
    })
}

fn sell() -> bool {
    work(200);
    let left = unsafe { SEATS.0.get().read_volatile() }; // DECIDES
    if left < 1 {
        return false;
    }
    unsafe { SEATS.0.get().write_volatile(left - 1) }; // DECIDES
    true
}

fn main() {
    let clerks = [thread::spawn(sell), thread::spawn(sell)];
    let sold = clerks.map(|clerk| clerk.join().unwrap());
    assert_eq!(sold.iter().filter(|sold| **sold).count(), 1);
}
