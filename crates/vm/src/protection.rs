//! Pages that the guest may write and the host keeps read-only, because code was
//! translated from what they show (`space::code_pages`).
//!
//! Whoever writes there lifts the protection first. A store of translated code
//! faults, and the vm lifts it; what the vm writes itself does so on its own
//! (`memory::write`); before a system call of the host's the ranges it will write
//! are lifted. Lifted pages are remembered until the vm has dropped what was
//! translated from them, before guest code runs again.
//!
//! A vm has its process for itself and one host thread, so this is one table.

use crate::host;
use crate::layout::{PAGE, page_down};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Default)]
struct Table {
    kept: BTreeSet<u64>,
    lifted: Vec<u64>,
}

thread_local! {
    static TABLE: RefCell<Table> = RefCell::default();
}

fn with<T>(look: impl FnOnce(&mut Table) -> T) -> T {
    TABLE.with_borrow_mut(look)
}

/// Sets the host's protection of one page of the guest's.
pub fn set(page: u64, protection: i32) {
    // SAFETY: a page of a guest mapping; nothing of the vm's lives there.
    unsafe { host::syscall(libc::SYS_mprotect, [page, PAGE, protection as u64, 0, 0, 0]) };
}

/// Keeps a page that the guest may write read-only from here on.
pub fn keep(page: u64) {
    if with(|table| table.kept.insert(page)) {
        set(page, libc::PROT_READ);
    }
}

/// Lets the page at `address` be written, if it was kept. False if it was not.
pub fn lift(address: u64) -> bool {
    let page = page_down(address);
    let kept = with(|table| {
        let kept = table.kept.remove(&page);
        if kept {
            table.lifted.push(page);
        }
        kept
    });
    if kept {
        set(page, libc::PROT_READ | libc::PROT_WRITE);
    }
    kept
}

pub fn lift_range(range: Range<u64>) {
    for page in kept_in(range) {
        lift(page);
    }
}

/// The host's protection of these pages is, or becomes, another one.
pub fn forget(range: Range<u64>) {
    for page in kept_in(range) {
        with(|table| table.kept.remove(&page));
    }
}

/// The host has mapped these pages anew: what was kept is kept again.
pub fn keep_again(range: Range<u64>) {
    for page in kept_in(range) {
        set(page, libc::PROT_READ);
    }
}

fn kept_in(range: Range<u64>) -> Vec<u64> {
    if range.is_empty() {
        return Vec::new();
    }
    with(|table| {
        table
            .kept
            .range(page_down(range.start)..range.end)
            .copied()
            .collect()
    })
}

pub fn any() -> bool {
    with(|table| !table.kept.is_empty())
}

/// The pages lifted since this was asked last.
pub fn take_lifted() -> Vec<u64> {
    with(|table| std::mem::take(&mut table.lifted))
}
