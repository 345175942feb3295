//! The vm itself: one guest process, its threads, and the loop that runs them.

use crate::cache::{Cache, ExitKind, LINKED, REPEAT, Spread, Translation, pages_of};
use crate::clock::Clock;
use crate::context::{BREAK, Context, GUEST_FLAGS, Registers, reg};
use crate::io::Io;
use crate::kernel::Kernel;
use crate::kernel::signal::Trap;
use crate::layout;
use crate::observe::known::Compare;
use crate::observe::{AccessEvent, AfterHook, Interest, Observer, Sites, ThreadEvent, complex};
use crate::record::{Ending, ProcessStatus, RecordError, Step, StepReader, StepWriter};
use crate::schedule::{Choice, Policy, Recorded, SliceEnd};
use crate::space::{Backing, Space};
use crate::thread::{State, Thread, WaitOn};
use crate::translate::{
    Instrumentation, MAX_BLOCK, REPEAT_PART, RING_MARGIN, SLACK, Shape, Translator, is_long_repeat,
    is_repeated,
};
use crate::tree::Tree;
use crate::{Divergence, Error, fault, host, host_signals, kernel, memory, watch};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use race::Moment;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use xxhash_rust::xxh3::Xxh3;

/// Longest slice when only one thread can run: bounds the distance between
/// checks of a replay and between looks at host descriptors.
const LONE_SLICE: u64 = 20_000_000;

/// The same for a process that takes turns with others (about a millisecond).
const SHARING_SLICE: u64 = 2_000_000;

/// Something outside that cannot be polled is looked at this often, in
/// nanoseconds.
const RETRY_INTERVAL: u64 = 500_000;

/// A killed vm loses at most this much of its recording, in nanoseconds.
const FLUSH_INTERVAL: u64 = 100_000_000;

/// No slice is longer: records of accesses carry half of the counter.
const LONGEST_SLICE: u64 = 1 << 30;

/// Translated code comes back to the vm this often, to see what is hot. At
/// 0.3 microseconds each time that costs a hundredth.
const SAMPLE: u64 = 100_000;

/// A block met at this many samples becomes a trace.
const HOT: u8 = 2;

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
    /// Only in a copy: no thread that may run can run. `input` tells that some
    /// thread waits for input the recording does not have.
    Stuck { input: bool },
    /// Only in a copy: its instructions are used up.
    Limit,
}

/// What makes a vm a copy (see `snapshot`).
struct CopyState {
    /// Instructions of all threads at which it stops.
    limit: u64,
    /// Threads that are held back.
    frozen: BTreeSet<u32>,
    /// Every slice the copy has run.
    slices: Vec<Choice>,
    /// Virtual time up to which arrivals have been looked for.
    looked_at: u64,
    /// Program counters at which a slice may end, and where one just did.
    preempt: HashSet<u64>,
    preempted: Option<Moment>,
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

/// A call of a followed function.
struct PendingReturn {
    thread: u32,
    /// Stack pointer after the return.
    stack: u64,
    /// Return address.
    pc: u64,
    function: u64,
}

/// A slice under way.
#[derive(Debug, Clone, Copy)]
struct Slice {
    thread: u32,
    planned: u64,
    done: u64,
}

pub struct Vm {
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
    sample: u64,
    hot_after: u8,
    pub space: Space,
    pub threads: BTreeMap<u32, Thread>,
    /// The thread whose registers are in the context.
    pub(crate) current: u32,
    slice: Option<Slice>,
    last_slice: Option<(u32, SliceEnd)>,
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
    batch: Vec<AccessEvent>,
    /// Function entries observers follow, and calls of them under way.
    entries: HashSet<u64>,
    returns: Vec<PendingReturn>,
    /// Chained hash of system calls and their results.
    pub(crate) trail: u64,
    pub(crate) ended: Option<ProcessStatus>,
    /// The fault the guest died of, if it did.
    pub fault: Option<GuestFault>,
    ending: Option<Ending>,
    pub(crate) tree: Option<Tree>,
    copy: Option<CopyState>,
    /// Guest memory that the system call under way has written.
    pub(crate) kernel_writes: Vec<(u64, usize)>,
    /// A replay does not show the program's output.
    pub(crate) muted: bool,
    /// Stop before system calls instead of making them.
    before_syscalls: bool,
    /// This process was just forked: the slice under way is its parent's.
    reborn: bool,
    /// The slice under way was cut short by a signal.
    cut: bool,
    /// Host time of the last flush of the recording.
    flushed_at: u64,
    /// Host time at which calls that cannot be polled for were last tried.
    retried_at: u64,
}

impl Vm {
    /// Sets the machine up, without a program.
    pub(crate) fn new(io: Io, pace: Pace) -> Result<Self, Error> {
        let context = Context::install()?;
        let cache = Cache::install()?;
        fault::install(cache.common_exit)?;
        let mut instrumentation = Instrumentation::default();
        if let Pace::Policy { policy, .. } = &pace {
            instrumentation.sequencers = policy.at_sequencers();
        }
        let mut vm = Vm {
            context,
            cache,
            translator: Translator::default(),
            instrumentation,
            sites: Sites::default(),
            samples: HashMap::default(),
            hot: HashSet::default(),
            alone: false,
            stale: Vec::new(),
            later_parts: 0,
            sample: SAMPLE,
            hot_after: HOT,
            space: Space::default(),
            threads: BTreeMap::new(),
            current: 0,
            slice: None,
            last_slice: None,
            granted: 0,
            reserve: 0,
            total: 0,
            clock: Clock::default(),
            kernel: Kernel::default(),
            io,
            pace,
            observers: Vec::new(),
            batch: Vec::new(),
            entries: HashSet::new(),
            returns: Vec::new(),
            trail: 0,
            ended: None,
            fault: None,
            ending: None,
            tree: None,
            copy: None,
            kernel_writes: Vec::new(),
            muted: false,
            before_syscalls: false,
            reborn: false,
            cut: false,
            flushed_at: 0,
            retried_at: 0,
        };
        vm.set_remaining(0);
        Ok(vm)
    }

    /// Adds an analysis. Observers are added before the guest runs.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
        let interests: Vec<Interest> = self
            .observers
            .iter()
            .map(|observer| observer.interest())
            .filter(|interest| interest.accesses)
            .collect();
        self.instrumentation.accesses = !interests.is_empty();
        // There is one shadow, and who has none needs every access.
        self.instrumentation.only_unknown = interests.len() == 1 && interests[0].only_unknown;
        self.flush_cache();
        let code: Vec<_> = self
            .space
            .mappings()
            .filter(|(_, mapping)| mapping.protection & libc::PROT_EXEC != 0)
            .filter_map(|(range, mapping)| match &mapping.backing {
                Backing::File { path, offset } => Some((range, path.clone(), *offset)),
                _ => None,
            })
            .collect();
        for (range, path, offset) in code {
            self.tell_code_mapped(range, &path, offset);
        }
    }

