//! How a recorded run failed by itself: a crash, a deadlock, a hang, whether or
//! not a race was seen.
//!
//! A crash is read off the replay's end. A run that was ended from outside is
//! looked at where it stood: threads that hold one another's locks are a deadlock,
//! and the run hangs if nothing can change any more. The loops of paper 003,
//! section 4.2, are told by what they touch (`spin`), which may be wrong about a
//! loop that counts. Here a program is ended for it, so it is proved: under one
//! fixed schedule the whole state, registers and memory, comes back, and meanwhile
//! nobody asked for the time or made a call that reads something else.
//!
//! Guarantee: "hang" is only said of a program that would do the same for ever if
//! no signal came. Loops that count, programs that handle signals, that share memory or
//! have several processes are not judged.

use crate::run::{self, Ending};
use crate::spin::{self, Doing};
use crate::{Error, names, waits};
use race::{Frame, LockCall, Moment, RunFailure};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use symbols::ModuleMap;
use vm::context::Registers;
use vm::observe::{Interest, Observer, SyscallEvent};
use vm::record::{ProcessStatus, Recording};
use vm::schedule::PolicyName;
use vm::snapshot::Limits;
use vm::thread::{State, WaitOn};
use vm::{Stop, Vm};

/// Each thread runs so many instructions at a time, and the state is looked at
/// after so many rounds at most. Loops that only wait give way where they repeat
/// (`vm::translate::spin`), so one round is enough for them; another of N
/// instructions comes back after N rounds at the latest.
const TURN: u64 = 1_000;
const ROUNDS: u32 = 600;

/// Where the registers come back so often and the memory never does, somebody
/// counts.
const COMPARISONS: u32 = 40;

fn unlimited() -> Limits {
    Limits {
        instructions: u64::MAX / 2,
        ..Limits::default()
    }
}

/// Whether a run that is being recorded will never end by itself. It goes on
/// as if nobody had looked.
pub fn will_never_end(vm: &mut Vm) -> bool {
    let answer = vm.copy(unlimited(), |vm| {
        vm.take_observers();
        let modules = names::modules(vm);
        Ok(never_goes_on(vm, &modules)?.is_some())
    });
    matches!(answer.and_then(|copy| copy.join()), Ok(Ok(true)))
}

/// How the program of a recording failed, if it did.
///
/// # Errors
/// When the recording cannot be read or replayed.
pub fn how_it_failed(recording: &Recording) -> Result<Option<RunFailure>, Error> {
    let number = recording.subject();
    let status = recording
        .status(number)
        .map_err(|error| Error::Replay(vm::Error::from(error).into()))?;
    let Some(ProcessStatus::Killed(signal)) = status else {
        return Ok(None);
    };
    let order = reorder::Chronology::of_recording(recording)
        .map_err(|error| Error::Replay(vm::Error::from(error).into()))?;
    let answer = vm::snapshot::isolated(|| {
        let mut vm = Vm::replay(recording)?;
        vm.may_read_files();
        vm.mute();
        let stop = vm.run(None)?;
        let modules = names::modules(&vm);
        if is_crash(signal) {
            let ending = run::ended(&mut vm, stop, &modules);
            return Ok(crash(&vm, &ending, &order));
        }
        vm.detach(unlimited())?;
        vm.undo_ending();
        never_goes_on(&mut vm, &modules)
    })?;
    let failure = answer.join()?.map_err(Error::Replay)?;
    Ok(failure.map(|failure| RunFailure {
        process: (number > 0).then_some(number),
        ..failure
    }))
}

/// Signals that a program dies of by its own doing.
fn is_crash(signal: i32) -> bool {
    [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGABRT,
    ]
    .contains(&signal)
}

fn crash(vm: &Vm, ending: &Ending, order: &reorder::Chronology) -> Option<RunFailure> {
    let Ending::Killed {
        signal,
        thread,
        stack,
        ..
    } = ending
    else {
        return None;
    };
    let fault = vm.fault.map(|fault| fault.moment);
    // Who dies of a call is gone after it; before it, it was there.
    let last_call = || Moment::new(*thread, order.count(*thread).saturating_sub(1));
    let moment = fault.unwrap_or_else(last_call);
    let kind = match *signal {
        libc::SIGABRT => "abort",
        _ => "crash",
    };
    let call = LockCall {
        what: format!("gets {}", run::signal_name(*signal)),
        moment,
        stack: stack.clone(),
    };
    Some(failure(kind, ending.describe(), vec![call]))
}

