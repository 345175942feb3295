//! mmap and its family. All address decisions are the vm's (`space`).

use super::{Call, Halt, Outcome};
use crate::host;
use crate::machine::Vm;
use crate::space::{Backing, Placement, Request};
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl Vm {
    pub(super) fn sys_mmap(&mut self, call: &Call) -> Outcome {
        let [address, length, protection, flags, fd, offset] = call.arguments;
        let flags = flags as i32;
        let protection = protection as i32 & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        let kind = flags & libc::MAP_TYPE;
        let shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
        if !shared && kind != libc::MAP_PRIVATE {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if offset % crate::layout::PAGE != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let placement = if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
            Placement::FixedNoReplace(address)
        } else if flags & libc::MAP_FIXED != 0 {
            Placement::Fixed(address)
        } else if flags & libc::MAP_32BIT != 0 {
            Placement::Below(1 << 31)
        } else if address != 0 {
            Placement::Hint(address)
        } else {
            Placement::Anywhere
        };
        let mut request = Request {
            length,
            protection,
            shared,
            backing: Backing::Anonymous,
            file: None,
        };
        let opened;
        if flags & libc::MAP_ANONYMOUS == 0 {
            let writable = shared && protection & libc::PROT_WRITE != 0;
            let (path, file) = self.file_to_map(fd as i32, writable)?;
            request.file = Some((file.as_raw_fd(), offset));
            request.backing = Backing::File {
                path: Arc::new(path),
                offset,
            };
            // A replay must not write to the world: it maps its own copy.
            if shared && !self.io.is_live() {
                request.shared = false;
            }
            opened = Some(file);
        } else {
            opened = None;
        }
        let mapped = self.space.map(placement, request);
        drop(opened);
        match mapped {
            Ok(start) => {
                self.code_changed(start..start + crate::layout::page_up(length));
                Ok(start as i64)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_munmap(&mut self, address: u64, length: u64) -> Outcome {
        match self.space.unmap(address, length) {
            Ok(range) => {
                self.code_changed(range);
                Ok(0)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_mprotect(&mut self, address: u64, length: u64, protection: u64) -> Outcome {
        let protection = protection as i32 & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        match self.space.protect(address, length, protection) {
            Ok(range) => {
                self.code_changed(range);
                Ok(0)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_mremap(&mut self, call: &Call) -> Outcome {
        let [old, old_length, new_length, flags, new, _] = call.arguments;
        match self
            .space
            .remap(old, old_length, new_length, flags as i32, new)
        {
            Ok((address, moved)) => {
                if let Some(range) = moved {
                    self.code_changed(range);
                    self.code_changed(address..address + crate::layout::page_up(new_length));
                }
                Ok(address as i64)
            }
            Err(errno) => Ok(errno),
        }
    }

    pub(super) fn sys_brk(&mut self, wanted: u64) -> Outcome {
        Ok(self.space.set_brk(wanted) as i64)
    }

    pub(super) fn sys_madvise(&mut self, address: u64, length: u64, advice: u64) -> Outcome {
        if address % crate::layout::PAGE != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        match advice as i32 {
            // These change what the guest reads: done, page by mapped page.
            libc::MADV_DONTNEED | libc::MADV_REMOVE | libc::MADV_FREE => {
                let end = address.saturating_add(crate::layout::page_up(length));
                let parts: Vec<_> = self
                    .space
                    .mappings()
                    .map(|(range, _)| range.start.max(address)..range.end.min(end))
                    .filter(|part| part.start < part.end)
                    .collect();
                for part in parts {
                    // MADV_FREE may or may not keep the contents; dropping
                    // them at once is the deterministic choice.
                    let advice = if advice as i32 == libc::MADV_FREE {
                        libc::MADV_DONTNEED
                    } else {
                        advice as i32
                    };
                    // SAFETY: a guest range.
                    let result = unsafe {
                        host::syscall(
                            libc::SYS_madvise,
                            [part.start, part.end - part.start, advice as u64, 0, 0, 0],
                        )
                    };
                    if result < 0 {
                        return Ok(result);
                    }
                    self.code_changed(part);
                }
                Ok(0)
            }
            // Hints, and requests that would break snapshots (DONTFORK…).
            _ => Ok(0),
        }
    }
}
