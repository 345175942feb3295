//! One execution from the race point to its end, and how it ended.

use crate::consequence::Finding;
use crate::names;
use crate::policy::Schedule;
use crate::spin::{self, Doing};
use crate::waits;
use race::{Consequence, Frame};
use serde::{Deserialize, Serialize};
use symbols::ModuleMap;
use vm::copy::Captured;
use vm::record::ProcessStatus;
use vm::{Error, Stop, Vm};

/// Instructions added to every limit, so that short remainders are not cut off
/// by a longer path through the C library.
const SLACK: u64 = 2_000_000;

/// Five times what the primary took (paper 003, section 5).
pub fn limit_for(primary: u64) -> u64 {
    primary.saturating_mul(5).saturating_add(SLACK)
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Exited(i32),
    /// It died of a signal: a fault at an address, or an abort.
    Killed {
        signal: i32,
        address: Option<u64>,
        thread: u32,
        stack: Vec<Frame>,
    },
    /// Threads wait for one another in a circle.
    Deadlock {
        circle: Vec<String>,
        stack: Vec<Frame>,
    },
    /// Nobody is left to end the loops or the waits.
    Hang {
        what: Vec<String>,
        stack: Vec<Frame>,
    },
    /// It went on, but broke a rule of memory or an invariant on the way.
    Erred(Box<Finding>),
    /// It waits for input that the recording does not have.
    InputExhausted,
    /// It was still working when its instructions were used up.
    Unfinished,
    /// It could not be run to its end; why.
    Lost(String),
}

impl Ending {
    /// What specification it violates, if it does.
    pub fn violation(&self) -> Option<Consequence> {
        match self {
            Ending::Killed { signal, .. } => match *signal {
                libc::SIGABRT => Some(Consequence::Assert),
                libc::SIGSEGV
                | libc::SIGBUS
                | libc::SIGILL
                | libc::SIGFPE
                | libc::SIGTRAP
                | libc::SIGSYS => Some(Consequence::Crash),
                _ => None,
            },
            Ending::Deadlock { .. } => Some(Consequence::Deadlock),
            Ending::Hang { .. } => Some(Consequence::Hang),
            Ending::Erred(finding) => Some(finding.consequence()),
            Ending::Exited(_) | Ending::InputExhausted | Ending::Unfinished | Ending::Lost(_) => {
                None
            }
        }
    }

    /// It says nothing about how the program would have gone on.
    pub fn is_open(&self) -> bool {
        matches!(
            self,
            Ending::InputExhausted | Ending::Unfinished | Ending::Lost(_)
        )
    }

    pub fn stack(&self) -> &[Frame] {
        match self {
            Ending::Killed { stack, .. }
            | Ending::Deadlock { stack, .. }
            | Ending::Hang { stack, .. } => stack,
            Ending::Erred(finding) => &finding.stack,
            _ => &[],
        }
    }

    /// The same end, wherever it was met.
    pub fn same_as(&self, other: &Ending) -> bool {
        match (self, other) {
            (
                Ending::Killed { signal, .. },
                Ending::Killed {
                    signal: as_well, ..
                },
            ) => signal == as_well,
            (Ending::Deadlock { .. }, Ending::Deadlock { .. })
            | (Ending::Hang { .. }, Ending::Hang { .. }) => true,
            _ => self == other,
        }
    }

    /// One sentence, without a subject: `crashes with SIGSEGV …`.
    pub fn describe(&self) -> String {
        match self {
            Ending::Exited(code) => format!("ends with exit code {code}"),
            Ending::Killed {
                signal,
                address,
                thread,
                stack,
            } => {
                let at = names::own_place(stack);
                match (*signal, address) {
                    (libc::SIGABRT, _) => format!("aborts in thread {thread} at {at}"),
                    (signal, Some(address)) => format!(
                        "crashes with {} on address {address:#x} in thread {thread} at {at}",
                        signal_name(signal)
                    ),
                    (signal, None) => {
                        format!("dies of {} in thread {thread} at {at}", signal_name(signal))
                    }
                }
            }
            Ending::Deadlock { circle, .. } => format!("deadlocks: {}", circle.join("; ")),
            Ending::Hang { what, .. } => format!("never ends: {}", what.join("; ")),
            Ending::Erred(finding) => finding.describe(),
            Ending::InputExhausted => {
                "waits for input that the recorded run did not get".to_string()
            }
            Ending::Unfinished => "was still working at the limit of instructions".to_string(),
            Ending::Lost(why) => format!("could not be followed: {why}"),
        }
    }
}

