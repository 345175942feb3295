//! What a recording says about where to preempt and where a switch is.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use race::{Frame, Instance, Moment, Race, Report};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use vm::record::Recording;
use vm::{Stop, Vm};

use crate::switches::{Precedence, Switch};

/// The races of one run, as a hunt needs them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Races {
    /// Fingerprints.
    pub races: Vec<String>,
    /// Instructions of the racy accesses, and those that follow on them: a
    /// thread can be stopped before and behind an access.
    pub pcs: Vec<u64>,
    /// Orders of this run that turn a race round, and which race.
    pub flips: Vec<(String, Precedence)>,
}

/// Occurrences of a race that are turned round, the first and the last, and races
/// of which that is done.
const FLIPPED: usize = 2;
const MOST_FLIPPED: usize = 16;

fn flips(report: &Report) -> Vec<(String, Precedence)> {
    let of_race = |race: &Race| {
        let apart = |one: &&Instance| one.first.thread != one.second.thread;
        let all: Vec<&Instance> = race.occurrences.iter().filter(apart).collect();
        let ends = all.first().into_iter().chain(all.iter().skip(1).last());
        let flip = |one: &&Instance| Precedence {
            before: one.second,
            after: one.first,
        };
        let name = race.fingerprint.0.clone();
        let flips = ends.take(FLIPPED).map(flip);
        flips.map(|flip| (name.clone(), flip)).collect::<Vec<_>>()
    };
    report
        .races
        .iter()
        .take(MOST_FLIPPED)
        .flat_map(of_race)
        .collect()
}

/// Finds the races of a recording and the instructions that make them.
pub fn races(directory: &Path) -> Result<Races, String> {
    let report = detect::detect(directory, &detect::Options::default())
        .map_err(|error| error.to_string())?;
    let moments: Vec<Moment> = report
        .races
        .iter()
        .flat_map(|race| {
            let accesses = race.accesses.iter().filter_map(|access| access.moment);
            let occurrences = race
                .occurrences
                .iter()
                .take(4)
                .flat_map(|occurrence| [occurrence.first, occurrence.second]);
            accesses.chain(occurrences).collect::<Vec<_>>()
        })
        .collect();
    let granules: BTreeSet<u64> = report
        .races
        .iter()
        .flat_map(|race| {
            let accesses = race.accesses.iter().filter_map(|access| access.address);
            let occurrences = race.occurrences.iter().map(|occurrence| occurrence.address);
            accesses.chain(occurrences).map(|address| address / 8)
        })
        .collect();
    Ok(Races {
        flips: flips(&report),
        races: report
            .races
            .iter()
            .map(|race| race.fingerprint.0.clone())
            .collect(),
        pcs: pcs(directory, &moments, &granules)?,
    })
}

/// The instructions at these moments, and others that may race.
fn pcs(directory: &Path, moments: &[Moment], granules: &BTreeSet<u64>) -> Result<Vec<u64>, String> {
    let mut pcs = BTreeSet::new();
    let mut vm = at(directory, moments, |vm, moment| {
        if let Some(regs) = vm.registers(moment.thread) {
            pcs.insert(regs.rip);
            pcs.extend(follower(regs.rip));
        }
    })?;
    vm.run(None).map_err(|error| error.to_string())?;
    pcs.extend(likely(&vm, granules));
    Ok(pcs.into_iter().collect())
}

/// Instructions of the program's own code that this run says nothing of, and
/// that may matter all the same: locked ones, because between a look and the
/// exchange that relies on it there need be neither a race nor a sequencer; and
/// those that access a variable known to race, in code that was not reached.
fn likely(vm: &Vm, granules: &BTreeSet<u64>) -> BTreeSet<u64> {
    // A program that has its libraries inside has many locked instructions; what
    // is not reached costs nothing.
    const MANY: usize = 4_096;
    let modules = explore::modules(vm);
    let (mut locked, mut racy) = (BTreeSet::new(), BTreeSet::new());
    for loaded in modules.modules() {
        let module = loaded.module;
        if !module.has_debug_info() || is_library(module.name()) {
            continue;
        }
        for function in module.functions() {
            let Some(code) = module.bytes_at(function.start, function.size as usize) else {
                continue;
            };
            for instruction in Decoder::with_ip(64, code, function.start, DecoderOptions::NONE) {
                let pc = instruction.ip().wrapping_add(loaded.bias);
                if instruction.has_lock_prefix() && locked.len() < MANY {
                    locked.insert(pc);
                }
                if instruction.is_ip_rel_memory_operand()
                    && instruction.mnemonic() != Mnemonic::Lea
                    && racy.len() < MANY
                {
                    let address = instruction.ip_rel_memory_address();
                    if granules.contains(&(address.wrapping_add(loaded.bias) / 8)) {
                        racy.insert(pc);
                        racy.extend(follower(pc));
                    }
                }
            }
        }
    }
    locked.append(&mut racy);
    locked
}

