//! Plays both orders of the races of a recording and writes the answers into
//! the report (paper 000, section 4).
//!
//! Which instances are played is chosen by what they are on: every object (the
//! element of an array, the block) once before any is tried again. Those that
//! changed the state lead the classification (`Leads`).

use crate::commands::Failure;
use crate::phase;
use race::{
    Difference, DifferenceKind, Evidence, Fingerprint, Instance, Played, Race, Report, States,
    Verdict, labels,
};
use reorder::{Budget, Fate, Location, Outcome};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use vm::record::Recording;
use vm::schedule::Random64;

/// How many instances of a race are tried, unless all are asked for.
pub const INSTANCES: usize = 20;

/// Instructions spent on instances, all races together, unless told otherwise:
/// a few seconds.
pub const INSTRUCTIONS: u64 = 4_000_000_000;

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Instances of each race, at most.
    pub instances: usize,
    /// Instructions of all instances together, as far as can be told before.
    pub instructions: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            instances: INSTANCES,
            instructions: INSTRUCTIONS,
        }
    }
}

impl Effort {
    /// Every instance that was listed.
    pub fn all() -> Self {
        Effort {
            instances: usize::MAX,
            instructions: u64::MAX,
        }
    }
}

/// Instances that left another state in the other order, or that could not be
/// played there (the program died), by race: what is to be followed to the end.
#[derive(Debug, Default)]
pub struct Leads(HashMap<Fingerprint, Vec<Instance>>);

impl Leads {
    pub fn of(&self, race: &Race) -> &[Instance] {
        self.0.get(&race.fingerprint).map_or(&[], Vec::as_slice)
    }
}

/// How many differences a report names.
const DIFFERENCES: usize = 8;

/// Tries instances of every race of `report`, which were found in the recording
/// at `directory`; those that changed the state.
pub fn play(report: &mut Report, directory: &Path, effort: Effort) -> Result<Leads, Failure> {
    let recording = Recording::open(directory)?;
    let mut chosen = Vec::new();
    for (index, race) in report.races.iter().enumerate() {
        // Tasks and goroutines that one thread ran cannot be swapped there:
        // of a race that two threads made as well, those instances count.
        let (mut playable, of_one_thread): (Vec<Instance>, Vec<Instance>) = race
            .occurrences
            .iter()
            .copied()
            .partition(|instance| instance.first.thread != instance.second.thread);
        if playable.is_empty() {
            playable = of_one_thread;
        }
        chosen.push(varied(&playable, effort.instances, index as u64));
    }
    let budget = Budget::default();
    if effort.instructions != u64::MAX && chosen.iter().any(|own| !own.is_empty()) {
        let chronology = reorder::Chronology::of_recording(&recording)?;
        chosen = affordable(chosen, effort.instructions, |instance| {
            let apart = chronology.between(instance.first, instance.second);
            apart.saturating_add(budget.at_race_point())
        });
    }
    let mut instances = Vec::new();
    let mut owners = Vec::new();
    for (index, own) in chosen.into_iter().enumerate() {
        owners.extend(own.iter().map(|_| index));
        instances.extend(own);
    }
    let mut leads = Leads::default();
    if instances.is_empty() {
        return Ok(leads);
    }
    let races = report::count(report.races.len() as u64, "race");
    let label = format!("playing both orders of {races}");
    let outcomes = phase::counting(&label, None, || {
        reorder::both_orders(&recording, &instances, budget)
    })
    .map_err(|error| Failure {
        code: error.exit_code(),
        message: error.to_string(),
    })?;
    let left = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    for (index, race) in report.races.iter_mut().enumerate() {
        let own: Vec<(Instance, &Outcome)> = instances
            .iter()
            .zip(&owners)
            .zip(&outcomes)
            .filter(|((_, owner), _)| **owner == index)
            .filter_map(|((instance, _), outcome)| Some((*instance, outcome.as_ref()?)))
            .collect();
        let changed = own
            .iter()
            .filter(|(_, outcome)| outcome.states() != States::NoStateChange)
            .map(|(instance, _)| *instance);
        leads.0.insert(race.fingerprint.clone(), changed.collect());
        tell(race, &own);
    }
    if left > 0 {
        report.leave(format!(
            "both orders of {left} of {} instances",
            instances.len()
        ));
    }
    report.sort_and_number();
    Ok(leads)
}