/// `SIGSEGV`, or its number.
pub fn signal_name(signal: i32) -> String {
    match signal {
        libc::SIGSEGV => "SIGSEGV".into(),
        libc::SIGBUS => "SIGBUS".into(),
        libc::SIGILL => "SIGILL".into(),
        libc::SIGFPE => "SIGFPE".into(),
        libc::SIGTRAP => "SIGTRAP".into(),
        libc::SIGABRT => "SIGABRT".into(),
        libc::SIGKILL => "SIGKILL".into(),
        libc::SIGTERM => "SIGTERM".into(),
        libc::SIGPIPE => "SIGPIPE".into(),
        other => format!("signal {other}"),
    }
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub ending: Ending,
    /// From the race point on, all threads together.
    pub instructions: u64,
    pub outputs: Vec<Captured>,
    /// Inputs taken from the recording.
    pub inputs: u64,
    /// Rules that it broke on the way.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

impl Run {
    pub fn lost(why: String) -> Run {
        Run {
            ending: Ending::Lost(why),
            instructions: 0,
            outputs: Vec::new(),
            inputs: 0,
            findings: Vec::new(),
        }
    }

    /// A number for all that can be seen from outside.
    pub fn digest(&self) -> u64 {
        let mut text = Vec::new();
        for output in &self.outputs {
            text.extend_from_slice(output.name.as_bytes());
            text.extend_from_slice(&output.length.to_le_bytes());
            for (block, hash) in &output.blocks {
                text.extend_from_slice(&block.to_le_bytes());
                text.extend_from_slice(&hash.to_le_bytes());
            }
        }
        if let Ending::Exited(code) = self.ending {
            text.extend_from_slice(&code.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&text)
    }
}

/// Sets the schedule of a copy that has just made the accesses: both orders
/// meet the same decisions, whoever moved last.
pub fn schedule(vm: &mut Vm, schedule: Schedule, racy: &[u64]) {
    vm.forget_last_slice();
    if let Some(policy) = schedule.policy() {
        vm.schedule_by(policy);
        vm.preempt_at(racy.iter().copied());
    }
}

/// Runs a copy to its end. What ended the recorded run from outside (a time-out's
/// SIGTERM, Ctrl-C) ends this one as well, at the latest when its instructions are
/// used up: before that nobody can say that it hangs.
pub fn finish(vm: &mut Vm, limit: u64) -> Result<Ending, Error> {
    vm.limit(limit);
    let mut stop = vm.run(None)?;
    while stop == Stop::Limit && vm.signals_to_come() > 0 {
        vm.send_next_signal()?;
        vm.limit(if vm.signals_to_come() > 0 {
            SLACK
        } else {
            limit
        });
        stop = vm.run(None)?;
    }
    let modules = names::modules(vm);
    match stop {
        Stop::Limit => still_running(vm, limit, &modules),
        other => Ok(ended(vm, other, &modules)),
    }
}

/// The limit is used up: hangs, or works on.
fn still_running(vm: &mut Vm, limit: u64, modules: &ModuleMap) -> Result<Ending, Error> {
    // Sleepers are let go once; whoever then still spins spins for ever.
    for round in 0..2 {
        let spinners = match spin::look(vm, modules)? {
            Doing::Stopped(stop) => return Ok(ended(vm, stop, modules)),
            Doing::Working => return Ok(Ending::Unfinished),
            Doing::Spinning(spinners) => spinners,
        };
        if round == 1 || !spin::has_sleepers(vm, &spinners) {
            return Ok(Ending::Hang {
                what: spinners
                    .iter()
                    .map(|spinner| spinner.describe(modules))
                    .collect(),
                stack: spinners
                    .into_iter()
                    .next()
                    .map(|spinner| spinner.stack)
                    .unwrap_or_default(),
            });
        }
        for spinner in &spinners {
            vm.freeze(spinner.thread, true);
        }
        vm.limit(limit);
        let stop = vm.run(None)?;
        if matches!(stop, Stop::Ended(_)) {
            return Ok(ended(vm, stop, modules));
        }
        for spinner in &spinners {
            vm.freeze(spinner.thread, false);
        }
        vm.limit(limit);
        match vm.run(None)? {
            Stop::Limit => {}
            stop => return Ok(ended(vm, stop, modules)),
        }
    }
    Ok(Ending::Unfinished)
}

/// How a copy that stopped by itself ended.
pub fn ended(vm: &mut Vm, stop: Stop, modules: &ModuleMap) -> Ending {
    match stop {
        Stop::Ended(ProcessStatus::Exited(code)) => Ending::Exited(code),
        Stop::Ended(ProcessStatus::Killed(signal)) => {
            let fault = vm.fault;
            let thread = fault.map_or_else(|| vm.current_thread(), |fault| fault.moment.thread);
            let regs = fault
                .map(|fault| fault.regs)
                .or_else(|| vm.registers(thread));
            Ending::Killed {
                signal,
                address: fault.map(|fault| fault.address),
                thread,
                stack: regs
                    .map(|regs| names::stack(modules, &regs))
                    .unwrap_or_default(),
            }
        }
        Stop::Stuck { input } => {
            let waiting = waits::waiting(vm, modules);
            if let Some(circle) = waits::cycle(&waiting) {
                return Ending::Deadlock {
                    circle: circle.iter().map(|wait| wait.describe(modules)).collect(),
                    stack: circle
                        .first()
                        .map(|wait| wait.stack.clone())
                        .unwrap_or_default(),
                };
            }
            if input {
                return Ending::InputExhausted;
            }
            Ending::Hang {
                what: waiting.iter().map(|wait| wait.describe(modules)).collect(),
                stack: waiting
                    .into_iter()
                    .find(|wait| wait.awaits.is_none())
                    .map(|wait| wait.stack)
                    .unwrap_or_default(),
            }
        }
        Stop::Limit => Ending::Unfinished,
        Stop::Reached(_) | Stop::RecordingEnds => Ending::Lost("it stopped for no reason".into()),
    }
}
