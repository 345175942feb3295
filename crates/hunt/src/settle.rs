//! What becomes of a failing run: its schedule is made small (`minimise`), and the
//! race whose order decides is named (`decide`).

use crate::decide::{self, Decided, Flip};
use crate::failure::{Failure, Kind, Signature};
use crate::pool::Pool;
use crate::survey::{self, Scene};
use crate::switches::{self, Precedence, Switch};
use crate::trial::{Schedule, Seen};
use crate::{Answer, Doing, Error, Found, Hunter, Met, discard, is_interrupted, minimise};
use race::Report;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lists of at most so many switches are also tried with other threads, of
/// which at most so many.
const EXCHANGED: usize = 6;
const MANY_THREADS: u32 = 8;

/// Switches that are left out one by one to see a run that passes.
const MANY_SWITCHES: usize = 5;

impl Hunter<'_> {
    /// Tries schedules at once; the first that fails in this way. The
    /// recording is left for it alone.
    fn first_failing(
        &mut self,
        schedules: &mut dyn Iterator<Item = Vec<Switch>>,
        signature: &Signature,
        deadline: Instant,
    ) -> Result<Option<(Vec<Switch>, PathBuf, Failure)>, Error> {
        let mut pool: Pool<Answer> = Pool::default();
        let mut flying: BTreeMap<u64, PathBuf> = BTreeMap::new();
        let mut todo = schedules.zip(0u64..);
        let mut result = None;
        loop {
            while pool.len() < self.settings.jobs.max(1)
                && Instant::now() < deadline
                && !is_interrupted()
                && let Some((switches, id)) = todo.next()
            {
                let directory = self.directory();
                let schedule = Schedule::Directed {
                    switches,
                    precedences: Vec::new(),
                };
                self.start(&mut pool, id, &directory, &schedule)?;
                flying.insert(id, directory);
            }
            if pool.is_empty() {
                break;
            }
            let Some((id, answer)) = pool.wait() else {
                continue;
            };
            let Some(directory) = flying.remove(&id) else {
                continue;
            };
            let fails = match answer {
                Ok(Answer::Seen(seen)) => {
                    let seen = *seen;
                    seen.failure
                        .filter(|failure| failure.signature.same_as(signature))
                        .map(|failure| (seen.followed.made, failure))
                }
                _ => None,
            };
            match fails {
                Some((made, failure)) => {
                    result = Some((made, directory, failure));
                    break;
                }
                None => discard(&directory),
            }
        }
        pool.clear();
        for directory in flying.into_values() {
            discard(&directory);
        }
        Ok(result)
    }

    /// Makes the schedule of a failing run small and says what decides it.
    pub(super) fn settle(
        &mut self,
        met: Met,
        watch: &mut dyn FnMut(&Doing),
    ) -> Result<Found, Error> {
        let begun = Instant::now();
        let deadline = begun + self.settings.time.max(Duration::from_secs(30));
        let before = switches::of_recording(&met.directory)?;
        let first = self.next;
        let threads = self.coverage.threads.min(MANY_THREADS);
        let mut best = (before.clone(), met.directory.clone(), met.failure.clone());
        let mut failed = None;
        let mut reproduced = false;
        let mut attempt = |candidates: &mut dyn Iterator<Item = Vec<Switch>>| {
            watch(&Doing {
                phase: "minimising",
                coverage: &self.coverage,
                failing: met.seen,
                left: deadline.saturating_duration_since(Instant::now()),
                switches: Some(best.0.len()),
            });
            match self.first_failing(candidates, &met.failure.signature, deadline) {
                Ok(found) => {
                    let (made, directory, failure) = found?;
                    reproduced = true;
                    discard(&std::mem::replace(&mut best.1, directory));
                    best.0 = made.clone();
                    best.2 = failure;
                    Some(made)
                }
                Err(error) => {
                    failed = Some(error);
                    None
                }
            }
        };
        // Whether the switches alone make it fail: those that a thread did not
        // make by itself, or all of them.
        let mut whole = attempt(&mut std::iter::once(met.preempted.clone()));
        if whole.is_none() && met.preempted != before {
            whole = attempt(&mut std::iter::once(before.clone()));
        }
        if let Some(whole) = whole {
            let mut least = minimise::minimise(whole, &mut attempt);
            // Another thread in place of two switches?
            while (2..=EXCHANGED).contains(&least.len()) {
                let mut candidates = singles(&least, threads);
                candidates.extend(minimise::exchanged(&least, |switch| {
                    retargeted(switch, threads)
                }));
                match attempt(&mut candidates.into_iter()) {
                    Some(fewer) if fewer.len() < least.len() => {
                        least = minimise::minimise(fewer, &mut attempt);
                    }
                    _ => break,
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let (made, directory, failure) = best;
        let minimising_runs = self.next - first;
        watch(&Doing {
            phase: "naming the race",
            coverage: &self.coverage,
            failing: met.seen,
            left: Duration::ZERO,
            switches: Some(made.len()),
        });
        let mut found = Found {
            failure,
            run: met.run,
            seconds: met.seconds,
            seen: met.seen,
            plan: met.plan.describe(),
            switches_before: before.len(),
            switches: Vec::new(),
            minimal: reproduced && Instant::now() < deadline && !is_interrupted(),
            minimising_runs,
            decided: Vec::new(),
            between_locks: false,
            recording: directory.clone(),
            report: Report::new("vm", Vec::new()),
        };
        // Of a schedule that is not small the switches say nothing.
        const FEW: usize = 32;
        if made.len() <= FEW {
            let told = detect::in_child(|| {
                survey::scenes(&directory, &made).map_err(|why| (why, race::exit_code::FAILURE))
            });
            found.switches = told.unwrap_or_default();
            if found.switches.len() < made.len() {
                found.switches = Scene::without_stacks(&made);
            }
        }
        self.name_race(&mut found, &made)?;
        Ok(found)
    }

    /// Flips races until one decides.
    fn name_race(&mut self, found: &mut Found, made: &[Switch]) -> Result<(), Error> {
        let directory = found.recording.clone();
        let report = |without_locks| {
            detect::in_child(|| {
                survey::report(&directory, without_locks)
                    .map_err(|why| (why, race::exit_code::FAILURE))
            })
        };
        let Ok(races) = report(false) else {
            return Ok(());
        };
        found.report = races;
        let signature = found.failure.signature.clone();
        let mut decided: Vec<Decided> = Vec::new();
        for candidate in decide::candidates(&found.report, made) {
            if decided
                .iter()
                .any(|known| known.race == candidate.race && known.flip == Flip::Decides)
                || is_interrupted()
            {
                continue;
            }
            let (flip, otherwise) = match self.directed(made, candidate.flipped())? {
                Some(seen) if seen.followed.broken || !seen.followed.met => {
                    (Flip::Impossible, String::new())
                }
                Some(seen) if fails_like(&seen, &signature) => (Flip::Stays, String::new()),
                Some(seen) => {
                    let back = self.directed(made, candidate.as_recorded())?;
                    let returns = back.is_some_and(|seen| fails_like(&seen, &signature));
                    let flip = if returns { Flip::Decides } else { Flip::Goes };
                    (flip, seen.ending.describe())
                }
                None => (Flip::Impossible, String::new()),
            };
            decided.push(Decided {
                race: candidate.race,
                instance: candidate.instance,
                flip,
                otherwise,
            });
        }
        let named = decided.iter().any(|one| one.flip == Flip::Decides);
        decided.retain(|one| one.flip == Flip::Decides || (!named && one.flip == Flip::Goes));
        decided.dedup_by_key(|one| one.race);
        found.decided = decided;
        if found.decided.is_empty() {
            self.name_from_passing(found, made)?;
        }
        // Of a deadlock the circle says it all.
        if found.decided.is_empty()
            && signature.kind != Kind::Deadlock
            && let Ok(races) = report(true)
            && let Some(nearest) = decide::candidates(&races, made).first()
            && nearest.is_near()
            && !decide::is_foreign(&races.races[nearest.race])
        {
            found.between_locks = true;
            found.decided.push(Decided {
                race: nearest.race,
                instance: nearest.instance,
                flip: Flip::Impossible,
                otherwise: String::new(),
            });
            found.report.races = races.races;
        }
        Ok(())
    }

    /// A failure can come before one of the accesses is made at all (a use of
    /// what is not there yet). Then the race is in the run that passes for
    /// want of one switch: there its order is flipped, and the failure must
    /// come.
    fn name_from_passing(&mut self, found: &mut Found, made: &[Switch]) -> Result<(), Error> {
        let signature = found.failure.signature.clone();
        for without in (0..made.len().min(MANY_SWITCHES)).rev() {
            let rest = [&made[..without], &made[without + 1..]].concat();
            let Some((seen, directory)) = self.one_run(&rest, &[])? else {
                continue;
            };
            let report = detect::in_child(|| {
                survey::report(&directory, false).map_err(|why| (why, race::exit_code::FAILURE))
            });
            discard(&directory);
            let (None, Ok(report)) = (&seen.failure, report) else {
                continue;
            };
            for candidate in decide::candidates(&report, made) {
                if is_interrupted() {
                    return Ok(());
                }
                let fails = |hunter: &mut Self, precedence| -> Result<bool, Error> {
                    let run = hunter.one_run(&rest, &[precedence])?;
                    Ok(run.is_some_and(|(seen, directory)| {
                        discard(&directory);
                        fails_like(&seen, &signature)
                    }))
                };
                if fails(self, candidate.flipped())? && !fails(self, candidate.as_recorded())? {
                    let mut race = report.races[candidate.race].clone();
                    // Its moments are those of a run that is not kept.
                    race.replay.clear();
                    race.occurrences.clear();
                    race.id = found.report.races.len() as u32 + 1;
                    found.report.races.push(race);
                    found.decided.push(Decided {
                        race: found.report.races.len() - 1,
                        instance: candidate.instance,
                        flip: Flip::Decides,
                        otherwise: seen.ending.describe(),
                    });
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// One run under these switches and this order.
    fn directed(
        &mut self,
        switches: &[Switch],
        precedence: Precedence,
    ) -> Result<Option<Seen>, Error> {
        Ok(self
            .one_run(switches, &[precedence])?
            .map(|(seen, directory)| {
                discard(&directory);
                seen
            }))
    }

    /// The same; the recording is the caller's to discard.
    fn one_run(
        &mut self,
        switches: &[Switch],
        precedences: &[Precedence],
    ) -> Result<Option<(Seen, PathBuf)>, Error> {
        let directory = self.directory();
        let mut pool: Pool<Answer> = Pool::default();
        let schedule = Schedule::Directed {
            switches: switches.to_vec(),
            precedences: precedences.to_vec(),
        };
        self.start(&mut pool, 0, &directory, &schedule)?;
        let mut seen = None;
        while !pool.is_empty() {
            if let Some((_, Ok(Answer::Seen(answer)))) = pool.wait() {
                seen = Some(*answer);
            }
        }
        if seen.is_none() {
            discard(&directory);
        }
        Ok(seen.map(|seen| (seen, directory)))
    }
}

/// The same switch to other threads.
fn retargeted(switch: &Switch, threads: u32) -> Vec<Switch> {
    (1..=threads)
        .filter(|to| *to != switch.to && *to != switch.at.thread)
        .map(|to| Switch { to, ..*switch })
        .collect()
}

/// Each switch alone, to any thread.
fn singles(switches: &[Switch], threads: u32) -> Vec<Vec<Switch>> {
    switches
        .iter()
        .flat_map(|switch| retargeted(switch, threads))
        .map(|switch| vec![switch])
        .collect()
}

fn fails_like(seen: &Seen, signature: &Signature) -> bool {
    seen.failure
        .as_ref()
        .is_some_and(|failure| failure.signature.same_as(signature))
}
