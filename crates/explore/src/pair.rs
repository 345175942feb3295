//! Paired executions from the race point (paper 003, algorithm 1 and section
//! 4.4; design: only a difference inside a pair is the race's doing).

use crate::alone::{Follower, Scribe, Stints};
use crate::compare::{OutputComparison, OutputDifference};
use crate::consequence::{self, Finding, Scenes, Watching};
use crate::locks::LockCalls;
use crate::model::MemoryModel;
use crate::names;
use crate::policy::Schedule;
use crate::run::{self, Ending, Run};
use crate::volatile::{self, LeftOut};
use race::{Event, EventKind, Frame, Moment, Order};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use symbols::ModuleMap;
use vm::context::{Registers, reg};
use vm::observe::{AfterHook, Interest, Observer, SyscallEvent, ThreadEvent};
use vm::snapshot::{CopyError, Limits, Running};
use vm::{Error, Vm};

/// Instructions each thread may run to its next sequencer when states are
/// compared.
const REMAINDER: u64 = 100_000;

/// Events told of an execution.
const EVENTS: usize = 40;

/// The two accesses at the race point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poised {
    pub first: Moment,
    pub second: Moment,
}

impl Poised {
    /// The threads in the order in which they make their accesses.
    pub fn order(&self, swapped: bool) -> [u32; 2] {
        if swapped {
            [self.second.thread, self.first.thread]
        } else {
            [self.first.thread, self.second.thread]
        }
    }
}

/// What a pair shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing to tell the two apart.
    Same,
    /// One of the two violates a specification, the other does not.
    Violation {
        swapped: bool,
        ending: Ending,
    },
    Output(Box<OutputDifference>),
    /// They differ, in words, but not where this race alone is flipped: another race
    /// came out the other way round, or the schedule did.
    Elsewhere(String),
    /// At least one did not come to an end that says anything.
    Inconclusive(String),
}

impl Outcome {
    /// What differs, if something does.
    fn in_words(&self) -> Option<String> {
        match self {
            Outcome::Violation { ending, .. } => Some(format!("the program {}", ending.describe())),
            Outcome::Output(difference) => Some(format!(
                "{} is {} instead of {}",
                difference.name, difference.swapped, difference.recorded
            )),
            Outcome::Same | Outcome::Elsewhere(_) | Outcome::Inconclusive(_) => None,
        }
    }
}

/// Both orders under one schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    pub schedule: Schedule,
    pub outcome: Outcome,
    /// Digests of what the two showed.
    pub digests: [u64; 2],
    pub instructions: u64,
    /// What happened in each, where the outcome needs to be explained.
    pub orders: Vec<Order>,
    /// The violation that both orders end in, in words: not this race's doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both_violate: Option<String>,
    /// Rules that only one of the two broke.
    #[serde(default)]
    pub errors: [Vec<Finding>; 2],
    /// Rules that both broke: no doing of the race.
    #[serde(default)]
    pub common_errors: Vec<Finding>,
    /// What differs in the outputs and is no doing of the race.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// What is run and how far.
pub struct Plan<'a> {
    pub poised: Poised,
    /// Where threads may be preempted besides synchronisation.
    pub racy: &'a [u64],
    /// All instructions that are known to race.
    pub sites: &'a [u64],
    pub comparison: &'a dyn OutputComparison,
    pub model: &'a dyn MemoryModel,
    /// What is watched besides how it ends.
    pub watching: Option<&'a Watching>,
}

/// The two accesses in this order. One that is a call (`free`) is made by the
/// whole call.
pub fn make_accesses(vm: &mut Vm, plan: &Plan<'_>, swapped: bool) -> Result<(), Error> {
    plan.model.begin(vm);
    for thread in plan.poised.order(swapped) {
        reorder::make_access(vm, thread)?;
    }
    Ok(())
}

/// The two accesses, then the rest under the schedule.
pub fn play(
    vm: &mut Vm,
    plan: &Plan<'_>,
    swapped: bool,
    schedule: Schedule,
    limit: u64,
) -> Result<Run, Error> {
    let before = vm.instructions();
    make_accesses(vm, plan, swapped)?;
    go_on(vm, plan, schedule, limit, before)
}

