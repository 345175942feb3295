//! Which races come from one mistake.
//!
//! One missing lock, one early free or one object that is handed over without
//! an order between the threads makes a race at every line that touches the
//! object. Those are one thing to mend. Three rules put races together, each on
//! what the report itself says:
//!
//! - *early free*: races with the `free` of blocks that one function asked for
//!   and one function frees (a queue with its lock is several blocks), and races
//!   of the same users on those blocks with what the freeing thread does in that
//!   function or in those that called it (it clears them first);
//! - *publication*: a race on a pointer, and races on the object that the
//!   pointer was seen to be set to (the object itself, or what was allocated
//!   for it, is used by whoever found the pointer);
//! - *missing order*: races on one object and its fields between the same
//!   functions, with the same locks held, or with one and the same copy of the
//!   whole object. A function of stripped code is known by where it begins.
//!
//! Conservative: different objects are never put together by the third rule,
//! and neither are functions of which none is in both races. So two bugs are
//! hardly ever one cause; one bug may well be two.

use crate::{Access, AccessKind, Object, Race, Site};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Bytes of an access that is no single field any more: two of the widest
/// registers.
const SWEEP: u32 = 128;

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// The object is freed while another thread still uses it.
    EarlyFree,
    /// A pointer to the object is handed over with nothing that orders what was
    /// written to it before.
    Publication,
    /// Nothing orders the accesses to the object.
    MissingOrder,
}

/// One mistake and the races that come from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// From 1, in the order of the first races.
    pub id: u32,
    pub kind: CauseKind,
    /// The race that shows the mistake best: the free, the pointer, else the
    /// first.
    pub head: u32,
    /// All its races, the head included, by number.
    pub races: Vec<u32>,
    /// What raced: the object of the head.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// What is missing, in one sentence.
    pub missing: String,
}

/// The causes of these races: each race is in one.
pub fn causes(races: &[Race]) -> Vec<Cause> {
    let mut groups = Groups::new(races.len());
    let mut heads: Vec<(usize, CauseKind)> = Vec::new();
    for (index, race) in races.iter().enumerate() {
        if free_and_use(race).is_some() {
            heads.push((index, CauseKind::EarlyFree));
            let others = races.iter().enumerate();
            for (other, _) in others.filter(|(_, other)| is_of_early_free(race, other)) {
                groups.join(index, other);
            }
        }
    }
    for (index, race) in races.iter().enumerate() {
        let published: Vec<usize> = races
            .iter()
            .enumerate()
            .filter(|(other, pointed_at)| *other != index && publishes(race, pointed_at))
            .map(|(other, _)| other)
            .collect();
        if !published.is_empty() {
            heads.push((index, CauseKind::Publication));
        }
        for other in published {
            groups.join(index, other);
        }
    }
    for (index, race) in races.iter().enumerate() {
        for (other, next) in races.iter().enumerate().skip(index + 1) {
            if is_same_order(race, next) {
                groups.join(index, other);
            }
        }
    }
    let mut found = Vec::new();
    for (id, members) in (1..).zip(groups.all()) {
        found.push(cause(id, races, &members, &heads));
    }
    found
}

fn cause(id: u32, races: &[Race], members: &[usize], heads: &[(usize, CauseKind)]) -> Cause {
    let by_rule = heads.iter().filter(|(head, _)| members.contains(head));
    // A free says most, then a pointer.
    let head = by_rule.min_by_key(|(head, kind)| (*kind, *head)).copied();
    let (head, kind) = head.unwrap_or((members[0], CauseKind::MissingOrder));
    let race = &races[head];
    Cause {
        id,
        kind,
        head: race.id,
        races: members.iter().map(|member| races[*member].id).collect(),
        object: race.object.as_ref().map_or_else(String::new, Object::words),
        missing: missing(kind, race),
    }
}

fn missing(kind: CauseKind, race: &Race) -> String {
    let [one, other] = race.accesses.each_ref().map(function);
    match kind {
        CauseKind::EarlyFree => {
            let (frees, uses) = match race.accesses[0].kind {
                AccessKind::Free => (one, other),
                _ => (other, one),
            };
            format!("{frees} frees it, and nothing makes it wait until {uses} has done with it")
        }
        CauseKind::Publication => {
            let (writes, reads) = match race.accesses[0].kind {
                AccessKind::Read => (other, one),
                _ => (one, other),
            };
            format!(
                "{writes} hands the object over, and nothing orders what it wrote there before \
                 what {reads} does with it"
            )
        }
        CauseKind::MissingOrder if one == other => {
            format!("nothing orders what two threads do to it in {one}")
        }
        CauseKind::MissingOrder => format!("nothing orders {one} and {other}"),
    }
}

