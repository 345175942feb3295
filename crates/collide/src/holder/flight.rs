//! A sample in flight: one thread held right before its access while others
//! may collide with it (paper 002, sections 3.2.1 to 3.2.3).
//!
//! Data breakpoints are armed before the first value is read, so that a
//! change between the two reads without a hit can only come from where
//! breakpoints do not see: another mapping of the same memory, another
//! process, the kernel or a device.
//!
//! A stop costs several times what a data breakpoint does. So a thread that is
//! held at one site is also watched for the next ones, as far as the
//! instructions up to there neither branch nor synchronise nor change the
//! address: whoever conflicts with that access now races with it as well.

use super::ptrace::{self, Tid};
use super::space::Planted;
use super::watch::{self, Hit, Trap};
use super::{Arrival, Holder, Stop, place, purse, task};
use crate::instruction::{self, Direction, Operand};
use crate::wire::{Catch, Ended, Event, Opponent, Outcome, Pick, Purpose, RegisterFile};
use std::time::{Duration, Instant};

/// In long waits the holder looks this often whether anybody makes progress.
const LOOK: Duration = Duration::from_millis(1);
/// Holds up to this long are over before a thread that sleeps is awake.
const SHORT_HOLD: Duration = Duration::from_micros(100);
/// Holds longer than the short one are at least this long: the holder sleeps
/// through them, and going to sleep and waking up costs as much as a short
/// hold.
const LONGER: Duration = Duration::from_micros(250);
/// CPU time below which a process counts as standing still between two looks.
const STANDSTILL: u64 = 10_000;
/// Bytes of stack that go with a catch.
const STACK_BYTES: usize = 65536;
/// With more threads than this it pays to know who is on a CPU, and no more are
/// watched in a short hold.
const MANY: usize = 8;
/// Pieces of an access that are watched in a short hold, which of them is
/// chance: each is two interrupts of every CPU that the program is on, and
/// whoever makes the same access runs into any of them.
const PIECES: usize = 2;
/// Debug registers that what was foretold leaves to another thread that may run
/// into a breakpoint meanwhile.
const SPARE: usize = 1;
/// Threads that begin to be followed in one turn: some tens of microseconds.
const AT_A_TIME: usize = 2;
/// Threads that begin to be followed after a stop.
const AFTER_A_STOP: usize = 4;
const NO_ROOM: &str = "the limits of open files and locked memory leave no room for data breakpoints of all threads (see `ulimit -n` and `ulimit -l`): some threads were not watched at times";
/// Hits kept of one flight: one per opposing site is what is reported.
const MOST_HITS: usize = 4;

/// Whoever may collide with a held thread.
struct Opponents {
    /// The threads that get data breakpoints of their own, and their spaces;
    /// none where breakpoints are per CPU.
    threads: Vec<(Tid, u32)>,
    /// Pieces of an access that are watched at most.
    pieces: usize,
    /// They wait for the CPU that the holder is on.
    wait_for_holder: bool,
    /// Others run that have no data breakpoints.
    left_out: bool,
}

pub struct Flight {
    pub tid: Tid,
    space: u32,
    pick: Pick,
    /// The access it is held at, and those of the next that are known.
    watched: Vec<Watched>,
    begun: Instant,
    /// Everything was armed.
    armed: Instant,
    deadline: Instant,
    /// The hold that was granted, if it is longer than the short one.
    longer: Option<Duration>,
    look: Instant,
    cpu: u64,
    /// The CPU the thread was on, where there are few of them.
    stood_on: Option<usize>,
    /// Those who may collide run while the holder sleeps.
    pub naps: bool,
    /// Threads of the program run that are not watched.
    left_out: bool,
    stalled: bool,
}

/// One access that others may collide with.
struct Watched {
    site: u32,
    /// The thread's registers, as of its instruction.
    registers: RegisterFile,
    operand: Operand,
    before: Vec<u8>,
    slots: Vec<usize>,
    /// Spaces that see the same memory and where they have it, the thread's
    /// own first.
    views: Vec<(u32, u64)>,
    hits: Vec<Hit>,
}

