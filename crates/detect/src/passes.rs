//! The three passes over a recording, one after the other. The first can be had
//! while the recording is made (`FirstLook`), which saves a replay.

use crate::added_lock::AddedLock;
use crate::engine::{Checker, Engine, HappensBefore, KernelEdges};
use crate::find::{Candidates, Finder};
use crate::findings::{self, Found, ThreadFacts};
use crate::fork::{ForkError, in_child, silence_output};
use crate::history::{Historian, Pair, Spot};
use crate::scene::{self, Scene, Wanted};
use crate::shadow::ShadowError;
use race::{Evidence, Report};
use serde::{Deserialize, Serialize};
use std::path::Path;
use symbols::{ModuleMap, Roles};
use vm::record::{ProcessStatus, RecordError, Recording};
use vm::{Stop, Vm, interruption};

/// What to look for and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub happens_before: HappensBefore,
    pub kernel_edges: KernelEdges,
    /// Functions whose edges are not drawn, by symbol: what they order is
    /// reported as if nothing did. For trying what becomes of false reports
    /// (paper 003, section 6.2).
    pub forget_sync: Vec<String>,
    /// A lock that the recorded run was kept to, though the program has none.
    pub added_lock: Option<AddedLock>,
    /// Every access is told to the first pass, also those that translated code
    /// could note by itself: slow, and what that is checked against.
    pub tell_all: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] RecordError),
    #[error(transparent)]
    Pass(#[from] ForkError),
}

