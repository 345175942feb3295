//! madvise: what a program can see of it, and what a forked child has.

use super::{Halt, Outcome};
use crate::layout::{PAGE, page_up};
use crate::machine::Vm;
use crate::space::{Backing, Mapping};
use crate::{host, memory};
use std::ops::Range;

impl Vm {
    pub(super) fn sys_madvise(&mut self, address: u64, length: u64, advice: u64) -> Outcome {
        let Some(advice) = Advised::from_number(advice as i32) else {
            return Err(Halt::Errno(libc::EINVAL));
        };
        let end = address.wrapping_add(page_up(length));
        if !address.is_multiple_of(PAGE) || end < address || (length > 0 && end == address) {
            return Err(Halt::Errno(libc::EINVAL));
        }
        let parts: Vec<(Range<u64>, Mapping)> = self
            .space
            .mappings_in(address..end)
            .map(|(range, mapping)| {
                let part = range.start.max(address)..range.end.min(end);
                (part, mapping.clone())
            })
            .filter(|(part, _)| !part.is_empty())
            .collect();
        let mut covered = 0;
        for (part, mapping) in parts {
            if advice.fills() && covered < part.start - address {
                // Filling stops at a hole; all else goes on behind it.
                break;
            }
            covered += part.end - part.start;
            self.advise_part(advice, part, &mapping)?;
        }
        // What is mapped has been done all the same.
        if covered < end - address {
            return Err(Halt::Errno(libc::ENOMEM));
        }
        Ok(0)
    }

    /// Does to a part of one mapping what the guest advises.
    fn advise_part(
        &mut self,
        advice: Advised,
        part: Range<u64>,
        mapping: &Mapping,
    ) -> Result<(), Halt> {
        let is_file = mapping.shared || matches!(mapping.backing, Backing::File { .. });
        let writable = mapping.protection & libc::PROT_WRITE != 0;
        match advice {
            Advised::Hint => {}
            Advised::Drop => self.host_advice(part, libc::MADV_DONTNEED)?,
            Advised::Free if is_file => return Err(Halt::Errno(libc::EINVAL)),
            // It may or may not keep the contents; dropping them at once is the
            // deterministic choice.
            Advised::Free => self.host_advice(part, libc::MADV_DONTNEED)?,
            Advised::Remove if !is_file => return Err(Halt::Errno(libc::EINVAL)),
            // Through a descriptor that may write.
            Advised::Remove if !mapping.exchanged => {
                return Err(Halt::Errno(libc::EACCES));
            }
            Advised::Remove => self.host_advice(part, libc::MADV_REMOVE)?,
            Advised::Populate { write } => {
                // Write permission is asked for, else anything that is not nothing.
                let allowed = match write {
                    true => writable,
                    false => mapping.protection != libc::PROT_NONE,
                };
                if !allowed {
                    return Err(Halt::Errno(libc::EINVAL));
                }
                // Pages behind the end of a file cannot be had.
                for page in part.step_by(PAGE as usize) {
                    memory::get::<u8>(page)?;
                }
            }
            Advised::NotForked(not_forked) => {
                self.space.advise(part, |one| one.not_forked = not_forked);
            }
            Advised::WipedOnFork(true) if is_file => return Err(Halt::Errno(libc::EINVAL)),
            Advised::WipedOnFork(wiped) => {
                self.space.advise(part, |one| one.wiped_on_fork = wiped);
            }
        }
        Ok(())
    }

    /// Advice that changes what the guest reads is the host's to follow.
    fn host_advice(&mut self, part: Range<u64>, advice: i32) -> Result<(), Halt> {
        // SAFETY: a part of a guest mapping.
        let result = unsafe {
            host::syscall(
                libc::SYS_madvise,
                [part.start, part.end - part.start, advice as u64, 0, 0, 0],
            )
        };
        if result < 0 {
            return Err(Halt::Errno(-result as i32));
        }
        self.memory_written(part);
        Ok(())
    }

    /// This process is a fork of another: it does not have, or finds empty, what
    /// the guest has said so of.
    pub(super) fn leave_memory_behind(&mut self) -> Result<(), Halt> {
        let (left, wiped) = self.space.not_inherited();
        for range in left {
            self.sys_munmap(range.start, range.end - range.start)?;
        }
        for range in wiped {
            self.host_advice(range, libc::MADV_DONTNEED)?;
        }
        Ok(())
    }
}

/// What madvise is told, as far as a program can see it.
#[derive(Clone, Copy)]
enum Advised {
    /// Nothing that shows.
    Hint,
    Drop,
    Free,
    Remove,
    Populate {
        write: bool,
    },
    NotForked(bool),
    WipedOnFork(bool),
}

impl Advised {
    fn from_number(number: i32) -> Option<Advised> {
        const DONTNEED_LOCKED: i32 = 24;
        const COLLAPSE: i32 = 25;
        Some(match number {
            libc::MADV_DONTNEED | DONTNEED_LOCKED => Advised::Drop,
            libc::MADV_FREE => Advised::Free,
            libc::MADV_REMOVE => Advised::Remove,
            libc::MADV_POPULATE_READ => Advised::Populate { write: false },
            libc::MADV_POPULATE_WRITE => Advised::Populate { write: true },
            libc::MADV_DONTFORK => Advised::NotForked(true),
            libc::MADV_DOFORK => Advised::NotForked(false),
            libc::MADV_WIPEONFORK => Advised::WipedOnFork(true),
            libc::MADV_KEEPONFORK => Advised::WipedOnFork(false),
            libc::MADV_NORMAL..=libc::MADV_WILLNEED
            | libc::MADV_MERGEABLE..=libc::MADV_DODUMP
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | COLLAPSE => Advised::Hint,
            _ => return None,
        })
    }

    fn fills(self) -> bool {
        matches!(self, Advised::Populate { .. })
    }
}
