//! The hunt for the schedule under which a test fails.
//!
//! Built on the vm of papers 000 and 003: every run is one schedule, recorded
//! (`trial`), several at once in processes of their own (`pool`). Schedules are
//! PCT's over racy accesses and sequencers, walks over them (`walk`), threads side
//! by side (`lockstep`), and the vm's own (`plan`); the races of the first run are each
//! played the other way round before anything else, and races
//! found in runs that did not fail say where to preempt (`survey`). A failing
//! schedule is written as a list of switches (`switches`) and brought down to
//! the few without which it does not fail (`minimise`), and the race whose
//! order decides is named by flipping it (`decide`). `whatif` asks the other
//! way round: what would a lock less or a lock more do?
//!
//! Deviations: Portend+ (paper 003) starts from a race and asks what it does;
//! here the failure is given and the race is asked for. PCT's steps are not
//! instructions.
//! Guarantee: a failure is only told of an execution that was run, recorded and
//! run again from its switches alone; "decides" is only said of an order that
//! was played both ways. Nothing found means: not found in these schedules.

mod decide;
mod failure;
mod lockstep;
mod minimise;
mod plan;
mod pool;
mod settle;
mod survey;
mod switches;
mod trial;
mod walk;
pub mod whatif;

pub use decide::{Decided, Flip};
pub use failure::{Failure, Kind, Signature};
pub use plan::Plan;
pub use survey::Scene;
pub use switches::{Precedence, Switch};
pub use trial::Seen;

use plan::Known;
use pool::{Lost, Pool};
use race::Report;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trial::{Schedule, Subject};
use vm::{Program, interruption};

/// A run with this many times the instructions of the longest that ended is
/// taken for one that never ends; at least so many instructions.
const ENDLESS: u64 = 20;
const ENDLESS_AT_LEAST: u64 = 400_000_000;

/// The same in host time, for runs that wait for the outside: as many times
/// the longest, and at least this. A busy machine is no hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Races are looked for in the recordings of these runs, if they did not fail,
/// and in those that came to other racy accesses than all before; that may take
/// one part in so many of the time.
const DETECTED: [u64; 8] = [0, 5, 11, 17, 41, 89, 185, 377];
const LOOKING: u32 = 6;

/// Runs that may go wrong in a row before the hunt gives up.
const GIVES_UP: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start a run: {0}")]
    Start(std::io::Error),
    #[error("the program cannot be run: {0}")]
    Run(String),
    #[error("cannot keep recordings in {path}: {error}")]
    Folder {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error(transparent)]
    Recording(#[from] vm::record::RecordError),
}

/// How long and how hard to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For the search; making the schedule small takes as long again at most.
    pub time: Duration,
    /// Failing runs after which the search ends.
    pub until: u64,
    pub seed: u64,
    /// Runs at once.
    pub jobs: usize,
    /// Output that is a failure as well.
    pub fail_if: Option<Regex>,
    /// Races of which it is known that they are there, the worst first.
    pub known: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            time: Duration::from_secs(60),
            until: 1,
            seed: 0,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            fail_if: None,
            known: Vec::new(),
        }
    }
}

/// What was tried.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Runs, one schedule each.
    pub runs: u64,
    /// Different interleavings among them.
    pub interleavings: u64,
    /// Races seen in the runs that were looked at.
    pub races: u64,
    /// Instructions before which threads were preempted because of those.
    pub racy_accesses: u64,
    /// Synchronisation steps of a run at which threads could be preempted.
    pub sequencers: u64,
    /// Instructions of the longest run.
    pub instructions: u64,
    pub threads: u32,
    /// Runs that were cut off while still working.
    pub unfinished: u64,
    /// Runs that could not be made, and why the last could not.
    pub lost: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_because: Option<String>,
    pub seconds: f64,
    pub interrupted: bool,
}

/// One way to fail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Found {
    pub failure: Failure,
    /// The run that failed first, and when that was.
    pub run: u64,
    pub seconds: f64,
    /// Runs that failed like this.
    pub seen: u64,
    /// The schedule of that run, in a few words.
    pub plan: String,
    /// Switches of the failing run, and those left.
    pub switches_before: usize,
    pub switches: Vec<Scene>,
    /// Nothing more can be taken out.
    pub minimal: bool,
    /// Runs that making it small took.
    pub minimising_runs: u64,
    /// Races that decide, the likeliest cause first.
    pub decided: Vec<Decided>,
    /// The named pair is kept apart by locks; nothing was flipped.
    pub between_locks: bool,
    /// The recording of the smallest run that fails.
    pub recording: PathBuf,
    /// The races of that recording.
    pub report: Report,
}

