//! The holder: the small separate process that holds the target.
//!
//! It does what must be done to the target and nothing else: plants and
//! removes one-shot code breakpoints, and when one fires, looks for conflicts
//! (paper 002, section 3.2): arms data breakpoints, reads the value, waits,
//! disarms, reads again, lets the thread run on. What to sample is decided in
//! the front end; names, stacks and reports are made there too.
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

mod core_dump;
mod flight;
mod launch;
mod space;
mod task;

use crate::link::Link;
use crate::planted::{LIVE, PlantedTable};
use crate::wire::{Ended, Event, Order, Outcome, Pick, Purpose};
use flight::Flight;
use launch::Launched;
use ptrace::{Change, Tid};
use space::Space;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
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
}

/// Waits shorter than this are spent spinning: a sleep of this length
/// overshoots by as much again, and the held thread's CPU is free anyway.
const SPIN: Duration = Duration::from_micros(120);
/// Costs and finished breakpoints are told to the front end this often.
const TELL: Duration = Duration::from_millis(30);
/// How long letting go may take before the holder gives up waiting for
/// threads that do not stop.
const LETTING_GO: Duration = Duration::from_secs(3);

/// Nanoseconds the holder is busy at most while a thread is stopped.
const BUSY: u64 = 150_000;
/// Breakpoints planted or removed in one turn: some tens of microseconds.
const SLICE: usize = 16;

const COMMAND_TOKEN: u64 = 1;
const CHILD_TOKEN: u64 = 2;

struct Task {
    group: Tid,
    space: u32,
}

struct Holder {
    link: Link,
    table: PlantedTable,
    epoll: OwnedFd,
    children: OwnedFd,
    watch: Watchpoints,
    spaces: HashMap<u32, Space>,
    tasks: HashMap<Tid, Task>,
    next_space: u32,
    /// Samples in flight: threads held at their access.
    flights: Vec<Flight>,
    live: VecDeque<Pick>,
    /// Sweep and cold picks that wait to be planted.
    crowd: VecDeque<Pick>,
    next_live: Instant,
    expiry: BinaryHeap<Reverse<(Instant, u32, u64)>>,
    per_second: u32,
    share: u32,
    short: Duration,
    ended: Vec<Ended>,
    last_told: Instant,
    stopped: u64,
    overlapped: u64,
    /// Nanoseconds in which at least one thread was held, up to `held_until`.
    held: u64,
    held_until: Instant,
    random: u64,
    launched: Option<Launched>,
    /// exec of the launched program has happened.
    started: bool,
    core_folder: Option<String>,
    stopping: bool,
    /// Threads that have been seen stopped since everything was removed.
    detached: HashSet<Tid>,
    detaching: bool,
    analyser: crate::instruction::Analyser,
    notes: Vec<String>,
}

