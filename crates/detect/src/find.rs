//! The first pass: which bytes are racy at all.
//!
//! Keeps epochs for all memory (`shadow`) and notes the bytes of every access
//! that is concurrent with an earlier conflicting one. It reports no pairs:
//! debug info is not asked for every instruction here, so an atomic access
//! that looks like a plain one may be among the candidates. The second pass
//! looks at just these addresses with everything that is known. Adding edges
//! only ever takes races away, so no race is lost between the passes.

use crate::clock::Epoch;
use crate::engine::{Access, Checker, LockEvent, Meaning, Thread};
use crate::heap::Heap;
use crate::locks::Locks;
use crate::shadow::{LARGE, Shadow, ShadowError, pieces};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use vm::observe::known::{Compare, Present};

/// Granules with racy bytes kept; what lies beyond is counted.
const LIMIT: usize = 1 << 20;

/// The bytes worth a second look.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Candidates {
    /// Granule (address / 8) and mask of bytes.
    pub racy: HashMap<u64, u8>,
    /// Granules that locked instructions have used: plain accesses there may
    /// be synchronisation.
    pub words: Vec<u64>,
    /// Racy granules beyond the limit.
    pub left_out: u64,
    pub lock_problems: usize,
    /// Locks that may have been taken in a circle.
    pub locks: Vec<u64>,
}

pub struct Finder {
    shadow: Shadow,
    pub candidates: Candidates,
    words: rustc_hash::FxHashMap<u64, ()>,
    locks: Locks,
}

impl Candidates {
    /// There is nothing a second look could find.
    pub fn is_empty(&self) -> bool {
        self.racy.is_empty() && self.lock_problems == 0 && self.locks.is_empty()
    }
}

impl Finder {
    pub fn new() -> Result<Finder, ShadowError> {
        Ok(Finder {
            shadow: Shadow::for_translated_code()?,
            candidates: Candidates::default(),
            words: rustc_hash::FxHashMap::default(),
            locks: Locks::suspecting(),
        })
    }

    pub fn finish(mut self) -> Candidates {
        self.candidates.lock_problems = self.locks.problems.len();
        self.candidates.locks = self.locks.suspects();
        self.candidates.words = self.words.into_keys().collect();
        self.candidates
    }
}

impl Checker for Finder {
    #[inline(always)]
    fn is_known(&self, address: u64, size: u32, write: bool, epoch: Epoch) -> bool {
        let first = (address & 7) as u32;
        if first + size > 8 {
            return false;
        }
        let mask = (((1u32 << size) - 1) << first) as u8;
        self.shadow.is_known(address >> 3, mask, write, epoch)
    }

    fn known_by(&self, thread: &Thread) -> Compare {
        if thread.inside > 0 {
            return Compare::Everything;
        }
        let ticks = thread.clock.ticks();
        Compare::Epoch(Present {
            epoch: thread.epoch.0,
            clock: ticks.as_ptr(),
            slots: ticks.len(),
        })
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn access(&mut self, access: &Access, thread: &Thread, _heap: &Heap) {
        let (epoch, clock) = (thread.epoch, &thread.clock);
        let whole = [(access.address, access.size)];
        let touched;
        // What nobody has used of a large block conflicts with nothing when
        // it is freed; that it may be used later is given up.
        let parts: &[(u64, u64)] = if access.meaning == Meaning::Free && access.size >= LARGE {
            touched = self.shadow.touched(access.address, access.size);
            &touched
        } else {
            &whole
        };
        for piece in parts.iter().flat_map(|(from, size)| pieces(*from, *size)) {
            let racy = match access.meaning {
                Meaning::Atomic { .. } => {
                    self.words.entry(piece.granule).or_default();
                    self.shadow.atomic(piece, epoch, clock, access.write)
                }
                Meaning::Plain | Meaning::Check | Meaning::Free => {
                    let mut racy = 0;
                    if access.read {
                        racy |= self.shadow.read(piece, epoch, clock);
                    }
                    if access.write {
                        racy |= self.shadow.write(piece, epoch, clock);
                    }
                    racy
                }
            };
            if racy != 0 {
                let racy_granules = &mut self.candidates.racy;
                if racy_granules.len() < LIMIT || racy_granules.contains_key(&piece.granule) {
                    *racy_granules.entry(piece.granule).or_default() |= racy;
                } else {
                    self.candidates.left_out += 1;
                }
            }
        }
    }

    fn synchronised(&mut self, address: u64, size: u32) {
        for piece in pieces(address, u64::from(size)) {
            self.words.entry(piece.granule).or_default();
            self.shadow.ask_always(piece.granule);
        }
    }

    fn lock(&mut self, event: LockEvent<'_>) {
        self.locks.note(event);
    }

    fn clear(&mut self, range: Range<u64>, is_held: &dyn Fn(u64) -> bool) {
        self.locks.forget(range.clone(), is_held);
        self.shadow
            .clear(range.start, range.end.saturating_sub(range.start));
    }
}
