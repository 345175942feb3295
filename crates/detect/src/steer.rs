//! Steers a schedule towards races that are only suspected.
//!
//! A candidate is a pair of sites: from another tool's report, from a list, or
//! from sampling the native process. Happens-before detection misses a pair
//! that something happens to order in the run at hand: two threads that pass
//! the same lock between their accesses, in the order that hides the race.
//! While the program is being recorded, a thread that arrives at one site of a
//! candidate is therefore held there until another thread arrives at the other
//! site (paper 002, section 3 holds a thread at an access too, but for a time
//! and in the hope that somebody comes by). Then both are about to make their
//! accesses, nothing can order them any more, and detection sees the race if
//! the two meet in one location.
//!
//! What is tried follows from the seed and the number of the attempt alone,
//! and the recording that comes of it replays like any other. A hold is
//! bounded (`Patience`), and a pair of sites whose holds were in vain a few
//! times is left alone for the rest of the run: steering never keeps a program
//! from ending.
//!
//! Where a site is a source line, threads are held before the first
//! instruction of the line that accesses memory or calls; this may be a few
//! instructions before the racing one, with nothing between them but the line
//! itself.

use crate::import::base;
use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use race::{Moment, Race, Site};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use symbols::{Module, ModuleMap};
use vm::context::Registers;
use vm::observe::{AfterHook, Interest, Observer, Patience};
use vm::schedule::Random64;

/// Two threads that were brought together at a candidate once may have met in
/// different locations: this often it is tried in one run.
const MEETINGS: u32 = 64;

/// Holds of one candidate in one run that nobody came to.
const IN_VAIN: u32 = 3;

/// The same for all candidates together: with the longest patience below, 64
/// holds are a billion instructions, a second or two.
const IN_VAIN_ALTOGETHER: u32 = 64;

/// Instructions of a thread after a hold in which it is not held again: it
/// shall first get over the line it was held at.
const REST: u64 = 100;

/// What the others execute while a thread is held, by attempt: enough for a
/// thread to start and get somewhere, and twenty times as much.
const INSTRUCTIONS: [u64; 2] = [1_000_000, 20_000_000];

/// Attempts after which every plan, with either patience, has been tried.
pub const CYCLE: u64 = 6;

/// Virtual time that may pass meanwhile. Sleeping costs nothing in the vm, so
/// this is generous: 100 seconds.
const NANOSECONDS: u64 = 100_000_000_000;

/// Instructions at which one side of a candidate is looked for, at most.
const LARGEST_SITE: usize = 4096;

/// How a candidate fared in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fate {
    /// Code was found for each of its sites.
    pub found: [bool; 2],
    /// A thread got there while there were others.
    pub reached: [bool; 2],
    /// How often two threads were brought to both sites at once.
    pub met: u32,
}

impl Fate {
    /// What is known after another run.
    pub fn join(&mut self, other: &Fate) {
        for side in 0..2 {
            self.found[side] |= other.found[side];
            self.reached[side] |= other.reached[side];
        }
        self.met += other.met;
    }
}

/// Which arrivals are worth a hold in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    /// At which sites threads are held.
    sides: [bool; 2],
    /// One arrival in so many is held.
    one_in: u64,
    patience: Patience,
}

impl Plan {
    /// First wherever somebody arrives, then at one site only (a thread held
    /// at the wrong site may hold a lock that the other needs), then at random
    /// arrivals.
    fn of_attempt(attempt: u64) -> Plan {
        let (sides, one_in) = match attempt % CYCLE {
            0 => ([true, true], 1),
            1 => ([true, false], 1),
            2 => ([false, true], 1),
            3 => ([true, true], 2),
            4 => ([true, true], 8),
            _ => ([true, true], 64),
        };
        Plan {
            sides,
            one_in,
            patience: Patience {
                instructions: INSTRUCTIONS[(attempt / 3 % 2) as usize],
                nanoseconds: NANOSECONDS,
            },
        }
    }
}

