//! The annotated programs of `tests/programs/hunt`: each fails under some
//! schedule, and `deadheat hunt` must find it, bring it down to a few switches
//! and name what decides it.
//!
//! `HUNT fails: exit N`, `signal N`, `deadlock`, `hang` or `output` says how;
//! `HUNT fail-if: REGEX` what output is a failure. Lines that take part in what
//! decides carry `DECIDES`: both accesses of the pair that is named must be on
//! such lines; of a deadlock, the places of the circle; where no pair can be
//! named (locks made of atomics), a switch must be at such a line.
//!
//! `make test` hunts in a few of them; the ignored test in all.

use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Switches that may be left.
const FEW: usize = 5;

/// One of each kind.
const FAST: [&str; 6] = [
    "overdraft.c",
    "early_use.c",
    "transfer_both_ways.c",
    "stop_unseen.c",
    "checked_twice.c",
    "two_sections.c",
];

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/hunt")
}

struct Expected {
    kind: String,
    value: Option<i64>,
    fail_if: Option<String>,
    decides: BTreeSet<u64>,
}

fn expected(source: &Path) -> Expected {
    let text = std::fs::read_to_string(source).expect("the program can be read");
    let note = |key: &str| {
        text.lines()
            .find_map(|line| line.split_once(&format!("HUNT {key}: ")))
            .map(|(_, rest)| rest.trim().to_string())
    };
    let fails = note("fails").expect("`HUNT fails: …`");
    let mut words = fails.split_whitespace();
    let decides: BTreeSet<u64> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.contains("// DECIDES"))
        .map(|(number, _)| number)
        .collect();
    assert!(!decides.is_empty(), "{} names nothing", source.display());
    Expected {
        kind: words.next().expect("a kind").to_string(),
        value: words.next().map(|value| value.parse().expect("a number")),
        fail_if: note("fail-if"),
        decides,
    }
}

fn build(source: &Path, folder: &Path) -> PathBuf {
    let program = folder.join(source.file_name().expect("a name"));
    let program = program.with_extension(format!(
        "{}.out",
        source.extension().unwrap_or_default().to_string_lossy()
    ));
    let mut command = match source.extension().and_then(|ext| ext.to_str()) {
        Some("rs") => {
            let mut command = Command::new("rustc");
            command.args(["-g", "--edition", "2024", "-A", "warnings", "-o"]);
            command
        }
        Some("cpp") => {
            let mut command = Command::new("g++");
            command.args(["-g", "-O1", "-pthread", "-o"]);
            command
        }
        _ => {
            let mut command = Command::new("gcc");
            command.args(["-g", "-O1", "-pthread", "-o"]);
            command
        }
    };
    let built = command
        .arg(&program)
        .arg(source)
        .output()
        .expect("a compiler");
    assert!(
        built.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    program
}

fn deadheat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .output()
        .expect("deadheat runs")
}

/// The line of the innermost frame in the source.
fn line_of(stack: &Value, source: &Path) -> Option<u64> {
    stack.as_array()?.iter().find_map(|frame| {
        let path = Path::new(frame["file"].as_str()?);
        (path.file_name() == source.file_name())
            .then(|| frame["line"].as_u64())
            .flatten()
    })
}

/// Lines that a sentence names, `transfer transfer_both_ways.c:18`.
fn lines_in(text: &str, source: &Path) -> BTreeSet<u64> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    text.split(&format!("{name}:"))
        .skip(1)
        .filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit());
            rest[..end.unwrap_or(rest.len())].parse().ok()
        })
        .collect()
}

/// What is wrong with what the hunt says; a line about it otherwise.
fn judge(source: &Path, folder: &Path) -> Result<String, String> {
    let expected = expected(source);
    let program = build(source, folder);
    let at = folder.join(format!(
        "{}.rec",
        program.file_name().unwrap_or_default().display()
    ));
    let at_text = at.to_string_lossy().into_owned();
    let program = program.to_string_lossy().into_owned();
    let mut arguments = vec!["hunt", "--json", "--time", "300", "--output", &at_text];
    if let Some(pattern) = &expected.fail_if {
        arguments.extend(["--fail-if", pattern]);
    }
    arguments.extend(["--", &program]);
    let output = deadheat(&arguments);
    let found: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!(
            "no answer: {error}; {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    if output.status.code() != Some(66) {
        return Err(format!("not found: {}", found["covered"]));
    }
    let failure = &found["failures"][0];
    let signature = &failure["signature"];
    if signature["kind"] != expected.kind.as_str() || signature["value"].as_i64() != expected.value
    {
        return Err(format!("{signature}: {}", failure["text"]));
    }
    let switches = failure["switches"].as_array().map_or(0, Vec::len);
    if switches > FEW || failure["minimal"] != true {
        return Err(format!(
            "{switches} switches of {} are left, minimal: {}",
            failure["switches_before"], failure["minimal"]
        ));
    }
    named(source, &expected, failure)?;
    replays(&expected, &at_text)?;
    Ok(format!(
        "run {}, {} of {} switches",
        failure["run"], switches, failure["switches_before"]
    ))
}

