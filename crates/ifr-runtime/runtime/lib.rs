//! The run-time half of interference-free regions (paper 004, IFRit, section
//! 4): keeps the active monitors, checks each new one against the others, and
//! tells of the races at exit.
//!
//! It is linked into the instrumented program, so it lives by rules of its
//! own: no allocator (memory comes from its own mappings), no panics, no
//! standard library, nothing that the program could be in the middle of. It is
//! compiled by `build.rs` into one static archive.
//!
//! Deviations from the paper, all measured there to be necessary: instead of
//! sharded hash tables a linear shadow (`shadow`) whose slots carry owner and
//! epoch, so that stopping all monitors is one addition (`threads`); ranges in
//! a table of their own (`monitor`); releases are seen where they happen, by
//! interposition (`interpose`), not only where the pass can name them.
//!
//! Guarantee: no false report as long as every release is seen. All loads and
//! stores of the shadow are relaxed: an update lost to a concurrent one loses a
//! detection, never invents one. Why a report is true: a slot is believed only
//! while its owner's published word still holds the slot's epoch; had the
//! owner's access happened before ours, its release, which comes after its
//! count of the epoch, would have happened before our check.

#![no_std]
#![allow(internal_features)]

mod decode;
mod entry;
mod exit;
mod foreign;
mod history;
mod interpose;
mod monitor;
mod options;
mod races;
mod shadow;
mod spin;
mod sys;
mod text;
mod threads;

#[panic_handler]
fn no_panic(_: &core::panic::PanicInfo) -> ! {
    sys::write_all(
        2,
        b"deadheat: the monitor run-time met a defect of its own\n",
    );
    sys::exit_group(70)
}
