//! Runs the programs of `tests/programs/steer` under `deadheat import` with the
//! candidate that their source names, and compares with what it expects.
//!
//! `// CANDIDATE: a b` names the two lines marked `// RACE a` and `// RACE b`.
//! `// UNSTEERED: never` says that no run of `deadheat run --schedules` shows a
//! race between them; `// STEERED: happens` that steering makes it happen,
//! `// STEERED: never` that nothing can. `// CFLAGS:` are added. A recording
//! made by steering must replay, hold the race that was reported, and come out
//! the same when made again.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("steer")
        .join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn deadheat(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(words)
        .current_dir(folder)
        .env("DEADHEAT_STORE", folder.join("store"))
        .output()
        .unwrap()
}

/// The report of a command with `--json`, by way of a file: standard output is
/// the program's as well.
fn json(folder: &Path, words: &[&str]) -> Value {
    let file = folder.join("report.json");
    let _ = fs::remove_file(&file);
    let form = format!("--json={}", file.display());
    let said: Vec<&str> = words
        .iter()
        .map(|word| if *word == "--json" { &form } else { *word })
        .collect();
    let output = deadheat(folder, &said);
    let text = fs::read(&file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        panic!(
            "deadheat {}: {error}\n{}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

struct Case {
    source: PathBuf,
    lines: [usize; 2],
    happens: bool,
    flags: Vec<String>,
}

fn case(name: &str) -> Case {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs/steer")
        .join(format!("{name}.c"));
    let text = fs::read_to_string(&source).unwrap();
    let directive = |word: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(word))
            .map(str::trim)
    };
    let tags: Vec<&str> = directive("// CANDIDATE:")
        .unwrap()
        .split_whitespace()
        .collect();
    let line = |tag: &str| {
        let mark = format!("// RACE {tag}");
        let position = text.lines().position(|line| line.ends_with(&mark));
        1 + position.unwrap_or_else(|| panic!("{name}: no line is marked `{mark}`"))
    };
    assert_eq!(directive("// UNSTEERED:"), Some("never"), "{name}");
    Case {
        lines: [line(tags[0]), line(tags[1])],
        happens: match directive("// STEERED:") {
            Some("happens") => true,
            Some("never") => false,
            other => panic!("{name}: STEERED: {other:?}"),
        },
        flags: directive("// CFLAGS:")
            .unwrap_or("")
            .split_whitespace()
            .map(String::from)
            .collect(),
        source,
    }
}

/// Every line that a race is between: innermost frames may be a library's.
fn is_at(access: &Value, line: usize) -> bool {
    let frames = access["stack"].as_array().into_iter().flatten();
    access["line"] == line || { frames }.any(|frame| frame["line"] == line)
}

fn between(report: &Value, lines: [usize; 2]) -> Option<&Value> {
    report["races"].as_array().unwrap().iter().find(|race| {
        let [one, other] = [&race["accesses"][0], &race["accesses"][1]];
        race["accesses"][0]["moment"].is_string()
            && ((is_at(one, lines[0]) && is_at(other, lines[1]))
                || (is_at(one, lines[1]) && is_at(other, lines[0])))
    })
}

fn check(name: &str, level: &str) {
    let case = case(name);
    let folder = scratch(&format!("{name}{level}"));
    let status = Command::new("gcc")
        .args(["-g", "-pthread", level, "-o", "prog"])
        .args(&case.flags)
        .arg(&case.source)
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(status.success());
    let [one, other] = case.lines;
    let pairs = format!("{name}.c:{one} {name}.c:{other}\n");
    fs::write(folder.join("pairs.txt"), pairs).unwrap();

    let words = [
        "run",
        "--schedules",
        "6",
        "--k",
        "0",
        "--json",
        "--",
        "./prog",
    ];
    let unsteered = json(&folder, &words);
    assert!(
        between(&unsteered, case.lines).is_none(),
        "{name} {level}: happens without steering: {unsteered:#}"
    );

    let words = ["import", "pairs.txt", "--json", "--", "./prog"];
    let steered = json(&folder, &words);
    let found = between(&steered, case.lines);
    if !case.happens {
        assert!(found.is_none(), "{name} {level}: {steered:#}");
        let sentence = steered["races"][0]["explanation"].as_str().unwrap();
        assert!(
            sentence.contains("7 runs under the vm, 6 of them steered"),
            "{sentence}"
        );
        return;
    }
    let found = found.unwrap_or_else(|| panic!("{name} {level}: did not happen: {steered:#}"));
    let says_so = |one: &Value| one["text"].as_str().unwrap().contains("was held");
    let evidence = found["evidence"].as_array().unwrap();
    assert!(evidence.iter().any(says_so), "{evidence:?}");

    // The recording is one like any other.
    let recording = steered["recordings"][0].as_str().unwrap();
    let replayed = deadheat(&folder, &["replay", recording]);
    assert!(replayed.status.success(), "{name} {level}: {replayed:?}");
    let detected = json(&folder, &["detect", recording, "--json"]);
    let again = between(&detected, case.lines).unwrap();
    assert_eq!(again["occurrences"], found["occurrences"], "{name} {level}");

    // The same choices, the same execution.
    let words = ["import", "pairs.txt", "--json", "--", "./prog"];
    let second = json(&folder, &words);
    let second = between(&second, case.lines).unwrap();
    assert_eq!(
        second["occurrences"], found["occurrences"],
        "{name} {level}"
    );
}

fn both_levels(name: &str) {
    check(name, "-O0");
    check(name, "-O2");
}

#[test]
fn a_lock_that_hides_a_race() {
    both_levels("lock_hides");
}

#[test]
fn a_call_once_that_hides_a_race() {
    both_levels("once_hides");
}

#[test]
fn a_line_that_races_with_itself() {
    both_levels("same_line");
}

#[test]
fn accesses_in_the_c_library() {
    both_levels("through_memcpy");
}

#[test]
fn arrivals_after_the_first() {
    both_levels("tenth_round");
}

#[test]
fn locked_accesses_cannot_be_brought_together() {
    both_levels("locked_twin");
}

#[test]
fn a_spinning_thread_is_not_waited_for_for_ever() {
    both_levels("handed_over");
}

#[test]
fn classification_follows() {
    let case = case("lock_hides");
    let folder = scratch("classified");
    let status = Command::new("gcc")
        .args(["-g", "-pthread", "-o", "prog"])
        .arg(&case.source)
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(status.success());
    let [one, other] = case.lines;
    let pairs = format!("lock_hides.c:{one} lock_hides.c:{other}\n");
    fs::write(folder.join("pairs.txt"), pairs).unwrap();
    let words = [
        "import",
        "pairs.txt",
        "--then-classify",
        "--json",
        "--",
        "./prog",
    ];
    let report = json(&folder, &words);
    let race = between(&report, case.lines).unwrap();
    // "value 0" instead of "value 42".
    assert_eq!(race["verdict"], "output-differs", "{report:#}");
    let replay = race["replay"][0].as_str().unwrap();
    let words: Vec<&str> = replay.split_whitespace().skip(1).collect();
    let output = deadheat(&folder, &words);
    assert_eq!(output.status.code(), Some(66), "{output:?}");
}

/// Without debug info a site is an instruction: `prog+0x1234`.
#[test]
fn a_stripped_program() {
    let case = case("lock_hides");
    let folder = scratch("stripped");
    let built = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "gcc -g -O1 -pthread -o prog {0} && cp prog full && strip prog",
            case.source.display()
        ))
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(built.success());
    let [one, other] = case.lines;
    let pairs = format!("lock_hides.c:{one} lock_hides.c:{other}\n");
    fs::write(folder.join("pairs.txt"), pairs).unwrap();
    let full = json(&folder, &["import", "pairs.txt", "--json", "--", "./full"]);
    let race = between(&full, case.lines).unwrap();
    let offset = |side: usize| race["accesses"][side]["offset"].as_str().unwrap();
    let offsets = [offset(0), offset(1)];
    let pairs = format!("prog+{} prog+{}\n", offsets[0], offsets[1]);
    fs::write(folder.join("offsets.txt"), pairs).unwrap();
    let report = json(
        &folder,
        &["import", "offsets.txt", "--json", "--", "./prog"],
    );
    let race = &report["races"][0];
    assert!(race["accesses"][0]["moment"].is_string(), "{report:#}");
    for side in 0..2 {
        let found = race["accesses"][side]["offset"].as_str().unwrap();
        assert!(offsets.contains(&found), "{report:#}");
    }
}

