//! The vm itself: one guest process, its threads, and the loop that runs them.

mod checkpoint;
mod code;
mod held;
mod left_out;
mod observed;
mod outside;
mod slices;
mod steered;

use crate::cache::{Cache, Spread};
use crate::clock::Clock;
use crate::context::{Context, Registers};
use crate::copy::OutsideSignal;
use crate::guard::Guard;
use crate::io::Io;
use crate::kernel::Kernel;
use crate::observe::{AccessEvent, Observer, Sites};
use crate::processor::Processor;
use crate::record::{Ending, ProcessStatus, RecordError, StepReader, StepWriter};
use crate::schedule::{Policy, SliceEnd};
use crate::space::Space;
use crate::thread::Thread;
use crate::translate::{Instrumentation, SLACK, Translator};
use crate::tree::Tree;
use crate::{Error, fault, host, watch};
pub(crate) use code::is_canonical;
use code::{HOT, PendingReturn, SAMPLE};
use left_out::LeftOutCalls;
use race::Moment;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use steered::CopyState;

/// Where the schedule comes from and where it goes.
pub enum Pace {
    /// A policy decides; decisions are written down if there is a recording.
    Policy {
        policy: Box<dyn Policy>,
        steps: Option<StepWriter>,
    },
    /// The recorded schedule is followed.
    Follow(StepReader),
}

/// Why `Vm::run` came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The guest process has ended.
    Ended(ProcessStatus),
    /// The moment asked for has been reached; the thread is about to execute
    /// its next instruction.
    Reached(Moment),
    /// The recording stops here without an end (the recording vm was killed).
    RecordingEnds,
    /// Only in a copy or after `stop_when_stuck`: no thread that may run can
    /// run. `input` tells that some
    /// thread waits for input the recording does not have.
    Stuck { input: bool },
    /// Only in a copy or after `stop_after`: its instructions are used up.
    Limit,
}

/// Where `run_process` stops before the guest's end.
#[derive(Clone, Copy)]
enum Goal {
    End,
    Moment(Moment),
    /// This many instructions of all threads.
    Tick(u64),
}

/// A guest fault that no handler took: the guest dies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestFault {
    pub moment: Moment,
    pub signal: i32,
    pub pc: u64,
    pub address: u64,
    pub regs: Registers,
}

/// A slice under way.
#[derive(Debug, Clone, Copy)]
struct Slice {
    thread: u32,
    planned: u64,
    done: u64,
}

