//! The annotated programs of `tests/programs/races`: what `deadheat run` says
//! about each must be what its source says.
//!
//! A line that takes part in a race carries `// RACE name`; two lines may be
//! reported as a pair if they share a name, every name must be reported, and
//! nothing else may be. A program without such a line is correct and must give
//! no report. Stripped builds have no lines: there, racy programs must give
//! some report, and correct ones none unless they are listed as known below
//! `STRIPPED_NOISE` (design: at most five).
//!
//! Likewise every kind of lock finding must be named in a line `// LOCKS kind`,
//! and every one named must be reported.
//!
//! If the source has a line `// LABELS label`, every race must have that label.
//!
//! A race that a build is known to hide carries `// MISSED at O0: why`; as soon
//! as it is found there, the note must go.
//!
//! `make test` runs a cut; `DEADHEAT_TEST_ALL=1` runs every program in every
//! build. A failing case prints the command that shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Schedules tried until every race of a program has been seen.
const SEEDS: u64 = 6;

/// Correct programs whose stripped build is reported all the same: their
/// atomic operations are plain instructions and nothing says otherwise.
const STRIPPED_NOISE: &[&str] = &[
    "arc_swap_fence.rs",
    "counting_semaphore.cpp",
    "latch.cpp",
    "seqlock.cpp",
    "std_barrier.cpp",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Build {
    Plain,
    Optimised,
    Stripped,
}

impl Build {
    fn name(self) -> &'static str {
        match self {
            Build::Plain => "O0",
            Build::Optimised => "O2",
            Build::Stripped => "stripped",
        }
    }
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/races")
}

/// Race names by line.
fn expectations(source: &Path) -> BTreeMap<u64, BTreeSet<String>> {
    let text = std::fs::read_to_string(source).expect("the program can be read");
    let mut lines = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let names: BTreeSet<String> = line
            .split("RACE ")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next())
            .map(str::to_string)
            .collect();
        if !names.is_empty() {
            lines.insert(number, names);
        }
    }
    lines
}

