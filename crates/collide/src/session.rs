//! The front end: decides what to sample, gives names to what is caught,
//! keeps the rate, and collects the report.
//!
//! It never touches the target: killing it, in whatever way, makes the holder
//! put everything back and go (`holder`).

use crate::bias::Bias;
use crate::controller::{Controller, Goal, Interval};
use crate::findings::{Findings, Judged};
use crate::holder::{self, Settings, Target};
use crate::lifeline::Lifeline;
use crate::link::Link;
use crate::memory_map;
use crate::planted::{PlantedTable, Warden};
use crate::sampler::{Counts, Sampler};
use crate::sampling_set;
use crate::scope::{Pattern, Scope};
use crate::wire::{Catch, Ended, Event, Order, Outcome, Purpose};
use crate::witness::Witness;
use race::{Race, Report};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use symbols::{Module, ModuleMap};

/// Everything the user can set.
#[derive(Debug, Clone)]
pub struct Options {
    pub target: Target,
    pub goal: Goal,
    /// Longest time a thread is held.
    pub delay: Duration,
    pub scope: Scope,
    pub bias: Bias,
    /// Variables on which races are expected.
    pub special: Vec<Pattern>,
    pub duration: Option<Duration>,
    /// Folder for a core file of the first catch of a race.
    pub core: Option<PathBuf>,
    /// Data breakpoints per thread even if per CPU is allowed.
    pub per_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            target: Target::Attach(Vec::new()),
            goal: Goal::Overhead(0.05),
            delay: Duration::from_millis(15),
            scope: Scope::default(),
            bias: Bias::default(),
            special: Vec::new(),
            duration: None,
            core: None,
            per_thread: false,
        }
    }
}

/// Why sampling could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("cannot start the holder process: {0}")]
    Start(#[source] io::Error),
    #[error("the connection to the holder process broke: {0}")]
    Link(#[source] io::Error),
    /// The holder said why, and with what to exit.
    #[error("{text}")]
    Refused { code: i32, text: String },
    #[error(
        "the holder process was killed; {restored} breakpoints were put back right after. If a thread of the program ran into one at that moment, the program has died of SIGTRAP"
    )]
    HolderKilled { restored: usize },
}

impl SampleError {
    pub fn exit_code(&self) -> i32 {
        match self {
            SampleError::Refused { code, .. } => *code,
            _ => race::exit_code::FAILURE,
        }
    }
}

/// For the status line.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    pub rate: f64,
    pub overhead: f64,
    pub counts: Counts,
    pub races: usize,
    pub sweeping: bool,
    pub elapsed: Duration,
}

/// What a session measured of itself, for `bench/`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub seconds: f64,
    pub samples: u64,
    pub fired: u64,
    pub catches: u64,
    /// Threads that came second to a breakpoint.
    pub bounced: u64,
    /// Data breakpoints set on other CPUs.
    pub armed: u64,
    pub holder_cpu: f64,
    pub front_cpu: f64,
    pub stopped: f64,
}

/// A finished session.
#[derive(Debug)]
pub struct Finished {
    pub report: Report,
    pub totals: Totals,
    /// It ended because it was told to.
    pub stopped: bool,
}

/// Longest time between two looks; the holder's news wake it earlier.
const TICK: Duration = Duration::from_millis(100);
/// Seconds for which the holder has live picks in stock.
const SUPPLY: f64 = 0.25;
const MEASURE: Duration = Duration::from_millis(100);
/// Nanoseconds: holds longer than this are "long waits", which end early where
/// everybody waits.
const LONG: u64 = 1_000_000;
/// CPU seconds it takes to plant and remove one breakpoint of a sweep.
const SWEEP_COST: f64 = 6e-6;
/// CPU seconds it takes if somebody runs into it: two CPUs in which little goes
/// on for as long as one thread is stopped, and the trap.
const SWEEP_STOP: f64 = 200e-6;
/// The share of the goal that goes into paying for work done once.
const PAID_BACK: f64 = 0.08;
/// Breakpoints of a sweep over which the share that fires is averaged.
const SWEEP_MEMORY: f64 = 500.0;
/// A process younger than this is not looked into: most forked children are
/// gone or another program by then.
const INFANCY: Duration = Duration::from_millis(30);
/// Bytes of core files that are written in vain at most: the program stands
/// still for each.
const CORES_IN_VAIN: u64 = 1 << 30;

