//! The schedule of one process: which thread ran for how long, when time was
//! advanced, when a signal came, how it ended.

use super::check::{Check, Checkpoint};
use super::stream::{StreamReader, StreamWriter, put_bytes, put_number};
use super::{RecordError, Recording};
use folder::Place;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// One decision of the scheduler, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Thread `thread` ran for `instructions`; `check` is its state afterwards.
    Slice {
        thread: u32,
        instructions: u64,
        check: Check,
    },
    /// The state of the whole process, between slices and before the end.
    Checkpoint(Box<Checkpoint>),
    /// Virtual time went on by this many nanoseconds without an instruction.
    Advance(u64),
    /// A signal from outside became pending for a thread (or, with thread 0,
    /// the process).
    Signal {
        thread: u32,
        info: Vec<u8>,
    },
    /// Other processes have written to shared memory; the bytes are the next
    /// input.
    Memory,
    End(Ending),
}

/// How a process ended and what its state was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Exit code, or the signal that killed it.
    pub status: ProcessStatus,
    /// Hash of all registers and memory at the end.
    pub state: u64,
}

/// How a guest process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessStatus {
    Exited(i32),
    Killed(i32),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Slice {
                thread,
                instructions,
                check,
            } => write!(
                f,
                "thread {thread} runs {instructions} instructions (state {check})"
            ),
            Step::Checkpoint(checkpoint) => write!(f, "{checkpoint}"),
            Step::Advance(nanoseconds) => write!(f, "time goes on by {nanoseconds} ns"),
            Step::Memory => write!(f, "other processes have written to shared memory"),
            Step::Signal { thread: 0, .. } => write!(f, "a signal for the process arrives"),
            Step::Signal { thread, .. } => write!(f, "a signal for thread {thread} arrives"),
            Step::End(Ending { status, state }) => {
                write!(f, "the process ends: {status} (state {state:016x})")
            }
        }
    }
}

impl fmt::Display for ProcessStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessStatus::Exited(code) => write!(f, "exit code {code}"),
            ProcessStatus::Killed(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// No slice is longer: records of accesses carry half of the counter. So what a
/// replay executes is bounded by the length of its schedule.
pub(crate) const LONGEST_SLICE: u64 = 1 << 30;

const SLICE: u8 = 0;
const ADVANCE: u8 = 1;
const SIGNAL: u8 = 2;
const EXITED: u8 = 3;
const KILLED: u8 = 4;
const MEMORY: u8 = 5;
const CHECKPOINT: u8 = 6;

pub struct StepWriter(StreamWriter);

impl StepWriter {
    pub fn create(place: &Place) -> Result<Self, RecordError> {
        StreamWriter::create(place).map(StepWriter)
    }

    pub fn push(&mut self, step: &Step) -> Result<(), RecordError> {
        let buffer = self.0.buffer();
        match step {
            Step::Slice {
                thread,
                instructions,
                check,
            } => {
                buffer.push(SLICE);
                put_number(buffer, u64::from(*thread));
                put_number(buffer, *instructions);
                check.put(buffer);
            }
            Step::Checkpoint(checkpoint) => {
                buffer.push(CHECKPOINT);
                checkpoint.put(buffer);
            }
            Step::Advance(nanoseconds) => {
                buffer.push(ADVANCE);
                put_number(buffer, *nanoseconds);
            }
            Step::Signal { thread, info } => {
                buffer.push(SIGNAL);
                put_number(buffer, u64::from(*thread));
                put_bytes(buffer, info);
            }
            Step::Memory => buffer.push(MEMORY),
            Step::End(ending) => {
                let (tag, value) = match ending.status {
                    ProcessStatus::Exited(code) => (EXITED, code),
                    ProcessStatus::Killed(signal) => (KILLED, signal),
                };
                buffer.push(tag);
                put_number(buffer, value as u32 as u64);
                buffer.extend_from_slice(&ending.state.to_le_bytes());
            }
        }
        self.0.settle()
    }

    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.0.flush()
    }

    /// The process is over.
    pub fn finish(&mut self) -> Result<(), RecordError> {
        self.0.finish()
    }
}

pub struct StepReader {
    stream: StreamReader,
    peeked: Option<Step>,
    /// The same schedule with new checks of the process's state.
    rewritten: Option<Rewritten>,
}

/// New schedules, opened before the first instruction: afterwards a process that
/// replays may make no files.
struct Rewritten {
    own: StepWriter,
    /// Those of processes that will be forked, by number.
    others: BTreeMap<u32, StepWriter>,
}

impl StepReader {
    pub fn open(place: &Place) -> Result<Self, RecordError> {
        Ok(StepReader {
            stream: StreamReader::open(place)?,
            peeked: None,
            rewritten: None,
        })
    }