/// Runs the holder in this process until its work is done.
pub fn run(link: Link, table: PlantedTable, settings: &Settings) {
    let mut link = link;
    let begun = Holder::begin(&mut link, table, settings);
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

/// Everything that can fail has succeeded.
struct Parts {
    table: PlantedTable,
    epoll: OwnedFd,
    children: OwnedFd,
    watch: Watchpoints,
    launched: Option<Launched>,
    attached: Vec<i32>,
}

type Refusal = (i32, String);

fn refuse(what: &str, error: &io::Error) -> Refusal {
    (race::exit_code::FAILURE, format!("{what}: {error}"))
}

impl Parts {
    fn hold(self, link: Link) -> Holder {
        let now = Instant::now();
        let mut holder = Holder {
            link,
            table: self.table,
            epoll: self.epoll,
            children: self.children,
            watch: self.watch,
            spaces: HashMap::new(),
            tasks: HashMap::new(),
            next_space: 1,
            flights: Vec::new(),
            live: VecDeque::new(),
            crowd: VecDeque::new(),
            next_live: now,
            expiry: BinaryHeap::new(),
            per_second: 0,
            share: 50_000,
            short: Duration::from_micros(50),
            ended: Vec::new(),
            last_told: now,
            stopped: 0,
            overlapped: 0,
            held: 0,
            held_until: now,
            random: seed(),
            launched: self.launched,
            started: false,
            core_folder: None,
            stopping: false,
            detached: HashSet::new(),
            detaching: false,
            analyser: crate::instruction::Analyser::default(),
            notes: Vec::new(),
        };
        holder.link.send(&Event::Holding {
            scope: match holder.watch.scope() {
                watch::Scope::PerCpu => 0,
                watch::Scope::PerThread => 1,
                watch::Scope::None => 2,
            },
            sees_kernel: holder.watch.sees_kernel(),
            why_not: holder.watch.why_not().unwrap_or_default().to_string(),
        });
        if let Some(launched) = &holder.launched {
            let pid = launched.pid;
            holder.adopt(pid);
        }
        for pid in self.attached {
            holder.adopt(pid);
        }
        holder
    }
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: getrandom fills at most the eight bytes given.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    u64::from_ne_bytes(bytes) | 1
}

impl Holder {
    fn begin(link: &mut Link, table: PlantedTable, settings: &Settings) -> Result<Parts, Refusal> {
        let launched = match &settings.target {
            Target::Launch(command) => Some(
                Launched::prepare(command)
                    .map_err(|error| refuse("cannot start a process", &error))?,
            ),
            Target::Attach(_) => None,
        };
        become_background();
        // SAFETY: fresh descriptors from the kernel.
        let (epoll, children) = unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            libc::sigaddset(&raw mut mask, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
            let children =
                libc::signalfd(-1, &raw const mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if epoll < 0 || children < 0 {
                return Err(refuse(
                    "cannot wait for events",
                    &io::Error::last_os_error(),
                ));
            }
            (OwnedFd::from_raw_fd(epoll), OwnedFd::from_raw_fd(children))
        };
        for (fd, token) in [
            (link.descriptor(), COMMAND_TOKEN),
            (children.as_raw_fd(), CHILD_TOKEN),
        ] {
            wake_on(epoll.as_raw_fd(), fd, token)
                .map_err(|error| refuse("cannot wait for events", &error))?;
        }
        let watch = Watchpoints::probe(settings.per_thread, epoll.as_raw_fd());
        let mut attached = Vec::new();
        if let Target::Attach(pids) = &settings.target {
            for pid in pids {
                attached.extend(attach(*pid)?);
            }
        }
        if let Some(launched) = &launched {
            launched
                .begin()
                .map_err(|error| refuse("cannot hold the program", &error))?;
        }
        Ok(Parts {
            table,
            epoll,
            children,
            watch,
            launched,
            attached,
        })
    }

    fn work(&mut self) {
        while !self.stopping {
            if !self.reap() {
                break;
            }
            let now = Instant::now();
            self.collect_hits();
            self.end_flights(now);
            self.plant_due(now);
            self.plant_crowd(now);
            self.expire(now);
            if now.duration_since(self.last_told) >= TELL {
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
            match ptrace::next_change() {
                (None, anybody) => {
                    return anybody && (!self.tasks.is_empty() || self.launched.is_some());
                }
                (Some((tid, change)), _) => self.changed(tid, change),
            }
        }
    }

    fn changed(&mut self, tid: Tid, change: Change) {
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

    fn release_stopped(&mut self, tid: Tid, signal: i32) {
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
        self.drop_flights(|flight| flight.tid == tid);
        self.watch.forget_thread(tid);
        self.leave(tid);
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
                    let now = Instant::now();
                    for planted in space.abandon(&mut self.table) {
                        self.note_end(
                            &planted.pick,
                            Outcome::Expired,
                            planted.since,
                            now,
                            0,
                            false,
                        );
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
        self.tasks.insert(tid, Task { group, space });
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
        self.drop_flights(|flight| others.contains(&flight.tid));
        for other in others {
            self.watch.forget_thread(other);
            self.leave(other);
        }
        if let Some(space) = self.new_space(tid) {
            self.tasks.insert(tid, Task { group: tid, space });
        }
    }

    /// A task is about to receive SIGTRAP: ours, or the program's own.
    fn trapped(&mut self, tid: Tid) {
        let now = Instant::now();
        let registers = ptrace::registers(tid);
        let space = self.tasks.get(&tid).map(|task| task.space);
        let code = ptrace::signal_code(tid);
        if let (Ok(code @ (ptrace::TRAP_HWBKPT | ptrace::TRAP_BRKPT)), Ok(registers)) =
            (&code, &registers)
            && !(*code == ptrace::TRAP_BRKPT && self.is_int1(space, registers.rip))
        {
            // One of our data breakpoints fired while it was being removed:
            // the kernel finds no owner for it, or the processor's status
            // register already cleared, which it takes for `int1`, and signals
            // the thread. Nobody else can set one while we trace the program.
            self.run_on(tid, 0);
            return;
        }
        let own = code.is_ok_and(|code| code == ptrace::SI_KERNEL);
        let (Ok(registers), Some(space_id), true) = (registers, space, own) else {
            self.run_on(tid, libc::SIGTRAP);
            return;
        };
        let address = registers.rip.wrapping_sub(1);
        let Some(space) = self.spaces.get_mut(&space_id) else {
            self.run_on(tid, libc::SIGTRAP);
            return;
        };
        let planted = space.unplant(address, &mut self.table, now);
        if planted.is_none() && !space.ever_planted(address) {
            self.run_on(tid, libc::SIGTRAP);
            return;
        }
        let _ = ptrace::set_rip(tid, address);
        repair_mask(tid);
        let Some(planted) = planted else {
            // Another thread was first; the instruction is back in place.
            self.run_on(tid, 0);
            return;
        };
        let mut registers = registers;
        registers.rip = address;
        if self.detaching || planted.pick.purpose == Purpose::Sweep {
            self.run_on(tid, 0);
            let stopped = now.elapsed();
            self.note_end(
                &planted.pick,
                Outcome::Seen,
                planted.since,
                now,
                stopped.as_nanos() as u64,
                false,
            );
            return;
        }
        self.begin_flight(tid, space_id, &planted, &registers, now);
    }

    /// The instruction that ends at `rip` is `int1`, the program's own trap.
    fn is_int1(&self, space: Option<u32>, rip: u64) -> bool {
        const INT1: u8 = 0xf1;
        space
            .and_then(|space| self.spaces.get(&space))
            .is_some_and(|space| space.read(rip.wrapping_sub(1), 1) == [INT1])
    }

    fn note_end(
        &mut self,
        pick: &Pick,
        outcome: Outcome,
        since: Instant,
        now: Instant,
        stopped: u64,
        stalled: bool,
    ) {
        if matches!(outcome, Outcome::Sampled | Outcome::Passed | Outcome::Seen) {
            self.stopped += stopped;
            // The holder works or spins for all of a short stop; of a long
            // one it sleeps through most.
            self.overlapped += stopped.min(BUSY);
        }
        self.ended.push(Ended {
            site: pick.site,
            space: pick.space,
            purpose: pick.purpose,
            outcome,
            stood: u32::try_from(now.duration_since(since).as_micros()).unwrap_or(u32::MAX),
            stopped,
            stalled,
        });
    }

    fn plant(&mut self, pick: Pick, now: Instant) {
        self.count_held(now);
        let held = self.held;
        let planted = match self.spaces.get_mut(&pick.space) {
            Some(space) => match space.is_safe(now) {
                true => space.plant(pick, &mut self.table, now, held),
                false => {
                    let note = format!(
                        "process {} handles SIGTRAP itself and has a thread that blocks it: no breakpoints were planted while that was so, because one in that thread would take the handler away",
                        space.via
                    );
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                    Err(Outcome::Occupied)
                }
            },
            None => Err(Outcome::Refused),
        };
        match planted {
            Ok(()) => {
                let until = now + Duration::from_micros(u64::from(pick.dwell));
                self.expiry.push(Reverse((until, pick.space, pick.address)));
            }
            Err(outcome) => self.note_end(&pick, outcome, now, now, 0, false),
        }
    }

    fn plant_due(&mut self, now: Instant) {
        if self.per_second == 0 {
            return;
        }
        let interval = Duration::from_nanos(1_000_000_000 / u64::from(self.per_second));
        let mut burst = 0;
        while self.next_live <= now && burst < 8 {
            let Some(pick) = self.live.pop_front() else {
                self.next_live = now + interval;
                return;
            };
            self.plant(pick, now);
            // Spread between half and one and a half intervals.
            let spread = self.random() % 1024;
            self.next_live += interval * (512 + spread as u32) / 1024;
            burst += 1;
        }
        if self.next_live + Duration::from_millis(50) < now {
            self.next_live = now;
        }
    }

    /// Plants some of the many; the rest in the next turns, so that a thread
    /// that has run into a breakpoint does not wait for all of them.
    fn plant_crowd(&mut self, now: Instant) {
        for _ in 0..SLICE {
            let Some(pick) = self.crowd.pop_front() else {
                return;
            };
            self.plant(pick, now);
        }
    }

    fn expire(&mut self, now: Instant) {
        for _ in 0..SLICE {
            let Some(Reverse((until, space, address))) = self.expiry.peek().copied() else {
                return;
            };
            if until > now {
                return;
            }
            self.expiry.pop();
            self.expire_one(space, address, now);
        }
    }

    fn expire_one(&mut self, space: u32, address: u64, now: Instant) {
        let Some(space) = self.spaces.get_mut(&space) else {
            return;
        };
        if space
            .planted_at(address)
            .is_none_or(|planted| planted.expires() > now)
        {
            return;
        }
        if let Some(planted) = space.unplant(address, &mut self.table, now) {
            self.note_end(
                &planted.pick,
                Outcome::Expired,
                planted.since,
                now,
                0,
                false,
            );
        }
    }

    /// Takes back everything where breakpoints have become harmful.
    fn keep_safe(&mut self, now: Instant) {
        let mut removed = Vec::new();
        for space in self.spaces.values_mut() {
            if space.standing() > 0 && !space.is_safe(now) {
                removed.extend(space.unplant_all(&mut self.table, now));
            }
        }
        for planted in removed {
            self.note_end(
                &planted.pick,
                Outcome::Occupied,
                planted.since,
                now,
                0,
                false,
            );
        }
    }

    fn tell(&mut self, all: bool) {
        self.last_told = Instant::now();
        self.keep_safe(self.last_told);
        let ended = std::mem::take(&mut self.ended);
        if !ended.is_empty() {
            self.link.send(&Event::Ended(ended));
        }
        let standing = self.spaces.values().map(Space::standing).sum::<usize>();
        self.link.send(&Event::Cost {
            cpu: task::own_cpu_time(),
            stopped: self.stopped,
            overlapped: self.overlapped,
            standing: standing as u32,
            queued: self.live.len() as u32,
        });
        if all {
            self.link.flush();
        }
    }

    fn obey(&mut self) {
        let orders = match self.link.receive::<Order>() {
            Ok(orders) => orders,
            Err(error) => {
                self.notes.push(error.to_string());
                self.stopping = true;
                return;
            }
        };
        for order in orders {
            match order {
                Order::Picks(picks) => {
                    for pick in picks {
                        if pick.purpose == Purpose::Live {
                            if self.live.len() < 4 * LIVE {
                                self.live.push_back(pick);
                            }
                        } else {
                            self.crowd.push_back(pick);
                        }
                    }
                }
                Order::Pace {
                    per_second,
                    share,
                    short,
                } => {
                    self.per_second = per_second;
                    self.share = share;
                    self.short = Duration::from_micros(u64::from(short));
                }
                Order::Core(folder) => self.core_folder = Some(folder),
                Order::Stop => self.stopping = true,
            }
        }
        if self.link.ended() {
            self.stopping = true;
        }
    }

    /// Waits for the next thing to happen.
    fn wait(&mut self, now: Instant) {
        let mut until = self.last_told + TELL;
        for flight in &self.flights {
            until = until.min(flight.next_look());
        }
        if self.per_second > 0 && !self.live.is_empty() {
            until = until.min(self.next_live);
        }
        if let Some(Reverse((expiry, _, _))) = self.expiry.peek() {
            // Half a millisecond more or less does not matter to anybody, and
            // lets many be removed at one go.
            until = until.min((*expiry + Duration::from_micros(500)).max(now));
            if *expiry + Duration::from_millis(1) < now {
                until = now;
            }
        }
        if !self.crowd.is_empty() {
            until = now;
        }
        let nap = until.saturating_duration_since(now);
        if nap.is_zero() {
            // Much to do: look for orders now and then only.
            if self.flights.is_empty() {
                self.poll(Duration::ZERO);
            }
            return;
        }
        if !self.flights.is_empty() && nap < SPIN {
            while Instant::now() < until {
                if self.watch.any_hit() {
                    break;
                }
                let (change, _) = ptrace::next_change();
                if let Some((tid, change)) = change {
                    self.changed(tid, change);
                    break;
                }
            }
            return;
        }
        self.poll(nap);
    }

    fn poll(&mut self, nap: Duration) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let timeout = libc::timespec {
            tv_sec: nap.as_secs() as libc::time_t,
            tv_nsec: i64::from(nap.subsec_nanos()),
        };
        // SAFETY: room for sixteen events, a timespec to read, no signal
        // mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len(),
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                8usize,
            )
        };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            match event.u64 {
                COMMAND_TOKEN => self.obey(),
                CHILD_TOKEN => self.swallow_signals(),
                // A ring: looked at in the next turn.
                _ => {}
            }
        }
        self.link.flush();
    }

    fn swallow_signals(&self) {
        let mut buffer = [0u8; 1024];
        // SAFETY: reads at most the buffer; the descriptor does not block.
        while unsafe {
            libc::read(
                self.children.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        } > 0
        {}
    }

    /// Puts everything back and lets every thread go. Says how many threads
    /// could not be seen to be clear of breakpoints in time.
    fn let_go(&mut self) -> u32 {
        let now = Instant::now();
        self.live.clear();
        self.crowd.clear();
        for space in self.spaces.values_mut() {
            space.unplant_all(&mut self.table, now);
        }
        self.end_all_flights();
        self.detaching = true;
        // A thread that sleeps in the kernel cannot be on its way out of a
        // breakpoint. The others are stopped once, which shows where they
        // are, and let go one by one.
        let mut asked = HashSet::new();
        loop {
            while let (Some((tid, change)), _) = ptrace::next_change() {
                self.changed(tid, change);
            }
            let mut open = 0;
            let tids: Vec<Tid> = self.tasks.keys().copied().collect();
            for tid in tids {
                if self.detached.contains(&tid) {
                    continue;
                }
                let sleeps = matches!(task::state(tid), Some('S' | 'D' | 'T' | 'I'))
                    && !task::trap_pending(tid);
                if sleeps {
                    continue;
                }
                open += 1;
                if asked.insert(tid) {
                    let _ = ptrace::interrupt(tid);
                }
            }
            if open == 0 || now.elapsed() > LETTING_GO {
                return open;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Puts SIGTRAP back into the blocked signals of a thread that had blocked
/// everything: the kernel unblocks it to deliver the trap.
fn repair_mask(tid: Tid) {
    const OTHERS: u64 =
        bit(libc::SIGILL) | bit(libc::SIGBUS) | bit(libc::SIGFPE) | bit(libc::SIGSEGV);
    if let Ok(mask) = ptrace::signal_mask(tid)
        && mask & OTHERS == OTHERS
        && mask & bit(libc::SIGTRAP) == 0
    {
        let _ = ptrace::set_signal_mask(tid, mask | bit(libc::SIGTRAP));
    }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn wake_on(epoll: RawFd, fd: RawFd, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: token,
    };
    // SAFETY: both descriptors are open and the event is read only.
    if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Leaves the terminal and asks to be scheduled promptly.
fn become_background() {
    // SAFETY: plain system calls on this process; failures change nothing
    // that matters.
    unsafe {
        libc::setsid();
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGPIPE,
            libc::SIGTSTP,
        ] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"deadheat-holder".as_ptr());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            libc::dup2(null, 0);
            libc::dup2(null, 1);
        }
        // A held thread waits for this process: being scheduled late holds
        // it longer. A round of work is some tens of microseconds.
        let priority = libc::sched_param { sched_priority: 1 };
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const priority,
        );
    }
}

/// Takes hold of every thread of a running process without stopping any.
fn attach(pid: Tid) -> Result<Vec<Tid>, Refusal> {
    let usage = race::exit_code::USAGE;
    let failure = race::exit_code::FAILURE;
    if task::group(pid) != Some(pid) {
        return Err((usage, format!("there is no process {pid}")));
    }
    let mut held = Vec::new();
    // Threads born meanwhile are held through their parents, or found in the
    // next round.
    loop {
        let threads = task::threads(pid).map_err(|error| {
            (
                usage,
                format!("process {pid} has ended or cannot be looked at: {error}"),
            )
        })?;
        let fresh: Vec<Tid> = threads
            .into_iter()
            .filter(|tid| !held.contains(tid))
            .collect();
        if fresh.is_empty() {
            return Ok(held);
        }
        for tid in fresh {
            match ptrace::seize(tid) {
                Ok(()) => held.push(tid),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => {
                    if task::tracer(tid) == Some(std::process::id() as Tid) {
                        held.push(tid);
                        continue;
                    }
                    let text = match task::tracer(tid) {
                        Some(tracer) => format!(
                            "process {pid} is already held by process {tracer} (a debugger?); end that first"
                        ),
                        None => format!(
                            "no right to hold process {pid}: {error} (it must be yours; where /proc/sys/kernel/yama/ptrace_scope is 1 or more, start it with `deadheat sample -- PROGRAM` or be root)"
                        ),
                    };
                    return Err((failure, text));
                }
            }
        }
    }
}
