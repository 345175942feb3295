//! Memory that processes of the guest share: anonymous mappings kept over a
//! fork, files and shared memory objects mapped by several of them.
//!
//! Processes of the tree run at the same time, but those that share memory
//! take turns: a process runs guest code only while it holds the turn (a lock
//! of the tree). When it gets the turn it compares the shared pages with what
//! they held when it last gave the turn away, and writes the difference down as
//! an input, like anything else that comes from outside (`Step::Memory` says
//! where). So each process's recording is complete in itself: a replay gives
//! every process memory of its own and puts the recorded differences in place.
//!
//! Guarantee: with all writers in the tree, a replay is exact. A writer outside
//! the tree takes no turns; its changes are seen when a turn begins, which is
//! good for a process that waits for them, but a change in the middle of a turn
//! is lost to the replay. Such a writer is unsupported and the user is told.
//!
//! Futexes in shared memory go through a table in the tree's page: a wake
//! raises a number, and every waiter of that number looks again. A waiter may
//! so be woken for nothing, as the kernel's contract allows.

use super::{Call, Halt, Outcome};
use crate::layout::PAGE;
use crate::machine::Vm;
use crate::memory;
use crate::record::Step;
use crate::space::{Backing, SharedObject};
use crate::thread::{Wait, WaitOn};
use crate::{Error, host};
use std::collections::{BTreeMap, BTreeSet};

/// What a process knows of the memory it shares.
#[derive(Default, Hash)]
pub struct SharedMemory {
    /// Start of each shared mapping, and what it held when the turn was given
    /// away.
    before: BTreeMap<u64, Vec<u8>>,
    /// This process has the turn.
    held: bool,
    /// Number of the last turn it had.
    turn: u64,
    /// The user was told of a writer outside.
    told: bool,
    /// System V memory: where it is attached, and how long it is.
    pub attached: BTreeMap<u64, u64>,
    /// Files already mapped shared, by device and inode.
    files: BTreeSet<super::fd::Identity>,
}

impl SharedMemory {
    /// This is the new process of a fork: the turn stayed with the parent.
    pub fn after_fork(&mut self) {
        self.held = false;
        self.turn = 0;
    }

    /// True if this file was mapped shared before; from now on it was.
    pub fn seen_file(&mut self, identity: super::fd::Identity) -> bool {
        !self.files.insert(identity)
    }
}

impl Vm {
    /// Guest code of this process runs only while it has the turn.
    pub(crate) fn takes_turns(&self) -> bool {
        let Some(tree) = &self.tree else {
            return false;
        };
        self.io.is_live()
            && (self.space.shares_files
                || (self.space.shares_memory && (tree.ordered || tree.forked)))
    }

    /// Waits for the turn, if this process takes turns, and takes over what
    /// others have written.
    pub(crate) fn take_turn(&mut self) -> Result<(), Error> {
        if self.takes_turns() {
            self.take_turn_now()?;
        }
        Ok(())
    }

    /// The same for a process that is about to share memory.
    pub(super) fn take_turn_now(&mut self) -> Result<(), Error> {
        if self.kernel.shared_memory.held || !self.io.is_live() {
            return Ok(());
        }
        let Some(tree) = &self.tree else {
            return Ok(());
        };
        let turn = tree.take_turn()?;
        let state = &mut self.kernel.shared_memory;
        let alone = state.turn != 0 && turn == state.turn + 1;
        state.held = true;
        state.turn = turn;
        let written = state.differences();
        if written.is_empty() {
            return Ok(());
        }
        if alone && !std::mem::replace(&mut self.kernel.shared_memory.told, true) {
            self.say(
                "shared memory is written by a process outside the recording; that is not \
                 supported, and the replay may diverge",
            );
        }
        for (address, bytes) in &written {
            self.memory_written(*address..*address + bytes.len() as u64);
        }
        self.io.push_memory(written)?;
        self.note(Step::Memory)
    }

    /// Lets other processes run, if one waits or `anyway`.
    pub(crate) fn give_turn(&mut self, anyway: bool) {
        if !self.kernel.shared_memory.held {
            return;
        }
        let Some(tree) = &self.tree else {
            return;
        };
        if anyway || tree.turn_is_wanted() {
            self.remember_shared_memory();
            self.kernel.shared_memory.held = false;
            if let Some(tree) = &self.tree {
                tree.give_turn();
            }
        }
    }

    /// Notes what shared memory holds now.
    pub(super) fn remember_shared_memory(&mut self) {
        let mappings: BTreeMap<u64, u64> = self
            .space
            .mappings()
            .filter(|(_, mapping)| mapping.exchanged)
            .map(|(range, _)| (range.start, range.end - range.start))
            .collect();
        let before = &mut self.kernel.shared_memory.before;
        before.retain(|start, bytes| mappings.get(start) == Some(&(bytes.len() as u64)));
        for (start, length) in mappings {
            let bytes = before
                .entry(start)
                .or_insert_with(|| vec![0; length as usize]);
            for page in resident_pages(start, length) {
                let at = (page - start) as usize;
                let chunk = &mut bytes[at..at + PAGE as usize];
                // Pages without permission, or beyond the file's end, hold
                // nothing that could be seen.
                let _ = memory::read(page, chunk);
            }
        }
    }

