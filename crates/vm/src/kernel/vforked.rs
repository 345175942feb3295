//! What a vfork child leaves in the memory that it shares with its parent.
//!
//! The child is a fork, so its memory is its own. When it exits without having
//! executed a program it sends what it did: mappings that it made, removed or
//! protected, then every page that is its alone. The parent, which has waited,
//! does the same to its own memory. What was sent is an input of the parent's
//! recording, so a replay does it again.
//!
//! Deviations: a mapping that the child made is private to the parent
//! afterwards, with the contents it had; other threads of the parent that
//! write to a page the child has written too lose what they wrote meanwhile.

use crate::Error;
use crate::layout::PAGE;
use crate::machine::Vm;
use crate::space::{Backing, Mapping, Placement, Request};
use crate::{memory, state};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// What is sent has one size: an address with a kind in its low bits, and a
/// page.
const PACKET: usize = 8 + PAGE as usize;

/// What a packet says of its address.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    /// These bytes are there.
    Page,
    /// Memory is mapped from there: length and protection follow.
    Mapped,
    /// Nothing is mapped from there: the length follows.
    Unmapped,
    /// The protection changed: length and protection follow.
    Protected,
    /// The heap ends elsewhere: its end follows.
    Break,
}

impl Kind {
    fn of(word: u64) -> Option<Kind> {
        let kinds = [
            Kind::Page,
            Kind::Mapped,
            Kind::Unmapped,
            Kind::Protected,
            Kind::Break,
        ];
        kinds.into_iter().find(|kind| *kind as u64 == word)
    }
}

/// A stretch of address space that the child has treated as one.
struct Change {
    kind: Kind,
    range: Range<u64>,
    protection: i32,
}

fn packet(kind: Kind, address: u64, length: u64, protection: i32) -> Vec<u8> {
    let mut packet = (address | kind as u64).to_le_bytes().to_vec();
    packet.extend_from_slice(&length.to_le_bytes());
    packet.extend_from_slice(&protection.to_le_bytes());
    packet.resize(PACKET, 0);
    packet
}

impl Change {
    fn packet(&self) -> Vec<u8> {
        let length = self.range.end - self.range.start;
        packet(self.kind, self.range.start, length, self.protection)
    }
}

/// The mapping at `address` in a list in ascending order.
fn at(mappings: &[(Range<u64>, Mapping)], address: u64) -> Option<&(Range<u64>, Mapping)> {
    let index = mappings.partition_point(|(range, _)| range.end <= address);
    mappings
        .get(index)
        .filter(|(range, _)| range.contains(&address))
}

/// The file, and the place in it, that a mapping shows at `address`.
fn shown(address: u64, (range, mapping): &(Range<u64>, Mapping)) -> Option<(&Path, u64)> {
    match &mapping.backing {
        Backing::File { path, offset } => Some((path, offset + (address - range.start))),
        _ => None,
    }
}

/// What turns the mappings `before` into `now`. The heap's end goes by itself.
fn changes(before: &[(Range<u64>, Mapping)], now: &[(Range<u64>, Mapping)]) -> Vec<Change> {
    let borders: BTreeSet<u64> = before
        .iter()
        .chain(now)
        .flat_map(|(range, _)| [range.start, range.end])
        .collect();
    let borders: Vec<u64> = borders.into_iter().collect();
    borders
        .windows(2)
        .filter_map(|pair| {
            let range = pair[0]..pair[1];
            let (old, new) = (at(before, range.start), at(now, range.start));
            let (kind, protection) = match (old, new) {
                (None, Some((_, heap))) | (Some((_, heap)), None)
                    if heap.backing == Backing::Heap =>
                {
                    return None;
                }
                (Some(_), None) => (Kind::Unmapped, 0),
                (None, Some((_, new))) => (Kind::Mapped, new.protection),
                (Some(old), Some(new))
                    if old.1.shared != new.1.shared
                        || shown(range.start, old) != shown(range.start, new) =>
                {
                    (Kind::Mapped, new.1.protection)
                }
                (Some((_, old)), Some((_, new))) if old.protection != new.protection => {
                    (Kind::Protected, new.protection)
                }
                _ => return None,
            };
            Some(Change {
                kind,
                range,
                protection,
            })
        })
        .collect()
}

