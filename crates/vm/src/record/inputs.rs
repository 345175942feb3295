//! What one process received from outside, in the order in which it did.

use super::RecordError;
use super::stream::{StreamReader, StreamWriter, put_bytes, put_number, put_signed};
use folder::Place;
use std::fmt;
use std::path::Path;

/// Places that one input is written to at most. `recvmmsg` fills 1024 messages of
/// 1024 pieces; what other processes have changed in shared memory is a place per
/// page or so.
const MOST_WRITES: u64 = 1 << 22;

/// The result of one thing done outside: a number and the bytes that were
/// written to guest memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// What was done: the system call's number, or one of the vm's own tags.
    pub tag: u32,
    pub result: i64,
    pub writes: Vec<(u64, Vec<u8>)>,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", crate::io::describe(self.tag), self.result)
    }
}

pub struct InputWriter {
    stream: StreamWriter,
    last_address: u64,
}

impl InputWriter {
    pub fn create(place: &Place) -> Result<Self, RecordError> {
        Ok(InputWriter {
            stream: StreamWriter::create(place)?,
            last_address: 0,
        })
    }

    pub fn push(&mut self, effect: &Effect) -> Result<(), RecordError> {
        let buffer = self.stream.buffer();
        put_number(buffer, u64::from(effect.tag));
        put_signed(buffer, effect.result);
        put_number(buffer, effect.writes.len() as u64);
        for (address, bytes) in &effect.writes {
            // Buffers tend to be used again: the distance is short.
            put_signed(buffer, address.wrapping_sub(self.last_address) as i64);
            put_bytes(buffer, bytes);
            self.last_address = *address;
        }
        self.stream.settle()
    }

    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.stream.flush()
    }

    /// The process is over.
    pub fn finish(&mut self) -> Result<(), RecordError> {
        self.stream.finish()
    }
}

pub struct InputReader {
    stream: StreamReader,
    last_address: u64,
}

impl InputReader {
    pub fn open(place: &Place) -> Result<Self, RecordError> {
        Ok(InputReader {
            stream: StreamReader::open(place)?,
            last_address: 0,
        })
    }

    pub fn next_effect(&mut self) -> Result<Effect, RecordError> {
        let tag = self.stream.number()? as u32;
        let result = self.stream.signed()?;
        let count = self.stream.number()?;
        if count > MOST_WRITES {
            let what = "an input is written to impossibly many places";
            return Err(RecordError::damaged(self.stream.path(), what));
        }
        let mut writes = Vec::new();
        for _ in 0..count {
            let distance = self.stream.signed()?;
            let length = self.stream.number()? as usize;
            self.last_address = self.last_address.wrapping_add(distance as u64);
            writes.push((self.last_address, self.stream.bytes(length)?));
        }
        Ok(Effect {
            tag,
            result,
            writes,
        })
    }

    pub fn at_end(&mut self) -> Result<bool, RecordError> {
        self.stream.at_end()
    }

    /// The process has ended: nothing follows.
    pub fn expect_end(&mut self) -> Result<(), RecordError> {
        self.stream.expect_end()
    }

    pub fn path(&self) -> &Path {
        self.stream.path()
    }
}
