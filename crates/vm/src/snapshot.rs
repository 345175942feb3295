//! Copies of the whole world: the vm forks itself, and each copy goes its own
//! way.
//!
//! After paper 003's checkpoints (section 3.1). A copy costs a `fork` of the
//! vm, some hundred microseconds; memory is shared until written. In a copy
//! nothing reaches the outside (see `copy`): output is captured per stream,
//! files are overlaid, inputs come from the rest of the recording, per stream
//! if the vm knows which took which (`index_inputs`). Input that runs out
//! waits for ever, which is `Stop::Stuck { input: true }`, never a deadlock of
//! the program's own. Shared mappings are made the copy's own. A copy that
//! crashes, runs away or eats memory ends alone: its parent gets a
//! `CopyError`.

use crate::copy::InputIndex;
use crate::kernel::mapped_files::memory_file;
use crate::machine::Vm;
use crate::record::Recording;
use crate::schedule::{Choice, Script};
use crate::space::{self, Mapping, Shows};
use crate::{Error, host, interruption, protection, recorder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

/// What a copy may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Guest instructions of all threads together.
    pub instructions: u64,
    /// Bytes of address space beyond what the parent has.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            instructions: 1_000_000_000,
            bytes: 2 << 30,
        }
    }
}

/// A copy did not report back.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot make a copy of the vm: {0}")]
    Fork(io::Error),
    #[error("a copy of the vm died of signal {0}")]
    Died(i32),
    /// It tried what a confined process may not do.
    #[error("{}", confine::sentence(*.0))]
    Refused(Option<u32>),
    #[error("a copy of the vm ended without an answer (exit code {0})")]
    Silent(i32),
    #[error("the answer of a copy cannot be read: {0}")]
    Garbled(serde_json::Error),
    /// The work was over before the copy was done (`interruption`).
    #[error("interrupted")]
    Interrupted,
}

/// What a copy ends with that was interrupted: no answer is to be had.
const INTERRUPTED: i32 = 75;

/// The streams of a recording could not be told apart.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("replaying to match inputs with streams: {0}")]
    Replay(Failed),
}

/// Why work in a process of its own failed: a sentence, and whether what the
/// user gave is to blame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failed {
    pub message: String,
    pub exit_code: i32,
}

impl Failed {
    pub fn own(message: impl Into<String>) -> Failed {
        Failed {
            message: message.into(),
            exit_code: race::exit_code::FAILURE,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed {
            exit_code: error.exit_code(),
            message: error.to_string(),
        }
    }
}

impl From<CopyError> for Failed {
    fn from(error: CopyError) -> Failed {
        Failed::own(error.to_string())
    }
}

impl From<IndexError> for Failed {
    fn from(error: IndexError) -> Failed {
        let exit_code = match &error {
            IndexError::Copy(_) => race::exit_code::FAILURE,
            IndexError::Replay(failed) => failed.exit_code,
        };
        Failed {
            message: error.to_string(),
            exit_code,
        }
    }
}

/// A copy under way.
#[must_use = "a copy is waited for with `join`"]
pub struct Running<R> {
    pid: i32,
    answer: File,
    /// Signals that guests had got when it was made.
    reached: u32,
    _result: PhantomData<R>,
}

impl<R: DeserializeOwned> Running<R> {
    /// Waits for the copy's answer; one that does not come soon after the work
    /// is over is not waited for.
    pub fn join(self) -> Result<R, CopyError> {
        self.join_while(|_| {
            interruption::over_for().is_none_or(|(_, ago)| ago < interruption::ANSWER)
        })
    }

    /// The same for a process that records a program: the program is asked to
    /// end first, so that its recording is whole.
    pub fn join_recording(self) -> Result<R, CopyError> {
        let mut ending = recorder::Ending::since(self.reached);
        let answer = self.join_while(|pid| ending.goes_on(pid));
        interruption::forget_recording();
        answer
    }