struct Pair {
    sites: [Site; 2],
    /// Who is held, and at which side.
    waiting: Option<(u32, usize)>,
    in_vain: u32,
    fate: Fate,
}

/// Holds threads at the sites of candidates. An observer of the run that is to
/// be steered.
pub struct Steering {
    pairs: Vec<Pair>,
    plan: Plan,
    random: Random64,
    /// Pairs and sides by address.
    sites: HashMap<u64, Vec<(usize, usize)>>,
    modules: ModuleMap,
    /// How far each thread was when it was last held or met.
    rested: HashMap<u32, u64>,
    threads: usize,
    in_vain: u32,
}

impl Steering {
    /// Steers to `candidates`; `attempt` counts the runs that are steered.
    pub fn new<'a>(
        candidates: impl IntoIterator<Item = &'a Race>,
        attempt: u64,
        seed: u64,
    ) -> Steering {
        let pairs = candidates.into_iter().map(|race| Pair {
            sites: race.accesses.each_ref().map(|access| access.site.clone()),
            waiting: None,
            in_vain: 0,
            fate: Fate::default(),
        });
        Steering {
            pairs: pairs.collect(),
            plan: Plan::of_attempt(attempt),
            random: Random64::new(seed ^ attempt.rotate_left(32)),
            sites: HashMap::new(),
            modules: ModuleMap::new(),
            rested: HashMap::new(),
            threads: 1,
            in_vain: 0,
        }
    }

    /// How the candidates fared, in their order.
    pub fn fates(&self) -> Vec<Fate> {
        self.pairs.iter().map(|pair| pair.fate).collect()
    }

    fn is_rested(&self, moment: Moment) -> bool {
        self.rested
            .get(&moment.thread)
            .is_none_or(|last| moment.count.saturating_sub(*last) >= REST)
    }

    /// A thread is about to execute code of these sides.
    fn arrive(&mut self, moment: Moment, sides: &[(usize, usize)]) -> AfterHook {
        let thread = moment.thread;
        for (pair, side) in sides {
            let pair = &mut self.pairs[*pair];
            pair.fate.reached[*side] = true;
            let Some((held, at)) = pair.waiting else {
                continue;
            };
            if held != thread && at != *side {
                pair.waiting = None;
                pair.fate.met += 1;
                self.rested.insert(thread, moment.count);
                return AfterHook::Release(held);
            }
        }
        let waits = |pair: &Pair| pair.waiting.is_some_and(|(held, _)| held == thread);
        if self.in_vain >= IN_VAIN_ALTOGETHER
            || !self.is_rested(moment)
            || self.pairs.iter().any(waits)
        {
            return AfterHook::Nothing;
        }
        for (pair, side) in sides {
            let pair = &mut self.pairs[*pair];
            let worth_it = self.plan.sides[*side]
                && pair.waiting.is_none()
                && pair.in_vain < IN_VAIN
                && pair.fate.met < MEETINGS;
            if worth_it && self.random.below(self.plan.one_in) == 0 {
                pair.waiting = Some((thread, *side));
                self.rested.insert(thread, moment.count);
                return AfterHook::Hold(self.plan.patience);
            }
        }
        AfterHook::Nothing
    }

    /// Finds the sites in code that has just been mapped.
    fn look_for_sites(&mut self, range: Range<u64>) -> Vec<u64> {
        let Some((module, first)) = self.modules.find(range.start) else {
            return Vec::new();
        };
        let code = first..first + (range.end - range.start);
        let mut found: Vec<(u64, usize, usize)> = Vec::new();
        let mut lines: HashMap<(&str, u32), Vec<usize>> = HashMap::new();
        for (number, pair) in self.pairs.iter().enumerate() {
            for (side, site) in pair.sites.iter().enumerate() {
                if let (Some(file), Some(line)) = (&site.file, site.line) {
                    let wishes = lines.entry((base(file), line)).or_default();
                    wishes.push(2 * number + side);
                } else if site.module.as_deref() == Some(module.name())
                    && let Some(offset) = site.offset.filter(|offset| code.contains(offset))
                {
                    found.push((offset, number, side));
                }
            }
        }
        if !lines.is_empty() {
            let mut rows = module.code_of_lines(|file, line| {
                lines.get(&(base(file), line)).cloned().unwrap_or_default()
            });
            rows.retain(|(row, _)| code.contains(&row.start));
            let mut instructions: HashMap<usize, Vec<(u64, Instruction)>> = HashMap::new();
            for (row, wish) in rows {
                let known = instructions.entry(wish).or_default();
                if known.len() < LARGEST_SITE {
                    known.extend(decode(module, row));
                }
            }
            for (wish, instructions) in instructions {
                let stops = stops(&instructions).into_iter();
                found.extend(stops.map(|address| (address, wish / 2, wish % 2)));
            }
        }
        found.sort_unstable();
        found.dedup();
        let mut hooks = Vec::new();
        for (address, pair, side) in found {
            let address = range.start + (address - first);
            self.pairs[pair].fate.found[side] = true;
            self.sites.entry(address).or_default().push((pair, side));
            hooks.push(address);
        }
        hooks.dedup();
        hooks
    }
}