impl Vm {
    /// Sends what this process did to the memory it had from its parent. Errors
    /// leave the parent with less news, as a child killed early does.
    pub(super) fn hand_over(&self, line: i32, before: &[(Range<u64>, Mapping)]) {
        let now: Vec<(Range<u64>, Mapping)> = self
            .space
            .mappings()
            .map(|(range, mapping)| (range, mapping.clone()))
            .collect();
        let changes = changes(before, &now);
        if !send(line, &packet(Kind::Break, 0, self.space.brk, 0)) {
            return;
        }
        for change in &changes {
            if !send(line, &change.packet()) {
                return;
            }
        }
        for (range, mapping) in &now {
            let made = changes
                .iter()
                .any(|change| change.kind == Kind::Mapped && change.range.start == range.start);
            let written = !mapping.shared && mapping.protection & libc::PROT_WRITE != 0;
            let pages = match (made, written) {
                (true, _) => present_pages(range, false),
                (false, true) => present_pages(range, true),
                (false, false) => continue,
            };
            for page in pages.into_iter().flatten() {
                let Ok(bytes) = memory::read_vec(page, PAGE as usize) else {
                    continue;
                };
                if !send(line, &page.to_le_bytes()) || !send(line, &bytes) {
                    return;
                }
            }
        }
    }

    /// Does to this process's memory what its child has told. Packets may come
    /// from a recording: what makes no sense is left out.
    pub(super) fn take_over(&mut self, told: &[u8]) -> Result<(), Error> {
        for packet in told.chunks_exact(PACKET) {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&packet[at..at + 8]);
                u64::from_le_bytes(word)
            };
            let address = word(0) & !(PAGE - 1);
            let (length, protection) = (word(8), word(16) as i32);
            match Kind::of(word(0) & (PAGE - 1)) {
                Some(Kind::Page) => {
                    self.space.force_write(address, &packet[8..]);
                    self.code_changed(address..address + PAGE);
                }
                Some(Kind::Mapped) => {
                    let request = Request::anonymous(length, protection);
                    if self.space.map(Placement::Fixed(address), request).is_ok() {
                        self.memory_changed(address, length);
                    }
                }
                Some(Kind::Break) => drop(self.space.set_brk(length)),
                // They fail only for what makes no sense.
                Some(Kind::Unmapped) => drop(self.sys_munmap(address, length)),
                Some(Kind::Protected) => {
                    drop(self.sys_mprotect(address, length, protection as u64));
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Pages of a range that are in memory; of those that this process has alone,
/// if asked. None if the kernel does not tell.
fn present_pages(range: &Range<u64>, exclusive: bool) -> Option<Vec<u64>> {
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
    let mut pages = Vec::new();
    state::each_page(&pagemap, range.clone(), |page, entry| {
        let own = entry & state::EXCLUSIVE != 0 && entry & state::FILE_PAGE == 0;
        if entry & state::PRESENT != 0 && (!exclusive || own) {
            pages.push(page);
        }
    })
    .ok()?;
    Some(pages)
}

fn send(fd: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: a slice that lives across the call.
        let sent =
            unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            }
            Err(_) => return false,
        }
    }
    true
}

/// Takes what a vfork child sends until it closes the line. `None`: the child
/// has not got that far yet.
pub(super) fn receive(fd: i32) -> Option<Vec<u8>> {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, on the stack.
    if unsafe { libc::poll(&mut entry, 1, 0) } == 0 {
        return None;
    }
    let mut told = Vec::new();
    let mut piece = vec![0u8; 16 * PACKET];
    loop {
        // SAFETY: a buffer of that length.
        let got = unsafe { libc::recv(fd, piece.as_mut_ptr().cast(), piece.len(), 0) };
        match got {
            1.. => told.extend_from_slice(&piece[..got as usize]),
            _ if got < 0
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return Some(told),
        }
    }
}
