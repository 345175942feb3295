//! A recording: a directory that holds everything needed to run a program
//! again exactly as it ran.
//!
//! | file | what |
//! | --- | --- |
//! | `manifest.json` | format, program, arguments, environment, schedule policy and seed |
//! | `processor.json` | what CPUID answers, and how the extended state is laid out |
//! | `files/` | copies of mapped files whose original may change, by hash |
//! | `N/process.json` | for process N: its parent |
//! | `N/files.json` | for process N: files it mapped, by hash |
//! | `N/schedule` | for process N: which thread ran for how many instructions, with checks of registers and memory |
//! | `N/inputs` | for process N: what came from outside, in order |
//!
//! Everything is created readable by its owner only: a recording contains the
//! program's memory and input. After paper 000, section 2, without its load
//! log (see the crate's documentation).

pub mod check;
mod files;
mod inputs;
mod redact;
mod steps;
pub mod stream;

pub use files::{FileIndex, Files, MappedFile};
pub use inputs::{Effect, InputReader, InputWriter};
pub(crate) use redact::NEW_SCHEDULE;
pub use redact::{RedactError, redact, secrets, variables};
pub(crate) use steps::LONGEST_SLICE;
pub use steps::{Ending, ProcessStatus, Step, StepReader, StepWriter};

use folder::Place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Version of the recording format. 2: streams have an end, checks include
/// the status flags, long repeated string instructions count by parts. 3: system
/// calls take time. 5: the processor is described. 6: checks name registers and
/// pages, small mapped files are copied. 7: programs have a vdso. 8: copying takes calls time.
pub const FORMAT: u16 = 8;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot write {path}: {error}")]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("{path} is damaged: {what}; make a new recording, or restore the file from a backup")]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{path} has format {found}, this deadheat reads format {FORMAT}; use the deadheat that made the recording, or record again"
    )]
    OtherFormat { path: PathBuf, found: u32 },
    #[error("{0} ends before the program did: the recording is incomplete from there on")]
    Ended(PathBuf),
    #[error(
        "{path} has changed since the recording was made, or is gone; install the version of its package that was there (`dpkg -S {path}` names the package), or record again; `deadheat pack`, while all files are as they were, copies such files into the recording"
    )]
    FileChanged { path: PathBuf },
    #[error("{0} exists already; give another directory, or remove it")]
    Exists(PathBuf),
    #[error(
        "{} is not a recording ({})", .0.display(),
        if .0.is_dir() { "it has no manifest.json" }
        else if .0.exists() { "it is a file; a recording is a folder" }
        else { "there is no such folder; `deadheat list` shows those of the store" }
    )]
    NotARecording(PathBuf),
    #[error(
        "{directory} has no process {number}: it has {}",
        match .last { 0 => "only one, number 0".to_string(), last => format!("those from 0 to {last}") }
    )]
    NoProcess {
        directory: PathBuf,
        number: u32,
        last: u32,
    },
}

