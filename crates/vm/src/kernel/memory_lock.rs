//! mlock and its family, msync and mincore: calls about where pages are.
//!
//! Nothing is locked on the host, whose limit the vm shares with all it holds
//! itself. The vm keeps which pages the guest has locked, because that shows:
//! it counts against RLIMIT_MEMLOCK, and advice and msync are refused there.

use super::{Call, Halt, Outcome};
use crate::layout::{PAGE, page_down, page_up};
use crate::machine::Vm;
use crate::space::Backing;
use std::ops::Range;

/// CAP_IPC_LOCK: memory may be locked without limit.
const IPC_LOCK: u32 = 14;

impl Vm {
    /// Where the first hole in `range` is, or its end.
    pub(super) fn mapped_to(&self, range: &Range<u64>) -> u64 {
        let mut at = range.start;
        while at < range.end
            && let Some((part, _)) = self.space.find(at)
        {
            at = part.end;
        }
        at.min(range.end)
    }

    /// Fails if the guest may lock no memory at all.
    fn may_lock(&mut self) -> Result<(), Halt> {
        if self.lock_limit() == 0 && !self.has_capability(IPC_LOCK)? {
            return Err(Halt::Errno(libc::EPERM));
        }
        Ok(())
    }

    /// True if so many more bytes may be locked.
    fn has_room_to_lock(&mut self, more: u64) -> Result<bool, Halt> {
        let wanted = self.space.locked_bytes().saturating_add(more);
        Ok(wanted <= self.lock_limit() || self.has_capability(IPC_LOCK)?)
    }

    /// Fails if a new mapping of `length` bytes has to be locked and may not
    /// be; `asked` is MAP_LOCKED.
    pub(super) fn room_for_locked(&mut self, length: u64, asked: bool) -> Result<(), Halt> {
        if asked {
            self.may_lock()?;
        }
        if (asked || self.space.locks_new) && !self.has_room_to_lock(page_up(length))? {
            return Err(Halt::Errno(libc::EAGAIN));
        }
        Ok(())
    }

    /// mlock, mlock2 and munlock. What is mapped before the first hole is
    /// locked all the same.
    pub(super) fn sys_mlock(&mut self, call: &Call) -> Outcome {
        const ON_FAULT: u64 = 1;
        let [address, length, flags, ..] = call.arguments;
        let number = call.number as i64;
        let locks = number != libc::SYS_munlock;
        if number == libc::SYS_mlock2 && flags & !ON_FAULT != 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        if locks {
            self.may_lock()?;
        }
        let start = page_down(address);
        // The kernel looks at the limit before it looks at the end.
        let length = page_up(length.wrapping_add(address - start));
        let range = start..start.saturating_add(length);
        if locks {
            let more = length.saturating_sub(self.space.locked_in(&range));
            if !self.has_room_to_lock(more)? {
                return Err(Halt::Errno(libc::ENOMEM));
            }
        }
        if start.checked_add(length).is_none() {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let mapped = self.mapped_to(&range);
        self.space.set_locked(range.start..mapped, locks);
        // A page that nobody may touch cannot be brought in.
        let brought = !locks || self.space.is_accessible(range.start..mapped);
        if mapped < range.end || !brought {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        Ok(0)
    }

    pub(super) fn sys_mlockall(&mut self, flags: u64) -> Outcome {
        let flags = flags as i32;
        let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
        if flags & !known != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
            return Err(Halt::Errno(libc::EINVAL));
        }
        self.may_lock()?;
        let all = 0..crate::layout::GUEST_TOP;
        if flags & libc::MCL_CURRENT != 0 {
            let more = self.space.lockable_bytes() - self.space.locked_bytes();
            if !self.has_room_to_lock(more)? {
                return Err(Halt::Errno(libc::ENOMEM));
            }
            self.space.set_locked(all, true);
        }
        self.space.locks_new = flags & libc::MCL_FUTURE != 0;
        Ok(0)
    }

    pub(super) fn sys_munlockall(&mut self) -> Outcome {
        self.space.unlock_all();
        Ok(0)
    }

    pub(super) fn sys_msync(&mut self, address: u64, length: u64, flags: u64) -> Outcome {
        let flags = flags as i32;
        let known = libc::MS_ASYNC | libc::MS_SYNC | libc::MS_INVALIDATE;
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if !address.is_multiple_of(PAGE) || flags & !known != 0 || flags & both == both {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let end = length
            .checked_next_multiple_of(PAGE)
            .and_then(|length| address.checked_add(length))
            .ok_or(Halt::Errno(libc::ENOMEM))?;
        let range = address..end;
        let mapped = address..self.mapped_to(&range);
        if flags & libc::MS_INVALIDATE != 0 && self.space.locked_in(&mapped) > 0 {
            return Err(Halt::Errno(libc::EBUSY));
        }
        if flags & libc::MS_SYNC != 0 {
            self.write_back(&mapped)?;
        }
        if mapped.end < end {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        Ok(0)
    }

    /// Files mapped shared are written to their disks. Behind the end of a
    /// file the kernel then puts zeros, which are the guest's to see.
    fn write_back(&mut self, range: &Range<u64>) -> Result<(), Halt> {
        // A copy has no files outside.
        if self.io.is_copy() {
            return Ok(());
        }
        let shared: Vec<(Range<u64>, bool)> = self
            .space
            .mappings()
            .filter(|(_, mapping)| {
                mapping.exchanged && matches!(mapping.backing, Backing::File { .. })
            })
            .map(|(part, mapping)| {
                let part = part.start.max(range.start)..part.end.min(range.end);
                (part, mapping.protection & libc::PROT_WRITE != 0)
            })
            .filter(|(part, _)| part.start < part.end)
            .collect();
        for (part, writable) in shared {
            let last = part.end - PAGE;
            self.space_for_writing(last, PAGE);
            let arguments = [
                part.start,
                part.end - part.start,
                libc::MS_SYNC as u64,
                0,
                0,
                0,
            ];
            let result = self.host_call_writing(libc::SYS_msync, arguments, |_| {
                if writable {
                    vec![(last, PAGE as usize)]
                } else {
                    Vec::new()
                }
            })?;
            if result < 0 {
                return Err(Halt::Errno(-result as i32));
            }
        }
        Ok(())
    }

    /// Which pages are in memory is the host's to say.
    pub(super) fn sys_mincore(&mut self, address: u64, length: u64, vector: u64) -> Outcome {
        if !address.is_multiple_of(PAGE) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let end = length
            .checked_next_multiple_of(PAGE)
            .and_then(|length| address.checked_add(length))
            .ok_or(Halt::Errno(libc::ENOMEM))?;
        if self.mapped_to(&(address..end)) < end {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        let locked = self.space.locked_pages(&(address..end));
        let pages = ((end - address) / PAGE) as usize;
        let arguments = [address, end - address, vector, 0, 0, 0];
        let result =
            self.host_call_writing(libc::SYS_mincore, arguments, |_| vec![(vector, pages)])?;
        if result == 0 {
            for page in locked {
                crate::memory::put(vector + page, 1u8)?;
            }
        }
        Ok(result)
    }
}
