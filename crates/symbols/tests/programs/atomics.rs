// Each function is one atomic operation; the comment is what debug info must
// tell about it.
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

pub static NUMBER: AtomicUsize = AtomicUsize::new(0);
pub static LONG: AtomicU64 = AtomicU64::new(0);
pub static FLAG: AtomicBool = AtomicBool::new(false);
pub static POINTER: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
pub static mut PLAIN: usize = 0;

#[inline(never)] #[unsafe(no_mangle)] pub fn load_relaxed() -> usize { NUMBER.load(Ordering::Relaxed) } // load Relaxed
#[inline(never)] #[unsafe(no_mangle)] pub fn load_acquire() -> u64 { LONG.load(Ordering::Acquire) } // load Acquire
#[inline(never)] #[unsafe(no_mangle)] pub fn load_seq_cst() -> usize { NUMBER.load(Ordering::SeqCst) } // load SeqCst
#[inline(never)] #[unsafe(no_mangle)] pub fn load_bool() -> bool { FLAG.load(Ordering::Acquire) } // load Acquire
#[inline(never)] #[unsafe(no_mangle)] pub fn load_pointer() -> *mut u32 { POINTER.load(Ordering::Acquire) } // load Acquire
#[inline(never)] #[unsafe(no_mangle)] pub fn store_relaxed() { NUMBER.store(1, Ordering::Relaxed) } // store Relaxed
#[inline(never)] #[unsafe(no_mangle)] pub fn store_release() { LONG.store(2, Ordering::Release) } // store Release
#[inline(never)] #[unsafe(no_mangle)] pub fn store_seq_cst() { NUMBER.store(3, Ordering::SeqCst) } // store SeqCst
#[inline(never)] #[unsafe(no_mangle)] pub fn add_relaxed() -> usize { NUMBER.fetch_add(1, Ordering::Relaxed) } // rmw Relaxed
#[inline(never)] #[unsafe(no_mangle)] pub fn add_acq_rel() -> usize { NUMBER.fetch_add(1, Ordering::AcqRel) } // rmw AcqRel
#[inline(never)] #[unsafe(no_mangle)] pub fn swap_bool() -> bool { FLAG.swap(true, Ordering::Acquire) } // rmw Acquire
#[inline(never)] #[unsafe(no_mangle)] pub fn swap_number() -> bool { NUMBER.compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok() } // rmw AcqRel
#[inline(never)] #[unsafe(no_mangle)] pub fn read_plain() -> usize { unsafe { PLAIN } } // none
#[inline(never)] #[unsafe(no_mangle)] pub fn write_plain() { unsafe { PLAIN = PLAIN.wrapping_mul(3) + 7 } } // none

fn main() {
    POINTER.store(&raw mut *Box::leak(Box::new(std::process::id())), Ordering::Relaxed);
    let mut total = load_relaxed() + load_acquire() as usize + load_seq_cst() + load_bool() as usize;
    total += load_pointer() as usize;
    store_relaxed();
    store_release();
    store_seq_cst();
    total += add_relaxed() + add_acq_rel() + swap_bool() as usize + swap_number() as usize;
    total += read_plain();
    write_plain();
    println!("{total}");
}
