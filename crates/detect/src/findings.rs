//! From pairs of instructions to the races of a report.
//!
//! Instances with the same fingerprint are one race: the same two source sites
//! (an increment without optimisation is a load and a store on one line), with
//! the same calls that chose the object where the sites are in helpers, and the
//! same object. What the addresses are is known here for the first time, so pairs
//! of instructions that met on many spots come together again, and pairs that
//! were called from several places come apart. All pairs on the words of one lock
//! that the program has made itself are one race. Every race is shown by one
//! instance, the first; all instances are counted and a number of them listed,
//! of each spot its share.

use crate::engine::LockKind;
use crate::history::{INSTANCES_KEPT, Pair, Side, Spot};
use crate::locks::{LockProblem, LockProblemKind};
use crate::patterns::label;
use crate::scene::{Scene, Wanted};
use race::{
    Access, AccessKind, Evidence, Fingerprint, Frame, Instance, LockCall, LockFinding, Moment,
    NAMED, Object, Place, Race, Report, Site, labels,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use symbols::Usage;

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

/// The bytes that an instance is about: address and size.
fn racy(pair: &Pair, sides: &[Side; 2]) -> (u64, u64) {
    if pair.spot != Spot::MoreAddresses {
        return (pair.address, pair.size);
    }
    // The pair is of many addresses: those of this instance.
    let [one, other] = sides;
    let address = one.address.max(other.address);
    let end = one.address.saturating_add(one.size);
    let end = end.min(other.address.saturating_add(other.size));
    (address, end.saturating_sub(address).max(1))
}

/// Asks who made an access, what it is about and what it left there.
fn stop_at(found: &Found, pair: &Pair, sides: &[Side; 2], side: &Side) -> Wanted {
    let (address, bytes) = racy(pair, sides);
    Wanted {
        order: side.order,
        moment: side.moment,
        memory: (side.kind != AccessKind::Free)
            .then_some((side.address, u32::try_from(side.size).unwrap_or(u32::MAX))),
        describe: Some(address),
        bytes,
        block: pair.block.map(|block| (block.start, block.size)),
        stack_of: Some(found.stack_owner(address).unwrap_or(1)),
    }
}

fn plain_stop((moment, order): (Moment, u64)) -> Wanted {
    Wanted {
        order,
        moment,
        memory: None,
        describe: None,
        bytes: 0,
        block: None,
        stack_of: None,
    }
}

/// Asks what a lock is called.
fn lock_stop(found: &Found, (moment, order): (Moment, u64), lock: u64) -> Wanted {
    Wanted {
        describe: Some(lock),
        bytes: 1,
        stack_of: Some(found.stack_owner(lock).unwrap_or(1)),
        ..plain_stop((moment, order))
    }
}

/// Stops to find out who called helpers, all pairs together.
const CALLER_STOPS: usize = 4096;

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
    let mut asked = 0;
    for pair in &found.pairs {
        for (_, sides) in pair.samples.kept.iter().skip(1) {
            if pair.asks_callers && asked < CALLER_STOPS {
                asked += sides.len();
                wanted.extend(sides.iter().map(|side| stop_at(found, pair, sides, side)));
            }
        }
        for side in pair.sides() {
            for (lock, _) in &side.held {
                wanted.push(lock_stop(found, (side.moment, side.order), *lock));
            }
            wanted.push(stop_at(found, pair, pair.sides(), side));
            if let Some(created) = found
                .thread(side.moment.thread)
                .and_then(|thread| thread.created)
            {
                wanted.push(plain_stop(created));
            }
        }
        if let Some(block) = pair.block {
            wanted.push(plain_stop((block.moment, block.order)));
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

    /// The scene of an access, by what was asked of it.
    fn of(&self, pair: &Pair, sides: &[Side; 2], side: &Side) -> Option<&'a Scene> {
        let at = (side.moment, Some(racy(pair, sides).0));
        self.by_stop.get(&at).copied()
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

fn access(
    found: &Found,
    scenes: &Scenes<'_>,
    (pair, sides): (&Pair, &[Side; 2]),
    side: &Side,
) -> Access {
    let scene = scenes.of(pair, sides, side);
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
    access.caller = scene.and_then(|scene| scene.caller.clone());
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

/// What one of the sides says a racy address is.
fn described<'a, T>(
    scenes: &Scenes<'a>,
    pair: &Pair,
    sides: &[Side; 2],
    what: impl Fn(&'a Scene) -> Option<&'a T>,
) -> Option<&'a T> {
    sides
        .iter()
        .rev()
        .filter_map(|side| scenes.of(pair, sides, side))
        .find_map(what)
}

fn place(found: &Found, scenes: &Scenes<'_>, pair: &Pair, sides: &[Side; 2]) -> Place {
    let (address, _) = racy(pair, sides);
    let mut place = Place {
        address: Some(address),
        ..Place::default()
    };
    if let Some(block) = pair.block {
        let size = block.size;
        let bytes = match address.saturating_sub(block.start) {
            0 => format!("heap block of {size} bytes"),
            offset => format!("byte {offset} of a heap block of {size} bytes"),
        };
        let pointed = described(scenes, pair, sides, |scene| scene.pointed.as_ref());
        place.description = match pointed {
            Some(pointed) => format!("{}, {bytes}", pointed.path),
            None => bytes,
        };
        place.allocated_at = scenes.stack((block.moment, block.order));
        return place;
    }
    if let Some(number) = crate::engine::descriptor_at(racy(pair, sides).0) {
        place.description = format!("file descriptor {number}");
        return place;
    }
    let variable = described(scenes, pair, sides, |scene| scene.variable.as_ref());
    let owner = found.stack_owner(address);
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

/// What raced, as far as it tells races apart.
fn object(scenes: &Scenes<'_>, pair: &Pair, sides: &[Side; 2]) -> Option<Object> {
    if let Some(block) = pair.block {
        let pointed = described(scenes, pair, sides, |scene| scene.pointed.as_ref());
        let asked = scenes.get(&plain_stop((block.moment, block.order)));
        return Some(Object {
            whole: race::HEAP_BLOCK.into(),
            part: pointed.map_or_else(String::new, |pointed| pointed.kind.clone()),
            allocated: asked.and_then(|scene| scene.allocated_by.clone()),
            seen: 1,
            names: pointed.iter().map(|pointed| pointed.path.clone()).collect(),
            starts: vec![block.start],
        });
    }
    if crate::engine::descriptor_at(racy(pair, sides).0).is_some() {
        return Some(Object::variable("file descriptor", "file descriptor", 0));
    }
    let variable = described(scenes, pair, sides, |scene| scene.variable.as_ref())?;
    let mut object = Object::variable(&variable.name, &variable.path, variable.start);
    if let Some(function) = &variable.function {
        object.whole = format!("{} in {function}", variable.name);
    }
    Some(object)
}

/// Writes against writes say most.
fn weight(pair: &Pair) -> u32 {
    pair.sides()
        .iter()
        .map(|side| match side.kind {
            AccessKind::Free => 3,
            AccessKind::Write => 2,
            _ => 1,
        })
        .sum()
}

/// Instances of a pair that are of one race.
pub(crate) struct Part<'a> {
    pub(crate) pair: &'a Pair,
    pub(crate) sides: &'a [Side; 2],
    accesses: [Access; 2],
    /// What each instruction does with what it accesses.
    pub(crate) usages: [Usage; 2],
    object: Option<Object>,
    count: u64,
    pub(crate) instances: Vec<Instance>,
}

/// The instances of a pair by the race that they are of. Who called is known of
/// some; those between are counted with the one before them.
fn parts<'a>(found: &Found, scenes: &Scenes<'_>, pair: &'a Pair) -> Vec<(Fingerprint, Part<'a>)> {
    let mut parts: Vec<(Fingerprint, Part<'a>)> = Vec::new();
    let mut turns: Vec<(u64, usize)> = Vec::new();
    let samples = pair.samples.kept.iter().enumerate();
    for (index, (number, sides)) in samples {
        let is_known = sides
            .iter()
            .all(|side| scenes.of(pair, sides, side).is_some());
        if index > 0 && !(pair.asks_callers && is_known) {
            continue;
        }
        let accesses = sides
            .each_ref()
            .map(|side| access(found, scenes, (pair, sides), side));
        let object = object(scenes, pair, sides);
        let fingerprint = Fingerprint::of(&accesses, object.as_ref());
        let known = parts.iter().position(|(known, _)| *known == fingerprint);
        let part = known.unwrap_or(parts.len());
        if known.is_none() {
            let usages = sides.each_ref().map(|side| {
                let scene = scenes.of(pair, sides, side);
                scene.map_or(Usage::Other, |scene| scene.usage)
            });
            let part = Part {
                pair,
                sides,
                accesses,
                usages,
                object,
                count: 0,
                instances: Vec::new(),
            };
            parts.push((fingerprint, part));
        }
        turns.push((*number, part));
    }
    for (turn, (number, part)) in turns.iter().enumerate() {
        let next = turns.get(turn + 1);
        let end = next.map_or(pair.count(), |(number, _)| *number);
        let own = &mut parts[*part].1;
        own.count += end - number;
        let instances = pair.instances.kept.iter();
        own.instances.extend(
            instances
                .filter(|(instance, _)| (*number..end).contains(instance))
                .map(|(_, instance)| *instance),
        );
    }
    parts
}

/// Of each part its share.
fn occurrences(group: &[Part<'_>]) -> Vec<Instance> {
    let share = (INSTANCES_KEPT / group.len()).max(1);
    let mut chosen = Vec::new();
    for part in group {
        let all = &part.instances;
        let step = all.len().div_ceil(share).max(1);
        chosen.extend(all.iter().copied().step_by(step));
    }
    chosen.truncate(INSTANCES_KEPT);
    chosen
}

/// What a race was seen on, all together.
fn objects(group: &[Part<'_>]) -> Option<Object> {
    let mut spots: BTreeSet<Spot> = BTreeSet::new();
    let mut all: Option<Object> = None;
    for part in group {
        spots.insert(part.pair.spot);
        let Some(object) = &part.object else { continue };
        match &mut all {
            Some(all) => all.join(object),
            None => all = Some(object.clone()),
        }
    }
    let mut all = all?;
    if all.names.is_empty() {
        // Nothing says what is where in a block: it is one object.
        let whole = |spot: &Spot| match *spot {
            Spot::Block(block, _) => Spot::Block(block, 0),
            Spot::MoreBlocks(size, _) => Spot::MoreBlocks(size, 0),
            other => other,
        };
        spots = spots.iter().map(whole).collect();
    }
    all.seen = all.seen.max(spots.len() as u64);
    debug_assert!(all.names.len() <= NAMED);
    Some(all)
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
                    .of(pair, pair.sides(), side)
                    .is_some_and(Scene::keeps_virtual_table)
        };
        if pair.sides().iter().any(implied) {
            continue;
        }
        for (fingerprint, part) in parts(found, &scenes, pair) {
            let key = (pair.home_made, fingerprint);
            groups.entry(key).or_default().push(part);
        }
    }
    for mut group in one_per_home_made_lock(groups.into_values().collect()) {
        group.sort_by_key(|part| (u32::MAX - weight(part.pair), part.sides[1].order));
        let count = group.iter().map(|part| part.count).sum();
        let occurrences = occurrences(&group);
        let mut all_labels: Vec<&str> = Vec::new();
        for Part { pair, .. } in &group {
            if pair.sides()[0].atomic != pair.sides()[1].atomic {
                all_labels.push(labels::MIXED_ATOMIC);
            }
            if pair.sides().iter().any(|side| side.order_unknown) {
                all_labels.push(labels::ORDER_UNKNOWN);
            }
        }
        all_labels.sort_unstable();
        all_labels.dedup();
        let home_made = group.iter().any(|part| part.pair.home_made);
        let object = objects(&group);
        let Some(shown) = group.into_iter().next() else {
            continue;
        };
        let mut race = Race::new(0, count, shown.accesses.clone());
        if let Some(object) = object {
            race.set_object(object);
        }
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
        race.place = Some(place(found, &scenes, shown.pair, shown.sides));
        label(&mut race, &shown);
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

/// What is one race.
type Group<'a> = Vec<Part<'a>>;

/// Both are the same place of the source, or of the code without one.
fn same_place(one: &Site, other: &Site) -> bool {
    match (&one.file, one.line) {
        (Some(file), Some(line)) => other.file.as_ref() == Some(file) && other.line == Some(line),
        _ => (&one.module, one.offset) == (&other.module, other.offset),
    }
}

/// The groups with those on home-made locks merged that have a word or an access
/// in common.
fn one_per_home_made_lock(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let is_lock = |group: &Group<'_>| group.iter().any(|part| part.pair.home_made);
    let (locks, mut merged): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_lock);
    let others = merged.len();
    let related = |one: &Part<'_>, other: &Part<'_>| {
        let shares = |access: &Access| {
            let mut sites = other.accesses.iter().map(|access| &access.site);
            sites.any(|site| same_place(site, &access.site))
        };
        one.pair.address & !3 == other.pair.address & !3 || one.accesses.iter().any(shares)
    };
    for mut group in locks {
        let mut at = others;
        let mut together = Vec::new();
        while at < merged.len() {
            let known = &merged[at];
            if known
                .iter()
                .any(|one| group.iter().any(|other| related(one, other)))
            {
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