fn function(access: &Access) -> String {
    let site = access.role();
    match (&site.function, &site.module, site.function_offset) {
        (Some(function), ..) => function.clone(),
        (None, Some(module), Some(begin)) => format!("the function at {module}+{begin:#x}"),
        (None, Some(module), None) => format!("code of {module}"),
        (None, None, _) => "an access that was not seen".into(),
    }
}

/// The function that asked for the memory, if it is known.
fn maker(race: &Race) -> Option<(&str, Option<&str>)> {
    let allocated = race.object.as_ref()?.allocated.as_ref()?;
    Some((allocated.function.as_deref()?, allocated.file.as_deref()))
}

fn is_in_same_function(one: &Site, other: &Site) -> bool {
    one.function.is_some() && one.function == other.function && one.file == other.file
}

/// `access` is what the freeing thread did in the function that frees, or in one
/// that called it.
fn is_beside(free: &Access, access: &Access) -> bool {
    let role = access.role();
    let is_above = free.stack.iter().any(|frame| {
        frame.function.is_some() && frame.function == role.function && frame.file == role.file
    });
    is_in_same_function(role, free.role()) || (is_above && access.thread == free.thread)
}

/// The two sides of a race with a free: the free, and what it came too early for.
fn free_and_use(race: &Race) -> Option<(&Access, &Access)> {
    let [one, other] = &race.accesses;
    match (one.kind, other.kind) {
        (AccessKind::Free, _) => Some((one, other)),
        (_, AccessKind::Free) => Some((other, one)),
        _ => None,
    }
}

fn is_of_early_free(race: &Race, other: &Race) -> bool {
    let Some((free, user)) = free_and_use(race) else {
        return false;
    };
    if maker(race).is_none() || maker(race) != maker(other) {
        return false;
    }
    if let Some((next, _)) = free_and_use(other) {
        return is_in_same_function(free.role(), next.role());
    }
    let [one, two] = &other.accesses;
    [(one, two), (two, one)].into_iter().any(|(beside, used)| {
        is_beside(free, beside) && is_in_same_function(used.role(), user.role())
    })
}

/// The value that an access left is the address of `other`'s object.
fn publishes(race: &Race, other: &Race) -> bool {
    let address =
        |text: &Option<String>| u64::from_str_radix(text.as_deref()?.strip_prefix("0x")?, 16).ok();
    let Some(object) = &other.object else {
        return false;
    };
    race.accesses.iter().any(|access| {
        access.kind == AccessKind::Write
            && access.size == 8
            && address(&access.value_after).is_some_and(|value| object.starts.contains(&value))
    })
}

/// The function of an access: by name and file, in stripped code by where it
/// begins in its module.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Function<'a> {
    Named(&'a str, Option<&'a str>),
    Unnamed(Option<&'a str>, u64),
}

/// Where an access is made and what is held there.
type Region<'a> = (Function<'a>, Vec<&'a str>);

fn region(access: &Access) -> Option<Region<'_>> {
    let site = access.role();
    let function = match &site.function {
        Some(function) => Function::Named(function, site.file.as_deref()),
        None => Function::Unnamed(site.module.as_deref(), site.function_offset?),
    };
    let mut held: Vec<&str> = access.locks.iter().map(String::as_str).collect();
    held.sort_unstable();
    Some((function, held))
}

/// `None` if a function is not known.
fn regions(race: &Race) -> Option<BTreeSet<Region<'_>>> {
    race.accesses.iter().map(region).collect()
}

fn is_same_order(one: &Race, other: &Race) -> bool {
    let (Some(object), Some(next)) = (&one.object, &other.object) else {
        return false;
    };
    if !object.is_same_whole(next) || !object.is_known() {
        return false;
    }
    let (Some(these), Some(those)) = (regions(one), regions(other)) else {
        return false;
    };
    these.is_subset(&those) || those.is_subset(&these) || is_same_sweep(one, other)
}

