//! The one gate between the guest and the outside.
//!
//! Every result that does not follow from the guest's own state passes through
//! `Io::external`: while recording, the host is asked and the answer written
//! down; while replaying, the answer comes from the recording and the host is
//! left alone. System calls are written once and work in both modes.

use crate::copy::{Arrived, Asking, Consumed, CopyIo, InputIndex, Inputs, ToCome};
use crate::kernel::WOULD_BLOCK;
use crate::memory;
use crate::record::{Effect, FileIndex, Files, InputReader, InputWriter};
use crate::{Divergence, Error};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

/// Asks the host, under the guest's limit of a file's size where that matters.
fn bounded<T>(tag: u32, perform: impl FnOnce() -> T) -> T {
    match i64::from(tag) {
        libc::SYS_write
        | libc::SYS_truncate
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_sendfile
        | libc::SYS_splice
        | libc::SYS_copy_file_range => crate::host::within_file_size(perform),
        _ => perform(),
    }
}

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
        books: Box<ReplayBooks>,
    },
    /// A copy of the world (see `snapshot`).
    Copy(Box<CopyIo>),
}

/// What a replay keeps for the copies that will be made of it.
#[derive(Default)]
pub struct ReplayBooks {
    /// Inputs read so far.
    count: usize,
    asking: Asking,
    /// Who took which input, being written.
    log: Option<Vec<Consumed>>,
    /// The same, known from an earlier replay.
    index: Option<Rc<InputIndex>>,
    /// Answers seen so far that may be asked for again.
    passed: Inputs,
    /// Where and when the recorded program was started.
    directory: PathBuf,
    recorded_at: Option<SystemTime>,
}

impl ReplayBooks {
    pub fn new(directory: PathBuf, recorded_at: Option<SystemTime>) -> Self {
        ReplayBooks {
            directory,
            recorded_at,
            ..ReplayBooks::default()
        }
    }

    fn enter(&mut self, effect: &Effect) {
        let consumed = Consumed {
            stream: self.asking.stream,
            time: self.asking.now,
            position: self.asking.position,
        };
        if let Some(log) = &mut self.log {
            log.push(consumed);
        }
        if self.index.is_some() {
            self.passed.passed(effect, consumed);
        }
        self.count += 1;
    }
}

