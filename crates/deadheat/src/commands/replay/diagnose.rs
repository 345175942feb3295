//! `deadheat replay --diagnose`: where a replay stops being the recorded
//! execution, and what was written there.
//!
//! A replay names the first check that fails. This goes further: it replays
//! several times, says whether the replays differ from one another, and if they
//! do, compares their states at ever closer points (the k-ary search of two
//! processes that were one). Then it runs the interval once more and watches
//! who writes there. Guarantee: what is named differs; that nothing before it
//! does is known only as far as the recording's checks go.

use super::{modules_of, place_of};
use crate::commands::Failure;
use ::race::Moment;
use report::{Stream, count, plain};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use symbols::ModuleMap;
use vm::observe::{AccessEvent, Interest, Observer};
use vm::record::Recording;
use vm::snapshot;
use vm::{Difference, Divergence, Error, Stop, Vm};

/// Replays that are compared: one that fails every other time is met but for
/// one in 32.
const REPLAYS: usize = 5;

/// Replays of an interval at once, and points at which they are compared: three
/// rounds find one instruction among 200,000.
const COMPARED: usize = 4;
const POINTS: u64 = 64;
const ROUNDS: usize = 8;

/// Writers that are shown.
const SHOWN: usize = 8;

const PAGE: u64 = 4096;

/// How one replay went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Agrees,
    Differs(Differing),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Differing {
    /// Instructions of all threads: the last check that agreed, and this one.
    since: u64,
    until: u64,
    words: String,
    difference: Option<Difference>,
}

impl From<Divergence> for Differing {
    fn from(divergence: Divergence) -> Differing {
        let until = divergence.until.unwrap_or_default();
        Differing {
            since: divergence.since.unwrap_or(until),
            until,
            difference: divergence.difference.clone(),
            // Whoever reads this has called for it.
            words: Divergence {
                recording: None,
                ..divergence
            }
            .to_string(),
        }
    }
}

/// What is compared between replays.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Page(u64),
    Thread(u32),
}

/// Replays the recording, or one process of it, several times and tells what
/// differs.
pub fn run(recording: &Recording, process: Option<u32>) -> Result<i32, Failure> {
    let processes = match process {
        Some(process) => {
            recording.path_to(process)?;
            vec![process]
        }
        None => recording.processes(),
    };
    let mut text = String::new();
    let mut code = 0;
    for process in processes {
        let outcomes = (0..REPLAYS)
            .map(|_| replay(recording, process))
            .collect::<Result<Vec<_>, _>>()?;
        let differing: Vec<Differing> = outcomes
            .into_iter()
            .filter_map(|outcome| match outcome {
                Outcome::Agrees => None,
                Outcome::Differs(differing) => Some(differing),
            })
            .collect();
        if !differing.is_empty() {
            text = diagnosis(recording, process, &differing)?;
            code = ::race::exit_code::FAILURE;
            break;
        }
        let _ = writeln!(
            text,
            "process {process}: {REPLAYS} of {REPLAYS} replays agree with the recording"
        );
    }
    if code == 0 {
        text.push_str(
            "Nothing differs here. If a replay diverged before, it does so seldom, or on other \
             machines: please report it with the recording (`deadheat pack` makes it complete).\n",
        );
    }
    report::print_text(&text, Stream::Stdout).map_err(Failure::own)?;
    Ok(code)
}

/// A replay of the process at its first instruction.
fn begin(recording: &Recording, process: u32) -> Result<Vm, Error> {
    if process == 0 {
        let mut vm = Vm::replay(recording)?;
        vm.mute();
        return Ok(vm);
    }
    let mut vm = Vm::replay_process(recording, process)?;
    vm.mute();
    // Its ancestors up to the forks.
    vm.run(Some(Moment::new(1, 0)))?;
    Ok(vm)
}

/// Does `work` with a replay of its own.
fn with_replay<R: Serialize + serde::de::DeserializeOwned>(
    recording: &Recording,
    process: u32,
    work: impl FnOnce(&mut Vm) -> Result<R, Error>,
) -> Result<R, Failure> {
    snapshot::isolated(|| work(&mut begin(recording, process)?))
        .and_then(snapshot::Running::join)
        .map_err(Failure::own)?
        .map_err(Failure::from)
}

