//! What if this lock were not there, or that one were?
//!
//! Paper 003, section 6.1, removes synchronisation from programs to see what
//! the races that appear do. Here the recorded program is run again, without
//! being compiled: under several schedules as it is (the control) and under the
//! same ones with the change. Without a lock, the calls that take it at the
//! given line return at once, and so do the calls that would give it back
//! (`vm::record::LeftOut`). With a lock more, a policy lets no thread into the
//! given lines while another is inside (`Fence`), and the detector draws the
//! edges that such a lock makes (`detect::AddedLock`). What is seen with the
//! change and never without it is the change's doing.
//!
//! Deviation: the runs take their input from outside, as the recorded run did,
//! and not from the recording: a run without a lock goes its own way, and what
//! it asks for need not be there. Runs with calls left out are recordings of
//! their own that say so; the recording that was asked about is not touched.

use crate::failure::Failure;
use crate::plan::{Known, Plan};
use crate::pool::{Lost, Pool};
use crate::trial::{Schedule, Seen, Subject};
use crate::{Error, discard};
use detect::{AddedLock, Inside, Options, Passing};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use race::{Frame, Moment, Report};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use symbols::ModuleMap;
use vm::context::Registers;
use vm::observe::{AfterHook, Interest, Observer};
use vm::record::{LeftOut, Recording, Role};
use vm::schedule::{Choice, Here, Policy, SliceEnd};
use vm::{Program, Vm, interruption};

/// Functions that can be left out, and what they are to a lock.
const FUNCTIONS: [(&str, Role); 26] = [
    ("pthread_mutex_lock", Role::Takes),
    ("pthread_mutex_trylock", Role::Takes),
    ("pthread_mutex_timedlock", Role::Takes),
    ("pthread_mutex_clocklock", Role::Takes),
    ("pthread_mutex_unlock", Role::Gives),
    ("pthread_spin_lock", Role::Takes),
    ("pthread_spin_trylock", Role::Takes),
    ("pthread_spin_unlock", Role::Gives),
    ("pthread_rwlock_rdlock", Role::Takes),
    ("pthread_rwlock_wrlock", Role::Takes),
    ("pthread_rwlock_tryrdlock", Role::Takes),
    ("pthread_rwlock_trywrlock", Role::Takes),
    ("pthread_rwlock_timedrdlock", Role::Takes),
    ("pthread_rwlock_timedwrlock", Role::Takes),
    ("pthread_rwlock_unlock", Role::Gives),
    ("pthread_cond_wait", Role::Waits),
    ("pthread_cond_timedwait", Role::Waits),
    ("pthread_cond_clockwait", Role::Waits),
    ("omp_set_lock", Role::Takes),
    ("omp_unset_lock", Role::Gives),
    ("pthread_barrier_wait", Role::Stands),
    ("sem_wait", Role::Stands),
    ("sem_timedwait", Role::Stands),
    ("sem_post", Role::Stands),
    ("GOMP_critical_start", Role::Stands),
    ("GOMP_critical_end", Role::Stands),
];

/// Frames looked at above a call.
const DEPTH: usize = 16;

/// Room for a frame that is made behind the entry of a section.
const FRAME: u64 = 1 << 16;

const PATIENCE: Duration = Duration::from_secs(60);

/// A run is taken for endless after this many instructions.
const LIMIT: u64 = 20_000_000_000;

/// A place in the source: a file by the end of its path, and lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines {
    pub file: String,
    pub lines: Range<u32>,
}

impl Lines {
    fn have(&self, frame: &Frame) -> bool {
        let file = frame
            .file
            .as_deref()
            .is_some_and(|file| Path::new(file).ends_with(&self.file));
        file && frame.line.is_some_and(|line| self.lines.contains(&line))
    }

    /// An access of the race is in these lines.
    pub fn touch(&self, race: &race::Race) -> bool {
        race.accesses.iter().any(|access| {
            let site = Frame {
                file: access.site.file.clone(),
                line: access.site.line,
                ..Frame::default()
            };
            self.have(&site) || access.stack.iter().any(|frame| self.have(frame))
        })
    }
}

/// What is different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    RemoveSync(Lines),
    AddLock(Lines),
}