    /// Reads the schedule of the first process and writes it anew beside it: all
    /// that is read, but for checkpoints and the end, which `rewrite` adds. Those
    /// of the other processes are begun as well.
    pub fn open_to_rewrite(recording: &Recording) -> Result<Self, RecordError> {
        let begin = |number: u32| {
            let place = recording.process(number).join(super::NEW_SCHEDULE);
            StreamWriter::create_to_append(&place).map(StepWriter)
        };
        let mut others = BTreeMap::new();
        for number in recording.processes() {
            // One that was killed before it had begun has none.
            let schedule = recording.process(number).join("schedule");
            if number != 0 && schedule.is_file() {
                others.insert(number, begin(number)?);
            }
        }
        let mut reader = StepReader::open(&recording.process(0).join("schedule"))?;
        let own = begin(0)?;
        reader.rewritten = Some(Rewritten { own, others });
        Ok(reader)
    }

    /// This process has been forked and goes on as the one with this number.
    pub fn go_on_as(&mut self, number: u32, folder: &Place) -> Result<(), RecordError> {
        let mut reader = StepReader::open(&folder.join("schedule"))?;
        if let Some(Rewritten { mut others, .. }) = self.rewritten.take() {
            let own = others.remove(&number);
            let own = own.ok_or_else(|| RecordError::Ended(folder.path()))?;
            reader.rewritten = Some(Rewritten { own, others });
        }
        *self = reader;
        Ok(())
    }

    pub fn rewrites(&self) -> bool {
        self.rewritten.is_some()
    }

    /// Writes a check in place of the one just read; the end is the last one.
    pub fn rewrite(&mut self, step: &Step) -> Result<(), RecordError> {
        let Some(Rewritten { own, .. }) = &mut self.rewritten else {
            return Ok(());
        };
        own.push(step)?;
        match step {
            Step::End(_) => own.finish(),
            _ => Ok(()),
        }
    }

    /// The next step without taking it; `None` where the recording stops (a
    /// vm that was killed).
    pub fn peek(&mut self) -> Result<Option<&Step>, RecordError> {
        if self.peeked.is_none() {
            self.peeked = self.read()?;
        }
        Ok(self.peeked.as_ref())
    }

    /// Takes the next step.
    pub fn next_step(&mut self) -> Result<Option<Step>, RecordError> {
        let step = match self.peeked.take() {
            Some(step) => Some(step),
            None => self.read()?,
        };
        if let (Some(step), Some(Rewritten { own, .. })) = (&step, &mut self.rewritten)
            && !matches!(step, Step::Checkpoint(_) | Step::End(_))
        {
            own.push(step)?;
        }
        Ok(step)
    }

    fn read(&mut self) -> Result<Option<Step>, RecordError> {
        if self.stream.at_end()? {
            return Ok(None);
        }
        match self.read_step() {
            // The vm was killed while it wrote a step of several chunks.
            Err(RecordError::Ended(_)) if self.stream.was_cut() => Ok(None),
            other => other.map(Some),
        }
    }

    fn read_step(&mut self) -> Result<Step, RecordError> {
        let stream = &mut self.stream;
        let word = |bytes: Vec<u8>| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(&bytes);
            u64::from_le_bytes(word)
        };
        let step = match stream.byte()? {
            SLICE => {
                let thread = stream.number()? as u32;
                let instructions = stream.number()?;
                if instructions > LONGEST_SLICE {
                    let what = "a slice is longer than any that is recorded";
                    return Err(RecordError::damaged(stream.path(), what));
                }
                Step::Slice {
                    thread,
                    instructions,
                    check: Check::read(stream)?,
                }
            }
            CHECKPOINT => Step::Checkpoint(Box::new(Checkpoint::read(stream)?)),
            ADVANCE => Step::Advance(stream.number()?),
            SIGNAL => {
                let thread = stream.number()? as u32;
                let length = stream.number()? as usize;
                Step::Signal {
                    thread,
                    info: stream.bytes(length)?,
                }
            }
            MEMORY => Step::Memory,
            tag @ (EXITED | KILLED) => {
                let value = stream.number()? as i32;
                let state = word(stream.bytes(8)?);
                let status = if tag == EXITED {
                    ProcessStatus::Exited(value)
                } else {
                    ProcessStatus::Killed(value)
                };
                Step::End(Ending { status, state })
            }
            other => {
                let what = format!("unknown step {other}");
                return Err(RecordError::damaged(stream.path(), &what));
            }
        };
        Ok(step)
    }

    /// The process has ended: nothing follows.
    pub fn expect_end(&mut self) -> Result<(), RecordError> {
        self.stream.expect_end()
    }

    pub fn path(&self) -> &Path {
        self.stream.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Registers;

    #[test]
    fn a_slice_has_a_longest() {
        let folder = std::env::temp_dir().join(format!("deadheat-slices-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (instructions, is_read) in [
            (LONGEST_SLICE, true),
            (LONGEST_SLICE + 1, false),
            (u64::MAX, false),
        ] {
            let place = Place::of(&folder).join("schedule");
            place.remove().unwrap();
            let mut writer = StepWriter::create(&place).unwrap();
            let step = Step::Slice {
                thread: 1,
                instructions,
                check: Check::of(&Registers::default(), 0),
            };
            writer.push(&step).unwrap();
            writer.finish().unwrap();
            let read = StepReader::open(&place).unwrap().next_step();
            match is_read {
                true => assert_eq!(read.unwrap(), Some(step)),
                false => assert!(matches!(read, Err(RecordError::Damaged { .. })), "{read:?}"),
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
