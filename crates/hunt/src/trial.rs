//! One run of the program under test, in a process of its own.
//!
//! Every run is recorded, because recording costs a fifth on top of running and
//! a failure that was not recorded may not come again: process ids, times and
//! other things from outside are not the schedule's. What the program writes
//! goes to a file beside the recording.
//!
//! A run that cannot go on (every thread waits for another, or spins for
//! something nobody will write) is judged where it stands and then killed, so
//! that its recording has an end and replays to there.

use crate::failure::{Failure, Signature};
use crate::lockstep::Lockstep;
use crate::plan::{Count, Place, Plan, Steps};
use crate::switches::{Directed, Followed, Precedence, Switch};
use crate::walk::Walk;
use crate::whatif::Fence;
use detect::AddedLock;
use explore::Ending;
use race::Moment;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use vm::record::{LeftOut, Manifest, Recording};
use vm::schedule::{Choice, Here, Policy, PolicyName, SliceEnd};
use vm::snapshot::Limits;
use vm::thread::{State, Thread};
use vm::{Program, Stop, Vm};

/// Output that a pattern is looked for in.
const LOOKED_AT: u64 = 4 << 20;

/// A run that has used up one part in so many of its instructions is looked at
/// already, and how long it is watched for loops: with every thread at its
/// turn, twice as long as runs take; whoever works is through by then.
const EARLY: u64 = 16;
const WATCHED: u64 = 1_000_000;

/// Every so many instructions it is looked whether threads do nothing but give
/// way to one another, at least once in so many instructions: one that waits
/// like this takes a hundred times as long as one that works, and every turn of
/// it is a switch. Nobody works then, so a short look says whether it hangs.
const PART: u64 = 500_000;
const BUSY: u64 = 300;
const WATCHED_IDLE: u64 = 100_000;

/// Preemptions of a run that are told.
const TOLD: usize = 100_000;

/// The schedule of a run.
#[derive(Debug, Clone)]
pub enum Schedule {
    Planned(Plan),
    Directed {
        switches: Vec<Switch>,
        precedences: Vec<Precedence>,
    },
}

/// What is run.
pub struct Subject<'a> {
    pub program: &'a Program,
    /// Of what the program may take for random; the same in all runs.
    pub seed: u64,
    pub fail_if: Option<&'a Regex>,
    /// Racy accesses, by address of the instruction.
    pub racy: &'a [u64],
    /// A run with more instructions is taken for one that never ends.
    pub limit: u64,
    /// Calls that are not made, and code that one thread at a time may be in.
    pub left_out: &'a [LeftOut],
    pub section: Option<&'a AddedLock>,
}

/// What was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seen {
    pub ending: Ending,
    pub failure: Option<Failure>,
    /// How often each racy access was reached.
    pub accesses: Vec<(u64, u64)>,
    /// Locked instructions and system calls; only a calm run counts those of
    /// the first thread alone.
    pub locked: Count,
    pub calls: Count,
    pub instructions: u64,
    pub threads: u32,
    /// A number for the interleaving.
    pub interleaving: u64,
    pub followed: Followed,
    /// Switches away from a thread that could have gone on.
    pub preempted: Vec<Switch>,
}

/// What the counting policy has counted.
#[derive(Default)]
struct Book {
    accesses: BTreeMap<u64, u64>,
    locked: Count,
    calls: Count,
    slices: Vec<(u32, u64)>,
    executed: BTreeMap<u32, u64>,
    preempted: Vec<Switch>,
    /// Turns that ended because the thread gave way.
    yields: u64,
}

impl Book {
    /// A thread was stopped, and another goes on.
    fn switch(&mut self, from: u32, to: u32, held: bool) {
        if self.preempted.len() < TOLD {
            let count = self.executed.get(&from).copied().unwrap_or(0);
            self.preempted.push(Switch {
                at: Moment::new(from, count),
                to,
                held,
            });
        }
    }
}

/// Counts what a policy is told.
struct Counted {
    policy: Box<dyn Policy>,
    /// The policy decides at steps.
    decides: bool,
    /// More than one thread has been seen.
    several: bool,
    /// Who was stopped while it could have gone on, and nobody has since.
    stopped: Option<u32>,
    book: Rc<RefCell<Book>>,
}

impl Policy for Counted {
    fn choose(&mut self, runnable: &[u32], last: Option<(u32, SliceEnd)>) -> Choice {
        self.several |= runnable.len() > 1;
        let choice = self.policy.choose(runnable, last);
        if let Some((thread, end)) = last {
            self.book.borrow_mut().yields += u64::from(end == SliceEnd::Yielded);
            let could = matches!(
                end,
                SliceEnd::Expired | SliceEnd::Sequencer | SliceEnd::Interrupted
            );
            self.stopped = could.then_some(thread);
        }
        if choice.instructions > 0
            && let Some(from) = self.stopped.take()
            && from != choice.thread
        {
            let held = self.policy.holds(from);
            self.book.borrow_mut().switch(from, choice.thread, held);
        }
        choice
    }

