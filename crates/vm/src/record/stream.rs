//! An append-only stream of bytes in checked chunks.
//!
//! A file starts with eight bytes of magic and version; then come chunks, each
//! with a header (a mark, its stored length, its plain length, a check of
//! these, a checksum of what is stored) and its bytes, LZ4-compressed where
//! that helps. The last chunk says that the stream is finished and how many
//! bytes it has.
//!
//! A vm that is killed leaves a stream without that chunk, and at worst one
//! incomplete chunk at the end; everything before it can be read. Anything
//! else is damage: bytes behind the end, a chunk whose header is not one, or
//! an end that is missing from one stream of a finished recording.

use super::RecordError;
use folder::Place;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 6] = *b"deadht";

/// Chunks are written when this many bytes have gathered: large enough to
/// compress, small enough that little is lost with a killed vm.
const CHUNK: usize = 64 << 10;

/// A chunk holds no more: a single input can be longer, and is in several.
/// Memory that a chunk takes before its contents are checked is bounded by it.
const LARGEST_CHUNK: usize = 1 << 20;

/// What a reader takes. A few megabytes of LZ4 can unpack to a gigabyte.
const LARGEST_READ: usize = 16 << 20;

/// mark, stored length, plain length, check of these three, checksum
const HEADER: usize = 24;

/// Begins a chunk.
const CHUNK_MARK: [u8; 4] = *b"chnk";
/// Begins the chunk that ends a stream.
const END_MARK: [u8; 4] = *b"done";

fn header(mark: [u8; 4], stored: &[u8], plain: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&mark);
    header[4..8].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&plain.to_le_bytes());
    let check = xxh3_64(&header[..12]) as u32;
    header[12..16].copy_from_slice(&check.to_le_bytes());
    header[16..].copy_from_slice(&xxh3_64(stored).to_le_bytes());
    header
}

pub struct StreamWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes written in chunks.
    total: u64,
}

impl StreamWriter {
    pub fn create(place: &Place) -> Result<Self, RecordError> {
        Self::begin(place, place.create())
    }

    /// The same with a file that is open for appending: a process that gives up its
    /// rights goes on writing to it (`confine`).
    pub fn create_to_append(place: &Place) -> Result<Self, RecordError> {
        // Nothing may be there: what an earlier try left, maybe.
        let _ = place.remove();
        Self::begin(place, place.append())
    }

