// Two statics on one line are two races; one through a helper is told apart by
// who called.
// ON hits: statics::HITS
// ON misses: statics::MISSES
// ON slot: statics::SLOT
use std::ptr::addr_of_mut;
use std::thread;

static mut HITS: u64 = 0;
static mut MISSES: u64 = 0;
static mut SLOT: u64 = 0;

#[inline(never)]
fn put(slot: *mut u64, value: u64) {
    unsafe { *slot = value }
}

fn work() {
    for turn in 0..30 {
        unsafe { HITS += 1; MISSES += 2; } // RACE hits RACE misses
        if turn < 15 {
            put(addr_of_mut!(SLOT), turn); // RACE slot
        } else {
            put(addr_of_mut!(SLOT), 0); // RACE slot
        }
    }
}

fn main() {
    let threads = [thread::spawn(work), thread::spawn(work)];
    for thread in threads {
        thread.join().unwrap();
    }
    println!("ok");
}