struct SpaceView {
    pid: i32,
    born: Instant,
    looked: Option<Instant>,
    executable: String,
    map: ModuleMap,
}

struct Session<'a> {
    options: &'a Options,
    link: Link,
    spaces: HashMap<u32, SpaceView>,
    sampler: Sampler,
    controller: Controller,
    findings: Findings,
    begun: Instant,
    last_measured: Instant,
    interval: Interval,
    cpu_then: CpuThen,
    totals: Totals,
    queued: usize,
    pace_sent: Option<u32>,
    cpus: f64,
    last_picked: Instant,
    cold_debt: f64,
    /// The share of the sweep's breakpoints that fire.
    sweep_fires: f64,
    /// CPU time spent on work done once: disassembly, names of new races.
    once: u64,
    /// The part of it that has not been paid back.
    debt: f64,
    program_status: Option<i32>,
    released: Option<(u32, String)>,
    refused: Option<(i32, String)>,
    notes: Vec<String>,
    not_checked: Vec<String>,
    left_out: Vec<String>,
    program: Vec<String>,
    /// Bytes of core files of catches that were no races.
    cores_in_vain: u64,
}

#[derive(Default)]
struct CpuThen {
    holder: u64,
    overlapped: u64,
    bounced: u64,
    armed: u64,
    front: u64,
    program: HashMap<i32, u64>,
}

/// Runs a session to its end: the target ends, the time is over, or `stop`
/// says so. `status` is called twice a second.
///
/// Forks the holder, so the calling process must have only one thread.
pub fn run(
    options: &Options,
    stop: impl Fn() -> bool,
    mut status: impl FnMut(&Status),
) -> Result<Finished, SampleError> {
    let (holder_pid, link, warden) = start_holder(options).map_err(SampleError::Start)?;
    let mut session = Session::new(options, link);
    let worked = session.work(&stop, &mut status);
    let stopped = session.released.is_none() && stop();
    session.link.send(&Order::Stop);
    let drained = session.drain();
    let totals = session.totals;
    let released = session.released.is_some();
    let refused = session.refused.take();
    let report = session.report();
    drop(session);
    let restored = warden.finish();
    // SAFETY: waits for our own child, which has ended.
    unsafe { libc::waitpid(holder_pid, std::ptr::null_mut(), 0) };
    worked?;
    if let Some((code, text)) = refused {
        return Err(SampleError::Refused { code, text });
    }
    drained?;
    if !released {
        return Err(SampleError::HolderKilled { restored });
    }
    Ok(Finished {
        report,
        totals,
        stopped,
    })
}

fn start_holder(options: &Options) -> io::Result<(i32, Link, Warden)> {
    let (front, back) = Link::pair()?;
    let table = PlantedTable::new()?;
    let lifeline = Lifeline::new()?;
    let settings = Settings {
        target: options.target.clone(),
        per_thread: options.per_thread,
        front: std::process::id(),
    };
    // SAFETY: this process has one thread (see `run`), so the child is a
    // complete copy and may do anything.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        drop(front);
        holder::run(back, table, lifeline, &settings);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    drop(back);
    let warden = Warden::watch(pid, lifeline.watch(), table)?;
    Ok((pid, front, warden))
}

