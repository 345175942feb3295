use std::sync::Arc;
use std::thread;
struct Loud(Vec<u32>);
impl Drop for Loud {
    fn drop(&mut self) {
        self.0[0] = 7;
    }
}
fn main() {
    let shared = Arc::new(Loud(vec![1; 32]));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.0.iter().sum::<u32>())
        })
        .collect();
    drop(shared);
    let total: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    println!("{total}");
}
