//! Asks `explore` what the races of a recording can do and writes the answers
//! into the report.

use crate::commands::Failure;
use explore::{Checks, Conclusion, Occurrence, Recorded, Settings, Subject, Witness};
use race::{Access, AccessKind, Evidence, Race, Report, Verdict, labels};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use vm::record::Recording;

/// Schedules tried after each occurrence of a race, unless told otherwise.
pub const SCHEDULES: u32 = 5;

/// How much is tried to find out what a race can do.
#[derive(clap::Args, Debug, Clone)]
pub struct ExploreOptions {
    /// Pairs of executions per race: both orders, to the end, each time under
    /// another schedule or from another occurrence. 0 only compares the states
    /// right after the accesses
    #[arg(long, default_value_t = 10, value_name = "N")]
    k: u32,
    /// Begin nothing new after this many seconds; what is left is said
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Seed of the schedules after the race
    #[arg(long, default_value_t = 0, value_name = "N")]
    explore_seed: u64,
    /// What must always be true of the program's variables, for instance
    /// 'stats.used <= len(slots)': checked when a thread that has written to
    /// one of them next unlocks, posts or ends; with @write in front after
    /// every write. Globals, fields, elements by their names in the debug info
    #[arg(long, value_name = "EXPR")]
    invariant: Vec<String>,
    /// Functions of an allocator of the program's own, for instance
    /// alloc=pool_get:2,free=pool_put:2 (the argument that is the size, or the
    /// block, counted from 1; `alloc=node_new:=32` for blocks of one size)
    #[arg(long, value_name = "FUNCTIONS")]
    allocator: Vec<String>,
    /// Do not look for memory errors on the heap
    #[arg(long)]
    no_heap: bool,
}

impl ExploreOptions {
    /// The same options as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec![
            "--k".to_string(),
            self.k.to_string(),
            "--explore-seed".to_string(),
            self.explore_seed.to_string(),
        ];
        for invariant in &self.invariant {
            words.extend(["--invariant".to_string(), invariant.clone()]);
        }
        for allocator in &self.allocator {
            words.extend(["--allocator".to_string(), allocator.clone()]);
        }
        if self.no_heap {
            words.push("--no-heap".to_string());
        }
        if let Some(seconds) = self.budget {
            words.extend(["--budget".to_string(), seconds.to_string()]);
        }
        words.into_iter().map(OsString::from).collect()
    }

    fn checks(&self) -> Checks {
        Checks {
            heap: !self.no_heap,
            allocators: self.allocator.clone(),
            invariants: self.invariant.clone(),
        }
    }

    /// Says what is wrong with invariants and allocators before anything is
    /// run.
    pub fn verify(&self, program: &Path) -> Result<(), Failure> {
        self.checks()
            .verify(program)
            .map_err(|error| Failure::usage(error.to_string()))
    }

    fn settings(&self, schedules: u32) -> Settings {
        Settings {
            k: self.k,
            schedules: schedules.min(self.k.max(1)),
            seed: self.explore_seed,
            budget: self.budget.map(Duration::from_secs),
            progress: true,
        }
    }
}

fn failure(error: explore::Error) -> Failure {
    Failure {
        code: race::exit_code::FAILURE,
        message: error.to_string(),
    }
}

/// Classifies every race of `report`, which were found in the recording at
/// `directory`.
pub fn classify(
    report: &mut Report,
    directory: &Path,
    options: &ExploreOptions,
    schedules: u32,
) -> Result<(), Failure> {
    if options.k == 0 || report.races.is_empty() {
        return Ok(());
    }
    let recording = Recording::open(directory)?;
    let settings = options.settings(schedules);
    let subjects: Vec<Subject> = report
        .races
        .iter()
        .map(|race| Subject {
            source: Box::new(Recorded(occurrences(race))),
        })
        .collect();
    let checks = options.checks();
    let explored = explore::explore(&recording, &subjects, settings, &checks).map_err(failure)?;
    let mut witnesses: Vec<Witness> = Vec::new();
    let mut unlooked = 0;
    let mut errors: Vec<race::ErrorFinding> = Vec::new();
    for (race, looked) in report.races.iter_mut().zip(&explored.looked) {
        match explore::conclude(looked, settings.schedules) {
            Some(mut conclusion) => {
                for error in conclusion.common_errors.drain(..) {
                    let known = errors
                        .iter()
                        .any(|known| known.kind == error.kind && known.text == error.text);
                    if !known {
                        errors.push(error);
                    }
                }
                tell(race, conclusion, directory, &mut witnesses);
            }
            None => unlooked += 1,
        }
    }
    report.errors = errors;
    report.not_checked.extend(explored.not_checked);
    explore::write_evidence(&recording, &mut witnesses).map_err(failure)?;
    if explored.cut_short {
        report.not_checked.push(format!(
            "classification was cut short: {unlooked} of {} races were not looked at; \
             `deadheat classify` goes on where it stopped",
            report.races.len()
        ));
    }
    report.not_checked.push(format!(
        "consequences were looked for with the recorded inputs only, under sequential \
         consistency, in {} schedules per occurrence",
        settings.schedules
    ));
    report.sort_and_number();
    Ok(())
}

