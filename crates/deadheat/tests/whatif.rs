//! The annotated programs of `tests/programs/whatif`: what `deadheat whatif`
//! says of a lock taken away or added must be what the source says.
//!
//! `REMOVE: needed` or `REMOVE: no-harm` stands at a line that takes a lock;
//! `ADD-BEGIN` and `ADD-END: cured`, `not-enough` or `deadlock` at the first and
//! last line of a section to be added.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/whatif")
}

fn deadheat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .output()
        .expect("deadheat runs")
}

/// The questions of a source: option, place, expected answer.
fn questions(source: &Path) -> Vec<(&'static str, String, String)> {
    let text = std::fs::read_to_string(source).expect("the program can be read");
    let name = source.file_name().expect("a name").display().to_string();
    let (mut questions, mut begin) = (Vec::new(), 0);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some((_, answer)) = line.split_once("// REMOVE: ") {
            let place = format!("{name}:{number}");
            questions.push(("--remove-sync", place, answer.trim().to_string()));
        }
        if line.contains("// ADD-BEGIN") {
            begin = number;
        }
        if let Some((_, answer)) = line.split_once("// ADD-END: ") {
            let place = format!("{name}:{begin}-{number}");
            questions.push(("--add-lock", place, answer.trim().to_string()));
        }
    }
    assert!(!questions.is_empty(), "{} asks nothing", source.display());
    questions
}

/// What the answer is, in the words of the sources.
fn answer(output: &Output) -> Result<&'static str, String> {
    let value: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!(
            "no answer: {error}; {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    let some = |key: &str| value[key].as_array().is_some_and(|list| !list.is_empty());
    let stops = value["failures"].as_array().is_some_and(|failures| {
        failures.iter().any(|failure| {
            failure
                .as_str()
                .is_some_and(|text| text.contains("deadlocks") || text.contains("never ends"))
        })
    });
    let answer = match value["change"].as_str() {
        Some("remove-sync") if value["needed"] == true => "needed",
        Some("remove-sync") => "no-harm",
        _ if stops => "deadlock",
        _ if some("left") => "not-enough",
        _ if value["cured"] == true => "cured",
        _ => "nothing",
    };
    let harm = output.status.code() == Some(66);
    if harm == ["no-harm", "cured"].contains(&answer) {
        return Err(format!("{answer} with {}", output.status));
    }
    if answer == "needed" && !some("races") && !some("failures") {
        return Err("needed for nothing".into());
    }
    Ok(answer)
}

#[test]
fn locks_taken_away_and_added_do_what_the_sources_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    sources.sort();
    assert!(sources.len() >= 6);
    let mut failures = Vec::new();
    for source in &sources {
        let program = folder.path().join(source.file_name().expect("a name"));
        let compiler = match source.extension().and_then(|ext| ext.to_str()) {
            Some("cpp") => "g++",
            _ => "gcc",
        };
        let built = Command::new(compiler)
            .args(["-g", "-O0", "-pthread", "-o"])
            .args([&program, source])
            .status()
            .expect("a compiler");
        assert!(built.success());
        let at = program.with_extension("rec");
        let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
        deadheat(&["record", "-o", &at, "--", &program]);
        for (option, place, expected) in questions(source) {
            let output = deadheat(&[
                "whatif", &at, option, &place, "--json", "--k", "2", "--runs", "6",
            ]);
            match answer(&output) {
                Ok(answer) if answer == expected => {}
                Ok(answer) => failures.push(format!(
                    "{option} {place}: {answer} instead of {expected}: {}",
                    String::from_utf8_lossy(&output.stdout)
                        .chars()
                        .take(1500)
                        .collect::<String>()
                )),
                Err(why) => failures.push(format!("{option} {place}: {why}")),
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn a_line_without_a_lock_is_refused_with_those_that_have_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("needed");
    let built = Command::new("gcc")
        .args(["-g", "-pthread", "-o"])
        .args([&program, &programs().join("needed.c")])
        .status()
        .expect("a compiler");
    assert!(built.success());
    let at = folder.path().join("rec");
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    deadheat(&["record", "-o", &at, "--", &program]);
    let output = deadheat(&["whatif", &at, "--remove-sync", "needed.c:3"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("add needed.c:"), "{text}");
}
