//! An append-only stream of bytes in checked chunks.
//!
//! A file starts with eight bytes of magic and version; then come chunks, each
//! with its stored length, its plain length and a checksum, LZ4-compressed
//! where that helps. A vm that is killed leaves at worst one incomplete chunk
//! at the end; everything before it can be read.

use super::RecordError;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 6] = *b"deadht";

/// Chunks are written when this many bytes have gathered: large enough to
/// compress, small enough that little is lost with a killed vm.
const CHUNK: usize = 64 << 10;

const HEADER: usize = 16;

pub struct StreamWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

impl StreamWriter {
    pub fn create(path: &Path) -> Result<Self, RecordError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| RecordError::write(path, error))?;
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&super::FORMAT.to_le_bytes());
        file.write_all(&start)
            .map_err(|error| RecordError::write(path, error))?;
        Ok(StreamWriter {
            file,
            path: path.to_path_buf(),
            buffer: Vec::with_capacity(CHUNK + 4096),
        })
    }

    /// Where the caller appends; call `settle` afterwards.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Writes a chunk if enough has gathered.
    pub fn settle(&mut self) -> Result<(), RecordError> {
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<(), RecordError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let packed = lz4_flex::compress(&self.buffer);
        let stored = if packed.len() < self.buffer.len() {
            &packed
        } else {
            &self.buffer
        };
        let mut chunk = Vec::with_capacity(stored.len() + HEADER);
        chunk.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        chunk.extend_from_slice(&(self.buffer.len() as u32).to_le_bytes());
        chunk.extend_from_slice(&xxh3_64(stored).to_le_bytes());
        chunk.extend_from_slice(stored);
        self.file
            .write_all(&chunk)
            .map_err(|error| RecordError::write(&self.path, error))?;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads from an offset of its own: copies of the vm share the file's.
struct OwnOffset {
    file: File,
    offset: u64,
}

impl Read for OwnOffset {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read_at(buffer, self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

pub struct StreamReader {
    file: BufReader<OwnOffset>,
    path: PathBuf,
    buffer: Vec<u8>,
    position: usize,
    /// A chunk at the end of the file was incomplete.
    pub truncated: bool,
}

impl StreamReader {
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path).map_err(|error| RecordError::read(path, error))?;
        let mut file = BufReader::new(OwnOffset { file, offset: 0 });
        let mut start = [0; 8];
        file.read_exact(&mut start)
            .map_err(|_| RecordError::damaged(path, "it is shorter than its header"))?;
        if start[..6] != MAGIC {
            return Err(RecordError::damaged(
                path,
                "it does not begin as a deadheat stream",
            ));
        }
        let version = u16::from_le_bytes([start[6], start[7]]);
        super::check_format(path, u32::from(version))?;
        Ok(StreamReader {
            file,
            path: path.to_path_buf(),
            buffer: Vec::new(),
            position: 0,
            truncated: false,
        })
    }

    /// Reads the next chunk; false at the end.
    fn refill(&mut self) -> Result<bool, RecordError> {
        let mut header = [0; HEADER];
        match read_fully(&mut self.file, &mut header) {
            Ok(0) => return Ok(false),
            Ok(HEADER) => {}
            Ok(_) => {
                self.truncated = true;
                return Ok(false);
            }
            Err(error) => return Err(RecordError::read(&self.path, error)),
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (stored, plain) = (word(0) as usize, word(4) as usize);
        let mut sum = [0; 8];
        sum.copy_from_slice(&header[8..]);
        // A single input can be large, but no chunk is gigabytes.
        if stored > (1 << 30) || plain > (1 << 30) || stored > plain {
            return Err(RecordError::damaged(
                &self.path,
                "a chunk has an impossible length",
            ));
        }
        let mut bytes = vec![0; stored];
        match read_fully(&mut self.file, &mut bytes) {
            Ok(length) if length == stored => {}
            Ok(_) => {
                self.truncated = true;
                return Ok(false);
            }
            Err(error) => return Err(RecordError::read(&self.path, error)),
        }
        if xxh3_64(&bytes).to_le_bytes() != sum {
            return Err(RecordError::damaged(
                &self.path,
                "a chunk's checksum is wrong",
            ));
        }
        let bytes = if stored < plain {
            lz4_flex::decompress(&bytes, plain)
                .map_err(|_| RecordError::damaged(&self.path, "a chunk does not unpack"))?
        } else {
            bytes
        };
        self.buffer.drain(..self.position);
        self.position = 0;
        self.buffer.extend_from_slice(&bytes);
        Ok(true)
    }

    /// Makes at least `count` bytes available; false if the stream ends
    /// before.
    fn need(&mut self, count: usize) -> Result<bool, RecordError> {
        while self.buffer.len() - self.position < count {
            if !self.refill()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if nothing is left.
    pub fn at_end(&mut self) -> Result<bool, RecordError> {
        Ok(!self.need(1)?)
    }

    pub fn bytes(&mut self, count: usize) -> Result<Vec<u8>, RecordError> {
        if count > (1 << 30) {
            return Err(RecordError::damaged(
                &self.path,
                "an entry has an impossible length",
            ));
        }
        if !self.need(count)? {
            return Err(RecordError::Ended(self.path.clone()));
        }
        let bytes = self.buffer[self.position..self.position + count].to_vec();
        self.position += count;
        Ok(bytes)
    }

    pub fn byte(&mut self) -> Result<u8, RecordError> {
        if !self.need(1)? {
            return Err(RecordError::Ended(self.path.clone()));
        }
        self.position += 1;
        Ok(self.buffer[self.position - 1])
    }

    pub fn number(&mut self) -> Result<u64, RecordError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordError::damaged(&self.path, "a number does not end"))
    }

    pub fn signed(&mut self) -> Result<i64, RecordError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read_fully(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Seven bits per byte, least significant first.
pub fn put_number(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// Small magnitudes of either sign in few bytes.
pub fn put_signed(buffer: &mut Vec<u8>, value: i64) {
    put_number(buffer, ((value << 1) ^ (value >> 63)) as u64);
}

pub fn put_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    put_number(buffer, bytes.len() as u64);
    buffer.extend_from_slice(bytes);
}