/// How much is tried.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Schedules, each with and without the change.
    pub runs: u64,
    pub seed: u64,
    pub jobs: usize,
}

/// One run and its races.
#[derive(Debug, Clone)]
pub struct Tried {
    pub recording: PathBuf,
    pub failure: Option<Failure>,
    pub ending: String,
    pub report: Option<Report>,
}

/// All runs.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub control: Vec<Tried>,
    pub changed: Vec<Tried>,
    /// How detection must see recordings of changed runs.
    pub options: Options,
    /// Runs that could not be made or looked at, and why.
    pub lost: Vec<String>,
    /// Runs each way that were left when the work was over.
    pub left: u64,
}

/// Runs the program of `recording` with and without the change. Recordings are
/// made in `folder` and left there.
pub fn ask(
    recording: &Recording,
    change: &Change,
    settings: Settings,
    folder: &Path,
) -> Result<Answer, Error> {
    let manifest = &recording.manifest;
    let program = Program {
        path: OsStr::from_bytes(&manifest.program).into(),
        arguments: manifest.arguments.clone(),
        environment: manifest.environment.clone(),
    };
    let in_child = |work: &dyn Fn() -> Result<Code, String>| {
        detect::in_child(|| work().map_err(|why| (why, race::exit_code::USAGE)))
            .map_err(|error| Error::Run(error.to_string()))
    };
    let code = in_child(&|| match change {
        Change::RemoveSync(lines) => calls_at(recording, lines),
        Change::AddLock(lines) => section_at(recording, lines),
    })?;
    let mut answer = Answer {
        options: Options {
            added_lock: code.section(),
            ..Options::default()
        },
        ..Answer::default()
    };
    let directory = PathBuf::from(OsStr::from_bytes(&manifest.directory));
    let mut asked = Asked {
        program: &program,
        directory: &directory,
        code: &code,
        settings,
        folder,
        known: Known::default(),
        answer: &mut answer,
    };
    asked.run()?;
    Ok(answer)
}

/// The code that the change concerns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Code {
    left_out: Vec<LeftOut>,
    inside: Vec<u64>,
    exits: Vec<u64>,
    slack: u64,
}

impl Code {
    fn section(&self) -> Option<AddedLock> {
        (!self.inside.is_empty()).then(|| AddedLock {
            inside: self.inside.iter().copied().collect(),
            exits: self.exits.iter().copied().collect(),
            slack: self.slack,
        })
    }
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Seen(Box<Seen>),
    Report(Box<Report>),
}

struct Asked<'a> {
    program: &'a Program,
    directory: &'a Path,
    code: &'a Code,
    settings: Settings,
    folder: &'a Path,
    known: Known,
    answer: &'a mut Answer,
}

