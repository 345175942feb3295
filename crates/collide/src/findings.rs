//! The races found so far: catches merged by fingerprint, and the labels of
//! paper 002, section 3.3.
//!
//! Two accesses that may both be atomic operations, for all that is known (C11's
//! and C++'s without debug info), are no race: they are listed among what was not
//! checked.
//!
//! Nothing is hidden: a race that fits a pattern of harmless ones is labelled
//! and comes last. A reference count is told from a statistics counter as in
//! the paper, by whether the value ever goes down.

use crate::scope::Pattern;
use crate::wire::Catch;
use crate::witness::{Side, Witness, number};
use race::{Access, AccessKind, Evidence, Fingerprint, Object, Race, labels};
use std::collections::{BTreeMap, HashMap};
use symbols::Usage;

/// Catches on one location before its values are taken to tell a counter.
const SEVERAL: usize = 3;

/// What has been seen of one location over all its races.
#[derive(Debug, Default)]
struct History {
    increments: bool,
    decrements: bool,
    /// Written in another way than by counting.
    other_writes: bool,
    /// Values in the order in which they were seen, none if they ever went
    /// down.
    last: u64,
    went_down: bool,
    went_up: bool,
    catches: usize,
}

struct Finding {
    race: Race,
    location: String,
    usages: Vec<(Usage, AccessKind)>,
    /// Bits seen to change.
    changed: u64,
}

/// Where the two threads of a catch stood and on what variable; the same pair
/// again needs no names.
type Pair = (u32, u64, Option<(u64, bool)>, Option<String>);

/// What a catch turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judged {
    Race,
    /// Both sides synchronise, by what they are or by what the variable is
    /// declared to be: no data race (paper 002, section 2.1).
    Synchronisation,
    /// Its only witness contradicts it: it says nothing about the site.
    Contradicted,
}

/// What is known of such a pair: the race, and how each side uses the
/// location.
#[derive(Clone, Copy)]
struct Known {
    /// None: both sides synchronise.
    finding: Option<usize>,
    usages: [(Usage, AccessKind); 2],
    sides: usize,
}

#[derive(Default)]
pub struct Findings {
    found: Vec<Finding>,
    known: HashMap<Pair, Known>,
    by_fingerprint: HashMap<Fingerprint, usize>,
    histories: HashMap<String, History>,
    special: Vec<Pattern>,
    /// Accesses that nothing tells from atomic operations, with the variable of
    /// the first such catch.
    untold: BTreeMap<String, String>,
    pub catches: u64,
}

/// The code of one or two accesses, as words.
fn accessed_by(held: &Access, opponent: Option<&Side>) -> String {
    let place = |access: &Access| {
        let site = &access.site;
        let code = match (&site.module, site.offset) {
            (Some(module), Some(offset)) => format!("{module}+{offset:#x}"),
            _ => "unknown code".to_string(),
        };
        match &site.function {
            Some(function) => format!("{function} ({code})"),
            None => code,
        }
    };
    let mut places = vec![place(held)];
    places.extend(opponent.map(|side| place(&side.access)));
    places.sort();
    places.dedup();
    places.join(" and ")
}

impl Findings {
    /// `special` are variables on which races are expected.
    pub fn new(special: Vec<Pattern>) -> Findings {
        Findings {
            special,
            ..Findings::default()
        }
    }

    pub fn races(&self) -> usize {
        self.found.len()
    }