impl<'a> Session<'a> {
    fn new(options: &'a Options, link: Link) -> Session<'a> {
        let now = Instant::now();
        let delay = u32::try_from(options.delay.as_micros()).unwrap_or(u32::MAX);
        let mut seed = [0; 8];
        // SAFETY: getrandom fills at most the eight bytes given.
        unsafe { libc::getrandom(seed.as_mut_ptr().cast(), 8, 0) };
        let program = match &options.target {
            Target::Launch(command) => command.clone(),
            Target::Attach(pids) => pids.iter().flat_map(|pid| command_line(*pid)).collect(),
        };
        Session {
            options,
            link,
            spaces: HashMap::new(),
            sampler: Sampler::new(delay, SHORT_DELAY, u64::from_ne_bytes(seed)),
            controller: Controller::new(options.goal),
            findings: Findings::new(options.special.clone()),
            begun: now,
            last_measured: now,
            interval: Interval::default(),
            cpu_then: CpuThen::default(),
            totals: Totals::default(),
            queued: 0,
            pace_sent: None,
            // Asking takes a dozen system calls.
            cpus: cpus(),
            last_picked: now,
            cold_debt: 0.0,
            sweep_fires: 0.1,
            once: 0,
            debt: 0.0,
            program_status: None,
            released: None,
            refused: None,
            notes: Vec::new(),
            not_checked: Vec::new(),
            left_out: Vec::new(),
            program,
            cores_in_vain: 0,
        }
    }

    fn work(
        &mut self,
        stop: &impl Fn() -> bool,
        status: &mut impl FnMut(&Status),
    ) -> Result<(), SampleError> {
        self.ask_for_core();
        let mut next_status = self.begun + Duration::from_millis(500);
        loop {
            self.listen(TICK)?;
            if self.released.is_some() || self.refused.is_some() || self.link.ended() {
                return Ok(());
            }
            let now = Instant::now();
            let over = self
                .options
                .duration
                .is_some_and(|duration| now.duration_since(self.begun) >= duration);
            if stop() || over {
                return Ok(());
            }
            self.look_at_spaces(now);
            if now.duration_since(self.last_measured) >= MEASURE {
                self.measure(now);
            }
            self.pick(now);
            if now >= next_status {
                next_status = now + Duration::from_millis(500);
                status(&Status {
                    rate: self.controller.rate(),
                    overhead: self.controller.overhead(),
                    counts: self.sampler.counts(),
                    races: self.findings.races(),
                    sweeping: self.sampler.sweeping(),
                    elapsed: now.duration_since(self.begun),
                });
            }
        }
    }

    /// Hears the holder out until it has let go.
    fn drain(&mut self) -> Result<(), SampleError> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.released.is_none() && !self.link.ended() && Instant::now() < deadline {
            self.listen(TICK)?;
        }
        self.measure(Instant::now());
        self.totals.seconds = self.begun.elapsed().as_secs_f64();
        self.totals.samples = self.sampler.counts().samples;
        self.totals.fired = self.sampler.counts().fired;
        self.totals.catches = self.findings.catches;
        Ok(())
    }