pub struct Hunt {
    pub coverage: Coverage,
    pub found: Vec<Found>,
}

/// What the hunt is doing, for those who watch.
pub struct Doing<'a> {
    pub phase: &'static str,
    pub coverage: &'a Coverage,
    pub failing: u64,
    pub left: Duration,
    pub switches: Option<usize>,
}

fn is_interrupted() -> bool {
    interruption::is_over()
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Seen(Box<Seen>),
    Races(survey::Races),
}

/// A failing run as it was met.
struct Met {
    failure: Failure,
    run: u64,
    seconds: f64,
    seen: u64,
    plan: Plan,
    preempted: Vec<Switch>,
    directory: PathBuf,
}

/// Everything a hunt knows.
struct Hunter<'a> {
    program: &'a Program,
    settings: &'a Settings,
    folder: &'a Path,
    known: Known,
    coverage: Coverage,
    interleavings: HashSet<u64>,
    races: BTreeSet<String>,
    /// Races of the first run that are still to be played the other way round.
    flips: VecDeque<Precedence>,
    /// Racy accesses that nobody has counted yet.
    guessed: BTreeSet<u64>,
    /// Which racy accesses runs have come to, and how often, about.
    shapes: HashSet<u64>,
    /// The longest run that ended, in host time.
    slowest: Duration,
    /// Numbers for directories.
    next: u64,
}

/// Looks for schedules under which `program` fails. Recordings are made in
/// `folder`; those of `Hunt::found` are left there.
pub fn hunt(
    program: &Program,
    settings: &Settings,
    folder: &Path,
    watch: &mut dyn FnMut(&Doing),
) -> Result<Hunt, Error> {
    let program = bound_at_once(program);
    let mut hunter = Hunter {
        program: &program,
        settings,
        folder,
        known: Known::default(),
        coverage: Coverage::default(),
        interleavings: HashSet::new(),
        races: BTreeSet::new(),
        flips: VecDeque::new(),
        guessed: BTreeSet::new(),
        shapes: HashSet::new(),
        slowest: Duration::ZERO,
        next: 0,
    };
    let met = hunter.search(watch)?;
    let mut found = Vec::new();
    for met in met {
        let one = hunter.settle(met, watch)?;
        found.push(one);
    }
    hunter.coverage.interrupted |= is_interrupted();
    Ok(Hunt {
        coverage: hunter.coverage,
        found,
    })
}