    /// A replay from here on does not show what the program writes.
    pub fn mute(&mut self) {
        self.muted = true;
    }

    /// From here on the program's output to standard streams is shown, also
    /// that of a copy.
    pub fn unmute(&mut self) {
        self.muted = false;
    }

    /// Makes a trace of every block met at a look every `instructions`
    /// instructions, however seldom it runs: for tests of traces.
    pub fn trace_eagerly(&mut self, instructions: u64) {
        self.sample = instructions.max(2 * SLACK);
        self.hot_after = 1;
    }

    /// Takes the observers back, in the order they were added.
    pub fn take_observers(&mut self) -> Vec<Box<dyn Observer>> {
        self.drain_ring();
        std::mem::take(&mut self.observers)
    }

    fn flush_cache(&mut self) {
        self.drain_ring();
        self.cache.flush();
        self.sites.clear();
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
        let end = address.saturating_add(bytes.len() as u64);
        if self.copy.is_none() || bytes.is_empty() {
            return self.copy.is_some();
        }
        let mut at = address;
        while at < end {
            let Some((range, _)) = self.space.find(at) else {
                return false;
            };
            at = range.end;
        }
        self.code_changed(address..end);
        memory::write_anywhere(address, bytes)
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
        let chunk = instructions.min(self.sample);
        self.reserve = instructions - chunk;
        self.context.remaining = chunk as i64 - SLACK as i64;
    }

