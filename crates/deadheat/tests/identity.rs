//! The identity gate: what was recorded is what is replayed.
//!
//! Every program in `tests/programs/vm` whose source says `identity:` is built
//! and recorded under all four schedules with several seeds. Each recording is
//! replayed: same output, same exit, same final registers and memory (the
//! replay checks their hash itself). It is replayed once more with an observer
//! of all accesses, which must not change anything either. Programs that
//! declare `output as natively` must print what they print natively under
//! every schedule; one that declares `output depends on the schedule` gives one
//! result per seed and several over the seeds.
//!
//!     cargo test --release -p deadheat --test identity -- racy_counter
//!
//! DEADHEAT_IDENTITY_SEEDS sets how many seeds each schedule gets (default 1).
//! DEADHEAT_IDENTITY_PAIRS=N instead makes N recordings of programs, schedules,
//! seeds and quanta drawn at random (from the seed DEADHEAT_IDENTITY_START, so
//! that a run can be had again) and replays each; DEADHEAT_IDENTITY_TABLE=FILE
//! writes what docs/results/pairs.md holds.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use vm::observe::{AccessEvent, Interest, Observer};
use vm::record::{ProcessStatus, Recording};
use vm::{Stop, Vm};

const SCHEDULES: [&str; 4] = ["round-robin", "random", "pct", "sequencer"];

/// First argument of this program started again as the process of a vm.
const CHILD: &str = "replay-observed";

/// How the output of a program relates to its schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expectation {
    AsNatively,
    DependsOnSchedule,
}

