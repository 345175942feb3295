//! The annotated programs of `tests/programs/heap`: memory errors, torn and
//! uninitialised reads and broken invariants that only one order of a race
//! leads to, and programs that do nothing wrong.
//!
//! A racing line carries `// RACE name: verdict consequence error`, or `any`
//! for a race that is only there to be played in both orders. A race with an
//! error must be reported with it, its stacks and evidence that shows it
//! again. `// LABELS name: label` must be on that race under some seed,
//! `// INVARIANT` and `// ALLOCATOR` are given to `classify`. In a program
//! with `// CLEAN` no error may be reported at all. Programs are built without
//! optimisation, or at each of the levels in a line `// LEVELS`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/heap")
}

#[derive(Default)]
struct Expected {
    clean: bool,
    options: Vec<String>,
    labels: BTreeMap<String, String>,
    /// Names of races by line, and what is expected of each.
    lines: BTreeMap<u64, BTreeSet<String>>,
    answers: BTreeMap<String, Vec<String>>,
}

fn expectations(source: &Path) -> Expected {
    let text = std::fs::read_to_string(source).expect("the program can be read");
    let mut expected = Expected::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line == "// CLEAN" {
            expected.clean = true;
        } else if let Some(invariant) = line.strip_prefix("// INVARIANT ") {
            expected
                .options
                .extend(["--invariant".to_string(), invariant.to_string()]);
        } else if let Some(allocator) = line.strip_prefix("// ALLOCATOR ") {
            expected
                .options
                .extend(["--allocator".to_string(), allocator.to_string()]);
        } else if let Some(label) = line.strip_prefix("// LABELS ") {
            let (name, label) = label.split_once(": ").expect("`LABELS name: label`");
            expected.labels.insert(name.to_string(), label.to_string());
        }
        for note in line.split("// RACE ").skip(1) {
            let (name, rest) = note.split_once(':').expect("`RACE name: verdict`");
            let words = rest.split_whitespace().map(str::to_string).collect();
            let names = expected.lines.entry(number).or_default();
            names.insert(name.to_string());
            expected.answers.insert(name.to_string(), words);
        }
    }
    assert!(
        !expected.answers.is_empty(),
        "{} says nothing",
        source.display()
    );
    expected
}

fn deadheat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .output()
        .expect("deadheat runs")
}

fn levels(source: &Path) -> Vec<String> {
    text_of(source)
        .lines()
        .find_map(|line| line.strip_prefix("// LEVELS "))
        .unwrap_or("0")
        .split_whitespace()
        .map(str::to_string)
        .collect()
}

