//! `deadheat record`: runs a program and writes a recording.

use super::{Failure, end_like};
use crate::ending;
use std::ffi::OsString;
use std::path::PathBuf;
use vm::record::{Manifest, Recording};
use vm::schedule::PolicyName;
use vm::{Program, ScheduleChoice, Stop, Vm};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat record -o rec -- ./prog arg     one run, kept in the folder rec
  deadheat record -o rec2 --seed 7 -- ./prog arg   another interleaving
  deadheat record -o rec3 --guard -- ./prog        with 64 bytes behind every heap block
  deadheat record -o rec4 --guard=256 -- ./prog    with 256")]
pub struct Arguments {
    /// Directory for the recording; must not exist yet, or be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    schedule: ScheduleArguments,
    /// Make every block that the program asks an allocator for larger by this
    /// many bytes, so that `classify` sees how far an overflow reaches
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true,
          default_missing_value = "64", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    guard: Option<u64>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROG"
    )]
    command: Vec<OsString>,
}

/// How the threads of the program are scheduled.
#[derive(clap::Args)]
pub struct ScheduleArguments {
    /// Seed of the schedule: the same seed gives the same execution
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Scheduling policy: round-robin, random, pct or sequencer [default:
    /// random]
    #[arg(long, value_name = "POLICY")]
    schedule: Option<PolicyName>,
    /// Instructions per turn, about
    #[arg(long, default_value_t = vm::DEFAULT_QUANTUM, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    quantum: u64,
}

impl ScheduleArguments {
    pub fn choice(&self) -> ScheduleChoice {
        ScheduleChoice {
            policy: self.schedule.unwrap_or(PolicyName::Random),
            seed: self.seed,
            quantum: self.quantum,
        }
    }

    /// The `number`th of a row of schedules: every run has another seed, and
    /// unless a policy was asked for every other run another policy, with
    /// turns that are short enough to matter in small programs.
    pub fn choice_of_row(&self, number: u64) -> ScheduleChoice {
        const SHORT: u64 = 1_000;
        let mut choice = self.choice();
        choice.seed = choice.seed.wrapping_add(number);
        if self.schedule.is_none() {
            match number % 4 {
                1 => {
                    choice.policy = PolicyName::Pct;
                    choice.quantum = choice.quantum.min(SHORT);
                }
                3 => {
                    choice.policy = PolicyName::Sequencer;
                    choice.quantum = choice.quantum.min(SHORT);
                }
                _ => {}
            }
        }
        choice
    }

    /// The same choice as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec![
            "--seed".to_string(),
            self.seed.to_string(),
            "--quantum".to_string(),
            self.quantum.to_string(),
        ];
        if let Some(schedule) = &self.schedule {
            words.extend(["--schedule".to_string(), schedule.to_string()]);
        }
        words.into_iter().map(OsString::from).collect()
    }
}

/// Makes the recording of a run that is about to start.
pub fn create(
    output: &std::path::Path,
    program: &Program,
    schedule: ScheduleChoice,
    guard: Option<u64>,
) -> Result<Recording, Failure> {
    let name = schedule.policy.to_string();
    Ok(Recording::create(
        output,
        Manifest {
            guard,
            ..Manifest::of(program, name, schedule.seed, schedule.quantum)
        },
    )?)
}

/// The program named by the trailing arguments of a command line.
pub fn program(command: &[OsString]) -> Result<Program, Failure> {
    let (name, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::usage("no program given"))?;
    let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
    Program::find(name, &arguments).map_err(|error| vm::Error::from(error).into())
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let program = program(&arguments.command)?;
    let schedule = arguments.schedule.choice();
    let recording = create(&arguments.output, &program, schedule, arguments.guard)?;
    let find: vm::guard::FindAllocators = explore::guarded_functions;
    let policy = schedule.policy.build(schedule.seed, schedule.quantum);
    let mut vm = Vm::record_under(&recording, &program, schedule.seed, policy, Some(find))?;
    vm.end_when_asked();
    let stop = vm.run(None)?;
    if let Some(signal) = vm.was_ended_by() {
        say!(
            "deadheat: the program did not end of {} by itself, so it was ended; the recording is whole up \
             to there",
            ending::name(signal)
        );
        return Ok(128 + signal);
    }
    match stop {
        Stop::Ended(status) => Ok(end_like(status)),
        _ => Ok(race::exit_code::FAILURE),
    }
}
