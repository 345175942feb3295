//! Which site started a monitor, and from where: what a report needs of the
//! other thread.
//!
//! A slot has no room for a site, so each thread keeps a table of its monitors
//! by granule, a ring of its walks, and its call chains. An entry matters only
//! as long as its monitor is active, that is in the epoch it was made in: older
//! ones make room, and where all entries in the way are of the current epoch
//! the table grows. So a thread that releases now and then needs one page or
//! two, and one that never does keeps its last `MOST_SETS * WAYS` monitors.
//!
//! Other threads read all this without synchronisation when they report; every
//! entry is checked against its key, and what is gone is said to be unknown. A
//! table that was outgrown stays mapped, and reads as empty.
//!
//! A call chain is read off the frame pointers (the pass asks for them in
//! instrumented code). Most of it is that of the last chain: only what is new is
//! followed. An activation is taken for the one that was seen before if its
//! frame and its caller's stand and return where they did. Equal chains are kept
//! once.

use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

pub const FRAMES: usize = 14;
/// Entries that a granule may be in.
const WAYS: usize = 4;
/// Sets of entries that a thread begins with, and the most it may have (1.5
/// MiB).
const SETS: usize = 512;
const MOST_SETS: usize = 1 << 14;
/// The same for walks (448 KiB).
const WALKS: usize = 64;
const MOST_WALKS: usize = 1 << 13;
/// A power of two; `CHAIN_BITS` of a chain's number say its place.
const CHAINS: usize = 1 << CHAIN_BITS;
const CHAIN_BITS: u32 = 10;
/// Activations that are followed; of deeper ones the outermost are left out.
const DEEPEST: usize = 64;
/// How often a reader looks for an entry that is being written.
const ATTEMPTS: usize = 64;

#[repr(C)]
struct Recent {
    /// See [`tag`]; 0 while the rest is written.
    tag: AtomicUsize,
    site: AtomicUsize,
    /// `chain:32 | bytes:8 | 0:7 | volatile:1 | size:16`.
    rest: AtomicU64,
}

#[repr(C)]
struct Walked {
    lo: AtomicUsize,
    hi: AtomicUsize,
    site: AtomicUsize,
    /// `chain:32 | write:1 << 16`.
    rest: AtomicU64,
    epoch: AtomicU64,
    /// Distance of its rows and their length; 0 and 0 if it is one.
    stride: AtomicUsize,
    row: AtomicUsize,
}

#[repr(C)]
struct Chain {
    /// `generation | place:CHAIN_BITS`; 0 while the rest is written.
    number: AtomicU32,
    hash: AtomicU64,
    depth: AtomicUsize,
    frames: [AtomicUsize; FRAMES],
}

/// One activation on the way to the last chain.
#[repr(C)]
struct Activation {
    frame: AtomicUsize,
    returns_to: AtomicUsize,
    /// Of all return addresses from the outermost on to this one.
    hash: AtomicU64,
    /// The chain's number, if it was asked for.
    chain: AtomicU32,
}

/// The activations of the last chain, outermost first. Read and written by
/// their own thread only.
#[repr(C)]
struct Activations {
    depth: AtomicUsize,
    list: [Activation; DEEPEST],
    /// The innermost: its frame, its caller's, where both return to, and the
    /// chain's number.
    innermost: [AtomicUsize; 4],
    chain: AtomicU32,
}

#[repr(C)]
pub struct History {
    /// Where the entries are, if no longer in `first`; a reader loads `sets`
    /// before this, so that it never looks past the end.
    recent: AtomicPtr<Recent>,
    /// 0 stands for `SETS`.
    sets: AtomicUsize,
    /// The same for the walks.
    ring: AtomicPtr<Walked>,
    ring_size: AtomicUsize,
    walks: AtomicUsize,
    last: Activations,
    generation: AtomicU32,
    first: [Recent; SETS * WAYS],
    first_walks: [Walked; WALKS],
    chains: [Chain; CHAINS],
}

/// One side of a race as far as it is known.
#[derive(Clone, Copy)]
pub struct Side {
    pub site: usize,
    pub write: bool,
    pub freed: bool,
    pub atomic: bool,
    /// Only the other side of a race is told so.
    pub volatile: bool,
    pub size: u32,
    pub number: usize,
    pub kernel_id: u32,
    pub depth: usize,
    pub frames: [usize; FRAMES],
    pub created_at: [usize; 8],
}

