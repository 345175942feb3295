//! Runs that fail by themselves: the crashes, deadlocks and hangs of a recording
//! as findings of the report, and the end of a run that would never come to one.
//!
//! They are told whether a race was seen or not: a run that died is a finding, and
//! a race that was not met in it may well be the reason. Which processes count:
//! the first, and any other if the first did not end with code 0. Whoever starts a
//! program that is to crash (a death test) and takes that for good ends with 0.

use crate::commands::Failure;
use race::{Report, RunFailure};
use std::path::Path;
use vm::record::{ProcessStatus, Recording};
use vm::{Error, Stop, Vm, interruption};

/// Instructions after which it is looked for the first time whether the program
/// will never end, and again whenever it has executed twice as many. A look costs a
/// fork and some million instructions at most.
const FIRST_LOOK: u64 = 5_000_000;

/// Runs a program that is being recorded to its end. One that will never come to
/// an end by itself is ended where it stands, as by SIGKILL: its recording says
/// how it stands.
pub fn run_to_its_end(vm: &mut Vm, recording: &Recording) -> Result<Stop, Error> {
    vm.stop_when_stuck(true);
    let mut next = FIRST_LOOK;
    loop {
        vm.stop_after(next);
        let stop = vm.run(None)?;
        if !matches!(stop, Stop::Limit | Stop::Stuck { .. }) {
            return Ok(stop);
        }
        let is_alone = !recording.process(1).is_folder();
        if is_alone && explore::will_never_end(vm) {
            return vm.kill();
        }
        match stop {
            // Somebody has to tell it something: it waits on.
            Stop::Stuck { .. } => vm.stop_when_stuck(false),
            _ => next = next.saturating_mul(2),
        }
    }
}

/// Adds to `report` how the program of the recording in `directory` failed.
pub fn tell(report: &mut Report, directory: &Path) -> Result<(), Failure> {
    let recording = Recording::open(directory)?;
    let mut first_is_well = false;
    for number in recording.processes() {
        if interruption::is_over() {
            report.leave("how the program failed".into());
            return Ok(());
        }
        // What a recorder that was killed did not write says nothing.
        let Ok(Some(status)) = recording.status(number) else {
            continue;
        };
        if number == 0 {
            first_is_well = status == ProcessStatus::Exited(0);
        }
        match explore::how_it_failed(&recording.of_process(number)) {
            Ok(None) => {}
            Ok(Some(failure)) if first_is_well => report.not_checked.push(format!(
                "process {number} of the recording {}; the first one ended with code 0 all the \
                 same, so it is not taken for a failure",
                failure.text
            )),
            Ok(Some(failure)) => {
                let replay = commands(&failure, directory);
                report.failures.push(RunFailure { replay, ..failure });
            }
            Err(_) if interruption::is_over() => {
                report.leave("how the program failed".into());
            }
            Err(error) => report.not_checked.push(format!(
                "how process {number} of the recording ended: {error}"
            )),
        }
    }
    Ok(())
}

/// Failures that another run had as well: what was found around them there need not
/// be looked for again.
pub fn take_known(report: &mut Report, known: &[RunFailure]) {
    for failure in &mut report.failures {
        let same = known.iter().find(|known| known.same_as(failure));
        failure.around = same.and_then(|known| known.around.clone());
    }
}

/// What shows the failure again: to its end, and where each thread stood.
fn commands(failure: &RunFailure, directory: &Path) -> Vec<String> {
    let directory = directory.display();
    let process = failure
        .process
        .map_or_else(String::new, |number| format!(" --process {number}"));
    let mut commands = vec![format!("deadheat replay {directory}{process}")];
    commands.extend(failure.stacks.iter().map(|call| {
        format!(
            "deadheat replay {directory}{process} --until {}",
            call.moment
        )
    }));
    commands
}