fn tool_exists(name: &str) -> bool {
    Command::new(name)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Builds the program; none if the machine has no compiler for it.
fn build(source: &Path, build: Build, folder: &Path) -> Option<PathBuf> {
    let stem = source.file_stem()?.to_str()?;
    let extension = source.extension()?.to_str()?;
    let output = folder.join(format!("{stem}_{extension}_{}", build.name()));
    let level = if build == Build::Plain { "0" } else { "2" };
    let mut command = match extension {
        "c" | "cpp" => {
            let compiler = if extension == "c" { "gcc" } else { "g++" };
            let mut command = Command::new(compiler);
            command.args(["-g", "-pthread", &format!("-O{level}")]);
            if extension == "cpp" {
                command.arg("-std=c++17");
            }
            let text = std::fs::read_to_string(source).ok()?;
            if let Some(flags) = text
                .lines()
                .find_map(|line| line.strip_prefix("// flags: "))
            {
                command.args(flags.split_whitespace());
            }
            command.arg(source).arg("-o").arg(&output);
            command
        }
        "rs" => {
            if !tool_exists("rustc") {
                return None;
            }
            let mut command = Command::new("rustc");
            command.args(["--edition", "2024", "-g", "-A", "warnings", "-C"]);
            command.arg(format!("opt-level={level}"));
            command.arg(source).arg("-o").arg(&output);
            command
        }
        "go" => {
            if !Command::new("go")
                .arg("version")
                .output()
                .is_ok_and(|output| output.status.success())
            {
                return None;
            }
            let mut command = Command::new("go");
            command.arg("build").env("GO111MODULE", "off");
            match build {
                Build::Plain => command.arg("-gcflags=all=-N -l"),
                Build::Optimised => &mut command,
                Build::Stripped => command.args(["-ldflags=-s -w", "-buildmode=pie"]),
            };
            command.arg("-o").arg(&output).arg(source);
            command
        }
        _ => return None,
    };
    let built = command.output().expect("the compiler runs");
    assert!(
        built.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    if build == Build::Stripped && extension != "go" {
        let stripped = Command::new("strip").arg(&output).status();
        assert!(stripped.is_ok_and(|status| status.success()));
    }
    Some(output)
}

/// Innermost line of the program's own source, for each access of each race.
fn reported_pairs(report: &serde_json::Value, source: &Path) -> Vec<[Option<u64>; 2]> {
    let file = source.file_name().and_then(|name| name.to_str());
    let line_of = |access: &serde_json::Value| {
        access["stack"].as_array()?.iter().find_map(|frame| {
            let path = Path::new(frame["file"].as_str()?);
            (path.file_name()?.to_str() == file)
                .then(|| frame["line"].as_u64())
                .flatten()
        })
    };
    report["races"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|race| [line_of(&race["accesses"][0]), line_of(&race["accesses"][1])])
        .collect()
}

fn run(program: &Path, seed: u64) -> Result<serde_json::Value, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args([
            "run",
            "--no-store",
            "--json=/dev/fd/2",
            "--color=never",
            "--k",
            "0",
        ])
        .args(["--seed", &seed.to_string(), "--quantum", "2000", "--"])
        .arg(program)
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    // The text of the report follows on the same stream.
    let mut values = serde_json::Deserializer::from_str(&text).into_iter();
    match values.next() {
        Some(Ok(report)) => Ok(report),
        _ => Err(format!("no report ({}): {text}", output.status)),
    }
}

/// Lock findings that differ from what the source says.
fn judge_locks(source: &Path, report: &serde_json::Value) -> Result<(), String> {
    let text = std::fs::read_to_string(source).map_err(|error| error.to_string())?;
    let expected: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("// LOCKS "))
        .collect();
    let found: BTreeSet<&str> = report["locks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|finding| finding["kind"].as_str())
        .collect();
    match found == expected {
        true => Ok(()),
        false => Err(format!("locks: {found:?} instead of {expected:?}")),
    }
}

/// Races without the label that the source asks for.
fn judge_labels(source: &Path, report: &serde_json::Value) -> Result<(), String> {
    let text = std::fs::read_to_string(source).map_err(|error| error.to_string())?;
    let wanted = text
        .lines()
        .find_map(|line| line.strip_prefix("// LABELS "));
    let races = report["races"].as_array().into_iter().flatten();
    for race in races {
        let has = |label: &str| {
            let labels = race["labels"].as_array().into_iter().flatten();
            labels.into_iter().any(|one| one == label)
        };
        if wanted.is_some_and(|label| !has(label)) {
            return Err(format!("race {} is not labelled {wanted:?}", race["id"]));
        }
    }
    Ok(())
}

/// What is wrong with the answers for this program, if anything.
fn judge(source: &Path, program: &Path, build: Build) -> Result<(), String> {
    let expected = expectations(source);
    let mut missing: BTreeSet<&String> = expected.values().flatten().collect();
    let racy = !missing.is_empty();
    for seed in 0..if racy { SEEDS } else { 1 } {
        let report = run(program, seed)?;
        if seed == 0 {
            judge_locks(source, &report)?;
        }
        judge_labels(source, &report)?;
        let pairs = reported_pairs(&report, source);
        if build == Build::Stripped {
            match (racy, pairs.is_empty()) {
                (true, false) | (false, true) => return Ok(()),
                (false, false) => {
                    let stem = source.file_name().and_then(|name| name.to_str());
                    return match STRIPPED_NOISE.iter().any(|known| Some(*known) == stem) {
                        true => Ok(()),
                        false => Err(format!("{} false reports", pairs.len())),
                    };
                }
                (true, true) => continue,
            }
        }
        for pair in &pairs {
            // An optimiser moves an access to the head of its loop or the
            // call it was inlined from.
            let reach = if build == Build::Optimised { 2 } else { 0 };
            let names = |line: Option<u64>| -> BTreeSet<&String> {
                let Some(line) = line else {
                    return BTreeSet::new();
                };
                expected
                    .range(line.saturating_sub(reach)..=line + reach)
                    .flat_map(|(_, names)| names)
                    .collect()
            };
            let (one, other) = (names(pair[0]), names(pair[1]));
            if one.is_disjoint(&other) {
                return Err(format!("seed {seed}: lines {pair:?} were reported"));
            }
            for name in one.intersection(&other) {
                missing.remove(*name);
            }
        }
        if racy && missing.is_empty() {
            break;
        }
    }
    let note = format!("MISSED at {}", build.name());
    let known_miss = std::fs::read_to_string(source).is_ok_and(|text| text.contains(&note));
    match (build, missing.is_empty()) {
        (_, false) if known_miss => Ok(()),
        (_, true) if known_miss => Err(format!("it is found now: remove `{note}`")),
        (_, true) => Ok(()),
        (Build::Stripped, false) => Err("no race was reported".into()),
        (_, false) => Err(format!("{missing:?} were not reported")),
    }
}

#[test]
fn every_program_is_reported_as_its_source_says() {
    let all = std::env::var_os("DEADHEAT_TEST_ALL").is_some();
    let only = std::env::var("DEADHEAT_TEST_ONLY").ok();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("races");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("c" | "cpp" | "rs" | "go"))
        })
        .filter(|path| {
            only.as_ref()
                .is_none_or(|only| path.to_string_lossy().contains(only.as_str()))
        })
        .collect();
    sources.sort();
    let cases: Vec<(PathBuf, Build)> = sources
        .into_iter()
        .zip(0..)
        .flat_map(|(source, number)| {
            let builds: &[Build] = match (all, number % 3) {
                (true, _) => &[Build::Plain, Build::Optimised, Build::Stripped],
                (false, 0) => &[Build::Optimised],
                (false, 1) => &[Build::Plain],
                (false, _) => &[],
            };
            builds
                .iter()
                .map(move |build| (source.clone(), *build))
                .collect::<Vec<_>>()
        })
        .collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let ran = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((source, kind)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(program) = build(source, *kind, &folder) else {
                        continue;
                    };
                    ran.fetch_add(1, Ordering::Relaxed);
                    if let Err(problem) = judge(source, &program, *kind) {
                        let failure = format!(
                            "{} ({}): {problem}\n    deadheat run -- {}",
                            source.display(),
                            kind.name(),
                            program.display()
                        );
                        if let Ok(mut failures) = failures.lock() {
                            failures.push(failure);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no test thread panicked");
    assert!(ran.into_inner() > 0, "no program was run");
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

/// A wrapper, a shell: the threads are in a child of the recorded program.
#[test]
fn races_of_child_processes_are_found() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("races-of-children");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let compile = |name: &str| {
        build(&programs().join(name), Build::Optimised, &folder).expect("a compiler for C")
    };
    let (racy, correct) = (compile("pipes_apart_race.c"), compile("pipe_orders.c"));
    let shell = format!("{} && {} && {0}; true", racy.display(), correct.display());
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["run", "--no-store", "--json", "--", "sh", "-c", &shell])
        .output()
        .expect("deadheat runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let json = said.find("{\n").or(said.find("{\"")).expect("a report");
    let report: serde_json::Value =
        serde_json::from_str(&said[json..]).expect("the report is JSON");
    let races = report["races"].as_array().expect("races");
    let lines = reported_pairs(&report, &programs().join("pipes_apart_race.c"));
    assert_eq!(races.len(), 1, "{said}");
    assert!(lines[0].iter().all(Option::is_some), "{said}");
    assert_eq!(races[0]["process"], 1, "{said}");
    assert_eq!(races[0]["instances"], 2, "of two runs: {said}");
    assert_ne!(races[0]["verdict"], "unclassified", "{said}");
    assert_eq!(output.status.code(), Some(66));
}