/// The instructions of a row of the line table.
fn decode(module: &Module, row: Range<u64>) -> Vec<(u64, Instruction)> {
    let length = (row.end - row.start).min(4096) as usize;
    let Some(bytes) = module.bytes_at(row.start, length) else {
        return Vec::new();
    };
    Decoder::with_ip(64, bytes, row.start, DecoderOptions::NONE)
        .iter()
        .take_while(|instruction| instruction.code() != Opcode::INVALID)
        .map(|instruction| (instruction.ip(), instruction))
        .collect()
}

/// How promising an instruction is: accesses outside the own frame, then calls
/// (what they are given may be the racing memory), then accesses to the frame.
fn promise(instruction: &Instruction) -> u32 {
    let own = [Register::RSP, Register::RBP, Register::ESP, Register::EBP];
    let memory = (0..instruction.op_count()).any(|operand| {
        matches!(
            instruction.op_kind(operand),
            OpKind::Memory
                | OpKind::MemorySegRSI
                | OpKind::MemoryESRDI
                | OpKind::MemorySegDI
                | OpKind::MemoryESDI
        )
    });
    let calls = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    let bookkeeping = matches!(
        instruction.mnemonic(),
        Mnemonic::Lea | Mnemonic::Nop | Mnemonic::Push | Mnemonic::Pop | Mnemonic::Endbr64
    );
    if calls {
        2
    } else if !memory || bookkeeping || instruction.segment_prefix() == Register::FS {
        0
    } else if own.contains(&instruction.memory_base()) {
        1
    } else {
        3
    }
}

/// Where threads are held on a line: at its accesses outside the own frame and
/// at its calls; where it has neither, at its accesses to the frame.
fn stops(instructions: &[(u64, Instruction)]) -> Vec<u64> {
    let least = if instructions.iter().any(|(_, one)| promise(one) > 1) {
        2
    } else {
        1
    };
    instructions
        .iter()
        .filter(|(_, instruction)| promise(instruction) >= least)
        .map(|(address, _)| *address)
        .collect()
}

impl Observer for Steering {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn code_mapped(&mut self, range: Range<u64>, path: &Path, offset: u64) -> Vec<u64> {
        self.modules.insert(range.clone(), path, offset);
        self.sites.retain(|address, _| !range.contains(address));
        self.look_for_sites(range)
    }

    fn unmapped(&mut self, _moment: Moment, range: Range<u64>) {
        self.sites.retain(|address, _| !range.contains(address));
        self.modules.remove(range);
    }

    fn thread(&mut self, _moment: Moment, event: vm::observe::ThreadEvent) {
        match event {
            vm::observe::ThreadEvent::Started { .. } => self.threads += 1,
            vm::observe::ThreadEvent::Exited { .. } => {
                self.threads = self.threads.saturating_sub(1);
            }
            _ => {}
        }
    }

