//! Which site started a monitor, and from where: what a report needs of the
//! other thread.
//!
//! A slot has no room for a site, so each thread keeps a direct-mapped table
//! of its last monitors by granule, a ring of its last walks, and a ring of
//! call chains. Other threads read them without synchronisation when they
//! report; every entry is checked against its key, and what is gone is said to
//! be unknown.
//!
//! A call chain is read off the frame pointers (the pass asks for them in
//! instrumented code) once per activation: as long as frame and return address
//! are those of the last chain, the chain is the same.

use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

pub const FRAMES: usize = 14;
const RECENT: usize = 2048;
const CHAINS: usize = 256;
const WALKS: usize = 64;
/// How often a reader looks for an entry that is being written.
const ATTEMPTS: usize = 64;

#[repr(C)]
struct Recent {
    granule: AtomicUsize,
    site: AtomicUsize,
    /// `chain:32 | write:1 | size:16`.
    rest: AtomicU64,
}

#[repr(C)]
struct Walked {
    lo: AtomicUsize,
    hi: AtomicUsize,
    site: AtomicUsize,
    rest: AtomicU64,
}

#[repr(C)]
struct Chain {
    serial: AtomicU32,
    frame: AtomicUsize,
    returns_to: AtomicUsize,
    parent: AtomicUsize,
    depth: AtomicUsize,
    frames: [AtomicUsize; FRAMES],
}

#[repr(C)]
pub struct History {
    recent: [Recent; RECENT],
    walked: [Walked; WALKS],
    walks: AtomicUsize,
    chains: [Chain; CHAINS],
    serial: AtomicU32,
}

/// One side of a race as far as it is known.
#[derive(Clone, Copy)]
pub struct Side {
    pub site: usize,
    pub write: bool,
    pub freed: bool,
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
        size: 0,
        number: 0,
        kernel_id: 0,
        depth: 0,
        frames: [0; FRAMES],
        created_at: [0; 8],
    };
}

