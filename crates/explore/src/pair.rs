//! Paired executions from the race point (paper 003, algorithm 1 and section
//! 4.4; design: only a difference inside a pair is the race's doing).

use crate::compare::{OutputComparison, OutputDifference};
use crate::consequence::{self, Finding, Scenes, Watching};
use crate::locks::LockCalls;
use crate::model::MemoryModel;
use crate::names;
use crate::policy::Schedule;
use crate::run::{self, Ending, Run};
use race::{Event, EventKind, Frame, Moment, Order};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
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
    /// At least one did not come to an end that says anything.
    Inconclusive(String),
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
}

/// What is run and how far.
pub struct Plan<'a> {
    pub poised: Poised,
    /// Where threads may be preempted besides synchronisation.
    pub racy: &'a [u64],
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
    run::schedule(vm, schedule, plan.racy);
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
    let outcome = judge(plan, &recorded, &swapped, &errors);
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
    for run in [recorded, swapped] {
        if run.ending.is_open() {
            return Outcome::Inconclusive(run.ending.describe());
        }
    }
    Outcome::Same
}

/// Runs a pair that differs once more, to see stacks, bytes and events.
fn explain(vm: &mut Vm, plan: &Plan<'_>, pair: &mut Pair, limit: u64) {
    let difference = match &pair.outcome {
        Outcome::Output(difference) => Some(difference.clone()),
        Outcome::Violation { .. } => None,
        Outcome::Same | Outcome::Inconclusive(_) => return,
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
/// its next sequencer: then all that follows is the same as well.
pub fn leave_equal_states(vm: &mut Vm, plan: &Plan<'_>) -> bool {
    // A system call changes the kernel, which the state does not show.
    for thread in plan.poised.order(false) {
        let at = vm.registers(thread).map_or(0, |regs| regs.rip);
        if vm::memory::get::<[u8; 2]>(at).is_ok_and(|code| code == [0x0f, 0x05]) {
            return false;
        }
    }
    let states = [false, true].map(|swapped| {
        vm.copy(limits(), |vm| {
            to_next_sequencers(vm, plan, swapped)?;
            let counts = plan.poised.order(false).map(|thread| vm.executed(thread));
            let found = plan.watching.map(Watching::findings).unwrap_or_default();
            let errors: Vec<_> = consequence::sites(&found).into_iter().collect();
            // Memory that only exists below the stack pointers counts as well:
            // equal is equal.
            Ok((vm.state_hash(), counts, vm.threads.len(), errors))
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
/// must do the same in both. If it does not, something that can differ was not
/// compared: a mistake of ours, in words.
pub fn go_different_ways(vm: &mut Vm, plan: &Plan<'_>, limit: u64) -> Option<String> {
    let runs = [false, true].map(|swapped| {
        answer(vm.copy(limits(), |vm| {
            let before = vm.instructions();
            to_next_sequencers(vm, plan, swapped)?;
            vm.forget_last_slice();
            let ending = run::finish(vm, limit)?;
            Ok(Run {
                ending,
                instructions: vm.instructions() - before,
                outputs: vm.captured(),
                inputs: vm.inputs_taken(),
                findings: Vec::new(),
            })
        }))
    });
    let [Ok(recorded), Ok(swapped)] = runs else {
        return None;
    };
    let sides = |one: String, other: String| Some(format!("{one}, and swapped {other}"));
    if recorded.ending != swapped.ending {
        sides(recorded.ending.describe(), swapped.ending.describe())
    } else if recorded.digest() != swapped.digest() {
        sides("it wrote one thing".into(), "another".into())
    } else if recorded.instructions != swapped.instructions {
        let words = |run: &Run| format!("it took {} instructions", run.instructions);
        sides(words(&recorded), words(&swapped))
    } else {
        None
    }
}
