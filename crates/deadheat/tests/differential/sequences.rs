//! The search: batches of cases, natively and under the vm, and the way down
//! from a difference to one instruction.

use crate::assembler::Entry;
use crate::child::Drive;
use crate::counts;
use crate::faults;
use crate::generate::{Generator, straight_line_codes};
use crate::program::{Case, Layout, PLACES, Place, Program, RECORD, Record};
use crate::random::Random;
use crate::run::{self, Outcome};
use iced_x86::{Code, Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Cases per program.
const BATCH: u64 = 250;
const LIMIT: Duration = Duration::from_secs(60);
/// The gate's cut, the same on every machine; `DEADHEAT_DIFFERENTIAL_SECONDS`
/// searches on by time instead.
const BATCHES: u64 = 48;

/// How a batch runs under the vm.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// `deadheat record` and `deadheat replay`; beside a second thread with
    /// this quantum, if there is one.
    Commands { quantum: Option<u64>, replay: bool },
    /// A vm of our own.
    Child(Drive),
}

fn mode(seed: u64) -> Mode {
    let commands = |quantum, replay| Mode::Commands { quantum, replay };
    let child = |observe, step, eager| {
        Mode::Child(Drive {
            observe,
            step,
            eager,
            ..Drive::default()
        })
    };
    match seed % 12 {
        0 => commands(None, true),
        1 => child(true, None, None),
        2 => commands(Some(1), false),
        3 => child(false, None, Some(150)),
        4 => commands(Some(2), true),
        5 => child(true, None, Some(150)),
        6 => commands(Some(3), false),
        7 => child(false, Some(1), None),
        8 => commands(Some(7), false),
        9 => child(true, Some(97), Some(130)),
        10 => commands(Some(50), true),
        _ => child(false, Some(1009), Some(200)),
    }
}

struct Search {
    folder: PathBuf,
    codes: Vec<Code>,
}

