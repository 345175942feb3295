//! Going to a tick, forwards or back, and finding the next or last break- or
//! watchpoint.
//!
//! Snapshots are laid along the way, `spacing` ticks apart; when there are too
//! many, every other one goes and the spacing doubles, so their number stays
//! bounded however long the execution is. A few more lie shortly before places
//! that were gone back to: stepping back again from there is cheap.

use crate::Error;
use crate::ticks::Ticks;
use crate::world::{AllRegisters, Alternative, Hit, ThreadState, Wanted, World};
use race::Moment;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use vm::record::Recording;

/// Ticks between snapshots at first: some twenty milliseconds of execution.
const SPACING: u64 = 32_000_000;

/// A snapshot is a process; its memory is shared until written.
const MOST_SNAPSHOTS: usize = 64;

/// Kept shortly before places that were gone back to.
const MOST_NEAR: usize = 6;

/// How far before such a place.
const NEAR: u64 = 500_000;

/// No request to a world runs longer than this, so that the user can
/// interrupt.
const STRIDE: u64 = 16_000_000;

/// A search looks at this many ticks first, then at ever more, so that what
/// is near is found at once and a breakpoint in a hot loop costs little.
const FIRST_LOOK: u64 = 100_000;
const LONGEST_LOOK: u64 = 64_000_000;

/// How far the execution of changed state is followed.
const CHANGED_LIMIT: u64 = 2_000_000_000;

/// Asked between strides; true makes the way end there.
pub type Interrupt<'a> = &'a mut dyn FnMut() -> bool;

/// What a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought {
    Hit(Hit),
    /// The end (or beginning) of the execution came first.
    Edge,
    Interrupted,
}

struct Snapshots {
    along: BTreeMap<u64, World>,
    near: VecDeque<World>,
    spacing: u64,
    /// The state here was changed by hand: the snapshot cannot be made again.
    changed: Option<u64>,
}

impl Snapshots {
    /// A new world at the last snapshot that is not after `tick`.
    fn before(&mut self, tick: u64) -> Result<World, Error> {
        let along = self.along.range_mut(..=tick).next_back();
        let near = self
            .near
            .iter_mut()
            .filter(|world| world.tick <= tick)
            .max_by_key(|world| world.tick);
        match (along, near) {
            (Some((at, _)), Some(near)) if near.tick > *at => near.fork(),
            (Some((_, along)), _) => along.fork(),
            (None, Some(near)) => near.fork(),
            (None, None) => Err(Error::Lost(std::io::Error::other("the first snapshot"))),
        }
    }

    /// Where the last snapshot lies that is not after `tick`.
    fn last(&self, tick: u64) -> u64 {
        let along = self.along.range(..=tick).next_back().map(|(at, _)| *at);
        let near = self.near.iter().map(|world| world.tick);
        let near = near.filter(|at| *at <= tick).max();
        along.max(near).unwrap_or(0)
    }

