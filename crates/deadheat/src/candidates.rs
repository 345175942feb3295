//! Makes suspected races happen under the vm: the program is run under one
//! schedule after another, steered to the sites of the candidates that have
//! not been seen yet, until all have been or the schedules are used up.
//!
//! The first run is not steered: most candidates happen by themselves. Each
//! run in which a new one happened is kept as a recording.

use crate::commands::Failure;
use crate::commands::record::{self, ScheduleArguments};
use crate::commands::run::with_threads;
use crate::exploration::{self, ExploreOptions};
use crate::{ending, phase, temporary};
use detect::import;
use detect::steer::{self, Fate, Steering};
use race::{CutShort, Evidence, Race, Report};
use report::Reporting;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vm::{Program, ScheduleChoice, Vm, interruption};

/// A program that is told to end has this long to do so.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How to look for candidates.
pub struct Search<'a> {
    pub program: &'a Program,
    /// The program as the report names it.
    pub words: &'a [String],
    /// Where it runs, if not here.
    pub folder: Option<PathBuf>,
    pub schedule: &'a ScheduleArguments,
    /// Runs at most.
    pub schedules: u64,
    /// A run that takes longer is told to end.
    pub limit: Option<Duration>,
    /// Only the first run's output is shown.
    pub shows_output: bool,
    /// Say what each race can do.
    pub classify: Option<&'a ExploreOptions>,
}

/// What became of the candidates.
#[derive(Default)]
pub struct Outcome {
    /// The ones that happened.
    pub seen: Vec<Race>,
    /// The ones that did not, by their number, and how far they got.
    pub missed: Vec<(usize, Fate)>,
    pub recordings: Vec<String>,
    pub not_checked: Vec<String>,
    /// What was left when the work was over.
    pub left: Vec<String>,
    pub runs: u64,
    /// Runs in which threads were held.
    pub steered: u64,
    /// Exit code of the first run.
    pub exit: Option<i32>,
}

impl Outcome {
    pub fn leave(&mut self, what: String) {
        if !self.left.contains(&what) {
            self.left.push(what);
        }
    }

    pub fn leave_all(&mut self, of: Option<CutShort>) {
        for what in of.into_iter().flat_map(|cut_short| cut_short.left) {
            self.leave(what);
        }
    }
}

/// What one run says.
struct Ran {
    exit: Option<i32>,
    fates: Vec<Fate>,
}

/// Sends this process `signal` after so long. Children do not inherit it.
fn signal_after(delay: Duration, signal: i32) {
    // SAFETY: plain structures, zero is valid for both; a timer that cannot be
    // made leaves the run without a limit, and the user with Ctrl-C.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal;
        let mut timer: libc::timer_t = std::mem::zeroed();
        if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) == 0 {
            let mut when: libc::itimerspec = std::mem::zeroed();
            when.it_value.tv_sec = delay.as_secs().try_into().unwrap_or(libc::time_t::MAX);
            when.it_value.tv_nsec = delay.subsec_nanos().into();
            libc::timer_settime(timer, 0, &when, std::ptr::null_mut());
        }
    }
}

/// Standard input for a run that is not the first: a file is read from its
/// beginning again, anything else is used up.
fn fresh_input() -> Option<std::fs::File> {
    let here = Path::new("/proc/self/fd/0");
    let path = match here.metadata() {
        Ok(data) if data.is_file() => here,
        _ => Path::new("/dev/null"),
    };
    std::fs::File::open(path).ok()
}