/// Tags of inputs that are not system calls.
pub mod tag {
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
        let copy = match std::mem::replace(self, Io::Live) {
            Io::Replay {
                inputs: reader,
                files,
                books,
            } => {
                let inputs = match &books.index {
                    Some(_) => books.passed,
                    None => Inputs::new(false),
                };
                let mut copy = CopyIo::new(inputs, Some(files), books.recorded_at);
                copy.directory = books.directory;
                copy.to_come = Some(ToCome {
                    reader,
                    index: books.index,
                    count: books.count,
                });
                Box::new(copy)
            }
            Io::Copy(old) => old,
            Io::Live | Io::Record { .. } => Box::new(CopyIo::new(
                Inputs::new(false),
                None,
                Some(SystemTime::now()),
            )),
        };
        *self = Io::Copy(copy);
        Ok(())
    }

    /// A replay writes down which stream takes each input.
    pub fn log_streams(&mut self) {
        if let Io::Replay { books, .. } = self {
            // Loading the program has taken some already.
            let start = Consumed {
                stream: 0,
                time: 0,
                position: None,
            };
            books.log = Some(vec![start; books.count]);
        }
    }

    pub fn take_stream_log(&mut self) -> InputIndex {
        let log = match self {
            Io::Replay { books, .. } => books.log.take(),
            _ => None,
        };
        InputIndex {
            consumed: log.unwrap_or_default(),
            ..InputIndex::default()
        }
    }

    /// Copies of this replay match inputs per stream.
    pub fn know_streams(&mut self, index: Rc<InputIndex>) {
        if let Io::Replay { books, .. } = self {
            books.index = Some(index);
            books.passed = Inputs::new(true);
        }
    }

    /// It matters which stream a call is about.
    pub fn minds_streams(&self) -> bool {
        match self {
            Io::Live | Io::Record { .. } => false,
            Io::Replay { books, .. } => books.log.is_some() || books.index.is_some(),
            Io::Copy(_) => true,
        }
    }

    /// A call begins, or ends (with the default).
    pub fn ask(&mut self, asking: Asking) {
        match self {
            Io::Live | Io::Record { .. } => {}
            Io::Replay { books, .. } => books.asking = asking,
            Io::Copy(copy) => copy.asking = asking,
        }
    }

    /// The call under way reads a file at this position.
    pub fn ask_at(&mut self, position: u64) {
        match self {
            Io::Live | Io::Record { .. } => {}
            Io::Replay { books, .. } => books.asking.position = Some(position),
            Io::Copy(copy) => copy.asking.position = Some(position),
        }
    }

    pub fn copy(&mut self) -> Option<&mut CopyIo> {
        match self {
            Io::Copy(copy) => Some(copy),
            _ => None,
        }
    }

    pub(crate) fn as_copy(&self) -> Option<&CopyIo> {
        match self {
            Io::Copy(copy) => Some(copy),
            _ => None,
        }
    }

    pub fn is_copy(&self) -> bool {
        matches!(self, Io::Copy(_))
    }

    /// Does something outside, or takes its recorded result. `perform` returns
    /// the result and the guest ranges the host wrote.
    pub fn external(
        &mut self,
        tag: u32,
        perform: impl FnOnce() -> (i64, Vec<Written>),
    ) -> Result<i64, Error> {
        match self {
            Io::Live => Ok(bounded(tag, perform).0),
            Io::Record { inputs, .. } => {
                let (result, written) = bounded(tag, perform);
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
            Io::Replay { inputs, books, .. } => {
                let effect = Self::expect(inputs, books, tag)?;
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
                let asking = copy.asking;
                let Some(effect) = copy.inputs().answer(&asking, tag) else {
                    if asking.harmless {
                        return Ok(perform().0);
                    }
                    return Ok(without_answer(tag));
                };
                let targets = match i64::from(tag) {
                    // Length and address of the peer.
                    libc::SYS_accept4 => [asking.arguments[2], asking.arguments[1]],
                    _ => [0; 2],
                };
                for (index, (address, bytes)) in effect.writes.iter().enumerate() {
                    let target = targets.get(index).copied().filter(|target| *target != 0);
                    // The copy may have unmapped the recorded buffer.
                    let _ = memory::write(target.unwrap_or(*address), bytes);
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
            Io::Live => Ok(bounded(tag, perform)),
            Io::Record { inputs, .. } => {
                let (result, bytes) = bounded(tag, perform);
                inputs.push(&Effect {
                    tag,
                    result,
                    writes: vec![(0, bytes.clone())],
                })?;
                Ok((result, bytes))
            }
            Io::Replay { inputs, books, .. } => {
                let mut effect = Self::expect(inputs, books, tag)?;
                let bytes = effect.writes.pop().map(|(_, bytes)| bytes);
                Ok((effect.result, bytes.unwrap_or_default()))
            }
            Io::Copy(copy) => {
                let asking = copy.asking;
                let Some(mut effect) = copy.inputs().answer(&asking, tag) else {
                    if asking.harmless {
                        return Ok(perform());
                    }
                    if tag == tag::RANDOM {
                        let bytes = copy.random.next().to_le_bytes();
                        return Ok((0, bytes.to_vec()));
                    }
                    return Ok((without_answer(tag), Vec::new()));
                };
                let bytes = effect.writes.pop().map(|(_, bytes)| bytes);
                Ok((effect.result, bytes.unwrap_or_default()))
            }
        }
    }

    /// In a copy: takes what has arrived on the stream asked about, at most
    /// `length` bytes.
    pub fn arrive(&mut self, tag: u32, length: usize) -> Arrived {
        match self {
            Io::Copy(copy) => {
                let asking = copy.asking;
                copy.inputs().arrive(&asking, tag, length)
            }
            _ => Arrived::NotYet,
        }
    }

    fn expect(
        inputs: &mut InputReader,
        books: &mut ReplayBooks,
        tag: u32,
    ) -> Result<Effect, Error> {
        let effect = inputs.next_effect()?;
        books.enter(&effect);
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
            Io::Replay {
                inputs,
                files,
                books,
            } => {
                let result = Self::expect(inputs, books, tag::MAPPED_FILE)?.result;
                match FileIndex::try_from(result) {
                    Ok(index) => Ok(Ok(files.open_mapped(index)?)),
                    Err(_) => Ok(Err(std::io::Error::from_raw_os_error(-result as i32))),
                }
            }
            Io::Copy(copy) => {
                let asking = copy.asking;
                let result = copy
                    .inputs()
                    .answer(&asking, tag::MAPPED_FILE)
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
            Io::Replay { inputs, books, .. } => {
                Ok(Self::expect(inputs, books, tag::MEMORY)?.writes)
            }
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

/// What a copy is told where the recorded run never asked.
fn without_answer(tag: u32) -> i64 {
    match i64::from(tag) {
        libc::SYS_read | libc::SYS_recvmsg | libc::SYS_accept4 | libc::SYS_splice => WOULD_BLOCK,
        libc::SYS_wait4 | libc::SYS_waitid => 0,
        // Changes of the world that a copy only imagines.
        libc::SYS_connect
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_setsockopt
        | libc::SYS_shutdown
        | libc::SYS_socket
        | libc::SYS_epoll_ctl
        | libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rmdir
        | libc::SYS_chmod
        | libc::SYS_fchmod
        | libc::SYS_fchmodat
        | libc::SYS_chown
        | libc::SYS_fchown
        | libc::SYS_fchownat
        | libc::SYS_utimensat
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_fadvise64
        | libc::SYS_fallocate
        | libc::SYS_flock
        | libc::SYS_fcntl
        | libc::SYS_symlink
        | libc::SYS_symlinkat
        | libc::SYS_link
        | libc::SYS_linkat => 0,
        _ => NOTHING_LEFT,
    }
}

/// Name of an input's source, for messages.
pub fn describe(tag: u32) -> String {
    match tag {
        tag::MAPPED_FILE => "a file mapping".into(),
        tag::PROCESS => "a process start".into(),
        tag::RANDOM => "a random number".into(),
        tag::ORDER => "a write to a standard stream".into(),
        tag::MEMORY => "a change of shared memory".into(),
        number => crate::kernel::names::syscall_name(u64::from(number))
            .map_or_else(|| format!("system call {number}"), str::to_string),
    }
}