impl Watched {
    /// A breakpoint of this access was hit, by a thread that sees the memory.
    fn concerns(&self, hit: &Hit, space: u32) -> bool {
        self.slots.contains(&hit.slot)
            && self.views.iter().any(|(id, address)| {
                *id == space && (*address..*address + self.operand.size).contains(&hit.address)
            })
    }

    fn overlaps(&self, other: &Operand) -> bool {
        self.operand.address < other.address.saturating_add(other.size)
            && other.address < self.operand.address.saturating_add(self.operand.size)
    }
}

impl Flight {
    /// When the holder has to look at it next.
    pub fn next_look(&self) -> Instant {
        if self.caught() {
            self.begun
        } else {
            self.deadline.min(self.look)
        }
    }

    fn caught(&self) -> bool {
        self.watched.iter().any(|watched| !watched.hits.is_empty())
    }

    fn slots(&self) -> Vec<usize> {
        self.watched
            .iter()
            .flat_map(|watched| watched.slots.iter().copied())
            .collect()
    }

    /// The access that a hit of another thread collides with.
    fn concerned(&mut self, hit: &Hit, space: u32) -> Option<&mut Watched> {
        if self.tid == hit.tid {
            return None;
        }
        self.watched
            .iter_mut()
            .find(|watched| watched.concerns(hit, space))
    }
}

impl Holder {
    pub(super) fn begin_flight(&mut self, arrival: Arrival) {
        let Arrival {
            tid,
            space,
            planted,
            registers,
            now,
        } = arrival;
        let pick = planted.pick;
        self.learn_abilities();
        let file = RegisterFile::from(&registers);
        match self.prepare_flight(tid, space, &planted, &file, now) {
            Some(flight) => {
                self.count_held(Instant::now());
                self.flights.push(flight);
            }
            None => {
                self.run_on(tid, 0);
                let stop = Stop::of(now.elapsed());
                self.note_stop(&pick, Outcome::Passed, stop);
                self.plant_following();
            }
        }
    }

    fn prepare_flight(
        &mut self,
        tid: Tid,
        space_id: u32,
        planted: &Planted,
        file: &RegisterFile,
        now: Instant,
    ) -> Option<Flight> {
        let pick = planted.pick;
        let code = &pick.bytes[..usize::from(pick.length)];
        let operand = self.operand(code, pick.frame, file)?;
        let views = self.views(space_id, &operand, now)?;
        // Time in which somebody was held does not count: else waits would
        // make code look rare, and so grow.
        self.count_held(now);
        let held = Duration::from_nanos(self.held - planted.held);
        let stood = now.duration_since(planted.since).saturating_sub(held);
        let wait = self.delay(&pick, stood, now);
        if wait.is_zero() {
            return None;
        }
        let others = self.others(tid, wait);
        self.to_follow = AFTER_A_STOP;
        let mut watched = vec![self.watch(&others, pick.site, *file, operand, views)?];
        let (naps, left_out) = (others.wait_for_holder, others.left_out);
        // They take one register each: there are few.
        let others = Opponents {
            pieces: 1,
            ..others
        };
        for later in pick.foretold.iter().flatten() {
            let registers = RegisterFile {
                rip: later.address,
                ..*file
            };
            let code = &later.bytes[..usize::from(later.length)];
            if let Some(operand) = self.operand(code, pick.frame, &registers)
                && !watched.iter().any(|other| other.overlaps(&operand))
                && self.watch.free(trap(&operand)) > 0
                && self.watch.unused() > SPARE
                && let Some(views) = self.views(space_id, &operand, now)
            {
                watched.extend(self.watch(&others, later.site, registers, operand, views));
            }
        }
        let group = self.tasks.get(&tid).map_or(tid, |task| task.group);
        let armed = Instant::now();
        Some(Flight {
            tid,
            space: space_id,
            pick,
            watched,
            begun: now,
            armed,
            deadline: armed + wait,
            longer: Some(wait).filter(|wait| *wait >= LONGER),
            look: armed + LOOK,
            cpu: if wait > LOOK {
                task::cpu_time(group)
            } else {
                0
            },
            stood_on: self.stood_on(tid),
            naps,
            left_out,
            stalled: false,
        })
    }

