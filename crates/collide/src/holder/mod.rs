//! The holder: the small separate process that holds the target.
//!
//! It does what must be done to the target and nothing else: plants and
//! removes one-shot code breakpoints, and when one fires, looks for conflicts
//! (paper 002, section 3.2): arms data breakpoints, reads the value, waits,
//! disarms, reads again, lets the thread run on. What to sample is decided in
//! the front end; names, stacks and reports are made there too.
//!
//! What the kernel does with the target when this process is killed stands in
//! `news`.
//!
//! It ignores the terminal's signals. When the front end ends in whatever way,
//! the socket closes and the holder puts every byte back, makes sure that no
//! thread is on its way out of a removed breakpoint, and exits; the kernel
//! then lets go of every thread without waking those that sleep in a system
//! call.
//!
//! Differences from the paper: breakpoints are `int3` bytes written from
//! outside instead of from a kernel driver; a thread is held by ptrace instead
//! of spinning in the handler; several samples may be in flight, one debug
//! register (or more, for wide accesses) each; how long a thread may be held
//! depends on how long its breakpoint stood, so that code that runs rarely is
//! watched longer at the same cost.

pub mod ptrace;
pub mod watch;

mod begin;
mod core_dump;
mod descriptors;
mod flight;
mod launch;
mod news;
mod perf;
mod place;
mod plant;
mod purse;
mod running;
mod space;
mod talk;
mod task;
mod wake;

use crate::lifeline::{Brake, Lifeline};
use crate::link::Link;
use crate::planted::PlantedTable;
use crate::wire::{Ended, Event, Outcome, Pick};
use flight::Flight;
use launch::Launched;
use news::News;
use place::Placed;
use plant::BUSY;
use ptrace::{Change, Registers, Tid};
use purse::Purse;
use running::{Running, Switching};
use space::{Planted, Space};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};
use talk::repair_mask;
use task::SystemCall;
use wake::Alarm;
use watch::Watchpoints;

/// What to hold.
#[derive(Debug, Clone)]
pub enum Target {
    Launch(Vec<String>),
    Attach(Vec<i32>),
}

/// How the holder works; fixed for a session.
#[derive(Debug, Clone)]
pub struct Settings {
    pub target: Target,
    /// Use data breakpoints per thread even if per CPU is allowed.
    pub per_thread: bool,
    /// The process number of the front end.
    pub front: u32,
}

struct Task {
    group: Tid,
    space: u32,
    call: SystemCall,
    placed: Placed,
}

impl Task {
    fn new(tid: Tid, group: Tid, space: u32) -> Task {
        Task {
            group,
            space,
            call: SystemCall::open(tid),
            placed: Placed::default(),
        }
    }
}

/// A thread that has run into a breakpoint and waits to be looked at.
struct Arrival {
    tid: Tid,
    space: u32,
    planted: Planted,
    registers: Registers,
    now: Instant,
}

struct Holder {
    link: Link,
    table: PlantedTable,
    alarm: Alarm,
    watch: Watchpoints,
    running: Running,
    switching: Switching,
    can_follow: bool,
    /// Threads that may still begin to be followed after the last stop.
    to_follow: usize,
    spaces: HashMap<u32, Space>,
    tasks: HashMap<Tid, Task>,
    next_space: u32,
    /// Threads that wait for their flight to begin, until all who ran into
    /// the same breakpoint have been sent on.
    arrivals: Vec<Arrival>,
    /// Samples in flight: threads held at their access.
    flights: Vec<Flight>,
    live: VecDeque<Pick>,
    /// Sweep and cold picks that wait to be planted.
    crowd: VecDeque<Pick>,
    next_live: Instant,
    /// Live picks that are planted when samples end, until the next is due.
    chain: u32,
    expiry: BinaryHeap<Reverse<(Instant, u32, u64)>>,
    per_second: u32,
    share: u32,
    short: Duration,
    purse: Purse,
    ended: Vec<Ended>,
    last_told: Instant,
    stopped: u64,
    /// Threads that came second to a breakpoint.
    bounced: u64,
    /// Data breakpoints set on other CPUs.
    armed: u64,
    overlapped: u64,
    /// Nanoseconds in which at least one thread was held, up to `held_until`.
    held: u64,
    held_until: Instant,
    random: u64,
    /// Taken from the kernel and not handled yet, in its order.
    news: VecDeque<News>,
    /// Slows this process's death down.
    brake: Option<Brake>,
    launched: Option<Launched>,
    /// exec of the launched program has happened.
    started: bool,
    core_folder: Option<String>,
    stopping: bool,
    /// The front end, until it has been given a higher priority.
    front: Option<u32>,
    /// Threads that have been seen stopped since everything was removed.
    detached: HashSet<Tid>,
    detaching: bool,
    analyser: crate::instruction::Analyser,
    notes: Vec<String>,
}

