//! What is in a file, block by block; holes stay holes.

use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Files are read in blocks of this size, at multiples of it, into memory that
/// begins at a page: descriptors opened with O_DIRECT ask for that.
const BLOCK: usize = 1 << 18;

/// Of files from this size on only blocks with anything in them are hashed and
/// copied: they may be much larger than the disk they lie on.
pub const HUGE: u64 = 1 << 30;

/// Shows the blocks of a file, of huge ones those without holes only. Reads by
/// position: a second handle would drop the process's record locks on the file
/// when it is closed.
pub fn each_block(
    file: &File,
    mut show: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> std::io::Result<u64> {
    let size = file.metadata()?.size();
    let mut memory = vec![0; BLOCK + PAGE];
    let first = memory.as_ptr().align_offset(PAGE);
    let block = &mut memory[first..][..BLOCK];
    let mut position = 0;
    loop {
        if size >= HUGE {
            match data_from(file, position)? {
                Some(data) => position = data & !(BLOCK as u64 - 1),
                None => return Ok(size),
            }
        }
        let mut count = 0;
        while count < BLOCK {
            match file.read_at(&mut block[count..], position + count as u64)? {
                0 => break,
                more => count += more,
            }
        }
        if count > 0 {
            show(position, &block[..count])?;
        }
        position += count as u64;
        if count < BLOCK {
            return Ok(size.max(position));
        }
    }
}

const PAGE: usize = 4096;

/// The first byte from `position` on that does not lie in a hole. The
/// descriptor's own position stays.
fn data_from(file: &File, position: u64) -> std::io::Result<Option<u64>> {
    let before = rustix::fs::tell(file)?;
    let found = rustix::fs::seek(file, SeekFrom::Data(position));
    rustix::fs::seek(file, SeekFrom::Start(before))?;
    match found {
        Err(rustix::io::Errno::NXIO) => Ok(None),
        found => Ok(found.map(Some)?),
    }
}

/// Fills a new file with what is in another; empty blocks become holes.
pub fn copy_contents(from: &File, to: &File) -> std::io::Result<()> {
    let size = each_block(from, |position, block| match is_empty(block) {
        true => Ok(()),
        false => to.write_all_at(block, position),
    })?;
    to.set_len(size)
}

/// Whether there is nothing but zeros in it.
pub fn is_empty(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
