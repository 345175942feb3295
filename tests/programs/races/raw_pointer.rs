use std::thread;
struct Send_(*mut u64);
unsafe impl Send for Send_ {}
fn main() {
    let mut value = Box::new(0u64);
    let pointer = Send_(&mut *value);
    let other = thread::spawn(move || {
        let pointer = pointer;
        unsafe { *pointer.0 += 1 }; // RACE value
    });
    *value += 2; // RACE value
    other.join().unwrap();
    println!("{value}");
}