    fn join_while(mut self, mut waits: impl FnMut(i32) -> bool) -> Result<R, CopyError> {
        let mut text = Vec::new();
        let read = loop {
            match self.read_some(&mut text) {
                Ok(Some(0)) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
            if !waits(self.pid) {
                // `drop` ends it.
                return Err(CopyError::Interrupted);
            }
        };
        let status = reap(self.pid);
        self.pid = 0;
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS {
            return Err(CopyError::Refused(confine::refused()));
        }
        if libc::WIFSIGNALED(status) {
            return Err(CopyError::Died(libc::WTERMSIG(status)));
        }
        if libc::WEXITSTATUS(status) == INTERRUPTED && text.is_empty() {
            return Err(CopyError::Interrupted);
        }
        if read.is_err() || text.is_empty() {
            return Err(CopyError::Silent(libc::WEXITSTATUS(status)));
        }
        serde_json::from_slice(&text).map_err(CopyError::Garbled)
    }

    /// What the copy has sent by now, waiting a little for it; zero at the end.
    fn read_some(&mut self, text: &mut Vec<u8>) -> io::Result<Option<usize>> {
        /// So often whoever waits looks up.
        const MILLISECONDS: i32 = 20;
        let mut polled = libc::pollfd {
            fd: self.answer.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the structure lives through the call.
        if unsafe { libc::poll(&raw mut polled, 1, MILLISECONDS) } <= 0 {
            return Ok(None);
        }
        let mut part = [0; 65536];
        match self.answer.read(&mut part) {
            Ok(length) => {
                text.extend_from_slice(&part[..length]);
                Ok(Some(length))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<R> Drop for Running<R> {
    /// A copy nobody waits for is ended.
    fn drop(&mut self) {
        if self.pid > 0 {
            // SAFETY: our own child, not yet reaped.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            reap(self.pid);
        }
    }
}

fn reap(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: plain out-parameter; the pid is our child's.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    status
}

impl Vm {
    /// Forks the world and runs `body` in the copy; what it returns comes back
    /// through `Running::join`.
    pub fn copy<R: Serialize>(
        &mut self,
        limits: Limits,
        body: impl FnOnce(&mut Vm) -> Result<R, Error>,
    ) -> Result<Running<Result<R, String>>, CopyError> {
        fork(|| self.in_copy(limits, body))
    }

    /// Forks the world; `body` goes on with the new one in a process of its
    /// own, which ends when it returns. A replay stays a replay there. The new
    /// process is nobody's to wait for, so the caller must ignore SIGCHLD.
    pub fn branch(&mut self, body: impl FnOnce(&mut Vm)) -> Result<i32, CopyError> {
        // SAFETY: the vm has no other host thread, so the child may run any
        // code; it leaves by `_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(CopyError::Fork(io::Error::last_os_error())),
            0 => {
                let isolated = self.isolate_shared_memory().is_ok();
                if isolated {
                    body(self);
                }
                host::exit(i32::from(!isolated))
            }
            pid => Ok(pid),
        }
    }

    /// From here on this world is a copy: it follows `slices` to the letter,
    /// and nothing reaches the outside.
    pub fn follow_script(&mut self, slices: Vec<Choice>) -> Result<(), Error> {
        self.become_copy(u64::MAX)?;
        self.schedule_by(Box::new(Script::new(slices)));
        Ok(())
    }

    /// A replay writes down which stream takes each input, for `know_inputs`
    /// of later ones.
    pub fn log_inputs(&mut self) {
        self.io.log_streams();
    }

    pub fn take_input_index(&mut self) -> InputIndex {
        InputIndex {
            waits: self.waits,
            signals: std::mem::take(&mut self.signals_seen),
            ..self.io.take_stream_log()
        }
    }

    /// Copies of this replay match recorded inputs per stream.
    pub fn know_inputs(&mut self, index: Rc<InputIndex>) {
        self.recorded_waits = Some(index.waits);
        self.recorded_signals = index.signals.clone();
        self.io.know_streams(index);
    }

    /// Makes this vm itself a copy, for good: from here on nothing reaches the
    /// outside. For whoever follows one schedule step by step (a debugger);
    /// `copy` is for trying many.
    pub fn detach(&mut self, limits: Limits) -> Result<(), Error> {
        self.isolate_shared_memory()
            .map_err(|error| Error::Machine(format!("cannot copy shared memory: {error}")))?;
        self.become_copy(limits.instructions)
    }

    fn in_copy<R: Serialize>(
        &mut self,
        limits: Limits,
        body: impl FnOnce(&mut Vm) -> Result<R, Error>,
    ) -> io::Result<Vec<u8>> {
        // SAFETY: bounds the copy's memory; no preconditions.
        unsafe {
            let bytes = address_space_size().saturating_add(limits.bytes);
            let limit = libc::rlimit {
                rlim_cur: bytes,
                rlim_max: bytes,
            };
            libc::setrlimit(libc::RLIMIT_AS, &limit);
        }
        self.isolate_shared_memory()?;
        self.become_copy(limits.instructions)
            .map_err(|error| io::Error::other(error.to_string()))?;
        serde_json::to_vec(&sendable(body(self))?).map_err(io::Error::other)
    }

    /// Gives every shared mapping memory that is this process's own, aliases kept:
    /// one new object per old one. What the guest writes to such a file by a system
    /// call goes there, too.
    pub(crate) fn isolate_shared_memory(&mut self) -> io::Result<()> {
        self.kernel.shared_files.separate()?;
        let shared: Vec<(Range<u64>, Mapping, Shows)> = self
            .space
            .mappings()
            .filter(|(_, mapping)| mapping.shared)
            .filter_map(|(range, mapping)| Some((range, mapping.clone(), mapping.shows?)))
            .collect();
        let mut others = HashMap::new();
        for (range, mapping, shows) in shared {
            let object = match (
                self.kernel.shared_files.get(shows.object),
                others.entry(shows.object),
            ) {
                (Some(known), _) => known,
                (None, Entry::Occupied(entry)) => entry.into_mut(),
                // Of others only what is mapped is known.
                (None, Entry::Vacant(entry)) => entry.insert(memory_file()?),
            };
            let length = range.end - range.start;
            move_to_object(object, range.start, length, shows.offset, &mapping)?;
            protection::keep_again(range);
        }
        Ok(())
    }
}

/// Maps `object` in place of a shared mapping, with the same contents.
fn move_to_object(
    object: &File,
    start: u64,
    length: u64,
    offset: u64,
    mapping: &Mapping,
) -> io::Result<()> {
    let end = offset + length;
    if object.metadata()?.len() < end {
        object.set_len(end)?;
    }
    let fd = object.as_raw_fd() as u64;
    // SAFETY: the object is ours; the range is a guest mapping, which is
    // copied out before it is replaced by the copy.
    let mapped = unsafe {
        // Pages without read permission hold nothing a copy could see.
        let _ = host::syscall(libc::SYS_pwrite64, [fd, start, length, offset, 0, 0]);
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let protection = space::host_protection(mapping.protection) as u64;
        host::syscall(
            libc::SYS_mmap,
            [start, length, protection, flags, fd, offset],
        )
    };
    if mapped < 0 {
        return Err(io::Error::from_raw_os_error(-mapped as i32));
    }
    Ok(())
}

/// Replays a recording to see which stream takes each of its inputs.
pub fn index_inputs(recording: &Recording) -> Result<InputIndex, IndexError> {
    let answer = isolated(|| {
        let mut vm = Vm::replay(recording)?;
        vm.mute();
        vm.log_inputs();
        vm.run(None)?;
        Ok(vm.take_input_index())
    });
    answer?.join()?.map_err(IndexError::Replay)
}

/// Runs `body` in a fork of this process. A vm has fixed addresses, so there
/// is one per process at a time: whoever needs several puts each into a fork.
pub fn isolated<R: Serialize>(
    body: impl FnOnce() -> Result<R, Error>,
) -> Result<Running<Result<R, Failed>>, CopyError> {
    fork(|| serde_json::to_vec(&sendable(body())?).map_err(io::Error::other))
}

/// Errors travel as what they say; work that was interrupted has no answer at all.
fn sendable<R>(result: Result<R, Error>) -> io::Result<Result<R, Failed>> {
    match result {
        Err(Error::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
        other => Ok(other.map_err(Failed::from)),
    }
}

/// Like `isolated`, for work whose failures are the caller's own.
pub fn in_fork<R: Serialize>(body: impl FnOnce() -> R) -> Result<Running<R>, CopyError> {
    fork(|| serde_json::to_vec(&body()).map_err(io::Error::other))
}

fn fork<R>(body: impl FnOnce() -> io::Result<Vec<u8>>) -> Result<Running<R>, CopyError> {
    confine::share_refusals();
    let mut ends = [0; 2];
    // SAFETY: plain out-parameter.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(CopyError::Fork(io::Error::last_os_error()));
    }
    // SAFETY: both ends were just made and are owned by nobody else.
    let (answer, mut reply) = unsafe {
        (
            File::from(OwnedFd::from_raw_fd(ends[0])),
            File::from(OwnedFd::from_raw_fd(ends[1])),
        )
    };
    let reached = interruption::reached();
    // SAFETY: the vm has no other host thread, so the child may run any code.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(CopyError::Fork(io::Error::last_os_error()));
    }
    if pid > 0 {
        return Ok(Running {
            pid,
            answer,
            reached,
            _result: PhantomData,
        });
    }
    drop(answer);
    confine::answer_to_parent();
    reply = out_of_the_way(reply);
    // SAFETY: asks the kernel to end this copy with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let code = match body() {
        Ok(text) => i32::from(reply.write_all(&text).is_err()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => INTERRUPTED,
        Err(_) => 1,
    };
    // SAFETY: ends the copy without running the parent's exit handlers.
    unsafe { libc::_exit(code) }
}

/// The guest must not find the pipe's number taken among its descriptors.
fn out_of_the_way(file: File) -> File {
    // SAFETY: duplicating a descriptor we own; the result is ours.
    unsafe {
        let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900);
        if high < 0 {
            file
        } else {
            File::from_raw_fd(high)
        }
    }
}

fn address_space_size() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(crate::layout::PAGE)
}
