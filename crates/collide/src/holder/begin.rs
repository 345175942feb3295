//! Taking hold of the target: starting or attaching, and what can be refused.

use super::launch::Launched;
use super::ptrace::Tid;
use super::watch::Watchpoints;
use super::{Holder, Settings, Target, ptrace, task, wake};
use crate::link::Link;
use crate::planted::PlantedTable;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// Everything that can fail has succeeded.
pub(super) struct Parts {
    pub(super) table: PlantedTable,
    pub(super) watch: Watchpoints,
    pub(super) launched: Option<Launched>,
    pub(super) attached: Vec<i32>,
    pub(super) front: u32,
}

pub(super) type Refusal = (i32, String);

pub(super) fn refuse(what: &str, error: &io::Error) -> Refusal {
    (race::exit_code::FAILURE, format!("{what}: {error}"))
}

impl Parts {
    pub(super) fn hold(self, link: Link) -> Holder {
        let now = Instant::now();
        let mut holder = Holder {
            link,
            table: self.table,
            alarm: wake::Alarm::default(),
            watch: self.watch,
            running: super::running::Running::default(),
            switching: super::running::Switching::default(),
            can_follow: false,
            to_follow: 0,
            spaces: HashMap::new(),
            tasks: HashMap::new(),
            next_space: 1,
            arrivals: Vec::new(),
            flights: Vec::new(),
            live: VecDeque::new(),
            crowd: VecDeque::new(),
            next_live: now,
            chain: 0,
            expiry: BinaryHeap::new(),
            per_second: 0,
            share: 50_000,
            short: Duration::from_micros(50),
            purse: super::purse::Purse::new(now),
            ended: Vec::new(),
            last_told: now,
            stopped: 0,
            bounced: 0,
            armed: 0,
            overlapped: 0,
            held: 0,
            held_until: now,
            random: seed(),
            news: VecDeque::new(),
            brake: crate::lifeline::Brake::set().ok(),
            launched: self.launched,
            started: false,
            core_folder: None,
            stopping: false,
            front: Some(self.front),
            detached: HashSet::new(),
            detaching: false,
            analyser: crate::instruction::Analyser::default(),
            notes: Vec::new(),
        };
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

pub(super) fn seed() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: getrandom fills at most the eight bytes given.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    u64::from_ne_bytes(bytes) | 1
}

impl Holder {
    pub(super) fn begin(
        link: &mut Link,
        table: PlantedTable,
        settings: &Settings,
    ) -> Result<Parts, Refusal> {
        let launched = match &settings.target {
            Target::Launch(command) => Some(
                Launched::prepare(command)
                    .map_err(|error| refuse("cannot start a process", &error))?,
            ),
            Target::Attach(_) => None,
        };
        become_background();
        super::descriptors::raise_limit();
        wake::prepare()
            .and_then(|()| wake::on(link.descriptor()))
            .map_err(|error| refuse("cannot wait for events", &error))?;
        let watch = Watchpoints::probe(settings.per_thread)
            .map_err(|error| refuse("cannot start a process", &error))?;
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
            watch,
            launched,
            attached,
            front: settings.front,
        })
    }
}

/// Leaves the terminal and asks to be scheduled promptly.
pub(super) fn become_background() {
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
        // A held thread waits for this process: being scheduled late holds it
        // longer. No real-time class: the kernel keeps such a task on the CPU
        // it was on, away from the one that the held thread has left idle.
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        prefer_short_turns();
        // Where the kernel schedules sessions as groups it is the group's
        // priority that counts. A refusal changes nothing.
        let _ = std::fs::write("/proc/self/autogroup", "-20");
    }
}

/// Lets the front end run before the program: among a hundred threads at work
/// it would get a hundredth of a CPU, and the holder nothing to plant. It stays
/// behind the holder. A refusal changes nothing.
pub(super) fn hurry_front_end(front: u32) {
    // SAFETY: plain system calls with integers. Who is the parent of this
    // process cannot have ended and left its number to another.
    unsafe {
        if libc::getppid() as u32 == front {
            libc::setpriority(libc::PRIO_PROCESS, front, -10);
        }
    }
}

/// Asks for turns as short as the scheduler has them: who asks for less is
/// served sooner. Kernels before 6.12 pay no heed.
fn prefer_short_turns() {
    #[repr(C)]
    #[derive(Default)]
    struct Scheduling {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SHORTEST: u64 = 100_000;
    let mut scheduling = Scheduling {
        size: size_of::<Scheduling>() as u32,
        runtime: SHORTEST,
        ..Scheduling::default()
    };
    // SAFETY: the kernel reads as many bytes as `size` says; a refusal
    // changes nothing.
    unsafe {
        scheduling.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const scheduling, 0);
    }
}

/// Takes hold of every thread of a running process without stopping any.
pub(super) fn attach(pid: Tid) -> Result<Vec<Tid>, Refusal> {
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