/// To the end under the schedule, told from `before` on.
fn go_on(
    vm: &mut Vm,
    plan: &Plan<'_>,
    schedule: Schedule,
    limit: u64,
    before: u64,
) -> Result<Run, Error> {
    run::schedule(vm, schedule, plan.racy);
    to_the_end(vm, plan, limit, before)
}

fn to_the_end(vm: &mut Vm, plan: &Plan<'_>, limit: u64, before: u64) -> Result<Run, Error> {
    vm.leave_no_slices();
    let ending = run::finish(vm, limit)?;
    let mut findings = Vec::new();
    if let Some(watching) = plan.watching {
        if matches!(ending, Ending::Exited(_)) {
            watching.end();
        }
        findings = watching.findings();
    }
    Ok(Run {
        ending,
        instructions: vm.instructions() - before,
        outputs: vm.captured(),
        inputs: vm.inputs_taken(),
        findings,
    })
}

/// Runs it once more to read the stacks of what it found; what is none of the
/// program's own doing is dropped.
pub fn tell_findings(
    vm: &mut Vm,
    plan: &Plan<'_>,
    swapped: bool,
    schedule: Schedule,
    limit: u64,
    run: &mut Run,
) {
    if run.findings.is_empty() {
        return;
    }
    let stacks = answer(vm.copy(limits(), |vm| {
        let stacks = Scenes::watch(vm, &run.findings);
        play(vm, plan, swapped, schedule, limit)?;
        vm.take_observers();
        let stacks: Vec<(Moment, Vec<Frame>)> = stacks.take().into_iter().collect();
        Ok(stacks)
    }));
    if let Ok(stacks) = stacks {
        consequence::fill(&mut run.findings, &stacks.into_iter().collect());
    }
    consequence::keep_own(&mut run.findings);
}

fn answer<R>(running: Result<Running<Result<R, String>>, CopyError>) -> Result<R, String>
where
    R: serde::de::DeserializeOwned,
{
    running
        .and_then(|running| running.join())
        .map_err(|error| error.to_string())?
}

/// Both orders under one schedule, at the same time.
pub fn both(vm: &mut Vm, plan: &Plan<'_>, schedule: Schedule, limit: u64) -> Pair {
    let running = [false, true]
        .map(|swapped| vm.copy(limits(), |vm| play(vm, plan, swapped, schedule, limit)));
    let [mut recorded, mut swapped] =
        running.map(|running| answer(running).unwrap_or_else(Run::lost));
    for (order, run) in [(false, &mut recorded), (true, &mut swapped)] {
        tell_findings(vm, plan, order, schedule, limit, run);
    }
    let (errors, common_errors) = consequence::compare(&recorded.findings, &swapped.findings);
    let mut outcome = judge(plan, &recorded, &swapped, &errors);
    let mut left_out = Vec::new();
    if let Outcome::Output(difference) = &outcome {
        let told = told_apart(vm, plan, schedule, limit, [&recorded, &swapped], difference);
        left_out = told.left_out;
        outcome = match told.difference {
            Some(difference) => Outcome::Output(Box::new(difference)),
            None => same_or_open(&recorded, &swapped),
        };
    }
    if let Some(what) = outcome.in_words()
        && is_elsewhere(vm, plan, schedule, limit, &recorded)
    {
        outcome = Outcome::Elsewhere(what);
    }
    let mut pair = Pair {
        schedule,
        outcome,
        digests: [recorded.digest(), swapped.digest()],
        instructions: recorded.instructions,
        orders: Vec::new(),
        both_violate: [&recorded, &swapped]
            .iter()
            .all(|run| run.ending.violation().is_some())
            .then(|| recorded.ending.describe()),
        errors,
        common_errors,
        left_out,
    };
    explain(vm, plan, &mut pair, limit);
    pair
}

fn limits() -> Limits {
    // `play` sets the instructions itself.
    Limits {
        instructions: u64::MAX / 2,
        ..Limits::default()
    }
}

fn judge(plan: &Plan<'_>, recorded: &Run, swapped: &Run, errors: &[Vec<Finding>; 2]) -> Outcome {
    let violates = |run: &Run| run.ending.violation().is_some();
    match (violates(recorded), violates(swapped)) {
        (true, false) if !swapped.ending.is_open() => {
            return Outcome::Violation {
                swapped: false,
                ending: recorded.ending.clone(),
            };
        }
        (false, true) if !recorded.ending.is_open() => {
            return Outcome::Violation {
                swapped: true,
                ending: swapped.ending.clone(),
            };
        }
        _ => {}
    }
    for (order, other) in [(true, recorded), (false, swapped)] {
        if let Some(error) = errors[usize::from(order)].first()
            && !other.ending.is_open()
        {
            return Outcome::Violation {
                swapped: order,
                ending: Ending::Erred(Box::new(error.clone())),
            };
        }
    }
    if let Some(difference) = plan.comparison.compare(recorded, swapped) {
        return Outcome::Output(Box::new(difference));
    }
    same_or_open(recorded, swapped)
}