    /// While replaying: what other processes had written by this moment.
    pub(crate) fn receive_memory(&mut self) -> Result<(), Error> {
        for (address, bytes) in self.io.take_memory()? {
            self.space.force_write(address, &bytes);
            self.memory_written(address..address + bytes.len() as u64);
        }
        Ok(())
    }

    /// The slot of a futex that other processes may use as well, if it is one.
    pub(super) fn shared_futex(&self, address: u64) -> Option<u32> {
        self.tree.as_ref()?;
        let (range, mapping) = self.space.find(address)?;
        if !mapping.exchanged {
            return None;
        }
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        match &mapping.backing {
            Backing::File { path, offset } => {
                let path = path.as_os_str().as_encoded_bytes();
                hash.update(path.strip_suffix(b" (deleted)").unwrap_or(path));
                hash.update(&(offset + (address - range.start)).to_le_bytes());
            }
            // The processes of a tree have it from the same ancestor.
            _ => {
                let (object, offset) =
                    mapping
                        .shows
                        .map_or((0, address), |shows| match shows.object {
                            SharedObject::File([_, inode]) => (inode, shows.offset),
                            SharedObject::Segment(id) => (id as u64, shows.offset),
                            SharedObject::Anonymous(number) => (number, shows.offset),
                        });
                hash.update(&object.to_le_bytes());
                hash.update(&(offset + (address - range.start)).to_le_bytes());
            }
        }
        Some(hash.digest() as u32 % crate::tree::FUTEXES as u32)
    }

    pub(super) fn shared_futex_wait(&mut self, call: &mut Call, slot: u32) -> Outcome {
        let [address, operation, value, timeout, ..] = call.arguments;
        let absolute = operation as i32 & 0x7f == libc::FUTEX_WAIT_BITSET;
        let sequence = self
            .tree
            .as_ref()
            .map_or(0, |tree| tree.futex_sequence(slot));
        if !call.again {
            if memory::get::<u32>(address)? != value as u32 {
                return Err(Halt::Errno(libc::EAGAIN));
            }
            let realtime = operation as i32 & libc::FUTEX_CLOCK_REALTIME != 0;
            call.deadline = self.deadline(timeout, absolute, realtime)?;
            call.done = u64::from(sequence);
            if let Some(tree) = self.tree.as_ref().filter(|_| self.io.is_live()) {
                tree.futex_waiters(slot, 1);
            }
        } else {
            let since = call.done as u32;
            let woken = self.io.external(libc::SYS_futex as u32, || {
                (i64::from(sequence != since), Vec::new())
            })?;
            let over = if woken != 0 {
                Some(Ok(0))
            } else {
                self.wait_is_over(call).map(|errno| Err(Halt::Errno(errno)))
            };
            if let Some(outcome) = over {
                if let Some(tree) = self.tree.as_ref().filter(|_| self.io.is_live()) {
                    tree.futex_waiters(slot, -1);
                }
                return outcome;
            }
        }
        Err(Halt::Block(Wait {
            on: WaitOn::SharedFutex {
                slot,
                sequence: call.done as u32,
            },
            deadline: call.deadline,
        }))
    }

    /// Wakes the waiters of a shared futex in all processes.
    pub(super) fn shared_futex_wake(&mut self, slot: u32, count: u32) -> Outcome {
        let tree = &self.tree;
        let woken = self.io.external(libc::SYS_futex as u32, || {
            let waiters = tree.as_ref().map_or(0, |tree| tree.futex_wake(slot));
            (i64::from(waiters.min(count)), Vec::new())
        })?;
        Ok(woken)
    }
}

impl SharedMemory {
    /// What differs now from what was there before, by page.
    fn differences(&self) -> Vec<(u64, Vec<u8>)> {
        let mut written = Vec::new();
        let mut now = vec![0; PAGE as usize];
        for (start, bytes) in &self.before {
            for page in resident_pages(*start, bytes.len() as u64) {
                let at = (page - start) as usize;
                let before = &bytes[at..at + PAGE as usize];
                if memory::read(page, &mut now).is_err() || now == before {
                    continue;
                }
                let differs = |(one, other): (&u8, &u8)| one != other;
                let first = now.iter().zip(before).position(differs).unwrap_or(0);
                let last = now
                    .iter()
                    .zip(before)
                    .rposition(differs)
                    .unwrap_or(now.len() - 1);
                written.push((page + first as u64, now[first..=last].to_vec()));
            }
        }
        written
    }
}

/// Pages of a mapping that are in memory at all.
fn resident_pages(start: u64, length: u64) -> Vec<u64> {
    let mut present = vec![0u8; (length / PAGE) as usize];
    // SAFETY: the vector has a byte per page of the range.
    let result = unsafe {
        host::syscall(
            libc::SYS_mincore,
            [start, length, present.as_mut_ptr() as u64, 0, 0, 0],
        )
    };
    if result < 0 {
        return Vec::new();
    }
    (start..start + length)
        .step_by(PAGE as usize)
        .zip(present)
        .filter(|(_, present)| present & 1 != 0)
        .map(|(page, _)| page)
        .collect()
}
