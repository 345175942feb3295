//! Which program locations get a breakpoint next (paper 002, section 3.1).
//!
//! The paper picks uniformly from the whole sampling set and adds breakpoints
//! until enough of them fire. In a program with large libraries nearly all
//! locations are never run, so here a first sweep plants every location once
//! for a moment, to learn which are live; from then on the
//! samples are picked uniformly from the live ones. The others are not
//! forgotten: a part of them stands at any time, in turns, and one that fires
//! is a sample like any other and live from then on.
//!
//! A sweep plants only the last site of each run, sites that follow each
//! other without a jump or call between: whoever enters the run comes past
//! it. What it says holds for the whole run. A jump into the middle makes the
//! sites before it look live; they go cold again when they do not fire.
//!
//! Equal preference for rarely and often executed locations follows as in the
//! paper: a picked location holds its breakpoint until it is executed.

use crate::sampling_set::CodeSite;
use crate::wire::{Ended, ForetoldSite, MOST_FORETOLD, Outcome, Pick, Purpose};
use std::collections::HashMap;
use std::ops::Range;

/// Microseconds a breakpoint stands during the first sweep: code that runs 25
/// times a second is found by it.
const SWEEP_DWELL: u32 = 40_000;
/// Microseconds a breakpoint stands at code not seen to run yet.
const COLD_DWELL: u32 = 6_000_000;
/// The same for live code before it is given up for this time.
const LIVE_DWELL: u32 = 4_000_000;
/// Breakpoints that may stand at cold code at one time.
const COLD_STANDING: usize = 2048;
/// Breakpoints of the first sweep that may stand at one time.
const SWEEP_STANDING: usize = 2048;
/// Live breakpoints that may stand or wait at one time.
const LIVE_STANDING: usize = 768;
/// Live code whose breakpoint has expired this often in a row is cold again.
const EXPIRIES: u8 = 3;
/// Picks of one live site that may wait at one time.
const QUEUED: u16 = 64;
/// Neighbouring sites that are swept together: the holder reads their code at
/// one go.
const CHUNK: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Temperature {
    Unknown,
    Cold,
    Live,
    /// Not to be sampled: it turned out to synchronise.
    Banned,
}

struct Site {
    code: CodeSite,
    temperature: Temperature,
    /// Picks that have not ended yet.
    standing: u16,
    expiries: u8,
    /// Microseconds a thread may be held here.
    delay: u32,
    /// Place in `Sampler::live`.
    live_at: u32,
    samples: u32,
}

/// One module in one address space.
struct Instance {
    space: u32,
    bias: u64,
}

struct ModuleSites {
    sites: Range<u32>,
    instances: Vec<Instance>,
    /// Sites in chunks of neighbours, the chunks in random order, for sweeps.
    order: Vec<u32>,
    cursor: usize,
    /// The first sweep has been through all of it.
    swept: bool,
    /// The program itself and its own libraries are swept before the
    /// system's.
    rank: u8,
}

/// Counts for the status line and the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub sites: usize,
    pub live: usize,
    pub sampled_sites: usize,
    pub samples: u64,
    /// Times a breakpoint fired, samples and sweeps together.
    pub fired: u64,
    pub swept: usize,
}

pub struct Sampler {
    sites: Vec<Site>,
    modules: Vec<ModuleSites>,
    by_key: HashMap<String, usize>,
    live: Vec<u32>,
    favoured: Vec<u32>,
    sweeping: bool,
    standing: [usize; 3],
    counts: Counts,
    longest_delay: u32,
    short_delay: u32,
    random: u64,
}