    fn begin(place: &Place, file: std::io::Result<File>) -> Result<Self, RecordError> {
        let path = place.path();
        let mut file = file.map_err(|error| RecordError::write(&path, error))?;
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&super::FORMAT.to_le_bytes());
        file.write_all(&start)
            .map_err(|error| RecordError::write(&path, error))?;
        Ok(StreamWriter {
            file,
            path,
            buffer: Vec::with_capacity(CHUNK + 4096),
            total: 0,
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
        let chunks = self.take_chunks();
        self.write(&chunks)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.file
            .write_all(bytes)
            .map_err(|error| RecordError::write(&self.path, error))
    }

    /// What has gathered, as chunks; as a rule it is one.
    fn take_chunks(&mut self) -> Vec<u8> {
        let mut chunks = Vec::new();
        for plain in self.buffer.chunks(LARGEST_CHUNK) {
            let packed = lz4_flex::compress(plain);
            let stored = if packed.len() < plain.len() {
                &packed
            } else {
                plain
            };
            chunks.extend_from_slice(&header(CHUNK_MARK, stored, plain.len() as u32));
            chunks.extend_from_slice(stored);
        }
        self.total += self.buffer.len() as u64;
        self.buffer.clear();
        chunks
    }

    /// Writes what has gathered and the end, at once. Nothing may follow.
    pub fn finish(&mut self) -> Result<(), RecordError> {
        let mut chunk = self.take_chunks();
        let total = self.total.to_le_bytes();
        chunk.extend_from_slice(&header(END_MARK, &total, total.len() as u32));
        chunk.extend_from_slice(&total);
        self.write(&chunk)
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
    /// Bytes read in chunks.
    total: u64,
    /// The end of the stream was read, or the point where a killed vm left it.
    ended: bool,
    /// It was the end.
    finished: bool,
}

impl StreamReader {
    pub fn open(place: &Place) -> Result<Self, RecordError> {
        let file = place.open(folder::STREAM);
        let path = place.path();
        let file = file.map_err(|error| RecordError::read(&path, error))?;
        let mut file = BufReader::new(OwnOffset { file, offset: 0 });
        let mut start = [0; 8];
        file.read_exact(&mut start)
            .map_err(|_| RecordError::damaged(&path, "it is shorter than its header"))?;
        if start[..6] != MAGIC {
            return Err(RecordError::damaged(
                &path,
                "it does not begin as a deadheat stream",
            ));
        }
        let version = u16::from_le_bytes([start[6], start[7]]);
        super::check_format(&path, u32::from(version))?;
        Ok(StreamReader {
            file,
            path,
            buffer: Vec::new(),
            position: 0,
            total: 0,
            ended: false,
            finished: false,
        })
    }

    /// Reads the next chunk; false at the end.
    fn refill(&mut self) -> Result<bool, RecordError> {
        if self.ended {
            return Ok(false);
        }
        let damaged = |what: &str| Err(RecordError::damaged(&self.path, what));
        let mut start = [0; HEADER];
        let length = read_fully(&mut self.file, &mut start)
            .map_err(|error| RecordError::read(&self.path, error))?;
        let begins_like = |mark: [u8; 4]| start[..length.min(4)] == mark[..length.min(4)];
        if !begins_like(CHUNK_MARK) && !begins_like(END_MARK) {
            return damaged("there is something else where a chunk should begin");
        }
        if length < HEADER {
            // The vm was killed while it wrote, or between two chunks.
            self.ended = true;
            return Ok(false);
        }
        let word = |at: usize| {
            u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]])
        };
        if xxh3_64(&start[..12]) as u32 != word(12) {
            return damaged("the header of a chunk is not what was written");
        }
        let (stored, plain) = (word(4) as usize, word(8) as usize);
        if plain > LARGEST_READ || stored > plain {
            return damaged("a chunk has an impossible length");
        }
        let mut bytes = Vec::new();
        let read = (&mut self.file)
            .take(stored as u64)
            .read_to_end(&mut bytes)
            .map_err(|error| RecordError::read(&self.path, error))?;
        if read < stored {
            self.ended = true;
            return Ok(false);
        }
        if xxh3_64(&bytes).to_le_bytes() != start[16..] {
            return damaged("a chunk's checksum is wrong");
        }
        if start[..4] == END_MARK {
            self.ended = true;
            if bytes != self.total.to_le_bytes() {
                return damaged("chunks are missing from it");
            }
            let mut more = [0];
            return match read_fully(&mut self.file, &mut more) {
                Ok(0) => {
                    self.finished = true;
                    Ok(false)
                }
                Ok(_) => damaged("there is something behind its end"),
                Err(error) => Err(RecordError::read(&self.path, error)),
            };
        }
        let bytes = if stored < plain {
            lz4_flex::decompress(&bytes, plain)
                .map_err(|_| RecordError::damaged(&self.path, "a chunk does not unpack"))?
        } else {
            bytes
        };
        self.total += bytes.len() as u64;
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

    /// Everything there must be has been read: here the stream ends as its
    /// writer ended it.
    pub fn expect_end(&mut self) -> Result<(), RecordError> {
        let more = self.need(1)?;
        if more || !self.finished {
            let what = if more {
                "it goes on after the process has ended"
            } else {
                "its end is missing"
            };
            return Err(RecordError::damaged(&self.path, what));
        }
        Ok(())
    }

    /// A killed vm left the end that was read.
    pub fn was_cut(&self) -> bool {
        self.ended && !self.finished
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

/// True if the stream has its end: the vm that wrote it was not killed.
pub fn is_finished(place: &Place) -> Result<bool, RecordError> {
    let fail = |error| RecordError::read(&place.path(), error);
    let mut file = match place.open(folder::STREAM) {
        // Killed before it came to that.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(fail)?,
    };
    let end = (HEADER + 8) as i64;
    if file.metadata().map_err(fail)?.len() < end as u64 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-end)).map_err(fail)?;
    let mut bytes = [0; HEADER + 8];
    file.read_exact(&mut bytes).map_err(fail)?;
    let (start, total) = bytes.split_at(HEADER);
    Ok(start == header(END_MARK, total, total.len() as u32))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(path: &Path) -> Place {
        Place::of(path.parent().unwrap()).join(path.file_name().unwrap())
    }

