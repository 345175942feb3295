//! One address space of the target and the breakpoints that stand in it.
//!
//! Threads and `vfork` children share a space; a forked child gets a copy,
//! breakpoints included, and is cleaned before it runs its first instruction.

use super::ptrace::Tid;
use super::task;
use crate::memory_map::{self, Mapping};
use crate::planted::{INT3, PlantedTable};
use crate::wire::{Outcome, Pick, Purpose};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// A list of mappings older than this is read again.
const MAPPINGS_LAST: Duration = Duration::from_secs(1);
/// An answer to whether breakpoints do harm is believed for this long.
const SAFETY_LASTS: Duration = Duration::from_millis(250);
/// A fork copies breakpoints that stood at some moment between the beginning
/// of the system call and the first stop of the child. A child is cleaned of
/// all that stood within this long before.
const FORK_LASTS: Duration = Duration::from_secs(60);

pub struct Planted {
    pub pick: Pick,
    pub since: Instant,
    /// The holder's count of held time when it was planted.
    pub held: u64,
    entry: u32,
}

impl Planted {
    fn original(&self) -> u8 {
        self.pick.bytes[0]
    }

    pub fn expires(&self) -> Instant {
        self.since + Duration::from_micros(u64::from(self.pick.dwell))
    }
}

struct Removed {
    original: u8,
    at: Instant,
}

/// Code as it was read in one turn of the holder: breakpoints of neighbouring
/// sites are planted and removed in one turn, microseconds apart, and one read
/// serves them all.
struct Window {
    turn: Instant,
    start: u64,
    bytes: Vec<u8>,
}

/// Bytes read for a window; it ends with the page.
const WINDOW: u64 = 512;
const PAGE: u64 = 4096;

pub struct Space {
    pub id: u32,
    /// A live task of the space, through which others may open its memory.
    pub via: Tid,
    memory: File,
    planted: HashMap<u64, Planted>,
    /// Every site that ever held a breakpoint: a thread may have run into one
    /// just before it was removed.
    removed: HashMap<u64, Removed>,
    /// When it was last seen whether breakpoints may stand here, and the
    /// answer.
    trap_safety: Option<(Instant, bool)>,
    mappings: Vec<Mapping>,
    mappings_read: Option<Instant>,
    window: Option<Window>,
}

impl Space {
    pub fn open(id: u32, via: Tid) -> io::Result<Space> {
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{via}/mem"))?;
        Ok(Space {
            id,
            via,
            memory,
            planted: HashMap::new(),
            removed: HashMap::new(),
            trap_safety: None,
            mappings: Vec::new(),
            mappings_read: None,
            window: None,
        })
    }

    /// Whether a breakpoint does no harm here. A thread that blocks SIGTRAP
    /// and runs into one makes the kernel take away the program's own handler
    /// for it, and nobody outside can give it back.
    pub fn is_safe(&mut self, now: Instant) -> bool {
        if let Some((asked, safe)) = self.trap_safety
            && now.duration_since(asked) < SAFETY_LASTS
        {
            return safe;
        }
        let safe = !task::uses_traps(self.via)
            || task::threads(self.via)
                .unwrap_or_default()
                .into_iter()
                .all(|tid| !task::blocks_traps(tid));
        self.trap_safety = Some((now, safe));
        safe
    }

    pub fn standing(&self) -> usize {
        self.planted.len()
    }

    /// Bytes of memory, as many as can be read.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut got = 0;
        while got < length {
            match self.memory.read_at(&mut bytes[got..], address + got as u64) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(got);
        bytes
    }

    /// Code at an address as it is in this turn; empty if it cannot be read.
    fn code(&mut self, address: u64, length: usize, turn: Instant) -> &[u8] {
        let end = address + length as u64;
        let known = self.window.as_ref().is_some_and(|window| {
            window.turn == turn
                && window.start <= address
                && end <= window.start + window.bytes.len() as u64
        });
        if !known {
            let page_end = (address | (PAGE - 1)) + 1;
            let wanted = (address + WINDOW).min(page_end).max(end) - address;
            self.window = Some(Window {
                turn,
                start: address,
                bytes: self.read(address, wanted as usize),
            });
        }
        self.window
            .as_ref()
            .and_then(|window| {
                let at = (address - window.start) as usize;
                window.bytes.get(at..at + length)
            })
            .unwrap_or_default()
    }

    /// Writes one byte of code.
    fn write(&mut self, address: u64, byte: u8) -> bool {
        if let Some(window) = &mut self.window
            && let Some(offset) = address.checked_sub(window.start)
            && let Some(known) = window.bytes.get_mut(offset as usize)
        {
            *known = byte;
        }
        self.memory.write_at(&[byte], address).is_ok()
    }