impl Search<'_> {
    /// Looks for `candidates`.
    pub fn run(&self, candidates: &[Race], reporting: &Reporting) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let mut fates = vec![Fate::default(); candidates.len()];
        let mut left: Vec<usize> = (0..candidates.len()).collect();
        let mut given_up: Vec<usize> = Vec::new();
        let mut others = 0;
        // A folder whose run showed nothing new is used again.
        let mut folder: Option<(PathBuf, bool)> = None;
        for number in 0..self.schedules {
            if left.is_empty() {
                break;
            }
            if interruption::is_over() {
                let runs = report::count(self.schedules - number, "run");
                outcome.leave(format!("{runs} at most, to see {} candidates", left.len()));
                break;
            }
            let (directory, temporary) = match folder.take() {
                Some(folder) => folder,
                None => match reporting.begin_recording(self.words)? {
                    Some((_, directory)) => (directory, false),
                    None => (temporary::folder()?, true),
                },
            };
            let wanted = left.iter().map(|index| &candidates[*index]);
            let steering = (number > 0).then(|| {
                let schedule = self.schedule.choice_of_row(number);
                Steering::new(wanted, number - 1, schedule.seed)
            });
            outcome.steered += u64::from(steering.is_some());
            let label = format!("run {} of {} at most", number + 1, self.schedules);
            let ran = if number == 0 && self.shows_output {
                self.record(&directory, number, steering)
            } else {
                phase::counting(&label, None, || self.record(&directory, number, steering))
            };
            let found = ran.and_then(|ran| {
                let options = detect::Options::default();
                let report = ending::finding(|| {
                    phase::detecting(&directory, || detect::detect(&directory, &options))
                })?;
                Ok((ran, report))
            });
            let (ran, mut report) = match found {
                Ok(found) => found,
                Err(failure) => {
                    remove(&directory);
                    if interruption::is_over() {
                        continue;
                    }
                    return Err(failure);
                }
            };
            outcome.runs += 1;
            if number == 0 {
                outcome.exit = ran.exit;
            }
            for (index, fate) in left.iter().zip(&ran.fates) {
                fates[*index].join(fate);
            }
            let is_new = |race: &Race, outcome: &Outcome| {
                let known = |seen: &Race| seen.fingerprint == race.fingerprint;
                !outcome.seen.iter().any(known)
            };
            let all = report.races.len();
            let mut kept: Vec<Race> = Vec::new();
            left.retain(|index| {
                let matches = |race: &&Race| import::is_candidate(&candidates[*index], race);
                let Some(race) = report.races.iter().find(matches) else {
                    return true;
                };
                let known = |other: &Race| other.fingerprint == race.fingerprint;
                if is_new(race, &outcome) && !kept.iter().any(known) {
                    kept.push(race.clone());
                }
                false
            });
            if number == 0 {
                others = all - kept.len();
            }
            // Where no two threads could be brought to both sites whatever was
            // tried, more of the same is in vain.
            if number >= steer::CYCLE {
                given_up.extend(left.extract_if(.., |index| fates[*index].met == 0));
            }
            if kept.is_empty() {
                if remove(&directory) && std::fs::create_dir(&directory).is_ok() {
                    folder = Some((directory, temporary));
                }
                continue;
            }
            if number > 0 {
                for race in &mut kept {
                    say_steered(race, number);
                }
            }
            report.races = kept;
            if let Some(explore) = self.classify {
                exploration::play_and_classify(
                    &mut report,
                    &directory,
                    exploration::Work::default(),
                    explore,
                    None,
                )?;
            }
            if temporary {
                for race in &mut report.races {
                    race.replay.clear();
                    for evidence in &mut race.evidence {
                        evidence.replay = None;
                    }
                }
                remove(&directory);
            } else {
                outcome.recordings.append(&mut report.recordings);
            }
            outcome.leave_all(report.cut_short.take());
            for sentence in report.not_checked {
                if !outcome.not_checked.contains(&sentence) {
                    outcome.not_checked.push(sentence);
                }
            }
            outcome.seen.append(&mut report.races);
        }
        if let Some((directory, _)) = folder {
            remove(&directory);
        }
        if others > 0 {
            outcome.not_checked.push(format!(
                "{} that {} no candidate happened in the first run; `deadheat run` reports all",
                report::count(others as u64, "race"),
                if others == 1 { "is" } else { "are" }
            ));
        }
        left.append(&mut given_up);
        outcome.missed = left
            .into_iter()
            .map(|index| (index, fates[index]))
            .collect();
        Ok(outcome)
    }

    /// Records one run in a process of its own.
    fn record(
        &self,
        directory: &Path,
        number: u64,
        steering: Option<Steering>,
    ) -> Result<Ran, Failure> {
        let schedule = self.schedule.choice_of_row(number);
        let program = with_threads(self.program, number);
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
        let here = std::env::current_dir().ok();
        if let Some(folder) = &self.folder {
            std::env::set_current_dir(folder).map_err(|error| {
                Failure::usage(format!("cannot go to {}: {error}", folder.display()))
            })?;
        }
        let ran = self.record_here(&directory, &program, schedule, number, steering);
        if let (Some(_), Some(here)) = (&self.folder, here) {
            // Whoever removed the folder meanwhile has other problems.
            let _ = std::env::set_current_dir(here);
        }
        ran
    }

    fn record_here(
        &self,
        directory: &Path,
        program: &Program,
        schedule: ScheduleChoice,
        number: u64,
        steering: Option<Steering>,
    ) -> Result<Ran, Failure> {
        let recording = record::create(directory, program, schedule, None)?;
        let first = number == 0 && self.shows_output;
        let input = if first { None } else { fresh_input() };
        let ran = detect::in_recorder(|| -> Result<(Option<i32>, Vec<Fate>), Failure> {
            if !first {
                detect::silence_output();
            }
            if let Some(input) = &input {
                // SAFETY: both are descriptors of this child.
                unsafe { libc::dup2(input.as_raw_fd(), 0) };
            }
            let mut vm = Vm::record(&recording, program, schedule)?;
            if let Some(steering) = steering {
                vm.observe(Box::new(steering));
            }
            if let Some(limit) = self.limit {
                signal_after(limit, libc::SIGTERM);
                signal_after(limit + LAST_WORDS, libc::SIGKILL);
            }
            let stop = vm.run(None)?;
            let fates = vm
                .take_observers()
                .pop()
                .and_then(|observer| observer.into_any().downcast::<Steering>().ok())
                .map(|steering| steering.fates())
                .unwrap_or_default();
            Ok((detect::exit_code(stop), fates))
        });
        match ran {
            // A program that would not end was killed; what it did until then
            // is on disk.
            Err(_) if interruption::is_over() => Ok(Ran {
                exit: None,
                fates: Vec::new(),
            }),
            Err(detect::ForkError::Died(_)) if self.limit.is_some() => Ok(Ran {
                exit: None,
                fates: Vec::new(),
            }),
            ran => {
                let (exit, fates) = ran.map_err(detect::Error::from)?;
                Ok(Ran { exit, fates })
            }
        }
    }
}

