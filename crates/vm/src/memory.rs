//! Reading and writing guest memory from the vm.
//!
//! Guest pointers can be anything. Copies go through one assembly routine
//! whose address range the host signal handler knows: a fault inside it makes
//! the copy return how many bytes were left instead of killing the vm.

use crate::{layout, protection};
use std::arch::global_asm;

global_asm!(
    ".global deadheat_guarded_copy",
    "deadheat_guarded_copy:",
    // rdi to, rsi from, rdx length -> rax bytes not copied
    "mov rcx, rdx",
    ".global deadheat_guarded_copy_at",
    "deadheat_guarded_copy_at:",
    "rep movsb",
    ".global deadheat_guarded_copy_fault",
    "deadheat_guarded_copy_fault:",
    "mov rax, rcx",
    "ret",
);

unsafe extern "C" {
    fn deadheat_guarded_copy(to: *mut u8, from: *const u8, length: usize) -> usize;
    fn deadheat_guarded_copy_at();
    fn deadheat_guarded_copy_fault();
}

/// If `pc` is the instruction of a guarded copy, where to continue after a
/// fault in it.
pub fn fault_continuation(pc: u64) -> Option<u64> {
    (pc == deadheat_guarded_copy_at as *const () as u64)
        .then_some(deadheat_guarded_copy_fault as *const () as u64)
}

/// A guest address range could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadAddress;

/// True for addresses at which the vm itself lives, and no guest memory can
/// be: its executable and heap, and everything from its context to the top.
pub fn is_vm(address: u64) -> bool {
    layout::VM.iter().any(|part| part.contains(&address))
}

/// A range that touches the vm is none of the guest's.
fn vetted(address: u64, length: usize) -> Result<(), BadAddress> {
    let end = address.checked_add(length as u64).ok_or(BadAddress)?;
    let image = layout::HOST_IMAGE;
    if end > layout::GUEST_TOP || (address < image.end && image.start < end) {
        return Err(BadAddress);
    }
    Ok(())
}

/// Fills `buffer` from guest memory.
pub fn read(address: u64, buffer: &mut [u8]) -> Result<(), BadAddress> {
    vetted(address, buffer.len())?;
    // SAFETY: the destination is ours and large enough; a fault on the source
    // ends the copy early.
    let left =
        unsafe { deadheat_guarded_copy(buffer.as_mut_ptr(), address as *const u8, buffer.len()) };
    if left == 0 { Ok(()) } else { Err(BadAddress) }
}

/// Copies `bytes` into guest memory, also where code was translated from. What
/// lies before the first bad byte has been written when this fails.
pub fn write(address: u64, mut bytes: &[u8]) -> Result<(), BadAddress> {
    vetted(address, bytes.len())?;
    let end = address + bytes.len() as u64;
    loop {
        let at = end - bytes.len() as u64;
        // SAFETY: the source is ours; the destination is guest memory by the
        // caller's intent, and a fault there ends the copy early.
        let left = unsafe { deadheat_guarded_copy(at as *mut u8, bytes.as_ptr(), bytes.len()) };
        if left == 0 {
            return Ok(());
        }
        if !protection::lift(end - left as u64) {
            return Err(BadAddress);
        }
        bytes = &bytes[bytes.len() - left..];
    }
}

pub fn read_vec(address: u64, length: usize) -> Result<Vec<u8>, BadAddress> {
    let mut bytes = vec![0; length];
    read(address, &mut bytes)?;
    Ok(bytes)
}

/// Plain values that can be copied to and from guest memory byte by byte.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding that
/// matters.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: integers and C structures of integers take any bits.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64, usize);
plain!(
    libc::timespec,
    libc::timeval,
    libc::iovec,
    libc::epoll_event,
    libc::pollfd
);
// SAFETY: arrays of plain values are plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

pub fn get<T: Plain>(address: u64) -> Result<T, BadAddress> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the buffer is exactly the value's memory; any bits are valid.
    unsafe {
        let bytes = std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>());
        read(address, bytes)?;
        Ok(value.assume_init())
    }
}

pub fn put<T: Plain>(address: u64, value: T) -> Result<(), BadAddress> {
    // SAFETY: reading the bytes of a plain value.
    let bytes =
        unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
    write(address, bytes)
}

/// A NUL-terminated string of at most `limit` bytes, without the NUL.
pub fn read_c_string(address: u64, limit: usize) -> Result<Vec<u8>, BadAddress> {
    let mut result = Vec::new();
    let mut at = address;
    while result.len() < limit {
        // Never read past the end of a page that was not asked for.
        let chunk = (4096 - (at as usize & 4095)).min(limit - result.len());
        let bytes = read_vec(at, chunk)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            result.extend_from_slice(&bytes[..end]);
            return Ok(result);
        }
        result.extend_from_slice(&bytes);
        at += chunk as u64;
    }
    Ok(result)
}
