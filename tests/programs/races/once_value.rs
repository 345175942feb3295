use std::sync::{Arc, Barrier, LazyLock, OnceLock};
use std::thread;
static NAME: OnceLock<String> = OnceLock::new();
static TABLE: LazyLock<Vec<u32>> = LazyLock::new(|| (0..50).collect());
fn main() {
    let meet = Arc::new(Barrier::new(3));
    let crew: Vec<_> = (0..3)
        .map(|n| {
            let meet = Arc::clone(&meet);
            thread::spawn(move || {
                meet.wait();
                let name = NAME.get_or_init(|| format!("thread {n}"));
                name.len() as u32 + TABLE.iter().sum::<u32>()
            })
        })
        .collect();
    let sum: u32 = crew.into_iter().map(|t| t.join().unwrap()).sum();
    println!("{}", sum);
}