fn place(granule: usize) -> usize {
    ((granule >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % RECENT
}

/// Follows frame pointers from `frame`; only inside this thread's stack.
pub fn walk(frame: usize, stack_top: usize, out: &mut [usize]) -> usize {
    let here = (&raw const stack_top) as usize;
    // On another stack (a coroutine, a signal stack) the chain leads astray.
    if stack_top < here || stack_top - here > 64 << 20 {
        return 0;
    }
    let (mut frame, mut below) = (frame, here);
    let mut depth = 0;
    while depth < out.len() && frame > below && frame < stack_top - 16 && frame & 7 == 0 {
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

impl History {
    /// The number of the current call chain.
    fn chain(&self, frame: usize, stack_top: usize) -> u32 {
        let serial = self.serial.load(Ordering::Relaxed);
        let last = &self.chains[serial as usize % CHAINS];
        let here = (&raw const serial) as usize;
        let (mut returns_to, mut parent) = (0, 0);
        if frame > here
            && frame < stack_top.saturating_sub(16)
            && frame & 7 == 0
            && stack_top - here < 64 << 20
        {
            // SAFETY: inside this thread's stack, above the stack pointer.
            unsafe {
                parent = *(frame as *const usize);
                returns_to = *((frame + 8) as *const usize);
            }
        }
        if serial != 0
            && last.frame.load(Ordering::Relaxed) == frame
            && last.returns_to.load(Ordering::Relaxed) == returns_to
            && last.parent.load(Ordering::Relaxed) == parent
        {
            return serial;
        }
        let serial = serial.wrapping_add(1).max(1);
        let fresh = &self.chains[serial as usize % CHAINS];
        fresh.serial.store(0, Ordering::Relaxed);
        let mut frames = [0; FRAMES];
        let depth = walk(frame, stack_top, &mut frames);
        for (place, value) in fresh.frames.iter().zip(frames).take(depth) {
            place.store(value, Ordering::Relaxed);
        }
        fresh.depth.store(depth, Ordering::Relaxed);
        fresh.frame.store(frame, Ordering::Relaxed);
        fresh.returns_to.store(returns_to, Ordering::Relaxed);
        fresh.parent.store(parent, Ordering::Relaxed);
        fresh.serial.store(serial, Ordering::Release);
        self.serial.store(serial, Ordering::Relaxed);
        serial
    }

    /// Remembers that `site` started a monitor on the granule.
    pub fn note(
        &self,
        granule: usize,
        site: usize,
        frame: usize,
        stack_top: usize,
        size: u32,
        write: bool,
    ) {
        let chain = self.chain(frame, stack_top);
        let entry = &self.recent[place(granule)];
        let rest = u64::from(chain) << 32 | u64::from(write) << 16 | u64::from(size & 0xffff);
        // What stands there already is left whole for those who read it now.
        if entry.granule.load(Ordering::Relaxed) == granule & !7
            && entry.site.load(Ordering::Relaxed) == site
            && entry.rest.load(Ordering::Relaxed) == rest
        {
            return;
        }
        entry.granule.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.site.store(site, Ordering::Relaxed);
        entry.rest.store(rest, Ordering::Relaxed);
        entry.granule.store(granule & !7, Ordering::Release);
    }

    /// Remembers a walk over `lo..hi`.
    pub fn note_walk(
        &self,
        lo: usize,
        hi: usize,
        site: usize,
        frame: usize,
        stack_top: usize,
        write: bool,
    ) {
        let chain = self.chain(frame, stack_top);
        let at = self.walks.load(Ordering::Relaxed);
        let entry = &self.walked[at % WALKS];
        entry.hi.store(0, Ordering::Relaxed);
        entry.lo.store(lo, Ordering::Relaxed);
        entry.site.store(site, Ordering::Relaxed);
        entry.rest.store(
            u64::from(chain) << 32 | u64::from(write) << 16,
            Ordering::Relaxed,
        );
        entry.hi.store(hi, Ordering::Release);
        self.walks.store(at.wrapping_add(1), Ordering::Release);
    }

    fn fill(&self, side: &mut Side, rest: u64) {
        let serial = (rest >> 32) as u32;
        let chain = &self.chains[serial as usize % CHAINS];
        if serial == 0 || chain.serial.load(Ordering::Acquire) != serial {
            return;
        }
        let depth = chain.depth.load(Ordering::Relaxed).min(FRAMES);
        for (place, value) in side.frames.iter_mut().zip(&chain.frames).take(depth) {
            *place = value.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if chain.serial.load(Ordering::Relaxed) == serial {
            side.depth = depth;
        }
    }

    /// Who put a monitor on this address: by granule, or by walk. The owner may
    /// be in the middle of an entry: it is given the time to end it.
    pub fn find_patiently(&self, address: usize, walked: bool, side: &mut Side) -> bool {
        for attempt in 0..ATTEMPTS {
            if self.find(address, walked, side) && side.depth > 0 {
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
    pub fn find(&self, address: usize, walked: bool, side: &mut Side) -> bool {
        if !walked {
            let granule = address & !7;
            let entry = &self.recent[place(granule)];
            if entry.granule.load(Ordering::Acquire) == granule {
                let site = entry.site.load(Ordering::Relaxed);
                let rest = entry.rest.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if entry.granule.load(Ordering::Relaxed) == granule {
                    side.site = site;
                    side.write = rest >> 16 & 1 != 0;
                    side.size = rest as u32 & 0xffff;
                    self.fill(side, rest);
                    return true;
                }
            }
        }
        let end = self.walks.load(Ordering::Acquire);
        for back in 1..=WALKS.min(end) {
            let entry = &self.walked[(end - back) % WALKS];
            let hi = entry.hi.load(Ordering::Acquire);
            let lo = entry.lo.load(Ordering::Relaxed);
            if lo <= address | 63 && address & !7 < hi {
                side.site = entry.site.load(Ordering::Relaxed);
                let rest = entry.rest.load(Ordering::Relaxed);
                side.write = rest >> 16 & 1 != 0;
                side.size = 0;
                self.fill(side, rest);
                return true;
            }
        }
        false
    }
}
