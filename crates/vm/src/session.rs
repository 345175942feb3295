//! Starting a vm: to record a program, to replay a recording, or to just run.

use crate::guard::{FindAllocators, Guard};
use crate::io::{Io, ReplayBooks, tag};
use crate::kernel::Kernel;
use crate::loader::Program;
use crate::machine::{Pace, Vm};
use crate::processor::Processor;
use crate::record::{
    Files, InputReader, InputWriter, ProcessFacts, RecordError, Recording, StepReader, StepWriter,
};
use crate::schedule::{Policy, PolicyName, Random64};
use crate::thread::Thread;
use crate::tree::{Children, Tree};
use crate::{Error, ProgramError};
use crate::{fault, host_signals};
use folder::Place;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How to schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleChoice {
    pub policy: PolicyName,
    pub seed: u64,
    /// Instructions per slice, about.
    pub quantum: u64,
}

/// At three to five instructions per nanosecond this is some fifty
/// microseconds: a switch (a few microseconds, ten bytes of log) stays below a
/// tenth of it, and short programs still switch often.
pub const DEFAULT_QUANTUM: u64 = 200_000;

impl Default for ScheduleChoice {
    fn default() -> Self {
        ScheduleChoice {
            policy: PolicyName::Random,
            seed: 0,
            quantum: DEFAULT_QUANTUM,
        }
    }
}

impl Program {
    /// The program a shell would run for `command` (looked up in `PATH`
    /// unless it contains a slash), with this process's environment.
    pub fn find(command: &OsStr, arguments: &[&OsStr]) -> Result<Program, ProgramError> {
        let path = find_in_path(command)?;
        let mut full = vec![command.as_bytes().to_vec()];
        full.extend(
            arguments
                .iter()
                .map(|argument| argument.as_bytes().to_vec()),
        );
        Ok(Program {
            path,
            arguments: full,
            environment: std::env::vars_os()
                .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
                .collect(),
        })
    }
}