    fn written(name: &str, finish: bool) -> (PathBuf, Vec<u8>) {
        let path = std::env::temp_dir().join(format!("deadheat-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut stream = StreamWriter::create(&place_of(&path)).unwrap();
        for number in 0..3u64 {
            put_bytes(stream.buffer(), &number.to_le_bytes());
            stream.flush().unwrap();
        }
        if finish {
            stream.finish().unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    }

    /// The numbers that can be read, and how reading ended.
    fn read(path: &Path, bytes: &[u8]) -> (usize, Result<(), RecordError>) {
        std::fs::write(path, bytes).unwrap();
        let mut stream = match StreamReader::open(&place_of(path)) {
            Ok(stream) => stream,
            Err(error) => return (0, Err(error)),
        };
        let mut count = 0;
        loop {
            match stream.at_end() {
                Ok(true) => return (count, Ok(())),
                Ok(false) => {}
                Err(error) => return (count, Err(error)),
            }
            let length = stream.number().unwrap() as usize;
            stream.bytes(length).unwrap();
            count += 1;
        }
    }

    #[test]
    fn a_killed_writer_leaves_a_readable_stream_wherever_it_was() {
        let (path, bytes) = written("killed", false);
        for length in 8..=bytes.len() {
            let (count, end) = read(&path, &bytes[..length]);
            assert!(end.is_ok(), "cut to {length}: {end:?}");
            assert!(count <= 3);
            assert!(!is_finished(&place_of(&path)).unwrap());
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_follows_the_end_is_damage() {
        let (path, bytes) = written("followed", true);
        assert!(matches!(read(&path, &bytes), (3, Ok(()))));
        assert!(is_finished(&place_of(&path)).unwrap());
        for more in [&[0u8][..], b"chnk", &bytes[8..], &bytes[..40]] {
            let longer = [&bytes, more].concat();
            let (count, end) = read(&path, &longer);
            assert_eq!(count, 3);
            assert!(matches!(end, Err(RecordError::Damaged { .. })), "{end:?}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_follows_a_killed_writer_is_damage_too() {
        let (path, bytes) = written("appended", false);
        for more in [
            &[0u8; 5][..],
            b"garbage that is longer than a header",
            b"c!",
        ] {
            let longer = [&bytes, more].concat();
            let (_, end) = read(&path, &longer);
            assert!(matches!(end, Err(RecordError::Damaged { .. })), "{end:?}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_long_input_is_in_several_chunks() {
        let (path, _) = written("long", false);
        std::fs::remove_file(&path).unwrap();
        let long: Vec<u8> = (0..3 * LARGEST_CHUNK + 7)
            .map(|at| (at / 3) as u8)
            .collect();
        let mut stream = StreamWriter::create(&place_of(&path)).unwrap();
        put_bytes(stream.buffer(), &long);
        stream.settle().unwrap();
        stream.finish().unwrap();
        let mut stream = StreamReader::open(&place_of(&path)).unwrap();
        let length = stream.number().unwrap() as usize;
        assert!(stream.bytes(length).unwrap() == long);
        stream.expect_end().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_chunk_that_unpacks_to_very_much_is_damage() {
        let (path, bytes) = written("large", false);
        let plain = vec![0; LARGEST_READ + 1];
        let stored = lz4_flex::compress(&plain);
        assert!(stored.len() < 100_000);
        let start = header(CHUNK_MARK, &stored, plain.len() as u32);
        let (_, end) = read(&path, &[&bytes[..8], &start, &stored].concat());
        assert!(matches!(end, Err(RecordError::Damaged { .. })), "{end:?}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed() {
        let (path, bytes) = written("flipped", true);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let (_, end) = read(&path, &damaged);
                assert!(end.is_err(), "byte {at} bit {bit}");
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}