    /// An operand of the instruction, any if there are several.
    fn operand(&mut self, code: &[u8], frame: bool, file: &RegisterFile) -> Option<Operand> {
        let instruction = instruction::decode(code, file.rip)?;
        let operands = self.analyser.operands(&instruction, file, frame);
        if operands.is_empty() {
            return None;
        }
        let chosen = (self.random() % operands.len() as u64) as usize;
        Some(operands[chosen])
    }

    /// The spaces that see an operand of a thread of this one, and where; none
    /// if it is no memory that can be watched.
    fn views(&mut self, space_id: u32, operand: &Operand, now: Instant) -> Option<Vec<(u32, u64)>> {
        let mapping = self
            .spaces
            .get_mut(&space_id)?
            .mapping(operand.address, now)?;
        if mapping.is_device() {
            return None;
        }
        let mut views = vec![(space_id, operand.address)];
        if mapping.shared {
            for (id, space) in &mut self.spaces {
                if *id != space_id
                    && let Some(address) = space.shared_address(&mapping, operand.address, now)
                {
                    views.push((*id, address));
                }
            }
        }
        Some(views)
    }

    fn watch(
        &mut self,
        others: &Opponents,
        site: u32,
        registers: RegisterFile,
        operand: Operand,
        views: Vec<(u32, u64)>,
    ) -> Option<Watched> {
        let slots = self.arm(others, &operand, &views);
        self.gather();
        let size = operand.size as usize;
        let space = views.first().and_then(|(id, _)| self.spaces.get(id));
        let before = space.map_or_else(Vec::new, |space| space.read(operand.address, size));
        if before.len() != size {
            // The access is about to fault: the program's own affair.
            self.free_slots(&slots);
            return None;
        }
        Some(Watched {
            site,
            registers,
            operand,
            before,
            slots,
            views,
            hits: Vec::new(),
        })
    }

    /// How long to hold a thread: a random part of the longest time allowed.
    /// That is what the front end grants the site, but no more than the set
    /// share of the time for which its breakpoint stood: a site that runs
    /// once a second may be held for a thousand times longer than one that
    /// runs once a millisecond, at the same cost to the program. The share is
    /// kept on average (`purse::length`), and what is longer than the short hold
    /// has to be granted.
    fn delay(&mut self, pick: &Pick, stood: Duration, now: Instant) -> Duration {
        let granted = Duration::from_micros(u64::from(pick.delay));
        let earned = stood * self.share / 1_000_000;
        let part = 256 + (self.random() % 768) as u32;
        let mut dice = || (self.random() % 1024) as f64 / 1024.0;
        let (luck, dice) = (dice(), dice());
        let wish = purse::length(granted, earned, self.short, luck) * part / 1024;
        if wish <= self.short {
            return wish;
        }
        // A sweep is to go on.
        if pick.purpose != Purpose::Sweep && wish >= LONGER && self.purse.ask(wish, dice, now) {
            return wish;
        }
        self.short * part / 1024
    }