/// One instruction goes over the whole object in both races (a copy of a
/// structure, a clearing): it is too early or too late for all that others do
/// to any field.
fn is_same_sweep(one: &Race, other: &Race) -> bool {
    let sweep = |access: &Access| {
        (access.size >= SWEEP).then(|| (access.site.clone(), access.role().clone()))
    };
    let sweeps = |race: &Race| race.accesses.iter().filter_map(sweep).collect::<Vec<_>>();
    let those = sweeps(other);
    sweeps(one).iter().any(|place| those.contains(place))
}

/// Races that belong together, joined two at a time.
struct Groups {
    of: Vec<usize>,
}

impl Groups {
    fn new(count: usize) -> Groups {
        Groups {
            of: (0..count).collect(),
        }
    }

    fn join(&mut self, one: usize, other: usize) {
        let (keep, drop) = (
            self.of[one].min(self.of[other]),
            self.of[one].max(self.of[other]),
        );
        for group in &mut self.of {
            if *group == drop {
                *group = keep;
            }
        }
    }

    /// In the order of their first members.
    fn all(&self) -> Vec<Vec<usize>> {
        (0..self.of.len())
            .filter(|first| self.of[*first] == *first)
            .map(|first| {
                let own = self.of.iter().enumerate();
                own.filter(|(_, group)| **group == first)
                    .map(|(index, _)| index)
                    .collect()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    struct Made {
        races: Vec<Race>,
    }

    fn access(kind: AccessKind, function: &str) -> Access {
        let site = Site {
            function: Some(function.into()),
            file: Some("a.c".into()),
            line: Some(3),
            ..Site::default()
        };
        Access::new(kind, 8, site)
    }

    fn allocated(function: &str) -> Option<Site> {
        Some(access(AccessKind::Read, function).site)
    }

    impl Made {
        fn add(&mut self, one: Access, other: Access, object: Object) -> &mut Race {
            let id = self.races.len() as u32 + 1;
            let mut race = Race::new(id, 1, [one, other]);
            race.set_object(object);
            self.races.push(race);
            self.races.last_mut().unwrap()
        }

        fn found(&self) -> Vec<(CauseKind, u32, Vec<u32>)> {
            causes(&self.races)
                .into_iter()
                .map(|cause| (cause.kind, cause.head, cause.races))
                .collect()
        }
    }

    fn variable(path: &str) -> Object {
        let whole = path.split('.').next().unwrap();
        Object::variable(whole, path, 0x1000)
    }

    fn block(function: &str, part: &str) -> Object {
        Object {
            whole: "heap block".into(),
            part: part.into(),
            allocated: allocated(function),
            starts: vec![0x5000],
            ..Object::default()
        }
    }

    use AccessKind::{Free, Read, Write};
    use CauseKind::*;

    #[test]
    fn fields_of_one_object_between_the_same_functions_are_one_cause() {
        let mut made = Made { races: Vec::new() };
        made.add(
            access(Write, "add"),
            access(Write, "add"),
            variable("stats.hits"),
        );
        made.add(
            access(Write, "add"),
            access(Read, "show"),
            variable("stats.misses"),
        );
        made.add(
            access(Write, "add"),
            access(Write, "clear"),
            variable("stats.hits"),
        );
        made.add(access(Write, "add"), access(Write, "add"), variable("hits"));
        // The first is within what the second and the third are about.
        assert_eq!(
            made.found(),
            [(MissingOrder, 1, vec![1, 2, 3]), (MissingOrder, 4, vec![4])]
        );
        made.races.remove(0);
        assert_eq!(made.found().len(), 3);
    }

    #[test]
    fn with_another_lock_in_hand_it_is_another_cause() {
        let mut made = Made { races: Vec::new() };
        made.add(
            access(Write, "add"),
            access(Read, "show"),
            variable("stats.hits"),
        );
        let race = made.add(
            access(Write, "add"),
            access(Read, "show"),
            variable("stats.misses"),
        );
        race.accesses[0].locks.push("mutex m".into());
        assert_eq!(made.found().len(), 2);
    }

    #[test]
    fn one_early_free_explains_its_uses_and_what_is_cleared_before() {
        let mut made = Made { races: Vec::new() };
        made.add(
            access(Read, "consume"),
            access(Write, "destroy"),
            block("make", ".lock"),
        );
        made.add(
            access(Free, "destroy"),
            access(Read, "consume"),
            block("make", ""),
        );
        made.add(
            access(Free, "destroy"),
            access(Write, "wait"),
            block("make", ".count"),
        );
        made.add(
            access(Write, "other"),
            access(Write, "consume"),
            block("make", ".count"),
        );
        made.add(
            access(Free, "destroy"),
            access(Read, "consume"),
            block("make_other", ""),
        );
        assert_eq!(
            made.found(),
            [
                (EarlyFree, 2, vec![1, 2, 3]),
                (MissingOrder, 4, vec![4]),
                (EarlyFree, 5, vec![5])
            ]
        );
    }

    #[test]
    fn what_the_freeing_thread_does_on_the_way_belongs_to_an_early_free() {
        let mut made = Made { races: Vec::new() };
        let mut free = access(Free, "destroy");
        let above = access(Write, "main");
        free.stack = ["destroy", "main"]
            .map(|function| Frame {
                function: Some(function.into()),
                file: above.site.file.clone(),
                ..Frame::default()
            })
            .into();
        free.thread = Some(1);
        let mut by = |thread, user: &str| {
            let mut access = access(Write, "main");
            access.thread = Some(thread);
            made.add(access, self::access(Read, user), block("make", ".empty"));
        };
        by(1, "consume");
        by(2, "consume");
        by(1, "show");
        // The lock of the queue was asked for by the same function, elsewhere.
        let mut lock = block("make", "");
        lock.allocated.as_mut().unwrap().line = Some(9);
        made.add(free, access(Read, "consume"), lock);
        assert_eq!(
            made.found(),
            [(EarlyFree, 4, vec![1, 2, 4]), (MissingOrder, 3, vec![3])]
        );
    }

    #[test]
    fn a_pointer_that_races_heads_the_races_on_what_it_points_at() {
        let mut made = Made { races: Vec::new() };
        made.add(
            access(Write, "get"),
            access(Read, "use"),
            block("get", ".one"),
        );
        made.add(
            access(Write, "init"),
            access(Read, "use"),
            block("get", ".two"),
        );
        let pointer = made.add(
            access(Write, "get"),
            access(Read, "get"),
            variable("instance"),
        );
        pointer.accesses[0].value_after = Some("0x5000".into());
        made.add(
            access(Write, "get"),
            access(Read, "get"),
            variable("instances"),
        );
        assert_eq!(
            made.found(),
            [(Publication, 3, vec![1, 2, 3]), (MissingOrder, 4, vec![4])]
        );
    }

    /// An access in a function of stripped code that begins at `begin`.
    fn stripped(kind: AccessKind, begin: u64, at: u64, size: u32) -> Access {
        let site = Site {
            module: Some("libx.so".into()),
            offset: Some(begin + at),
            function_offset: Some(begin),
            ..Site::default()
        };
        Access::new(kind, size, site)
    }

    #[test]
    fn functions_of_stripped_code_are_known_by_where_they_begin() {
        let mut made = Made { races: Vec::new() };
        let mut by = |user, at, object| {
            made.add(
                stripped(Write, 0x100, 8, 4),
                stripped(Read, user, at, 4),
                object,
            );
        };
        by(0x200, 0, block("make", ""));
        by(0x200, 16, block("make", ""));
        by(0x300, 0, block("make", ""));
        // Nobody knows who asked for these two.
        for at in [0, 16] {
            let object = Object {
                allocated: None,
                ..block("make", "")
            };
            by(0x200, at, object);
        }
        let groups: Vec<Vec<u32>> = made.found().into_iter().map(|(.., races)| races).collect();
        assert_eq!(groups, [vec![1, 2], vec![3], vec![4], vec![5]]);
    }

    #[test]
    fn one_copy_of_the_whole_object_is_one_cause_whoever_writes_to_it() {
        let made = |size| {
            let mut made = Made { races: Vec::new() };
            for writer in [0x200, 0x300, 0x400] {
                made.add(
                    stripped(Write, writer, 0, 4),
                    stripped(Read, 0x100, 8, size),
                    block("make", ""),
                );
            }
            made.found().len()
        };
        assert_eq!(made(4096), 1);
        assert_eq!(made(8), 3);
    }

    #[test]
    fn races_of_which_nothing_is_known_stay_apart() {
        let races = [1, 2].map(|id| Race::new(id, 1, [Access::unseen(), Access::unseen()]));
        assert_eq!(causes(&races).len(), 2);
        assert!(causes(&[]).is_empty());
    }
}
