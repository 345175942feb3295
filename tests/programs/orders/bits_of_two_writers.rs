// ORDERS harmful
// NOT-LABEL disjoint-bits
use std::thread;

static mut FLAGS: u32 = 0;

fn toggle(bit: u32) {
    for _ in 0..100 {
        unsafe {
            FLAGS ^= 1 << bit; // RACE
        }
    }
}

fn main() {
    let one = thread::spawn(|| toggle(0));
    toggle(1);
    one.join().unwrap();
    println!("{}", unsafe { FLAGS });
}