fn is_library(name: &str) -> bool {
    ["lib", "ld-linux"]
        .iter()
        .any(|begin| name.starts_with(begin))
}

/// The instruction behind the one at `pc`, unless that goes elsewhere.
fn follower(pc: u64) -> Option<u64> {
    const LONGEST: u64 = 15;
    // Near the end of a mapping there is less.
    let code: Vec<u8> = (0..LONGEST)
        .map_while(|offset| vm::memory::get::<u8>(pc + offset).ok())
        .collect();
    let instruction = Decoder::with_ip(64, &code, pc, DecoderOptions::NONE).decode();
    let goes_on = instruction.flow_control() == FlowControl::Next;
    (goes_on && !instruction.is_invalid()).then(|| instruction.next_ip())
}

/// Stops a replay at each of the moments.
fn at(
    directory: &Path,
    moments: &[Moment],
    mut look: impl FnMut(&Vm, Moment),
) -> Result<Vm, String> {
    let recording = Recording::open(directory).map_err(|error| error.to_string())?;
    let stops: Vec<Instance> = moments
        .iter()
        .map(|moment| Instance {
            first: *moment,
            second: *moment,
            address: 0,
            size: 0,
        })
        .collect();
    let order =
        reorder::in_recorded_order(&recording, &stops).map_err(|error| error.to_string())?;
    let mut vm = Vm::replay(&recording).map_err(|error| error.to_string())?;
    vm.may_read_files();
    vm.mute();
    for index in order {
        let moment = moments[index];
        let stop = vm.run(Some(moment)).map_err(|error| error.to_string())?;
        if !matches!(stop, Stop::Reached(_)) {
            break;
        }
        if vm.executed(moment.thread) == moment.count {
            look(&vm, moment);
        }
    }
    Ok(vm)
}

/// A switch, and where both threads are at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scene {
    #[serde(flatten)]
    pub switch: Switch,
    /// Of the thread that stops.
    pub from: Vec<Frame>,
    /// Of the thread that goes on; empty before its first instruction.
    pub onto: Vec<Frame>,
}

impl Scene {
    /// Switches of which nothing more is known yet.
    pub fn without_stacks(switches: &[Switch]) -> Vec<Scene> {
        switches
            .iter()
            .map(|switch| Scene {
                switch: *switch,
                from: Vec::new(),
                onto: Vec::new(),
            })
            .collect()
    }
}

/// Both stacks at each switch.
pub fn scenes(directory: &Path, switches: &[Switch]) -> Result<Vec<Scene>, String> {
    let moments: Vec<Moment> = switches.iter().map(|switch| switch.at).collect();
    let mut scenes = Scene::without_stacks(switches);
    at(directory, &moments, |vm, moment| {
        let modules = explore::modules(vm);
        let stack = |thread: u32| {
            vm.registers(thread)
                .map(|regs| explore::stack(&modules, &regs))
                .unwrap_or_default()
        };
        for scene in scenes.iter_mut().filter(|scene| scene.switch.at == moment) {
            scene.from = stack(moment.thread);
            if vm.executed(scene.switch.to) > 0 {
                scene.onto = stack(scene.switch.to);
            }
        }
    })?;
    Ok(scenes)
}

/// Functions whose edges only keep others out for a while: without them,
/// accesses in different critical sections are unordered.
const LOCKS: [&str; 16] = [
    "pthread_mutex_lock",
    "pthread_mutex_trylock",
    "pthread_mutex_timedlock",
    "pthread_mutex_clocklock",
    "pthread_mutex_unlock",
    "pthread_spin_lock",
    "pthread_spin_trylock",
    "pthread_spin_unlock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "pthread_rwlock_tryrdlock",
    "pthread_rwlock_trywrlock",
    "pthread_rwlock_unlock",
    "mtx_lock",
    "mtx_unlock",
    "GOMP_critical_start",
];

/// The races of a recording; with `without_locks`, as if locks ordered nothing.
pub fn report(directory: &Path, without_locks: bool) -> Result<Report, String> {
    let mut options = detect::Options::default();
    if without_locks {
        options.forget_sync = LOCKS.map(str::to_string).to_vec();
    }
    detect::detect(directory, &options).map_err(|error| error.to_string())
}