impl RecordError {
    /// Nothing that could be asked for differently: there is no room.
    pub fn is_full_disk(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let RecordError::Write { error, .. } = self else {
            return false;
        };
        matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    pub fn exit_code(&self) -> i32 {
        match self.is_full_disk() {
            true => race::exit_code::FAILURE,
            false => race::exit_code::USAGE,
        }
    }

    pub fn write(path: &Path, error: io::Error) -> Self {
        RecordError::Write {
            path: path.to_path_buf(),
            error,
        }
    }

    pub fn read(path: &Path, error: io::Error) -> Self {
        RecordError::Read {
            path: path.to_path_buf(),
            error,
        }
    }

    pub fn damaged(path: &Path, what: &str) -> Self {
        RecordError::Damaged {
            path: path.to_path_buf(),
            what: what.to_string(),
        }
    }
}

fn check_format(path: &Path, found: u32) -> Result<(), RecordError> {
    if found == u32::from(FORMAT) {
        Ok(())
    } else {
        Err(RecordError::OtherFormat {
            path: path.to_path_buf(),
            found,
        })
    }
}

/// What was run and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The deadheat that made the recording.
    pub made_by: String,
    /// Absolute path of the program.
    #[serde(with = "bytes")]
    pub program: Vec<u8>,
    #[serde(with = "byte_lists")]
    pub arguments: Vec<Vec<u8>>,
    #[serde(with = "byte_lists")]
    pub environment: Vec<Vec<u8>>,
    #[serde(with = "bytes")]
    pub directory: Vec<u8>,
    pub schedule: String,
    pub seed: u64,
    pub quantum: u64,
    /// Calls that were not made (`deadheat whatif --remove-sync`); a replay
    /// does not make them either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Bytes added to every block that an allocator is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<u64>,
    /// Variables of the environment whose values were taken out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

impl Manifest {
    /// Of a run of this program, in the present directory.
    pub fn of(program: &crate::Program, schedule: String, seed: u64, quantum: u64) -> Manifest {
        let directory = std::env::current_dir().unwrap_or_default();
        Manifest {
            format: u32::from(FORMAT),
            made_by: format!("deadheat {}", env!("CARGO_PKG_VERSION")),
            program: program.path.as_os_str().as_bytes().to_vec(),
            arguments: program.arguments.clone(),
            environment: program.environment.clone(),
            directory: directory.as_os_str().as_bytes().to_vec(),
            schedule,
            seed,
            quantum,
            left_out: Vec::new(),
            guard: None,
            redacted: Vec::new(),
        }
    }
}

/// Calls of one function that return at once, without having done anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Where the function begins.
    pub function: u64,
    /// Return addresses of the calls, or of the calls that led to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<u64>,
    pub role: Role,
}

/// What a function is to a lock that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It takes the lock of its first argument. The call is left out if
    /// `callers` has it.
    Takes,
    /// It gives back the lock of its first argument. The call is left out if
    /// this thread's call that took it was.
    Gives,
    /// It gives back the lock of its second argument, waits, and takes it
    /// again. The call is made; the lock is held for good afterwards.
    Waits,
    /// It does neither. The call is left out if `callers` has it.
    Stands,
}

/// Byte strings as JSON text where they are UTF-8, else as arrays of numbers:
/// arguments and paths are bytes on Linux.
mod bytes {
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::fmt;

    /// What is read is not kept in another form meanwhile: a manifest from
    /// elsewhere can have megabytes of numbers.
    pub struct Bytes(pub Vec<u8>);

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(TextOrNumbers)
        }
    }

    struct TextOrNumbers;

    impl<'de> Visitor<'de> for TextOrNumbers {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a text or a list of bytes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
            Ok(Bytes(text.as_bytes().to_vec()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bytes, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element()? {
                bytes.push(byte);
            }
            Ok(Bytes(bytes))
        }
    }

    pub fn serialize<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(value) {
            Ok(text) => text.serialize(serializer),
            Err(_) => value.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        Ok(Bytes::deserialize(deserializer)?.0)
    }
}

mod byte_lists {
    use super::bytes::{self, Bytes};
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serialize, Serializer};
    use std::fmt;

    /// Arguments or variables that a program can have: the kernel gives them six
    /// megabytes, of which each takes a pointer and an end.
    const MOST: usize = 6 << 20 >> 3;

    struct Entry<'a>(&'a [u8]);

    impl Serialize for Entry<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            bytes::serialize(self.0, serializer)
        }
    }

    pub fn serialize<S: Serializer>(value: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(value.iter().map(|bytes| Entry(bytes)))
    }

    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<Vec<u8>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of texts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(Bytes(bytes)) = list.next_element()? {
                if all.len() == MOST {
                    return Err(A::Error::custom("no program can have so many"));
                }
                all.push(bytes);
            }
            Ok(all)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        deserializer.deserialize_seq(List)
    }
}