fn same_or_open(recorded: &Run, swapped: &Run) -> Outcome {
    let open = [recorded, swapped]
        .into_iter()
        .find(|run| run.ending.is_open());
    open.map_or(Outcome::Same, |run| {
        Outcome::Inconclusive(run.ending.describe())
    })
}

/// With this race alone flipped, and all else as in the recorded order, the
/// program does what it does in the recorded order. False also where that cannot be
/// played.
fn is_elsewhere(
    vm: &mut Vm,
    plan: &Plan<'_>,
    schedule: Schedule,
    limit: u64,
    recorded: &Run,
) -> bool {
    let told = answer(vm.copy(limits(), |vm| {
        let before = vm.instructions();
        make_accesses(vm, plan, false)?;
        run::schedule(vm, schedule, plan.racy);
        vm.preempt_at(plan.sites.iter().copied());
        let stints = Stints::default();
        let asks = schedule
            .policy()
            .map(|_| plan.racy.iter().copied().collect());
        vm.schedule_through(|inner| Box::new(Scribe::new(inner, asks, stints.clone())));
        let run = to_the_end(vm, plan, limit, before)?;
        Ok((run, stints.take()))
    }));
    let Ok((again, stints)) = told else {
        return false;
    };
    // Whoever writes down must change nothing.
    if again.digest() != recorded.digest() || again.ending != recorded.ending {
        return false;
    }
    let alone = answer(vm.copy(limits(), |vm| {
        let before = vm.instructions();
        make_accesses(vm, plan, true)?;
        vm.forget_last_slice();
        vm.preempt_at(plan.sites.iter().copied());
        let lost = Rc::new(Cell::new(false));
        vm.schedule_by(Box::new(Follower::new(stints, lost.clone())));
        let run = to_the_end(vm, plan, limit, before)?;
        Ok((run, lost.get()))
    }));
    let Ok((alone, false)) = alone else {
        return false;
    };
    let (errors, _) = consequence::compare(&recorded.findings, &alone.findings);
    errors.iter().all(Vec::is_empty)
        && recorded.ending.same_as(&alone.ending)
        && volatile::compare(recorded, &alone, None).0.is_none()
}

/// What two runs of a pair can be told apart by.
pub struct ToldApart {
    pub difference: Option<OutputDifference>,
    pub left_out: Vec<LeftOut>,
}

/// Leaves times and addresses out of the outputs of a pair that differs, playing
/// it again under another clock where that can tell something.
pub fn told_apart(
    vm: &mut Vm,
    plan: &Plan<'_>,
    schedule: Schedule,
    limit: u64,
    [recorded, swapped]: [&Run; 2],
    difference: &OutputDifference,
) -> ToldApart {
    let told = |(difference, left_out): (Option<OutputDifference>, BTreeSet<LeftOut>)| ToldApart {
        difference,
        left_out: left_out.into_iter().collect(),
    };
    let unchanged = ToldApart {
        difference: Some(difference.clone()),
        left_out: Vec::new(),
    };
    if recorded.outputs.is_empty() && swapped.outputs.is_empty() {
        return unchanged;
    }
    let without = volatile::compare(recorded, swapped, None);
    if without.0.is_none() {
        return told(without);
    }
    let mut counted = |swapped: bool| {
        answer(vm.copy(limits(), |vm| {
            vm.count_times();
            play(vm, plan, swapped, schedule, limit)
        }))
    };
    // What prints no time does the same under another clock.
    match counted(false) {
        Ok(one) if one.digest() != recorded.digest() && !one.ending.is_open() => {
            match counted(true) {
                Ok(other) if !other.ending.is_open() => {
                    told(volatile::compare(recorded, swapped, Some([&one, &other])))
                }
                _ => told(without),
            }
        }
        _ => told(without),
    }
}