fn occurrences(race: &Race) -> Vec<Occurrence> {
    let writes = |kind: AccessKind| kind != AccessKind::Read;
    race.occurrences
        .iter()
        .map(|instance| {
            // Which of the two sides came first may change from one occurrence
            // to the next; where that is not known, the first one may write.
            let first = race
                .accesses
                .iter()
                .find(|access| access.moment == Some(instance.first));
            let both_write = race.accesses.iter().all(|access| writes(access.kind));
            Occurrence {
                instance: *instance,
                first_writes: first.map_or(both_write, |access| writes(access.kind))
                    || first.is_none(),
                second_by_moment: race
                    .accesses
                    .iter()
                    .any(|access| access.kind == AccessKind::Free),
            }
        })
        .collect()
}

/// Writes a conclusion into the race.
fn tell(race: &mut Race, conclusion: Conclusion, directory: &Path, witnesses: &mut Vec<Witness>) {
    if conclusion.verdict == Verdict::Unclassified {
        // The states are all that is known.
        let id = race.evidence.iter().map(|evidence| evidence.id).max();
        race.evidence.push(Evidence {
            id: id.map_or(1, |id| id + 1),
            text: format!("exploration: {}", conclusion.explanation),
            instance: None,
            replay: None,
        });
        return;
    }
    race.verdict = conclusion.verdict;
    race.consequence = conclusion.consequence;
    race.k = Some(conclusion.k);
    race.paths = Some(conclusion.paths);
    race.schedules = Some(conclusion.schedules);
    race.memory_model = Some("sc".to_string());
    race.explanation = Some(conclusion.explanation);
    race.errors = conclusion.errors;
    // What the states differ in stays behind what the program shows.
    let mut differences = conclusion.differences;
    differences.append(&mut race.differences);
    race.differences = differences;
    if !conclusion.orders.is_empty() {
        race.orders = conclusion.orders;
    }
    for label in conclusion.labels {
        if !race.labels.contains(&label) {
            race.labels.push(label);
        }
    }
    label_both_values_valid(race);
    let id = race.evidence.iter().map(|evidence| evidence.id).max();
    let mut evidence = Evidence {
        id: id.map_or(1, |id| id + 1),
        text: conclusion.counts,
        instance: None,
        replay: None,
    };
    if let Some(witness) = conclusion.witness {
        evidence.instance = Some(witness.occurrence.instance);
        evidence.text = format!("{}; {}", evidence.text, witness.words().join(", "));
        witnesses.push(witness);
        let command = format!(
            "deadheat replay {} --evidence {}",
            directory.display(),
            witnesses.len()
        );
        evidence.replay = Some(command.clone());
        race.replay.insert(0, command);
    }
    race.evidence.push(evidence);
}

/// A read that gets the old value in one order and the new one in the other,
/// and the program does the same with either (paper 000, table 2, "both values
/// valid"). Only playing both orders can tell, so the label comes here and not
/// from detection.
fn label_both_values_valid(race: &mut Race) {
    let writes = |access: &&Access| access.kind == AccessKind::Write;
    let [one, other] = &race.accesses;
    let (Some(write), true) = (
        [one, other].into_iter().find(writes),
        [one, other]
            .iter()
            .any(|access| access.kind == AccessKind::Read),
    ) else {
        return;
    };
    let (Some(old), Some(new)) = (&write.value_before, &write.value_after) else {
        return;
    };
    if race.verdict != Verdict::KWitnessHarmless || old == new {
        return;
    }
    let text = format!(
        "both values valid: the read gets {old} in one order and {new} in the other, in the \
         instance shown, and the program went on alike in every pair of executions tried"
    );
    let id = race.evidence.iter().map(|evidence| evidence.id).max();
    race.evidence.push(Evidence {
        id: id.map_or(1, |id| id + 1),
        text,
        instance: None,
        replay: None,
    });
    race.labels.push(labels::BOTH_VALUES_VALID.to_string());
}

/// Runs one piece of evidence again and tells what it does; 66 if it still
/// does what was seen.
pub fn show_evidence(recording: &Recording, number: u32) -> Result<i32, Failure> {
    let witness = explore::read_evidence(recording, number).map_err(failure)?;
    println!("evidence {number}: {}", witness.seen);
    for (step, words) in (1..).zip(witness.words()) {
        println!("  {step}. {words}");
    }
    let replayed = witness.replay(recording).map_err(failure)?;
    for (name, run) in [
        ("recorded order", &replayed.recorded),
        ("swapped", &replayed.swapped),
    ] {
        let Some(run) = run else {
            continue;
        };
        println!("{name}: the program {}", run.ending.describe());
        for (depth, frame) in run.ending.stack().iter().enumerate() {
            println!("    #{depth:<2} {}", explore::place(frame));
        }
        for finding in &run.findings {
            let error = finding.reported();
            println!("  {}: {}", error.kind.replace('-', " "), error.text);
            for call in &error.stacks {
                println!("    thread {} {}:", call.moment.thread, call.what);
                for (depth, frame) in call.stack.iter().enumerate() {
                    println!("      #{depth:<2} {}", explore::place(frame));
                }
            }
        }
        for output in &run.outputs {
            let bytes = output.bytes(0, 2000);
            println!("  {} ({} bytes):", output.name, output.length);
            for line in bytes.split_inclusive(|byte| *byte == b'\n').take(20) {
                println!("    | {}", line.trim_ascii_end().escape_ascii());
            }
        }
    }
    if replayed.still_there {
        println!("still there: {}", replayed.seen);
        Ok(race::exit_code::RACES)
    } else {
        println!("not seen again: {}", replayed.seen);
        Ok(0)
    }
}