/// A recording's directory and what is in it by name.
#[derive(Debug, Clone)]
pub struct Recording {
    pub directory: PathBuf,
    pub manifest: Manifest,
    /// The process that replays and analyses are about; 0 is the first.
    subject: u32,
}

/// Numbers of the processes in a recording's folder.
pub(crate) fn processes_in(directory: &Path) -> Vec<u32> {
    let mut numbers: Vec<u32> = Place::of(directory)
        .names()
        .into_iter()
        .flatten()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

impl Recording {
    /// The program that was recorded.
    pub fn program_path(&self) -> PathBuf {
        std::ffi::OsStr::from_bytes(&self.manifest.program).into()
    }

    pub fn create(directory: &Path, manifest: Manifest) -> Result<Self, RecordError> {
        match folder::make(directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // An empty directory (mktemp -d) is welcome.
                let names = Place::of(directory).names();
                if !names.is_ok_and(|names| names.is_empty()) {
                    return Err(RecordError::Exists(directory.to_path_buf()));
                }
            }
            Err(error) => return Err(RecordError::write(directory, error)),
            Ok(_) => {}
        }
        let directory = directory
            .canonicalize()
            .map_err(|error| RecordError::read(directory, error))?;
        let recording = Recording {
            directory,
            manifest,
            subject: 0,
        };
        write_json(&recording.place("manifest.json"), &recording.manifest)?;
        Ok(recording)
    }

    pub fn open(directory: &Path) -> Result<Self, RecordError> {
        let place = Place::of(directory).join("manifest.json");
        let path = place.path();
        let text = match place.read(folder::TEXT) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(RecordError::NotARecording(directory.to_path_buf()));
            }
            other => other.map_err(|error| RecordError::read(&path, error))?,
        };
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = |error: serde_json::Error| RecordError::damaged(&path, &error.to_string());
        let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
        check_format(&path, version.format)?;
        let directory = directory
            .canonicalize()
            .map_err(|error| RecordError::read(directory, error))?;
        Ok(Recording {
            directory,
            manifest: serde_json::from_slice(&text).map_err(damaged)?,
            subject: 0,
        })
    }

    /// Fails if one of a process's streams is finished and the other is not:
    /// the vm writes both ends in one go, so it was cut short later.
    pub fn check_ends(&self, number: u32) -> Result<(), RecordError> {
        let folder = self.process(number);
        let streams = [folder.join("schedule"), folder.join("inputs")];
        let finished = [
            stream::is_finished(&streams[0])?,
            stream::is_finished(&streams[1])?,
        ];
        for (place, missing) in streams.iter().zip(finished.map(|finished| !finished)) {
            if missing && finished.contains(&true) {
                return Err(RecordError::damaged(
                    &place.path(),
                    "its end is missing although the recording was finished",
                ));
            }
        }
        Ok(())
    }

    /// The same recording, as one of its process `number`: `Vm::replay` replays that
    /// one, and moments are its own.
    pub fn of_process(&self, number: u32) -> Recording {
        Recording {
            subject: number,
            ..self.clone()
        }
    }

    /// The process that replays and analyses are about.
    pub fn subject(&self) -> u32 {
        self.subject
    }

    /// Where what is found out about the process in question is kept: `NAME.json`,
    /// or `NAME-3.json`.
    pub fn notes(&self, name: &str) -> Place {
        match (self.subject, name.rsplit_once('.')) {
            (0, _) | (_, None) => self.place(name),
            (number, Some((name, ending))) => self.place(&format!("{name}-{number}.{ending}")),
        }
    }

    /// A name in the recording's directory.
    pub fn place(&self, name: &str) -> Place {
        Place::of(&self.directory).join(name)
    }

    /// Directory of one process of the recording.
    pub fn process(&self, number: u32) -> Place {
        self.place(&number.to_string())
    }

    /// Makes the directory of a process.
    pub fn create_process(&self, number: u32) -> Result<Place, RecordError> {
        let place = self.process(number);
        create_folder(&place)?;
        Ok(place)
    }

    /// The numbers of all processes, ascending.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(&self.directory)
    }

    /// How many threads of a process have run.
    pub fn threads(&self, number: u32) -> Result<usize, RecordError> {
        let mut steps = StepReader::open(&self.process(number).join("schedule"))?;
        let mut seen = BTreeSet::new();
        while let Some(step) = steps.next_step()? {
            if let Step::Slice { thread, .. } = step {
                seen.insert(thread);
            }
        }
        Ok(seen.len())
    }

    /// How a process ended; none if the recording stops before.
    pub fn status(&self, number: u32) -> Result<Option<ProcessStatus>, RecordError> {
        let mut steps = StepReader::open(&self.process(number).join("schedule"))?;
        while let Some(step) = steps.next_step()? {
            if let Step::End(ending) = step {
                return Ok(Some(ending.status));
            }
        }
        Ok(None)
    }

    /// The processes from the first one down to `number`, each forked by the
    /// one before.
    pub fn path_to(&self, number: u32) -> Result<Vec<u32>, RecordError> {
        let known = self.processes();
        if !known.contains(&number) {
            return Err(RecordError::NoProcess {
                directory: self.directory.clone(),
                number,
                last: known.last().copied().unwrap_or(0),
            });
        }
        let mut path = vec![number];
        let mut at = number;
        while at != 0 {
            let folder = self.process(at);
            let facts = ProcessFacts::read(&folder)?;
            // A child's number is always larger than its parent's.
            if facts.number != at || facts.parent >= at {
                return Err(RecordError::damaged(
                    &folder.join("process.json").path(),
                    "it does not describe this process",
                ));
            }
            at = facts.parent;
            path.push(at);
        }
        path.reverse();
        Ok(path)
    }
}