pub struct Vm {
    /// The processor that the guest sees.
    pub(crate) processor: Rc<Processor>,
    context: &'static mut Context,
    cache: Cache,
    translator: Translator,
    instrumentation: Instrumentation,
    sites: Sites,
    /// Addresses found running at samples, and how often; the hot ones start
    /// traces.
    samples: HashMap<u64, u8, Spread>,
    hot: HashSet<u64, Spread>,
    /// The next instruction writes to guarded code and is run by itself; pages
    /// whose translation was made for that.
    alone: bool,
    stale: Vec<u64>,
    /// Iterations of the repeated string instruction under way that belong to
    /// its later parts.
    later_parts: u64,
    /// Blocks are made larger than the guest asks for.
    pub(crate) guard: Option<Guard>,
    pub(crate) guard_failed: Option<RecordError>,
    sample: u64,
    /// Instructions since the last sample when the running slice began: slices
    /// shorter than the distance of samples get theirs as well.
    since_sample: u64,
    hot_after: u8,
    pub space: Space,
    pub threads: BTreeMap<u32, Thread>,
    /// The thread whose registers are in the context.
    pub(crate) current: u32,
    slice: Option<Slice>,
    last_slice: Option<(u32, SliceEnd)>,
    /// Slices in a row that gave way at once, or were cut.
    waits_in_vain: usize,
    /// Cut slices so far, and whether this is one.
    cuts: u64,
    is_cut: bool,
    /// It has been said that no thread can go on.
    said_stuck: bool,
    /// Instructions granted to the running slice, and how many of them are
    /// still withheld from translated code.
    granted: u64,
    reserve: u64,
    /// Instructions executed by all threads in finished slices.
    total: u64,
    pub(crate) clock: Clock,
    pub(crate) kernel: Kernel,
    pub(crate) io: Io,
    pub(crate) pace: Pace,
    observers: Vec<Box<dyn Observer>>,
    /// Threads held at hooks, longest first, and the last moment at which each
    /// thread's slice ended before a hooked instruction.
    held: Vec<held::Held>,
    stopped_at: HashMap<u32, Moment>,
    batch: Vec<AccessEvent>,
    /// Function entries observers follow, and calls of them under way.
    entries: HashSet<u64, Spread>,
    returns: Vec<PendingReturn>,
    /// Empty, but for while it is told who returned.
    returned: Vec<u64>,
    /// Chained hash of system calls and their results.
    pub(crate) trail: u64,
    checkpoints: checkpoint::Checkpoints,
    pub(crate) ended: Option<ProcessStatus>,
    /// The fault the guest died of, if it did.
    pub fault: Option<GuestFault>,
    ending: Option<Ending>,
    pub(crate) tree: Option<Tree>,
    copy: Option<CopyState>,
    /// Program counters at which a slice may end, and where one just did, by
    /// thread.
    preempt: HashSet<u64>,
    preempted: BTreeMap<u32, u64>,
    /// Not a copy, but stops where it cannot go on, or after so many
    /// instructions.
    stops_when_stuck: bool,
    stops_after: u64,
    /// Where this replay leaves its recording.
    departure: Option<steered::Departure>,
    /// Calls that are not made.
    left_out: LeftOutCalls,
    /// Guest memory that the system call under way has written.
    pub(crate) kernel_writes: Vec<(u64, usize)>,
    /// A replay does not show the program's output.
    pub(crate) muted: bool,
    /// A confined replay may read files that are not the recording's.
    pub(crate) reads_files: bool,
    /// It is shown byte for byte, on a terminal too.
    pub(crate) shows_raw: bool,
    /// Stop before system calls instead of making them.
    before_syscalls: bool,
    /// A thread runs alone, by `run_thread`: no policy is asked.
    one_thread: bool,
    /// This process was just forked: the slice under way is its parent's.
    reborn: bool,
    /// The slice under way was cut short by a signal.
    cut: bool,
    /// How often every thread waited and time had to pass, and how often that
    /// was so in the whole recorded run, if that is known.
    pub(crate) waits: u64,
    pub(crate) recorded_waits: Option<u64>,
    /// Signals from outside that this replay has met, and those of the whole
    /// recorded run, if they are known.
    pub(crate) signals_seen: Vec<OutsideSignal>,
    pub(crate) recorded_signals: Vec<OutsideSignal>,
    /// Host time of the last flush of the recording.
    flushed_at: u64,
    /// Host time at which calls that cannot be polled for were last tried.
    retried_at: u64,
}