    /// Takes in a catch.
    pub fn take(&mut self, catch: &Catch, witness: &Witness<'_>) -> Judged {
        let object = witness.object(catch);
        let variable = object.as_ref().map(|object| {
            let Object { whole, part, .. } = object;
            format!("{whole}{part}")
        });
        let location = match witness.variable(catch.address) {
            Some(name) => name,
            None => format!("{:#x}", catch.address),
        };
        if witness.meant_to_be_shared(catch.address) {
            return Judged::Synchronisation;
        }
        let mut held = None;
        let mut any = false;
        let mut contradicted = 0;
        let changed = catch.before != catch.after;
        let seen = catch.opponents.iter().map(Some);
        for opponent in seen.chain([None]) {
            // Without a hit to go by the change itself is what was caught.
            if opponent.is_none() && (contradicted < catch.opponents.len() || !changed) {
                break;
            }
            let pair = (
                catch.space,
                catch.registers.rip,
                opponent.map(|other| (other.registers.rip, other.in_kernel)),
                variable.clone(),
            );
            let asks_callers = || witness.asks_callers(catch, opponent);
            let known = match self.known.get(&pair) {
                Some(known) if !asks_callers() => *known,
                _ => {
                    let held = held.get_or_insert_with(|| witness.held(catch));
                    let other = match opponent {
                        None => None,
                        Some(opponent) => match witness.opponent(catch, opponent) {
                            Some(side) => Some(side),
                            None => {
                                contradicted += 1;
                                continue;
                            }
                        },
                    };
                    let known =
                        self.name(held, other, (witness, catch), object.as_ref(), &location);
                    self.known.insert(pair, known);
                    known
                }
            };
            let Some(at) = known.finding else {
                continue;
            };
            any = true;
            let finding = &mut self.found[at];
            finding.race.instances += 1;
            finding.changed |= changed_bits(catch);
            add_core(&mut finding.race, catch);
            self.observe(&location, catch, &known.usages[..known.sides]);
        }
        if any {
            self.catches += 1;
            Judged::Race
        } else if contradicted > 0 && contradicted == catch.opponents.len() {
            Judged::Contradicted
        } else {
            Judged::Synchronisation
        }
    }

    fn observe(&mut self, location: &str, catch: &Catch, usages: &[(Usage, AccessKind)]) {
        let history = self.histories.entry(location.to_string()).or_default();
        history.catches += 1;
        for (usage, kind) in usages {
            match usage {
                Usage::Increment => history.increments = true,
                Usage::Decrement => history.decrements = true,
                _ => history.other_writes |= *kind == AccessKind::Write,
            }
        }
        if let (Some(before), Some(after)) = (number(&catch.before), number(&catch.after)) {
            let floor = if history.catches == 1 {
                before
            } else {
                history.last
            };
            history.went_down |= before < floor || after < before;
            history.went_up |= after > before || before > floor;
            history.last = after;
        }
    }