/// Runs a pair that differs once more, to see stacks, bytes and events.
fn explain(vm: &mut Vm, plan: &Plan<'_>, pair: &mut Pair, limit: u64) {
    let difference = match &pair.outcome {
        Outcome::Output(difference) => Some(difference.clone()),
        Outcome::Violation { .. } => None,
        Outcome::Same | Outcome::Elsewhere(_) | Outcome::Inconclusive(_) => return,
    };
    let schedule = pair.schedule;
    let told: Vec<Result<(Run, Told), String>> = [false, true]
        .into_iter()
        .map(|swapped| {
            let stop_at = difference
                .as_ref()
                .and_then(|difference| difference.moments[usize::from(swapped)]);
            let window = difference
                .as_ref()
                .filter(|difference| difference.in_block)
                .map(|difference| (difference.name.clone(), difference.offset));
            answer(vm.copy(limits(), |vm| {
                let told = Rc::new(RefCell::new(Told::default()));
                vm.observe(Box::new(Narrator {
                    told: told.clone(),
                    modules: names::modules(vm),
                    locks: LockCalls::default(),
                    stop_at,
                }));
                if let Some((name, offset)) = window {
                    vm.keep_output_from(&name, offset);
                }
                let run = play(vm, plan, swapped, schedule, limit)?;
                vm.take_observers();
                Ok((run, told.take()))
            }))
        })
        .collect();
    let [Ok((recorded, first)), Ok((swapped, second))] = told.as_slice() else {
        return;
    };
    for (name, (run, told)) in ["recorded", "swapped"]
        .into_iter()
        .zip([(recorded, first), (swapped, second)])
    {
        let is_swapped = name == "swapped";
        let mut events = accesses(plan, is_swapped);
        events.extend(told.events.clone());
        let mut outcome = run.ending.describe();
        for error in &pair.errors[usize::from(is_swapped)] {
            outcome = format!("{}; {outcome}", error.describe());
        }
        pair.orders.push(Order {
            name: name.to_string(),
            events,
            outcome: Some(outcome),
        });
    }
    if let Some(mut difference) = difference {
        // What was not kept has no words: nothing was left out of it.
        if difference.in_block
            && let Some(closer) = plan.comparison.compare(recorded, swapped)
        {
            difference = Box::new(closer);
        }
        difference.stacks = [first.stack.clone(), second.stack.clone()];
        pair.outcome = Outcome::Output(difference);
    }
}

fn accesses(plan: &Plan<'_>, swapped: bool) -> Vec<Event> {
    plan.poised
        .order(swapped)
        .into_iter()
        .map(|thread| {
            let first = thread == plan.poised.first.thread;
            let moment = if first {
                plan.poised.first
            } else {
                plan.poised.second
            };
            Event {
                thread,
                kind: EventKind::Access,
                text: format!(
                    "makes the {} access",
                    if first { "first" } else { "second" }
                ),
                access: Some(u8::from(!first)),
                moment: Some(moment),
            }
        })
        .collect()
}

/// What was seen of an execution besides its outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    events: Vec<Event>,
    /// At the write asked for.
    stack: Vec<Frame>,
}

/// Notes switches, uses of locks, outputs and one stack.
struct Narrator {
    told: Rc<RefCell<Told>>,
    modules: Rc<ModuleMap>,
    locks: LockCalls,
    stop_at: Option<Moment>,
}

impl Narrator {
    fn note(&mut self, thread: u32, kind: EventKind, text: String, moment: Moment) {
        let mut told = self.told.borrow_mut();
        if told.events.len() < EVENTS {
            told.events.push(Event {
                thread,
                kind,
                text,
                access: None,
                moment: Some(moment),
            });
        }
    }
}

impl Observer for Narrator {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn code_mapped(&mut self, range: Range<u64>, _path: &Path, _offset: u64) -> Vec<u64> {
        self.locks.functions_in(&self.modules, &range)
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        let (function, lock) = (registers.rip, registers.gpr[reg::RDI]);
        let (follow, text) = self
            .locks
            .called(&self.modules, moment.thread, function, lock);
        if let Some(text) = text {
            self.note(moment.thread, EventKind::Release, text, moment);
        }
        match follow {
            true => AfterHook::TellReturn,
            false => AfterHook::Nothing,
        }
    }