    /// Who is watched while this thread is held. For a short hold only those
    /// that are on a CPU, as far as that is known: one that sleeps would have to
    /// wake up and make its access in some tens of microseconds, and setting an
    /// event takes as long as the hold. If it is not known who of many is on a
    /// CPU, chance decides.
    fn others(&mut self, held: Tid, wait: Duration) -> Opponents {
        if wait > SHORT_HOLD {
            let others = self.tasks.iter().filter(|(other, _)| **other != held);
            return Opponents {
                threads: others.map(|(other, task)| (*other, task.space)).collect(),
                pieces: watch::SLOTS,
                wait_for_holder: false,
                left_out: false,
            };
        }
        let mut others = Opponents {
            threads: Vec::new(),
            pieces: PIECES,
            wait_for_holder: false,
            left_out: false,
        };
        if self.tasks.len() <= MANY {
            self.who_runs(held, &mut others);
        } else if self.watch.scope() != watch::Scope::PerCpu {
            self.who_of_many_runs(held, &mut others);
            while others.threads.len() > MANY {
                let left_out = self.random() % others.threads.len() as u64;
                others.threads.swap_remove(left_out as usize);
            }
        }
        others
    }

    /// Who waits for the CPU that the holder is on, and gets it while the holder
    /// sleeps: to set an event of one of those takes no interrupt. If there is
    /// nobody, who is on another CPU.
    fn who_runs(&mut self, held: Tid, others: &mut Opponents) {
        let here = place::own_cpu();
        let mut elsewhere = Vec::new();
        for (other, task) in self.tasks.iter_mut().filter(|(other, _)| **other != held) {
            let thread = (*other, task.space);
            match task.placed.look(*other) {
                Some(place) if !place.runs => {}
                Some(place) if Some(place.cpu) == here => others.threads.push(thread),
                None if task.call.sleeps() => {}
                _ => elsewhere.push(thread),
            }
        }
        others.wait_for_holder = !others.threads.is_empty();
        if others.wait_for_holder {
            others.left_out = !elsewhere.is_empty();
        } else {
            others.threads = elsewhere;
        }
    }

    /// Who is on a CPU or may be.
    fn who_of_many_runs(&mut self, held: Tid, others: &mut Opponents) {
        for (other, task) in self.tasks.iter().filter(|(other, _)| **other != held) {
            if self
                .running
                .is_on(*other, || task.call.blocks())
                .unwrap_or_else(|| !task.call.sleeps())
            {
                others.threads.push((*other, task.space));
            }
        }
    }

    /// There are threads whose turns are to be followed.
    pub(super) fn has_to_follow(&self) -> bool {
        self.to_follow > 0
            && self.tasks.len() > MANY
            && self.running.count() < self.tasks.len()
            && self.flights.is_empty()
            && self.can_follow
    }

    /// Begins to follow the turns of some threads.
    pub(super) fn follow_threads(&mut self) {
        if !self.has_to_follow() {
            return;
        }
        let fresh: Vec<Tid> = self
            .tasks
            .keys()
            .copied()
            .filter(|tid| !self.running.follows(*tid))
            .take(AT_A_TIME.min(self.to_follow))
            .collect();
        self.to_follow -= fresh.len();
        for tid in fresh {
            self.running.follow(tid);
        }
    }