impl Side {
    pub const UNKNOWN: Side = Side {
        site: 0,
        write: false,
        freed: false,
        atomic: false,
        volatile: false,
        size: 0,
        number: 0,
        kernel_id: 0,
        depth: 0,
        frames: [0; FRAMES],
        created_at: [0; 8],
    };

    /// What the thread did, in a word of the log.
    pub fn kind(&self) -> &'static str {
        match (self.freed, self.atomic, self.write) {
            (true, _, _) => "free",
            (_, true, true) => "atomic-write",
            (_, true, false) => "atomic-read",
            (_, _, true) => "write",
            _ => "read",
        }
    }
}

/// Whether there can be a frame above `below` on the stack that ends at `top`.
fn on_stack(frame: usize, below: usize, top: usize) -> bool {
    frame > below
        && frame < top.saturating_sub(16)
        && frame & 7 == 0
        && top.wrapping_sub(below) < 64 << 20
}

/// Follows frame pointers from `frame`; only inside this thread's stack.
pub fn walk(frame: usize, stack_top: usize, out: &mut [usize]) -> usize {
    let here = (&raw const stack_top) as usize;
    let (mut frame, mut below) = (frame, here);
    let mut depth = 0;
    while depth < out.len() && on_stack(frame, below, stack_top) {
        // SAFETY: between the stack pointer and the top of this stack all is
        // mapped.
        let (next, returns_to) =
            unsafe { (*(frame as *const usize), *((frame + 8) as *const usize)) };
        if returns_to < 4096 {
            break;
        }
        out[depth] = returns_to;
        depth += 1;
        below = frame;
        frame = next;
    }
    depth
}

/// What an entry is found by: the granule, whether it was written, and the low
/// bits of the epoch, in the bits that an address leaves free.
fn tag(granule: usize, epoch: u64, write: bool) -> usize {
    let epoch = epoch as usize;
    granule & 0x7fff_ffff_fff8 | (epoch >> 2) << 47 | (epoch & 3) << 1 | usize::from(write)
}

/// The bits of a tag that say the epoch.
const EPOCH_BITS: usize = 0x1_ffff << 47 | 3 << 1;

