//! Asks `explore` what the races of a recording can do and writes the answers
//! into the report.

use crate::commands::Failure;
use crate::{ending, orders, phase};
use explore::{
    Checks, Conclusion, Looked, Occurrence, Origin, Outcome, Recorded, Schedule, Settings, Subject,
    Witness,
};
use race::{Access, AccessKind, Evidence, Instance, Moment, Race, Report, Verdict, labels, plain};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use vm::interruption;
use vm::record::Recording;
use vm::snapshot::CopyError;

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
    /// Come to an end after this many seconds, the program's own run and
    /// whatever is under way included; what is left is said. Without it only
    /// the classification ends by itself: after five minutes, and 200 seconds
    /// more for every thousand million instructions of the recording
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Other schedules from the program's start on that may lead to the same
    /// races, and to new ones; four times as many if the recorded run died of a
    /// signal
    #[arg(long, default_value_t = 2, value_name = "N")]
    pre_schedules: u32,
    /// Executions after a swapped race in which new races are looked for
    #[arg(long, default_value_t = 1, value_name = "N")]
    post_schedules: u32,
    /// Seed of the schedules before and after the race
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
    /// Orders that leave the same state are run on from there, and must do the
    /// same; what does not is told as a defect of deadheat
    #[arg(long, hide = true)]
    audit: bool,
}

impl ExploreOptions {
    /// The same options as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = vec![
            "--k".to_string(),
            self.k.to_string(),
            "--explore-seed".to_string(),
            self.explore_seed.to_string(),
            "--pre-schedules".to_string(),
            self.pre_schedules.to_string(),
            "--post-schedules".to_string(),
            self.post_schedules.to_string(),
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
        if self.audit {
            words.push("--audit".to_string());
        }
        if let Some(seconds) = self.budget {
            words.extend(["--budget".to_string(), seconds.to_string()]);
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// From now on the command has the time that the user gives it.
    pub fn begin_budget(&self) -> Option<interruption::Budget> {
        let seconds = self.budget?;
        Some(interruption::Budget::of(Duration::from_secs(seconds)))
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
            progress: true,
            audit: self.audit,
        }
    }
}

/// Time for the classification of one recording, if the user gives none: what
/// the programs of the tests take, several times.
const USUAL_TIME: Duration = Duration::from_secs(300);

/// More of it for long recordings. An execution takes about a nanosecond per
/// instruction, three when it is watched: this is some 60 of them.
const NANOSECONDS_PER_INSTRUCTION: u64 = 200;

fn usual_time(instructions: u64) -> Duration {
    let more = instructions.saturating_mul(NANOSECONDS_PER_INSTRUCTION);
    USUAL_TIME.saturating_add(Duration::from_nanos(more))
}

pub fn failure(error: explore::Error) -> Failure {
    Failure {
        code: error.exit_code(),
        message: error.to_string(),
    }
}

/// Plays both orders of every race of `report` and classifies them all, as far
/// as there is time.
pub fn play_and_classify(
    report: &mut Report,
    directory: &Path,
    effort: orders::Effort,
    options: &ExploreOptions,
    schedules: u32,
    detection: Option<&detect::Options>,
) -> Result<(), Failure> {
    if interruption::is_over() {
        leave_all(report);
        return Ok(());
    }
    let played = orders::play(report, directory, effort);
    let leads = match ending::unless_over(played)? {
        Some(leads) if !interruption::is_over() => leads,
        _ => {
            leave_all(report);
            return Ok(());
        }
    };
    classify(report, directory, options, schedules, detection, &leads)
}