    /// Takes `world` to `tick`, laying snapshots. False if interrupted.
    fn advance(
        &mut self,
        world: &mut World,
        tick: u64,
        interrupt: Interrupt,
    ) -> Result<bool, Error> {
        while world.tick < tick {
            let mark = (world.tick / self.spacing + 1) * self.spacing;
            let next = tick.min(mark).min(world.tick + STRIDE);
            world.run_to(next)?;
            if next == mark && !self.along.contains_key(&mark) {
                self.along.insert(mark, world.fork()?);
                self.thin();
            }
            if world.tick < tick && interrupt() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn thin(&mut self) {
        if self.along.len() > MOST_SNAPSHOTS {
            self.spacing *= 2;
            let (spacing, changed) = (self.spacing, self.changed);
            self.along
                .retain(|tick, _| tick % spacing == 0 || Some(*tick) == changed);
        }
    }

    fn keep_near(&mut self, world: World) {
        if self.near.len() >= MOST_NEAR {
            self.near.pop_front();
        }
        self.near.push_back(world);
    }
}

/// An execution that can be travelled.
pub struct Timeline {
    ticks: Rc<Ticks>,
    snapshots: Snapshots,
    current: World,
    /// The current state was changed and its future is not known yet.
    changed: bool,
    /// The auxiliary vector of the program.
    auxv: Vec<u8>,
}

impl Timeline {
    /// The recorded execution of the first process, or another one that leaves
    /// it somewhere.
    pub fn new(recording: &Recording, alternative: Option<Alternative>) -> Result<Self, Error> {
        Self::of_process(recording, 0, alternative)
    }

    /// The same for any process of the recording. It begins where the process
    /// was forked.
    pub fn of_process(
        recording: &Recording,
        process: u32,
        alternative: Option<Alternative>,
    ) -> Result<Self, Error> {
        let mut ticks = Ticks::of_process(recording, process)?;
        if let Some(alternative) = &alternative {
            ticks = ticks.branch(alternative.tick, &alternative.slices);
            ticks.ending = alternative.ending;
        }
        let ticks = Rc::new(ticks);
        let mut current = World::start(recording, process, &ticks, alternative.map(Rc::new))?;
        let first = current.fork()?;
        let auxv = current.auxiliary_vector()?;
        Ok(Timeline {
            ticks,
            snapshots: Snapshots {
                along: BTreeMap::from([(0, first)]),
                near: VecDeque::new(),
                spacing: SPACING,
                changed: None,
            },
            current,
            changed: false,
            auxv,
        })
    }

    pub fn auxv(&self) -> &[u8] {
        &self.auxv
    }

    pub fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    pub fn tick(&self) -> u64 {
        self.current.tick
    }

    /// The last tick there is a state for: before the last instruction.
    pub fn last_tick(&self) -> u64 {
        self.ticks.end().saturating_sub(1)
    }

    /// Goes to `tick`. False if interrupted on the way.
    pub fn seek(&mut self, tick: u64, interrupt: Interrupt) -> Result<bool, Error> {
        self.settle()?;
        let tick = tick.min(self.last_tick());
        let snapshot = self.snapshots.last(tick);
        let here = self.current.tick;
        if here <= tick && snapshot <= here {
            return self.snapshots.advance(&mut self.current, tick, interrupt);
        }
        let mut world = self.snapshots.before(tick)?;
        let back = tick < here;
        if back && tick - world.tick > 2 * NEAR {
            if !self.snapshots.advance(&mut world, tick - NEAR, interrupt)? {
                self.current = world;
                return Ok(false);
            }
            let near = world.fork()?;
            self.snapshots.keep_near(near);
        }
        let reached = self.snapshots.advance(&mut world, tick, interrupt)?;
        self.current = world;
        Ok(reached)
    }

    /// The first hit from the current tick on, below `limit`.
    pub fn next_hit(
        &mut self,
        wanted: &Wanted,
        limit: u64,
        interrupt: Interrupt,
    ) -> Result<Sought, Error> {
        self.settle()?;
        if wanted.is_empty() {
            return Ok(Sought::Edge);
        }
        let end = self.last_tick().min(limit);
        let mut scout = self.current.fork()?;
        let mut look = FIRST_LOOK;
        while scout.tick < end {
            let to = end.min(scout.tick.saturating_add(look));
            if let Some(hit) = scout.search(wanted, to, false, end)? {
                return Ok(Sought::Hit(hit));
            }
            look = (look * 4).min(LONGEST_LOOK);
            if interrupt() {
                self.seek(scout.tick, &mut || false)?;
                return Ok(Sought::Interrupted);
            }
        }
        Ok(Sought::Edge)
    }

    /// The last hit before the current tick, not before `limit`.
    pub fn last_hit(
        &mut self,
        wanted: &Wanted,
        limit: u64,
        interrupt: Interrupt,
    ) -> Result<Sought, Error> {
        self.settle()?;
        if wanted.is_empty() {
            return Ok(Sought::Edge);
        }
        let here = self.current.tick;
        let mut high = here;
        let mut look = FIRST_LOOK;
        while high > limit {
            let low = high.saturating_sub(look).max(limit);
            let mut scout = self.snapshots.before(low)?;
            if !self.snapshots.advance(&mut scout, low, interrupt)? {
                return Ok(Sought::Interrupted);
            }
            if let Some(hit) = scout.search(wanted, high, true, here)? {
                return Ok(Sought::Hit(hit));
            }
            high = low;
            look = (look * 4).min(LONGEST_LOOK);
            if interrupt() {
                self.seek(low, &mut || false)?;
                return Ok(Sought::Interrupted);
            }
        }
        Ok(Sought::Edge)
    }

    /// Where `thread` executes its next instruction.
    pub fn next_of(&mut self, thread: u32) -> Result<Option<u64>, Error> {
        self.settle()?;
        let executed = self.executed(thread)?;
        Ok(executed.and_then(|count| self.ticks.tick(Moment::new(thread, count))))
    }

    /// Where `thread` executed its last instruction.
    pub fn last_of(&mut self, thread: u32) -> Result<Option<u64>, Error> {
        self.settle()?;
        let executed = self.executed(thread)?;
        Ok(executed
            .and_then(|count| count.checked_sub(1))
            .and_then(|count| self.ticks.tick(Moment::new(thread, count))))
    }

    fn executed(&mut self, thread: u32) -> Result<Option<u64>, Error> {
        let threads = self.current.threads()?;
        Ok(threads
            .iter()
            .find(|known| known.id == thread)
            .map(|known| known.executed))
    }

    pub fn step_range(
        &mut self,
        thread: u32,
        range: (u64, u64),
        steps: u64,
        stops: &[u64],
    ) -> Result<bool, Error> {
        self.settle()?;
        let steps = steps.min(self.last_tick().saturating_sub(self.current.tick));
        self.current
            .step_range(thread, range.0, range.1, steps, stops)
    }

    pub fn threads(&mut self) -> Result<Vec<ThreadState>, Error> {
        self.current.threads()
    }

    pub fn registers(&mut self, thread: u32) -> Result<Option<AllRegisters>, Error> {
        self.current.registers(thread)
    }

    pub fn memory(&mut self, address: u64, length: usize) -> Result<Vec<u8>, Error> {
        self.current.memory(address, length)
    }

    /// Changes memory of the current state. From here on the execution goes
    /// its own way; what lies before stays as it was.
    pub fn set_memory(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.current.set_memory(address, bytes)?;
        self.changed = true;
        Ok(())
    }

    pub fn set_registers(&mut self, thread: u32, registers: AllRegisters) -> Result<(), Error> {
        self.current.set_registers(thread, registers)?;
        self.changed = true;
        Ok(())
    }

    /// After changes: finds out what the changed state leads to.
    fn settle(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let here = self.current.tick;
        let slices = self.current.fork()?.scout(CHANGED_LIMIT)?;
        self.current.follow(&slices)?;
        self.ticks = Rc::new(self.ticks.branch(here, &slices));
        self.snapshots.along.retain(|tick, _| *tick < here);
        self.snapshots.near.retain(|world| world.tick < here);
        let changed = self.current.fork()?;
        self.snapshots.along.insert(here, changed);
        self.snapshots.changed = Some(here);
        Ok(())
    }
}