struct Subject {
    name: String,
    program: PathBuf,
    expectation: Expectation,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, directory] = arguments.as_slice()
        && first == CHILD
    {
        return match replay_observed(Path::new(directory)) {
            Ok(code) => code,
            Err(message) => {
                eprintln!("{message}");
                ExitCode::from(70)
            }
        };
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let folder = std::env::temp_dir().join(format!("deadheat-identity-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    if let Some(pairs) = number("DEADHEAT_IDENTITY_PAIRS") {
        let subjects = subjects(&folder, wanted.map(String::as_str));
        return random_pairs(&subjects, &folder, pairs);
    }
    let mut failures = Vec::new();
    let mut alike = 0;
    for subject in subjects(&folder, wanted.map(String::as_str)) {
        match subject.and_then(|subject| check(&subject, &folder)) {
            Ok(line) => {
                println!("{line}");
                alike += 1;
            }
            Err(message) => {
                println!("FAILED {message}");
                failures.push(message);
            }
        }
    }
    println!(
        "corpus: {alike} programs alike in every replay, {} not",
        failures.len()
    );
    if failures.is_empty() {
        let _ = std::fs::remove_dir_all(&folder);
        ExitCode::SUCCESS
    } else {
        eprintln!(
            "{} programs failed; recordings are in {}",
            failures.len(),
            folder.display()
        );
        ExitCode::FAILURE
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// SplitMix64: a number that looks random from every state.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// How the pairs of one program went.
#[derive(Default)]
struct Tally {
    pairs: u64,
    bytes: u64,
    outputs: HashSet<Vec<u8>>,
}

/// Records and replays programs, schedules, seeds and quanta drawn at random.
fn random_pairs(subjects: &[Result<Subject, String>], folder: &Path, pairs: u64) -> ExitCode {
    let start = number("DEADHEAT_IDENTITY_START").unwrap_or(1);
    let mut state = start;
    let mut random = || next_random(&mut state);
    let mut tallies: std::collections::BTreeMap<&str, Tally> = Default::default();
    let mut failures = 0;
    for subject in subjects {
        if let Err(message) = subject {
            println!("FAILED {message}");
            failures += 1;
        }
    }
    let subjects: Vec<&Subject> = subjects.iter().flatten().collect();
    for pair in 0..pairs {
        let subject = subjects[random() as usize % subjects.len()];
        let schedule = SCHEDULES[random() as usize % SCHEDULES.len()];
        let seed = random() >> 1;
        // From 50 to 100,000 instructions, every order of magnitude alike.
        let quantum = (50.0 * 2000f64.powf((random() % 1000) as f64 / 1000.0)) as u64;
        let directory = folder.join(format!("pair.{pair}"));
        let mut recorder = record_with(subject, &directory, schedule, seed, quantum);
        let replayed = run(&mut recorder).and_then(|recorded| {
            let mut replay = limited(env!("CARGO_BIN_EXE_deadheat"));
            replay.arg("replay").arg(&directory);
            demand(&mut replay, &recorded, "replay")?;
            Ok(recorded)
        });
        match replayed {
            Ok(recorded) => {
                let tally = tallies.entry(subject.name.as_str()).or_default();
                tally.pairs += 1;
                tally.bytes += size_of_folder(&directory);
                tally.outputs.insert(recorded.stdout);
                let _ = std::fs::remove_dir_all(&directory);
            }
            Err(message) => {
                println!("FAILED pair {pair}: {recorder:?}: {message}");
                failures += 1;
            }
        }
    }
    let done: u64 = tallies.values().map(|tally| tally.pairs).sum();
    println!(
        "corpus: {pairs} pairs from seed {start}: {done} replayed alike, {failures} diverged or failed"
    );
    if let Some(path) = std::env::var_os("DEADHEAT_IDENTITY_TABLE") {
        let mut text = format!(
            "# Record/replay pairs\n\n\
             {pairs} recordings of the programs in `tests/programs/vm`, each with a schedule (all\n\
             four), a seed and a quantum (50 to 100,000 instructions) drawn at random, and a replay\n\
             of each: output, exit, registers at every switch and all memory at the end are compared.\n\
             {failures} diverged. Made by `make test-all` (start seed {start}).\n\n\
             | program | pairs | different outputs | bytes per recording |\n\
             | --- | --- | --- | --- |\n"
        );
        for (name, tally) in &tallies {
            text.push_str(&format!(
                "| {name} | {} | {} | {} |\n",
                tally.pairs,
                tally.outputs.len(),
                tally.bytes / tally.pairs.max(1)
            ));
        }
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("{}: {error}", Path::new(&path).display());
            return ExitCode::FAILURE;
        }
    }
    if failures == 0 {
        let _ = std::fs::remove_dir_all(folder);
        ExitCode::SUCCESS
    } else {
        eprintln!("recordings are in {}", folder.display());
        ExitCode::FAILURE
    }
}

fn size_of_folder(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size_of_folder(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Replays with every access observed; ends like the program did.
fn replay_observed(directory: &Path) -> Result<ExitCode, String> {
    struct Count(u64);
    impl Observer for Count {
        fn interest(&self) -> Interest {
            Interest {
                accesses: true,
                ..Interest::default()
            }
        }
        fn accesses(&mut self, batch: &[AccessEvent]) {
            self.0 += batch.len() as u64;
        }
        fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
            self
        }
    }
    let recording = Recording::open(directory).map_err(|error| error.to_string())?;
    let mut vm = Vm::replay(&recording).map_err(|error| error.to_string())?;
    vm.observe(Box::new(Count(0)));
    let status = match vm.run(None).map_err(|error| error.to_string())? {
        Stop::Ended(status) => status,
        other => return Err(format!("the replay stopped: {other:?}")),
    };
    let seen = vm
        .take_observers()
        .into_iter()
        .find_map(|observer| observer.into_any().downcast::<Count>().ok())
        .map_or(0, |count| count.0);
    if seen == 0 {
        return Err("the observer saw no access".into());
    }
    Ok(match status {
        ProcessStatus::Exited(code) => ExitCode::from(code as u8),
        ProcessStatus::Killed(signal) => ExitCode::from(128 + signal as u8),
    })
}

fn programs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm")
}

/// Builds the programs, dynamic and (where C allows it) static.
fn subjects(folder: &Path, wanted: Option<&str>) -> Vec<Result<Subject, String>> {
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs_folder())
        .expect("the programs are in the repository")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    sources.sort();
    let mut subjects = Vec::new();
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap_or_default();
        let header = |name: &str| {
            text.lines().find_map(|line| {
                line.strip_prefix("// ")?
                    .strip_prefix(name)?
                    .strip_prefix(": ")
            })
        };
        let Some(declared) = header("identity") else {
            continue;
        };
        let name = source
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let expectation = match declared {
            "output as natively" => Expectation::AsNatively,
            "output depends on the schedule" => Expectation::DependsOnSchedule,
            other => {
                subjects.push(Err(format!("{name}: unknown expectation `{other}`")));
                continue;
            }
        };
        let flags: Vec<&str> =
            header("flags").map_or(Vec::new(), |flags| flags.split(' ').collect());
        let variants: &[(&str, &[&str])] = match source.extension().and_then(|one| one.to_str()) {
            Some("c") if !flags.contains(&"-ldl") => &[("", &[]), ("-static", &["-static"])],
            _ => &[("", &[])],
        };
        for (suffix, extra) in variants {
            let full = format!("{name}{suffix}");
            if wanted.is_some_and(|wanted| !full.contains(wanted)) {
                continue;
            }
            let program = folder.join(&full);
            let mut command = match source.extension().and_then(|one| one.to_str()) {
                Some("c") => Command::new("gcc"),
                Some("cpp") => Command::new("g++"),
                Some("rs") => Command::new("rustc"),
                _ => continue,
            };
            if source.extension().is_some_and(|one| one == "rs") {
                command.args(["--edition", "2024", "-O", "-g"]);
            } else {
                command.args(["-O2", "-g", "-pthread"]);
            }
            command.arg(&source).arg("-o").arg(&program);
            command.args(&flags).args(*extra);
            let built = command.output();
            subjects.push(match built {
                Ok(output) if output.status.success() => Ok(Subject {
                    name: full,
                    program,
                    expectation,
                }),
                Ok(output) => Err(format!(
                    "{name}: {}",
                    String::from_utf8_lossy(&output.stderr)
                )),
                Err(error) => Err(format!("{name}: {error}")),
            });
        }
    }
    subjects
}