fn failure(kind: &str, text: String, stacks: Vec<LockCall>) -> RunFailure {
    let place = |call: &LockCall| match (names::own_frame(&call.stack), kind) {
        (Some(frame), "hang") => names::place(&Frame {
            line: None,
            offset: None,
            ..frame.clone()
        }),
        (Some(frame), _) => names::place(frame),
        (None, _) => String::new(),
    };
    let at: BTreeSet<String> = stacks.iter().map(place).collect();
    RunFailure {
        kind: kind.to_string(),
        text,
        process: None,
        at: at.into_iter().collect(),
        stacks,
        recordings_seen: None,
        around: None,
        replay: Vec::new(),
    }
}

/// In a copy: the deadlock or the hang that it is in.
fn never_goes_on(vm: &mut Vm, modules: &ModuleMap) -> Result<Option<RunFailure>, vm::Error> {
    let moments = moments(vm);
    if let Some(deadlock) = deadlock(vm, modules, &moments) {
        return Ok(Some(deadlock));
    }
    if vm.handles_signals() || vm.instructions_to_timer().is_some() || shares_memory(vm) {
        return Ok(None);
    }
    if may_be_woken(vm) {
        return Ok(None);
    }
    let runs = |state: &State| match state {
        State::Runnable => true,
        State::Blocked(wait) => wait.deadline.is_some(),
        State::Exited => false,
    };
    if !vm.threads.values().any(|thread| runs(&thread.state)) {
        return Ok(Some(hang(vm, modules, &moments, Vec::new())));
    }
    if !comes_back(vm)? {
        // Threads may have come to stand on the way.
        return Ok(deadlock(vm, modules, &moments));
    }
    // Who reads what is for the words only.
    let spinning: Vec<(u32, String)> = match spin::look(vm, modules)? {
        Doing::Spinning(all) => all
            .iter()
            .map(|spinner| (spinner.thread, spinner.describe(modules)))
            .collect(),
        _ => Vec::new(),
    };
    Ok(Some(hang(vm, modules, &moments, spinning)))
}

/// Another process may write to what this one reads.
fn shares_memory(vm: &Vm) -> bool {
    vm.space.mappings().any(|(_, mapping)| mapping.shared)
}

/// A thread waits for something that may come from outside.
fn may_be_woken(vm: &Vm) -> bool {
    vm.threads.values().any(|thread| {
        matches!(&thread.state, State::Blocked(wait)
            if wait.on.is_outside() || wait.on == WaitOn::Signal)
    })
}

/// Where each thread stands: who waits, in its call; who runs, before its last
/// instruction, since there is none after it.
fn moments(vm: &Vm) -> Moments {
    vm.threads
        .iter()
        .map(|(number, thread)| {
            let runs = u64::from(thread.state == State::Runnable);
            let count = vm.executed(*number).saturating_sub(runs);
            (*number, Moment::new(*number, count))
        })
        .collect()
}

type Moments = BTreeMap<u32, Moment>;

fn call(vm: &Vm, modules: &ModuleMap, at: &Moments, thread: u32, what: &str) -> LockCall {
    let stack = vm
        .registers(thread)
        .map(|regs| names::stack(modules, &regs));
    let own = format!("thread {thread} ");
    LockCall {
        what: what.strip_prefix(own.as_str()).unwrap_or(what).to_string(),
        moment: at.get(&thread).copied().unwrap_or(Moment::new(thread, 0)),
        stack: stack.unwrap_or_default(),
    }
}

/// Threads that hold one another's locks and have no time-out.
fn deadlock(vm: &Vm, modules: &ModuleMap, at: &Moments) -> Option<RunFailure> {
    let for_ever = |thread: &u32| {
        let state = vm.threads.get(thread).map(|thread| &thread.state);
        matches!(state, Some(State::Blocked(wait)) if wait.deadline.is_none())
    };
    let mut waiting = waits::waiting(vm, modules);
    waiting.retain(|wait| for_ever(&wait.thread));
    let circle = waits::cycle(&waiting)?;
    let words: Vec<String> = circle.iter().map(|wait| wait.describe(modules)).collect();
    let stacks = circle
        .iter()
        .zip(&words)
        .map(|(wait, words)| call(vm, modules, at, wait.thread, words))
        .collect();
    let text = format!("deadlocks: {}", words.join("; "));
    Some(failure("deadlock", text, stacks))
}