/// Classifies every race of `report`, which were found in the recording at
/// `directory`, its `leads` first; races that are met on the way are added and
/// classified as well, if there is a `detection` to find them by.
pub fn classify(
    report: &mut Report,
    directory: &Path,
    options: &ExploreOptions,
    schedules: u32,
    detection: Option<&detect::Options>,
    leads: &orders::Leads,
) -> Result<(), Failure> {
    if options.k == 0 || report.races.is_empty() {
        return Ok(());
    }
    let recording = Recording::open(directory)?;
    let settings = options.settings(schedules);
    let recorded: Vec<Recorded> = report
        .races
        .iter()
        .map(|race| Recorded {
            occurrences: occurrences(race, None),
            leads: leads.of(race).to_vec(),
        })
        .collect();
    let followed = explore::MOST_LEADS.max(settings.primaries());
    let beyond: usize = recorded
        .iter()
        .map(|recorded| recorded.leads.len().saturating_sub(followed))
        .sum();
    if beyond > 0 {
        report.not_checked.push(format!(
            "{} that changed the state in the other order {} not followed to the end: {followed} of \
             each race were (`--k` follows more)",
            report::count(beyond as u64, "instance"),
            if beyond == 1 { "was" } else { "were" },
        ));
    }
    let moments: Vec<Moment> = recorded
        .iter()
        .filter_map(|recorded| recorded.occurrences.first())
        .flat_map(|occurrence| [occurrence.instance.first, occurrence.instance.second])
        .collect();
    if moments.is_empty() {
        return Ok(());
    }
    let first: Vec<Occurrence> = recorded
        .iter()
        .flat_map(|recorded| &recorded.occurrences)
        .copied()
        .collect();
    let survey = match explore::survey(&recording, &moments, &first) {
        Err(explore::Error::Copy(CopyError::Interrupted)) => {
            leave_all(report);
            return Ok(());
        }
        survey => survey.map_err(failure)?,
    };
    let _usual = options
        .budget
        .is_none()
        .then(|| interruption::Budget::of(usual_time(survey.instructions())));
    let checks = options.checks();
    let mut all = Explored {
        looked: report.races.iter().map(|_| Vec::new()).collect(),
        left: report.races.iter().map(|_| 0).collect(),
        not_checked: Vec::new(),
    };
    all.add(&recording, recorded, &survey, settings, &checks)?;
    let (mut reached_by, mut followed) = (0, 0);
    let others = detection.map_or_else(Vec::new, |detection| {
        let died = report.exit.program.is_some_and(|code| code > 128);
        let origins = all.other_executions(options, died);
        origins
            .into_iter()
            .map(|origin| (origin, detection))
            .collect()
    });
    let mut left_others = 0;
    for (number, (origin, detection)) in (0..).zip(others) {
        // Worse than a violated specification it cannot get.
        if all
            .looked
            .iter()
            .all(|looked| looked.iter().any(Looked::violates))
        {
            break;
        }
        if interruption::is_over() {
            left_others += 1;
            continue;
        }
        let label = format!("looking for races under {origin}");
        let found = phase::counting(&label, None, || {
            let start = |recording: &Recording| survey.start(recording, origin);
            detect::detect_in(directory, detection, &start)
        });
        match found {
            // What was cut off says nothing; it is looked at again.
            Ok(found) if found.cut_short.is_some() => left_others += 1,
            Ok(found) => {
                match origin {
                    Origin::Schedule(_) => reached_by += 1,
                    Origin::Swapped { .. } => followed += 1,
                }
                let todo = meet(report, found, origin, number, &mut all);
                let todo = todo.into_iter().map(Recorded::without_leads).collect();
                all.add(&recording, todo, &survey, settings, &checks)?;
            }
            Err(_) if interruption::is_over() => left_others += 1,
            Err(error) => report.not_checked.push(format!(
                "under {origin} no races could be looked for: {error}"
            )),
        }
    }
    let mut witnesses: Vec<Witness> = Vec::new();
    let mut unlooked = 0;
    let mut errors: Vec<race::ErrorFinding> = Vec::new();
    for ((race, looked), left) in report.races.iter_mut().zip(&all.looked).zip(&all.left) {
        let Some(mut conclusion) = explore::conclude(looked) else {
            unlooked += 1;
            continue;
        };
        for error in conclusion.common_errors.drain(..) {
            let known = errors
                .iter()
                .any(|known| known.kind == error.kind && known.text == error.text);
            if !known {
                errors.push(error);
            }
        }
        let was_seen = [Verdict::SpecViolated, Verdict::OutputDiffers];
        if *left > 0 && !was_seen.contains(&conclusion.verdict) {
            // What was not seen in a part of the executions may be in the rest.
            unlooked += 1;
            continue;
        }
        tell(race, conclusion, directory, &mut witnesses);
    }
    report.errors = errors;
    report.not_checked.append(&mut all.not_checked);
    for looked in all.looked.iter().flatten() {
        let Instance { first, second, .. } = looked.occurrence.instance;
        report
            .not_checked
            .extend(looked.parted.iter().map(|parted| {
                format!(
                    "both orders of {first} and {second} left the same state, and then {parted}: a \
                 defect of deadheat, please report it"
                )
            }));
    }
    explore::write_evidence(&recording, &mut witnesses).map_err(failure)?;
    if all.left.iter().any(|left| *left > 0) {
        let races = report::count(report.races.len() as u64, "race");
        report.leave(format!("what {unlooked} of {races} can do"));
    }
    if left_others > 0 {
        let executions = report::count(left_others, "other execution");
        report.leave(format!("races under {executions}"));
    }
    report.not_checked.push(format!(
        "consequences were looked for with the recorded inputs only, under sequential \
         consistency, in {} schedules per occurrence; races were reached by the recorded \
         schedule and {}, and new ones looked for in {} after a swapped race",
        settings.schedules,
        report::count(reached_by, "other"),
        report::count(followed, "execution")
    ));
    report.sort_and_number();
    Ok(())
}

