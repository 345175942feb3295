//! The second pass: all pairs and instances on the racy addresses.
//!
//! Keeps, for each watched granule, the latest access of every static site,
//! thread and set of bytes. A new access is paired with each of those that is
//! concurrent with it and conflicts: so every pair of sites that raced is
//! found, and every dynamic access counts as an instance with the latest
//! concurrent access of each other site and thread. (All pairs of dynamic
//! accesses, of which there are quadratically many, would say nothing more.)
//! Paper 000, section 3.3, takes its instances per overlapping regions in the
//! same way.
//!
//! Two instructions may meet on many objects (`put(&slot)`, an element of an
//! array): a pair is of two instructions and the bytes they met on, by address
//! or by heap block. A bounded number of these per pair of instructions is kept
//! apart; those beyond fold by what is likely the same field. Instances are
//! counted all and kept spread over the whole run, so that its end is looked at
//! as well as its beginning; of some both sides are kept whole, because who
//! called a helper is found out later, at their moments (`scene`).

use crate::clock::Epoch;
use crate::engine::{Access, Checker, HeldNames, LockEvent, LockKind, Meaning, Thread};
use crate::find::Candidates;
use crate::heap::{Block, Heap};
use crate::locks::Locks;
use crate::shadow::{LARGE, ShadowError, Watch, pieces};
use race::{AccessKind, Instance, Moment};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use vm::observe::known::Compare;

/// Instances kept per pair of instructions; all are counted.
pub const INSTANCES_KEPT: usize = 1000;

/// Of further spots of the same two instructions.
const MORE_INSTANCES_KEPT: usize = 200;

/// Instances of which both sides are kept whole: enough for every way to call a
/// helper from a handful of places.
const SAMPLES_KEPT: usize = 32;

/// Spots kept apart per pair of instructions.
const SPOTS_KEPT: usize = 32;

/// Spots kept apart, all pairs together.
const ALL_SPOTS_KEPT: usize = 4096;

/// Past accesses kept per granule.
const PAST_KEPT: usize = 256;

/// Pairs of instructions kept.
const PAIRS_KEPT: usize = 4096;

/// One side of a pair, at one instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Side {
    pub pc: u64,
    pub kind: AccessKind,
    pub address: u64,
    pub size: u64,
    pub atomic: bool,
    pub order_unknown: bool,
    /// The read is the condition of a tight loop.
    #[serde(default)]
    pub spins: bool,
    /// The value read decides a branch.
    #[serde(default)]
    pub decides: bool,
    pub moment: Moment,
    pub order: u64,
    pub held: Vec<(u64, LockKind)>,
}

/// Where two instructions met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Spot {
    Address(u64),
    /// In the block that was allocated so late in the order of events, at this
    /// offset.
    Block(u64, u64),
    /// In one of many more blocks of this size, at this offset.
    MoreBlocks(u64, u64),
    /// At one of many more addresses.
    MoreAddresses,
}

/// Of all that comes a bounded number, spread evenly, the first included.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spread<T> {
    /// With its number in the order in which all came.
    pub kept: Vec<(u64, T)>,
    limit: usize,
    stride: u64,
    pub seen: u64,
}

impl<T> Spread<T> {
    pub fn new(limit: usize) -> Spread<T> {
        Spread {
            kept: Vec::new(),
            limit: limit.max(2),
            stride: 1,
            seen: 0,
        }
    }

    pub fn add(&mut self, item: impl FnOnce() -> T) {
        let number = self.seen;
        self.seen += 1;
        if !number.is_multiple_of(self.stride) {
            return;
        }
        if self.kept.len() == self.limit {
            self.stride *= 2;
            let stride = self.stride;
            self.kept
                .retain(|(number, _)| number.is_multiple_of(stride));
            if !number.is_multiple_of(stride) {
                return;
            }
        }
        self.kept.push((number, item()));
    }
}

/// The heap block that a racy address is in.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RacyBlock {
    pub start: u64,
    pub size: u64,
    /// The call of the allocator.
    pub moment: Moment,
    pub order: u64,
}

impl From<&Block> for RacyBlock {
    fn from(block: &Block) -> RacyBlock {
        RacyBlock {
            start: block.start,
            size: block.size,
            moment: block.moment,
            order: block.order,
        }
    }
}

