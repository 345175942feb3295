//! From pairs of instructions to the races of a report.
//!
//! Pairs of instructions whose source lines are the same are one race (an
//! increment without optimisation is a load and a store on one line). Every
//! race is shown by one instance, the first; all instances are counted and the
//! first of them listed. All pairs on the words of one lock that the program has
//! made itself are one race.

use crate::engine::LockKind;
use crate::history::{INSTANCES_KEPT, Pair, Side};
use crate::locks::{LockProblem, LockProblemKind};
use crate::scene::{Scene, Wanted};
use race::{
    Access, AccessKind, Evidence, Frame, LockCall, LockFinding, Moment, Place, Race, Report, Site,
    labels,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// What is known of a thread at the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ThreadFacts {
    pub number: u32,
    pub name: Option<String>,
    pub created: Option<(Moment, u64)>,
    pub stack: Option<Range<u64>>,
}

/// What the second pass found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Found {
    pub pairs: Vec<Pair>,
    pub pairs_left_out: u64,
    pub lock_problems: Vec<LockProblem>,
    pub lock_problems_left_out: u64,
    pub lock_orders_left_out: bool,
    pub threads: Vec<ThreadFacts>,
}

impl Found {
    fn thread(&self, number: u32) -> Option<&ThreadFacts> {
        self.threads.iter().find(|thread| thread.number == number)
    }

    /// The thread on whose stack an address is.
    fn stack_owner(&self, address: u64) -> Option<u32> {
        self.threads
            .iter()
            .rev()
            .find(|thread| {
                thread
                    .stack
                    .as_ref()
                    .is_some_and(|stack| stack.contains(&address))
            })
            .map(|thread| thread.number)
    }
}

fn stop_at(found: &Found, pair: &Pair, side: &Side) -> Wanted {
    Wanted {
        order: side.order,
        moment: side.moment,
        memory: (side.kind != AccessKind::Free)
            .then_some((side.address, u32::try_from(side.size).unwrap_or(u32::MAX))),
        describe: Some(pair.address),
        stack_of: Some(found.stack_owner(pair.address).unwrap_or(1)),
    }
}

fn plain_stop((moment, order): (Moment, u64)) -> Wanted {
    Wanted {
        order,
        moment,
        memory: None,
        describe: None,
        stack_of: None,
    }
}

/// Asks what a lock is called.
fn lock_stop(found: &Found, (moment, order): (Moment, u64), lock: u64) -> Wanted {
    Wanted {
        describe: Some(lock),
        stack_of: Some(found.stack_owner(lock).unwrap_or(1)),
        ..plain_stop((moment, order))
    }
}

/// The lock itself, not its first field in the C or C++ library.
fn object_name(path: &str) -> &str {
    [".__data", "._M_mutex", ".<std::"]
        .iter()
        .filter_map(|inner| path.find(inner))
        .min()
        .map_or(path, |end| &path[..end])
}

/// All the stops that the report needs.
pub fn wanted(found: &Found) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for pair in &found.pairs {
        for side in &pair.sides {
            for (lock, _) in &side.held {
                wanted.push(lock_stop(found, (side.moment, side.order), *lock));
            }
            wanted.push(stop_at(found, pair, side));
            if let Some(created) = found
                .thread(side.moment.thread)
                .and_then(|thread| thread.created)
            {
                wanted.push(plain_stop(created));
            }
        }
        if let Some((_, _, moment, order)) = pair.block {
            wanted.push(plain_stop((moment, order)));
        }
    }
    for problem in &found.lock_problems {
        wanted.extend(problem.at.iter().copied().map(plain_stop));
        if let Some(at) = problem.at.first() {
            let locks = problem.locks.iter();
            wanted.extend(locks.map(|lock| lock_stop(found, *at, *lock)));
        }
    }
    // Reading memory before and after an access steps over it: last.
    wanted.sort_by_key(|stop| (stop.order, stop.memory.is_some(), stop.describe));
    wanted.dedup();
    wanted
}

struct Scenes<'a> {
    by_stop: HashMap<(Moment, Option<u64>), &'a Scene>,
    /// Variables by the addresses that were asked about.
    names: HashMap<u64, String>,
}

