use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
static START: Once = Once::new();
static READY: AtomicU32 = AtomicU32::new(0);
fn main() {
    let mut data = vec![1u32; 64];
    let hits = AtomicUsize::new(0);
    thread::scope(|scope| {
        for part in data.chunks_mut(16) {
            let hits = &hits;
            scope.spawn(move || {
                START.call_once(|| READY.store(1, Ordering::Release));
                for item in part {
                    *item += READY.load(Ordering::Acquire);
                    hits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} {}", data.iter().sum::<u32>(), hits.into_inner());
}