/// The two sets that a granule's entry may be in, before they are cut to size:
/// neighbours share one, pages are anywhere; and the one that is left when it is
/// full.
fn sets_of(granule: usize) -> [usize; 2] {
    let block = granule / (8 * WAYS);
    [
        block ^ (granule >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40,
        block.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40,
    ]
}

/// A monitor as others see it: who holds the granule or line.
#[derive(Clone, Copy)]
pub struct Held {
    pub address: usize,
    pub epoch: u64,
    /// Bytes of the granule that are in conflict.
    pub bytes: u64,
    /// Found in the table of lines.
    pub walked: bool,
    /// Only a write is in conflict.
    pub must_write: bool,
}

/// What a thread notes when it starts a monitor.
#[derive(Clone, Copy)]
pub struct Noted {
    pub epoch: u64,
    pub site: usize,
    pub frame: usize,
    pub stack_top: usize,
    pub write: bool,
    pub volatile: bool,
}

impl Recent {
    fn put(&self, tag: usize, site: usize, rest: u64) {
        self.tag.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.site.store(site, Ordering::Relaxed);
        self.rest.store(rest, Ordering::Relaxed);
        self.tag.store(tag, Ordering::Release);
    }
}

/// What a set says to a new entry.
enum Room<'a> {
    /// It is there, or a better one is.
    Known,
    Here(&'a Recent),
    /// All are active.
    None,
}

fn bytes_of(rest: u64) -> u64 {
    rest >> 24 & 0xff
}

impl History {
    /// The entries of a set.
    fn ways(&self, set: usize) -> &[Recent] {
        let sets = self.sets.load(Ordering::Acquire).max(SETS);
        let at = self.recent.load(Ordering::Acquire);
        let first = (set & (sets - 1)) * WAYS;
        if at.is_null() {
            return self.first.get(first..first + WAYS).unwrap_or(&[]);
        }
        // SAFETY: the table at `at` has at least `sets` sets, which was loaded
        // first; tables are never unmapped.
        unsafe { core::slice::from_raw_parts(at.add(first), WAYS) }
    }

    /// Doubles the table; false if it is as large as it may be.
    #[cold]
    #[inline(never)]
    fn grow(&self, now: usize) -> bool {
        let sets = self.sets.load(Ordering::Relaxed).max(SETS);
        if sets >= MOST_SETS {
            return false;
        }
        let bytes = sets * 2 * WAYS * size_of::<Recent>();
        let fresh = sys::map(bytes).cast::<Recent>();
        if fresh.is_null() {
            return false;
        }
        let old = self.recent.load(Ordering::Relaxed);
        let entries = match old.is_null() {
            true => &self.first[..],
            // SAFETY: the table at `old` has `sets` sets and is never unmapped.
            false => unsafe { core::slice::from_raw_parts(old, sets * WAYS) },
        };
        for entry in entries {
            let tag = entry.tag.load(Ordering::Relaxed);
            if tag == 0 || (tag ^ now) & EPOCH_BITS != 0 {
                continue;
            }
            let places = sets_of(tag & 0x7fff_ffff_fff8)
                .into_iter()
                .flat_map(|set| (0..WAYS).map(move |way| (set & (sets * 2 - 1)) * WAYS + way));
            for at in places {
                // SAFETY: inside the new table, which is zeroed: valid entries.
                let place = unsafe { &*fresh.add(at) };
                if place.tag.load(Ordering::Relaxed) == 0 {
                    place.put(
                        tag,
                        entry.site.load(Ordering::Relaxed),
                        entry.rest.load(Ordering::Relaxed),
                    );
                    break;
                }
            }
        }
        self.recent.store(fresh, Ordering::Release);
        self.sets.store(sets * 2, Ordering::Release);
        if !old.is_null() {
            sys::forget(old.cast(), bytes / 2);
        }
        true
    }

    /// Remembers that a monitor was started on these bytes of the granule.
    pub fn note(&self, granule: usize, bytes: u64, size: u32, noted: Noted) {
        let chain = self.chain(noted.frame, noted.stack_top);
        let rest = u64::from(chain) << 32
            | (bytes & 0xff) << 24
            | u64::from(noted.volatile) << 16
            | u64::from(size & 0xffff);
        let tag = tag(granule, noted.epoch, noted.write);
        loop {
            for set in sets_of(granule) {
                match self.room(set, tag, bytes, rest, noted.site) {
                    Room::Known => return,
                    Room::Here(entry) => {
                        entry.put(tag, noted.site, rest);
                        return;
                    }
                    Room::None => {}
                }
                // Where all are as good as full, looking further is in vain.
                if self.sets.load(Ordering::Relaxed) == MOST_SETS {
                    break;
                }
            }
            if !self.grow(tag) {
                break;
            }
        }
        // As large as may be, and all of it active: one has to go.
        let [set, _] = sets_of(granule);
        if let Some(entry) = self.ways(set).get((granule >> 6) % WAYS) {
            entry.put(tag, noted.site, rest);
        }
    }

    /// Where in the set the entry goes.
    #[inline]
    fn room(&self, set: usize, tag: usize, bytes: u64, rest: u64, site: usize) -> Room<'_> {
        let mut room = Room::None;
        let write = tag & 1 != 0;
        // Each granule of a block has a place of its own: mostly nothing of this
        // epoch stands there.
        let own = (tag >> 3) % WAYS;
        if let Some(entry) = self.ways(set).get(own) {
            let known = entry.tag.load(Ordering::Relaxed);
            if known == 0 || (known ^ tag) & EPOCH_BITS != 0 {
                // What else is known of the granule stays where it is, and is
                // found first or last by who looks for it: both are true.
                return Room::Here(entry);
            }
        }
        for entry in self.ways(set) {
            let known = entry.tag.load(Ordering::Relaxed);
            // The same granule in this epoch, whether read or written.
            if (known ^ tag) & !1 == 0 {
                let before = entry.rest.load(Ordering::Relaxed);
                let (theirs, was_written) = (bytes_of(before), known & 1 != 0);
                // What stands there already is left whole for those who read it
                // now, and a write is worth more than a read.
                let same =
                    known == tag && before == rest && entry.site.load(Ordering::Relaxed) == site;
                if same || (was_written && !write && bytes & !theirs == 0) {
                    return Room::Known;
                }
                let replaces = match was_written == write {
                    true => theirs & bytes != 0,
                    false => write && theirs & !bytes == 0,
                };
                if replaces {
                    return Room::Here(entry);
                }
            } else if known == 0 || (known ^ tag) & EPOCH_BITS != 0 {
                room = Room::Here(entry);
            }
        }
        room
    }

    /// The walk with this number, wherever the ring is now.
    fn walk_at(&self, number: usize) -> &Walked {
        let size = self.ring_size.load(Ordering::Acquire).max(WALKS);
        let at = self.ring.load(Ordering::Acquire);
        if at.is_null() {
            return &self.first_walks[number % WALKS];
        }
        // SAFETY: as in `ways`.
        unsafe { &*at.add(number & (size - 1)) }
    }

    #[cold]
    #[inline(never)]
    fn grow_ring(&self, next: usize) {
        let size = self.ring_size.load(Ordering::Relaxed).max(WALKS);
        let fresh = sys::map(size * 2 * size_of::<Walked>()).cast::<Walked>();
        if fresh.is_null() {
            return;
        }
        for number in next.saturating_sub(size)..next {
            let old = self.walk_at(number);
            // SAFETY: inside the new ring; all-zero is a valid walk.
            let new = unsafe { &*fresh.add(number & (size * 2 - 1)) };
            for (to, from) in [
                (&new.lo, &old.lo),
                (&new.hi, &old.hi),
                (&new.site, &old.site),
                (&new.stride, &old.stride),
                (&new.row, &old.row),
            ] {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            new.rest
                .store(old.rest.load(Ordering::Relaxed), Ordering::Relaxed);
            new.epoch
                .store(old.epoch.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let old = self.ring.swap(fresh, Ordering::AcqRel);
        self.ring_size.store(size * 2, Ordering::Release);
        if !old.is_null() {
            sys::forget(old.cast(), size * size_of::<Walked>());
        }
    }

    /// Remembers a walk over `lo..hi`, by rows if `stride` is not 0.
    pub fn note_walk(&self, lo: usize, hi: usize, stride: usize, row: usize, noted: Noted) {
        let chain = self.chain(noted.frame, noted.stack_top);
        let at = self.walks.load(Ordering::Relaxed);
        let size = self.ring_size.load(Ordering::Relaxed).max(WALKS);
        if at >= size
            && size < MOST_WALKS
            && self.walk_at(at).epoch.load(Ordering::Relaxed) == noted.epoch
        {
            self.grow_ring(at);
        }
        let entry = self.walk_at(at);
        entry.hi.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.lo.store(lo, Ordering::Relaxed);
        entry.site.store(noted.site, Ordering::Relaxed);
        entry.rest.store(
            u64::from(chain) << 32 | u64::from(noted.write) << 16,
            Ordering::Relaxed,
        );
        entry.epoch.store(noted.epoch, Ordering::Relaxed);
        entry.stride.store(stride, Ordering::Relaxed);
        entry.row.store(row, Ordering::Relaxed);
        entry.hi.store(hi, Ordering::Release);
        self.walks.store(at.wrapping_add(1), Ordering::Release);
    }

    /// Another thread begins, on another stack.
    pub fn restart(&self) {
        self.last.depth.store(0, Ordering::Relaxed);
        self.last.chain.store(0, Ordering::Relaxed);
    }

    fn activation(&self, index: usize) -> Option<&Activation> {
        self.last.list.get(index)
    }

    /// Whether the activation, and its callers up to `levels`, are there still.
    fn still_there(&self, mut index: usize, levels: usize) -> bool {
        let mut inner = 0;
        for _ in 0..levels {
            let Some(one) = self.activation(index) else {
                return true;
            };
            let frame = one.frame.load(Ordering::Relaxed);
            // SAFETY: a frame of this thread's stack, at or above the current
            // one.
            let returns_to = unsafe { *((frame + 8) as *const usize) };
            if returns_to != one.returns_to.load(Ordering::Relaxed)
                || (inner != 0 && inner != frame)
            {
                return false;
            }
            if index == 0 {
                return true;
            }
            // SAFETY: as above.
            inner = unsafe { *(frame as *const usize) };
            index -= 1;
        }
        true
    }

    /// The number of the current call chain.
    fn chain(&self, frame: usize, stack_top: usize) -> u32 {
        let here = (&raw const stack_top) as usize;
        // On another stack (a coroutine, a signal stack) the chain leads astray.
        if !on_stack(frame, here, stack_top) {
            return 0;
        }
        let last = &self.last;
        // SAFETY: inside this thread's stack, above the stack pointer.
        let (parent, returns_to) =
            unsafe { (*(frame as *const usize), *((frame + 8) as *const usize)) };
        let outer = if on_stack(parent, frame, stack_top) {
            // SAFETY: as above.
            unsafe { *((parent + 8) as *const usize) }
        } else {
            0
        };
        let now = [frame, parent, returns_to, outer];
        let known = last.chain.load(Ordering::Relaxed);
        if known != 0
            && last
                .innermost
                .iter()
                .zip(now)
                .all(|(before, now)| before.load(Ordering::Relaxed) == now)
        {
            return known;
        }
        let chain = self.other_chain(frame, here, stack_top);
        for (before, now) in last.innermost.iter().zip(now) {
            before.store(now, Ordering::Relaxed);
        }
        last.chain.store(chain, Ordering::Relaxed);
        chain
    }

    /// The number of a chain that is not the last.
    fn other_chain(&self, frame: usize, here: usize, stack_top: usize) -> u32 {
        let frame_of = |index: usize| {
            self.activation(index)
                .map_or(0, |one| one.frame.load(Ordering::Relaxed))
        };
        let mut depth = self.last.depth.load(Ordering::Relaxed).min(DEEPEST);
        // What lies below the current frame has returned.
        while depth > 0 && frame_of(depth - 1) < frame {
            depth -= 1;
        }
        if depth > 0 && frame_of(depth - 1) == frame && self.still_there(depth - 1, 3) {
            self.last.depth.store(depth, Ordering::Relaxed);
            return self.number_of(depth);
        }
        // Outwards, to the first that is known.
        let mut fresh = [(0, 0); DEEPEST];
        let (mut count, mut at, mut below) = (0, frame, here);
        while on_stack(at, below, stack_top) {
            while depth > 0 && frame_of(depth - 1) < at {
                depth -= 1;
            }
            if depth > 0 && frame_of(depth - 1) == at && self.still_there(depth - 1, 1) {
                break;
            }
            // SAFETY: inside this thread's stack, above the stack pointer.
            let (parent, returns_to) =
                unsafe { (*(at as *const usize), *((at + 8) as *const usize)) };
            let Some(place) = fresh.get_mut(count) else {
                depth = 0;
                break;
            };
            if returns_to < 4096 {
                depth = 0;
                break;
            }
            *place = (at, returns_to);
            count += 1;
            below = at;
            at = parent;
        }
        if !on_stack(at, below, stack_top) || depth + count > DEEPEST {
            depth = 0;
        }
        let mut hash = depth
            .checked_sub(1)
            .and_then(|index| self.activation(index))
            .map_or(0, |one| one.hash.load(Ordering::Relaxed));
        for &(frame, returns_to) in fresh.get(..count).unwrap_or(&[]).iter().rev() {
            let Some(one) = self.activation(depth) else {
                break;
            };
            hash = (hash.rotate_left(5) ^ returns_to as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            one.frame.store(frame, Ordering::Relaxed);
            one.returns_to.store(returns_to, Ordering::Relaxed);
            one.hash.store(hash, Ordering::Relaxed);
            one.chain.store(0, Ordering::Relaxed);
            depth += 1;
        }
        self.last.depth.store(depth, Ordering::Relaxed);
        self.number_of(depth)
    }

    /// The number of the chain of the innermost of so many activations; it is
    /// kept from now on.
    fn number_of(&self, depth: usize) -> u32 {
        let Some(innermost) = depth
            .checked_sub(1)
            .and_then(|index| self.activation(index))
        else {
            return 0;
        };
        let known = innermost.chain.load(Ordering::Relaxed);
        let is_kept = |number: u32| {
            self.chains
                .get(number as usize & (CHAINS - 1))
                .is_some_and(|chain| chain.number.load(Ordering::Relaxed) == number)
        };
        if known != 0 && is_kept(known) {
            return known;
        }
        let hash = innermost.hash.load(Ordering::Relaxed);
        let pair = (hash >> 40) as usize & (CHAINS - 2);
        let mut number = 0;
        for chain in self.chains.get(pair..pair + 2).unwrap_or(&[]) {
            if chain.hash.load(Ordering::Relaxed) == hash {
                number = chain.number.load(Ordering::Relaxed);
            }
        }
        if number == 0 {
            number = self.keep(depth, hash, pair);
        }
        innermost.chain.store(number, Ordering::Relaxed);
        number
    }

    fn keep(&self, depth: usize, hash: u64, pair: usize) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        self.generation.store(generation, Ordering::Relaxed);
        let place = pair | generation as usize & 1;
        let number = (generation << CHAIN_BITS).max(1 << CHAIN_BITS) | place as u32;
        let Some(chain) = self.chains.get(place) else {
            return 0;
        };
        chain.number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let returns = self.last.list.iter().take(depth).rev();
        for (kept, one) in chain.frames.iter().zip(returns) {
            kept.store(one.returns_to.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        chain.depth.store(depth.min(FRAMES), Ordering::Relaxed);
        chain.hash.store(hash, Ordering::Relaxed);
        chain.number.store(number, Ordering::Release);
        number
    }

    fn fill(&self, side: &mut Side, rest: u64) {
        let number = (rest >> 32) as u32;
        let chain = &self.chains[number as usize & (CHAINS - 1)];
        if number == 0 || chain.number.load(Ordering::Acquire) != number {
            return;
        }
        let depth = chain.depth.load(Ordering::Relaxed).min(FRAMES);
        for (place, value) in side.frames.iter_mut().zip(&chain.frames).take(depth) {
            *place = value.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if chain.number.load(Ordering::Relaxed) == number {
            side.depth = depth;
        }
    }

    /// Who put a monitor there. The owner may be in the middle of an entry: it
    /// is given the time to end it.
    pub fn find_patiently(&self, held: Held, side: &mut Side) -> bool {
        for attempt in 0..ATTEMPTS {
            if self.find(held, side) && side.depth > 0 {
                return true;
            }
            if attempt > ATTEMPTS / 2 {
                sys::yield_now();
            }
            core::hint::spin_loop();
        }
        side.site != 0
    }

    /// What stands there at this moment.
    pub fn find(&self, held: Held, side: &mut Side) -> bool {
        (!held.walked && self.find_recent(held, side)) || self.find_walk(held, side)
    }

    fn find_recent(&self, held: Held, side: &mut Side) -> bool {
        let granule = held.address & !7;
        for write in [true, false] {
            if held.must_write && !write {
                return false;
            }
            let wanted = tag(granule, held.epoch, write);
            let entries = sets_of(granule).into_iter().flat_map(|set| self.ways(set));
            for entry in entries {
                if entry.tag.load(Ordering::Acquire) != wanted {
                    continue;
                }
                let site = entry.site.load(Ordering::Relaxed);
                let rest = entry.rest.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if entry.tag.load(Ordering::Relaxed) == wanted && bytes_of(rest) & held.bytes != 0 {
                    side.site = site;
                    side.write = write;
                    side.size = rest as u32 & 0xffff;
                    side.volatile = rest >> 16 & 1 != 0;
                    self.fill(side, rest);
                    return true;
                }
            }
        }
        false
    }

    fn find_walk(&self, held: Held, side: &mut Side) -> bool {
        let end = self.walks.load(Ordering::Acquire);
        let size = self.ring_size.load(Ordering::Acquire).max(WALKS);
        for back in 1..=size.min(end) {
            let entry = self.walk_at(end - back);
            let hi = entry.hi.load(Ordering::Acquire);
            let lo = entry.lo.load(Ordering::Relaxed);
            if entry.epoch.load(Ordering::Relaxed) != held.epoch
                || lo > held.address | 63
                || held.address & !7 >= hi
            {
                continue;
            }
            let rest = entry.rest.load(Ordering::Relaxed);
            let write = rest >> 16 & 1 != 0;
            let (stride, row) = (
                entry.stride.load(Ordering::Relaxed),
                entry.row.load(Ordering::Relaxed),
            );
            if (held.must_write && !write) || !touches(held.address, lo, stride, row) {
                continue;
            }
            side.site = entry.site.load(Ordering::Relaxed);
            side.write = write;
            side.size = 0;
            self.fill(side, rest);
            return true;
        }
        false
    }
}

/// Whether a walk by rows touches the granule of `address`.
fn touches(address: usize, lo: usize, stride: usize, row: usize) -> bool {
    if stride == 0 {
        return true;
    }
    let end = (address & !7).wrapping_add(8);
    if end <= lo {
        return false;
    }
    // The last row that begins before the end of the granule.
    let begins = lo + (end - 1 - lo) / stride * stride;
    begins.wrapping_add(row) > address & !7
}