/// A command that is killed if it hangs; no program here takes a second.
fn limited(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60"]).arg(program);
    command
}

fn run(command: &mut Command) -> Result<Output, String> {
    command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))
}

/// Runs `command` and demands exactly this output and exit.
fn demand(command: &mut Command, expected: &Output, what: &str) -> Result<(), String> {
    let output = run(command)?;
    if output.stdout == expected.stdout && output.status == expected.status {
        return Ok(());
    }
    Err(format!(
        "{what}: {} `{}`, expected {} `{}`\n  {}\n  command: {command:?}",
        output.status,
        String::from_utf8_lossy(&output.stdout).trim(),
        expected.status,
        String::from_utf8_lossy(&expected.stdout).trim(),
        String::from_utf8_lossy(&output.stderr).trim(),
    ))
}

fn record(subject: &Subject, directory: &Path, schedule: &str, seed: u64) -> Command {
    record_with(subject, directory, schedule, seed, 3000)
}

fn record_with(
    subject: &Subject,
    directory: &Path,
    schedule: &str,
    seed: u64,
    quantum: u64,
) -> Command {
    let _ = std::fs::remove_dir_all(directory);
    let mut command = limited(env!("CARGO_BIN_EXE_deadheat"));
    command
        .args(["record", "--schedule", schedule])
        .args(["--quantum", &quantum.to_string()])
        .args(["--seed", &seed.to_string(), "-o"])
        .arg(directory)
        .arg("--")
        .arg(&subject.program);
    command
}

fn check(subject: &Subject, folder: &Path) -> Result<String, String> {
    let name = &subject.name;
    let seeds: u64 = std::env::var("DEADHEAT_IDENTITY_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let native = run(&mut Command::new(&subject.program))?;
    let mut results = HashSet::new();
    let mut count = 0;
    for (index, schedule) in SCHEDULES.iter().enumerate() {
        let seeds = match subject.expectation {
            Expectation::AsNatively => seeds,
            Expectation::DependsOnSchedule => seeds.max(4),
        };
        for seed in 0..seeds {
            let seed = seed * 100 + index as u64;
            let at = |what: &str| format!("{name}, {schedule}, seed {seed}, {what}");
            let directory = folder.join(format!("{name}.{schedule}.{seed}"));
            let recorded = run(&mut record(subject, &directory, schedule, seed))?;
            match subject.expectation {
                Expectation::AsNatively => {
                    if recorded.stdout != native.stdout || recorded.status != native.status {
                        return Err(format!(
                            "{}: {} `{}`, natively {} `{}`\n  {}",
                            at("record"),
                            recorded.status,
                            String::from_utf8_lossy(&recorded.stdout).trim(),
                            native.status,
                            String::from_utf8_lossy(&native.stdout).trim(),
                            String::from_utf8_lossy(&recorded.stderr).trim(),
                        ));
                    }
                }
                Expectation::DependsOnSchedule => {
                    let again = folder.join("again");
                    demand(
                        &mut record(subject, &again, schedule, seed),
                        &recorded,
                        &at("recorded again with the same seed"),
                    )?;
                }
            }
            let mut replay = limited(env!("CARGO_BIN_EXE_deadheat"));
            replay.arg("replay").arg(&directory);
            demand(&mut replay, &recorded, &at("replay"))?;
            let mut observed = limited(std::env::current_exe().expect("we are running"));
            observed.arg(CHILD).arg(&directory);
            demand(
                &mut observed,
                &recorded,
                &at("replay with accesses observed"),
            )?;
            let _ = std::fs::remove_dir_all(&directory);
            results.insert(recorded.stdout);
            count += 1;
        }
    }
    if subject.expectation == Expectation::DependsOnSchedule && results.len() < 2 {
        return Err(format!("{name}: one result over all schedules and seeds"));
    }
    Ok(format!(
        "{name}: {count} recordings replayed, {} results",
        results.len()
    ))
}