    fn at_sequencers(&self) -> bool {
        self.policy.at_sequencers() || !self.decides
    }

    fn is_exact(&self) -> bool {
        self.policy.is_exact()
    }

    fn ran(&mut self, thread: u32, instructions: u64) {
        let mut book = self.book.borrow_mut();
        match book.slices.last_mut() {
            Some((last, count)) if *last == thread => *count += instructions,
            _ => book.slices.push((thread, instructions)),
        }
        *book.executed.entry(thread).or_default() += instructions;
        self.policy.ran(thread, instructions);
    }

    fn ends_here(&mut self, here: &Here) -> bool {
        let mut book = self.book.borrow_mut();
        let count = match Place::of(here) {
            Place::Locked => &mut book.locked,
            Place::Call => &mut book.calls,
            Place::Access(pc) => {
                *book.accesses.entry(pc).or_default() += 1;
                return self.decides && self.policy.ends_here(here);
            }
        };
        count.total += 1;
        if !self.decides && !self.several {
            // The next choice shows whether there is another thread.
            count.alone += 1;
            return true;
        }
        self.decides && self.policy.ends_here(here)
    }

    fn holds(&self, thread: u32) -> bool {
        self.policy.holds(thread)
    }

    fn holds_somebody(&self) -> bool {
        self.policy.holds_somebody()
    }

    fn lets_go(&mut self) -> bool {
        self.policy.lets_go()
    }
}

impl Subject<'_> {
    /// Runs the program in this process; the recording goes to `directory`.
    pub fn run(&self, directory: &Path, schedule: &Schedule) -> Result<Seen, String> {
        let output = directory.with_extension("output");
        redirect(&output).map_err(|error| format!("cannot write {}: {error}", output.display()))?;
        self.record(directory, schedule, &output)
            .map_err(|error| error.to_string())
    }

    fn record(
        &self,
        directory: &Path,
        schedule: &Schedule,
        output: &Path,
    ) -> Result<Seen, vm::Error> {
        let manifest = Manifest {
            left_out: self.left_out.to_vec(),
            ..Manifest::of(self.program, "hunt".into(), self.seed, vm::DEFAULT_QUANTUM)
        };
        let recording = Recording::create(directory, manifest)?;
        let book = Rc::new(RefCell::new(Book::default()));
        let followed = Rc::new(RefCell::new(Followed::default()));
        let mut steps = false;
        let policy: Box<dyn Policy> = match schedule {
            Schedule::Directed {
                switches,
                precedences,
            } => Box::new(Directed::new(switches, precedences, followed.clone())),
            Schedule::Planned(Plan::Calm) => {
                steps = true;
                Box::new(Directed::new(&[], &[], followed.clone()))
            }
            Schedule::Planned(Plan::Flipped(order)) => {
                Box::new(Directed::new(&[], &[*order], followed.clone()))
            }
            Schedule::Planned(Plan::Policy {
                policy,
                seed,
                quantum,
            }) => policy
                .parse()
                .unwrap_or(PolicyName::Random)
                .build(*seed, *quantum),
            Schedule::Planned(Plan::Steps { seed, changes }) => {
                steps = true;
                Box::new(Steps::new(*seed, changes))
            }
            Schedule::Planned(Plan::Walk { seed, chances }) => {
                steps = true;
                Box::new(Walk::new(*seed, chances))
            }
            Schedule::Planned(Plan::Lockstep(pace)) => {
                steps = true;
                Box::new(Lockstep::new(*pace))
            }
        };
        let calm = matches!(schedule, Schedule::Planned(Plan::Calm));
        let mut policy: Box<dyn Policy> = Box::new(Counted {
            policy,
            decides: !calm,
            several: false,
            stopped: None,
            book: book.clone(),
        });
        if let Some(section) = self.section {
            policy = Box::new(Fence::new(policy, section.clone()));
        }
        let mut vm = Vm::record_under(&recording, self.program, self.seed, policy, None)?;
        vm.stop_when_stuck(true);
        if let Some(section) = self.section {
            vm.preempt_at(section.instructions());
        }
        if steps {
            let asked = match schedule {
                Schedule::Planned(plan) => plan.accesses(),
                Schedule::Directed { .. } => None,
            };
            let wanted = |pc: &&u64| asked.as_ref().is_none_or(|asked| asked.contains(*pc));
            vm.preempt_at(self.racy.iter().filter(wanted).copied());
        }
        let (stop, hangs) = self.run_to_its_end(&mut vm, &recording, &book)?;
        let modules = explore::modules(&vm);
        let ending = match (stop, hangs) {
            (Stop::Limit, Some(ending)) => ending,
            (Stop::Limit, None) => Ending::Unfinished,
            (stop, _) => explore::ended(&mut vm, stop, &modules),
        };
        let exit_stack = match (&ending, stop) {
            (Ending::Exited(_), Stop::Ended(_)) => vm
                .registers(vm.current_thread())
                .map(|regs| explore::stack(&modules, &regs)),
            _ => None,
        };
        let instructions = vm.instructions();
        let threads = vm.threads.keys().next_back().copied().unwrap_or(0);
        if !matches!(stop, Stop::Ended(_)) {
            vm.kill()?;
        }
        let mut failure =
            Signature::of(&ending, exit_stack.as_deref().unwrap_or(&[])).map(|signature| Failure {
                text: ending.describe(),
                signature,
            });
        if failure.is_none()
            && let Some(pattern) = self.fail_if
            && let Some(found) = find(pattern, output)
        {
            failure = Some(Failure {
                text: format!("writes \"{found}\""),
                signature: Signature::output(&found),
            });
        }
        let mut book = book.borrow_mut();
        let slices = std::mem::take(&mut book.slices);
        let threads = slices
            .iter()
            .map(|(thread, _)| *thread)
            .max()
            .unwrap_or(0)
            .max(threads);
        let words: Vec<u8> = slices
            .iter()
            .flat_map(|(thread, count)| {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&thread.to_le_bytes());
                bytes[4..].copy_from_slice(&count.to_le_bytes());
                bytes
            })
            .collect();
        let seen = Seen {
            ending,
            failure,
            accesses: book
                .accesses
                .iter()
                .map(|(pc, count)| (*pc, *count))
                .collect(),
            locked: book.locked,
            calls: book.calls,
            instructions,
            threads,
            interleaving: xxhash_rust::xxh3::xxh3_64(&words),
            followed: followed.borrow().clone(),
            preempted: std::mem::take(&mut book.preempted),
        };
        Ok(seen)
    }

    /// Runs until the program ends, cannot go on, hangs or takes too long.
    fn run_to_its_end(
        &self,
        vm: &mut Vm,
        recording: &Recording,
        book: &RefCell<Book>,
    ) -> Result<(Stop, Option<Ending>), vm::Error> {
        let early = self.limit / EARLY;
        let (mut until, mut looked, mut yields) = (0, 0, 0);
        loop {
            let from = until;
            until = [early, self.limit]
                .into_iter()
                .filter(|limit| *limit > from)
                .fold(from.saturating_add(PART), u64::min);
            vm.stop_after(until);
            let stop = vm.run(None)?;
            if stop != Stop::Limit {
                return Ok((stop, None));
            }
            let before = std::mem::replace(&mut yields, book.borrow().yields);
            let is_idle = (yields - before) * BUSY > until - from
                && until >= 2 * looked
                && is_left_to_itself(vm, recording);
            let hangs = if until == early || until == self.limit {
                let turns = (2 * (self.limit / crate::ENDLESS)).max(WATCHED);
                Self::hangs(vm, turns)
            } else if is_idle {
                looked = until;
                Self::hangs(vm, WATCHED_IDLE)
            } else {
                None
            };
            if hangs.is_some() || until == self.limit {
                return Ok((stop, hangs));
            }
        }
    }

    /// Whether a run that has taken long already will never end.
    fn hangs(vm: &mut Vm, turns: u64) -> Option<Ending> {
        let limits = Limits {
            instructions: u64::MAX / 2,
            ..Limits::default()
        };
        let watched = vm.copy(limits, |vm| {
            vm.schedule_by(PolicyName::RoundRobin.build(0, vm::DEFAULT_QUANTUM));
            explore::finish(vm, turns)
        });
        match watched.and_then(|copy| copy.join()) {
            Ok(Ok(ending @ (Ending::Hang { .. } | Ending::Deadlock { .. }))) => Some(ending),
            _ => None,
        }
    }
}

