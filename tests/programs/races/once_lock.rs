use std::sync::OnceLock;
use std::thread;
static TABLE: OnceLock<Vec<u32>> = OnceLock::new();
fn table() -> &'static Vec<u32> {
    TABLE.get_or_init(|| (0..32).collect())
}
fn main() {
    let threads: Vec<_> = (0..3)
        .map(|i| thread::spawn(move || table()[i]))
        .collect();
    let sum: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    println!("{sum}");
}
