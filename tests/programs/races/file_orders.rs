// What is done before a file is written happens before what is done after it is
// read.
use std::cell::UnsafeCell;
struct Cell(UnsafeCell<u32>);
unsafe impl Sync for Cell {}
static VALUE: Cell = Cell(UnsafeCell::new(0));
fn main() {
    let name = std::env::temp_dir().join(format!("deadheat-orders-{}", std::process::id()));
    let theirs = name.clone();
    let writer = std::thread::spawn(move || {
        unsafe { *VALUE.0.get() = 7 };
        std::fs::write(theirs, "done").unwrap();
    });
    while std::fs::read(&name).is_ok_and(|text| text == b"done") == false {
        std::thread::yield_now();
    }
    println!("{}", unsafe { *VALUE.0.get() });
    writer.join().unwrap();
    std::fs::remove_file(name).unwrap();
}
