//! The one gate between the guest and the outside.
//!
//! Every result that does not follow from the guest's own state passes through
//! `Io::external`: while recording, the host is asked and the answer written
//! down; while replaying, the answer comes from the recording and the host is
//! left alone. System calls are written once and work in both modes.

use crate::memory;
use crate::record::{Effect, FileIndex, Files, InputReader, InputWriter};
use crate::{Divergence, Error};
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A guest range that the host has just written.
pub type Written = (u64, usize);

/// What a copy gets for a question the recording has no answer to.
pub const NOTHING_LEFT: i64 = -(libc::ENOSYS as i64);

pub enum Io {
    /// Nothing is written down (measuring the bare vm).
    Live,
    Record {
        inputs: InputWriter,
        files: Files,
    },
    Replay {
        inputs: InputReader,
        files: Files,
    },
    /// A copy of the world (see `snapshot`).
    Copy(CopyIo),
}

/// What a copy knows of the outside: the rest of the recording.
pub struct CopyIo {
    rest: VecDeque<Effect>,
    files: Option<Files>,
}

impl CopyIo {
    /// The next recorded answer of this kind. The copy may ask in another
    /// order than the recorded run did; answers of one kind keep theirs.
    fn take(&mut self, tag: u32) -> Option<Effect> {
        let index = self.rest.iter().position(|effect| effect.tag == tag)?;
        self.rest.remove(index)
    }
}

/// Tags of inputs that are not system calls.
pub mod tag {
    pub const CPUID: u32 = 0x1_0000;
    pub const XGETBV: u32 = 0x1_0001;
    pub const MAPPED_FILE: u32 = 0x1_0002;
    pub const PROCESS: u32 = 0x1_0003;
    pub const RANDOM: u32 = 0x1_0004;
    pub const ORDER: u32 = 0x1_0005;
    pub const MEMORY: u32 = 0x1_0006;
}

impl Io {
    /// True if host calls are really made.
    pub fn is_live(&self) -> bool {
        !matches!(self, Io::Replay { .. } | Io::Copy(_))
    }

    /// From here on nothing reaches the outside, and what came from there
    /// comes from the rest of the recording.
    pub fn become_copy(&mut self) -> Result<(), Error> {
        let mut copy = CopyIo {
            rest: VecDeque::new(),
            files: None,
        };
        match std::mem::replace(self, Io::Live) {
            Io::Replay { mut inputs, files } => {
                while !inputs.at_end()? {
                    copy.rest.push_back(inputs.next_effect()?);
                }
                copy.files = Some(files);
            }
            Io::Copy(old) => copy = old,
            Io::Live | Io::Record { .. } => {}
        }
        *self = Io::Copy(copy);
        Ok(())
    }

    /// Does something outside, or takes its recorded result. `perform` returns
    /// the result and the guest ranges the host wrote.
    pub fn external(
        &mut self,
        tag: u32,
        perform: impl FnOnce() -> (i64, Vec<Written>),
    ) -> Result<i64, Error> {
        match self {
            Io::Live => Ok(perform().0),
            Io::Record { inputs, .. } => {
                let (result, written) = perform();
                let mut writes = Vec::with_capacity(written.len());
                for (address, length) in written {
                    // What the host has just written can be read, unless the
                    // guest mapped it write-only, which x86 cannot do.
                    if let Ok(bytes) = memory::read_vec(address, length) {
                        writes.push((address, bytes));
                    }
                }
                inputs.push(&Effect {
                    tag,
                    result,
                    writes,
                })?;
                Ok(result)
            }
            Io::Replay { inputs, .. } => {
                let effect = Self::expect(inputs, tag)?;
                for (address, bytes) in &effect.writes {
                    memory::write(*address, bytes).map_err(|_| {
                        Divergence::new(format!(
                            "recorded input of {} bytes does not fit at {address:#x}",
                            bytes.len()
                        ))
                    })?;
                }
                Ok(effect.result)
            }
            Io::Copy(copy) => {
                let Some(effect) = copy.take(tag) else {
                    return Ok(NOTHING_LEFT);
                };
                for (address, bytes) in &effect.writes {
                    // The copy may have unmapped the recorded buffer.
                    let _ = memory::write(*address, bytes);
                }
                Ok(effect.result)
            }
        }
    }