    /// Finds the race a new pair belongs to, or makes one, with no instances
    /// yet.
    fn name(
        &mut self,
        held: &Side,
        opponent: Option<Side>,
        (witness, catch): (&Witness<'_>, &Catch),
        object: Option<&Object>,
        location: &str,
    ) -> Known {
        let own = (held.usage, held.access.kind);
        let usages = [
            own,
            opponent
                .as_ref()
                .map_or(own, |side| (side.usage, side.access.kind)),
        ];
        let sides = 1 + usize::from(opponent.is_some());
        // An unseen writer of a location that is accessed atomically is no
        // proof of anything.
        let other_synchronises = opponent.as_ref().is_none_or(|side| side.synchronises);
        let housekeeping =
            held.housekeeping || opponent.as_ref().is_some_and(|side| side.housekeeping);
        if housekeeping || (held.synchronises && other_synchronises) {
            return Known {
                finding: None,
                usages,
                sides,
            };
        }
        let may_be_atomic = |side: &Side| side.synchronises || side.untold;
        if may_be_atomic(held) && opponent.as_ref().is_none_or(may_be_atomic) {
            self.untold
                .entry(accessed_by(&held.access, opponent.as_ref()))
                .or_insert_with(|| location.to_string());
            return Known {
                finding: None,
                usages,
                sides,
            };
        }
        let mixed = opponent
            .as_ref()
            .is_some_and(|side| side.synchronises != held.synchronises);
        let unknown = opponent.is_none();
        let second = opponent.map_or_else(Access::unseen, |side| side.access);
        let mut race = Race::new(0, 0, [held.access.clone(), second]);
        if let Some(object) = object {
            race.set_object(object.clone());
        }
        let known = |finding| Known {
            finding: Some(finding),
            usages,
            sides,
        };
        if let Some(at) = self.by_fingerprint.get(&race.fingerprint) {
            self.found[*at].race.join_objects(&race);
            return known(*at);
        }
        race.place = Some(witness.place(catch.address));
        if mixed {
            race.labels.push(labels::MIXED_ATOMIC.into());
        }
        if unknown {
            race.labels.push(labels::UNKNOWN_WRITER.into());
            race.explanation = Some(
                "the value changed while the thread stood before its access; who wrote it was not seen (another mapping of the memory, another process, the kernel, a device, a thread that came onto a CPU in this moment, or no debug register was free)"
                    .into(),
            );
        }
        let at = self.found.len();
        self.by_fingerprint.insert(race.fingerprint.clone(), at);
        self.found.push(Finding {
            race,
            location: location.to_string(),
            usages: usages[..sides].to_vec(),
            changed: 0,
        });
        known(at)
    }

    /// What could not be told from atomic operations, for the list of what was
    /// not checked.
    pub fn untold(&self) -> Vec<String> {
        /// More say nothing more.
        const LISTED: usize = 20;
        let listed = self.untold.iter().take(LISTED);
        let mut sentences: Vec<String> = listed
            .map(|(places, location)| {
                format!(
                    "cannot tell whether the accesses to {location} by {places} are atomic: no \
                     debug info says so (build with -g)"
                )
            })
            .collect();
        if let more @ 1.. = self.untold.len().saturating_sub(LISTED) {
            sentences.push(format!("{more} more pairs of accesses that may be atomic"));
        }
        sentences
    }

    /// All races with their labels, in report order: those that fit a pattern
    /// of harmless ones last.
    pub fn finish(&self) -> Vec<Race> {
        let instead: Vec<Option<usize>> = self
            .found
            .iter()
            .map(|finding| self.seen_instead(finding))
            .collect();
        let mut races = Vec::new();
        for (at, finding) in self.found.iter().enumerate() {
            if instead[at].is_some() {
                continue;
            }
            let mut race = finding.race.clone();
            race.labels
                .extend(self.labels(finding).into_iter().map(String::from));
            let unseen = self.found.iter().zip(&instead);
            for (other, _) in unseen.filter(|(_, instead)| **instead == Some(at)) {
                for evidence in &other.race.evidence {
                    add_evidence(&mut race, evidence.text.clone());
                }
            }
            races.push(race);
        }
        races.sort_by_key(|race| (race.is_set_aside(), u64::MAX - race.instances));
        for (race, id) in races.iter_mut().zip(1..) {
            race.id = id;
        }
        races
    }

    /// The race with both sides seen that an unseen writer adds nothing to.
    fn seen_instead(&self, finding: &Finding) -> Option<usize> {
        let seen = |finding: &Finding| finding.usages.len() == 2;
        if seen(finding) {
            return None;
        }
        self.found.iter().position(|other| {
            seen(other)
                && other.location == finding.location
                && other
                    .race
                    .accesses
                    .iter()
                    .any(|access| access.site == finding.race.accesses[0].site)
        })
    }

    fn labels(&self, finding: &Finding) -> Vec<&'static str> {
        let mut found = Vec::new();
        if let Some(history) = self.histories.get(&finding.location) {
            let counts = finding
                .usages
                .iter()
                .any(|(usage, _)| matches!(usage, Usage::Increment | Usage::Decrement));
            let goes_down = history.decrements || history.went_down;
            let only_counted = !history.other_writes;
            if counts && history.increments && history.decrements {
                found.push(labels::REFERENCE_COUNT);
            } else if counts
                && only_counted
                && !goes_down
                && history.went_up
                && history.catches >= SEVERAL
            {
                found.push(labels::STATISTICS_COUNTER);
            }
        }
        if disjoint_bits(finding) {
            found.push(labels::DISJOINT_BITS);
        }
        let name = finding
            .location
            .split(['+', '.', '['])
            .next()
            .unwrap_or_default();
        if self
            .special
            .iter()
            .any(|pattern| pattern.matches(name) || pattern.matches(&finding.location))
        {
            found.push(labels::SPECIAL_VARIABLE);
        }
        found
    }
}