impl Asked<'_> {
    fn run(&mut self) -> Result<(), Error> {
        // The first pair shows where threads can be preempted.
        let mut numbers: VecDeque<u64> = (0..self.settings.runs.max(1)).collect();
        while !numbers.is_empty() {
            if interruption::is_over() {
                self.answer.left = numbers.len() as u64;
                break;
            }
            let first = numbers.len() as u64 == self.settings.runs.max(1);
            let batch = if first { 1 } else { self.settings.jobs.max(1) };
            let now: Vec<u64> = numbers.drain(..batch.min(numbers.len())).collect();
            for changed in [false, true] {
                self.batch(&now, changed)?;
            }
        }
        Ok(())
    }

    /// Runs these numbers at once, then looks for the races of each.
    fn batch(&mut self, numbers: &[u64], changed: bool) -> Result<(), Error> {
        let mut pool: Pool<Reply> = Pool::default();
        let mut tried: BTreeMap<u64, Tried> = BTreeMap::new();
        let none = Code::default();
        let code = if changed { self.code } else { &none };
        let section = code.section();
        let subject = Subject {
            program: self.program,
            seed: self.settings.seed,
            fail_if: None,
            racy: &[],
            limit: LIMIT,
            left_out: &code.left_out,
            section: section.as_ref(),
        };
        for number in numbers {
            let plan = Plan::of_number(*number, self.settings.seed, &self.known);
            let name = if changed { "changed" } else { "control" };
            let recording = self.folder.join(format!("{name}-{number}"));
            let target = recording.clone();
            let directory = self.directory;
            pool.start(*number, PATIENCE, || {
                // A directory that is gone is not needed, as a rule.
                let _ = std::env::set_current_dir(directory);
                subject
                    .run(&target, &Schedule::Planned(plan))
                    .map(|seen| Reply::Seen(Box::new(seen)))
            })
            .map_err(Error::Start)?;
            tried.insert(
                *number,
                Tried {
                    recording,
                    failure: None,
                    ending: String::new(),
                    report: None,
                },
            );
        }
        while !pool.is_empty() {
            let Some((number, reply)) = pool.wait() else {
                continue;
            };
            let lost = match (tried.get_mut(&number), reply) {
                (Some(one), Ok(Reply::Seen(seen))) => {
                    self.known.locked.raise_to(seen.locked);
                    self.known.calls.raise_to(seen.calls);
                    one.ending = seen.ending.describe();
                    one.failure = seen.failure;
                    continue;
                }
                (_, Err(Lost::Failed(why))) => why,
                (_, Err(Lost::Interrupted)) => {
                    tried.remove(&number);
                    continue;
                }
                (_, Err(Lost::TimedOut)) => {
                    format!("a run did not end within {} seconds", PATIENCE.as_secs())
                }
                _ => continue,
            };
            if let Some(one) = tried.remove(&number) {
                discard(&one.recording);
            }
            self.answer.lost.push(lost);
        }
        let options = if changed {
            self.answer.options.clone()
        } else {
            Options::default()
        };
        for (number, one) in &tried {
            let recording = one.recording.clone();
            let options = &options;
            pool.start(*number, 10 * PATIENCE, || {
                detect::detect(&recording, options)
                    .map(|report| Reply::Report(Box::new(report)))
                    .map_err(|error| error.to_string())
            })
            .map_err(Error::Start)?;
        }
        while !pool.is_empty() {
            match pool.wait() {
                Some((number, Ok(Reply::Report(report)))) => {
                    if let Some(one) = tried.get_mut(&number) {
                        one.report = Some(*report);
                    }
                }
                Some((_, Err(Lost::Failed(why)))) => self.answer.lost.push(why),
                _ => {}
            }
        }
        let list = if changed {
            &mut self.answer.changed
        } else {
            &mut self.answer.control
        };
        list.extend(tried.into_values());
        Ok(())
    }
}

/// Lets one thread at a time into a section.
pub struct Fence {
    policy: Box<dyn Policy>,
    lock: AddedLock,
    inside: Inside,
    waiting: VecDeque<(u32, u64)>,
}

impl Fence {
    pub fn new(policy: Box<dyn Policy>, lock: AddedLock) -> Self {
        Fence {
            policy,
            lock,
            inside: Inside::default(),
            waiting: VecDeque::new(),
        }
    }

    /// The thread is out; the next is in.
    fn leave(&mut self, thread: u32) {
        self.inside.leave(thread);
        if let Some((next, stack)) = self.waiting.pop_front() {
            self.inside.enter(next, stack);
        }
    }
}

impl Policy for Fence {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        if let Some((thread, SliceEnd::Exited)) = last
            && self.inside.threads().any(|inside| inside == thread)
        {
            self.leave(thread);
        }
        self.policy.choose(runnable, last)
    }

    fn at_sequencers(&self) -> bool {
        self.policy.at_sequencers()
    }

    fn is_exact(&self) -> bool {
        self.policy.is_exact()
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        self.policy.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let of_section = self.lock.inside.contains(&here.pc) || self.lock.exits.contains(&here.pc);
        if here.sequencer || !of_section {
            return self.policy.ends_here(here);
        }
        let thread = here.moment.thread;
        match self.lock.passes(&self.inside, thread, here.pc, here.stack) {
            Some(Passing::Enters) if self.inside.threads().next().is_some() => {
                self.waiting.push_back((thread, here.stack));
                true
            }
            Some(Passing::Enters) => {
                self.inside.enter(thread, here.stack);
                false
            }
            Some(Passing::Leaves) => {
                self.leave(thread);
                false
            }
            None => false,
        }
    }

    fn holds(&self, thread: u32) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == thread) || self.policy.holds(thread)
    }

    fn holds_somebody(&self) -> bool {
        !self.waiting.is_empty() || self.policy.holds_somebody()
    }

    fn lets_go(&mut self) -> bool {
        self.policy.lets_go()
    }
}