impl Vm {
    /// Sets the machine up, without a program.
    pub(crate) fn new(io: Io, pace: Pace, processor: Processor) -> Result<Self, Error> {
        let context = Context::install()?;
        let cache = Cache::install()?;
        fault::install(cache.common_exit)?;
        let mut instrumentation = Instrumentation::default();
        if let Pace::Policy { policy, .. } = &pace {
            instrumentation.sequencers = policy.at_sequencers();
        }
        let mut vm = Vm {
            context,
            processor: Rc::new(processor),
            cache,
            translator: Translator::default(),
            instrumentation,
            sites: Sites::default(),
            samples: HashMap::default(),
            hot: HashSet::default(),
            alone: false,
            stale: Vec::new(),
            later_parts: 0,
            guard: None,
            guard_failed: None,
            sample: SAMPLE,
            since_sample: 0,
            hot_after: HOT,
            space: Space::default(),
            threads: BTreeMap::new(),
            current: 0,
            slice: None,
            last_slice: None,
            waits_in_vain: 0,
            cuts: 0,
            is_cut: false,
            said_stuck: false,
            granted: 0,
            reserve: 0,
            total: 0,
            clock: Clock::default(),
            kernel: Kernel::default(),
            io,
            pace,
            observers: Vec::new(),
            held: Vec::new(),
            stopped_at: HashMap::new(),
            batch: Vec::new(),
            entries: HashSet::default(),
            returns: Vec::new(),
            returned: Vec::new(),
            trail: 0,
            checkpoints: checkpoint::Checkpoints::new(),
            ended: None,
            fault: None,
            ending: None,
            tree: None,
            copy: None,
            preempt: HashSet::new(),
            preempted: BTreeMap::new(),
            stops_when_stuck: false,
            stops_after: u64::MAX,
            departure: None,
            left_out: LeftOutCalls::default(),
            kernel_writes: Vec::new(),
            muted: false,
            reads_files: false,
            shows_raw: false,
            before_syscalls: false,
            one_thread: false,
            reborn: false,
            cut: false,
            waits: 0,
            recorded_waits: None,
            signals_seen: Vec::new(),
            recorded_signals: Vec::new(),
            flushed_at: 0,
            retried_at: 0,
        };
        vm.set_remaining(0);
        Ok(vm)
    }

    /// The thread that is running or ran last.
    pub fn current_thread(&self) -> u32 {
        self.current
    }

    /// Registers of a thread, wherever they are at the moment.
    pub fn registers(&self, thread: u32) -> Option<Registers> {
        if thread == self.current {
            return Some(self.context.regs);
        }
        self.threads.get(&thread).map(|thread| thread.regs)
    }

    /// In a copy: changes the registers of a thread.
    pub fn set_registers(&mut self, thread: u32, regs: Registers) {
        if self.copy.is_none() {
            return;
        }
        if thread == self.current {
            self.context.regs = regs;
        } else if let Some(thread) = self.threads.get_mut(&thread) {
            thread.regs = regs;
        }
    }

    /// In a copy: changes memory, code included. False where the guest has no
    /// memory to change.
    pub fn write_memory(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.copy.is_some() && self.change_memory(address, bytes)
    }

    /// Changes memory whatever its protection, code included. False where the
    /// guest has no memory to change.
    pub(crate) fn change_memory(&mut self, address: u64, bytes: &[u8]) -> bool {
        let end = address.saturating_add(bytes.len() as u64);
        let mut at = address;
        while at < end {
            let Some((range, _)) = self.space.find(at) else {
                return false;
            };
            at = range.end;
        }
        self.memory_written(address..end);
        self.space.write_anyway(address, bytes)
    }

    /// Tells observers whenever control reaches `pc`.
    pub fn watch_code(&mut self, pc: u64) {
        self.entries.insert(pc);
        self.add_hook(pc);
    }

    pub(crate) fn regs(&mut self) -> &mut Registers {
        &mut self.context.regs
    }