/// A reader that looks at other bits than the writer changes. Two writers are
/// never safe: each writes the other's bits back as they were.
fn disjoint_bits(finding: &Finding) -> bool {
    let [one, other] = finding.usages.as_slice() else {
        return false;
    };
    let (tested, updated) = match (one, other) {
        ((Usage::TestsBits(tested), AccessKind::Read), (Usage::UpdatesBits(bits), _)) => {
            (tested, bits)
        }
        ((Usage::UpdatesBits(bits), _), (Usage::TestsBits(tested), AccessKind::Read)) => {
            (tested, bits)
        }
        _ => return false,
    };
    tested & updated == 0 && tested & finding.changed == 0
}

fn changed_bits(catch: &Catch) -> u64 {
    match (number(&catch.before), number(&catch.after)) {
        (Some(before), Some(after)) => before ^ after,
        _ => u64::MAX,
    }
}

fn add_core(race: &mut Race, catch: &Catch) {
    if let Some(core) = &catch.core {
        add_evidence(
            race,
            format!("core file of the process at the catch: {core}"),
        );
    }
}

fn add_evidence(race: &mut Race, text: String) {
    race.evidence.push(Evidence {
        id: race.evidence.len() as u32 + 1,
        text,
        instance: None,
        replay: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Opponent, RegisterFile};
    use symbols::ModuleMap;

    fn catch(opponents: Vec<Opponent>, core: Option<&str>) -> Catch {
        Catch {
            site: 1,
            space: 1,
            pid: 1,
            tid: 1,
            name: String::new(),
            registers: at(0x1000),
            stack: Vec::new(),
            // Not aligned: no atomic operation, whatever the code is.
            address: 0x5001,
            size: 4,
            write: true,
            before: vec![0; 4],
            after: vec![1; 4],
            opponents,
            core: core.map(String::from),
        }
    }

    fn at(rip: u64) -> RegisterFile {
        RegisterFile {
            general: [0; 16],
            rip,
            flags: 0,
        }
    }

    fn seen() -> Vec<Opponent> {
        vec![Opponent {
            pid: 1,
            tid: 2,
            name: String::new(),
            registers: at(0x2000),
            in_kernel: false,
            stack: Vec::new(),
        }]
    }

    #[test]
    fn what_is_known_of_an_unseen_writer_goes_to_the_race_with_both_sides() {
        let map = ModuleMap::new();
        let witness = Witness { map: &map, pid: 1 };
        let mut findings = Findings::new(Vec::new());
        let unseen = catch(Vec::new(), Some("core.1"));
        assert_eq!(findings.take(&unseen, &witness), Judged::Race);
        assert_eq!(findings.finish()[0].labels, [labels::UNKNOWN_WRITER]);
        assert_eq!(findings.take(&catch(seen(), None), &witness), Judged::Race);
        let races = findings.finish();
        assert_eq!(races.len(), 1);
        assert!(races[0].labels.is_empty());
        assert_eq!(races[0].accesses[1].value_before.as_deref(), Some("0"));
        assert_eq!(
            races[0].evidence[0].text,
            "core file of the process at the catch: core.1"
        );
    }

    #[test]
    fn a_write_that_changed_nothing_may_have_come_before_the_first_look() {
        let map = ModuleMap::new();
        let witness = Witness { map: &map, pid: 1 };
        let mut findings = Findings::new(Vec::new());
        let mut unchanged = catch(seen(), None);
        unchanged.write = false;
        unchanged.after = unchanged.before.clone();
        assert_eq!(findings.take(&unchanged, &witness), Judged::Race);
        let writer = &findings.finish()[0].accesses[1];
        assert_eq!(writer.kind, AccessKind::Write);
        assert_eq!(writer.value_before, None);
        assert_eq!(writer.value_after.as_deref(), Some("0"));
    }
}