/// The race did not happen by itself.
fn say_steered(race: &mut Race, run: u64) {
    let id = race.evidence.iter().map(|evidence| evidence.id).max();
    race.evidence.push(Evidence {
        id: id.map_or(1, |id| id + 1),
        text: format!(
            "seen in run {}, in which a thread that arrived at one of the two sites was held \
             until another had arrived at the other",
            run + 1
        ),
        instance: None,
        replay: None,
    });
}

/// Why a candidate may not have happened, for its explanation.
pub fn why_missed(fate: &Fate, outcome: &Outcome) -> String {
    let runs = report::count(outcome.runs, "run");
    let steered = match outcome.steered {
        0 => String::new(),
        number => format!(", {number} of them steered to its sites"),
    };
    let reason = match (fate.found, fate.reached) {
        _ if outcome.steered == 0 => "",
        ([false, false], _) => "; the program has no code for either site",
        ([false, _], _) => "; the program has no code for the first site",
        ([_, false], _) => "; the program has no code for the second site",
        (_, [false, false]) => "; no thread came to either site while there were others",
        (_, [false, _]) => "; no thread came to the first site while there were others",
        (_, [_, false]) => "; no thread came to the second site while there were others",
        _ if fate.met == 0 => "; no two threads could be brought to both sites at once",
        _ => {
            "; two threads were brought to both sites at once, but did not use the same memory \
             there, or something orders them"
        }
    };
    format!("it did not happen in {runs} under the vm{steered}{reason}")
}

/// The report of the candidates: those that happened as they were seen, the
/// others as `missed` tells them.
pub fn put_into(
    report: &mut Report,
    candidates: Vec<Race>,
    mut outcome: Outcome,
    missed: impl Fn(&mut Race, String),
) {
    let sentences: Vec<(usize, String)> = outcome
        .missed
        .iter()
        .map(|(index, fate)| (*index, why_missed(fate, &outcome)))
        .collect();
    for race in &mut outcome.seen {
        // What was seen was seen by the vm, whoever named it first.
        let nothing = || "not ordered by any lock, atomic or join".to_string();
        race.ordering.get_or_insert_with(nothing);
    }
    report.races.append(&mut outcome.seen);
    for (index, mut race) in candidates.into_iter().enumerate() {
        if let Some((_, sentence)) = sentences.iter().find(|(missed, _)| *missed == index) {
            missed(&mut race, sentence.clone());
            report.races.push(race);
        }
    }
    report.recordings.append(&mut outcome.recordings);
    report.not_checked.append(&mut outcome.not_checked);
    for what in outcome.left {
        report.leave(what);
    }
    report.sort_and_number();
}

fn remove(directory: &Path) -> bool {
    // What cannot be removed is in the way of nobody.
    std::fs::remove_dir_all(directory).is_ok()
}