    /// Like `external` for answers that go to the vm itself: a number and
    /// some bytes.
    pub fn external_bytes(
        &mut self,
        tag: u32,
        perform: impl FnOnce() -> (i64, Vec<u8>),
    ) -> Result<(i64, Vec<u8>), Error> {
        match self {
            Io::Live => Ok(perform()),
            Io::Record { inputs, .. } => {
                let (result, bytes) = perform();
                inputs.push(&Effect {
                    tag,
                    result,
                    writes: vec![(0, bytes.clone())],
                })?;
                Ok((result, bytes))
            }
            Io::Replay { inputs, .. } => {
                let mut effect = Self::expect(inputs, tag)?;
                let bytes = effect.writes.pop().map(|(_, bytes)| bytes);
                Ok((effect.result, bytes.unwrap_or_default()))
            }
            Io::Copy(copy) => {
                let Some(mut effect) = copy.take(tag) else {
                    return Ok((NOTHING_LEFT, Vec::new()));
                };
                let bytes = effect.writes.pop().map(|(_, bytes)| bytes);
                Ok((effect.result, bytes.unwrap_or_default()))
            }
        }
    }

    fn expect(inputs: &mut InputReader, tag: u32) -> Result<Effect, Error> {
        let effect = inputs.next_effect()?;
        if effect.tag != tag {
            return Err(Divergence::new(format!(
                "the recorded run made {} here, the replay {}",
                describe(effect.tag),
                describe(tag)
            ))
            .into());
        }
        Ok(effect)
    }

    /// The file behind a mapping. While recording, `open` gives path and
    /// handle, which are noted; while replaying, the same contents come from
    /// the recording. `writable`: the program may change it.
    pub fn mapped_file(
        &mut self,
        writable: bool,
        open: impl FnOnce() -> std::io::Result<(PathBuf, File)>,
    ) -> Result<std::io::Result<(PathBuf, File)>, Error> {
        let note = |files: &mut Files, path: &Path, file: &File| files.add(path, file, writable);
        match self {
            Io::Live => Ok(open()),
            Io::Record { inputs, files } => {
                let opened = open();
                let result = match &opened {
                    Ok((path, file)) => i64::from(note(files, path, file)?),
                    Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
                };
                inputs.push(&Effect {
                    tag: tag::MAPPED_FILE,
                    result,
                    writes: Vec::new(),
                })?;
                Ok(opened)
            }
            Io::Replay { inputs, files } => {
                let result = Self::expect(inputs, tag::MAPPED_FILE)?.result;
                match FileIndex::try_from(result) {
                    Ok(index) => Ok(Ok(files.open_mapped(index)?)),
                    Err(_) => Ok(Err(std::io::Error::from_raw_os_error(-result as i32))),
                }
            }
            Io::Copy(copy) => {
                let result = copy
                    .take(tag::MAPPED_FILE)
                    .map_or(NOTHING_LEFT, |effect| effect.result);
                match (FileIndex::try_from(result), &copy.files) {
                    (Ok(index), Some(files)) => Ok(Ok(files.open_mapped(index)?)),
                    _ => Ok(Err(std::io::Error::from_raw_os_error(libc::ENODEV))),
                }
            }
        }
    }

    /// The process is over: nothing comes in any more.
    pub fn finish(&mut self) -> Result<(), Error> {
        if let Io::Record { inputs, .. } = self {
            inputs.finish()?;
        }
        Ok(())
    }

    /// The replayed process is over: everything that came in has been used.
    pub fn expect_end(&mut self) -> Result<(), Error> {
        if let Io::Replay { inputs, .. } = self {
            inputs.expect_end()?;
        }
        Ok(())
    }

    /// Other processes have written this to shared memory.
    pub fn push_memory(&mut self, writes: Vec<(u64, Vec<u8>)>) -> Result<(), Error> {
        if let Io::Record { inputs, .. } = self {
            inputs.push(&Effect {
                tag: tag::MEMORY,
                result: 0,
                writes,
            })?;
        }
        Ok(())
    }

    /// What other processes had written by now in the recorded run.
    pub fn take_memory(&mut self) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        match self {
            Io::Replay { inputs, .. } => Ok(Self::expect(inputs, tag::MEMORY)?.writes),
            _ => Ok(Vec::new()),
        }
    }

    /// Writes out what has gathered.
    pub fn flush(&mut self) -> Result<(), Error> {
        if let Io::Record { inputs, .. } = self {
            inputs.flush()?;
        }
        Ok(())
    }
}

/// Name of an input's source, for messages.
pub fn describe(tag: u32) -> String {
    match tag {
        tag::CPUID => "cpuid".into(),
        tag::XGETBV => "xgetbv".into(),
        tag::MAPPED_FILE => "a file mapping".into(),
        tag::PROCESS => "a process start".into(),
        tag::RANDOM => "a random number".into(),
        tag::ORDER => "a write to a standard stream".into(),
        tag::MEMORY => "a change of shared memory".into(),
        number => crate::kernel::names::syscall_name(u64::from(number))
            .map_or_else(|| format!("system call {number}"), str::to_string),
    }
}
