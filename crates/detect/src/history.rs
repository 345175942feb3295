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

/// Two instructions that raced.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pair {
    /// The instance shown: the earlier access, then the later one.
    pub sides: [Side; 2],
    pub address: u64,
    pub size: u32,
    pub count: u64,
    /// Instances that ad hoc synchronisation orders (rule 5).
    pub ad_hoc: u64,
    pub instances: Vec<Instance>,
    /// The heap block of the address: start, size, call of the allocator.
    pub block: Option<(u64, u64, Moment, u64)>,
    /// The word is that of a lock that the program has made itself.
    #[serde(default)]
    pub home_made: bool,
}

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
}

pub struct Historian {
    racy: FxHashMap<u64, u8>,
    /// Racy granules and those of locked instructions, sorted.
    watched: Vec<u64>,
    /// Granules that were used atomically.
    words: FxHashSet<u64>,
    watch: Watch,
    past: FxHashMap<u64, Vec<Past>>,
    pub pairs: HashMap<(u64, AccessKind, u64, AccessKind), Pair>,
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
        let [one, other] = &pair.sides;
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

    fn pair(
        &mut self,
        earlier: &Past,
        later: &Past,
        mask: u8,
        granule: u64,
        block: Option<&Block>,
        ad_hoc: bool,
    ) {
        let key = |past: &Past| (past.side.pc, past.side.kind);
        let (one, two) = (key(earlier), key(later));
        let (one, two) = if one <= two { (one, two) } else { (two, one) };
        let pairs = &mut self.pairs;
        if pairs.len() >= PAIRS_KEPT && !pairs.contains_key(&(one.0, one.1, two.0, two.1)) {
            self.pairs_left_out += 1;
            return;
        }
        let address = granule * 8 + u64::from(mask.trailing_zeros());
        let size = mask.count_ones();
        let pair = pairs
            .entry((one.0, one.1, two.0, two.1))
            .or_insert_with(|| Pair {
                sides: [earlier.shown(), later.shown()],
                address,
                size,
                count: 0,
                ad_hoc: 0,
                instances: Vec::new(),
                block: block.map(|block| (block.start, block.size, block.moment, block.order)),
                home_made: false,
            });
        let instance = Instance {
            first: earlier.side.moment,
            second: later.side.moment,
            address,
            size,
        };
        // The pieces of a wide access are one instance.
        if pair
            .instances
            .last()
            .is_some_and(|last| last.first == instance.first && last.second == instance.second)
        {
            return;
        }
        pair.count += 1;
        pair.ad_hoc += u64::from(ad_hoc);
        if pair.instances.len() < INSTANCES_KEPT {
            pair.instances.push(instance);
        }
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
            };
            let mut list = self.past.remove(&piece.granule).unwrap_or_default();
            let block = heap.find(piece.granule * 8 + u64::from(mask.trailing_zeros()));
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
                    self.pair(past, &present, shared, piece.granule, block, ad_hoc);
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