pub fn run(arguments: &[String]) -> Result<(), String> {
    let option = |name: &str| -> Option<u64> {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse().ok()
    };
    let folder = std::env::temp_dir().join(format!("deadheat-differential-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut search = Search {
        folder: folder.clone(),
        codes: straight_line_codes(),
    };
    let known = search.codes.len();
    search.keep_what_the_machine_has()?;
    println!(
        "{} of {known} instruction forms of 64-bit mode work on this processor",
        search.codes.len()
    );
    let seed = option("--seed").unwrap_or(1);
    if option("--case").is_none() {
        let faults = faults::run(&folder, seed, &search.codes)?;
        println!("{faults} kinds of fault are precise");
        let counted = counts::run(&folder, seed, &search.codes)?;
        println!("{counted} instructions counted and seen as by single-stepping");
    }
    let seconds = std::env::var("DEADHEAT_DIFFERENTIAL_SECONDS")
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    let start = Instant::now();
    let first = seed;
    let mut seed = seed;
    let mut cases = 0;
    let mut lost = 0;
    let mut result = loop {
        match search.batch(seed, option("--case")) {
            Ok(Some(count)) => cases += count,
            Ok(None) => lost += 1,
            Err(message) => break Err(message),
        }
        if option("--seed").is_some() && option("--count").is_none() {
            break Ok(());
        }
        seed += 1;
        let over = match seconds {
            None => seed - first >= BATCHES,
            Some(0) => false,
            Some(seconds) => start.elapsed().as_secs() >= seconds,
        };
        if over {
            break Ok(());
        }
    };
    println!(
        "corpus: {cases} cases equal, seeds from {first} to below {seed}, of which {lost} lost their way natively"
    );
    // Rarely a case writes where the program keeps its own state.
    if lost > 1 + (seed - first) / 100 {
        result = result.and(Err(format!("{lost} batches lost their way natively")));
    }
    if result.is_ok() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    result
}

fn mix(seed: u64, index: u64) -> u64 {
    Random::new(seed.wrapping_mul(0x1_0000).wrapping_add(index)).next()
}

impl Search {
    fn native(&self, program: &Path) -> Outcome {
        /// A program that writes more has lost its way.
        const MOST_OUTPUT: u64 = 64 << 20;
        let limited = || {
            let limit = libc::rlimit {
                rlim_cur: MOST_OUTPUT,
                rlim_max: MOST_OUTPUT,
            };
            // SAFETY: a plain structure.
            match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        let mut command = Command::new(program);
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(limited) };
        run::run(command, &self.folder, LIMIT)
    }

    /// Drops the codes that raise an illegal instruction (or another fault
    /// with all operands tried) natively.
    fn keep_what_the_machine_has(&mut self) -> Result<(), String> {
        let layout = Layout::new(Place::Low);
        let codes = std::mem::take(&mut self.codes);
        let mut works = vec![false; codes.len()];
        for attempt in 0..6 {
            let untried: Vec<usize> = (0..codes.len()).filter(|at| !works[*at]).collect();
            let mut cases = Vec::new();
            let mut tried = Vec::new();
            for index in untried {
                let seed = mix(0xc0de + attempt, index as u64);
                let mut generator = Generator {
                    random: Random::new(seed),
                    layout: &layout,
                };
                let case = generator.straight_line(seed, &codes, Some(codes[index]));
                if !case.body.is_empty() {
                    cases.push(case);
                    tried.push(index);
                }
            }
            let faulting = self.faulting(&cases, 0, layout)?.unwrap_or_default();
            for (index, faulted) in tried.iter().zip(faulting) {
                works[*index] |= !faulted;
            }
        }
        self.codes = codes
            .iter()
            .zip(&works)
            .filter(|(_, works)| **works)
            .map(|(code, _)| *code)
            .collect();
        if std::env::var_os("DEADHEAT_DIFFERENTIAL_VERBOSE").is_some() {
            for (code, works) in codes.iter().zip(&works) {
                if !works {
                    println!("not here: {}", code.op_code().instruction_string());
                }
            }
        }
        Ok(())
    }

    /// Which cases fault natively. None if they make the program lose its way:
    /// one of them has written where it keeps its own state.
    fn faulting(
        &self,
        cases: &[Case],
        seed: u64,
        layout: Layout,
    ) -> Result<Option<Vec<bool>>, String> {
        let path = self.folder.join("probe");
        Program::new(cases, seed, layout, true)?
            .write(&path, false)
            .map_err(|error| error.to_string())?;
        let outcome = self.native(&path);
        let records: Vec<_> = outcome.output.chunks_exact(RECORD).collect();
        if outcome.status == Some(-libc::SIGXFSZ) {
            return Ok(None);
        }
        if outcome.status != Some(0) || records.len() != cases.len() {
            let at = records.len();
            return Err(format!(
                "the native trial ended with {:?} after {at} of {} cases; next: {}",
                outcome.status,
                cases.len(),
                cases
                    .get(at)
                    .map_or(String::new(), |case| text(case, layout.code))
            ));
        }
        Ok(Some(
            records
                .iter()
                .map(|record| Record(record).signal() != 0)
                .collect(),
        ))
    }

    fn case(&self, layout: &Layout, seed: u64, index: u64) -> Case {
        let case_seed = mix(seed, index);
        let mut generator = Generator {
            random: Random::new(case_seed ^ 0xabcd),
            layout,
        };
        if index % 3 == 2 {
            generator.control_flow(case_seed, &self.codes)
        } else {
            generator.straight_line(case_seed, &self.codes, None)
        }
    }

    /// How many cases were equal; none if the batch says nothing.
    fn batch(&self, seed: u64, only: Option<u64>) -> Result<Option<usize>, String> {
        let place = PLACES[seed as usize % PLACES.len()];
        let mode = mode(seed);
        let layout = Layout::new(place);
        let indices: Vec<u64> = only.map_or((0..BATCH).collect(), |index| vec![index]);
        let mut cases = Vec::new();
        let mut numbers = Vec::new();
        for index in indices {
            let case = self.case(&layout, seed, index);
            // A short jump over too much has no encoding: leave it out.
            if Program::new(std::slice::from_ref(&case), seed, layout, false).is_ok() {
                cases.push(case);
                numbers.push(index);
            }
        }
        let Some(faulting) = self.faulting(&cases, seed, layout)? else {
            return Ok(None);
        };
        // One of the cases that fault, by its state at the fault.
        if let Some(at) = (0..cases.len()).find(|at| faulting[*at]) {
            faults::check(&self.folder, &cases[at], seed, layout, &[Drive::default()]).map_err(
                |what| {
                    format!(
                        "seed {seed} case {} ({place:?}): the fault differs from native: {what}",
                        numbers[at]
                    )
                },
            )?;
        }
        let keep = |at: &usize| !faulting[*at];
        let kept: Vec<usize> = (0..cases.len()).filter(keep).collect();
        let cases: Vec<Case> = kept.iter().map(|at| cases[*at].clone()).collect();
        let numbers: Vec<u64> = kept.iter().map(|at| numbers[*at]).collect();
        if cases.is_empty() {
            return Ok(Some(0));
        }
        match self.compare(&cases, seed, layout, &mode)? {
            None => Ok(Some(cases.len())),
            Some((at, what)) => {
                let (small, what) = self.shrink(&cases[at], seed, layout, &mode, what)?;
                Err(format!(
                    "seed {seed} case {} ({place:?}, {mode:?}): translated code differs from native\n  {}\n  code:\n{}\n  again: cargo test --release -p deadheat --test differential -- --seed {seed} --case {}",
                    numbers[at],
                    what.join("\n  "),
                    text(&small, layout.code),
                    numbers[at],
                ))
            }
        }
    }

    /// The first case whose outcomes differ, and how.
    fn compare(
        &self,
        cases: &[Case],
        seed: u64,
        layout: Layout,
        mode: &Mode,
    ) -> Result<Option<(usize, Vec<String>)>, String> {
        let program = Program::new(cases, seed, layout, false)?;
        let path = self.folder.join("program");
        let write = |companion| {
            program
                .write(&path, companion)
                .map_err(|error| error.to_string())
        };
        write(false)?;
        let native = self.native(&path);
        if native.status != Some(0) || native.output.len() != cases.len() * RECORD {
            return Err(format!(
                "seed {seed}: the native run ended with {:?} after {} cases",
                native.status,
                native.output.len() / RECORD
            ));
        }
        match mode {
            Mode::Commands { quantum, replay } => {
                write(quantum.is_some())?;
                let recording = self.folder.join("recording");
                let _ = std::fs::remove_dir_all(&recording);
                let mut record = run::deadheat();
                record.arg("record").arg("-o").arg(&recording);
                record.args(["--seed", &seed.to_string()]);
                if let Some(quantum) = quantum {
                    record.args(["--quantum", &quantum.to_string()]);
                }
                record.arg("--").arg(&path);
                let outcome = run::run(record, &self.folder, LIMIT);
                if let Some(found) = difference("record", &native, &outcome, cases.len()) {
                    return Ok(Some(found));
                }
                if *replay {
                    let mut replay = run::deadheat();
                    replay.arg("replay").arg(&recording);
                    let outcome = run::run(replay, &self.folder, LIMIT);
                    return Ok(difference("replay", &native, &outcome, cases.len()));
                }
                Ok(None)
            }
            Mode::Child(drive) => {
                let command = drive.command(&path, &self.folder.join("report"));
                let outcome = run::run(command, &self.folder, LIMIT);
                Ok(difference("the vm", &native, &outcome, cases.len()))
            }
        }
    }

    /// Drops entries of the body while the difference stays.
    fn shrink(
        &self,
        case: &Case,
        seed: u64,
        layout: Layout,
        mode: &Mode,
        what: Vec<String>,
    ) -> Result<(Case, Vec<String>), String> {
        let check = |case: &Case| -> Option<Vec<String>> {
            let cases = std::slice::from_ref(case);
            if self.faulting(cases, seed, layout).ok()??.first() != Some(&false) {
                return None;
            }
            self.compare(cases, seed, layout, mode)
                .ok()?
                .map(|(_, what)| what)
        };
        let mut best = case.clone();
        let Some(mut what) = check(&best) else {
            let mut what = what;
            what.push("(only together with the cases before it)".into());
            return Ok((best, what));
        };
        let mut at = best.body.len();
        while at > 0 {
            at -= 1;
            if matches!(best.body[at], Entry::Label(_)) {
                continue;
            }
            let mut smaller = best.clone();
            smaller.body.remove(at);
            if let Some(found) = check(&smaller) {
                best = smaller;
                what = found;
            }
        }
        Ok((best, what))
    }
}

fn difference(
    name: &str,
    native: &Outcome,
    vm: &Outcome,
    cases: usize,
) -> Option<(usize, Vec<String>)> {
    let both = native
        .output
        .chunks_exact(RECORD)
        .zip(vm.output.chunks_exact(RECORD));
    for (at, (one, two)) in both.enumerate() {
        if one != two {
            let mut what = Record(one).differences(&Record(two), u64::MAX);
            what.insert(0, format!("under {name}:"));
            return Some((at, what));
        }
    }
    if vm.status != Some(0) || vm.output.len() != native.output.len() {
        let at = (vm.output.len() / RECORD).min(cases - 1);
        let status = vm
            .status
            .map_or("no end in time".into(), |status| status.to_string());
        return Some((
            at,
            vec![format!("{name} ended with {status}: {}", vm.errors.trim())],
        ));
    }
    None
}

/// The instructions of a case, as text.
pub fn text(case: &Case, base: u64) -> String {
    let mut formatter = IntelFormatter::new();
    let mut show = |instruction: &Instruction| {
        let mut line = String::new();
        formatter.format(instruction, &mut line);
        line
    };
    let mut lines = Vec::new();
    for entry in &case.body {
        lines.push(match entry {
            Entry::Plain(instruction) => show(instruction),
            Entry::Bytes(bytes) => Decoder::with_ip(64, bytes, base, DecoderOptions::NONE)
                .into_iter()
                .map(|instruction| show(&instruction))
                .collect::<Vec<_>>()
                .join("; "),
            Entry::Branch(code, label) => format!("{:?} L{label}", code.mnemonic()).to_lowercase(),
            Entry::LoadAddress(register, label) => format!("lea {register:?}, L{label}"),
            Entry::Through(code, label) => format!("{:?} [L{label}]", code.mnemonic()),
            Entry::Label(label) => format!("L{label}:"),
            Entry::Quad(label) => format!("dq L{label}"),
            Entry::PageOffset(offset) => format!("to page offset {offset:#x}"),
        });
    }
    format!("    {}", lines.join("\n    "))
}