/// At most `limit`: one instance on every object, as far as there is room, then a
/// spread of the others. In the order in which they came. Which one is taken of an
/// object is chosen at random: where many objects are used alike, the first on each
/// would all be of the same two instructions.
fn varied(all: &[Instance], limit: usize, seed: u64) -> Vec<Instance> {
    let mut by_object: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, instance) in all.iter().enumerate() {
        by_object.entry(instance.address).or_default().push(index);
    }
    if by_object.len() <= 1 {
        return spread(all, limit, seed);
    }
    let mut random = Random64::new(seed);
    let mut first: Vec<usize> = by_object
        .values()
        .map(|own| match own[0] {
            // The one that the report shows.
            0 => 0,
            _ => own[random.below(own.len() as u64) as usize],
        })
        .collect();
    first.sort_unstable();
    let mut chosen = spread(&first, limit, seed);
    let others: Vec<usize> = (0..all.len())
        .filter(|index| first.binary_search(index).is_err())
        .collect();
    chosen.extend(spread(&others, limit - chosen.len().min(limit), seed));
    chosen.sort_unstable();
    chosen.into_iter().map(|index| all[index]).collect()
}

/// The first, the last and some between, chosen at random: one from each of as
/// many parts of equal length. The same seed chooses the same ones.
fn spread<T: Copy>(all: &[T], limit: usize, seed: u64) -> Vec<T> {
    if all.len() <= limit || limit == 0 {
        return all[..all.len().min(limit)].to_vec();
    }
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Vec::new();
    };
    let mut random = Random64::new(seed);
    let between = &all[1..all.len() - 1];
    let parts = limit.saturating_sub(2);
    let mut chosen = vec![*first];
    for part in 0..parts {
        let (start, end) = (
            part * between.len() / parts,
            (part + 1) * between.len() / parts,
        );
        chosen.push(between[start + random.below((end - start) as u64) as usize]);
    }
    if limit > 1 {
        chosen.push(*last);
    }
    chosen
}

/// Of each race's instances those that `budget` pays for: the first of every
/// race whatever it costs, then the last ones, then those between, one of each
/// race in turn.
fn affordable(
    chosen: Vec<Vec<Instance>>,
    budget: u64,
    cost: impl Fn(&Instance) -> u64,
) -> Vec<Vec<Instance>> {
    let mut left = budget;
    let mut kept: Vec<Vec<usize>> = chosen.iter().map(|_| Vec::new()).collect();
    for round in 0..chosen.iter().map(Vec::len).max().unwrap_or(0) {
        for (own, kept) in chosen.iter().zip(&mut kept) {
            let index = match (round, own.len()) {
                (_, length) if round >= length => continue,
                (0, _) => 0,
                (1, length) => length - 1,
                (later, _) => later - 1,
            };
            let price = cost(&own[index]);
            if price <= left || round == 0 {
                left = left.saturating_sub(price);
                kept.push(index);
            }
        }
    }
    let keep = |(own, mut kept): (Vec<Instance>, Vec<usize>)| {
        kept.sort_unstable();
        kept.into_iter().map(|index| own[index]).collect()
    };
    chosen.into_iter().zip(kept).map(keep).collect()
}

