//! Writes a static executable of a few segments at chosen addresses.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub struct Segment {
    pub address: u64,
    pub bytes: Vec<u8>,
    /// Bytes in memory, at least as many as in the file.
    pub size: u64,
    pub write: bool,
    pub execute: bool,
}

pub fn write(path: &Path, entry: u64, segments: &[Segment]) -> std::io::Result<()> {
    const PAGE: usize = 4096;
    let mut file = Vec::new();
    file.extend_from_slice(b"\x7fELF\x02\x01\x01");
    file.resize(16, 0);
    file.extend_from_slice(&2u16.to_le_bytes());
    file.extend_from_slice(&62u16.to_le_bytes());
    file.extend_from_slice(&1u32.to_le_bytes());
    file.extend_from_slice(&entry.to_le_bytes());
    file.extend_from_slice(&64u64.to_le_bytes());
    file.extend_from_slice(&[0; 12]);
    for half in [64u16, 56, segments.len() as u16, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    let mut offset = PAGE;
    for segment in segments {
        let flags = 4 | u32::from(segment.write) << 1 | u32::from(segment.execute);
        file.extend_from_slice(&1u32.to_le_bytes());
        file.extend_from_slice(&flags.to_le_bytes());
        for word in [
            offset as u64,
            segment.address,
            segment.address,
            segment.bytes.len() as u64,
            segment.size.max(segment.bytes.len() as u64),
            PAGE as u64,
        ] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        offset += segment.bytes.len().next_multiple_of(PAGE);
    }
    for segment in segments {
        file.resize(file.len().next_multiple_of(PAGE), 0);
        file.extend_from_slice(&segment.bytes);
    }
    let _ = std::fs::remove_file(path);
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(path)?
        .write_all(&file)
}