/// Watches calls of the functions that can be left out.
struct Calls {
    modules: ModuleMap,
    roles: BTreeMap<u64, Role>,
    lines: Lines,
    /// Return addresses by function.
    callers: BTreeMap<u64, BTreeSet<u64>>,
    /// Where else such calls are made.
    elsewhere: BTreeSet<String>,
}

impl Observer for Calls {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        self.modules.insert(range.clone(), path, offset);
        let mut found = Vec::new();
        for loaded in self.modules.modules() {
            if !loaded.range.contains(&range.start) {
                continue;
            }
            for (name, role) in FUNCTIONS {
                for function in loaded.module.functions_named(name) {
                    let start = function.start.wrapping_add(loaded.bias);
                    if !function.indirect && range.contains(&start) {
                        self.roles.insert(start, role);
                        found.push(start);
                    }
                }
            }
        }
        found
    }

    fn hook(&mut self, _moment: Moment, registers: &Registers) -> AfterHook {
        let named = matches!(
            self.roles.get(&registers.rip),
            Some(Role::Takes | Role::Stands)
        );
        if !named {
            return AfterHook::Nothing;
        }
        let machine = symbols::Registers {
            general: registers.gpr,
            rip: registers.rip,
        };
        let mut read = |address: u64| vm::memory::get::<u64>(address).ok();
        let pcs = self.modules.unwind(&machine, &mut read, DEPTH);
        let mut frames = Vec::new();
        for pc in pcs.into_iter().skip(1) {
            let here = self.modules.frames(pc, true);
            if here.iter().any(|frame| self.lines.have(frame)) {
                let callers = self.callers.entry(registers.rip).or_default();
                callers.insert(pc);
                return AfterHook::Nothing;
            }
            frames.extend(here);
        }
        if let Some(frame) = explore::own_frame(&frames).filter(|frame| frame.line.is_some()) {
            self.elsewhere.insert(explore::place(frame));
        }
        AfterHook::Nothing
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The calls that the recorded run made at these lines.
fn calls_at(recording: &Recording, lines: &Lines) -> Result<Code, String> {
    let mut vm = Vm::replay(recording).map_err(|error| error.to_string())?;
    vm.may_read_files();
    vm.mute();
    vm.observe(Box::new(Calls {
        modules: ModuleMap::new(),
        roles: BTreeMap::new(),
        lines: lines.clone(),
        callers: BTreeMap::new(),
        elsewhere: BTreeSet::new(),
    }));
    vm.run(None).map_err(|error| error.to_string())?;
    let calls = vm
        .take_observers()
        .pop()
        .and_then(|observer| observer.into_any().downcast::<Calls>().ok())
        .ok_or("the replay lost its observer")?;
    if calls.callers.is_empty() {
        let mut places: Vec<String> = calls.elsewhere.into_iter().collect();
        places.truncate(12);
        let rest = match places.is_empty() {
            true => "it makes no call of a lock at all that can be left out (locks of \
                     inlined atomics, such as Rust's, cannot)"
                .to_string(),
            false => format!("it does at: {}", places.join(", ")),
        };
        return Err(format!(
            "the recorded run takes no lock at {}:{}; {rest}",
            lines.file, lines.lines.start
        ));
    }
    let left_out = calls
        .roles
        .into_iter()
        .filter_map(|(function, role)| {
            let callers: Vec<u64> = calls
                .callers
                .get(&function)
                .into_iter()
                .flatten()
                .copied()
                .collect();
            let counts = !callers.is_empty() || matches!(role, Role::Gives | Role::Waits);
            counts.then_some(LeftOut {
                function,
                callers,
                role,
            })
        })
        .collect();
    Ok(Code {
        left_out,
        ..Code::default()
    })
}

/// The instructions of these lines, and those that follow on them.
fn section_at(recording: &Recording, lines: &Lines) -> Result<Code, String> {
    let mut vm = Vm::replay(recording).map_err(|error| error.to_string())?;
    vm.may_read_files();
    vm.mute();
    vm.run(None).map_err(|error| error.to_string())?;
    let modules = explore::modules(&vm);
    let (mut inside, mut exits) = (BTreeSet::new(), BTreeSet::new());
    let mut slack = 0;
    for loaded in modules.modules() {
        if !loaded.module.has_debug_info() {
            continue;
        }
        for function in loaded.module.functions() {
            let of_file = loaded.module.frames(function.start).iter().any(|frame| {
                frame
                    .file
                    .as_deref()
                    .is_some_and(|file| Path::new(file).ends_with(&lines.file))
            });
            let bytes = loaded
                .module
                .bytes_at(function.start, function.size as usize);
            let (true, Some(bytes)) = (of_file, bytes) else {
                continue;
            };
            let decoded: Vec<Instruction> =
                Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE)
                    .into_iter()
                    .collect();
            let of_lines: BTreeSet<u64> = decoded
                .iter()
                .map(Instruction::ip)
                .filter(|pc| {
                    let frames = loaded.module.frames(*pc);
                    frames.iter().any(|frame| lines.have(frame))
                })
                .collect();
            if of_lines.contains(&function.start) {
                slack = FRAME;
            }
            for instruction in decoded.iter().filter(|one| of_lines.contains(&one.ip())) {
                let place = instruction.ip().wrapping_add(loaded.bias);
                if instruction.flow_control() == FlowControl::Return {
                    exits.insert(place);
                    continue;
                }
                inside.insert(place);
                for next in followers(instruction) {
                    if !of_lines.contains(&next) {
                        exits.insert(next.wrapping_add(loaded.bias));
                    }
                }
            }
        }
    }
    if inside.is_empty() {
        return Err(format!(
            "there is no code at {}:{}-{} in the recorded program (debug info is needed: -g)",
            lines.file,
            lines.lines.start,
            lines.lines.end - 1
        ));
    }
    Ok(Code {
        inside: inside.into_iter().collect(),
        exits: exits.into_iter().collect(),
        slack,
        ..Code::default()
    })
}