    fn hook(&mut self, moment: Moment, registers: &Registers) -> AfterHook {
        if self.threads < 2 {
            return AfterHook::Nothing;
        }
        match self.sites.get(&registers.rip).cloned() {
            Some(sides) => self.arrive(moment, &sides),
            None => AfterHook::Nothing,
        }
    }

    fn released(&mut self, thread: u32) {
        for pair in &mut self.pairs {
            if pair.waiting.is_some_and(|(held, _)| held == thread) {
                pair.waiting = None;
                pair.in_vain += 1;
                self.in_vain += 1;
            }
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use race::{Access, AccessKind};

    fn candidate(one: (&str, u32), other: (&str, u32)) -> Race {
        let access = |(file, line): (&str, u32)| {
            let site = Site {
                file: Some(file.into()),
                line: Some(line),
                ..Site::default()
            };
            Access::new(AccessKind::Unknown, 0, site)
        };
        Race::new(0, 1, [access(one), access(other)])
    }

    fn at(thread: u32, count: u64) -> Moment {
        Moment::new(thread, count)
    }

    #[test]
    fn the_second_thread_releases_the_first() {
        let mut steering = Steering::new(&[candidate(("a.c", 1), ("a.c", 2))], 0, 1);
        let held = steering.arrive(at(2, 1000), &[(0, 0)]);
        assert!(matches!(held, AfterHook::Hold(_)));
        // Another thread at the same site is no meeting.
        assert_eq!(steering.arrive(at(3, 50), &[(0, 0)]), AfterHook::Nothing);
        assert_eq!(steering.arrive(at(4, 50), &[(0, 1)]), AfterHook::Release(2));
        assert_eq!(steering.fates()[0].met, 1);
        // The vm tells of the release; a meeting was not in vain.
        steering.released(2);
        assert_eq!(steering.in_vain, 0);
    }

    #[test]
    fn a_line_races_with_itself() {
        let mut steering = Steering::new(&[candidate(("a.c", 1), ("a.c", 1))], 0, 1);
        let both = [(0, 0), (0, 1)];
        assert!(matches!(
            steering.arrive(at(2, 1000), &both),
            AfterHook::Hold(_)
        ));
        assert_eq!(steering.arrive(at(3, 70), &both), AfterHook::Release(2));
    }

    #[test]
    fn holds_in_vain_come_to_an_end() {
        let mut steering = Steering::new(&[candidate(("a.c", 1), ("a.c", 2))], 0, 1);
        let mut holds = 0;
        for round in 1..100 {
            if let AfterHook::Hold(_) = steering.arrive(at(2, round * 1000), &[(0, 0)]) {
                holds += 1;
                steering.released(2);
            }
        }
        assert_eq!(holds, IN_VAIN);
    }

    #[test]
    fn an_attempt_and_a_seed_decide_everything() {
        let run = |attempt, seed| {
            let mut steering = Steering::new(&[candidate(("a.c", 1), ("a.c", 2))], attempt, seed);
            (1..200)
                .map(|round| steering.arrive(at(2, round * 1000), &[(0, 0)]) != AfterHook::Nothing)
                .collect::<Vec<_>>()
        };
        assert_eq!(run(3, 7), run(3, 7));
        assert_ne!(run(4, 7), run(4, 8));
        assert!(run(2, 7).iter().all(|held| !held), "only the other side");
    }

    #[test]
    fn accesses_outside_the_frame_come_first() {
        let line = |bytes: &[u8]| -> Vec<(u64, Instruction)> {
            Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE)
                .iter()
                .map(|instruction| (instruction.ip(), instruction))
                .collect()
        };
        // mov rax, [rbp-8]; mov dword ptr [rax], 1
        let through_pointer = [0x48, 0x8b, 0x45, 0xf8, 0xc7, 0, 1, 0, 0, 0];
        assert_eq!(stops(&line(&through_pointer)), [4]);
        // mov eax, [rbp-8]; add eax, 1
        let local = [0x8b, 0x45, 0xf8, 0x83, 0xc0, 1];
        assert_eq!(stops(&line(&local)), [0]);
    }
}