/// Runs the holder in this process until its work is done.
pub fn run(link: Link, table: PlantedTable, lifeline: Lifeline, settings: &Settings) {
    let mut link = link;
    // From the lifeline on this process has two threads: what is forked has been
    // forked, and nothing has been planted.
    let begun = Holder::begin(&mut link, table, settings).and_then(|parts| {
        lifeline
            .hold()
            .map_err(|error| begin::refuse("cannot start a thread", &error))?;
        Ok(parts)
    });
    match begun {
        Err((code, text)) => {
            link.send(&Event::Failed { code, text });
            wait_until_sent(&mut link);
        }
        Ok(parts) => {
            let mut holder = parts.hold(link);
            // Whatever goes wrong inside, the target must be put right.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| holder.work()));
            if outcome.is_err() {
                holder
                    .notes
                    .push("the holder failed inside; see above".into());
            }
            let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| holder.let_go()));
            let note = holder.notes.join("; ");
            holder.tell(true);
            holder.link.send(&Event::Released {
                left: left.unwrap_or(u32::MAX),
                note,
            });
            wait_until_sent(&mut holder.link);
        }
    }
}

fn wait_until_sent(link: &mut Link) {
    for _ in 0..1000 {
        if link.flush() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Holder {
    fn work(&mut self) {
        while !self.stopping {
            if !self.reap() {
                break;
            }
            let now = Instant::now();
            self.collect_hits();
            self.end_flights(now);
            self.follow_threads();
            self.plant_due(now);
            self.plant_crowd(now);
            self.expire(now);
            if now.duration_since(self.last_told) >= self.tell_every() {
                self.tell(false);
            }
            self.wait(now);
        }
    }

    /// Brings `held` up to date; called whenever a thread begins or ceases to
    /// be held.
    fn count_held(&mut self, now: Instant) {
        if !self.flights.is_empty() {
            self.held += now.saturating_duration_since(self.held_until).as_nanos() as u64;
        }
        self.held_until = now;
    }

    fn random(&mut self) -> u64 {
        // xorshift64*: enough to spread delays.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Handles every change of state that is pending; false when nobody is
    /// left.
    fn reap(&mut self) -> bool {
        loop {
            let anybody = self.gather();
            if let Some(news) = self.news.pop_front() {
                self.changed(news);
                continue;
            }
            for arrival in std::mem::take(&mut self.arrivals) {
                self.begin_flight(arrival);
            }
            if self.news.is_empty() {
                return anybody && (!self.tasks.is_empty() || self.launched.is_some());
            }
        }
    }

    fn changed(&mut self, news: News) {
        let News {
            tid,
            change,
            at,
            breakpoint,
        } = news;
        if let Some(registers) = breakpoint {
            self.at_breakpoint(tid, registers, at);
            return;
        }
        match change {
            Change::Exited(_) | Change::Killed(_) => self.gone(tid, change),
            Change::Event(event, signal) => {
                if !self.tasks.contains_key(&tid) {
                    self.adopt(tid);
                }
                if event == libc::PTRACE_EVENT_EXEC {
                    self.executed(tid);
                }
                if event == ptrace::EVENT_STOP && signal != libc::SIGTRAP {
                    // A group stop: stay in it, as if nobody watched.
                    if self.detaching {
                        self.release_stopped(tid, 0);
                    } else {
                        let _ = ptrace::listen(tid);
                    }
                    return;
                }
                self.run_on(tid, 0);
            }
            Change::Signal(signal) => {
                if !self.tasks.contains_key(&tid) {
                    self.adopt(tid);
                }
                if signal == libc::SIGTRAP {
                    self.trapped(tid);
                } else {
                    self.run_on(tid, signal);
                }
            }
        }
    }

    fn run_on(&mut self, tid: Tid, signal: i32) {
        if self.detaching {
            self.release_stopped(tid, signal);
        } else {
            // It may have been killed in this instant; its end is reported.
            let _ = ptrace::resume(tid, signal);
        }
    }

    /// Lets a stopped thread go for good, unless it has run into a breakpoint
    /// and not been told yet: the kernel stops a thread that was interrupted
    /// before it delivers the trap, which would end the program if nobody
    /// traced it. Such a thread runs on to its trap.
    fn release_stopped(&mut self, tid: Tid, signal: i32) {
        if task::trap_pending(tid) && !task::blocks_traps(tid) {
            let _ = ptrace::resume(tid, signal);
            return;
        }
        let _ = ptrace::detach(tid, signal);
        self.detached.insert(tid);
    }

    fn gone(&mut self, tid: Tid, change: Change) {
        // A program that could not be started may be gone before it is known as
        // a task.
        if let Some(launched) = self.launched.take_if(|launched| launched.pid == tid) {
            let failure = if self.started {
                None
            } else {
                launched.failure()
            };
            match (failure, change) {
                (Some(error), _) => self.link.send(&Event::Failed {
                    code: race::exit_code::USAGE,
                    text: error.to_string(),
                }),
                (None, Change::Killed(signal)) => self.link.send(&Event::ProgramEnded {
                    status: 128 + signal,
                }),
                (None, Change::Exited(code)) => {
                    self.link.send(&Event::ProgramEnded { status: code });
                }
                _ => {}
            }
        }
        self.drop_flights(|flying| flying == tid);
        self.forget_events(tid);
        self.leave(tid);
    }

    fn forget_events(&mut self, tid: Tid) {
        self.watch.forget_thread(tid);
        self.running.forget(tid);
        self.switching.forget(tid);
    }

    /// Takes a task off the books; the last one of a space takes the space
    /// along.
    fn leave(&mut self, tid: Tid) {
        let Some(task) = self.tasks.remove(&tid) else {
            return;
        };
        let other = self
            .tasks
            .iter()
            .find(|(_, other)| other.space == task.space)
            .map(|(tid, _)| *tid);
        match other {
            Some(other) => {
                if let Some(space) = self.spaces.get_mut(&task.space)
                    && space.via == tid
                {
                    space.reach_through(other, &self.table);
                }
            }
            None => {
                if let Some(mut space) = self.spaces.remove(&task.space) {
                    for planted in space.abandon(&mut self.table) {
                        self.note_end(&planted.pick, Outcome::Expired);
                    }
                    self.link.send(&Event::SpaceGone { space: space.id });
                }
            }
        }
    }

    /// Begins to know a task that has just been attached or born.
    fn adopt(&mut self, tid: Tid) {
        let Some(group) = task::group(tid) else {
            return;
        };
        let relative = self
            .tasks
            .values()
            .find(|task| task.group == group)
            .map(|task| task.space)
            .or_else(|| {
                self.spaces
                    .values()
                    .find(|space| task::share_memory(tid, space.via) == Some(true))
                    .map(|space| space.id)
            });
        let space = match relative {
            Some(space) => space,
            None => match self.new_space(tid) {
                Some(space) => space,
                None => return,
            },
        };
        self.tasks.insert(tid, Task::new(tid, group, space));
    }

    fn new_space(&mut self, tid: Tid) -> Option<u32> {
        let id = self.next_space;
        let mut space = match Space::open(id, tid) {
            Ok(space) => space,
            Err(error) => {
                self.notes
                    .push(format!("memory of process {tid} cannot be opened: {error}"));
                return None;
            }
        };
        self.next_space += 1;
        let now = Instant::now();
        for parent in self.spaces.values() {
            parent.clean_copy(&mut space, now);
        }
        self.spaces.insert(id, space);
        // Before exec a launched child still is a copy of the holder.
        if self.launched.is_none() || self.started {
            self.link.send(&Event::Space {
                space: id,
                pid: tid,
            });
        }
        Some(id)
    }

    /// `tid` has replaced its program: the other threads of its process are
    /// gone, the memory is new.
    fn executed(&mut self, tid: Tid) {
        self.started = true;
        let others: Vec<Tid> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.group == tid)
            .map(|(tid, _)| *tid)
            .collect();
        self.drop_flights(|flying| others.contains(&flying));
        for other in others {
            self.forget_events(other);
            self.leave(other);
        }
        if let Some(space) = self.new_space(tid) {
            self.tasks.insert(tid, Task::new(tid, tid, space));
        }
    }

    /// A task is about to receive SIGTRAP, and not by a code breakpoint.
    fn trapped(&mut self, tid: Tid) {
        let space = self.tasks.get(&tid).map(|task| task.space);
        let ours = match (ptrace::signal_code(tid), ptrace::registers(tid)) {
            (Ok(ptrace::TRAP_HWBKPT), Ok(_)) => true,
            (Ok(ptrace::TRAP_BRKPT), Ok(registers)) => !self.is_int1(space, registers.rip),
            _ => false,
        };
        // One of our data breakpoints fired while it was being removed: the
        // kernel finds no owner for it, or the processor's status register
        // already cleared, which it takes for `int1`, and signals the thread.
        // Nobody else can set one while we trace the program.
        self.run_on(tid, if ours { 0 } else { libc::SIGTRAP });
    }

    /// A thread has run into a breakpoint of ours and been set back to it.
    fn at_breakpoint(&mut self, tid: Tid, registers: Registers, now: Instant) {
        repair_mask(tid);
        let Some(space_id) = self.tasks.get(&tid).map(|task| task.space) else {
            self.run_on(tid, 0);
            return;
        };
        let planted = self
            .spaces
            .get_mut(&space_id)
            .and_then(|space| space.unplant(registers.rip, &mut self.table, now));
        let Some(planted) = planted else {
            // Another thread was first; the instruction is back in place.
            self.run_on(tid, 0);
            self.bounced += 1;
            self.stopped += now.elapsed().as_nanos() as u64;
            return;
        };
        if self.detaching {
            self.run_on(tid, 0);
            self.note_stop(&planted.pick, Outcome::Seen, Stop::of(now.elapsed()));
            return;
        }
        self.arrivals.push(Arrival {
            tid,
            space: space_id,
            planted,
            registers,
            now,
        });
    }

    /// The instruction that ends at `rip` is `int1`, the program's own trap.
    fn is_int1(&self, space: Option<u32>, rip: u64) -> bool {
        const INT1: u8 = 0xf1;
        space
            .and_then(|space| self.spaces.get(&space))
            .is_some_and(|space| space.read(rip.wrapping_sub(1), 1) == [INT1])
    }

    /// A breakpoint has ended without stopping anybody.
    fn note_end(&mut self, pick: &Pick, outcome: Outcome) {
        self.note_stop(pick, outcome, Stop::of(Duration::ZERO));
    }

    fn note_stop(&mut self, pick: &Pick, outcome: Outcome, stop: Stop) {
        let stopped = stop.stopped.as_nanos() as u64;
        self.stopped += stopped;
        // The holder works or spins for all of a short stop; of a long one it
        // sleeps through most.
        let napped = (stop.napped.as_nanos() as u64).min(stopped);
        self.overlapped += (stopped - napped).min(BUSY);
        self.ended.push(Ended {
            site: pick.site,
            space: pick.space,
            purpose: pick.purpose,
            outcome,
            stopped,
            waited: stop.waited.as_nanos() as u64,
            napped,
            stalled: stop.stalled,
        });
    }
}

/// How long a thread was stopped at a breakpoint.
struct Stop {
    stopped: Duration,
    /// The part of it that was a hold longer than the short one.
    waited: Duration,
    /// The part of a short hold that the holder slept through.
    napped: Duration,
    /// The wait was cut short because nobody made progress.
    stalled: bool,
}

impl Stop {
    fn of(stopped: Duration) -> Stop {
        Stop {
            stopped,
            waited: Duration::ZERO,
            napped: Duration::ZERO,
            stalled: false,
        }
    }
}