/// Of no race it is known what it can do.
fn leave_all(report: &mut Report) {
    if !report.races.is_empty() {
        let races = report::count(report.races.len() as u64, "race");
        report.leave(format!("what {races} can do"));
    }
}

/// What has been looked at, race by race.
struct Explored {
    looked: Vec<Vec<Looked>>,
    /// Occurrences of each that are left.
    left: Vec<usize>,
    /// What could not be watched, in sentences.
    not_checked: Vec<String>,
}

impl Explored {
    /// Executions in which races are looked for besides the recorded one: under
    /// other schedules from the start on, and after a race that was swapped,
    /// where that made a difference and the program came to its end.
    ///
    /// A recorded run that died of a signal lacks what would have come after,
    /// the second access of the race that killed it as well: more schedules are
    /// tried then.
    fn other_executions(&self, options: &ExploreOptions, died: bool) -> Vec<Origin> {
        const MORE_IF_DIED: u32 = 4;
        let count = options.pre_schedules * if died { MORE_IF_DIED } else { 1 };
        let before = Schedule::before(count, options.explore_seed);
        let swapped = self.looked.iter().filter_map(|looked| {
            let looked = looked
                .iter()
                .find(|looked| looked.occurrence.before.is_none())?;
            let poised = looked.poised?;
            let ended = |outcome: &Outcome| {
                matches!(
                    outcome,
                    Outcome::Same | Outcome::Elsewhere(_) | Outcome::Output(_)
                )
            };
            let pair = looked
                .pairs
                .iter()
                .rev()
                .find(|pair| ended(&pair.outcome))?;
            Some(Origin::Swapped {
                first: poised.first,
                second: poised.second,
                schedule: pair.schedule,
            })
        });
        before
            .into_iter()
            .map(Origin::Schedule)
            .chain(swapped.take(options.post_schedules as usize))
            .collect()
    }

    /// Looks at some occurrences of each race.
    fn add(
        &mut self,
        recording: &Recording,
        recorded: Vec<Recorded>,
        survey: &explore::Survey,
        settings: Settings,
        checks: &Checks,
    ) -> Result<(), Failure> {
        let subjects: Vec<Subject> = recorded
            .into_iter()
            .map(|recorded| Subject {
                source: Box::new(recorded),
            })
            .collect();
        let explored =
            explore::explore(recording, &subjects, survey, settings, checks).map_err(failure)?;
        for (left, more) in self.left.iter_mut().zip(explored.left) {
            *left += more;
        }
        for sentence in explored.not_checked {
            if !self.not_checked.contains(&sentence) {
                self.not_checked.push(sentence);
            }
        }
        for (known, more) in self.looked.iter_mut().zip(explored.looked) {
            known.extend(more);
        }
        Ok(())
    }
}

