//! Atomic accesses against plain ones (beyond paper 004, whose atomics only
//! synchronise).
//!
//! An atomic access has no region: it is at one moment, and it starts no monitor. The
//! code reads the slot right before it and comes here right after it, if the slot
//! named another thread's monitor in conflict. That monitor is believed if it is
//! still active now. Then it was active before and after the access: its thread has
//! neither acquired what the access released, since it started it before, nor
//! released what the access acquired, since it has not stopped it. So neither of the
//! two accesses happens before the other.

use super::{Asker, Clash, WRITE, active, report};
use crate::threads;
use core::sync::atomic::Ordering;

/// The thread has made an atomic access; before it the slot said `held`.
pub fn atomic(address: usize, description: u64, held: u64, asker: Asker) {
    let now = threads::local().now();
    let Some(thread) = threads::current() else {
        return;
    };
    if now == 0 || thread.enter_busy() {
        return;
    }
    let size = description & 0xffff;
    let write = description & WRITE != 0;
    let bytes = ((1u64 << size) - 1) << (address & 7);
    let met = bytes & if write { held } else { held >> 8 } & 0xff;
    if met != 0 && (held ^ now) >> 56 != 0 && active(held) {
        let clash = Clash {
            address,
            bytes: met,
            size: size as u32,
            write,
            freed: false,
            atomic: true,
            held,
            walked: false,
        };
        report(thread, asker, clash);
    }
    thread.busy.store(false, Ordering::Relaxed);
}