fn replay(recording: &Recording, process: u32) -> Result<Outcome, Failure> {
    let whole = || match begin(recording, process).and_then(|mut vm| vm.run(None)) {
        Ok(_) => Ok(Outcome::Agrees),
        Err(Error::Divergence(divergence)) => Ok(Outcome::Differs((*divergence).into())),
        Err(error) => Err(error),
    };
    snapshot::isolated(whole)
        .and_then(snapshot::Running::join)
        .map_err(Failure::own)?
        .map_err(Failure::from)
}

fn diagnosis(
    recording: &Recording,
    process: u32,
    differing: &[Differing],
) -> Result<String, Failure> {
    let mut text = format!(
        "process {process}: {} of {REPLAYS} replays diverge from the recording{}\n",
        differing.len(),
        repeatability(differing)
    );
    let Some(first) = differing.iter().min_by_key(|one| (one.until, one.since)) else {
        return Ok(text);
    };
    let _ = writeln!(text, "\nThe first difference:\n  {}", plain(&first.words));
    match &first.difference {
        Some(Difference::Pages { first, count }) => {
            for page in first {
                let _ = writeln!(text, "  page {}", plain(&page.to_string()));
            }
            if *count > first.len() {
                let _ = writeln!(text, "  and {} more", count - first.len());
            }
        }
        Some(Difference::Registers { .. }) | None => {}
    }
    let subject = match &first.difference {
        Some(Difference::Pages { first, .. }) => first.first().map(|page| page.address),
        _ => None,
    }
    .map(Subject::Page)
    .or(match &first.difference {
        Some(Difference::Registers { thread, .. }) => Some(Subject::Thread(*thread)),
        _ => None,
    });
    if let Some(subject) = subject {
        let interval = (first.since, first.until);
        let narrowed = narrow(interval, |points| {
            digests(recording, process, subject, points)
        })?;
        tell_narrowed(&mut text, recording, process, subject, narrowed)?;
        let (from, to) = narrowed.unwrap_or(interval);
        tell_code(&mut text, recording, process, subject, (from, to))?;
    }
    text.push_str(
        "\nWhat to do: a replay that differs is a defect of deadheat. Please report it with this \
         text and the recording. `deadheat pack DIR` makes the recording complete; it says what \
         of your data is in it, and `--redact NAME` takes variables out.\n",
    );
    Ok(text)
}

fn repeatability(differing: &[Differing]) -> &'static str {
    let same = differing.windows(2).all(|pair| pair[0] == pair[1]);
    match (differing.len() == REPLAYS, same) {
        (true, true) => ", all in the same way: it is repeatable",
        (true, false) => ", in different ways: it is not repeatable",
        (false, _) => "; the others agree with it: it is not repeatable",
    }
}

/// Digests of a replay's state at these points, as far as it gets.
fn digests(
    recording: &Recording,
    process: u32,
    subject: Subject,
    points: &[u64],
) -> Result<Vec<u64>, Failure> {
    with_replay(recording, process, |vm| {
        let mut digests = Vec::new();
        for point in points {
            let goes_on = reach(vm, *point)?;
            digests.push(digest(vm, subject));
            if !goes_on {
                break;
            }
        }
        Ok(digests)
    })
}