/// No signal, and nobody from outside or back from a sleep, will change what threads
/// wait for.
fn is_left_to_itself(vm: &Vm, recording: &Recording) -> bool {
    let may_come = |thread: &Thread| match &thread.state {
        State::Blocked(wait) => wait.deadline.is_some() || wait.on.is_outside(),
        State::Runnable | State::Exited => false,
    };
    !vm.threads.values().any(may_come)
        && vm.instructions_to_timer().is_none()
        && !recording.process(1).is_folder()
}

/// The program's output goes to a file; its input is a file from its
/// beginning, or nothing.
fn redirect(output: &Path) -> std::io::Result<()> {
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(output)?;
    let input = match std::fs::metadata("/proc/self/fd/0") {
        Ok(facts) if facts.is_file() => File::open("/proc/self/fd/0")?,
        _ => File::open("/dev/null")?,
    };
    for (file, fd) in [(&input, 0), (&output, 1), (&output, 2)] {
        // SAFETY: duplicates descriptors of this process, which is the run's
        // own.
        if unsafe { libc::dup2(file.as_raw_fd(), fd) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What the pattern finds in the output.
fn find(pattern: &Regex, output: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(output)
        .ok()?
        .take(LOOKED_AT)
        .read_to_end(&mut bytes)
        .ok()?;
    let text = String::from_utf8_lossy(&bytes);
    pattern
        .find(&text)
        .map(|found| found.as_str().trim().to_string())
}
