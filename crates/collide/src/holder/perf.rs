//! `perf_event_open` and its ring buffers, as far as the holder uses them.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

pub const FLAG_DISABLED: u64 = 1;
pub const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
pub const FLAG_EXCLUDE_HV: u64 = 1 << 6;
pub const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr` as far as the holder uses it (version 5, 112
/// bytes; the kernel takes any published size).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    pub bp_addr: u64,
    pub bp_len: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    pub sample_regs_intr: u64,
    pub aux_watermark: u32,
    pub sample_max_stack: u16,
    pub reserved: u16,
}

/// Opens an event of a thread (`cpu` -1) or of a CPU (`pid` -1).
pub fn open(attributes: &Attributes, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: perf_event_open reads one perf_event_attr of the size it names
    // and returns a descriptor that nobody else owns.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            pid,
            cpu,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        super::descriptors::spare(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// What the kernel records of an event, in memory shared with it.
pub struct Ring {
    base: *mut u8,
    data: usize,
    size: usize,
}

impl Ring {
    /// A ring whose records are taken out: what does not fit is lost.
    pub fn map(fd: RawFd, pages: usize) -> io::Result<Ring> {
        Ring::map_for(fd, pages, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// A ring that is only looked at: the newest records overwrite the oldest.
    pub fn map_newest(fd: RawFd, pages: usize) -> io::Result<Ring> {
        Ring::map_for(fd, pages, libc::PROT_READ)
    }

    fn map_for(fd: RawFd, pages: usize, protection: i32) -> io::Result<Ring> {
        let page = 4096;
        let length = (pages + 1) * page;
        // SAFETY: a fresh mapping of a perf descriptor; the kernel checks the
        // length.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring {
            base: base.cast(),
            data: page,
            size: pages * page,
        })
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: data_head is at offset 1024 of the first page of the
        // mapping, which lives as long as `self`.
        unsafe { &*self.base.add(1024).cast::<AtomicU64>() }
    }

    fn tail(&self) -> &AtomicU64 {
        // SAFETY: data_tail follows data_head.
        unsafe { &*self.base.add(1032).cast::<AtomicU64>() }
    }

    pub fn is_empty(&self) -> bool {
        self.head().load(Ordering::Acquire) == self.tail().load(Ordering::Relaxed)
    }

    /// The header of the newest record, if all records of this event are bare
    /// headers: its kind and its flags.
    pub fn newest(&self) -> Option<(u32, u16)> {
        const HEADER: u64 = 8;
        let head = self.head().load(Ordering::Acquire);
        let start = (head.checked_sub(HEADER)? as usize) & (self.size - 1);
        // SAFETY: headers are aligned and lie inside the data area. The kernel
        // may overwrite this one while it is read, with another header.
        let header = unsafe {
            (*self.base.add(self.data + start).cast::<AtomicU64>()).load(Ordering::Relaxed)
        };
        Some((header as u32, (header >> 32) as u16))
    }

    /// Takes every record out; each is given without its header.
    pub fn drain(&self, mut each: impl FnMut(u32, &[u8])) {
        let head = self.head().load(Ordering::Acquire);
        let mut tail = self.tail().load(Ordering::Relaxed);
        let mut record = Vec::new();
        while tail < head {
            let header = self.copy(tail, 8, &mut record);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if size < 8 {
                break;
            }
            let body = self.copy(tail + 8, size - 8, &mut record);
            each(kind, body);
            tail += size as u64;
        }
        self.tail().store(head, Ordering::Release);
    }

    fn copy<'a>(&self, at: u64, length: usize, into: &'a mut Vec<u8>) -> &'a [u8] {
        into.clear();
        let start = (at as usize) & (self.size - 1);
        let first = length.min(self.size - start);
        // SAFETY: start < size and both pieces end inside the data area; the
        // kernel does not write behind data_tail, where these bytes are.
        unsafe {
            let data = self.base.add(self.data);
            into.extend_from_slice(std::slice::from_raw_parts(data.add(start), first));
            into.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
        into
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.data + self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_published_size() {
        assert_eq!(size_of::<Attributes>(), 112);
    }
}
