//! What a copy wrote, stream by stream.
//!
//! Outputs are streams of bytes per descriptor (paper 003, section 5), so
//! `ab`, `c` equals `abc`. Of a long stream only a chain of hashes is kept,
//! one per block, with the bytes of its beginning and of one window that the
//! caller chooses: a copy is repeated to see the bytes around a late
//! difference. Files are compared by their contents at the end, block by
//! block, because the order of writes at different positions is no difference.

use race::Moment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes per hash.
pub(crate) const BLOCK: u64 = 4096;

/// Bytes kept from the beginning of a stream, and of its window.
const KEPT: usize = 64 << 10;

/// Writes whose place is remembered.
const NOTES: usize = 20_000;

/// One write: where in the stream its bytes begin, who made it, how many
/// inputs had been taken by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteNote {
    pub offset: u64,
    pub length: u64,
    pub moment: Moment,
    pub inputs: u64,
}

/// All that was written to one stream or file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// `fd 1`, `socket`, a path.
    pub name: String,
    /// A file: contents, not a sequence.
    pub file: bool,
    pub length: u64,
    /// Block numbers and hashes; of a stream each hash covers all before.
    pub blocks: Vec<(u64, u64)>,
    /// Parts whose bytes are known: offset and bytes.
    pub kept: Vec<(u64, Vec<u8>)>,
    pub writes: Vec<WriteNote>,
}

impl Captured {
    /// The byte at `offset`, if it was kept.
    fn byte(&self, offset: u64) -> Option<u8> {
        self.kept.iter().find_map(|(start, bytes)| {
            let index = offset.checked_sub(*start)?;
            bytes.get(index as usize).copied()
        })
    }

    /// Kept bytes from `offset` on, at most `length`.
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        (offset..offset.saturating_add(length as u64))
            .map_while(|at| self.byte(at))
            .collect()
    }

    /// The write that holds the byte at `offset`.
    pub fn write_at(&self, offset: u64) -> Option<WriteNote> {
        self.writes
            .iter()
            .rev()
            .find(|note| (note.offset..note.offset + note.length).contains(&offset))
            .copied()
    }
}

/// Where two captures of one stream part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstDifference {
    /// At this byte.
    At(u64),
    /// Somewhere in the block that begins here: its bytes were not kept.
    Block(u64),
}

/// Where the two differ first. A stream that ends is different from one that
/// goes on.
pub fn first_difference(one: &Captured, other: &Captured) -> Option<FirstDifference> {
    if one.length == other.length && one.blocks == other.blocks {
        return None;
    }
    let block = one
        .blocks
        .iter()
        .zip(&other.blocks)
        .find(|(one, other)| one != other)
        .map(|(one, other)| one.0.min(other.0))
        .or_else(|| {
            let shorter = one.blocks.len().min(other.blocks.len());
            let longer = if one.blocks.len() > shorter {
                one
            } else {
                other
            };
            longer.blocks.get(shorter).map(|(block, _)| *block)
        })
        .unwrap_or(one.length.min(other.length) / BLOCK);
    let start = block * BLOCK;
    for offset in start..start + BLOCK {
        match (one.byte(offset), other.byte(offset)) {
            (None, None) => break,
            (one_byte, other_byte) if one_byte != other_byte => {
                // A byte that is missing because it was not kept says nothing.
                let lost = |captured: &Captured, byte: Option<u8>| {
                    byte.is_none() && offset < captured.length && !captured.file
                };
                if lost(one, one_byte) || lost(other, other_byte) {
                    break;
                }
                return Some(FirstDifference::At(offset));
            }
            _ => {}
        }
    }
    Some(FirstDifference::Block(start))
}

struct Log {
    length: u64,
    chain: Xxh3,
    blocks: Vec<(u64, u64)>,
    head: Vec<u8>,
    window: (u64, Vec<u8>),
    writes: Vec<WriteNote>,
}

