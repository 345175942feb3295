//! Locks on parts of files (fcntl).
//!
//! They are the host's, so that other programs see them. The vm keeps the
//! position of a file, from which such a lock may count. A lock that is waited for is tried
//! again and again, without stopping the other threads; so the host's kernel sees
//! nobody wait and cannot tell of a deadlock. The processes of a recording tell
//! each other whom they wait for instead (`tree::LockWaits`).

use super::file::WOULD_BLOCK;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;
use crate::thread::{Wait, WaitOn};
use crate::{host, memory};

/// The host has no descriptor to wait for a lock with: look again after this.
pub(super) const LOCK_POLL: u64 = 2_000_000;

/// struct flock as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

impl Lock {
    fn from_words(words: [u64; 4]) -> Lock {
        Lock {
            kind: words[0] as i16,
            whence: (words[0] >> 16) as i16,
            start: words[1] as i64,
            length: words[2] as i64,
            process: words[3] as i32,
        }
    }

    fn words(&self) -> [u64; 4] {
        [
            u64::from(self.kind as u16) | u64::from(self.whence as u16) << 16,
            self.start as u64,
            self.length as u64,
            u64::from(self.process as u32),
        ]
    }

    /// Counted from the file's start, where it was from a position.
    fn counted_from(mut self, position: u64) -> Option<Lock> {
        if i32::from(self.whence) == libc::SEEK_CUR {
            self.start = self.start.checked_add_unsigned(position)?;
            self.whence = libc::SEEK_SET as i16;
        }
        Some(self)
    }
}

/// The host's fcntl with a lock, which it may change.
fn host_lock(fd: i32, command: i32, lock: &mut [u64; 4]) -> i64 {
    let arguments = [fd as u64, command as u64, lock.as_mut_ptr() as u64, 0, 0, 0];
    // SAFETY: a flock of ours.
    unsafe { host::syscall(libc::SYS_fcntl, arguments) }
}

impl Vm {
    pub(super) fn record_lock(&mut self, call: &Call) -> Outcome {
        let [fd, command, argument, ..] = call.arguments;
        let command = command as i32;
        let host = self.host_only(fd as i32, libc::EINVAL)?;
        let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
        if self.io.is_copy() {
            let arguments = call.arguments;
            return self.host_call_writing(libc::SYS_fcntl, arguments, |_| {
                asks.then_some((argument, 32)).into_iter().collect()
            });
        }
        let asked = Lock::from_words(memory::get(argument)?);
        let mut wanted = asked;
        if host.positioned {
            wanted = asked
                .counted_from(host.offset)
                .ok_or(Halt::Errno(libc::EOVERFLOW))?;
        }
        let attempt = match command {
            libc::F_SETLKW => libc::F_SETLK,
            libc::F_OFD_SETLKW => libc::F_OFD_SETLK,
            other => other,
        };
        let waits = attempt != command;
        let tree = self.tree.as_ref().filter(|_| command == libc::F_SETLKW);
        let again = call.again;
        let (result, bytes) = self.io.external_bytes(libc::SYS_fcntl as u32, || {
            let waiting = tree.map(|tree| tree.try_lock(again));
            let mut words = wanted.words();
            let mut result = host_lock(host.number, attempt, &mut words);
            let busy = [libc::EAGAIN, libc::EACCES].map(|errno| -i64::from(errno));
            if waits && busy.contains(&result) {
                result = WOULD_BLOCK;
            }
            if let Some(mut waiting) = waiting {
                if result == WOULD_BLOCK {
                    let mut words = wanted.words();
                    host_lock(host.number, libc::F_GETLK, &mut words);
                    let holder = Lock::from_words(words);
                    let free = holder.kind == libc::F_UNLCK as i16;
                    waiting.is_held_by(if free { 0 } else { holder.process });
                    if waiting.is_deadlock() {
                        result = -i64::from(libc::EDEADLK);
                    }
                }
                if result != WOULD_BLOCK {
                    waiting.is_over();
                }
            }
            let told = if asks && result == 0 { words } else { [0; 4] };
            (
                result,
                told.iter().flat_map(|word| word.to_le_bytes()).collect(),
            )
        })?;
        if result == WOULD_BLOCK {
            return self.wait_for_lock(call);
        }
        if result == 0 && asks {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
            }
            let mut told = Lock::from_words(words);
            if told.kind == libc::F_UNLCK as i16 {
                // Nothing else of it changes.
                told = Lock {
                    kind: told.kind,
                    ..asked
                };
            }
            memory::put(argument, told.words())?;
        }
        if result == 0 && attempt == libc::F_SETLK {
            self.kernel.fds.locks_records = true;
        }
        Ok(result)
    }

    /// Tries again later, unless a handler is to run.
    pub(super) fn wait_for_lock(&mut self, call: &Call) -> Outcome {
        if call.interrupted {
            if self.io.is_live()
                && let Some(tree) = &self.tree
            {
                tree.try_lock(true).is_over();
            }
            return Err(Halt::Errno(libc::EINTR));
        }
        Err(Halt::Block(Wait {
            on: WaitOn::Host(Vec::new()),
            deadline: Some(self.now() + LOCK_POLL),
        }))
    }
}

/// A process that closes any of its descriptors of a file gives up all its record
/// locks there. Where another number keeps the vm's descriptor open, the host is
/// told.
pub(super) fn give_up(fd: i32) {
    let mut all = Lock {
        kind: libc::F_UNLCK as i16,
        whence: libc::SEEK_SET as i16,
        start: 0,
        length: 0,
        process: 0,
    }
    .words();
    host_lock(fd, libc::F_SETLK, &mut all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_from_the_position() {
        let lock = Lock {
            kind: libc::F_WRLCK as i16,
            whence: libc::SEEK_CUR as i16,
            start: -2,
            length: 5,
            process: 7,
        };
        let counted = lock.counted_from(10).unwrap();
        assert_eq!((counted.start, counted.whence), (8, 0));
        assert_eq!(Lock::from_words(counted.words()), counted);
        assert_eq!(lock.counted_from(u64::MAX), None);
        let absolute = Lock {
            whence: libc::SEEK_END as i16,
            ..lock
        };
        assert_eq!(absolute.counted_from(10), Some(absolute));
    }
}