/// Writes what both orders of a race's instances left into the race.
fn tell(race: &mut Race, outcomes: &[(Instance, &Outcome)]) {
    let Some(states) = reorder::verdict(outcomes.iter().map(|(_, outcome)| *outcome)) else {
        return;
    };
    race.states = Some(states);
    let count = |wanted: States| {
        outcomes
            .iter()
            .filter(|(_, outcome)| outcome.states() == wanted)
            .count()
    };
    race.played = Some(Played {
        no_state_change: count(States::NoStateChange) as u64,
        state_change: count(States::StateChange) as u64,
        replay_failure: count(States::ReplayFailure) as u64,
    });
    let text = format!(
        "{} of {} instances played in both orders: {} change the state, {} do not, {} could not be run",
        outcomes.len(),
        race.instances,
        count(States::StateChange),
        count(States::NoStateChange),
        count(States::ReplayFailure),
    );
    let changed = outcomes
        .iter()
        .find_map(|(instance, outcome)| match outcome {
            Outcome::StateChange(differences) => Some((*instance, differences)),
            _ => None,
        });
    let failed = outcomes.iter().find_map(|(_, outcome)| match outcome {
        Outcome::ReplayFailure(why) => Some(why),
        _ => None,
    });
    let mut instance = outcomes.first().map(|(instance, _)| *instance);
    if let Some((shown, differences)) = changed {
        race.verdict = Verdict::StateChange;
        instance = Some(shown);
        let mut told: Vec<Difference> = differences
            .iter()
            .map(|difference| describe(race, difference))
            .collect();
        // Memory says more than registers, and the racy variable most.
        let variable = race.place.as_ref().map(|place| place.description.as_str());
        told.sort_by_key(|difference| {
            let rank = match difference.kind {
                DifferenceKind::Memory => 1,
                _ => 2,
            };
            if Some(difference.what.as_str()) == variable {
                0
            } else {
                rank
            }
        });
        told.truncate(DIFFERENCES);
        race.differences = told;
        if let Some(first) = race.differences.first() {
            race.explanation = Some(match first.kind {
                DifferenceKind::Kernel => format!(
                    "with the accesses swapped, the kernel keeps something else for the program \
                     at the next synchronisation: {}",
                    first.what
                ),
                _ => format!(
                    "with the accesses swapped, {} is {} instead of {} at the next synchronisation",
                    first.what, first.swapped, first.recorded
                ),
            });
        }
    } else if let Some(why) = failed
        && states == States::ReplayFailure
    {
        race.explanation = Some(format!("the other order could not be played: {why}"));
    }
    add_evidence(race, text, instance);
    if let Some((label, text)) = beyond(outcomes) {
        if !race.labels.iter().any(|known| known == label) {
            race.labels.push(label.into());
        }
        add_evidence(race, text, None);
    }
    let failures = reasons(outcomes);
    if !failures.is_empty() {
        add_evidence(race, format!("could not be run: {failures}"), None);
    }
}

fn add_evidence(race: &mut Race, text: String, instance: Option<Instance>) {
    let id = race.evidence.iter().map(|evidence| evidence.id).max();
    race.evidence.push(Evidence {
        id: id.map_or(1, |id| id + 1),
        text,
        instance,
        replay: None,
    });
}

/// What the strict answer does not tell: why nothing was seen to come of the
/// changed states, if that is so for every instance that was followed.
fn beyond(outcomes: &[(Instance, &Outcome)]) -> Option<(&'static str, String)> {
    let followed: Vec<Vec<Fate>> = outcomes
        .iter()
        .filter_map(|(_, outcome)| match outcome {
            Outcome::StateChange(differences) => {
                Some(differences.iter().map(|one| one.fate).collect())
            }
            _ => None,
        })
        .filter(|fates: &Vec<Fate>| fates.iter().any(|fate| *fate != Fate::Unknown))
        .collect();
    let changed = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.states() == States::StateChange)
        .count();
    let of_no_effect = |fates: &Vec<Fate>| fates.iter().all(|fate| fate.is_of_no_effect());
    if followed.is_empty() || !followed.iter().all(of_no_effect) {
        return None;
    }
    let has = |wanted: Fate| followed.iter().flatten().any(|fate| *fate == wanted);
    let (label, why) = if has(Fate::Counter) {
        (
            labels::APPROXIMATE,
            "what differs is only ever incremented and decided no branch",
        )
    } else if has(Fate::SameObject) {
        (
            labels::ALLOCATOR_ONLY,
            "what differs is only where the allocator put an identical object",
        )
    } else {
        (
            labels::DIFFERENCE_DIES,
            "what differs is overwritten before anything reads it",
        )
    };
    Some((
        label,
        format!(
            "beside the strict answer, by a heuristic: {why} (in all {} of {changed} changed states that were followed further)",
            followed.len()
        ),
    ))
}

/// Why instances could not be run, with numbers.
fn reasons(outcomes: &[(Instance, &Outcome)]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, outcome) in outcomes {
        if let Outcome::ReplayFailure(why) = outcome {
            let kind = why.split(':').next().unwrap_or(why);
            *counts.entry(kind).or_default() += 1;
        }
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(kind, number)| format!("{number} {kind}"))
        .collect();
    parts.join(", ")
}

