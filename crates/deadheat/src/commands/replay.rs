//! `deadheat replay`: runs a recorded execution again, or up to a moment of it
//! and shows the thread there.

use super::{Failure, end_like};
use ::race::{Frame, Moment};
use report::plain;
use std::path::PathBuf;
use symbols::ModuleMap;
use vm::context::reg;
use vm::record::Recording;
use vm::space::Backing;
use vm::{Stop, Vm};

mod diagnose;
mod race;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  deadheat replay .deadheat/7                            the same output and end again
  deadheat replay .deadheat/7 --until 2:18234            stop there: stack, registers, source line
  deadheat replay .deadheat/7 --race 3 --order swapped   what the other order leads to
  deadheat replay .deadheat/7 --race 3 --gdb             stand at the race in gdb, go back and on
  deadheat replay .deadheat/7 --evidence 1 --gdb         what a verdict rests on, in gdb
  deadheat replay .deadheat/7 --process 2 --gdb          a process that the program forked, in gdb
  deadheat replay .deadheat/7 --diagnose                 a replay diverged: where, and what wrote there
  (gdb) target remote | deadheat replay .deadheat/7 --race 3 --order swapped --gdb=-")]
pub struct Arguments {
    /// The recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Stop before this moment (THREAD:COUNT) and show the thread there
    #[arg(long, value_name = "THREAD:COUNT")]
    until: Option<Moment>,
    /// Run this piece of evidence again (`deadheat classify` numbers them) and
    /// say what it does; exit code 66 if it still does what was seen. With
    /// --gdb, stand at its race point in gdb (--order chooses, where two
    /// executions are compared)
    #[arg(long, value_name = "N", conflicts_with_all = ["until", "race"])]
    evidence: Option<u32>,
    /// Replay only this process of the recording (0 is the first)
    #[arg(long, value_name = "N")]
    process: Option<u32>,
    /// Replay several times and tell where a replay first differs from the
    /// recording, or from another replay, and what was written there; exit
    /// code 70 if one does
    #[arg(long, conflicts_with_all = ["until", "evidence"])]
    diagnose: bool,
    /// Show the program's output on a terminal as it was written: a recording
    /// of somebody else's can then do to the terminal what it wants. Without,
    /// control characters are shown as such; elsewhere than on a terminal the
    /// output is always what was written
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    race: race::RaceArguments,
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    let mut until = arguments.until;
    if !arguments.race.wants_gdb() {
        vm::interruption::be_patient();
    }
    if let Some(number) = arguments.evidence {
        if arguments.race.wants_gdb() {
            let process = arguments.process.unwrap_or(0);
            return race::evidence(&arguments.recording, process, number, &arguments.race);
        }
        let recording = Recording::open(&arguments.recording)?;
        let recording = recording.of_process(arguments.process.unwrap_or(0));
        return crate::exploration::show_evidence(&recording, number);
    }
    if arguments.diagnose && arguments.race.is_asked_for() {
        return Err(Failure::usage(
            "--diagnose looks at plain replays; give it without --race, --order and --gdb",
        ));
    }
    if arguments.diagnose {
        let recording = Recording::open(&arguments.recording)?;
        return diagnose::run(&recording, arguments.process);
    }
    if arguments.race.is_asked_for() {
        let process = arguments.process.unwrap_or(0);
        if process > 0 && arguments.race.names_a_race() {
            return Err(Failure::usage(
                "a race of another process is shown by --process and --until, as the report says",
            ));
        }
        match race::run(&arguments.recording, process, until, &arguments.race)? {
            race::Next::Done(code) => return Ok(code),
            race::Next::Show(moment) => until = Some(moment),
        }
    }
    let recording = Recording::open(&arguments.recording)?;
    let mut vm = match (arguments.process, until) {
        (Some(process), _) => Vm::replay_process(&recording, process)?,
        (None, Some(_)) => Vm::replay(&recording)?,
        (None, None) => Vm::replay_tree(&recording)?,
    };
    if arguments.raw {
        vm.show_raw();
    }
    match vm.run(until)? {
        Stop::Ended(status) => {
            if let Some(until) = until {
                say!("deadheat: the program ends before {until}");
            }
            Ok(end_like(status))
        }
        Stop::Reached(moment) => {
            show(&vm, moment)?;
            Ok(0)
        }
        Stop::RecordingEnds | Stop::Stuck { .. } | Stop::Limit => {
            say!(
                "deadheat: the recording ends here, before the program did (the recording deadheat was killed)"
            );
            Ok(::race::exit_code::FAILURE)
        }
    }
}

/// The programs and libraries that are mapped.
fn modules_of(vm: &Vm) -> ModuleMap {
    let mut modules = ModuleMap::new();
    for (range, mapping) in vm.space.mappings() {
        if let Backing::File { path, offset } = &mapping.backing {
            modules.insert(range, path, *offset);
        }
    }
    modules
}

/// Source line of a frame, or else where it is in its file.
fn place_of(frame: &Frame, pc: u64) -> String {
    match (&frame.file, frame.line, &frame.module, frame.offset) {
        (Some(file), Some(line), ..) => format!("{file}:{line}"),
        (_, _, Some(module), Some(offset)) => format!("{module}+{offset:#x}"),
        _ => format!("{pc:#x}"),
    }
}

/// Thread, stack, registers and source line at a moment.
fn show(vm: &Vm, moment: Moment) -> Result<(), Failure> {
    let Some(regs) = vm.registers(moment.thread) else {
        return Ok(());
    };
    let modules = modules_of(vm);
    let name = vm
        .threads
        .get(&moment.thread)
        .map(|thread| {
            let bytes: Vec<u8> = thread
                .name
                .iter()
                .copied()
                .take_while(|byte| *byte != 0)
                .collect();
            String::from_utf8_lossy(&bytes).into_owned()
        })
        .unwrap_or_default();
    tell!(
        "thread {} \"{}\" after {} instructions",
        moment.thread,
        plain(&name),
        moment.count
    );
    let machine = symbols::Registers {
        general: regs.gpr,
        rip: regs.rip,
    };
    let mut read = |address: u64| vm::memory::get::<u64>(address).ok();
    let mut number = 0;
    for (depth, pc) in modules
        .unwind(&machine, &mut read, 64)
        .into_iter()
        .enumerate()
    {
        for frame in modules.frames(pc, depth > 0) {
            let function = frame.function.as_deref().unwrap_or("??");
            let place = place_of(&frame, pc);
            tell!("  #{number:<2} {}  {}", plain(function), plain(&place));
            number += 1;
        }
    }
    tell!("  rip {:016x}  flags {:x}", regs.rip, regs.rflags);
    for row in 0..4 {
        let cells: Vec<String> = (0..4)
            .map(|column| {
                let register = row * 4 + column;
                format!("{:>3} {:016x}", reg::NAMES[register], regs.gpr[register])
            })
            .collect();
        tell!("  {}", cells.join("  "));
    }
    Ok(())
}