/// Races met in another execution: one more occurrence of those that are known,
/// if another schedule led to it, and a place in the report for the new ones.
/// What to look at, race by race.
fn meet(
    report: &mut Report,
    found: Report,
    origin: Origin,
    number: u32,
    all: &mut Explored,
) -> Vec<Vec<Occurrence>> {
    let mut todo: Vec<Vec<Occurrence>> = report.races.iter().map(|_| Vec::new()).collect();
    for mut race in found.races {
        let mut there = occurrences(&race, Some(origin));
        let known = report
            .races
            .iter()
            .position(|known| known.fingerprint == race.fingerprint);
        if let Some(index) = known {
            // One: what is different about it lies before the race. The first
            // of one schedule, the last of the next.
            let one = if number.is_multiple_of(2) {
                there.first()
            } else {
                there.last()
            };
            let is_other = matches!(origin, Origin::Schedule(_));
            if is_other && !all.looked[index].iter().any(Looked::violates) {
                todo[index].extend(one.copied());
            }
            continue;
        }
        // Its moments are none of the recording's.
        race.occurrences.clear();
        race.replay.clear();
        for access in &mut race.accesses {
            access.moment = None;
        }
        race.evidence.push(Evidence {
            id: race.evidence.len() as u32 + 1,
            text: format!(
                "met while the others were explored, under {origin}; not in the recorded \
                 execution"
            ),
            instance: None,
            replay: None,
        });
        report.races.push(race);
        all.looked.push(Vec::new());
        all.left.push(0);
        todo.push(std::mem::take(&mut there));
    }
    todo
}

fn occurrences(race: &Race, before: Option<Origin>) -> Vec<Occurrence> {
    let writes = |kind: AccessKind| kind != AccessKind::Read;
    // Of a race that two threads made, instances of tasks that one thread ran
    // tell nothing.
    let apart = |instance: &&Instance| instance.first.thread != instance.second.thread;
    let is_apart = race.occurrences.iter().any(|instance| apart(&instance));
    race.occurrences
        .iter()
        .filter(|instance| !is_apart || apart(instance))
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
                before,
                distance: None,
                schedules: None,
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
    tell!("evidence {number}: {}", plain(&witness.seen));
    for (step, words) in (1..).zip(witness.words()) {
        tell!("  {step}. {}", plain(&words));
    }
    let replayed = witness.replay(recording).map_err(failure)?;
    for (name, run) in [
        ("recorded order", &replayed.recorded),
        ("swapped", &replayed.swapped),
    ] {
        let Some(run) = run else {
            continue;
        };
        tell!("{name}: the program {}", plain(&run.ending.describe()));
        for (depth, frame) in run.ending.stack().iter().enumerate() {
            tell!("    #{depth:<2} {}", plain(&explore::place(frame)));
        }
        for finding in &run.findings {
            let error = finding.reported();
            tell!(
                "  {}: {}",
                plain(&error.kind.replace('-', " ")),
                plain(&error.text)
            );
            for call in &error.stacks {
                tell!("    thread {} {}:", call.moment.thread, plain(&call.what));
                for (depth, frame) in call.stack.iter().enumerate() {
                    tell!("      #{depth:<2} {}", plain(&explore::place(frame)));
                }
            }
        }
        for output in &run.outputs {
            let bytes = output.bytes(0, 2000);
            tell!("  {} ({} bytes):", plain(&output.name), output.length);
            for line in bytes.split_inclusive(|byte| *byte == b'\n').take(20) {
                tell!("    | {}", line.trim_ascii_end().escape_ascii());
            }
        }
    }
    if replayed.still_there {
        tell!("still there: {}", plain(&replayed.seen));
        Ok(race::exit_code::RACES)
    } else {
        tell!("not seen again: {}", plain(&replayed.seen));
        Ok(0)
    }
}