fn named(source: &Path, expected: &Expected, failure: &Value) -> Result<(), String> {
    let decides = |line: &u64| expected.decides.contains(line);
    if expected.kind == "deadlock" {
        let place = failure["signature"]["place"].as_str().unwrap_or_default();
        let lines = lines_in(place, source);
        return if !lines.is_empty() && lines.iter().all(decides) {
            Ok(())
        } else {
            Err(format!("the circle is at {place}"))
        };
    }
    let first = &failure["decided"][0];
    if first.is_null() {
        let at = |scene: &Value| {
            ["from", "onto"]
                .iter()
                .filter_map(|side| line_of(&scene[side], source))
                .any(|line| decides(&line))
        };
        let switches = failure["switches"].as_array();
        return if switches.into_iter().flatten().any(at) {
            Ok(())
        } else {
            Err(format!("nothing is named: {}", failure["switches"]))
        };
    }
    let lines = [0, 1].map(|side| line_of(&first["race"]["accesses"][side]["stack"], source));
    match lines {
        [Some(one), Some(other)] if decides(&one) && decides(&other) => Ok(()),
        _ => Err(format!("lines {lines:?} are named ({})", first["flip"])),
    }
}

/// The recording shows the failure again.
fn replays(expected: &Expected, at: &str) -> Result<(), String> {
    let output = deadheat(&["replay", at]);
    let right = match (expected.kind.as_str(), expected.value) {
        ("exit", Some(code)) => output.status.code().map(i64::from) == Some(code),
        ("signal", Some(signal)) => output.status.signal().map(i64::from) == Some(signal),
        ("output", _) => output.status.code() == Some(0),
        // It was ended where nothing could go on.
        _ => output.status.signal() == Some(9),
    };
    if right {
        Ok(())
    } else {
        Err(format!(
            "the replay ends with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// Hunts in these programs, some at once.
fn hunt_in(sources: Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // Each hunt keeps every processor busy by itself.
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(source) = sources.get(number) else {
            break;
        };
        let name = source.file_name().unwrap_or_default().display().to_string();
        match judge(source, folder.path()) {
            Ok(how) => println!("{name}: {how}"),
            Err(why) => failures
                .lock()
                .expect("nobody panics")
                .push(format!("{name}: {why}")),
        }
    }
    let failures = failures.into_inner().expect("nobody panics");
    println!(
        "corpus: {} of {} programs found, minimised and named",
        sources.len() - failures.len(),
        sources.len()
    );
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn failures_are_found_made_small_and_explained() {
    hunt_in(FAST.iter().map(|name| programs().join(name)).collect());
}

#[test]
#[ignore = "several minutes; part of make test-all"]
fn in_every_program() {
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext != "h"))
        .collect();
    sources.sort();
    assert!(sources.len() >= 20, "{} programs", sources.len());
    hunt_in(sources);
}

/// What a hunt leaves can be looked at in gdb: it stands where the program
/// fails, and goes back from there to where the value came from.
#[test]
fn the_failure_is_seen_in_gdb() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build(&programs().join("early_use.c"), folder.path());
    let at = folder.path().join("found");
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    let hunted = deadheat(&["hunt", "--output", &at, "--", &program]);
    assert_eq!(hunted.status.code(), Some(66));
    let target = format!(
        "target remote | {} replay {at} --gdb=-",
        env!("CARGO_BIN_EXE_deadheat")
    );
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-ex", "set debuginfod enabled off"]);
    for command in [
        target.as_str(),
        "continue",
        "backtrace",
        "print settings",
        "break main",
        "reverse-continue",
    ] {
        gdb.args(["-ex", command]);
    }
    let output = gdb.arg(&*program).output().expect("gdb is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    for piece in ["SIGSEGV", "worker", "early_use.c:18", "0x0", "main ()"] {
        assert!(text.contains(piece), "`{piece}` is missing in:\n{text}");
    }
}

#[test]
fn a_test_that_cannot_fail_is_said_to_be_covered() {
    let output = deadheat(&["hunt", "--json", "--time", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).expect("an answer");
    assert_eq!(found["found"], false);
    assert!(
        found["covered"]["runs"]
            .as_u64()
            .is_some_and(|runs| runs > 0)
    );
}

#[test]
fn a_program_that_is_not_there_is_refused() {
    let output = deadheat(&["hunt", "--", "./no-such-test"]);
    assert_eq!(output.status.code(), Some(2));
}
