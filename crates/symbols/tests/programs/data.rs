// Statics of Rust: structures, tuples, arrays, atomics, cells in locks.
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub struct Stats {
    pub hits: u32,
    pub pair: (u64, u16),
    pub busy: AtomicU32,
    pub numbers: [u16; 5],
}

#[unsafe(no_mangle)]
pub static mut STATS: Stats = Stats {
    hits: 0,
    pair: (0, 0),
    busy: AtomicU32::new(0),
    numbers: [0; 5],
};
#[unsafe(no_mangle)]
pub static COUNTERS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
#[unsafe(no_mangle)]
pub static LOCKED: Mutex<u64> = Mutex::new(0);

fn main() {
    unsafe {
        STATS.hits += std::process::id();
        STATS.pair.0 += 1;
        STATS.pair.1 += 1;
        STATS.numbers[std::env::args().count()] += 1;
        (*(&raw const STATS)).busy.fetch_add(1, Ordering::Relaxed);
    }
    COUNTERS[std::env::args().count()].fetch_add(1, Ordering::Relaxed);
    *LOCKED.lock().unwrap() += 1;
}