/// Two instructions that raced on one spot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pair {
    pub spot: Spot,
    /// The first byte that raced in the first instance.
    pub address: u64,
    /// Bytes that raced in the first instance.
    pub size: u64,
    /// Instances that ad hoc synchronisation orders (rule 5).
    pub ad_hoc: u64,
    pub instances: Spread<Instance>,
    /// Instances with both sides, the earlier access first; the first is the one
    /// shown.
    pub samples: Spread<[Side; 2]>,
    /// The heap block of the address.
    pub block: Option<RacyBlock>,
    /// Who called them tells the instances apart.
    pub asks_callers: bool,
    /// The instance that was counted last.
    last: Option<(Moment, Moment)>,
    /// The word is that of a lock that the program has made itself.
    #[serde(default)]
    pub home_made: bool,
}

impl Pair {
    /// Instances seen.
    pub fn count(&self) -> u64 {
        self.instances.seen
    }

    /// The instance shown: the earlier access, then the later one.
    pub fn sides(&self) -> &[Side; 2] {
        &self.samples.kept[0].1
    }
}

/// The two instructions of a pair and what each did.
type Instructions = (u64, AccessKind, u64, AccessKind);

#[derive(Debug, Clone)]
struct Past {
    /// Without the locks held, which many accesses share.
    side: Side,
    held: HeldNames,
    epoch: Epoch,
    mask: u8,
    read: bool,
    write: bool,
    meaning: Meaning,
    /// The block that was there then: what comes after a `free` finds none.
    block: Option<RacyBlock>,
}

pub struct Historian {
    racy: FxHashMap<u64, u8>,
    /// Racy granules and those of locked instructions, sorted.
    watched: Vec<u64>,
    /// Granules that were used atomically.
    words: FxHashSet<u64>,
    watch: Watch,
    past: FxHashMap<u64, Vec<Past>>,
    pub pairs: HashMap<(Instructions, Spot), Pair>,
    /// Spots of each pair of instructions.
    spots: FxHashMap<Instructions, usize>,
    pub pairs_left_out: u64,
    pub locks: Locks,
    /// Words that are locked by a locked instruction and unlocked by a store.
    home_made: FxHashSet<u64>,
    /// Locks that threads held when they read a granule.
    read_under: FxHashMap<u64, FxHashSet<u64>>,
}

impl Past {
    fn shown(&self) -> Side {
        Side {
            held: self.held.to_vec(),
            ..self.side.clone()
        }
    }
}

impl Historian {
    /// The parts of a large access that are worth a look, in order.
    fn racy_parts(&self, access: &Access) -> Vec<(u64, u64)> {
        let end = access.address.saturating_add(access.size);
        let (first, last) = (access.address >> 3, end.saturating_sub(1) >> 3);
        let begin = self.watched.partition_point(|granule| *granule < first);
        self.watched[begin..]
            .iter()
            .take_while(|granule| **granule <= last)
            .filter(|granule| self.racy.contains_key(granule))
            .map(|granule| {
                let from = (granule * 8).max(access.address);
                (from, (granule * 8 + 8).min(end) - from)
            })
            .collect()
    }

    pub fn new(candidates: Candidates) -> Result<Historian, ShadowError> {
        let mut watched: Vec<u64> = candidates
            .racy
            .keys()
            .chain(&candidates.words)
            .copied()
            .collect();
        watched.sort_unstable();
        watched.dedup();
        Ok(Historian {
            racy: candidates.racy.into_iter().collect(),
            watch: Watch::new(&watched)?,
            words: candidates.words.into_iter().collect(),
            watched,
            past: FxHashMap::default(),
            pairs: HashMap::new(),
            spots: FxHashMap::default(),
            pairs_left_out: 0,
            locks: Locks::searching(candidates.locks),
            home_made: FxHashSet::default(),
            read_under: FxHashMap::default(),
        })
    }

    /// The word of this pair is that of a lock or barrier that the program has
    /// made itself: it is unlocked by a store, or it is spun on without the lock
    /// that it is written under and read again under that lock.
    pub fn is_home_made(&self, pair: &Pair) -> bool {
        if self.home_made.contains(&(pair.address & !3)) {
            return true;
        }
        let Some(under) = self.read_under.get(&(pair.address >> 3)) else {
            return false;
        };
        let [one, other] = pair.sides();
        let waits = |side: &Side| side.spins && side.held.is_empty();
        let guarded = |side: &Side| {
            let mut held = side.held.iter();
            side.kind == AccessKind::Write && held.any(|(lock, _)| under.contains(lock))
        };
        (waits(one) && guarded(other)) || (waits(other) && guarded(one))
    }

    fn is_watched(&self, granule: u64) -> bool {
        self.watch.may_contain(granule) && self.watched.binary_search(&granule).is_ok()
    }