fn find_in_path(command: &OsStr) -> Result<PathBuf, ProgramError> {
    let executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if command.as_bytes().contains(&b'/') {
        let path = Path::new(command);
        return match path.metadata() {
            Err(error) => Err(ProgramError::CannotOpen {
                path: path.to_path_buf(),
                error,
            }),
            Ok(_) if executable(path) => Ok(path.to_path_buf()),
            Ok(data) if data.is_dir() => Err(ProgramError::NotExecutable {
                path: path.to_path_buf(),
                what: "it is a directory".into(),
            }),
            Ok(_) => Err(ProgramError::NotExecutable {
                path: path.to_path_buf(),
                what: "it has no permission to be executed (chmod +x)".into(),
            }),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    std::env::split_paths(&search)
        .map(|folder| folder.join(command))
        .find(|path| executable(path))
        .ok_or_else(|| ProgramError::NotFound(command.to_string_lossy().into_owned()))
}

impl Vm {
    /// A vm that runs `program` and writes `recording`.
    pub fn record(
        recording: &Recording,
        program: &Program,
        schedule: ScheduleChoice,
    ) -> Result<Vm, Error> {
        let policy = schedule.policy.build(schedule.seed, schedule.quantum);
        Self::record_under(recording, program, schedule.seed, policy, None)
    }

    /// The same under a policy of the caller's. `seed` is for what the program
    /// takes for random. If the manifest says so, every block is made larger by
    /// the functions of allocators that `find` finds.
    pub fn record_under(
        recording: &Recording,
        program: &Program,
        seed: u64,
        policy: Box<dyn Policy>,
        find: Option<FindAllocators>,
    ) -> Result<Vm, Error> {
        let folder = recording.create_process(0)?;
        let io = Io::Record {
            inputs: InputWriter::create(&folder.join("inputs"))?,
            files: Files::create(&recording.directory, 0),
        };
        let pace = Pace::Policy {
            policy,
            steps: Some(StepWriter::create(&folder.join("schedule"))?),
        };
        ProcessFacts {
            number: 0,
            parent: 0,
        }
        .write(&folder)?;
        let processor = Processor::host();
        processor.write(&recording.directory)?;
        let mut vm = Vm::new(io, pace, processor.clone())?;
        vm.tree = Some(Tree::new(recording.directory.clone(), Children::All)?);
        vm.leave_out(&recording.manifest.left_out);
        if let (Some(bytes), Some(find)) = (recording.manifest.guard, find) {
            vm.guard = Some(Guard::record(bytes, find, &recording.directory));
        }
        vm.start(program, seed)?;
        Ok(vm)
    }

    /// A vm that runs `program` and writes nothing down.
    pub fn live(program: &Program, schedule: ScheduleChoice) -> Result<Vm, Error> {
        let pace = Pace::Policy {
            policy: schedule.policy.build(schedule.seed, schedule.quantum),
            steps: None,
        };
        let mut vm = Vm::new(Io::Live, pace, Processor::host().clone())?;
        vm.tree = Some(Tree::new(PathBuf::new(), Children::All)?);
        vm.start(program, schedule.seed)?;
        Ok(vm)
    }

    /// A vm that runs the recorded execution of the first process again, or of the
    /// one that the recording is to be about (`Recording::of_process`).
    pub fn replay(recording: &Recording) -> Result<Vm, Error> {
        if recording.subject() > 0 {
            return Self::replay_process(recording, recording.subject());
        }
        Self::replay_with(recording, Children::None, StepReader::open)
    }

    /// A vm that runs the whole recorded process tree again. `run` returns in
    /// the first process only.
    pub fn replay_tree(recording: &Recording) -> Result<Vm, Error> {
        Self::replay_with(recording, Children::All, StepReader::open)
    }

    /// The same, where memory may be other than recorded: beside each schedule
    /// comes a new one with the state as it is now.
    pub(crate) fn rewrite_checks(recording: &Recording) -> Result<Vm, Error> {
        let steps = |_: &Place| StepReader::open_to_rewrite(recording);
        Self::replay_with(recording, Children::All, steps)
    }

    /// A vm that runs one process again: its ancestors up to the forks, then
    /// the process itself. Only its own output is shown.
    pub fn replay_process(recording: &Recording, process: u32) -> Result<Vm, Error> {
        let path = recording.path_to(process)?;
        Self::replay_with(recording, Children::Path(path), StepReader::open)
    }

    fn replay_with(
        recording: &Recording,
        children: Children,
        steps: impl FnOnce(&Place) -> Result<StepReader, RecordError>,
    ) -> Result<Vm, Error> {
        for number in recording.processes() {
            recording.check_ends(number)?;
        }
        let folder = recording.process(0);
        let io = Io::Replay {
            inputs: InputReader::open(&folder.join("inputs"))?,
            files: Files::open(&recording.directory, 0)?,
            books: Box::new(ReplayBooks::new(
                PathBuf::from(OsStr::from_bytes(&recording.manifest.directory)),
                recording
                    .directory
                    .join("manifest.json")
                    .metadata()
                    .and_then(|data| data.modified())
                    .ok(),
            )),
        };
        let pace = Pace::Follow(steps(&folder.join("schedule"))?);
        let processor = Processor::read(&recording.directory)?;
        let mut vm = Vm::new(io, pace, processor)?;
        vm.tree = Some(Tree::new(recording.directory.clone(), children)?);
        let manifest = &recording.manifest;
        vm.leave_out(&manifest.left_out);
        if let Some(bytes) = manifest.guard {
            vm.guard = Some(Guard::replay(bytes, &recording.directory)?);
        }
        let program = Program {
            path: OsStr::from_bytes(&manifest.program).into(),
            arguments: manifest.arguments.clone(),
            environment: manifest.environment.clone(),
        };
        vm.start(&program, manifest.seed)?;
        Ok(vm)
    }

    fn start(&mut self, program: &Program, seed: u64) -> Result<(), Error> {
        self.kernel = Kernel::default();
        // Canaries and hash seeds of the C library come from here: the same
        // seed gives the same execution.
        let mut random = Random64::new(seed ^ 0x5eed_da7a);
        let process = &mut self.kernel.process;
        process.start_random[..8].copy_from_slice(&random.next().to_le_bytes());
        process.start_random[8..].copy_from_slice(&random.next().to_le_bytes());
        let (_, facts) = self.io.external_bytes(tag::PROCESS, || {
            let nanoseconds = |clock| {
                // SAFETY: plain out-parameter.
                unsafe {
                    let mut time: libc::timespec = std::mem::zeroed();
                    libc::clock_gettime(clock, &mut time);
                    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
                }
            };
            let monotonic = nanoseconds(libc::CLOCK_MONOTONIC);
            // SAFETY: these calls have no preconditions.
            let facts = unsafe {
                [
                    monotonic,
                    nanoseconds(libc::CLOCK_REALTIME).saturating_sub(monotonic),
                    libc::getpid() as u64,
                    libc::getppid() as u64,
                    libc::getpgrp() as u64,
                    libc::getsid(0) as u64,
                    u64::from(libc::getuid()),
                    host_signals::ignored_at_start(),
                ]
            };
            (
                0,
                facts.iter().flat_map(|fact| fact.to_le_bytes()).collect(),
            )
        })?;
        let mut facts = facts.chunks_exact(8).map(|bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        let mut fact = || facts.next().unwrap_or(0);
        self.clock.monotonic_origin = fact();
        self.clock.realtime_offset = fact();
        let process = &mut self.kernel.process;
        process.pid = fact() as i32;
        process.parent = fact() as i32;
        process.group = fact() as i32;
        process.session = fact() as i32;
        process.user = fact() as u32;
        let ignored = fact();
        self.kernel.signals.ignore(ignored);
        if self.io.is_live() {
            host_signals::install()?;
            fault::note_foreign_signals();
            if let Some(tree) = &self.tree {
                tree.announce();
            }
        }
        self.read_limits()?;
        self.inherit_descriptors()?;
        let regs = self.load(program)?;
        self.guard_loaded_code();
        if let Some(error) = self.guard_failed.take() {
            return Err(error.into());
        }
        let id = self.kernel.process.next_thread();
        let mut thread = Thread::new(id, self.kernel.process.tid_of(id), regs);
        thread.name = self.program_name();
        self.threads.insert(id, thread);
        self.switch_to(id);
        Ok(())
    }
}