#[test]
fn a_site_that_is_not_there_is_said_to_be_missing() {
    let case = case("lock_hides");
    let folder = scratch("missing");
    let status = Command::new("gcc")
        .args(["-g", "-pthread", "-o", "prog"])
        .arg(&case.source)
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(status.success());
    let pairs = format!("lock_hides.c:{} other.c:7\n", case.lines[0]);
    fs::write(folder.join("pairs.txt"), pairs).unwrap();
    let words = [
        "import",
        "pairs.txt",
        "--schedules",
        "2",
        "--json",
        "--",
        "./prog",
    ];
    let report = json(&folder, &words);
    let sentence = report["races"][0]["explanation"].as_str().unwrap();
    assert!(
        sentence.contains("the program has no code for the second site"),
        "{sentence}"
    );
}

/// Either value is as good as the other: said only after both orders were
/// played, and with what it rests on.
#[test]
fn both_values_valid_is_labelled() {
    let folder = scratch("both-values");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/classes/avv.c");
    let status = Command::new("gcc")
        .args(["-g", "-pthread", "-o", "prog"])
        .arg(&source)
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(status.success());
    let words = ["run", "--schedules", "3", "--json", "--", "./prog"];
    let report = json(&folder, &words);
    let races = report["races"].as_array().unwrap();
    let labelled = races.iter().find(|race| {
        let labels = race["labels"].as_array().into_iter().flatten();
        { labels }.any(|label| label == "both-values-valid")
    });
    let race = labelled.unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(race["verdict"], "k-witness-harmless");
    let evidence = race["evidence"].as_array().unwrap();
    let rests_on = |one: &Value| {
        one["text"]
            .as_str()
            .unwrap()
            .starts_with("both values valid")
    };
    assert!(evidence.iter().any(rests_on), "{race:#}");
}