    fn pair(&mut self, earlier: &Past, later: &Past, mask: u8, granule: u64, ad_hoc: bool) {
        let block = later.block.or(earlier.block);
        let key = |past: &Past| (past.side.pc, past.side.kind);
        let (one, two) = (key(earlier), key(later));
        let (one, two) = if one <= two { (one, two) } else { (two, one) };
        let instructions = (one.0, one.1, two.0, two.1);
        let address = granule * 8 + u64::from(mask.trailing_zeros());
        let size = mask.count_ones();
        let met = earlier.side.address.max(later.side.address);
        let Some(spot) = self.spot(instructions, met, address, block) else {
            self.pairs_left_out += 1;
            return;
        };
        let kept = match self.spots.get(&instructions) {
            Some(2..) => MORE_INSTANCES_KEPT,
            _ => INSTANCES_KEPT,
        };
        let pair = self
            .pairs
            .entry((instructions, spot))
            .or_insert_with(|| Pair {
                spot,
                address,
                size: 0,
                ad_hoc: 0,
                instances: Spread::new(kept),
                samples: Spread::new(SAMPLES_KEPT),
                block,
                asks_callers: false,
                last: None,
                home_made: false,
            });
        let instance = Instance {
            first: earlier.side.moment,
            second: later.side.moment,
            address,
            size,
        };
        // The pieces of a wide access are one instance.
        let is_piece = pair.last == Some((instance.first, instance.second));
        if pair.instances.seen <= 1 && (is_piece || pair.instances.seen == 0) {
            let end = address + u64::from(u8::BITS - mask.leading_zeros() - mask.trailing_zeros());
            pair.size = end.saturating_sub(pair.address).max(pair.size);
        }
        if is_piece {
            return;
        }
        pair.last = Some((instance.first, instance.second));
        pair.ad_hoc += u64::from(ad_hoc);
        pair.instances.add(|| instance);
        pair.samples.add(|| [earlier.shown(), later.shown()]);
    }

    /// Where two instructions met that met at address `met`, with bytes from
    /// `racy` on racing; none if there is no room for it.
    fn spot(
        &mut self,
        instructions: Instructions,
        met: u64,
        racy: u64,
        block: Option<RacyBlock>,
    ) -> Option<Spot> {
        let block = block.map(|block| (block, met.max(block.start) - block.start));
        let spot = match block {
            Some((block, offset)) => Spot::Block(block.order, offset),
            // A part may be declared to race: then the rest is what counts.
            None => Spot::Address(if racy.saturating_sub(met) < 8 {
                racy
            } else {
                met
            }),
        };
        if self.pairs.contains_key(&(instructions, spot)) {
            return Some(spot);
        }
        let known = self.spots.get(&instructions).copied().unwrap_or_default();
        if known == 0 && self.spots.len() >= PAIRS_KEPT {
            return None;
        }
        let spot = match block {
            _ if known < SPOTS_KEPT && self.pairs.len() < ALL_SPOTS_KEPT => spot,
            Some((block, offset)) => Spot::MoreBlocks(block.size, offset),
            None => Spot::MoreAddresses,
        };
        let is_new = !self.pairs.contains_key(&(instructions, spot));
        if is_new && self.pairs.len() >= 2 * ALL_SPOTS_KEPT {
            return None;
        }
        *self.spots.entry(instructions).or_default() += usize::from(is_new);
        Some(spot)
    }
}

/// Neither access can be told from an atomic one.
fn both_atomic(one: &Past, other: &Past) -> bool {
    match (one.meaning, other.meaning) {
        (Meaning::Atomic { .. }, Meaning::Atomic { .. }) => true,
        (Meaning::Check, Meaning::Free) | (Meaning::Free, Meaning::Check) => false,
        (Meaning::Check, _) => !other.read || other.meaning != Meaning::Plain,
        (_, Meaning::Check) => !one.read || one.meaning != Meaning::Plain,
        _ => false,
    }
}

impl Checker for Historian {
    fn is_used_atomically(&self, address: u64) -> bool {
        self.words.contains(&(address >> 3))
    }

    #[inline]
    fn is_known(&self, address: u64, size: u32, _write: bool, _epoch: Epoch) -> bool {
        let last = (address + u64::from(size.max(1)) - 1) >> 3;
        let first = address >> 3;
        if last - first < 4 {
            return (first..=last).all(|granule| !self.is_watched(granule));
        }
        let index = self.watched.partition_point(|granule| *granule < first);
        self.watched
            .get(index)
            .is_none_or(|granule| *granule > last)
    }

    fn known_by(&self, _thread: &Thread) -> Compare {
        Compare::Zero
    }

    fn watches(&self) -> bool {
        true
    }