/// What is known of a process besides its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    pub number: u32,
    /// The number of the process that forked it.
    pub parent: u32,
}

impl ProcessFacts {
    pub fn write(&self, folder: &Place) -> Result<(), RecordError> {
        write_json(&folder.join("process.json"), self)
    }

    pub fn read(folder: &Place) -> Result<Self, RecordError> {
        read_json(&folder.join("process.json"))
    }
}

/// Makes a directory that only its owner can read.
pub fn create_folder(place: &Place) -> Result<(), RecordError> {
    place
        .make_folder()
        .map_err(|error| RecordError::write(&place.path(), error))
}

/// Writes a small JSON file whole or not at all.
pub(crate) fn write_json<T: Serialize>(place: &Place, value: &T) -> Result<(), RecordError> {
    serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .and_then(|text| place.write(&text))
        .map_err(|error| RecordError::write(&place.path(), error))
}

/// Reads what [`write_json`] has written.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(place: &Place) -> Result<T, RecordError> {
    let text = place
        .read(folder::TEXT)
        .map_err(|error| RecordError::read(&place.path(), error))?;
    serde_json::from_slice(&text)
        .map_err(|error| RecordError::damaged(&place.path(), &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let program = crate::Program {
            path: "/bin/true".into(),
            arguments: vec![b"true".to_vec(), b"\xff\x00\x80".to_vec(), Vec::new()],
            environment: vec!["HOME=/caf\u{e9}".as_bytes().to_vec()],
        };
        Manifest::of(&program, "random".to_string(), 0, 1)
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let text = serde_json::to_string(&manifest()).unwrap();
        assert!(text.contains("[\"true\",[255,0,128],\"\"]"), "{text}");
        let read: Manifest = serde_json::from_str(&text).unwrap();
        assert_eq!(read, manifest());
    }

    #[test]
    fn more_arguments_than_a_program_can_have_are_refused() {
        let text = serde_json::to_string(&manifest()).unwrap();
        let many = "\"\",".repeat(1 << 20);
        let text = text.replace("[\"true\",", &format!("[{many}\"true\","));
        let error = serde_json::from_str::<Manifest>(&text).unwrap_err();
        assert!(error.to_string().contains("so many"), "{error}");
    }
}