    /// Instructions the running thread has retired.
    pub fn executed(&self, thread: u32) -> u64 {
        let done = self
            .threads
            .get(&thread)
            .map_or(0, |thread| thread.executed);
        if thread == self.current {
            done + self.granted - self.remaining()
        } else {
            done
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment::new(self.current, self.executed(self.current))
    }

    /// Instructions the running slice has left.
    fn remaining(&self) -> u64 {
        (self.context.remaining + SLACK as i64).max(0) as u64 + self.reserve
    }

    fn set_remaining(&mut self, instructions: u64) {
        // A block may run before it is counted: the chunk must hold it.
        let chunk = instructions.min((self.sample - self.since_sample).max(SLACK));
        self.reserve = instructions - chunk;
        self.context.remaining = chunk as i64 - SLACK as i64;
    }

    /// Translated code has used up its chunk: takes note of where that was and
    /// grants the next one. False at the end of the slice.
    fn next_chunk(&mut self, block: u32) -> bool {
        if self.reserve == 0 {
            return false;
        }
        if self.is_interrupted() {
            // Nobody goes on from here: what is left of the slice is dropped.
            self.granted -= self.remaining();
            self.set_remaining(0);
            return false;
        }
        self.drain_ring();
        let chunk = self.reserve.min(self.sample);
        self.reserve -= chunk;
        self.context.remaining += chunk as i64;
        let pc = self.cache.block(block).pc;
        let seen = self.samples.entry(pc).or_default();
        *seen = seen.saturating_add(1);
        if *seen == self.hot_after && self.hot.insert(pc) {
            self.cache.retire(pc);
        }
        true
    }

    /// Counts an instruction that faulted as one, so that a slice in which
    /// nothing but the fault happens has a length.
    pub(crate) fn count_fault(&mut self) {
        self.context.remaining -= 1;
    }

    /// The instruction counted last has not been executed after all.
    pub(crate) fn uncount(&mut self) {
        self.context.remaining += 1;
    }

    /// Instructions of all threads up to now.
    pub fn instructions(&self) -> u64 {
        self.total + self.granted - self.remaining()
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.monotonic(self.instructions())
    }

    /// Runs until the guest ends or `until` is reached (a moment of the first
    /// process, or of the one that is replayed alone). Processes that the
    /// guest forks end in here; a replay also waits for them.
    pub fn run(&mut self, until: Option<Moment>) -> Result<Stop, Error> {
        let goal = until.map_or(Goal::End, Goal::Moment);
        let result = match self.run_process(goal) {
            // What the recording vm had not written when it was killed.
            Err(Error::Record(RecordError::Ended(_))) => Ok(Stop::RecordingEnds),
            other => other,
        };
        if let Some(error) = self.guard_failed.take() {
            return Err(error.into());
        }
        let Some(tree) = &self.tree else {
            return result;
        };
        if tree.forked {
            self.leave(result);
        }
        if self.io.is_live() {
            return result;
        }
        match result {
            Ok(Stop::Reached(_)) => result,
            Ok(_) => {
                tree.finished();
                if tree.join() {
                    result
                } else {
                    Err(Error::ProcessFailed)
                }
            }
            Err(_) => {
                tree.fail();
                tree.join();
                result
            }
        }
    }

    /// The end of a process that the vm forked for the guest.
    fn leave(&mut self, result: Result<Stop, Error>) -> ! {
        let live = self.io.is_live();
        let number = self.tree.as_ref().map_or(0, |tree| tree.number);
        let code = match result {
            Ok(Stop::Ended(status)) if live => host::end_like(status),
            Ok(_) if live => race::exit_code::FAILURE,
            Ok(_) => 0,
            Err(error) => {
                if !matches!(error, Error::ProcessFailed) {
                    host::say(&format!(
                        "deadheat: process {number}: {}",
                        race::plain_lines(&error.to_string())
                    ));
                }
                race::exit_code::FAILURE
            }
        };
        if !live && let Some(tree) = &self.tree {
            if code == 0 {
                tree.finished();
            } else {
                tree.fail();
            }
            if !tree.join() {
                host::exit(race::exit_code::FAILURE);
            }
        }
        host::exit(code)
    }

    /// Runs until all threads together have executed `tick` instructions and
    /// the thread that executes the next one is about to do so, with the
    /// system call it waited in completed. Children are not waited for.
    pub fn run_to(&mut self, tick: u64) -> Result<Stop, Error> {
        match self.run_process(Goal::Tick(tick)) {
            Err(Error::Record(RecordError::Ended(_))) => Ok(Stop::RecordingEnds),
            other => other,
        }
    }

    fn run_process(&mut self, goal: Goal) -> Result<Stop, Error> {
        self.run_slices(goal).map_err(|error| match error {
            Error::Divergence(mut divergence) => {
                divergence.reason = self.processor.difference();
                divergence.until.get_or_insert(self.instructions());
                if divergence.since.is_none() {
                    divergence.moment.get_or_insert(self.moment());
                }
                divergence.recording = self.tree.as_ref().map(|tree| tree.directory.clone());
                divergence.into()
            }
            other => other,
        })
    }

    fn run_slices(&mut self, goal: Goal) -> Result<Stop, Error> {
        let until = match goal {
            Goal::Moment(moment) => Some(moment),
            Goal::End | Goal::Tick(_) => None,
        };
        loop {
            if let Some(status) = self.ended {
                self.give_up_mutexes()?;
                self.finish(status)?;
                return Ok(Stop::Ended(status));
            }
            if self.is_interrupted() {
                return Err(Error::Interrupted);
            }
            self.depart()?;
            let until = until.filter(|_| self.is_asked_for());
            if let Some(until) = until
                && self.threads.contains_key(&until.thread)
                && self.executed(until.thread) >= until.count
            {
                self.drain_ring();
                return Ok(Stop::Reached(until));
            }
            if let Goal::Tick(tick) = goal
                && self.instructions() >= tick
                && self.slice.is_some()
            {
                self.drain_ring();
                return Ok(Stop::Reached(self.moment()));
            }
            let slice = match self.slice {
                Some(slice) => slice,
                None => match self.next_slice()? {
                    Some(choice) => self.begin_slice(choice),
                    None if self.ended.is_some() => continue,
                    None if self.has_waited_enough() => return Ok(Stop::Limit),
                    None if self.copy.is_some() || self.stops_when_stuck => {
                        return Ok(self.stuck());
                    }
                    None => return Ok(Stop::RecordingEnds),
                },
            };
            let mut part = slice.planned - slice.done;
            let limit = self
                .copy
                .as_ref()
                .map_or(self.stops_after, |copy| copy.limit);
            let left = limit.saturating_sub(self.instructions());
            if left == 0 {
                return Ok(Stop::Limit);
            }
            part = part.min(left);
            if let Some(until) = until
                && until.thread == slice.thread
            {
                part = part.min(until.count - self.executed(until.thread));
            }
            if let Some(left) = self.left_to_departure(slice.thread) {
                part = part.min(left);
            }
            if let Goal::Tick(tick) = goal {
                part = part.min(tick.saturating_sub(self.instructions()));
            }
            let end = self.run_part(part)?;
            if std::mem::take(&mut self.reborn) {
                continue;
            }
            let retired = self.retire();
            watch::add(retired);
            let done = slice.done + retired;
            let slice = Slice { done, ..slice };
            if end == SliceEnd::Expired && done < slice.planned {
                self.slice = Some(slice);
            } else {
                self.slice = None;
                self.finish_slice(slice, end)?;
            }
        }
    }

    /// A program that is recorded, or just run, is ended in other ways.
    fn is_interrupted(&self) -> bool {
        !self.io.is_live() && crate::interruption::is_over()
    }

    /// Moments given from outside are this process's.
    fn is_asked_for(&self) -> bool {
        self.tree
            .as_ref()
            .is_none_or(|tree| !tree.forked && tree.shows_output())
    }

    /// The current thread goes on alone, with this number.
    pub(crate) fn keep_only_current(&mut self, number: u32) {
        let current = self.threads.remove(&self.current);
        self.threads.clear();
        if let Some(mut thread) = current {
            thread.id = number;
            self.threads.insert(number, thread);
        }
        self.current = number;
    }

    /// The books of a process that has just been forked: it has executed
    /// nothing, and time goes on from its parent's.
    pub(crate) fn start_books(&mut self) {
        self.drain_ring();
        self.clock.monotonic_origin = self.now();
        self.clock.jumped = 0;
        self.total = 0;
        self.granted = 0;
        self.set_remaining(0);
        self.trail = 0;
        self.checkpoints.restart();
        self.slice = None;
        self.last_slice = None;
        self.held.clear();
        self.stopped_at.clear();
        self.reborn = true;
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.executed = 0;
        }
    }
}