    fn returned(&mut self, moment: Moment, _function: u64, _registers: &Registers) {
        if let Some(text) = self.locks.returned(&self.modules, moment.thread) {
            self.note(moment.thread, EventKind::Acquire, text, moment);
        }
    }

    fn syscall(&mut self, event: &SyscallEvent, registers: &Registers) {
        if self.stop_at == Some(event.moment) {
            self.told.borrow_mut().stack = names::stack(&self.modules, registers);
        }
        if event.number == libc::SYS_write as u64 && event.result > 0 {
            let length = (event.result as usize).min(60);
            let bytes = vm::memory::read_vec(event.arguments[1], length).unwrap_or_default();
            let text = format!(
                "write({}, \"{}\")",
                event.arguments[0] as i32,
                bytes.escape_ascii()
            );
            self.note(event.moment.thread, EventKind::Output, text, event.moment);
        }
    }

    fn thread(&mut self, moment: Moment, event: ThreadEvent) {
        match event {
            ThreadEvent::Switched { to, .. } => {
                self.note(
                    to,
                    EventKind::Switch,
                    format!("thread {to} goes on"),
                    moment,
                );
            }
            ThreadEvent::Exited { thread } => {
                self.note(
                    thread,
                    EventKind::End,
                    format!("thread {thread} ends"),
                    moment,
                );
            }
            ThreadEvent::Started { thread, parent } => {
                let text = format!("starts thread {thread}");
                self.note(parent, EventKind::Release, text, moment);
            }
            ThreadEvent::FutexWake { .. } => {}
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Whether both orders leave the very same state when each thread has come to
/// its next sequencer: registers, memory, what the kernel keeps, input and
/// output, time, and rules broken so far. Then all that follows is the same as
/// well.
pub fn leave_equal_states(vm: &mut Vm, plan: &Plan<'_>) -> bool {
    let states = [false, true].map(|swapped| {
        vm.copy(limits(), |vm| {
            to_next_sequencers(vm, plan, swapped)?;
            let found = plan.watching.map(Watching::findings).unwrap_or_default();
            let errors: Vec<_> = consequence::sites(&found).into_iter().collect();
            // Memory that only exists below the stack pointers counts as well:
            // equal is equal.
            let known = plan.watching.map(Watching::digest);
            Ok((vm.state_hash(), vm.kernel_state(), errors, known))
        })
    });
    let [one, other] = states.map(answer);
    one.is_ok() && one == other
}

/// The two accesses, then each of the two threads to its next sequencer.
fn to_next_sequencers(vm: &mut Vm, plan: &Plan<'_>, swapped: bool) -> Result<(), Error> {
    make_accesses(vm, plan, swapped)?;
    for thread in plan.poised.order(false) {
        vm.run_thread(thread, REMAINDER, true)?;
    }
    Ok(())
}

/// What the orders do that have left equal states: from there on one schedule
/// must do the same in both, whichever it is. If it does not, something that can
/// differ was not compared: a mistake of ours, in words.
pub fn go_different_ways(vm: &mut Vm, plan: &Plan<'_>, seed: u64, limit: u64) -> Option<String> {
    [Schedule::Recorded, Schedule::Random(seed)]
        .into_iter()
        .find_map(|schedule| {
            let runs = [false, true].map(|swapped| {
                answer(vm.copy(limits(), |vm| {
                    let before = vm.instructions();
                    to_next_sequencers(vm, plan, swapped)?;
                    go_on(vm, plan, schedule, limit, before)
                }))
            });
            let [Ok(recorded), Ok(swapped)] = runs else {
                return None;
            };
            parting(&recorded, &swapped).map(|what| format!("under {schedule} {what}"))
        })
}

fn parting(recorded: &Run, swapped: &Run) -> Option<String> {
    let sides = |one: String, other: String| Some(format!("{one}, and swapped {other}"));
    let sites = |run: &Run| -> Vec<_> { consequence::sites(&run.findings).into_iter().collect() };
    if recorded.ending != swapped.ending {
        sides(recorded.ending.describe(), swapped.ending.describe())
    } else if recorded.digest() != swapped.digest() {
        sides("it wrote one thing".into(), "another".into())
    } else if recorded.instructions != swapped.instructions {
        let words = |run: &Run| format!("it took {} instructions", run.instructions);
        sides(words(recorded), words(swapped))
    } else if sites(recorded) != sites(swapped) {
        sides("it broke some rules of memory".into(), "others".into())
    } else {
        None
    }
}
