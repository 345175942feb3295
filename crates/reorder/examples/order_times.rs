//! Plays all instances of a report's races in both orders and prints how long
//! each took: `order_times RECORDING REPORT.json`. For bench/reorder.

use reorder::{Budget, Outcome};
use std::path::Path;
use vm::record::Recording;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, recording, report] = arguments.as_slice() else {
        return Err("usage: order_times RECORDING REPORT.json".into());
    };
    let report: race::Report = serde_json::from_slice(&std::fs::read(report)?)?;
    let recording = Recording::open(Path::new(recording))?;
    let instances: Vec<race::Instance> = report
        .races
        .iter()
        .flat_map(|race| race.occurrences.iter().copied())
        .collect();
    let played = reorder::both_orders_timed(&recording, &instances, Budget::default())?;
    let played: Vec<reorder::Timed> = played.into_iter().flatten().collect();
    let mut times: Vec<u64> = played.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0) as f64 / 1e3;
    let failures = played
        .iter()
        .filter(|(outcome, _)| matches!(outcome, Outcome::ReplayFailure(_)))
        .count();
    println!(
        "{} {failures} {:.2} {:.2} {:.2} {:.2}",
        times.len(),
        at(50),
        at(90),
        at(99),
        cpu_seconds() * 1e3 / times.len().max(1) as f64
    );
    Ok(())
}

/// CPU time of all processes that have ended.
fn cpu_seconds() -> f64 {
    // SAFETY: a plain out-parameter, zero is valid.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut used);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}