    /// Plants a one-shot breakpoint, if memory holds the instruction that the
    /// front end saw there.
    pub fn plant(
        &mut self,
        pick: Pick,
        table: &mut PlantedTable,
        now: Instant,
        held: u64,
    ) -> Result<(), Outcome> {
        if self.planted.contains_key(&pick.address) {
            return Err(Outcome::Occupied);
        }
        let expected = &pick.bytes[..usize::from(pick.length)];
        if self.code(pick.address, expected.len(), now) != expected || expected[0] == INT3 {
            return Err(Outcome::Refused);
        }
        let live = pick.purpose == Purpose::Live;
        let Some(entry) = table.enter(self.via, pick.address, expected[0], live) else {
            return Err(Outcome::Refused);
        };
        if !self.write(pick.address, INT3) {
            table.clear(entry);
            return Err(Outcome::Refused);
        }
        self.planted.insert(
            pick.address,
            Planted {
                pick,
                since: now,
                held,
                entry,
            },
        );
        Ok(())
    }

    /// Puts the byte back. Memory that no longer holds the instruction (the
    /// library was unmapped) is left alone.
    pub fn unplant(
        &mut self,
        address: u64,
        table: &mut PlantedTable,
        now: Instant,
    ) -> Option<Planted> {
        let planted = self.planted.remove(&address)?;
        let expected = &planted.pick.bytes[..usize::from(planted.pick.length)];
        let found = self.code(address, expected.len(), now);
        if found.len() == expected.len() && found[0] == INT3 && found[1..] == expected[1..] {
            // A failure means that the page has gone in this instant, and the
            // breakpoint with it.
            self.write(address, planted.original());
        }
        table.clear(planted.entry);
        self.removed.insert(
            address,
            Removed {
                original: planted.original(),
                at: now,
            },
        );
        Some(planted)
    }

    pub fn unplant_all(&mut self, table: &mut PlantedTable, now: Instant) -> Vec<Planted> {
        let mut addresses: Vec<u64> = self.planted.keys().copied().collect();
        addresses.sort_unstable();
        addresses
            .into_iter()
            .filter_map(|address| self.unplant(address, table, now))
            .collect()
    }

    pub fn planted_at(&self, address: u64) -> Option<&Planted> {
        self.planted.get(&address)
    }

    /// A breakpoint of ours stands there, or stood there once.
    pub fn has_planted(&self, address: u64) -> bool {
        self.planted.contains_key(&address) || self.removed.contains_key(&address)
    }

    /// The space has been left or replaced: forget its table entries without
    /// touching memory.
    pub fn abandon(&mut self, table: &mut PlantedTable) -> Vec<Planted> {
        let gone: Vec<Planted> = self.planted.drain().map(|(_, planted)| planted).collect();
        for planted in &gone {
            table.clear(planted.entry);
        }
        gone
    }

    /// The task the space was reached through has ended; another goes on.
    pub fn reach_through(&mut self, via: Tid, table: &PlantedTable) {
        self.via = via;
        for planted in self.planted.values() {
            table.reassign(planted.entry, via);
        }
    }

    /// Removes from a freshly forked `child` every breakpoint that it may
    /// have inherited from this space.
    pub fn clean_copy(&self, child: &mut Space, now: Instant) {
        let standing = self
            .planted
            .iter()
            .map(|(address, planted)| (*address, planted.original()));
        let recent = self
            .removed
            .iter()
            .filter(|(_, removed)| now.duration_since(removed.at) < FORK_LASTS)
            .map(|(address, removed)| (*address, removed.original));
        let mut inherited: Vec<(u64, u8)> = standing.chain(recent).collect();
        inherited.sort_unstable();
        for (address, original) in inherited {
            if child.code(address, 1, now) == [INT3] {
                child.write(address, original);
            }
        }
        for (address, removed) in &self.removed {
            child.removed.insert(
                *address,
                Removed {
                    original: removed.original,
                    at: removed.at,
                },
            );
        }
        for (address, planted) in &self.planted {
            child.removed.insert(
                *address,
                Removed {
                    original: planted.original(),
                    at: now,
                },
            );
        }
    }

    /// The mapping that holds an address, by a list at most a second old.
    pub fn mapping(&mut self, address: u64, now: Instant) -> Option<Mapping> {
        let fresh = self
            .mappings_read
            .is_some_and(|read| now.duration_since(read) < MAPPINGS_LAST);
        let known = memory_map::find(&self.mappings, address).cloned();
        if fresh && known.is_some() {
            return known;
        }
        self.mappings = memory_map::read(self.via).unwrap_or_default();
        self.mappings_read = Some(now);
        memory_map::find(&self.mappings, address).cloned()
    }

    /// Where this space has the shared memory that another sees through
    /// `mapping` at `address`.
    pub fn shared_address(&mut self, mapping: &Mapping, address: u64, now: Instant) -> Option<u64> {
        let offset = mapping.offset + (address - mapping.start);
        // The list is refreshed by asking for any address.
        self.mapping(address, now);
        self.mappings
            .iter()
            .find(|other| {
                other.shared
                    && other.inode == mapping.inode
                    && other.device == mapping.device
                    && (other.offset..other.offset + (other.end - other.start)).contains(&offset)
            })
            .map(|other| other.start + (offset - other.offset))
    }
}