    fn listen(&mut self, longest: Duration) -> Result<(), SampleError> {
        let mut poll = libc::pollfd {
            fd: self.link.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, as said. An interruption by a signal just ends
        // the wait.
        unsafe { libc::poll(&raw mut poll, 1, longest.as_millis() as i32) };
        self.link.flush();
        let events = self.link.receive::<Event>().map_err(SampleError::Link)?;
        for event in events {
            self.hear(event);
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Holding {
                scope,
                sees_kernel,
                why_not,
            } => self.note_abilities(scope, sees_kernel, &why_not),
            Event::Space { space, pid } => {
                self.spaces.insert(
                    space,
                    SpaceView {
                        pid,
                        born: Instant::now(),
                        looked: None,
                        executable: String::new(),
                        map: ModuleMap::new(),
                    },
                );
            }
            Event::SpaceGone { space } => {
                self.spaces.remove(&space);
                self.sampler.drop_space(space);
            }
            Event::Ended(list) => {
                for ended in &list {
                    self.account(ended);
                    self.sampler.ended(ended);
                }
            }
            Event::Caught(catch) => self.caught(&catch),
            Event::Cost {
                cpu,
                stopped,
                bounced,
                armed,
                overlapped,
                standing: _,
                queued,
            } => {
                let used = cpu.saturating_sub(self.cpu_then.holder);
                let free = overlapped.saturating_sub(self.cpu_then.overlapped);
                self.interval.tool_cpu += used.saturating_sub(free) as f64 * 1e-9;
                self.interval.bounced += bounced.saturating_sub(self.cpu_then.bounced);
                self.cpu_then.bounced = bounced;
                self.interval.armed += armed.saturating_sub(self.cpu_then.armed);
                self.cpu_then.armed = armed;
                self.cpu_then.holder = cpu;
                self.cpu_then.overlapped = overlapped;
                self.totals.holder_cpu = cpu as f64 * 1e-9;
                self.totals.stopped = stopped as f64 * 1e-9;
                self.totals.bounced = bounced;
                self.totals.armed = armed;
                self.queued = queued as usize;
            }
            Event::ProgramEnded { status } => self.program_status = Some(status),
            Event::Released { left, note } => self.released = Some((left, note)),
            Event::Failed { code, text } => {
                let text = match &self.options.target {
                    Target::Launch(command) if code == race::exit_code::USAGE => format!(
                        "cannot run `{}`: {text}",
                        command.first().map_or("", String::as_str)
                    ),
                    _ => text,
                };
                self.refused = Some((code, text));
            }
        }
    }

    fn note_abilities(&mut self, scope: u8, sees_kernel: bool, why_not: &str) {
        if scope == 2 {
            self.not_checked.push(format!(
                "conflicts that data breakpoints would have shown: debug registers cannot be had ({why_not}); only changes of value were seen"
            ));
        } else if !sees_kernel {
            self.not_checked.push(
                "accesses by the kernel on a thread's behalf, unless they changed the value: seeing them takes CAP_PERFMON or kernel.perf_event_paranoid of 1 or less"
                    .into(),
            );
        }
    }

    fn account(&mut self, ended: &Ended) {
        if ended.purpose == Purpose::Sweep && ended.outcome != Outcome::Foretold {
            let fired = f64::from(u8::from(ended.outcome != Outcome::Expired));
            self.sweep_fires += (fired - self.sweep_fires) / SWEEP_MEMORY;
        }
        match ended.outcome {
            Outcome::Sampled | Outcome::Passed | Outcome::Seen => {
                let waited = ended.waited as f64 * 1e-9;
                let napped = ended.napped as f64 * 1e-9;
                self.interval.short_stops += ended.stopped as f64 * 1e-9 - waited - napped;
                self.interval.naps += napped;
                if ended.waited > LONG {
                    self.interval.long_stops += waited;
                } else {
                    self.interval.middle_stops += waited;
                }
                self.interval.traps += 1;
                if ended.outcome == Outcome::Sampled {
                    self.interval.samples += 1;
                }
            }
            Outcome::Foretold => self.interval.samples += 1,
            Outcome::Expired | Outcome::Refused | Outcome::Occupied => {}
        }
    }

    fn measure(&mut self, now: Instant) {
        let front = own_cpu_time();
        let used = front.saturating_sub(self.cpu_then.front);
        // Work done once is paid back over the next seconds.
        let passed = now.duration_since(self.last_measured).as_secs_f64();
        let part = self.controller.goal_share() * PAID_BACK * passed * self.cpus;
        self.debt += self.once as f64 * 1e-9;
        let paid = self.debt.min(part);
        self.debt -= paid;
        self.interval.tool_cpu += used.saturating_sub(self.once) as f64 * 1e-9 + paid;
        self.once = 0;
        self.cpu_then.front = front;
        self.totals.front_cpu = front as f64 * 1e-9;
        let mut pids: Vec<i32> = self.spaces.values().map(|space| space.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut program = HashMap::new();
        for pid in pids {
            let used = process_cpu_time(pid);
            let before = self.cpu_then.program.get(&pid).copied().unwrap_or(used);
            self.interval.program_cpu += used.saturating_sub(before) as f64 * 1e-9;
            program.insert(pid, used);
        }
        self.cpu_then.program = program;
        self.interval.seconds = passed;
        self.interval.cpus = self.cpus;
        self.last_measured = now;
        self.controller.measure(&self.interval);
        self.interval = Interval::default();
    }

    /// Keeps the holder supplied.
    fn pick(&mut self, now: Instant) {
        let passed = now.duration_since(self.last_picked).as_secs_f64();
        self.last_picked = now;
        let pace = self.controller.pace();
        let per_second = pace.round() as u32;
        if Some(per_second) != self.pace_sent {
            self.link.send(&Order::Pace {
                per_second,
                share: (self.controller.goal_share() * 1e6) as u32,
                waits: (self.controller.wait_share() * 1e6) as u32,
                short: SHORT_DELAY,
            });
            self.pace_sent = Some(per_second);
        }
        if pace <= 0.0 {
            return;
        }
        let wanted = (pace * SUPPLY).ceil() as usize + 2;
        let mut picks = self.sampler.live_picks(wanted.saturating_sub(self.queued));
        self.queued += picks.len();
        self.cold_debt = (self.cold_debt + passed).min(0.2);
        let allowance = self.controller.allowance(
            self.cold_debt,
            SWEEP_COST + self.sweep_fires * SWEEP_STOP,
            self.cpus,
            self.sampler.counts().live,
        );
        if allowance >= 16 {
            self.cold_debt = 0.0;
            let swept = self.sampler.sweep_picks(allowance.min(512));
            let left = (allowance - swept.len()).min(48);
            picks.extend(swept);
            picks.extend(self.sampler.cold_picks(left));
        }
        if !picks.is_empty() {
            self.link.send(&Order::Picks(picks));
        }
    }

    /// Notices libraries that came and went.
    fn look_at_spaces(&mut self, now: Instant) {
        if self.pace_is_zero() {
            return;
        }
        let due: Vec<u32> = self
            .spaces
            .iter()
            .filter(|(_, view)| {
                let age = now.duration_since(view.born);
                // Libraries are loaded in the first moments.
                let every = (age / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
                age >= INFANCY
                    && view
                        .looked
                        .is_none_or(|looked| now.duration_since(looked) >= every)
            })
            .map(|(space, _)| *space)
            .collect();
        let before = own_cpu_time();
        for space in due {
            self.look_at(space, now);
        }
        self.once += own_cpu_time() - before;
    }

    fn pace_is_zero(&self) -> bool {
        matches!(self.options.goal, Goal::Rate(rate) if rate <= 0.0)
    }

    fn look_at(&mut self, id: u32, now: Instant) {
        let Some(view) = self.spaces.get_mut(&id) else {
            return;
        };
        view.looked = Some(now);
        let pid = view.pid;
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else {
            return;
        };
        let executable: String = text
            .lines()
            .filter(|line| line.contains("xp ") || line.contains("xs "))
            .collect();
        if executable == view.executable {
            return;
        }
        let Ok(map) = ModuleMap::from_proc_maps(pid as u32) else {
            return;
        };
        view.executable = executable;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let mappings = memory_map::parse(&text);
        let mut instances = Vec::new();
        for loaded in map.modules() {
            let module = loaded.module;
            let key = key(module);
            // A shared mapping would be changed for everybody.
            let plantable = mappings.iter().any(|mapping| {
                mapping.execute && !mapping.shared && loaded.range.contains(&mapping.start)
            });
            if !plantable || !module.is_readable() {
                continue;
            }
            if !self.sampler.knows(&key) {
                let rank = u8::from(program != module.path())
                    + u8::from(
                        module.path().starts_with("/usr") || module.path().starts_with("/lib"),
                    );
                let strings = string_functions(module, loaded.bias, pid);
                let set = sampling_set::build(module, &self.options.scope, &strings);
                if let Some(why) = set.nothing {
                    self.left_out.push(format!("{} ({why})", module.name()));
                }
                if let Some(why) = self.options.scope.left_out(module.name()) {
                    self.left_out.push(format!("{} ({why})", module.name()));
                }
                let bias = &self.options.bias;
                let prefers = |site: &_| !bias.is_empty() && bias.prefers(module, site);
                self.sampler.add_module(&key, rank, set.sites, prefers);
            }
            instances.push((key, loaded.bias));
        }
        self.sampler.set_instances(id, &instances);
        view.map = map;
    }

    fn caught(&mut self, catch: &Catch) {
        let judged = self.judge(catch);
        if judged == Some(Judged::Synchronisation) {
            self.sampler.ban(catch.site);
        }
        if judged != Some(Judged::Race)
            && let Some(core) = &catch.core
        {
            self.take_core_back(core);
        }
    }

    /// None if the process is gone, and with it the names of what it did.
    fn judge(&mut self, catch: &Catch) -> Option<Judged> {
        // Code that was loaded in this moment: look again.
        let unknown = self
            .spaces
            .get(&catch.space)
            .is_some_and(|view| view.map.find(catch.registers.rip).is_none());
        if unknown {
            self.look_at(catch.space, Instant::now());
        }
        let view = self.spaces.get(&catch.space)?;
        let witness = Witness {
            map: &view.map,
            pid: view.pid,
        };
        let (races, before) = (self.findings.races(), own_cpu_time());
        let judged = self.findings.take(catch, &witness);
        if self.findings.races() > races {
            self.once += own_cpu_time() - before;
        }
        Some(judged)
    }

    /// The holder cannot tell a race from what only looks like one: a core
    /// file of the latter goes, and the next catch gets one.
    fn take_core_back(&mut self, core: &str) {
        self.cores_in_vain += std::fs::metadata(core).map_or(0, |file| file.len());
        if let Err(error) = std::fs::remove_file(core) {
            self.notes.push(format!("core file {core}: {error}"));
        } else if self.cores_in_vain < CORES_IN_VAIN {
            self.ask_for_core();
        } else {
            self.notes
                .push("no core file: too many were written of catches that are no races".into());
        }
    }

    fn ask_for_core(&mut self) {
        if let Some(folder) = &self.options.core {
            self.link.send(&Order::Core(folder.display().to_string()));
        }
    }

    fn report(&mut self) -> Report {
        let mut report = Report::new("collide", self.program.clone());
        report.races = self.races();
        let counts = self.sampler.counts();
        let mut not_checked = vec![format!(
            "accesses that were not sampled: {} samples of {} locations in {:.1} s, of {} locations that access memory, {} of them seen to run",
            counts.samples,
            counts.sampled_sites,
            self.begun.elapsed().as_secs_f64(),
            counts.sites,
            counts.live,
        )];
        if !self.left_out.is_empty() {
            self.left_out.sort();
            self.left_out.dedup();
            not_checked.push(format!("modules: {}", self.left_out.join(", ")));
        }
        if self.options.scope.include.is_empty() {
            not_checked.push(
                "routines that synchronise and the insides of the C library (--include brings them in); code made at run time"
                    .into(),
            );
        }
        not_checked.extend(self.findings.untold());
        not_checked.append(&mut self.not_checked);
        if let Some((left, note)) = &self.released {
            if *left > 0 {
                not_checked.push(format!("{left} threads did not stop when let go of"));
            }
            if !note.is_empty() {
                not_checked.push(note.clone());
            }
        }
        not_checked.append(&mut self.notes);
        report.not_checked = not_checked;
        report.exit.program = self.program_status;
        report
    }

    fn races(&self) -> Vec<Race> {
        self.findings.finish()
    }
}

/// Microseconds a thread is held where its code runs all the time.
const SHORT_DELAY: u32 = 50;

fn key(module: &Module) -> String {
    let id: String = module
        .build_id()
        .unwrap_or_default()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{}:{id}", module.path().display())
}

fn cpus() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

fn command_line(pid: i32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Entry points that relocations of kind IRELATIVE have chosen in a running
/// process: in a C library these are the variants of memcpy and its like that
/// suit the CPU, which have no exported names.
fn string_functions(module: &Module, bias: u64, pid: i32) -> HashSet<u64> {
    const IRELATIVE: u32 = 37;
    let mut found = HashSet::new();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
        return found;
    };
    for section in module.sections() {
        if !section.name.starts_with(".rela") {
            continue;
        }
        let length = (section.addresses.end - section.addresses.start) as usize;
        let Some(entries) = module.bytes_at(section.addresses.start, length) else {
            continue;
        };
        for entry in entries.chunks_exact(24) {
            let word =
                |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
            if word(8) as u32 != IRELATIVE {
                continue;
            }
            let mut slot = [0; 8];
            if memory
                .read_exact_at(&mut slot, word(0).wrapping_add(bias))
                .is_ok()
            {
                found.insert(u64::from_le_bytes(slot).wrapping_sub(bias));
            }
        }
    }
    found
}

fn own_cpu_time() -> u64 {
    cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn process_cpu_time(pid: i32) -> u64 {
    cpu_clock(((!pid) << 3) | 2)
}

fn cpu_clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes one timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0;
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
