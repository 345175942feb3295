// LEVELS 2
// What Rust checks is a panic; what it is told not to check is not.
use std::thread;

#[no_mangle]
pub static mut PLACE: usize = 3;
#[no_mangle]
pub static mut SHELF: [u64; 16] = [1; 16];
#[no_mangle]
pub static mut SOLD: [u64; 64] = [1; 64];

fn keeper() {
    unsafe {
        *SHELF.get_unchecked_mut(PLACE) += 1; // RACE place: spec-violated memory-error out-of-bounds
    }
}

#[inline(never)]
fn other() {
    unsafe {
        PLACE = 20;                 // RACE place: spec-violated memory-error out-of-bounds
    }
}

fn main() {
    let one = thread::spawn(keeper);
    other();
    one.join().unwrap();
    let sum: u64 = unsafe { SHELF.iter().chain(SOLD.iter()).sum() };
    println!("done {}", sum > 0);
}
