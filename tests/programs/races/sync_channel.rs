use std::sync::mpsc::sync_channel;
use std::thread;
fn main() {
    let (sender, receiver) = sync_channel::<Box<[u8; 64]>>(2);
    let producer = thread::spawn(move || {
        for i in 0..10 {
            sender.send(Box::new([i; 64])).unwrap();
        }
    });
    let total: u32 = receiver.iter().map(|block| u32::from(block[63])).sum();
    producer.join().unwrap();
    println!("{total}");
}