    /// Arms data breakpoints, as many as there are registers for: on every CPU,
    /// or in the `others`.
    fn arm(&mut self, others: &Opponents, operand: &Operand, views: &[(u32, u64)]) -> Vec<usize> {
        let trap = trap(operand);
        let per_cpu = self.watch.scope() == watch::Scope::PerCpu;
        let mut addresses: Vec<u64> = views.iter().map(|(_, address)| *address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut pieces = watch::pieces(operand.address, operand.size);
        let most = self.watch.free(trap).min(others.pieces);
        while pieces.len() > most {
            let left_out = self.random() % pieces.len() as u64;
            pieces.swap_remove(left_out as usize);
        }
        let mut slots = Vec::new();
        for piece in pieces {
            let offset = piece.address - operand.address;
            if per_cpu {
                for address in &addresses {
                    let at = address + offset;
                    self.armed += self.watch.cpus().saturating_sub(1) as u64;
                    slots.extend(self.watch.arm(trap, piece.length, &[], at));
                }
            } else {
                let threads: Vec<(Tid, u64)> = others
                    .threads
                    .iter()
                    .filter_map(|(other, space)| {
                        let (_, address) = views.iter().find(|(id, _)| id == space)?;
                        Some((*other, address + offset))
                    })
                    .collect();
                if !others.wait_for_holder {
                    self.armed += threads.len() as u64;
                }
                slots.extend(self.watch.arm(trap, piece.length, &threads, 0));
            }
        }
        if self.watch.lacks_room() && !self.notes.iter().any(|note| note == NO_ROOM) {
            self.notes.push(NO_ROOM.to_string());
        }
        slots
    }

    fn free_slots(&mut self, slots: &[usize]) {
        for slot in slots {
            self.watch.disarm(*slot);
        }
        self.collect_hits();
        for slot in slots {
            self.watch.release(*slot);
        }
    }

    /// Moves hits from the rings to the flights they belong to.
    pub(super) fn collect_hits(&mut self) {
        if !self.watch.any_hit() {
            return;
        }
        let mut hits = Vec::new();
        self.watch.drain(|hit| hits.push(hit));
        for hit in hits {
            let space = self
                .tasks
                .get(&hit.tid)
                .or_else(|| self.tasks.values().find(|task| task.group == hit.pid))
                .map(|task| task.space);
            let Some(space) = space else {
                // Another process of the machine with something at the same
                // address (per-CPU breakpoints see all of them).
                continue;
            };
            if let Some(watched) = self
                .flights
                .iter_mut()
                .find_map(|flight| flight.concerned(&hit, space))
                && watched.hits.len() < MOST_HITS
                && !watched
                    .hits
                    .iter()
                    .any(|other| other.tid == hit.tid && other.registers[8] == hit.registers[8])
            {
                watched.hits.push(hit);
            }
        }
    }

    pub(super) fn end_flights(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.flights.len() {
            if self.flights[at].next_look() > now {
                at += 1;
                continue;
            }
            let flight = &self.flights[at];
            if !flight.caught() && flight.deadline > now && !self.standstill(at, now) {
                at += 1;
                continue;
            }
            self.count_held(now);
            let flight = self.flights.swap_remove(at);
            self.land(flight);
        }
    }

    pub(super) fn end_all_flights(&mut self) {
        while let Some(flight) = self.flights.pop() {
            self.land(flight);
        }
    }

    /// Whether everybody waits for the held thread. Threads that sleep for a
    /// time or wait for input are not held up by it.
    fn standstill(&mut self, at: usize, now: Instant) -> bool {
        let flight = &self.flights[at];
        let tid = flight.tid;
        let group = self.tasks.get(&tid).map_or(tid, |task| task.group);
        let cpu = task::cpu_time(group);
        let still = cpu.saturating_sub(flight.cpu) < STANDSTILL;
        let held_up = still
            && self
                .tasks
                .iter()
                .filter(|(other, task)| task.group == group && **other != tid)
                .all(|(_, task)| task.call.waits_for_a_thread());
        let flight = &mut self.flights[at];
        flight.cpu = cpu;
        flight.look = now + LOOK;
        flight.stalled = held_up;
        held_up
    }

    /// Flights of threads that have gone: nothing to resume, nothing to
    /// report.
    pub(super) fn drop_flights(&mut self, gone: impl Fn(Tid) -> bool) {
        self.arrivals.retain(|arrival| !gone(arrival.tid));
        let mut at = 0;
        while at < self.flights.len() {
            if gone(self.flights[at].tid) {
                let flight = self.flights.swap_remove(at);
                self.free_slots(&flight.slots());
            } else {
                at += 1;
            }
        }
    }

    /// Ends a flight: read again, disarm, report, let the thread run on.
    fn land(&mut self, flight: Flight) {
        let slots = flight.slots();
        let tid = flight.tid;
        self.flights.push(flight);
        self.collect_hits();
        let Some(flight) = self.flights.pop() else {
            return;
        };
        // Read while the breakpoints are still armed: a change without a hit
        // is one that they cannot see.
        let space = self.spaces.get(&flight.space);
        let after: Vec<Vec<u8>> = flight
            .watched
            .iter()
            .map(|watched| {
                let Operand { address, size, .. } = watched.operand;
                space.map_or_else(Vec::new, |space| space.read(address, size as usize))
            })
            .collect();
        let unchanged = flight
            .watched
            .iter()
            .zip(&after)
            .all(|(watched, after)| watched.before == *after);
        let per_cpu = self.watch.scope() == watch::Scope::PerCpu;
        if !per_cpu && unchanged && !flight.caught() {
            // Nothing happened. The thread has no breakpoint of its own and
            // need not wait until those of the others are gone. What they
            // catch from here on is no conflict: nobody is asked for it, as
            // the flight is over when the rings are read.
            self.make_way(&flight);
            self.run_on(tid, 0);
            self.note_landing(&flight);
            self.free_slots(&slots);
            self.plant_following();
            return;
        }
        for slot in &slots {
            self.watch.disarm(*slot);
        }
        self.flights.push(flight);
        self.collect_hits();
        let Some(flight) = self.flights.pop() else {
            return;
        };
        for slot in &slots {
            self.watch.release(*slot);
        }
        for (watched, after) in flight.watched.iter().zip(after) {
            // Who has changed it unseen may be one that was left out: another
            // time both are seen.
            let changed = after.len() == watched.before.len()
                && after != watched.before
                && (per_cpu || !flight.left_out);
            if changed || !watched.hits.is_empty() {
                self.caught(&flight, watched, after);
            }
        }
        self.make_way(&flight);
        self.run_on(tid, 0);
        self.note_landing(&flight);
        self.plant_following();
    }

    /// The CPU that a held thread was on, where there are few threads.
    fn stood_on(&mut self, held: Tid) -> Option<usize> {
        if self.tasks.len() > MANY {
            return None;
        }
        let place = self.tasks.get_mut(&held)?.placed.look(held)?;
        Some(place.cpu)
    }

    /// Goes to the CPU of a thread that is about to be resumed, if another
    /// thread of the program has taken it.
    fn make_way(&mut self, flight: &Flight) {
        if let Some(cpu) = flight.stood_on
            && place::own_cpu() != Some(cpu)
            && self.others_are_on(cpu, flight.tid)
        {
            place::go_to(cpu);
        }
    }

    fn others_are_on(&mut self, cpu: usize, held: Tid) -> bool {
        let taken = place::Place { runs: true, cpu };
        self.tasks
            .iter_mut()
            .any(|(other, task)| *other != held && task.placed.look(*other) == Some(taken))
    }

    fn note_landing(&mut self, flight: &Flight) {
        let now = Instant::now();
        if flight.longer.is_some() {
            let left = flight.deadline.saturating_duration_since(now);
            self.purse.give_back(left);
            // It has cost what it took, not what was asked for.
            self.purse
                .spend(now.saturating_duration_since(flight.deadline));
        }
        let stopped = now.duration_since(flight.begun);
        let waited = flight
            .longer
            .map_or(Duration::ZERO, |wait| wait.min(stopped));
        self.note_stop(
            &flight.pick,
            Outcome::Sampled,
            Stop {
                stopped,
                waited,
                napped: if flight.naps {
                    flight.deadline - flight.armed
                } else {
                    Duration::ZERO
                },
                stalled: flight.stalled,
            },
        );
        for foretold in &flight.watched[1..] {
            self.ended.push(Ended {
                site: foretold.site,
                space: flight.space,
                purpose: flight.pick.purpose,
                outcome: Outcome::Foretold,
                stopped: 0,
                waited: 0,
                napped: 0,
                stalled: false,
            });
        }
    }

    fn caught(&mut self, flight: &Flight, watched: &Watched, after: Vec<u8>) {
        let Some(space) = self.spaces.get(&flight.space) else {
            return;
        };
        let opponents: Vec<Opponent> = watched
            .hits
            .iter()
            .map(|hit| self.opponent(hit, flight.space))
            .collect();
        let stack = space.read(watched.registers.rsp(), STACK_BYTES);
        let pid = self
            .tasks
            .get(&flight.tid)
            .map_or(flight.tid, |task| task.group);
        let core = self
            .core_folder
            .take()
            .and_then(|folder| self.write_core(&folder, pid, flight.tid, &opponents));
        let catch = Catch {
            site: watched.site,
            space: flight.space,
            pid,
            tid: flight.tid,
            name: task::name(flight.tid),
            registers: watched.registers,
            stack,
            address: watched.operand.address,
            size: watched.operand.size as u32,
            write: watched.operand.direction == Direction::Write,
            before: watched.before.clone(),
            after,
            opponents,
            core,
        };
        self.link.send(&Event::Caught(Box::new(catch)));
    }

    fn opponent(&self, hit: &Hit, space: u32) -> Opponent {
        let r = &hit.registers;
        let registers = RegisterFile {
            // perf: ax bx cx dx si di bp sp ip flags r8 …
            general: [
                r[0], r[2], r[3], r[1], r[7], r[6], r[4], r[5], r[10], r[11], r[12], r[13], r[14],
                r[15], r[16], r[17],
            ],
            rip: r[8],
            flags: r[9],
        };
        let space = self.tasks.get(&hit.tid).map_or(space, |task| task.space);
        let mut stack = hit.stack.clone();
        // What the kernel did not copy is read from the running thread:
        // frames that far out rarely change in the microseconds since.
        if let Some(space) = self.spaces.get(&space)
            && stack.len() >= watch::STACK_BYTES as usize / 2
        {
            let from = registers.rsp() + stack.len() as u64;
            stack.extend(space.read(from, STACK_BYTES - stack.len().min(STACK_BYTES)));
        }
        Opponent {
            pid: hit.pid,
            tid: hit.tid,
            name: task::name(hit.tid),
            registers,
            in_kernel: hit.in_kernel(),
            stack,
        }
    }

    fn write_core(
        &mut self,
        folder: &str,
        pid: Tid,
        held: Tid,
        opponents: &[Opponent],
    ) -> Option<String> {
        let path = format!("{folder}/core.{pid}");
        let threads: Vec<Tid> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.group == pid)
            .map(|(tid, _)| *tid)
            .collect();
        let stopped = self.stop_others(&threads, held);
        let written = super::core_dump::write(&path, pid, held, &threads, opponents);
        for (tid, signal) in stopped {
            let _ = ptrace::resume(tid, signal);
        }
        match written {
            Ok(()) => Some(path),
            Err(error) => {
                self.notes.push(format!("core file {path}: {error}"));
                None
            }
        }
    }