    /// Translated code has used up its chunk: takes note of where that was and
    /// grants the next one. False at the end of the slice.
    fn next_chunk(&mut self, block: u32) -> bool {
        if self.reserve == 0 {
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
                    eprintln!("deadheat: process {number}: {error}");
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
        let until = match goal {
            Goal::Moment(moment) => Some(moment),
            Goal::End | Goal::Tick(_) => None,
        };
        loop {
            if let Some(status) = self.ended {
                self.finish(status)?;
                return Ok(Stop::Ended(status));
            }
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
                    None if self.copy.is_some() => return Ok(self.stuck()),
                    None => return Ok(Stop::RecordingEnds),
                },
            };
            let mut part = slice.planned - slice.done;
            if let Some(copy) = &self.copy {
                let left = copy.limit.saturating_sub(self.instructions());
                if left == 0 {
                    return Ok(Stop::Limit);
                }
                part = part.min(left);
            }
            if let Some(until) = until
                && until.thread == slice.thread
            {
                part = part.min(until.count - self.executed(until.thread));
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
        self.slice = None;
        self.last_slice = None;
        self.reborn = true;
        let current = self.current;
        if let Some(thread) = self.threads.get_mut(&current) {
            thread.executed = 0;
        }
    }

    /// Drops every translation (the guest executes another program).
    pub(crate) fn forget_code(&mut self) {
        self.flush_cache();
    }

    /// Instructions the slice under way has left.
    pub(crate) fn left_in_slice(&self) -> u64 {
        let planned = self.slice.map_or(0, |slice| slice.planned - slice.done);
        planned.max(self.remaining())
    }

    fn begin_slice(&mut self, choice: Choice) -> Slice {
        let from = self.last_slice.map(|(thread, _)| thread);
        if self.current != choice.thread {
            self.switch_to(choice.thread);
            let event = ThreadEvent::Switched {
                from,
                to: choice.thread,
            };
            self.tell_thread(event);
        }
        Slice {
            thread: choice.thread,
            planned: choice.instructions,
            done: 0,
        }
    }

    /// Puts another thread's registers into the context.
    pub(crate) fn switch_to(&mut self, thread: u32) {
        if let Some(current) = self.threads.get_mut(&self.current) {
            current.regs = self.context.regs;
        }
        if let Some(next) = self.threads.get(&thread) {
            self.context.regs = next.regs;
        }
        self.current = thread;
    }

    /// Adds what the finished part executed to the books; returns it.
    fn retire(&mut self) -> u64 {
        self.drain_ring();
        self.granted -= self.remaining();
        self.set_remaining(0);
        self.total += self.granted;
        if let Some(thread) = self.threads.get_mut(&self.current) {
            thread.executed += self.granted;
        }
        std::mem::take(&mut self.granted)
    }

    /// Writes the slice down, or compares it with the recorded one.
    fn finish_slice(&mut self, slice: Slice, end: SliceEnd) -> Result<(), Error> {
        self.last_slice = Some((slice.thread, end));
        if end == SliceEnd::Exited {
            self.threads.remove(&slice.thread);
        }
        if let Some(copy) = &mut self.copy {
            copy.slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
        let check = self.check();
        let step = Step::Slice {
            thread: slice.thread,
            instructions: slice.done,
            check,
        };
        match &mut self.pace {
            Pace::Policy { steps, .. } => {
                if let Some(steps) = steps {
                    steps.push(&step)?;
                }
                Ok(())
            }
            Pace::Follow(steps) => {
                let path = steps.path().to_path_buf();
                let recorded = steps.next_step()?;
                if recorded.as_ref() == Some(&step) {
                    return Ok(());
                }
                Err(Box::new(Divergence {
                    what: format!(
                        "recorded: {}; replayed: {step} (stopped: {end:?})",
                        recorded.map_or("nothing".to_string(), |step| step.to_string())
                    ),
                    path: Some(path),
                    moment: Some(Moment::new(slice.thread, self.executed(slice.thread))),
                    regs: Some(self.context.regs),
                })
                .into())
            }
        }
    }

    /// Hash of the running thread's registers and of everything the kernel
    /// did, for the recording's checks.
    fn check(&self) -> u32 {
        let mut hash = Xxh3::with_seed(self.trail);
        let regs = &self.context.regs;
        for value in regs.gpr.iter().chain([&regs.rip, &regs.fs_base]) {
            hash.update(&value.to_le_bytes());
        }
        hash.update(&(regs.rflags & GUEST_FLAGS).to_le_bytes());
        hash.digest() as u32
    }

    /// Adds a system call and what it did to the trail.
    pub(crate) fn leave_trail(&mut self, words: &[u64]) {
        let mut hash = Xxh3::with_seed(self.trail);
        for word in words {
            hash.update(&word.to_le_bytes());
        }
        self.trail = hash.digest();
    }

    /// The process is over: write or check its final state.
    fn finish(&mut self, status: ProcessStatus) -> Result<(), Error> {
        if self.ending.is_some() {
            return Ok(());
        }
        self.drain_ring();
        self.release_vfork_parent(true);
        let mut ending = Ending { status, state: 0 };
        if !matches!(self.pace, Pace::Policy { steps: None, .. }) {
            ending.state = self.state_hash();
        }
        match &mut self.pace {
            Pace::Policy { steps, .. } => {
                if let Some(steps) = steps {
                    // Inputs first, as ever.
                    self.io.finish()?;
                    steps.push(&Step::End(ending))?;
                    steps.finish()?;
                }
            }
            Pace::Follow(steps) => {
                let recorded = steps.next_step()?;
                if recorded
                    .as_ref()
                    .is_some_and(|step| *step != Step::End(ending))
                {
                    return Err(Divergence::new(format!(
                        "the end differs; recorded: {}; replayed: {}",
                        recorded.map_or("nothing".to_string(), |step| step.to_string()),
                        Step::End(ending)
                    ))
                    .into());
                }
                if recorded.is_some() {
                    steps.expect_end()?;
                    self.io.expect_end()?;
                }
            }
        }
        self.ending = Some(ending);
        Ok(())
    }

    /// What to run next. `None` where a recording stops.
    fn next_slice(&mut self) -> Result<Option<Choice>, Error> {
        if let Pace::Follow(_) = self.pace {
            return self.follow();
        }
        let now = host_nanoseconds();
        if now - self.flushed_at > FLUSH_INTERVAL {
            self.flushed_at = now;
            self.flush_recording()?;
        }
        self.give_turn(false);
        let runnable = self.wait_for_runnable()?;
        if self.ended.is_some() {
            return Ok(None);
        }
        self.take_turn()?;
        if runnable.is_empty() {
            return Ok(None);
        }
        let last = self.last_slice;
        let Pace::Policy { policy, .. } = &mut self.pace else {
            unreachable!("following is handled above");
        };
        let mut choice = policy.choose(&runnable, last);
        if policy.is_exact() {
            return Ok(Some(choice));
        }
        if runnable.len() == 1 {
            choice.instructions = if self.takes_turns() {
                SHARING_SLICE
            } else {
                LONE_SLICE
            };
        }
        choice.instructions = choice.instructions.min(LONGEST_SLICE);
        if let Some(left) = self.instructions_to_timer() {
            choice.instructions = choice.instructions.min(left);
        }
        Ok(Some(choice))
    }

    fn follow(&mut self) -> Result<Option<Choice>, Error> {
        loop {
            if self.ended.is_some() {
                return Ok(None);
            }
            let Pace::Follow(steps) = &mut self.pace else {
                unreachable!("only called while following");
            };
            // Timers are looked at where the recording vm did.
            if matches!(steps.peek()?, Some(Step::Advance(_) | Step::Slice { .. })) {
                self.expire_timers()?;
            }
            let Pace::Follow(steps) = &mut self.pace else {
                unreachable!("only called while following");
            };
            match steps.peek()? {
                None => return Ok(None),
                Some(Step::Slice {
                    thread,
                    instructions,
                    ..
                }) => {
                    let choice = Choice {
                        thread: *thread,
                        instructions: *instructions,
                    };
                    let Some(known) = self.threads.get_mut(&choice.thread) else {
                        return Err(Divergence::new(format!(
                            "the recording runs thread {}, which does not exist in the replay",
                            choice.thread
                        ))
                        .into());
                    };
                    known.state = State::Runnable;
                    return Ok(Some(choice));
                }
                Some(Step::Advance(nanoseconds)) => {
                    self.clock.jumped += *nanoseconds;
                    steps.next_step()?;
                }
                Some(Step::Memory) => {
                    steps.next_step()?;
                    self.receive_memory()?;
                }
                Some(Step::Signal { .. }) => {
                    if let Some(Step::Signal { thread, info }) = steps.next_step()? {
                        self.signal_from_outside(thread, &info)?;
                    }
                }
                Some(end @ Step::End(_)) => {
                    return Err(Divergence::new(format!(
                        "the recorded run ended here ({end}), the replay goes on"
                    ))
                    .into());
                }
            }
        }
    }

    /// Writes a step that is not a slice.
    pub(crate) fn note(&mut self, step: Step) -> Result<(), Error> {
        if let Pace::Policy {
            steps: Some(steps), ..
        } = &mut self.pace
        {
            steps.push(&step)?;
        }
        Ok(())
    }

    /// Threads that can run, waiting for time or the outside if there are
    /// none.
    fn wait_for_runnable(&mut self) -> Result<Vec<u32>, Error> {
        loop {
            self.take_outside_signals()?;
            self.expire_timers()?;
            if self.ended.is_some() {
                return Ok(Vec::new());
            }
            self.look_outside(Some(0))?;
            let now = self.now();
            let mut runnable = Vec::new();
            let mut next_deadline = self.next_timer();
            // Other processes of the guest live in host time.
            let mut outside = self
                .tree
                .as_ref()
                .is_some_and(|tree| tree.ordered || tree.forked);
            for (id, thread) in &self.threads {
                if self.is_frozen(*id) {
                    continue;
                }
                match &thread.state {
                    State::Runnable => runnable.push(*id),
                    State::Blocked(wait) => {
                        if wait.deadline.is_some_and(|deadline| deadline <= now) {
                            runnable.push(*id);
                            continue;
                        }
                        outside |= wait.on.is_outside();
                        next_deadline = match (next_deadline, wait.deadline) {
                            (Some(one), Some(other)) => Some(one.min(other)),
                            (one, other) => one.or(other),
                        };
                    }
                    State::Exited => {}
                }
            }
            if !runnable.is_empty() {
                for id in &runnable {
                    if let Some(thread) = self.threads.get_mut(id) {
                        thread.state = State::Runnable;
                    }
                }
                return Ok(runnable);
            }
            if outside && let Some(arrival) = self.next_arrival(now) {
                // Every thread waits: what came next in the recorded run
                // comes now, unless a timer is earlier.
                if next_deadline.is_none_or(|deadline| arrival <= deadline) {
                    if let Some(copy) = self.io.copy() {
                        copy.inputs.release(arrival);
                    }
                    self.clock.jumped += arrival.saturating_sub(now);
                    self.wake_outside_waiters();
                    continue;
                }
            }
            match next_deadline {
                // Nothing else comes from outside into a copy: time just
                // passes.
                Some(deadline) if !outside || self.copy.is_some() => {
                    let jump = deadline.saturating_sub(now);
                    self.clock.jumped += jump;
                    self.note(Step::Advance(jump))?;
                }
                _ if self.copy.is_some() => return Ok(runnable),
                deadline => {
                    // Nothing can happen here before the outside moves (or a
                    // timer that runs with it).
                    self.flush_recording()?;
                    self.give_turn(true);
                    let before = host_nanoseconds();
                    self.look_outside(deadline.map(|deadline| deadline.saturating_sub(now)))?;
                    let passed = host_nanoseconds() - before;
                    self.clock.jumped += passed;
                    self.note(Step::Advance(passed))?;
                }
            }
        }
    }

    fn is_frozen(&self, thread: u32) -> bool {
        self.copy
            .as_ref()
            .is_some_and(|copy| copy.frozen.contains(&thread))
    }

    /// In a copy: when the next input arrives.
    fn next_arrival(&mut self, now: u64) -> Option<u64> {
        self.io.copy()?.inputs.next_arrival(now)
    }

    /// Makes this vm a copy that stops after `instructions` more: the recorded
    /// schedule becomes a guide, and nothing reaches the outside.
    pub(crate) fn become_copy(&mut self, instructions: u64) -> Result<(), Error> {
        // A copy of a copy goes on as that one would.
        if self.copy.is_none() {
            self.make_schedule_a_guide()?;
            self.cache.short_lived = true;
            self.io.become_copy()?;
            self.muted = true;
            self.tree = None;
            self.copy = Some(CopyState {
                limit: 0,
                frozen: BTreeSet::new(),
                slices: Vec::new(),
                looked_at: self.now(),
                preempt: HashSet::new(),
                preempted: None,
            });
        }
        self.limit(instructions);
        Ok(())
    }

    /// In a copy: stops after this many instructions from here on.
    pub fn limit(&mut self, instructions: u64) {
        let limit = self.instructions().saturating_add(instructions);
        if let Some(copy) = &mut self.copy {
            copy.limit = limit;
        }
    }

    fn make_schedule_a_guide(&mut self) -> Result<(), Error> {
        let mut slices = VecDeque::new();
        // The slice under way goes on first.
        let rest = self.slice.take();
        if let Some(slice) = rest {
            slices.push_back(Choice {
                thread: slice.thread,
                instructions: slice.planned - slice.done,
            });
        }
        if let Pace::Follow(steps) = &mut self.pace {
            if rest.is_some() {
                steps.next_step()?;
            }
            while let Some(step) = steps.next_step()? {
                if let Step::Slice {
                    thread,
                    instructions,
                    ..
                } = step
                {
                    slices.push_back(Choice {
                        thread,
                        instructions,
                    });
                }
            }
        }
        self.pace = Pace::Policy {
            policy: Box::new(Recorded::new(slices, crate::DEFAULT_QUANTUM)),
            steps: None,
        };
        Ok(())
    }

    /// In a copy: the slices it has run so far, the one under way included.
    /// A copy of the same world that follows them does the same.
    pub fn slices(&self) -> Vec<Choice> {
        let mut slices = self
            .copy
            .as_ref()
            .map_or_else(Vec::new, |copy| copy.slices.clone());
        if let Some(slice) = self.slice.filter(|slice| slice.done > 0) {
            slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
        slices
    }

    /// In a copy: slices may end before the instructions at these addresses,
    /// as they do at sequencers.
    pub fn preempt_at(&mut self, pcs: impl IntoIterator<Item = u64>) {
        for pc in pcs {
            if let Some(copy) = &mut self.copy {
                copy.preempt.insert(pc);
            }
            self.add_hook(pc);
        }
    }

    /// Ends the slice here, before an instruction of `preempt_at`; once.
    fn preempts(&mut self) -> bool {
        let (moment, pc) = (self.moment(), self.context.regs.rip);
        let Some(copy) = &mut self.copy else {
            return false;
        };
        if !copy.preempt.contains(&pc) || copy.preempted == Some(moment) || self.before_syscalls {
            return false;
        }
        copy.preempted = Some(moment);
        true
    }

    /// In a copy: holds a thread back, or lets it go on.
    pub fn freeze(&mut self, thread: u32, held: bool) {
        if let Some(copy) = &mut self.copy {
            if held {
                copy.frozen.insert(thread);
            } else {
                copy.frozen.remove(&thread);
            }
        }
        // The frozen thread's slice is over.
        self.break_off_slice();
    }

    /// The slice under way ends here, as far as it got.
    fn break_off_slice(&mut self) {
        if let Some(slice) = self.slice.take().filter(|slice| slice.done > 0)
            && let Some(copy) = &mut self.copy
        {
            copy.slices.push(Choice {
                thread: slice.thread,
                instructions: slice.done,
            });
        }
    }

    /// In a copy: schedules by `policy` from here on.
    pub fn schedule_by(&mut self, policy: Box<dyn Policy>) {
        if self.copy.is_some() {
            self.instrumentation.sequencers = policy.at_sequencers();
            self.flush_cache();
            self.break_off_slice();
            self.pace = Pace::Policy {
                policy,
                steps: None,
            };
        }
    }

    /// In a copy: the policy is not told who ran last, so that two copies that
    /// came here in different ways go on alike.
    pub fn forget_last_slice(&mut self) {
        self.slice = None;
        self.last_slice = None;
    }

    /// In a copy: runs one thread alone for at most `instructions`. With
    /// `to_sequencer` it stops before its next system call and after its next
    /// locked instruction.
    pub fn run_thread(
        &mut self,
        thread: u32,
        instructions: u64,
        to_sequencer: bool,
    ) -> Result<SliceEnd, Error> {
        if self.ended.is_some() || !self.threads.contains_key(&thread) {
            return Ok(SliceEnd::Exited);
        }
        if self.instrumentation.sequencers != to_sequencer {
            self.instrumentation.sequencers = to_sequencer;
            self.flush_cache();
        }
        self.before_syscalls = to_sequencer;
        self.break_off_slice();
        let slice = self.begin_slice(Choice {
            thread,
            instructions,
        });
        let end = self.run_part(slice.planned);
        self.before_syscalls = false;
        let end = end?;
        let done = self.retire();
        self.finish_slice(Slice { done, ..slice }, end)?;
        Ok(end)
    }

    /// Why a copy cannot go on.
    fn stuck(&self) -> Stop {
        let input = self.threads.values().any(|thread| {
            matches!(&thread.state, State::Blocked(wait)
                if wait.on.is_outside())
        });
        Stop::Stuck { input }
    }

    /// Signals that have reached the vm become the guest's.
    fn take_outside_signals(&mut self) -> Result<(), Error> {
        if !self.io.is_live() {
            return Ok(());
        }
        while let Some(info) = host_signals::take() {
            let info = info.recorded();
            self.signal_from_outside(0, &info)?;
            self.note(Step::Signal { thread: 0, info })?;
        }
        Ok(())
    }

    /// Gives back to the counter what a host signal handler took from it;
    /// true if one did: the slice is to end.
    fn mend_counter(&mut self) -> bool {
        let broken = std::mem::take(&mut self.context.broken);
        self.context.remaining += broken;
        broken != 0
    }

    /// A signal from outside waits: the slice gets a new, near end. Not here:
    /// flags that the counter has destroyed must be overwritten first.
    fn cut_slice(&mut self) -> bool {
        let remaining = self.remaining();
        let surplus = remaining.saturating_sub(4 * MAX_BLOCK as u64);
        self.granted -= surplus;
        self.set_remaining(remaining - surplus);
        self.cut |= surplus > 0;
        surplus > 0
    }

    /// Writes everything that has gathered to the recording.
    pub(crate) fn flush_recording(&mut self) -> Result<(), Error> {
        // Inputs first: a schedule without its inputs is of no use.
        self.io.flush()?;
        if let Pace::Policy {
            steps: Some(steps), ..
        } = &mut self.pace
        {
            steps.flush()?;
        }
        Ok(())
    }

    /// Looks whether host descriptors or children that threads wait for are
    /// ready, waiting for at most `timeout` nanoseconds (for ever with
    /// `None`), and makes those threads runnable.
    fn look_outside(&mut self, timeout: Option<u64>) -> Result<(), Error> {
        if self.copy.is_some() {
            self.look_at_arrivals();
            return Ok(());
        }
        let mut polled = Vec::new();
        let mut owners = Vec::new();
        let mut child_waiters = false;
        let mut retries = false;
        let (mut woken, mut again) = (Vec::new(), Vec::new());
        for (id, thread) in &self.threads {
            if let State::Blocked(wait) = &thread.state {
                match &wait.on {
                    WaitOn::Host(interests) => {
                        for interest in interests {
                            polled.push(libc::pollfd {
                                fd: interest.fd,
                                events: interest.events,
                                revents: 0,
                            });
                            owners.push(*id);
                        }
                    }
                    WaitOn::Child => child_waiters = true,
                    WaitOn::SharedFutex { slot, sequence } => {
                        let tree = self.tree.as_ref();
                        if tree.is_some_and(|tree| tree.futex_sequence(*slot) != *sequence) {
                            woken.push(*id);
                        }
                        retries = true;
                    }
                    WaitOn::Retry => {
                        if timeout != Some(0)
                            || host_nanoseconds() - self.retried_at > RETRY_INTERVAL
                        {
                            again.push(*id);
                        }
                        retries = true;
                    }
                    _ => {}
                }
            }
        }
        let mut timeout = timeout;
        if !woken.is_empty() {
            timeout = Some(0);
        } else if retries {
            timeout = Some(timeout.map_or(RETRY_INTERVAL, |time| time.min(RETRY_INTERVAL)));
        }
        if timeout != Some(0) || !polled.is_empty() || child_waiters {
            self.poll_outside(&mut polled, &owners, child_waiters, timeout);
        }
        if !again.is_empty() {
            self.retried_at = host_nanoseconds();
        }
        for id in woken.into_iter().chain(again) {
            if let Some(thread) = self.threads.get_mut(&id) {
                thread.state = State::Runnable;
            }
        }
        Ok(())
    }

    /// Waits for host descriptors and children; whoever waits for what has
    /// come can run.
    fn poll_outside(
        &mut self,
        polled: &mut [libc::pollfd],
        owners: &[u32],
        child_waiters: bool,
        timeout: Option<u64>,
    ) {
        let ready = kernel::outside::wait(polled, child_waiters, timeout);
        for (entry, owner) in polled.iter().zip(owners) {
            if entry.revents != 0
                && let Some(thread) = self.threads.get_mut(owner)
            {
                thread.state = State::Runnable;
            }
        }
        if ready.child {
            for thread in self.threads.values_mut() {
                if let State::Blocked(wait) = &thread.state
                    && wait.on == WaitOn::Child
                {
                    thread.state = State::Runnable;
                }
            }
        }
    }

    /// In a copy: whoever waits for the outside looks again when something has
    /// arrived since the last look.
    fn look_at_arrivals(&mut self) {
        let now = self.now();
        let Some(copy) = &mut self.copy else {
            return;
        };
        let Some(io) = self.io.copy() else {
            return;
        };
        let next = io.inputs.next_arrival(copy.looked_at);
        copy.looked_at = copy.looked_at.max(now);
        if next.is_some_and(|time| time <= now) {
            self.wake_outside_waiters();
        }
    }

    fn wake_outside_waiters(&mut self) {
        for thread in self.threads.values_mut() {
            if let State::Blocked(wait) = &thread.state
                && matches!(wait.on, WaitOn::Host(_) | WaitOn::Child)
            {
                thread.state = State::Runnable;
            }
        }
    }

    /// Runs the current thread for at most `budget` instructions.
    fn run_part(&mut self, budget: u64) -> Result<SliceEnd, Error> {
        self.granted = budget;
        self.cut = false;
        self.set_remaining(budget);
        if let Some(end) = self.resume_call()? {
            return Ok(end);
        }
        // Near the end of the slice linked blocks are too coarse.
        let mut walking = false;
        loop {
            let remaining = self.remaining();
            if remaining == 0 {
                return Ok(if self.cut {
                    SliceEnd::Interrupted
                } else {
                    SliceEnd::Expired
                });
            }
            walking |= remaining < SLACK;
            let mut host = self.entry(walking)?;
            // A hook or complex access at the block's start goes on behind it.
            loop {
                let exit_id = self.execute(host);
                let mut broken = self.mend_counter();
                let exit = self.cache.exit(exit_id);
                self.context.remaining += i64::from(exit.adjust);
                if exit.kind != ExitKind::Indirect && exit.kind != ExitKind::Fault {
                    self.context.regs.rip = exit.pc;
                }
                let end = match exit.kind {
                    ExitKind::Indirect if !is_canonical(self.context.regs.rip) => {
                        self.bad_branch(exit.pc)?
                    }
                    ExitKind::Indirect => {
                        if !walking {
                            let pc = self.context.regs.rip;
                            if let Some(block) = self.block(pc, LINKED) {
                                self.cache.enter_in_indirect_table(block);
                            }
                        }
                        None
                    }
                    ExitKind::Direct => {
                        if !walking {
                            let flushes = self.cache.flushes;
                            if let Some(block) = self.block(exit.pc, LINKED)
                                && self.cache.flushes == flushes
                            {
                                self.cache.link(exit_id, block);
                            }
                        }
                        None
                    }
                    // Not the end of a chunk, but a signal.
                    ExitKind::Quantum if broken => None,
                    ExitKind::Quantum => {
                        walking = !self.next_chunk(exit.block);
                        None
                    }
                    ExitKind::Syscall if self.before_syscalls => {
                        // Back to the two bytes of the instruction, uncounted.
                        self.context.regs.rip -= 2;
                        self.context.remaining += 1;
                        Some(SliceEnd::Sequencer)
                    }
                    ExitKind::Syscall => self.system_call()?,
                    ExitKind::Emulate => self.emulate()?,
                    ExitKind::Pause => self.give_way(SliceEnd::Yielded),
                    ExitKind::Sequencer => self.give_way(SliceEnd::Sequencer),
                    // The attempt counts, so it needs an instruction left.
                    ExitKind::Undecodable if self.remaining() == 0 => None,
                    ExitKind::Undecodable => self.bad_fetch()?,
                    ExitKind::Fault => self.host_fault()?,
                    ExitKind::RingFull => {
                        self.drain_ring();
                        None
                    }
                    ExitKind::LongRepeat => self.repeat_part(&mut broken)?,
                    ExitKind::PointersStored => {
                        self.clear_stored_pointers();
                        None
                    }
                    ExitKind::Hook if self.preempts() => Some(SliceEnd::Sequencer),
                    ExitKind::Hook => {
                        self.drain_ring();
                        self.hooked();
                        host = self.cache.block(exit.block).after_hook;
                        self.break_again(broken);
                        continue;
                    }
                    ExitKind::Complex => {
                        self.drain_ring();
                        self.complex_access();
                        host = self.cache.block(exit.block).after_complex;
                        self.break_again(broken);
                        continue;
                    }
                };
                if let Some(end) = end {
                    return Ok(end);
                }
                if broken && self.cut_slice() {
                    walking = false;
                }
                break;
            }
        }
    }

    /// The block goes on; its slice ends at the next one all the same.
    fn break_again(&mut self, broken: bool) {
        if broken {
            self.context.remaining -= BREAK;
            self.context.broken = BREAK;
        }
    }

    /// Ends the slice here, if a policy decides (a followed recording knows
    /// better).
    pub(crate) fn give_way(&mut self, end: SliceEnd) -> Option<SliceEnd> {
        match self.pace {
            Pace::Policy { .. } => Some(end),
            Pace::Follow(_) => None,
        }
    }

    /// A system call is a sequencer, for policies that ask for them.
    pub(crate) fn sequencer_after_call(&mut self) -> Option<SliceEnd> {
        if self.instrumentation.sequencers {
            self.give_way(SliceEnd::Sequencer)
        } else {
            None
        }
    }

    /// Enters translated code; returns the exit taken.
    fn execute(&mut self, host: u64) -> u32 {
        if self.context.ring_position > layout::RING_SIZE - RING_MARGIN {
            self.drain_ring();
        }
        if self.instrumentation.only_unknown && self.context.ring_position == 0 {
            let compare = self
                .observers
                .iter()
                .find(|observer| observer.interest().only_unknown)
                .map_or(Compare::Nothing, |observer| observer.known_by(self.current));
            self.context.known.renew(compare);
        }
        let Some(thread) = self.threads.get_mut(&self.current) else {
            unreachable!("the running thread exists");
        };
        // SAFETY: `host` is the entry of a block of the cache, whose common
        // exit was emitted when it was installed.
        unsafe { self.context.enter(host, &mut thread.vector) };
        self.context.exit as u32
    }

    /// The instruction at `pc` alone, from pages left writable. What was made
    /// of them is forgotten before anything else runs.
    fn alone(&mut self, pc: u64, variant: u32) -> u64 {
        let (translation, pages) = self.translate(pc, variant);
        self.stale.extend(pages);
        let block = self.cache.insert(variant, translation);
        self.cache.block(block).host
    }

    /// Executes one part of the long repeated string instruction at rip, as
    /// one instruction. A fault leaves the registers as the machine does: rcx
    /// holds all iterations that are left.
    fn repeat_part(&mut self, broken: &mut bool) -> Result<Option<SliceEnd>, Error> {
        let pc = self.context.regs.rip;
        let instruction = self.instruction_at(pc);
        let left = self.context.regs.gpr[reg::RCX] & count_mask(&instruction);
        if left > REPEAT_PART {
            self.later_parts = left - REPEAT_PART;
            self.context.regs.gpr[reg::RCX] = REPEAT_PART;
        }
        // Made from pages left writable, if the block before was.
        let guarded = self.stale.is_empty();
        let mut host = match guarded.then(|| self.block(pc, REPEAT)).flatten() {
            Some(block) => self.cache.block(block).host,
            None => self.alone(pc, REPEAT),
        };
        loop {
            let exit = self.execute(host);
            *broken |= self.mend_counter();
            let exit = self.cache.exit(exit);
            self.context.remaining += i64::from(exit.adjust);
            if exit.kind != ExitKind::Fault {
                break;
            }
            let end = self.host_fault()?;
            if !std::mem::take(&mut self.alone) {
                return Ok(end);
            }
            // It wrote to translated code: the rest of the part.
            host = self.alone(pc, REPEAT);
        }
        let later = std::mem::take(&mut self.later_parts);
        let regs = &mut self.context.regs;
        let rest = regs.gpr[reg::RCX] & count_mask(&instruction);
        let again = later > 0 && rest == 0 && !is_decided(&instruction, regs.rflags);
        regs.rip = if again { pc } else { instruction.next_ip() };
        if later > 0 {
            regs.gpr[reg::RCX] = rest + later;
        }
        Ok(None)
    }

    pub(crate) fn instruction_at(&self, pc: u64) -> Instruction {
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode()
    }

    /// Host address at which the current thread goes on.
    fn entry(&mut self, walking: bool) -> Result<u64, Error> {
        let pc = self.context.regs.rip;
        for page in std::mem::take(&mut self.stale) {
            self.cache.invalidate(page..page + layout::PAGE);
        }
        if std::mem::take(&mut self.alone) {
            return Ok(self.alone(pc, 1));
        }
        if !walking {
            // A block can always be made, if only to say that there is none.
            if let Some(block) = self.block(pc, LINKED) {
                return Ok(self.cache.block(block).host);
            }
        }
        let remaining = self.remaining();
        let whole = MAX_BLOCK as u32;
        for variant in [whole, remaining.min(u64::from(whole)) as u32] {
            if let Some(block) = self.block(pc, variant) {
                let block = self.cache.block(block);
                if u64::from(block.instructions) <= remaining {
                    return Ok(block.host);
                }
            }
        }
        Err(Error::Machine(format!("no code could be made for {pc:#x}")))
    }

    /// The block at `pc`, translated if need be.
    fn block(&mut self, pc: u64, variant: u32) -> Option<u32> {
        if let Some(block) = self.cache.find(pc, variant) {
            return Some(block);
        }
        let (translation, pages) = self.translate(pc, variant);
        for page in pages {
            self.space.guard_code(page);
        }
        Some(self.cache.insert(variant, translation))
    }

    /// Translates the block at `pc`; says which pages it was made from.
    fn translate(&mut self, pc: u64, variant: u32) -> (Translation, Vec<u64>) {
        let flushes = self.cache.flushes;
        let shape = if variant == LINKED && self.hot.contains(&pc) {
            Shape::Trace
        } else {
            Shape::Basic
        };
        let space = &self.space;
        let observers = &mut self.observers;
        let fetch = |pc: u64, buffer: &mut [u8; 15]| space.fetch(pc, buffer);
        let translation = self.translator.translate(
            &mut self.cache,
            pc,
            variant,
            shape,
            &fetch,
            &self.instrumentation,
            &mut self.sites,
            &mut |pc| {
                observers
                    .iter_mut()
                    .any(|observer| observer.begins_epoch(pc))
            },
        );
        if self.cache.flushes != flushes {
            // The sites of the dropped code go with it at the next flush by
            // the vm; records already in the ring still name them.
            self.drain_ring();
        }
        let pages = pages_of(&translation.guest).collect();
        (translation, pages)
    }

    /// Forgets translations of a guest range that changed.
    pub(crate) fn code_changed(&mut self, range: std::ops::Range<u64>) {
        self.cache.invalidate(range);
    }

    /// The indirect branch at `pc` went to an address that no program counter
    /// can hold. The machine raises that in the branch itself: takes it back.
    fn bad_branch(&mut self, pc: u64) -> Result<Option<SliceEnd>, Error> {
        let branch = self.instruction_at(pc);
        // A call has pushed eight bytes, a return popped them and more.
        let moved = branch.stack_pointer_increment() as i64 as u64;
        let stack = &mut self.context.regs.gpr[reg::RSP];
        *stack = stack.wrapping_sub(moved);
        self.context.regs.rip = pc;
        self.context.remaining += 1;
        // A general protection fault.
        let trap = Trap {
            number: 13,
            ..Trap::default()
        };
        self.guest_fault(libc::SIGSEGV, 128 /* SI_KERNEL */, 0, trap)
    }

    /// No instruction can be executed at rip.
    fn bad_fetch(&mut self) -> Result<Option<SliceEnd>, Error> {
        let pc = self.context.regs.rip;
        let mut bytes = [0; 15];
        let length = self.space.fetch(pc, &mut bytes);
        if length == 15 || (length > 0 && self.space.find(pc + length as u64).is_some()) {
            let trap = Trap {
                number: 6,
                ..Trap::default()
            };
            self.guest_fault(libc::SIGILL, 2 /* ILL_ILLOPN */, pc, trap)
        } else {
            let address = pc + length as u64;
            let mapped = self.space.find(address).is_some();
            // A page fault of an instruction fetch in user mode.
            let trap = Trap {
                number: 14,
                error: 0x14 | u64::from(mapped),
                address,
            };
            let code = if mapped { 2 } else { 1 };
            self.guest_fault(libc::SIGSEGV, code, address, trap)
        }
    }

    /// A fault in translated code: restores the guest's state at the faulting
    /// instruction and decides whose fault it is.
    fn host_fault(&mut self) -> Result<Option<SliceEnd>, Error> {
        let fault = self.context.fault;
        let trap = fault.signal == libc::SIGTRAP;
        let host_pc = fault.host_pc - u64::from(trap);
        let Some(block) = self.cache.block_at_host(host_pc) else {
            return Err(Error::Machine(format!(
                "signal {} outside any block of the code cache, at {host_pc:#x} (address {:#x})",
                fault.signal, fault.address
            )));
        };
        let state = block.state_at(host_pc);
        let instructions = block.instructions;
        self.context.regs.rip = block.pc.wrapping_add_signed(i64::from(state.guest));
        for register in 0..16 {
            if state.spilled & (1 << register) != 0 {
                self.context.regs.gpr[register] = self.context.spill[register];
            }
        }
        self.context.remaining += if state.counted {
            i64::from(instructions) - i64::from(state.index)
        } else {
            -i64::from(state.index)
        };
        self.drop_records_after_fault();
        if fault.signal == libc::SIGSEGV
            && let Some(page) = self.space.unguard_code(fault.address)
        {
            self.cache.invalidate(page..page + layout::PAGE);
            // If the instruction writes to the page it lies on, translating it
            // the usual way would guard the page again before it has run.
            self.alone = true;
            return Ok(None);
        }
        self.context.regs.gpr[reg::RCX] += std::mem::take(&mut self.later_parts);
        let pc = self.context.regs.rip;
        if trap {
            // int3 is complete when it traps.
            self.context.regs.rip += 1;
            self.context.remaining -= 1;
        }
        let address = if fault.signal == libc::SIGSEGV || fault.signal == libc::SIGBUS {
            fault.address
        } else {
            pc
        };
        let trap = Trap {
            number: fault.trap_number,
            error: fault.trap_error,
            address: if fault.trap_number == 14 {
                fault.address
            } else {
                0
            },
        };
        self.guest_fault(fault.signal, fault.code, address, trap)
    }

    /// Accesses recorded by the faulting instruction did not happen.
    fn drop_records_after_fault(&mut self) {
        let pc = self.context.regs.rip;
        while self.context.ring_position >= 16 {
            let (_, site, counter) = self.record_at(self.context.ring_position - 16);
            let site = self.sites.get(site);
            let remaining = (counter as i32).wrapping_add(site.correction);
            if site.pc != pc || remaining != self.context.remaining as i32 {
                break;
            }
            self.context.ring_position -= 16;
        }
    }

    fn record_at(&self, position: u64) -> (u64, u32, u32) {
        let at = layout::RING + position;
        // SAFETY: positions below ring_position lie in the mapped ring and
        // were written by translated code.
        unsafe {
            (
                *(at as *const u64),
                *((at + 8) as *const u32),
                *((at + 12) as *const u32),
            )
        }
    }

    /// Hands recorded accesses to the observers.
    fn drain_ring(&mut self) {
        let end = std::mem::take(&mut self.context.ring_position);
        if end == 0 {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let done = self
            .threads
            .get(&self.current)
            .map_or(0, |thread| thread.executed);
        for position in (0..end).step_by(16) {
            let (address, site, counter) = self.record_at(position);
            let site = self.sites.get(site);
            // The counter's low half and the slice's length give the count.
            let remaining = i64::from(counter as i32) + SLACK as i64 + i64::from(site.correction);
            let executed = (self.granted - self.reserve) as i64 - remaining;
            batch.push(AccessEvent {
                moment: Moment::new(self.current, done + executed as u64),
                pc: site.pc,
                address,
                size: site.size,
                read: site.read,
                write: site.write,
                locked: site.locked,
            });
        }
        for observer in &mut self.observers {
            observer.accesses(&batch);
        }
        self.batch = batch;
    }

    pub(crate) fn observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Tells every observer something, after all accesses before it.
    pub(crate) fn tell_observers(&mut self, tell: impl Fn(&mut dyn Observer, &Registers)) {
        self.drain_ring();
        for observer in &mut self.observers {
            tell(observer.as_mut(), &self.context.regs);
        }
    }

    /// Control reached an address an observer asked for, or returned from
    /// there.
    fn hooked(&mut self) {
        let moment = self.moment();
        let regs = self.context.regs;
        let stack = regs.gpr[reg::RSP];
        let thread = self.current;
        let mut returned = Vec::new();
        self.returns.retain(|pending| {
            if pending.thread != thread || pending.stack > stack {
                return true;
            }
            // Frames below the stack pointer were left some other way.
            if pending.stack == stack && pending.pc == regs.rip {
                returned.push(pending.function);
            }
            false
        });
        for function in returned {
            for observer in &mut self.observers {
                observer.returned(moment, function, &regs);
            }
        }
        if !self.entries.contains(&regs.rip) {
            return;
        }
        let mut follow = false;
        for observer in &mut self.observers {
            follow |= observer.hook(moment, &regs) == AfterHook::TellReturn;
        }
        self.take_more_hooks();
        if follow && let Ok(back) = memory::get::<u64>(stack) {
            self.returns.push(PendingReturn {
                thread,
                stack: stack + 8,
                pc: back,
                function: regs.rip,
            });
            self.add_hook(back);
        }
    }

    pub(crate) fn tell_unmapped(&mut self, range: std::ops::Range<u64>) {
        if self.observers.is_empty() {
            return;
        }
        self.drain_ring();
        let moment = self.moment();
        for observer in &mut self.observers {
            observer.unmapped(moment, range.clone());
        }
    }

    /// Tells observers that the system call just executed read or wrote guest
    /// memory; its moment is that of the instruction.
    pub(crate) fn tell_kernel_access(&mut self, address: u64, size: u64, write: bool) {
        if self.observers.is_empty() || size == 0 {
            return;
        }
        self.drain_ring();
        let mut moment = self.moment();
        moment.count = moment.count.saturating_sub(1);
        for observer in &mut self.observers {
            observer.kernel_access(moment, address, size, write);
        }
    }

    /// Hooks that observers have found a need for while running.
    pub(crate) fn take_more_hooks(&mut self) {
        let mut more = Vec::new();
        for observer in &mut self.observers {
            more.extend(observer.more_hooks());
        }
        for pc in more {
            self.entries.insert(pc);
            self.add_hook(pc);
        }
    }

    fn add_hook(&mut self, pc: u64) {
        if self.instrumentation.hooks.insert(pc) {
            self.cache.invalidate(pc..pc + 1);
        }
    }

    /// Code of a file was mapped: observers may want to follow functions in
    /// it.
    pub(crate) fn tell_code_mapped(
        &mut self,
        range: std::ops::Range<u64>,
        path: &std::path::Path,
        offset: u64,
    ) {
        let mut wanted = Vec::new();
        for observer in &mut self.observers {
            wanted.extend(observer.code_mapped(range.clone(), path, offset));
        }
        for pc in wanted {
            self.entries.insert(pc);
            self.add_hook(pc);
        }
    }

    /// Address of the memory operand of an instruction about to be executed or
    /// just executed without changing a register.
    pub(crate) fn memory_operand(&self, instruction: &Instruction) -> u64 {
        self.threads.get(&self.current).map_or(0, |thread| {
            let machine = complex::Machine {
                regs: &self.context.regs,
                vector: &thread.vector,
            };
            machine.address(instruction)
        })
    }

    /// The accesses of the instruction at rip, whose extent its state tells.
    fn complex_access(&mut self) {
        let moment = self.moment();
        let mut code = [0; 15];
        let length = self.space.fetch(self.context.regs.rip, &mut code);
        let Some(thread) = self.threads.get(&self.current) else {
            return;
        };
        let mut regs = self.context.regs;
        let rcx = &mut regs.gpr[reg::RCX];
        if is_long_repeat(*rcx) {
            let pc = regs.rip;
            let instruction =
                Decoder::with_ip(64, &code[..length], pc, DecoderOptions::NONE).decode();
            if is_repeated(&instruction) {
                // The accesses of this part.
                *rcx = (*rcx & count_mask(&instruction)).min(REPEAT_PART);
            }
        }
        let machine = complex::Machine {
            regs: &regs,
            vector: &thread.vector,
        };
        let batch = complex::accesses(&machine, &code[..length], moment);
        for observer in &mut self.observers {
            observer.accesses(&batch);
        }
    }

    pub(crate) fn tell_thread(&mut self, event: ThreadEvent) {
        if self.observers.is_empty() {
            return;
        }
        self.drain_ring();
        let moment = self.moment();
        for observer in &mut self.observers {
            observer.thread(moment, event);
        }
    }
}

/// The bits of rcx that count the iterations of a repeated string instruction.
fn count_mask(instruction: &Instruction) -> u64 {
    use iced_x86::OpKind;
    let short = instruction
        .op_kinds()
        .any(|kind| matches!(kind, OpKind::MemorySegESI | OpKind::MemoryESEDI));
    if short { 0xffff_ffff } else { u64::MAX }
}

/// True if a repeated comparison stops because of what it compared last.
fn is_decided(instruction: &Instruction, rflags: u64) -> bool {
    use Mnemonic::*;
    let compares = matches!(
        instruction.mnemonic(),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq
    );
    let equal = rflags & 0x40 != 0;
    compares && equal == instruction.has_repne_prefix()
}

/// True if a branch to this address can be made, though it may fault there: its
/// upper bits repeat bit 47. (With five levels of page tables it would be bit
/// 56; the addresses between are never mapped and fault either way.)
fn is_canonical(address: u64) -> bool {
    const UNUSED: u32 = 64 - 48;
    ((address << UNUSED) as i64 >> UNUSED) as u64 == address
}

fn host_nanoseconds() -> u64 {
    // SAFETY: plain out-parameter.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}