impl Log {
    fn new(window: u64) -> Self {
        Log {
            length: 0,
            chain: Xxh3::new(),
            blocks: Vec::new(),
            head: Vec::new(),
            window: (window, Vec::new()),
            writes: Vec::new(),
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = BLOCK - self.length % BLOCK;
            let (part, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.chain.update(part);
            if self.head.len() < KEPT {
                self.head.extend_from_slice(part);
            }
            let (start, window) = &mut self.window;
            if *start > 0 && self.length + part.len() as u64 > *start && window.len() < KEPT {
                let skip = start.saturating_sub(self.length) as usize;
                window.extend_from_slice(&part[skip.min(part.len())..]);
            }
            self.length += part.len() as u64;
            if self.length.is_multiple_of(BLOCK) {
                self.blocks
                    .push((self.length / BLOCK - 1, self.chain.digest()));
            }
            bytes = rest;
        }
    }

    fn captured(&self, name: &str) -> Captured {
        let mut blocks = self.blocks.clone();
        if !self.length.is_multiple_of(BLOCK) {
            blocks.push((self.length / BLOCK, self.chain.digest()));
        }
        let mut kept = vec![(0, self.head.clone())];
        if !self.window.1.is_empty() {
            kept.push(self.window.clone());
        }
        Captured {
            name: name.to_string(),
            file: false,
            length: self.length,
            blocks,
            kept,
            writes: self.writes.clone(),
        }
    }
}

/// Everything a copy has written to streams.
#[derive(Default)]
pub(crate) struct Outputs {
    logs: BTreeMap<String, Log>,
    windows: BTreeMap<String, u64>,
}

impl Hash for Outputs {
    /// The bytes; neither how they were cut into writes, nor who keeps which.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Outputs { logs, windows: _ } = self;
        for (name, log) in logs {
            (name, log.length, log.chain.digest()).hash(state);
        }
    }
}

impl Outputs {
    /// Keeps the bytes of this stream from `offset` on as well.
    pub fn keep_from(&mut self, name: &str, offset: u64) {
        self.windows.insert(name.to_string(), offset);
    }

    pub fn write(&mut self, name: &str, bytes: &[u8], moment: Moment, inputs: u64) {
        let window = self.windows.get(name).copied().unwrap_or(0);
        let log = self
            .logs
            .entry(name.to_string())
            .or_insert_with(|| Log::new(window));
        if log.writes.len() < NOTES {
            log.writes.push(WriteNote {
                offset: log.length,
                length: bytes.len() as u64,
                moment,
                inputs,
            });
        }
        log.push(bytes);
    }

    pub fn captured(&self) -> Vec<Captured> {
        self.logs
            .iter()
            .map(|(name, log)| log.captured(name))
            .collect()
    }
}

/// The hash of a block of a file.
pub(crate) fn block_hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Bytes of a file's blocks that are kept.
pub(crate) const KEPT_BLOCKS: usize = KEPT / BLOCK as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(parts: &[&[u8]], window: u64) -> Captured {
        let mut outputs = Outputs::default();
        outputs.keep_from("fd 1", window);
        for (part, count) in parts.iter().zip(0..) {
            outputs.write("fd 1", part, Moment::new(1, count), 0);
        }
        outputs.captured().remove(0)
    }

    #[test]
    fn how_bytes_were_cut_into_writes_does_not_matter() {
        let one = captured(&[b"ab", b"c"], 0);
        let other = captured(&[b"abc"], 0);
        assert_eq!(first_difference(&one, &other), None);
        assert_eq!(one.write_at(2).map(|note| note.moment.count), Some(1));
    }

    #[test]
    fn the_first_differing_byte_is_found() {
        let one = captured(&[b"total 17\n"], 0);
        let other = captured(&[b"total 18\n"], 0);
        assert_eq!(first_difference(&one, &other), Some(FirstDifference::At(7)));
        let longer = captured(&[b"total 17\nmore"], 0);
        assert_eq!(
            first_difference(&one, &longer),
            Some(FirstDifference::At(9))
        );
    }

    #[test]
    fn a_late_difference_is_found_by_its_block_and_seen_through_a_window() {
        let mut bytes = vec![b'x'; 300_000];
        let plain = |bytes: &[u8], window| captured(&[bytes], window);
        let one = plain(&bytes, 0);
        bytes[200_001] = b'y';
        let other = plain(&bytes, 0);
        let block = 200_001 / BLOCK * BLOCK;
        assert_eq!(
            first_difference(&one, &other),
            Some(FirstDifference::Block(block))
        );
        let other = plain(&bytes, block);
        bytes[200_001] = b'x';
        let one = plain(&bytes, block);
        assert_eq!(
            first_difference(&one, &other),
            Some(FirstDifference::At(200_001))
        );
    }
}