fn describe(race: &Race, difference: &reorder::Difference) -> Difference {
    let (kind, what) = match &difference.location {
        Location::Memory(address) => {
            let place = race
                .place
                .as_ref()
                .filter(|place| place.address == Some(address + u64::from(difference.first)));
            let what = place.map_or_else(
                || match &difference.name {
                    Some(name) => name.clone(),
                    None => format!("memory at {address:#x}"),
                },
                |place| place.description.clone(),
            );
            (DifferenceKind::Memory, what)
        }
        Location::Register { thread, name } => (
            DifferenceKind::Register,
            format!("{name} of thread {thread}"),
        ),
        Location::Thread(thread) => (DifferenceKind::Exit, format!("thread {thread}")),
        Location::Kernel(part) => (DifferenceKind::Kernel, part.name().to_string()),
    };
    if kind == DifferenceKind::Kernel {
        // Digests say nothing to anybody.
        return Difference {
            kind,
            what,
            at: None,
            recorded: "one state".to_string(),
            swapped: "another".to_string(),
        };
    }
    Difference {
        kind,
        what,
        at: None,
        recorded: number(&difference.recorded),
        swapped: number(&difference.swapped),
    }
}

/// Little-endian bytes as a number.
fn number(bytes: &[u8]) -> String {
    let mut word = [0; 8];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    let value = u64::from_le_bytes(word);
    if value < 1 << 32 {
        value.to_string()
    } else {
        format!("{value:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::Moment;
    use std::collections::HashSet;

    fn instance(number: u64) -> Instance {
        Instance {
            first: Moment::new(2, number),
            second: Moment::new(3, number),
            address: 0x1000,
            size: 8,
        }
    }

    #[test]
    fn instances_are_spread_over_all() {
        let all: Vec<Instance> = (0..1000).map(instance).collect();
        let chosen = spread(&all, 20, 3);
        assert_eq!(chosen.len(), 20);
        assert_eq!((chosen[0], chosen[19]), (all[0], all[999]));
        assert!(
            chosen
                .windows(2)
                .all(|pair| pair[0].first.count < pair[1].first.count)
        );
        assert_eq!(chosen, spread(&all, 20, 3));
        assert_ne!(chosen, spread(&all, 20, 4));
        assert_eq!(spread(&all[..7], 20, 0).len(), 7);
        assert_eq!(spread(&all, 1, 0), [all[0]]);
    }

    #[test]
    fn every_object_comes_before_any_is_tried_again() {
        let on = |number: u64| Instance {
            address: 0x1000 + number % 7 * 8,
            ..instance(number)
        };
        let all: Vec<Instance> = (0..700).map(on).collect();
        let objects = |chosen: &[Instance]| -> HashSet<u64> {
            chosen.iter().map(|instance| instance.address).collect()
        };
        let chosen = varied(&all, 20, 0);
        assert_eq!((chosen.len(), objects(&chosen).len()), (20, 7));
        let chosen = varied(&all, 5, 0);
        assert_eq!((chosen.len(), objects(&chosen).len()), (5, 5));
        // The only instance on its object, late and between many others.
        let mut rare = all.clone();
        rare[433].address = 0x9000;
        assert!(objects(&varied(&rare, 20, 0)).contains(&0x9000));
        assert_eq!(varied(&all[..1], 20, 0).len(), 1);
    }

    #[test]
    fn a_budget_pays_for_the_first_of_all_then_for_the_last() {
        let all: Vec<Instance> = (0..10).map(instance).collect();
        let races = vec![all.clone(), all[..3].to_vec(), Vec::new()];
        let counts = |budget| -> Vec<Vec<u64>> {
            affordable(races.clone(), budget, |_| 100)
                .iter()
                .map(|own| own.iter().map(|one| one.first.count).collect())
                .collect()
        };
        assert_eq!(counts(0), [vec![0], vec![0], vec![]]);
        assert_eq!(counts(400), [vec![0, 9], vec![0, 2], vec![]]);
        assert_eq!(counts(600), [vec![0, 1, 9], vec![0, 1, 2], vec![]]);
        assert_eq!(counts(u64::MAX)[0].len(), 10);
    }

    #[test]
    fn numbers_are_little_endian() {
        assert_eq!(number(&[7, 1]), "263");
        assert_eq!(number(&[0, 0, 0, 0, 1]), "0x100000000");
    }
}