impl Error {
    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Recording(error) => error.exit_code(),
            Error::Pass(ForkError::Failed { code, .. }) => *code,
            Error::Pass(_) => race::exit_code::FAILURE,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Vm(#[from] vm::Error),
    #[error(transparent)]
    Shadow(#[from] ShadowError),
    #[error("the analysis was lost on the way")]
    Lost,
}

/// None if the work was over before the pass was done: what it would have said
/// is left.
fn unless_interrupted<T>(pass: Result<T, ForkError>) -> Result<Option<T>, Error> {
    match pass {
        Ok(found) => Ok(Some(found)),
        Err(ForkError::Interrupted) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl From<PassError> for (String, i32) {
    fn from(error: PassError) -> Self {
        let code = match &error {
            PassError::Vm(error) => error.exit_code(),
            _ => race::exit_code::FAILURE,
        };
        (error.to_string(), code)
    }
}

/// What the first pass sends back.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct First {
    candidates: Candidates,
    not_checked: Vec<String>,
    /// Exit code of the program; absent if the recording stops before its
    /// end.
    program: Option<i32>,
}

/// The first pass over a run, made while it was recorded. It sees what it would
/// see in a replay, because observing changes nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FirstLook(First);

impl FirstLook {
    /// Begins to look at a run that is about to be recorded. Where that is not
    /// possible (no room for shadow memory) the recording is looked at later.
    pub fn begin(vm: &mut Vm, options: &Options) {
        if let Ok(finder) = Finder::new() {
            vm.observe(engine(finder, options));
        }
    }

    /// What there was to see, of a run that has stopped so.
    pub fn end(vm: &mut Vm, stop: Stop) -> Option<FirstLook> {
        let engine = take_engine(vm).ok()?;
        Some(FirstLook(first_of(engine, exit_code(stop))))
    }
}

/// The exit code of a run that ended so; none if it did not end.
pub fn exit_code(stop: Stop) -> Option<i32> {
    match stop {
        Stop::Ended(ProcessStatus::Exited(code)) => Some(code),
        Stop::Ended(ProcessStatus::Killed(signal)) => Some(128 + signal),
        Stop::Reached(_) | Stop::RecordingEnds | Stop::Stuck { .. } | Stop::Limit => None,
    }
}

/// Makes the execution to look at: the recorded one, or another that is the
/// same each time it is made.
pub type Start<'a> = &'a dyn Fn(&Recording) -> Result<Vm, vm::Error>;

/// What a pass leaves: its engine, how the program ended, and the vm.
type Passed<C> = (Box<Engine<C>>, Option<i32>, Vm);

/// Runs the execution under an engine.
fn run<C: Checker + 'static>(
    recording: &Recording,
    start: Start<'_>,
    checker: C,
    options: &Options,
) -> Result<Passed<C>, PassError> {
    silence_output();
    let mut vm = start(recording)?;
    vm.may_read_files();
    vm.observe(engine(checker, options));
    let stop = vm.run(None)?;
    Ok((take_engine(&mut vm)?, exit_code(stop), vm))
}

fn engine<C: Checker>(checker: C, options: &Options) -> Box<Engine<C>> {
    let mut engine = Engine::new(checker, options.happens_before);
    engine.draw_kernel_edges(options.kernel_edges);
    engine.code.forget(&options.forget_sync);
    if let Some(lock) = &options.added_lock {
        engine.add_lock(lock.clone());
    }
    engine.tell_all = options.tell_all;
    Box::new(engine)
}

fn take_engine<C: Checker + 'static>(vm: &mut Vm) -> Result<Box<Engine<C>>, PassError> {
    let observer = vm.take_observers().pop().ok_or(PassError::Lost)?;
    let engine = observer.into_any().downcast::<Engine<C>>();
    engine.map_err(|_| PassError::Lost)
}

fn first_pass(
    recording: &Recording,
    start: Start<'_>,
    options: &Options,
) -> Result<First, PassError> {
    let (engine, program, _) = run(recording, start, Finder::new()?, options)?;
    Ok(first_of(engine, program))
}

fn first_of(engine: Box<Engine<Finder>>, program: Option<i32>) -> First {
    let mut not_checked = engine.not_checked;
    let candidates = engine.checker.finish();
    if program.is_none() {
        not_checked.push("the recording stops before the program ended".into());
    }
    if candidates.left_out > 0 {
        not_checked.push(format!(
            "{} more racy accesses to addresses beyond the first million were not followed up",
            candidates.left_out
        ));
    }
    First {
        candidates,
        not_checked,
        program,
    }
}

fn second_pass(
    recording: &Recording,
    start: Start<'_>,
    candidates: Candidates,
    options: &Options,
) -> Result<Found, PassError> {
    let (mut engine, _, vm) = run(recording, start, Historian::new(candidates)?, options)?;
    let map = scene::modules(&vm);
    let mut roles = Roles::default();
    for pair in engine.checker.pairs.values_mut() {
        pair.asks_callers = asks_callers(&map, &mut roles, pair);
        if !pair.asks_callers {
            pair.samples.kept.truncate(1);
        }
        for side in pair.samples.kept.iter_mut().flat_map(|(_, sides)| sides) {
            side.spins = engine.code.spins(side.pc);
            side.decides = engine.code.feeds_branch(side.pc);
        }
    }
    let checker = &engine.checker;
    let home_made: Vec<_> = checker
        .pairs
        .iter()
        .filter(|(_, pair)| checker.is_home_made(pair))
        .map(|(key, _)| *key)
        .collect();
    for key in home_made {
        if let Some(pair) = engine.checker.pairs.get_mut(&key) {
            pair.home_made = true;
        }
    }
    let threads = engine
        .threads()
        .map(|thread| ThreadFacts {
            number: thread.number,
            name: thread.name.clone(),
            created: thread.created,
            stack: thread.stack.clone(),
        })
        .collect();
    let checker = engine.checker;
    let mut pairs: Vec<_> = checker.pairs.into_values().collect();
    pairs.sort_by_key(|pair| {
        let [one, other] = pair.sides();
        (other.order, one.order, one.pc, other.pc, pair.address)
    });
    Ok(Found {
        pairs,
        pairs_left_out: checker.pairs_left_out,
        lock_problems_left_out: checker.locks.problems_left_out,
        lock_orders_left_out: checker.locks.gave_up(),
        lock_problems: checker.locks.problems,
        threads,
    })
}

/// The accesses of a pair have to be looked at one by one: code alone does not say
/// who chose the object, or which it is.
fn asks_callers(map: &ModuleMap, roles: &mut Roles, pair: &Pair) -> bool {
    if pair.spot == Spot::MoreAddresses {
        return true;
    }
    let variable = map.variable_over(pair.address, pair.size);
    let variable = variable.filter(|_| pair.block.is_none());
    let object = variable.map(|found| found.start..found.start.saturating_add(found.size));
    let [one, other] = pair.sides().each_ref().map(|side| side.pc);
    [one, other]
        .into_iter()
        .any(|pc| roles.asks_callers(map, pc, object.as_ref(), &mut scene::read_word))
}

fn third_pass(
    recording: &Recording,
    start: Start<'_>,
    wanted: Vec<Wanted>,
) -> Result<Vec<(Wanted, Scene)>, PassError> {
    silence_output();
    let mut vm = start(recording)?;
    vm.may_read_files();
    Ok(scene::visit(&mut vm, wanted)?)
}

/// The races of the recording in `directory`.
///
/// # Errors
/// When there is no recording, or a replay of it fails.
pub fn detect(directory: &Path, options: &Options) -> Result<Report, Error> {
    detect_in(directory, options, &Vm::replay)
}

/// The races of all processes of the recording in `directory`, the first of
/// which may have been looked at before; a process whose execution cannot be made again is named in what was not checked.
///
/// # Errors
/// When there is no recording, or a replay of its first process fails.
pub fn detect_tree(
    directory: &Path,
    options: &Options,
    look: Option<FirstLook>,
) -> Result<Report, Error> {
    let mut report = second_look(directory, options, &Vm::replay, look)?;
    let recording = Recording::open(directory)?;
    let mut looked_at = 0;
    for number in recording
        .processes()
        .into_iter()
        .filter(|number| *number > 0)
    {
        let said = match recording.threads(number) {
            Ok(threads) if threads < 2 => continue,
            Ok(_) if interruption::is_over() => {
                report.leave(format!("races in process {number} of the recording"));
                continue;
            }
            Ok(_) if looked_at == MOST_PROCESSES => "there are too many".to_string(),
            Err(error) => error.to_string(),
            Ok(_) => {
                looked_at += 1;
                let start: Start<'_> = &|recording| Vm::replay_process(recording, number);
                match detect_in(directory, options, start) {
                    Ok(found) => {
                        add_process(&mut report, number, found);
                        continue;
                    }
                    Err(error) => error.to_string(),
                }
            }
        };
        report
            .not_checked
            .push(format!("process {number} of the recording: {said}"));
    }
    Ok(report)
}

/// Processes besides the first in which races are looked for.
const MOST_PROCESSES: usize = 64;

/// What was found in another process than the first. The same race in several
/// of them is one.
fn add_process(report: &mut Report, number: u32, found: Report) {
    for sentence in found.not_checked {
        if !report.not_checked.contains(&sentence) {
            report.not_checked.push(sentence);
        }
    }
    report.leave_all(found.cut_short);
    report.locks.extend(found.locks);
    for mut race in found.races {
        let known = report
            .races
            .iter_mut()
            .find(|known| known.fingerprint == race.fingerprint && known.process.is_some());
        if let Some(known) = known {
            known.instances += race.instances;
            known.join_objects(&race);
            continue;
        }
        race.id = report.races.len() as u32 + 1;
        race.process = Some(number);
        race.replay.clear();
        for access in &mut race.accesses {
            if let (Some(moment), [recording, ..]) =
                (access.moment.take(), report.recordings.as_slice())
            {
                race.replay.push(format!(
                    "deadheat replay {recording} --process {number} --until {moment}"
                ));
            }
        }
        race.evidence.push(Evidence {
            id: race.evidence.len() as u32 + 1,
            text: format!("in process {number} of the recording, and so are its moments"),
            instance: None,
            replay: None,
        });
        report.races.push(race);
    }
}

/// The races of another execution of the program recorded in `directory`,
/// which `start` makes: moments in the report are those of that execution.
///
/// # Errors
/// When there is no recording, or the execution cannot be made or fails.
pub fn detect_in(directory: &Path, options: &Options, start: Start<'_>) -> Result<Report, Error> {
    second_look(directory, options, start, None)
}

fn second_look(
    directory: &Path,
    options: &Options,
    start: Start<'_>,
    look: Option<FirstLook>,
) -> Result<Report, Error> {
    let recording = Recording::open(directory)?;
    let first = match look {
        Some(FirstLook(first)) => Some(first),
        None => unless_interrupted(in_child(|| first_pass(&recording, start, options)))?,
    };
    let mut report = Report::new(
        "vm",
        recording
            .manifest
            .arguments
            .iter()
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect(),
    );
    report.recordings.push(directory.display().to_string());
    let Some(first) = first else {
        report.leave("all races: nothing was looked for".into());
        return Ok(report);
    };
    report.exit.program = first.program;
    report.not_checked = first.not_checked;
    let candidates = first.candidates;
    if candidates.is_empty() {
        return Ok(report);
    }
    let words = candidates.racy.len();
    let second = in_child(|| second_pass(&recording, start, candidates, options));
    let Some(found) = unless_interrupted(second)? else {
        report.leave(format!(
            "the races on {words} words of memory: threads race there, where in the program was \
             not looked up"
        ));
        return Ok(report);
    };
    if found.lock_orders_left_out {
        let said = "too many orders of locks: not all were searched for inversions";
        report.not_checked.push(said.to_string());
    }
    if !found.pairs.is_empty() || !found.lock_problems.is_empty() {
        let wanted = findings::wanted(&found);
        let third = in_child(|| third_pass(&recording, start, wanted));
        let scenes = unless_interrupted(third)?.unwrap_or_else(|| {
            report.leave("stacks and values of the races".into());
            Vec::new()
        });
        findings::fill(&mut report, &found, &scenes, directory);
    }
    Ok(report)
}