/// Where control goes from an instruction, within its function.
fn followers(instruction: &Instruction) -> impl Iterator<Item = u64> {
    let (next, branch) = match instruction.flow_control() {
        FlowControl::UnconditionalBranch => (None, Some(instruction.near_branch_target())),
        FlowControl::ConditionalBranch => (
            Some(instruction.next_ip()),
            Some(instruction.near_branch_target()),
        ),
        FlowControl::Return | FlowControl::IndirectBranch => (None, None),
        _ => (Some(instruction.next_ip()), None),
    };
    next.into_iter().chain(branch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm::schedule::PolicyName;

    fn here(thread: u32, pc: u64) -> Here {
        Here {
            moment: Moment::new(thread, 1),
            pc,
            stack: 1_000,
            sequencer: false,
        }
    }

    #[test]
    fn one_at_a_time_and_in_turn() {
        let lock = AddedLock {
            inside: [10, 11].into(),
            exits: [12].into(),
            slack: 0,
        };
        let mut fence = Fence::new(PolicyName::RoundRobin.build(0, 100), lock);
        assert!(!fence.ends_here(&here(1, 10)));
        assert!(fence.ends_here(&here(2, 10)), "the second waits");
        assert!(fence.ends_here(&here(3, 10)));
        assert!(fence.holds(2) && fence.holds(3) && !fence.holds(1));
        assert!(!fence.ends_here(&here(1, 11)));
        assert!(!fence.ends_here(&here(1, 12)));
        assert!(!fence.holds(2) && fence.holds(3));
        assert!(!fence.ends_here(&here(2, 12)));
        assert!(!fence.holds(3));
    }

    #[test]
    fn files_are_named_by_the_end_of_their_path() {
        let lines = Lines {
            file: "src/a.c".into(),
            lines: 3..6,
        };
        let frame = |file: &str, line| Frame {
            file: Some(file.into()),
            line: Some(line),
            ..Frame::default()
        };
        assert!(lines.have(&frame("/x/src/a.c", 5)));
        assert!(!lines.have(&frame("/x/src/a.c", 6)));
        assert!(!lines.have(&frame("/x/other/a.c", 5)));
        assert!(!lines.have(&frame("/x/src/aa.c", 5)));
    }
}