impl Hunter<'_> {
    fn directory(&mut self) -> PathBuf {
        self.next += 1;
        self.folder.join(format!("run-{}", self.next))
    }

    fn patience(&self) -> Duration {
        PATIENCE.max(self.slowest * ENDLESS as u32)
    }

    fn limit(&self) -> u64 {
        if self.coverage.instructions == 0 {
            return u64::MAX;
        }
        self.coverage
            .instructions
            .saturating_mul(ENDLESS)
            .max(ENDLESS_AT_LEAST)
    }

    /// Starts one run.
    fn start(
        &self,
        pool: &mut Pool<Answer>,
        id: u64,
        directory: &Path,
        schedule: &Schedule,
    ) -> Result<(), Error> {
        let racy: Vec<u64> = self.known.accesses.keys().copied().collect();
        let subject = Subject {
            program: self.program,
            seed: self.settings.seed,
            fail_if: self.settings.fail_if.as_ref(),
            racy: &racy,
            limit: self.limit(),
            left_out: &[],
            section: None,
        };
        pool.start(id, self.patience(), || {
            subject
                .run(directory, schedule)
                .map(|seen| Answer::Seen(Box::new(seen)))
        })
        .map_err(Error::Start)
    }

    /// Runs under one plan after another until something fails.
    fn search(&mut self, watch: &mut dyn FnMut(&Doing)) -> Result<Vec<Met>, Error> {
        let begun = Instant::now();
        let deadline = begun + self.settings.time;
        let mut pool: Pool<Answer> = Pool::default();
        let mut flying: BTreeMap<u64, (u64, Plan, PathBuf, Instant)> = BTreeMap::new();
        let mut looked_at: BTreeMap<u64, (PathBuf, Instant)> = BTreeMap::new();
        let mut looking = Duration::ZERO;
        let mut waiting: Vec<PathBuf> = Vec::new();
        let mut met: Vec<Met> = Vec::new();
        let (mut number, mut planned, mut id, mut in_a_row) = (0, 0, 0, 0);
        let failing = |met: &[Met]| met.iter().map(|met| met.seen).sum::<u64>();
        loop {
            let over = (Instant::now() >= deadline && self.coverage.runs > 0)
                || is_interrupted()
                || failing(&met) >= self.settings.until;
            if over {
                break;
            }
            while pool.len() < self.settings.jobs.max(1) {
                id += 1;
                // One look at a time, beside the runs; nothing is known before
                // the first.
                if looked_at.is_empty()
                    && let Some(directory) = waiting.pop()
                {
                    let target = directory.clone();
                    let patience = self.settings.time.max(PATIENCE);
                    pool.start(id, patience, || survey::races(&target).map(Answer::Races))
                        .map_err(Error::Start)?;
                    looked_at.insert(id, (directory, Instant::now()));
                    continue;
                }
                // The first run alone says how long runs are, and what races.
                let first_is_open = !flying.is_empty() || !looked_at.is_empty();
                if number == 1 && first_is_open {
                    break;
                }
                let plan = match self.flips.pop_front() {
                    Some(flip) => Plan::Flipped(flip),
                    None => {
                        planned += 1;
                        Plan::of_number(planned - 1, self.settings.seed, &self.known)
                    }
                };
                let directory = self.directory();
                self.start(&mut pool, id, &directory, &Schedule::Planned(plan.clone()))?;
                flying.insert(id, (number, plan, directory, Instant::now()));
                number += 1;
            }
            watch(&Doing {
                phase: "hunting",
                coverage: &self.coverage,
                failing: failing(&met),
                left: deadline.saturating_duration_since(Instant::now()),
                switches: None,
            });
            let Some((id, answer)) = pool.wait() else {
                continue;
            };
            if let Some((directory, since)) = looked_at.remove(&id) {
                looking += since.elapsed();
                if let Ok(Answer::Races(found)) = answer {
                    self.learn(&found);
                    if number == 1 {
                        self.flip(found.flips);
                    }
                }
                discard(&directory);
                continue;
            }
            let Some((number, plan, directory, started)) = flying.remove(&id) else {
                continue;
            };
            if matches!(answer, Err(Lost::Interrupted)) {
                discard(&directory);
                continue;
            }
            self.coverage.runs += 1;
            if answer.is_ok() {
                self.slowest = self.slowest.max(started.elapsed());
            }
            let mut wanted = DETECTED.contains(&number);
            let mut preempted = Vec::new();
            let failure = match answer {
                Ok(Answer::Seen(seen)) => {
                    in_a_row = 0;
                    self.note(&seen, plan.accesses().is_none());
                    let is_new = plan.accesses().is_none() && self.shapes.insert(shape(&seen));
                    wanted |= is_new && waiting.is_empty() && looking * LOOKING < begun.elapsed();
                    let seen = *seen;
                    preempted = seen.preempted;
                    seen.failure
                }
                Ok(Answer::Races(_)) | Err(Lost::Interrupted) => None,
                Err(Lost::TimedOut) => Some(Failure {
                    text: format!("did not end within {} seconds", self.patience().as_secs()),
                    signature: Signature::endless(),
                }),
                Err(Lost::Failed(why)) => {
                    self.coverage.lost += 1;
                    in_a_row += 1;
                    if in_a_row >= GIVES_UP || number == 0 {
                        return Err(Error::Run(why));
                    }
                    self.coverage.lost_because = Some(why);
                    None
                }
            };
            match failure {
                None if wanted => waiting.insert(0, directory),
                None => discard(&directory),
                Some(failure) => {
                    let same = met
                        .iter_mut()
                        .find(|known| known.failure.signature.same_as(&failure.signature));
                    match same {
                        Some(known) => {
                            known.seen += 1;
                            discard(&directory);
                        }
                        None => met.push(Met {
                            failure,
                            run: number,
                            seconds: begun.elapsed().as_secs_f64(),
                            seen: 1,
                            plan,
                            preempted,
                            directory,
                        }),
                    }
                }
            }
        }
        pool.clear();
        let left_over = flying.into_values().map(|(_, _, directory, _)| directory);
        let looked_at = looked_at.into_values().map(|(directory, _)| directory);
        for directory in left_over.chain(looked_at).chain(waiting) {
            discard(&directory);
        }
        self.coverage.seconds = begun.elapsed().as_secs_f64();
        self.coverage.interrupted = is_interrupted();
        Ok(met)
    }

    /// What a run has shown. `at_all`: it was asked at all racy accesses that
    /// were known when it began.
    fn note(&mut self, seen: &Seen, at_all: bool) {
        if self.interleavings.insert(seen.interleaving) {
            self.coverage.interleavings += 1;
        }
        for (pc, count) in &seen.accesses {
            let most = self.known.accesses.entry(*pc).or_default();
            *most = match self.guessed.remove(pc) {
                true => *count,
                false => (*most).max(*count),
            };
        }
        if at_all {
            // Those it did not come to are rarely reached, if ever.
            for pc in std::mem::take(&mut self.guessed) {
                self.known.accesses.insert(pc, 0);
            }
        }
        self.known.locked.raise_to(seen.locked);
        self.known.calls.raise_to(seen.calls);
        self.coverage.sequencers = self.known.locked.rest() + self.known.calls.rest();
        let ended = matches!(
            seen.ending,
            explore::Ending::Exited(_) | explore::Ending::Killed { .. }
        );
        if ended {
            self.coverage.instructions = self.coverage.instructions.max(seen.instructions);
        }
        if matches!(seen.ending, explore::Ending::Unfinished) {
            self.coverage.unfinished += 1;
        }
        self.coverage.threads = self.coverage.threads.max(seen.threads);
    }

    /// The races of the first run are to be played the other way round: those that
    /// are known to do harm first.
    fn flip(&mut self, mut flips: Vec<(String, Precedence)>) {
        let known = &self.settings.known;
        let rank = |name: &String| known.iter().position(|other| other == name);
        flips.sort_by_key(|(name, _)| rank(name).unwrap_or(usize::MAX));
        self.flips = flips.into_iter().map(|(_, flip)| flip).collect();
    }

    /// What a look at a recording has shown.
    fn learn(&mut self, found: &survey::Races) {
        self.races.extend(found.races.iter().cloned());
        for pc in &found.pcs {
            // How often it is reached is counted by the runs to come.
            if let std::collections::btree_map::Entry::Vacant(entry) =
                self.known.accesses.entry(*pc)
            {
                entry.insert(4);
                self.guessed.insert(*pc);
            }
        }
        self.coverage.races = self.races.len() as u64;
        self.coverage.racy_accesses = self.known.accesses.len() as u64;
    }
}

/// The program with all its functions bound when it starts. Who calls a
/// function first would bind it otherwise, and its instructions would be others
/// than in a schedule in which somebody else did: switches are instruction
/// counts.
fn bound_at_once(program: &Program) -> Program {
    const NOW: &[u8] = b"LD_BIND_NOW=";
    let mut program = program.clone();
    let is_set = |variable: &Vec<u8>| variable.starts_with(NOW);
    if !program.environment.iter().any(is_set) {
        program.environment.push([NOW, b"1"].concat());
    }
    program
}

/// A number for the racy accesses that a run came to: which, and to what order
/// of magnitude how often.
fn shape(seen: &Seen) -> u64 {
    let words: Vec<u8> = seen
        .accesses
        .iter()
        .flat_map(|(pc, count)| [*pc, u64::from(count.checked_ilog2().unwrap_or(0))])
        .flat_map(u64::to_le_bytes)
        .collect();
    xxhash_rust::xxh3::xxh3_64(&words)
}

/// A recording that is not needed any more, and what its run wrote.
fn discard(directory: &Path) {
    // What cannot be removed goes with the folder.
    let _ = std::fs::remove_dir_all(directory);
    let _ = std::fs::remove_file(directory.with_extension("output"));
}
