//! The long phases of an analysis, with progress for those who watch.
//!
//! The program's own run shows none: the terminal is the program's then.

use report::{Progress, Unit};
use std::path::Path;
use vm::record::{Recording, Step, StepReader};

/// Passes that detection makes over a recording.
const PASSES: u64 = 3;

/// Runs `work`, which finds the races of `recording`.
pub fn detecting<T>(recording: &Path, work: impl FnOnce() -> T) -> T {
    let total = Progress::wanted()
        .then(|| instructions(recording))
        .flatten();
    let total = total.map(|total| total.saturating_mul(PASSES));
    counting("finding races", total, work)
}

/// Runs `work` under this label and shows the instructions it takes.
pub fn counting<T>(label: &str, total: Option<u64>, work: impl FnOnce() -> T) -> T {
    let progress = Progress::new(label, Unit::Instructions, total);
    vm::watch::count_into(progress.counter());
    let result = work();
    vm::watch::count_into(None);
    drop(progress);
    result
}

/// How many instructions the first process of a recording ran; none if that
/// cannot be told, which is somebody else's to complain about.
fn instructions(recording: &Path) -> Option<u64> {
    let recording = Recording::open(recording).ok()?;
    let mut steps = StepReader::open(&recording.process(0).join("schedule")).ok()?;
    let mut total = 0u64;
    while let Ok(Some(step)) = steps.next_step() {
        if let Step::Slice { instructions, .. } = step {
            total = total.saturating_add(instructions);
        }
    }
    Some(total)
}
