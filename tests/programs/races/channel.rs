use std::sync::mpsc;
use std::thread;
fn main() {
    let (sender, receiver) = mpsc::channel::<Vec<u32>>();
    let producer = thread::spawn(move || {
        for i in 0..20 {
            sender.send(vec![i; 10]).unwrap();
        }
    });
    let mut sum = 0;
    for message in receiver {
        sum += message.iter().sum::<u32>();
    }
    producer.join().unwrap();
    println!("{sum}");
}