/// Who loops, who waits.
fn hang(vm: &Vm, modules: &ModuleMap, at: &Moments, spinning: Vec<(u32, String)>) -> RunFailure {
    let waiting: Vec<(u32, String)> = waits::waiting(vm, modules)
        .iter()
        .map(|wait| (wait.thread, wait.describe(modules)))
        .collect();
    let told = |thread: &u32| {
        let all = spinning.iter().chain(&waiting);
        let own = all.into_iter().find(|(other, _)| other == thread);
        own.map(|(_, words)| words.clone())
    };
    let mut words = Vec::new();
    let mut stacks = Vec::new();
    for (number, thread) in vm.threads.iter() {
        if thread.state == State::Exited {
            continue;
        }
        let own = told(number).unwrap_or_else(|| {
            let stack = vm
                .registers(*number)
                .map(|regs| names::stack(modules, &regs));
            let place = names::own_place(&stack.unwrap_or_default());
            format!("thread {number} loops at {place}")
        });
        stacks.push(call(vm, modules, at, *number, &own));
        words.push(own);
    }
    failure("hang", format!("never ends: {}", words.join("; ")), stacks)
}

/// Whether anybody made a call whose answer may be another one the next time.
struct Calls {
    others: Rc<Cell<bool>>,
}

impl Calls {
    fn note(&self, event: &SyscallEvent) {
        const SAME_AGAIN: [i64; 5] = [
            libc::SYS_sched_yield,
            libc::SYS_futex,
            libc::SYS_nanosleep,
            libc::SYS_gettid,
            libc::SYS_getpid,
        ];
        let number = event.number as i64;
        // A sleep of a length, not until a time.
        let sleeps = number == libc::SYS_clock_nanosleep && event.arguments[1] == 0;
        if !sleeps && !SAME_AGAIN.contains(&number) {
            self.others.set(true);
        }
    }
}

impl Observer for Calls {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn syscall(&mut self, event: &SyscallEvent, _registers: &Registers) {
        self.note(event);
    }

    fn syscall_waits(&mut self, event: &SyscallEvent) {
        self.note(event);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A thread's registers, what it waits for and how long it still does.
type Standing = (u32, Registers, Option<(WaitOn, Option<u64>)>);

fn standings(vm: &Vm) -> Vec<Standing> {
    let now = vm.now();
    vm.threads
        .iter()
        .filter_map(|(number, thread)| {
            let wait = match &thread.state {
                State::Exited => return None,
                State::Runnable => None,
                State::Blocked(wait) => {
                    let left = wait.deadline.map(|deadline| deadline.saturating_sub(now));
                    Some((wait.on.clone(), left))
                }
            };
            Some((*number, vm.registers(*number)?, wait))
        })
        .collect()
}

/// In a copy: the state comes back, so all that follows does. A state is kept
/// and the later ones are compared with it; the next one is kept after twice as
/// many rounds, so a circle of any length is met (Brent's way).
fn comes_back(vm: &mut Vm) -> Result<bool, vm::Error> {
    let others = Rc::new(Cell::new(false));
    vm.observe(Box::new(Calls {
        others: others.clone(),
    }));
    let time_stamps = vm.time_stamps();
    let mut kept: Option<(Vec<Standing>, u64)> = None;
    let (mut until_next, mut since, mut comparisons) = (1, 0, 0);
    let mut found = false;
    for _ in 0..ROUNDS {
        // The schedule begins anew, so it is no part of the state.
        vm.forget_last_slice();
        vm.schedule_by(PolicyName::RoundRobin.build(0, TURN));
        vm.limit(TURN * vm.threads.len() as u64);
        let stop = vm.run(None)?;
        if stop != Stop::Limit || others.get() || vm.time_stamps() != time_stamps {
            break;
        }
        let now = standings(vm);
        if let Some((known, hash)) = &kept
            && *known == now
        {
            if *hash == vm.state_hash() {
                found = true;
                break;
            }
            comparisons += 1;
            if comparisons == COMPARISONS {
                break;
            }
        }
        since += 1;
        if since == until_next {
            kept = Some((now, vm.state_hash()));
            until_next *= 2;
            since = 0;
        }
    }
    vm.take_observers();
    Ok(found)
}