/// Runs to a point; false where the replay ends or diverges first.
fn reach(vm: &mut Vm, point: u64) -> Result<bool, Error> {
    match vm.run_to(point) {
        Ok(Stop::Reached(_)) => Ok(true),
        Ok(_) | Err(Error::Divergence(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn digest(vm: &Vm, subject: Subject) -> u64 {
    let words: Vec<u64> = match subject {
        Subject::Page(address) => return xxhash_rust::xxh3::xxh3_64(&page(address)),
        Subject::Thread(thread) => {
            let regs = vm.registers(thread).unwrap_or_default();
            let all = [
                regs.rip,
                regs.rflags & vm::context::GUEST_FLAGS,
                regs.fs_base,
            ];
            regs.gpr
                .into_iter()
                .chain(all)
                .chain(vm.vector_words(thread))
                .collect()
        }
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

fn page(address: u64) -> Vec<u8> {
    vm::memory::read_vec(address, PAGE as usize).unwrap_or_default()
}

/// The shortest interval found in which replays begin to differ from one
/// another; none if they do not. `digests` makes one replay and tells its state
/// at the points, as far as it gets.
fn narrow(
    (mut from, mut to): (u64, u64),
    mut digests: impl FnMut(&[u64]) -> Result<Vec<u64>, Failure>,
) -> Result<Option<(u64, u64)>, Failure> {
    let mut narrowed = None;
    for _ in 0..ROUNDS {
        let step = (to - from).div_ceil(POINTS).max(1);
        let points: Vec<u64> = (1..=POINTS)
            .map(|nth| (from + nth * step).min(to))
            .collect();
        let seen = (0..COMPARED)
            .map(|_| digests(&points))
            .collect::<Result<Vec<_>, _>>()?;
        let Some(at) = first_unlike(&seen) else {
            break;
        };
        (from, to) = (if at == 0 { from } else { points[at - 1] }, points[at]);
        narrowed = Some((from, to));
        if to - from <= 1 {
            break;
        }
    }
    Ok(narrowed)
}

/// The first index at which not all are the same. One that is shorter has
/// ended there.
fn first_unlike(seen: &[Vec<u64>]) -> Option<usize> {
    let longest = seen.iter().map(Vec::len).max()?;
    (0..longest).find(|at| {
        let mut all = seen.iter().filter_map(|one| one.get(*at));
        let first = all.next();
        all.any(|one| Some(one) != first)
    })
}

fn tell_narrowed(
    text: &mut String,
    recording: &Recording,
    process: u32,
    subject: Subject,
    narrowed: Option<(u64, u64)>,
) -> Result<(), Failure> {
    let Some((from, to)) = narrowed else {
        text.push_str(
            "\nReplays do not differ from one another there: what they have in common is not what \
             was recorded.\n",
        );
        return Ok(());
    };
    let _ = writeln!(
        text,
        "\nReplays differ from one another: equal at instruction {from} of all threads, \
         different at {to}"
    );
    let Subject::Page(address) = subject else {
        return Ok(());
    };
    let mut pages = Vec::new();
    for _ in 0..COMPARED {
        pages.push(with_replay(recording, process, |vm| {
            reach(vm, to)?;
            Ok(page(address))
        })?);
    }
    let unlike = pages.iter().find_map(|other| {
        let at = pages[0].iter().zip(other).position(|(a, b)| a != b)?;
        Some((at, pages[0][at], other[at]))
    });
    if let Some((at, one, other)) = unlike {
        let _ = writeln!(
            text,
            "  the byte at {:#x} is {one:#04x} in one, {other:#04x} in another",
            address + at as u64
        );
    }
    Ok(())
}

/// Writes to one page, by thread and instruction.
struct Writers {
    page: u64,
    found: BTreeMap<(u32, u64), Written>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Written {
    first: Moment,
    /// Where on the page the first write went.
    offset: u64,
    times: u64,
    /// Empty for the kernel.
    place: String,
}

impl Writers {
    fn note(&mut self, moment: Moment, pc: u64, address: u64, size: u64) {
        let end = self.page + PAGE;
        if address >= end || address.saturating_add(size) <= self.page {
            return;
        }
        let written = self.found.entry((moment.thread, pc)).or_insert(Written {
            first: moment,
            offset: address.saturating_sub(self.page),
            times: 0,
            place: String::new(),
        });
        written.times += 1;
    }
}

impl Observer for Writers {
    fn interest(&self) -> Interest {
        Interest {
            accesses: true,
            only_unknown: false,
            stack: true,
        }
    }

    fn accesses(&mut self, batch: &[AccessEvent]) {
        for access in batch.iter().filter(|access| access.write) {
            let size = u64::from(access.size);
            self.note(access.moment, access.pc, access.address, size);
        }
    }

    fn kernel_access(&mut self, moment: Moment, address: u64, size: u64, write: bool) {
        if write {
            self.note(moment, 0, address, size);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

/// The code that ran in the interval: who wrote the page, or what the thread
/// did.
fn tell_code(
    text: &mut String,
    recording: &Recording,
    process: u32,
    subject: Subject,
    interval: (u64, u64),
) -> Result<(), Failure> {
    match subject {
        Subject::Page(address) => {
            let page = address & !(PAGE - 1);
            let writers = writers(recording, process, page, interval)?;
            let _ = match writers.len() {
                0 => writeln!(text, "\nNobody writes to page {page:#x} in this interval."),
                _ => writeln!(text, "\nWho writes to page {page:#x} in this interval:"),
            };
            for writer in writers.iter().take(SHOWN) {
                let _ = writeln!(
                    text,
                    "  at {} {}, {}, first at +{:#x}",
                    writer.first,
                    plain(&writer.place),
                    count(writer.times, "time"),
                    writer.offset
                );
            }
            if writers.len() > SHOWN {
                let _ = writeln!(text, "  and {} more", writers.len() - SHOWN);
            }
        }
        Subject::Thread(thread) => {
            let places = with_replay(recording, process, |vm| {
                let mut places = Vec::new();
                for point in [interval.0, interval.1] {
                    reach(vm, point)?;
                    let modules = modules_of(vm);
                    let pc = vm.registers(thread).unwrap_or_default().rip;
                    let moment = Moment::new(thread, vm.executed(thread));
                    places.push(format!("{moment} {}", place_in(&modules, pc)));
                }
                Ok(places)
            })?;
            let _ = writeln!(text, "\nWhat thread {thread} ran in this interval:");
            for (word, place) in ["from", "to  "].iter().zip(&places) {
                let _ = writeln!(text, "  {word} {}", plain(place));
            }
        }
    }
    Ok(())
}

/// Who writes to a page in an interval, in the order of their first writes.
fn writers(
    recording: &Recording,
    process: u32,
    page: u64,
    (from, to): (u64, u64),
) -> Result<Vec<Written>, Failure> {
    with_replay(recording, process, |vm| {
        let mut goes_on = true;
        if from > 0 {
            goes_on = reach(vm, from)?;
        }
        vm.observe(Box::new(Writers {
            page,
            found: BTreeMap::new(),
        }));
        if goes_on {
            reach(vm, to)?;
        }
        let modules = modules_of(vm);
        let found = vm
            .take_observers()
            .pop()
            .and_then(|observer| observer.into_any().downcast::<Writers>().ok())
            .map(|writers| writers.found)
            .unwrap_or_default();
        let mut found: Vec<((u32, u64), Written)> = found.into_iter().collect();
        found.sort_by_key(|(_, written)| written.first);
        Ok(found
            .into_iter()
            .map(|((_, pc), written)| Written {
                place: match pc {
                    0 => "a system call".to_string(),
                    pc => place_in(&modules, pc),
                },
                ..written
            })
            .collect())
    })
}

/// The innermost function at an address, and where it is.
fn place_in(modules: &ModuleMap, pc: u64) -> String {
    match modules.frames(pc, false).first() {
        Some(frame) => {
            let function = frame.function.as_deref().unwrap_or("??");
            format!("{function} {}", place_of(frame, pc))
        }
        None => format!("{pc:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_compared_as_far_as_they_get() {
        let unlike = |seen: &[&[u64]]| {
            let seen: Vec<Vec<u64>> = seen.iter().map(|one| one.to_vec()).collect();
            first_unlike(&seen)
        };
        assert_eq!(unlike(&[&[1, 2, 3], &[1, 2, 3]]), None);
        assert_eq!(unlike(&[&[1, 2, 3], &[1, 5, 3], &[1, 2]]), Some(1));
        assert_eq!(unlike(&[&[1, 2], &[1, 2, 3], &[1, 2, 4]]), Some(2));
        assert_eq!(unlike(&[]), None);
    }

    /// Replays whose state is other from some instruction on, every other time.
    #[test]
    fn replays_that_differ_are_narrowed_to_one_instruction() {
        for first in [1_001, 1_002, 77_777, 1_234_567, 1_999_999, 2_000_000] {
            let mut number = 0;
            let found = narrow((1_000, 2_000_000), |points| {
                number += 1;
                let digest = |point: &u64| u64::from(*point >= first) * (number % 2);
                Ok(points.iter().map(digest).collect())
            });
            let found = found.unwrap_or_else(|failure| panic!("{}", failure.message));
            assert_eq!(found, Some((first - 1, first)));
        }
        let alike = narrow((0, 1_000), |points| Ok(points.to_vec()));
        assert!(matches!(alike, Ok(None)));
        // One that ends early differs where it ends.
        let mut number = 0;
        let ended = narrow((0, 64), |points| {
            number += 1;
            let mut seen = vec![7; points.len()];
            if number == 3 {
                seen[20] = 8;
                seen.truncate(21);
            }
            Ok(seen)
        });
        assert!(matches!(ended, Ok(Some((20, 21)))));
    }
}