impl<'a> Scenes<'a> {
    fn get(&self, stop: &Wanted) -> Option<&'a Scene> {
        self.by_stop.get(&(stop.moment, stop.describe)).copied()
    }

    fn stack(&self, at: (Moment, u64)) -> Vec<Frame> {
        self.get(&plain_stop(at))
            .map(|scene| scene.stack.clone())
            .unwrap_or_default()
    }
}

/// A value as text: a number for what fits in one, else bytes.
fn value(bytes: &[u8]) -> String {
    match bytes.len() {
        1 | 2 | 4 | 8 => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let number = u64::from_le_bytes(word);
            if number < 1 << 20 {
                number.to_string()
            } else {
                format!("{number:#x}")
            }
        }
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn lock_name(address: u64, kind: LockKind, names: &HashMap<u64, String>) -> String {
    let what = match kind {
        LockKind::Mutex => "mutex",
        LockKind::Spin => "spin lock",
        LockKind::Read => "read lock",
        LockKind::Write => "write lock",
        LockKind::Stream => "stream lock",
        LockKind::Annotated => "annotated lock",
        LockKind::Critical => return "the nameless critical section".into(),
    };
    match names.get(&address) {
        Some(name) => format!("{what} {name}"),
        None => format!("{what} at {address:#x}"),
    }
}

fn access(found: &Found, scenes: &Scenes<'_>, pair: &Pair, side: &Side) -> Access {
    let scene = scenes.get(&stop_at(found, pair, side));
    let site = scene.map_or_else(
        || Site {
            offset: Some(side.pc),
            ..Site::default()
        },
        |scene| scene.user_site.clone(),
    );
    let thread = found.thread(side.moment.thread);
    let mut access = Access::new(
        side.kind,
        u32::try_from(side.size).unwrap_or(u32::MAX),
        site,
    );
    access.atomic = side.atomic;
    access.address = Some(side.address);
    access.thread = Some(side.moment.thread);
    access.thread_name = thread.and_then(|thread| thread.name.clone());
    access.moment = Some(side.moment);
    access.locks = side
        .held
        .iter()
        .map(|(address, kind)| lock_name(*address, *kind, &scenes.names))
        .collect();
    if let Some(scene) = scene {
        access.stack = scene.stack.clone();
        access.value_before = scene.before.as_deref().map(value);
        if side.kind == AccessKind::Write {
            access.value_after = scene.after.as_deref().map(value);
        }
    }
    if let Some(created) = thread.and_then(|thread| thread.created) {
        access.thread_created_at = scenes.stack(created);
    }
    access
}

fn place(found: &Found, scenes: &Scenes<'_>, pair: &Pair) -> Place {
    let variable = pair
        .sides
        .iter()
        .rev()
        .filter_map(|side| scenes.get(&stop_at(found, pair, side)))
        .find_map(|scene| scene.variable.as_ref());
    let mut place = Place {
        address: Some(pair.address),
        ..Place::default()
    };
    if let Some((start, size, moment, order)) = pair.block {
        place.description = match pair.address - start {
            0 => format!("heap block of {size} bytes"),
            offset => format!("byte {offset} of a heap block of {size} bytes"),
        };
        place.allocated_at = scenes.stack((moment, order));
        return place;
    }
    if let Some(number) = crate::engine::descriptor_at(pair.address) {
        place.description = format!("file descriptor {number}");
        return place;
    }
    let owner = found.stack_owner(pair.address);
    place.description = match (variable, owner) {
        (Some(variable), owner) => match (&variable.function, owner) {
            (Some(function), Some(owner)) => {
                format!("{} in {function}, stack of thread {owner}", variable.path)
            }
            (Some(function), None) => format!("{} in {function}", variable.path),
            _ => variable.path.clone(),
        },
        (None, Some(owner)) => format!("stack of thread {owner}"),
        (None, None) => "memory of no known variable".into(),
    };
    place
}

/// What two sites must share to be the same place in a race.
fn site_key(site: &Site) -> (Option<String>, Option<u32>, Option<String>, Option<u64>) {
    match (&site.file, site.line) {
        (Some(file), Some(line)) => (Some(file.clone()), Some(line), None, None),
        _ => (None, None, site.module.clone(), site.offset),
    }
}

/// Writes against writes say most.
fn weight(pair: &Pair) -> u32 {
    pair.sides
        .iter()
        .map(|side| match side.kind {
            AccessKind::Free => 3,
            AccessKind::Write => 2,
            _ => 1,
        })
        .sum()
}

/// Enters the races found into the report.
pub fn fill(report: &mut Report, found: &Found, scenes: &[(Wanted, Scene)], directory: &Path) {
    let scenes = Scenes {
        by_stop: scenes
            .iter()
            .map(|(stop, scene)| ((stop.moment, stop.describe), scene))
            .collect(),
        names: scenes
            .iter()
            .filter_map(|(stop, scene)| {
                let path = &scene.variable.as_ref()?.path;
                Some((stop.describe?, object_name(path).to_string()))
            })
            .collect(),
    };
    let mut groups: BTreeMap<_, Group<'_>> = BTreeMap::new();
    for pair in &found.pairs {
        // The code of a destructor begins by making the object one of its class.
        // Where that changes nothing the program has not asked for a write.
        let implied = |side: &Side| {
            side.kind == AccessKind::Write
                && scenes
                    .get(&stop_at(found, pair, side))
                    .is_some_and(Scene::keeps_virtual_table)
        };
        if pair.sides.iter().any(implied) {
            continue;
        }
        let accesses = [
            access(found, &scenes, pair, &pair.sides[0]),
            access(found, &scenes, pair, &pair.sides[1]),
        ];
        let mut keys = accesses
            .each_ref()
            .map(|access| (access.kind == AccessKind::Free, site_key(&access.site)));
        keys.sort();
        let key = (pair.home_made, keys);
        groups.entry(key).or_default().push((pair, accesses));
    }
    for mut group in one_per_home_made_lock(groups.into_values().collect()) {
        group.sort_by_key(|(pair, _)| (u32::MAX - weight(pair), pair.sides[1].order));
        let count = group.iter().map(|(pair, _)| pair.count).sum();
        let mut occurrences: Vec<_> = group
            .iter()
            .flat_map(|(pair, _)| pair.instances.iter().copied())
            .collect();
        occurrences.truncate(INSTANCES_KEPT);
        let mut all_labels: Vec<&str> = Vec::new();
        for (pair, _) in &group {
            if pair.sides[0].atomic != pair.sides[1].atomic {
                all_labels.push(labels::MIXED_ATOMIC);
            }
            if pair.sides.iter().any(|side| side.order_unknown) {
                all_labels.push(labels::ORDER_UNKNOWN);
            }
        }
        all_labels.sort_unstable();
        all_labels.dedup();
        let home_made = group.iter().any(|(pair, _)| pair.home_made);
        let Some((pair, accesses)) = group.into_iter().next() else {
            continue;
        };
        let mut race = Race::new(0, count, accesses);
        race.labels = all_labels.into_iter().map(str::to_string).collect();
        if home_made {
            race.labels.push(labels::HOME_MADE_LOCK.into());
            race.evidence.push(Evidence {
                id: 1,
                text: "home-made-lock: the word is that of a lock or barrier that the program \
                       has made itself, and what it guards counts as ordered; the language \
                       promises that for atomic operations only"
                    .into(),
                instance: None,
                replay: None,
            });
        }
        race.place = Some(place(found, &scenes, pair));
        label(&mut race, pair);
        race.occurrences = occurrences;
        for access in &race.accesses {
            if let Some(moment) = access.moment {
                race.replay.push(format!(
                    "deadheat replay {} --until {moment}",
                    directory.display()
                ));
            }
        }
        report.races.push(race);
    }
    report.locks = lock_findings(found, &scenes);
    if found.pairs_left_out > 0 {
        report.not_checked.push(format!(
            "{} more racing accesses, by pairs of instructions beyond the first 4096, are not listed",
            found.pairs_left_out
        ));
    }
    if found.lock_problems_left_out > 0 {
        report.not_checked.push(format!(
            "{} more lock problems are not listed",
            found.lock_problems_left_out
        ));
    }
    report.races.sort_by(|one, other| {
        let order = |race: &Race| {
            race.occurrences
                .first()
                .map(|instance| (instance.first, instance.second))
        };
        order(one).cmp(&order(other))
    });
    report.sort_and_number();
}

/// Pairs that are one race, with their accesses.
type Group<'a> = Vec<(&'a Pair, [Access; 2])>;