    fn wants_accesses(&self) -> bool {
        !self.racy.is_empty()
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn access(&mut self, access: &Access, thread: &Thread, heap: &Heap) {
        let kind = match (access.meaning, access.write) {
            (Meaning::Free, _) => AccessKind::Free,
            (_, true) => AccessKind::Write,
            _ => AccessKind::Read,
        };
        let order_unknown = access.meaning
            == Meaning::Atomic {
                order_unknown: true,
            };
        let mut side: Option<Side> = None;
        let whole = [(access.address, access.size)];
        let racy;
        let parts: &[(u64, u64)] = if access.size >= LARGE {
            racy = self.racy_parts(access);
            &racy
        } else {
            &whole
        };
        for piece in parts.iter().flat_map(|(from, size)| pieces(*from, *size)) {
            let Some(racy) = self.racy.get(&piece.granule).copied() else {
                continue;
            };
            let mask = piece.mask & racy;
            if mask == 0 {
                continue;
            }
            if access.read {
                let locks = thread.held.names().to_vec();
                let locks = locks.into_iter().map(|(lock, _)| lock);
                self.read_under
                    .entry(piece.granule)
                    .or_default()
                    .extend(locks);
            }
            let side = side.get_or_insert_with(|| Side {
                pc: access.pc,
                kind,
                address: access.address,
                size: access.size,
                atomic: matches!(access.meaning, Meaning::Atomic { .. }),
                order_unknown,
                spins: false,
                decides: false,
                moment: access.moment,
                order: access.order,
                held: Vec::new(),
            });
            let present = Past {
                side: side.clone(),
                held: thread.held.names(),
                epoch: thread.epoch,
                mask,
                read: access.read,
                write: access.write,
                meaning: access.meaning,
                block: heap
                    .find(piece.granule * 8 + u64::from(mask.trailing_zeros()))
                    .map(RacyBlock::from),
            };
            let mut list = self.past.remove(&piece.granule).unwrap_or_default();
            for past in &list {
                let shared = past.mask & mask;
                let both_atomic = both_atomic(past, &present);
                if shared != 0
                    && !(past.side.moment.thread == thread.number
                        && thread.is_local(piece.granule * 8))
                    && (past.write || present.write)
                    && !both_atomic
                    && !thread.clock.covers(past.epoch)
                {
                    let ad_hoc = thread.ad_hoc.covers(past.epoch);
                    self.pair(past, &present, shared, piece.granule, ad_hoc);
                }
            }
            let same = list.iter().position(|past| {
                past.epoch.slot() == thread.epoch.slot()
                    && past.side.moment.thread == thread.number
                    && past.side.pc == access.pc
                    && past.mask == mask
                    && past.read == access.read
                    && past.write == access.write
            });
            match same {
                Some(index) => list[index] = present,
                None => {
                    if list.len() >= PAST_KEPT {
                        list.remove(0);
                    }
                    list.push(present);
                }
            }
            self.past.insert(piece.granule, list);
        }
    }

    fn clear(&mut self, range: Range<u64>, is_held: &dyn Fn(u64) -> bool) {
        self.locks.forget(range.clone(), is_held);
        let (first, last) = (range.start >> 3, range.end.div_ceil(8));
        let from = self.watched.partition_point(|granule| *granule < first);
        let to = self.watched.partition_point(|granule| *granule < last);
        for granule in &self.watched[from..to] {
            let start = granule * 8;
            if let Some(list) = self.past.get_mut(granule) {
                let mut gone = 0;
                for byte in 0..8 {
                    if range.contains(&(start + byte)) {
                        gone |= 1 << byte;
                    }
                }
                list.retain_mut(|past| {
                    past.mask &= !gone;
                    past.mask != 0
                });
            }
        }
    }

    fn lock(&mut self, event: LockEvent<'_>) {
        self.locks.note(event);
    }

    fn home_made_lock(&mut self, word: u64) {
        self.home_made.insert(word);
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn what_is_kept_is_spread_over_all() {
        let mut spread = Spread::new(8);
        for item in 0..1000u64 {
            spread.add(|| item);
        }
        assert_eq!(spread.seen, 1000);
        let kept: Vec<u64> = spread.kept.iter().map(|(_, item)| *item).collect();
        assert_eq!(kept[0], 0);
        assert!(kept.len() > 4 && kept.len() <= 8, "{kept:?}");
        let steps: Vec<u64> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{kept:?}");
        assert!(kept[kept.len() - 1] >= 1000 - steps[0]);
        assert!(spread.kept.iter().all(|(number, item)| number == item));
    }
}