fn build(source: &Path, level: &str, folder: &Path) -> PathBuf {
    let mut name = source.file_name().unwrap_or_default().to_os_string();
    name.push(format!("-O{level}"));
    let program = folder.join(name);
    let mut compiler = match source.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            let mut compiler = Command::new("rustc");
            compiler.args(["-g", "-Aunsafe_op_in_unsafe_fn", "-Astatic_mut_refs", "-C"]);
            compiler.arg(format!("opt-level={level}"));
            compiler
        }
        Some("cpp") => {
            let mut compiler = Command::new("g++");
            compiler.args(["-g", "-pthread", &format!("-O{level}")]);
            compiler
        }
        _ => {
            let mut compiler = Command::new("gcc");
            compiler.args(["-g", "-pthread", "-w", &format!("-O{level}")]);
            compiler
        }
    };
    let compiled = compiler
        .arg("-o")
        .args([&program, source])
        .output()
        .expect("the compiler runs");
    assert!(
        compiled.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

fn line_of(access: &serde_json::Value, source: &Path) -> Option<u64> {
    access["stack"].as_array()?.iter().find_map(|frame| {
        let path = Path::new(frame["file"].as_str()?);
        (path.file_name() == source.file_name())
            .then(|| frame["line"].as_u64())
            .flatten()
    })
}

/// The error of a race has stacks in the program, and is seen again.
fn check_error(
    race: &serde_json::Value,
    kind: &str,
    source: &Path,
    at: &str,
) -> Result<(), String> {
    let errors = race["errors"].as_array().cloned().unwrap_or_default();
    let Some(error) = errors.iter().find(|error| error["kind"] == kind) else {
        return Err(format!("no {kind} among {errors:?}"));
    };
    let stacks = error["stacks"].as_array().cloned().unwrap_or_default();
    // Who made the error, and where the block came from and went.
    let wanted = match kind {
        "use-after-free" | "double-free" => 3,
        "wild-access" | "invariant-violated" | "return-address-overwritten" | "out-of-bounds" => 1,
        _ => 2,
    };
    let placed = stacks
        .iter()
        .filter(|call| line_of(call, source).is_some())
        .count();
    if placed < wanted {
        return Err(format!("{placed} of {wanted} stacks: {error}"));
    }
    let number = race["replay"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|command| command.as_str()?.split_once("--evidence "))
        .map(|(_, number)| number.to_string())
        .next()
        .ok_or("there is no evidence to replay")?;
    let again = deadheat(&["replay", at, "--evidence", &number]);
    let text = String::from_utf8_lossy(&again.stdout);
    if again.status.code() != Some(66) {
        return Err(format!("evidence {number} is not seen again: {text}"));
    }
    Ok(())
}

/// What is wrong with one seed; the names seen.
fn judge(
    source: &Path,
    program: &Path,
    seed: u64,
    labelled: &mut BTreeSet<String>,
) -> Result<BTreeSet<String>, String> {
    let expected = expectations(source);
    let at = program.with_extension("recording");
    let _ = std::fs::remove_dir_all(&at);
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    let seed = seed.to_string();
    deadheat(&[
        "record",
        "-o",
        &at,
        "--seed",
        &seed,
        "--quantum",
        "150",
        "--",
        &program,
    ]);
    let mut arguments = vec!["classify", "--no-store", "--json", &at];
    arguments.extend(expected.options.iter().map(String::as_str));
    let output = deadheat(&arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!(
            "no report: {error}; {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    if report["errors"]
        .as_array()
        .is_some_and(|errors| !errors.is_empty())
        && expected.clean
    {
        return Err(format!("errors beside the races: {}", report["errors"]));
    }
    let mut seen = BTreeSet::new();
    for race in report["races"].as_array().into_iter().flatten() {
        if expected.clean && (!race["errors"].is_null() || race["consequence"] == "memory-error") {
            return Err(format!(
                "an error: {} {}",
                race["explanation"], race["errors"]
            ));
        }
        let names = [0, 1].map(|side| {
            let line = line_of(&race["accesses"][side], source);
            line.and_then(|line| expected.lines.get(&line))
                .cloned()
                .unwrap_or_default()
        });
        let common: Vec<&String> = names[0].intersection(&names[1]).collect();
        let Some(name) = common.first() else {
            return Err(format!("another race: {race}"));
        };
        let answer = &expected.answers[*name];
        if let Some(label) = expected.labels.get(*name)
            && race["labels"]
                .as_array()
                .is_some_and(|labels| labels.iter().any(|one| one == label))
        {
            labelled.insert(name.to_string());
        }
        if answer[0] != "any" {
            let given = [&race["verdict"], &race["consequence"]];
            let right = answer
                .iter()
                .zip(given)
                .all(|(wanted, given)| given == wanted);
            if !right {
                return Err(format!(
                    "{name}: {} {} instead of {answer:?}: {}",
                    race["verdict"], race["consequence"], race["explanation"]
                ));
            }
        }
        if let Some(kind) = answer.get(2) {
            check_error(race, kind, source, &at).map_err(|why| format!("{name}: {why}"))?;
        }
        seen.insert(name.to_string());
    }
    Ok(seen)
}

/// Programs without errors take long: of these `make test` runs three.
const FAST_CLEAN: [&str; 3] = ["clean_bounds.c", "clean_frames.cpp", "clean_realloc.c"];

fn text_of(source: &Path) -> String {
    std::fs::read_to_string(source).expect("the program is there")
}

fn check(seeds: u64) {
    let only = std::env::var("DEADHEAT_TEST_ONLY").ok();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("heap-{seeds}"));
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            only.as_ref()
                .is_none_or(|only| path.to_string_lossy().contains(only.as_str()))
        })
        .collect();
    sources.sort();
    if seeds < 10 && only.is_none() {
        sources.retain(|source| {
            !text_of(source).starts_with("// CLEAN")
                || FAST_CLEAN.iter().any(|name| source.ends_with(name))
        });
    }
    let mut failures = Vec::new();
    let built = sources
        .iter()
        .flat_map(|source| levels(source).into_iter().map(move |level| (source, level)));
    for (source, level) in built {
        let program = build(source, &level, &folder);
        let (mut seen, mut labelled) = (BTreeSet::new(), BTreeSet::new());
        // One seed of the cut will do for them.
        let clean = text_of(source).starts_with("// CLEAN");
        let seeds = if clean && seeds < 10 { 1 } else { seeds };
        for seed in 0..seeds {
            match judge(source, &program, seed, &mut labelled) {
                Ok(names) => seen.extend(names),
                Err(problem) => failures.push(format!(
                    "{} -O{level} seed {seed}: {problem}",
                    source.display()
                )),
            }
        }
        let expected = expectations(source);
        let missing: Vec<_> = expected
            .answers
            .keys()
            .filter(|name| !seen.contains(*name))
            .collect();
        if !missing.is_empty() && seeds > 1 {
            failures.push(format!(
                "{} -O{level}: {missing:?} never seen",
                source.display()
            ));
        }
        for name in expected
            .labels
            .keys()
            .filter(|name| !labelled.contains(*name))
        {
            failures.push(format!(
                "{}: {name} has not got its label",
                source.display()
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} problems:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn every_error_is_found_and_nothing_else() {
    check(2);
}

#[test]
#[ignore = "ten seeds of every program; part of `make test-all`"]
fn every_error_is_found_under_ten_seeds() {
    check(10);
}

/// A wrong expression is refused with its place, before anything runs.
#[test]
fn a_wrong_invariant_is_refused_before_anything_runs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("heap-refused");
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let program = build(&programs().join("invariant_field.c"), "0", &folder);
    let program = program.to_string_lossy();
    for (option, text, what) in [
        ("--invariant", "account->heldd == 1", "no field `heldd`"),
        (
            "--invariant",
            "acount->held == 1",
            "no global or static variable",
        ),
        ("--invariant", "account->held ==", "ends too early"),
        ("--invariant", "account == ", "ends too early"),
        ("--invariant", "*account == 1", "a structure"),
        ("--allocator", "alloc=a", "no function that frees"),
    ] {
        let output = deadheat(&["run", "--no-store", option, text, "--", &program]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains(what), "{text}: {said}");
        if option == "--invariant" {
            assert!(said.contains('^'), "{text}: {said}");
        }
    }
}
