//! Reports of several recordings of one program as one.

use race::{ErrorFinding, Race, Report, RunFailure, States};

/// One changed state makes the race state-changing; a failure only counts
/// where nothing else was seen (paper 000, section 4.2).
fn worst_states(one: Option<States>, other: Option<States>) -> Option<States> {
    [one, other]
        .into_iter()
        .flatten()
        .max_by_key(|states| match states {
            States::NoStateChange => 0,
            States::ReplayFailure => 1,
            States::StateChange => 2,
        })
}

/// Reports of several recordings of one program as one: the same race (by
/// fingerprint) is one race, seen so many times in so many recordings. Nothing that
/// one of them found is lost.
pub fn merge(reports: Vec<Report>) -> Option<Report> {
    let mut reports = reports.into_iter();
    let mut merged = reports.next()?;
    let mut number = 1;
    for race in &mut merged.races {
        race.recordings_seen = Some(1);
    }
    for failure in &mut merged.failures {
        failure.recordings_seen = Some(1);
    }
    for report in reports {
        number += 1;
        merged.recordings.extend(report.recordings);
        merged.leave_all(report.cut_short);
        for sentence in report.not_checked {
            if !merged.not_checked.contains(&sentence) {
                merged.not_checked.push(sentence);
            }
        }
        for finding in report.locks {
            let known = merged
                .locks
                .iter()
                .any(|known| known.kind == finding.kind && known.locks == finding.locks);
            if !known {
                merged.locks.push(finding);
            }
        }
        add_errors(&mut merged.errors, report.errors);
        for failure in report.failures {
            add_failure(&mut merged.failures, failure);
        }
        for race in report.races {
            let known = merged.races.iter_mut().find(|known| {
                let apart = known.process.is_some() != race.process.is_some();
                known.fingerprint == race.fingerprint && !apart
            });
            match known {
                Some(known) => join(known, race),
                None => merged.races.push(Race {
                    recordings_seen: Some(1),
                    ..race
                }),
            }
        }
    }
    if number == 1 {
        for race in &mut merged.races {
            race.recordings_seen = None;
        }
        for failure in &mut merged.failures {
            failure.recordings_seen = None;
        }
    }
    merged.sort_and_number();
    Some(merged)
}

/// Errors are the same if they are of the same kind at the same place; addresses
/// and threads are others in every run.
pub fn add_errors(known: &mut Vec<ErrorFinding>, more: Vec<ErrorFinding>) {
    fn place(error: &ErrorFinding) -> Vec<(Option<&str>, Option<u32>)> {
        error
            .stacks
            .iter()
            .filter_map(|call| {
                let frame = call.stack.iter().find(|frame| frame.line.is_some());
                let frame = frame.or(call.stack.first())?;
                Some((frame.function.as_deref(), frame.line))
            })
            .collect()
    }
    for error in more {
        let is_known = |known: &ErrorFinding| {
            let located = error.stacks.iter().any(|call| !call.stack.is_empty());
            known.kind == error.kind
                && match located {
                    true => place(known) == place(&error),
                    false => known.text == error.text,
                }
        };
        if !known.iter().any(is_known) {
            known.push(error);
        }
    }
}

fn add_failure(known: &mut Vec<RunFailure>, failure: RunFailure) {
    match known.iter_mut().find(|known| known.same_as(&failure)) {
        Some(known) => {
            known.recordings_seen = known.recordings_seen.map(|seen| seen + 1);
            if known.around.is_none() {
                known.around = failure.around;
            }
        }
        None => known.push(RunFailure {
            recordings_seen: Some(1),
            ..failure
        }),
    }
}

/// The same race in another recording. The worse verdict stands for it, with what it
/// rests on; of the other stay the errors of memory that it had found besides.
fn join(known: &mut Race, mut other: Race) {
    known.join_objects(&other);
    other.object.clone_from(&known.object);
    let mut played = other.played.unwrap_or_default();
    played.add(&known.played.unwrap_or_default());
    let played = (played.all() > 0).then_some(played);
    let states = worst_states(other.states, known.states);
    let instances = other.instances + known.instances;
    let recordings_seen = known.recordings_seen.map(|seen| seen + 1);
    if other.verdict.rank() < known.verdict.rank() {
        std::mem::swap(known, &mut other);
    }
    known.played = played;
    known.states = states;
    known.instances = instances;
    known.recordings_seen = recordings_seen;
    let errors = known.errors.len();
    add_errors(&mut known.errors, other.errors);
    let has_more = known.errors.len() > errors;
    // What is shown of the other is replayed in its recording.
    if (has_more || known.replay.is_empty())
        && let Some(command) = other.replay.into_iter().next()
    {
        known.replay.push(command);
    }
}
