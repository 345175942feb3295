use std::thread;
static mut COUNTER: u64 = 0;
fn bump() {
    for _ in 0..100 {
        unsafe {
            let at = &raw mut COUNTER;
            *at += 1; // RACE counter
        }
    }
}
fn main() {
    let other = thread::spawn(bump);
    bump();
    other.join().unwrap();
    println!("done");
}