impl Sampler {
    /// `longest_delay` and `short_delay` in microseconds.
    pub fn new(longest_delay: u32, short_delay: u32, seed: u64) -> Sampler {
        Sampler {
            sites: Vec::new(),
            modules: Vec::new(),
            by_key: HashMap::new(),
            live: Vec::new(),
            favoured: Vec::new(),
            sweeping: true,
            standing: [0; 3],
            counts: Counts::default(),
            longest_delay,
            short_delay: short_delay.min(longest_delay),
            random: seed | 1,
        }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn knows(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    /// Adds the sampling set of a module, by any name that identifies its
    /// file. `favoured` says which of its sites are to be preferred.
    pub fn add_module(
        &mut self,
        key: &str,
        rank: u8,
        set: Vec<CodeSite>,
        favoured: impl Fn(&CodeSite) -> bool,
    ) {
        let first = self.sites.len() as u32;
        for code in set {
            if favoured(&code) {
                self.favoured.push(self.sites.len() as u32);
            }
            self.sites.push(Site {
                code,
                temperature: Temperature::Unknown,
                standing: 0,
                expiries: 0,
                delay: self.longest_delay,
                live_at: u32::MAX,
                samples: 0,
            });
        }
        let end = self.sites.len() as u32;
        let mut chunks: Vec<u32> = (first..end).step_by(CHUNK).collect();
        for at in (1..chunks.len()).rev() {
            let other = (self.random() % (at as u64 + 1)) as usize;
            chunks.swap(at, other);
        }
        let order = chunks
            .into_iter()
            .flat_map(|chunk| chunk..end.min(chunk + CHUNK as u32))
            .collect();
        self.by_key.insert(key.to_string(), self.modules.len());
        self.modules.push(ModuleSites {
            sites: first..end,
            instances: Vec::new(),
            order,
            cursor: 0,
            swept: false,
            rank,
        });
        self.counts.sites = self.sites.len();
        self.sweeping = true;
    }

    /// Says where the modules of an address space lie now.
    pub fn set_instances(&mut self, space: u32, loaded: &[(String, u64)]) {
        self.drop_space(space);
        for (key, bias) in loaded {
            if let Some(module) = self.by_key.get(key) {
                self.modules[*module]
                    .instances
                    .push(Instance { space, bias: *bias });
            }
        }
    }

    pub fn drop_space(&mut self, space: u32) {
        for module in &mut self.modules {
            module.instances.retain(|instance| instance.space != space);
        }
    }

    fn module_of(&self, site: u32) -> usize {
        self.modules
            .partition_point(|module| module.sites.end <= site)
    }

    /// The sites that follow each other without a jump, this one among them.
    fn run(&self, site: u32) -> Range<u32> {
        let falls_through = |site: u32| {
            self.sites
                .get(site as usize)
                .is_some_and(|site| site.code.falls_through)
        };
        let mut run = site..site + 1;
        while run.start > 0 && falls_through(run.start - 1) {
            run.start -= 1;
        }
        while falls_through(run.end - 1) {
            run.end += 1;
        }
        run
    }

    /// A cold site that may be seen to run again: the last of its run, or one
    /// whose run is live.
    fn may_stand_cold(&self, site: u32) -> bool {
        let state = &self.sites[site as usize];
        state.temperature == Temperature::Cold
            && (!state.code.falls_through
                || self.sites[self.run(site).end as usize - 1].temperature == Temperature::Live)
    }

    fn pick(&mut self, site: u32, purpose: Purpose) -> Option<Pick> {
        let module = self.module_of(site);
        let count = self.modules.get(module)?.instances.len();
        if count == 0 {
            return None;
        }
        let which = (self.random() % count as u64) as usize;
        let instance = &self.modules[module].instances[which];
        let (space, bias) = (instance.space, instance.bias);
        let wanted = site;
        let site = match purpose {
            // By chance: it may also be reached by a jump to it.
            Purpose::Live if self.random().is_multiple_of(2) => self.foretelling(site),
            _ => site,
        };
        let foretold = self.foretold(site, wanted, bias);
        let state = &mut self.sites[site as usize];
        // Live picks may wait in line for one site: a hot one is free again
        // before the news of it arrive here.
        let most = if purpose == Purpose::Live { QUEUED } else { 1 };
        if state.standing >= most || state.temperature == Temperature::Banned {
            return None;
        }
        state.standing += 1;
        self.standing[purpose as usize] += 1;
        Some(Pick {
            site,
            space,
            address: state.code.address.wrapping_add(bias),
            purpose,
            frame: state.code.frame,
            dwell: match purpose {
                Purpose::Sweep => SWEEP_DWELL,
                Purpose::Live => LIVE_DWELL,
                Purpose::Cold => COLD_DWELL,
            },
            delay: state.delay,
            length: state.code.length,
            bytes: state.code.bytes,
            foretold,
        })
    }

    /// The first live site from which this one can be watched.
    fn foretelling(&self, site: u32) -> u32 {
        let before = |back: u32| &self.sites[(site - back) as usize];
        (1..=u8::BITS.min(site))
            .take_while(|back| before(*back).code.falls_through)
            .filter(|back| before(*back).code.foretells & 1 << (back - 1) != 0)
            .filter(|back| before(*back).temperature == Temperature::Live)
            .last()
            .map_or(site, |back| site - back)
    }

    /// The sites that can be watched from this one, `wanted` first.
    fn foretold(&self, site: u32, wanted: u32, bias: u64) -> [Option<ForetoldSite>; MOST_FORETOLD] {
        let foretells = self.sites[site as usize].code.foretells;
        let told = (0..u8::BITS)
            .filter(|ahead| foretells & 1 << ahead != 0)
            .map(|ahead| site + 1 + ahead);
        let first = told.clone().filter(|later| *later == wanted);
        let mut told = first
            .chain(told.filter(|later| *later != wanted))
            .filter_map(|later| {
                let state = self.sites.get(later as usize)?;
                (state.temperature != Temperature::Banned).then_some(ForetoldSite {
                    site: later,
                    address: state.code.address.wrapping_add(bias),
                    length: state.code.length,
                    bytes: state.code.bytes,
                })
            });
        std::array::from_fn(|_| told.next())
    }

    /// Live picks, `count` of them if there are as many. Every second one is
    /// a favoured site if there are any.
    pub fn live_picks(&mut self, count: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        let room = LIVE_STANDING.saturating_sub(self.standing[Purpose::Live as usize]);
        let mut attempts = 0;
        while picks.len() < count.min(room) && attempts < count * 2 {
            attempts += 1;
            let pool = if !self.favoured.is_empty() && attempts % 2 == 0 {
                &self.favoured
            } else {
                &self.live
            };
            if pool.is_empty() {
                continue;
            }
            let length = pool.len() as u64;
            let at = (self.random() % length) as usize;
            let pool = if !self.favoured.is_empty() && attempts % 2 == 0 {
                &self.favoured
            } else {
                &self.live
            };
            let site = pool[at];
            picks.extend(self.pick(site, Purpose::Live));
        }
        picks
    }

    /// The next locations of the first sweep, at most `count`; empty when it
    /// is complete.
    pub fn sweep_picks(&mut self, count: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        if !self.sweeping {
            return picks;
        }
        let room = SWEEP_STANDING.saturating_sub(self.standing[Purpose::Sweep as usize]);
        let mut order: Vec<usize> = (0..self.modules.len()).collect();
        order.sort_by_key(|module| self.modules[*module].rank);
        let mut unfinished = false;
        for module in order {
            if self.modules[module].instances.is_empty() || self.modules[module].swept {
                continue;
            }
            while picks.len() < count.min(room) {
                let ModuleSites { cursor, order, .. } = &mut self.modules[module];
                let Some(site) = order.get(*cursor).copied() else {
                    break;
                };
                *cursor += 1;
                self.counts.swept += 1;
                let state = &self.sites[site as usize];
                if state.temperature == Temperature::Unknown && !state.code.falls_through {
                    picks.extend(self.pick(site, Purpose::Sweep));
                }
            }
            let state = &mut self.modules[module];
            if state.cursor < state.order.len() {
                unfinished = true;
            } else {
                state.swept = true;
                state.cursor = 0;
            }
        }
        self.sweeping = unfinished;
        picks
    }

    pub fn sweeping(&self) -> bool {
        self.sweeping
    }

    /// Cold locations to stand for a while, at most `count`; half of them
    /// from the program itself and its own libraries.
    pub fn cold_picks(&mut self, count: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        let room = COLD_STANDING.saturating_sub(self.standing[Purpose::Cold as usize]);
        let count = count.min(room);
        let mut order: Vec<usize> = (0..self.modules.len())
            .filter(|module| self.modules[*module].swept)
            .filter(|module| !self.modules[*module].instances.is_empty())
            .collect();
        order.sort_by_key(|module| self.modules[*module].rank);
        for (turn, module) in order.iter().enumerate() {
            let share = if turn + 1 == order.len() {
                count
            } else {
                picks.len() + (count - picks.len()).div_ceil(2)
            };
            let mut looked = 0;
            while picks.len() < share && looked < self.modules[*module].order.len().min(4096) {
                looked += 1;
                let ModuleSites { cursor, order, .. } = &mut self.modules[*module];
                if *cursor >= order.len() {
                    *cursor = 0;
                }
                let site = order[*cursor];
                *cursor += 1;
                if self.may_stand_cold(site) {
                    picks.extend(self.pick(site, Purpose::Cold));
                }
            }
        }
        picks
    }

    /// Never samples this site again.
    pub fn ban(&mut self, site: u32) {
        self.make_not_live(site, Temperature::Banned);
        self.favoured.retain(|other| *other != site);
    }

    fn make_live(&mut self, site: u32) {
        let state = &mut self.sites[site as usize];
        if matches!(state.temperature, Temperature::Live | Temperature::Banned) {
            return;
        }
        state.temperature = Temperature::Live;
        state.live_at = self.live.len() as u32;
        self.live.push(site);
    }

    fn make_not_live(&mut self, site: u32, now: Temperature) {
        let Some(state) = self.sites.get_mut(site as usize) else {
            return;
        };
        let was = state.temperature;
        let at = state.live_at as usize;
        if was != Temperature::Banned {
            state.temperature = now;
        }
        state.live_at = u32::MAX;
        if was == Temperature::Live {
            self.live.swap_remove(at);
            if let Some(moved) = self.live.get(at).copied() {
                self.sites[moved as usize].live_at = at as u32;
            }
        }
    }

    /// Learns from how a breakpoint ended.
    pub fn ended(&mut self, ended: &Ended) {
        let purpose = ended.purpose;
        let Some(state) = self.sites.get_mut(ended.site as usize) else {
            return;
        };
        if matches!(ended.outcome, Outcome::Sampled | Outcome::Foretold) {
            self.counts.samples += 1;
            self.counts.sampled_sites += usize::from(state.samples == 0);
            state.samples = state.samples.saturating_add(1);
        }
        if ended.outcome == Outcome::Foretold {
            return;
        }
        if state.standing > 0 {
            state.standing -= 1;
            let standing = &mut self.standing[purpose as usize];
            *standing = standing.saturating_sub(1);
        }
        match ended.outcome {
            Outcome::Sampled | Outcome::Passed | Outcome::Seen => {
                state.expiries = 0;
                if ended.outcome == Outcome::Sampled {
                    // Where everybody had to wait the next wait is shorter;
                    // it grows again slowly.
                    state.delay = if ended.stalled {
                        (state.delay / 2).max(self.short_delay)
                    } else {
                        (state.delay + state.delay / 8).min(self.longest_delay)
                    };
                }
                self.counts.fired += 1;
                if purpose == Purpose::Live {
                    self.make_live(ended.site);
                } else {
                    for site in self.run(ended.site) {
                        self.make_live(site);
                    }
                }
            }
            Outcome::Expired => {
                state.expiries = state.expiries.saturating_add(1);
                if purpose == Purpose::Sweep {
                    for site in self.run(ended.site) {
                        if self.sites[site as usize].temperature == Temperature::Unknown {
                            self.sites[site as usize].temperature = Temperature::Cold;
                        }
                    }
                } else if purpose == Purpose::Cold || state.expiries >= EXPIRIES {
                    self.make_not_live(ended.site, Temperature::Cold);
                }
            }
            Outcome::Occupied | Outcome::Foretold => {}
            Outcome::Refused => self.make_not_live(ended.site, Temperature::Cold),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            live: self.live.len(),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn sampler(count: u64) -> Sampler {
        let set = (0..count)
            .map(|at| CodeSite {
                address: 0x1000 + at * 4,
                length: 4,
                frame: false,
                falls_through: false,
                foretells: 0,
                bytes: [0x90; 15],
            })
            .collect();
        let mut sampler = Sampler::new(15_000, 50, 7);
        sampler.add_module("prog", 0, set, |_| false);
        sampler.set_instances(1, &[("prog".into(), 0x10000)]);
        sampler
    }

    fn ended(pick: &Pick, outcome: Outcome) -> Ended {
        Ended {
            site: pick.site,
            space: pick.space,
            purpose: pick.purpose,
            outcome,
            stopped: 1000,
            waited: 0,
            napped: 0,
            stalled: false,
        }
    }

    #[test]
    fn the_sweep_visits_every_site_once() {
        let mut sampler = sampler(5000);
        let mut seen = HashSet::new();
        while sampler.sweeping() {
            let picks = sampler.sweep_picks(500);
            for pick in &picks {
                assert!(seen.insert(pick.site), "site swept twice");
                assert_eq!(pick.address, 0x11000 + u64::from(pick.site) * 4);
                sampler.ended(&ended(pick, Outcome::Expired));
            }
        }
        assert_eq!(seen.len(), 5000);
        assert_eq!(sampler.counts().live, 0);
    }

    #[test]
    fn live_sites_are_picked_about_equally() {
        let mut sampler = sampler(100);
        for pick in sampler.sweep_picks(100) {
            let outcome = if pick.site < 10 {
                Outcome::Seen
            } else {
                Outcome::Expired
            };
            sampler.ended(&ended(&pick, outcome));
        }
        assert_eq!(sampler.counts().live, 10);
        let mut times = [0; 10];
        for _ in 0..10_000 {
            for pick in sampler.live_picks(1) {
                times[pick.site as usize] += 1;
                sampler.ended(&ended(&pick, Outcome::Sampled));
            }
        }
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*least > 700 && *most < 1300, "{times:?}");
    }

    #[test]
    fn what_stands_at_one_time_is_bounded() {
        let mut sampler = sampler(3);
        let picks = sampler.sweep_picks(10);
        for pick in &picks {
            sampler.ended(&ended(pick, Outcome::Seen));
        }
        let mut standing = 0;
        for _ in 0..100 {
            standing += sampler.live_picks(50).len();
        }
        assert_eq!(standing, 3 * usize::from(QUEUED));
    }

    /// Six sites: three that follow each other, one alone, two.
    fn runs() -> Sampler {
        let mut sampler = sampler(6);
        for site in [0, 1, 4] {
            sampler.sites[site].code.falls_through = true;
        }
        sampler
    }

    #[test]
    fn a_sweep_plants_the_last_site_of_a_run_and_learns_of_all() {
        let mut sampler = runs();
        let picks = sampler.sweep_picks(10);
        let mut planted: Vec<u32> = picks.iter().map(|pick| pick.site).collect();
        planted.sort_unstable();
        assert_eq!(planted, [2, 3, 5]);
        for pick in &picks {
            let outcome = if pick.site == 2 {
                Outcome::Seen
            } else {
                Outcome::Expired
            };
            sampler.ended(&ended(pick, outcome));
        }
        assert!(sampler.sweep_picks(10).is_empty());
        let mut live = sampler.live.clone();
        live.sort_unstable();
        assert_eq!(live, [0, 1, 2]);
        let mut cold: Vec<u32> = sampler
            .cold_picks(10)
            .iter()
            .map(|pick| pick.site)
            .collect();
        cold.sort_unstable();
        assert_eq!(cold, [3, 5]);
    }

    #[test]
    fn a_site_jumped_over_goes_cold_alone_and_is_tried_again() {
        let mut sampler = runs();
        for pick in sampler.sweep_picks(10) {
            sampler.ended(&ended(&pick, Outcome::Seen));
        }
        let pick = loop {
            let picks = sampler.live_picks(1);
            if picks[0].site == 0 {
                break picks[0];
            }
            sampler.ended(&ended(&picks[0], Outcome::Sampled));
        };
        for _ in 0..EXPIRIES {
            sampler.ended(&ended(&pick, Outcome::Expired));
        }
        assert!(!sampler.live.contains(&0) && sampler.live.contains(&1));
        let cold = sampler.cold_picks(10);
        assert_eq!(cold.iter().map(|pick| pick.site).collect::<Vec<_>>(), [0]);
        sampler.ended(&ended(&cold[0], Outcome::Sampled));
        assert!(sampler.live.contains(&0));
    }

    #[test]
    fn sites_go_along_with_the_one_before_unless_they_are_banned() {
        let mut sampler = sampler(8);
        let told = |pick: &Pick| {
            let sites = pick.foretold.iter().flatten();
            sites.map(|site| site.site).collect::<Vec<_>>()
        };
        // The first can tell of the second, the fourth and three more, the last
        // of what is not there.
        sampler.sites[0].code.foretells = 0b11_1101;
        sampler.sites[7].code.foretells = 1;
        let picks = sampler.sweep_picks(10);
        let first = picks.iter().find(|pick| pick.site == 0).unwrap();
        assert_eq!(told(first), [1, 3, 4]);
        assert_eq!(first.foretold[1].unwrap().address, 0x1100c);
        assert!(
            picks
                .iter()
                .all(|pick| pick.site == 0 || told(pick).is_empty())
        );
        // It has been sampled, and its own breakpoint still stands.
        let foretold = Ended {
            site: 1,
            ..ended(first, Outcome::Foretold)
        };
        sampler.ended(&foretold);
        assert_eq!(sampler.counts().samples, 1);
        assert_eq!(sampler.sites[1].standing, 1);
        sampler.ban(3);
        sampler.ended(&ended(first, Outcome::Sampled));
        let again = sampler.pick(0, Purpose::Live).unwrap();
        assert_eq!(told(&again), [1, 4, 5]);
    }

    #[test]
    fn a_site_is_watched_from_before_every_other_time() {
        let mut sampler = sampler(4);
        for site in 0..3 {
            sampler.sites[site].code.falls_through = true;
            sampler.make_live(site as u32);
        }
        sampler.make_live(3);
        // The last can be told at the second, and would be at the first if that
        // were live.
        sampler.sites[0].code.foretells = 0b100;
        sampler.sites[1].code.foretells = 0b011;
        sampler.make_not_live(0, Temperature::Cold);
        let mut planted = [0; 4];
        for _ in 0..1000 {
            let pick = sampler.pick(3, Purpose::Live).unwrap();
            planted[pick.site as usize] += 1;
            if pick.site == 1 {
                let first = pick.foretold[0].unwrap();
                assert_eq!((first.site, pick.foretold[1].unwrap().site), (3, 2));
            }
            sampler.ended(&ended(&pick, Outcome::Sampled));
        }
        assert_eq!((planted[0], planted[2]), (0, 0));
        assert!((400..600).contains(&planted[1]), "{planted:?}");
        assert_eq!(sampler.pick(2, Purpose::Cold).unwrap().site, 2);
    }

    #[test]
    fn a_banned_site_stays_out() {
        let mut sampler = sampler(2);
        for pick in sampler.sweep_picks(10) {
            sampler.ended(&ended(&pick, Outcome::Seen));
        }
        sampler.ban(0);
        for _ in 0..20 {
            for pick in sampler.live_picks(2) {
                assert_eq!(pick.site, 1);
                sampler.ended(&ended(&pick, Outcome::Sampled));
            }
        }
    }

    #[test]
    fn waits_shrink_where_everybody_waits() {
        let mut sampler = sampler(1);
        for pick in sampler.sweep_picks(1) {
            sampler.ended(&ended(&pick, Outcome::Seen));
        }
        let mut delays = Vec::new();
        for _ in 0..12 {
            let pick = sampler.live_picks(1)[0];
            delays.push(pick.delay);
            let stalled = Ended {
                stalled: true,
                ..ended(&pick, Outcome::Sampled)
            };
            sampler.ended(&stalled);
        }
        assert_eq!(delays[0], 15_000);
        assert_eq!(delays[11], 50);
    }
}