/// The groups of pairs with those on home-made locks merged that have a word or
/// an access in common.
fn one_per_home_made_lock(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let is_lock = |group: &Group<'_>| group.iter().any(|(pair, _)| pair.home_made);
    let (locks, mut merged): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_lock);
    let others = merged.len();
    for mut group in locks {
        let related = |known: &Group<'_>| {
            known.iter().any(|(one, one_accesses)| {
                group.iter().any(|(other, accesses)| {
                    let shares = |access: &Access| {
                        let key = site_key(&access.site);
                        accesses.iter().any(|found| site_key(&found.site) == key)
                    };
                    one.address & !3 == other.address & !3 || one_accesses.iter().any(shares)
                })
            })
        };
        let mut at = others;
        let mut together = Vec::new();
        while at < merged.len() {
            if related(&merged[at]) {
                together.append(&mut merged.remove(at));
            } else {
                at += 1;
            }
        }
        together.append(&mut group);
        merged.push(together);
    }
    merged
}

/// Patterns of papers 000 (table 2) and 002 (section 3.3) that the instance
/// shown fits, each with what that rests on. A label never hides a race.
fn patterns(pair: &Pair, accesses: &[Access; 2]) -> Vec<(&'static str, &'static str)> {
    let number = |text: &Option<String>| {
        let text = text.as_deref()?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let mut found = Vec::new();
    let changes: Vec<Option<(u64, u64)>> = accesses
        .iter()
        .map(|access| {
            (access.kind == AccessKind::Write)
                .then(|| Some((number(&access.value_before)?, number(&access.value_after)?)))
                .flatten()
        })
        .collect();
    if changes
        .iter()
        .flatten()
        .any(|(before, after)| before == after)
    {
        found.push((
            labels::REDUNDANT_WRITE,
            "a write stored the value that was there already, in the instance shown",
        ));
    }
    if let [Some(one), Some(other)] = changes[..] {
        let (first, second) = (one.0 ^ one.1, other.0 ^ other.1);
        if first != 0 && second != 0 && first & second == 0 {
            found.push((
                labels::DISJOINT_BITS,
                "the two writes changed different bits, in the instance shown",
            ));
        }
        let grows = |(before, after): (u64, u64)| after > before && after - before <= 4096;
        if grows(one) && grows(other) && pair.sides[0].size == pair.sides[1].size {
            found.push((
                labels::STATISTICS_COUNTER,
                "both writes only made the value a little larger, in the instance shown; a reference count would also shrink",
            ));
        }
    }
    if let [Some(one), Some(other)] = changes[..] {
        let step = |(before, after): (u64, u64)| after.wrapping_sub(before) as i64;
        if step(one).abs() == 1 && step(one) == -step(other) {
            found.push((
                labels::REFERENCE_COUNT,
                "one write added one and the other took one away, in the instance shown: what a reference count does, and a lost update then frees too early or never",
            ));
        }
    }
    let unlocked_check = |read: &Side, write: &Side| {
        read.kind == AccessKind::Read
            && !read.atomic
            && read.decides
            && read.held.is_empty()
            && write.kind == AccessKind::Write
            && !write.held.is_empty()
    };
    let [first, second] = &pair.sides;
    if unlocked_check(first, second) || unlocked_check(second, first) {
        found.push((
            labels::DOUBLE_CHECK,
            "the read decides a branch without a lock, the write holds one: the first look of a double check, which needs an acquire load and a release store",
        ));
    }
    if pair.ad_hoc == pair.count {
        found.push((
            labels::AD_HOC_SYNC,
            "ordered only by rule 5: in every instance seen, a spin on a plain variable came between the accesses, which the language does not count as order",
        ));
    } else if pair
        .sides
        .iter()
        .any(|side| side.spins && side.kind == AccessKind::Read && !side.atomic)
    {
        found.push((
            labels::AD_HOC_SYNC,
            "the read is in a loop that ends when the value changes: it orders the threads in fact, not by the rules of the language",
        ));
    }
    found
}

fn label(race: &mut Race, pair: &Pair) {
    for (label, reason) in patterns(pair, &race.accesses) {
        race.labels.push(label.to_string());
        race.evidence.push(Evidence {
            id: race.evidence.len() as u32 + 1,
            text: format!("{label}: {reason}"),
            instance: pair.instances.first().copied(),
            replay: None,
        });
    }
}

/// Lock problems in words.
fn lock_findings(found: &Found, scenes: &Scenes<'_>) -> Vec<LockFinding> {
    let call = |what: &str, at: (Moment, u64)| LockCall {
        what: what.to_string(),
        moment: at.0,
        stack: scenes.stack(at),
    };
    found
        .lock_problems
        .iter()
        .map(|problem| {
            let locks: Vec<String> = problem
                .locks
                .iter()
                .map(|address| match scenes.names.get(address) {
                    Some(name) => name.clone(),
                    None => format!("{address:#x}"),
                })
                .collect();
            let thread = problem.at.first().map_or(0, |(moment, _)| moment.thread);
            let lock = locks.first().cloned().unwrap_or_default();
            let (kind, text, stacks) = match (problem.what, &problem.at[..]) {
                (LockProblemKind::OrderInversion, [first, second, other_first, other_second]) => (
                    "lock-order-inversion",
                    format!(
                        "thread {thread} takes lock {lock} before {}, thread {} the other way round: they can deadlock",
                        locks.get(1).cloned().unwrap_or_default(),
                        other_first.0.thread
                    ),
                    vec![
                        call("held", *first),
                        call("taken while holding it", *second),
                        call("the other thread held", *other_first),
                        call("and took while holding it", *other_second),
                    ],
                ),
                (LockProblemKind::OrderInversion, at) => {
                    let next = locks.iter().cycle().skip(1);
                    let orders: Vec<String> = at
                        .iter()
                        .step_by(2)
                        .zip(locks.iter().zip(next))
                        .map(|((moment, _), (lock, next))| {
                            format!("thread {} takes lock {lock} before {next}", moment.thread)
                        })
                        .collect();
                    (
                        "lock-order-inversion",
                        format!("{}: they can deadlock", orders.join(", ")),
                        at.chunks(2)
                            .flat_map(|pair| {
                                ["held", "taken while holding it"]
                                    .into_iter()
                                    .zip(pair)
                                    .map(|(what, at)| call(what, *at))
                            })
                            .collect(),
                    )
                }
                (LockProblemKind::DestroyHeld, _) => (
                    "destroy-held",
                    format!(
                        "thread {thread} destroys lock {lock} while thread {} holds it",
                        problem.owner.unwrap_or(0)
                    ),
                    problem.at.iter().map(|at| call("destroyed", *at)).collect(),
                ),
                (LockProblemKind::DestroyAwaited, _) => (
                    "destroy-awaited",
                    match problem.owner {
                        Some(waiting) => format!(
                            "thread {thread} destroys condition {lock} while thread {waiting} waits for it"
                        ),
                        None => {
                            format!("thread {thread} destroys barrier {lock} while threads wait at it")
                        }
                    },
                    problem.at.iter().map(|at| call("destroyed", *at)).collect(),
                ),
                (LockProblemKind::EndHolding, _) => (
                    "end-holding",
                    format!("thread {thread} ends and still holds lock {lock}"),
                    problem.at.iter().map(|at| call("taken", *at)).collect(),
                ),
                _ => (
                    "unlock-not-held",
                    match problem.owner {
                        Some(owner) => format!(
                            "thread {thread} unlocks lock {lock}, which thread {owner} holds"
                        ),
                        None => format!("thread {thread} unlocks lock {lock}, which nobody holds"),
                    },
                    problem.at.iter().map(|at| call("unlocked", *at)).collect(),
                ),
            };
            LockFinding {
                kind: kind.to_string(),
                text,
                locks,
                stacks,
            }
        })
        .collect()
}
