//! Both orders of the races of annotated programs (tests/programs/orders).
//!
//! `// ORDERS` names the answers that the Record/Replay Analyzer (paper 000)
//! may give for the races between lines marked `// RACE`, over several
//! recordings; `harmful` means that none of them may be No-State-Change.
//! `// LABEL` and `// NOT-LABEL` say what must and must not be said beside it.
//!
//! `make test` plays two recordings of each program; the ignored test six, and
//! runs both orders to the end as well, which must not change the answers.

use std::path::{Path, PathBuf};
use std::process::Command;

fn deadheat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
}

fn programs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/orders");
    let mut list: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    list.sort();
    list
}

/// What stands behind `// WORD` at the beginning of a line.
fn annotation<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        line.strip_prefix("// ")?
            .strip_prefix(word)?
            .strip_prefix(' ')
    })
}

/// The first line of the program itself on an access's stack.
fn line(access: &serde_json::Value, file: &str) -> Option<u64> {
    access["stack"].as_array()?.iter().find_map(|frame| {
        let name = Path::new(frame["file"].as_str()?).file_name()?.to_str()?;
        (name == file).then(|| frame["line"].as_u64())?
    })
}

fn judge(source: &Path, folder: &Path, seeds: u64, explores: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(source).unwrap();
    let file = source.file_name().unwrap().to_str().unwrap();
    let allowed: Vec<&str> = annotation(&text, "ORDERS")
        .expect("every program says what to expect")
        .split(' ')
        .collect();
    let program = folder.join(format!("{file}.exe"));
    let compiler: &[&str] = match source.extension().and_then(|name| name.to_str()) {
        Some("rs") => &["rustc", "-g", "-Astatic_mut_refs"],
        Some("cpp") => &["g++", "-g", "-O0", "-pthread"],
        _ => &["gcc", "-g", "-O0", "-pthread"],
    };
    let built = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(built.success(), "{file} compiles");
    let mut recordings = Vec::new();
    for seed in 0..seeds {
        let recording = folder.join(format!("{file}.{seed}"));
        deadheat()
            .args([
                "record",
                "--quantum",
                "300",
                "--seed",
                &seed.to_string(),
                "-o",
            ])
            .arg(&recording)
            .arg("--")
            .arg(&program)
            .output()
            .unwrap();
        recordings.push(recording);
    }
    let output = deadheat()
        .args(["classify", "--no-store", "--json"])
        .args(if explores { &[][..] } else { &["--k", "0"] })
        .args(&recordings)
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let marked: Vec<u64> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.contains("// RACE"))
        .map(|(number, _)| number)
        .collect();
    let mut judged = 0;
    for race in report["races"].as_array().into_iter().flatten() {
        let lines = [0, 1].map(|side| line(&race["accesses"][side], file));
        if !lines
            .iter()
            .all(|line| line.is_some_and(|line| marked.contains(&line)))
        {
            continue;
        }
        judged += 1;
        let states = race["states"].as_str().unwrap_or("not played");
        let fits = match allowed.as_slice() {
            ["harmful"] => states != "no-state-change" && states != "not played",
            list => list.contains(&states),
        };
        if !fits {
            return Err(format!("lines {lines:?}: {states}, expected {allowed:?}"));
        }
        let labels = race["labels"].to_string();
        if let Some(label) = annotation(&text, "LABEL").filter(|label| !labels.contains(*label)) {
            return Err(format!("lines {lines:?}: no label {label} in {labels}"));
        }
        if let Some(label) = annotation(&text, "NOT-LABEL").filter(|label| labels.contains(*label))
        {
            return Err(format!("lines {lines:?}: label {label} in {labels}"));
        }
        let played = &race["played"];
        let count = |name: &str| played[name].as_u64().unwrap_or(0);
        let all = count("no_state_change") + count("state_change") + count("replay_failure");
        if all == 0 || all > race["instances"].as_u64().unwrap_or(0) {
            return Err(format!("lines {lines:?}: {all} instances played: {played}"));
        }
    }
    match judged {
        0 => Err(format!(
            "no race between the marked lines was found: {report:#}"
        )),
        _ => Ok(()),
    }
}

#[test]
fn every_category_gets_its_answer() {
    check(2, false);
}

#[test]
#[ignore = "six recordings of every program, explored to the end; part of `make test-all`"]
fn every_category_gets_its_answer_in_many_recordings() {
    check(6, true);
}

fn check(seeds: u64, explores: bool) {
    let folder = tempfile::tempdir().unwrap();
    let wrong: Vec<String> = programs()
        .iter()
        .filter_map(|source| {
            let why = judge(source, folder.path(), seeds, explores).err()?;
            Some(format!("{}: {why}", source.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Two tasks that one thread ran, one after the other.
const TASKS: &str = r#"#include <stdio.h>
int sum;
int main(void) {
#pragma omp parallel num_threads(2)
#pragma omp single
    {
#pragma omp task
        sum += 1;
#pragma omp task
        sum += 2;
#pragma omp taskwait
    }
    printf("%d\n", sum);
    return 0;
}
"#;

/// Whoever holds the thread back holds back both tasks: that says nothing about
/// their order.
#[test]
fn tasks_of_one_thread_are_not_called_ordered() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("tasks.c"), TASKS).unwrap();
    let built = Command::new("gcc")
        .args(["-g", "-O0", "-fopenmp"])
        .args([at("tasks.c"), "-o".into(), at("tasks")])
        .status();
    assert!(built.unwrap().success());
    let recorded = deadheat()
        .arg("record")
        .arg("-o")
        .args([at("recording"), "--".into(), at("tasks")])
        .output();
    assert!(recorded.unwrap().status.success());
    let output = deadheat()
        .args(["classify", "--no-store", "--json", "--pre-schedules", "0"])
        .arg(at("recording"))
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let race = &report["races"][0];
    let instance = &race["occurrences"][0];
    let thread = |side: &str| instance[side].as_str().unwrap().split(':').next().unwrap();
    assert_eq!(thread("first"), thread("second"), "{race:#}");
    assert_eq!(race["states"], "replay-failure", "{race:#}");
    assert_eq!(race["verdict"], "unclassified", "{race:#}");
}

/// A race by number, in either order, from the recording alone.
#[test]
fn either_order_runs_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let source = programs()
        .into_iter()
        .find(|path| path.ends_with("lost_update.c"))
        .unwrap();
    let program = folder.path().join("lost_update");
    let built = Command::new("gcc")
        .args(["-g", "-O0", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(built.unwrap().success());
    let recording = folder.path().join("recording");
    let recorded = deadheat()
        .args(["record", "--quantum", "300", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .output()
        .unwrap();
    let total = |output: std::process::Output| -> i64 {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let all = String::from_utf8_lossy(&output.stderr).into_owned();
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{text}{all}"))
    };
    let expected = total(recorded);
    let mut totals = Vec::new();
    for order in ["recorded", "swapped"] {
        let played = deadheat()
            .arg("replay")
            .arg(&recording)
            .args(["--race", "1", "--instance", "1", "--order", order])
            .output()
            .unwrap();
        assert_eq!(played.status.code(), Some(0));
        totals.push(total(played));
    }
    assert_ne!(
        totals[0], totals[1],
        "another deposit is lost (the recording had {expected})"
    );
    let unknown = deadheat()
        .arg("replay")
        .arg(&recording)
        .args(["--race", "99", "--order", "swapped"])
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}