    /// Stops every other thread of the process for the moment of a core dump;
    /// says with which signal each is to be resumed.
    fn stop_others(&mut self, threads: &[Tid], held: Tid) -> Vec<(Tid, i32)> {
        let held_too: Vec<Tid> = self.flights.iter().map(|flight| flight.tid).collect();
        let mut waiting: Vec<Tid> = threads
            .iter()
            .copied()
            .filter(|tid| *tid != held && !held_too.contains(tid))
            .filter(|tid| ptrace::interrupt(*tid).is_ok())
            .collect();
        let mut stopped = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(1);
        while !waiting.is_empty() && Instant::now() < deadline {
            let Some(news) = self.next_news() else {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            };
            let tid = news.tid;
            let at = waiting.iter().position(|other| *other == tid);
            match (at, news.change) {
                (Some(at), ptrace::Change::Event(ptrace::EVENT_STOP, libc::SIGTRAP)) => {
                    waiting.swap_remove(at);
                    stopped.push((tid, 0));
                }
                _ => self.changed(news),
            }
        }
        stopped
    }
}

/// What a data breakpoint has to catch to see conflicts with an access.
fn trap(operand: &Operand) -> Trap {
    match operand.direction {
        Direction::Read => Trap::Writes,
        Direction::Write => Trap::ReadsAndWrites,
    }
}
