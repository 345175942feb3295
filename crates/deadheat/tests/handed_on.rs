//! Recordings that are kept or handed on.
//!
//! They outlive the installation of other packages, because small files are
//! copied; where a large one has changed, every command says so in the same
//! words and with the same exit code. And they can be handed on without the
//! values of environment variables.

use folder::Place;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use vm::record::{InputReader, Recording};

fn deadheat(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .env("API_TOKEN", VALUE)
        .env("HARMLESS", "harmless value")
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started")
}

const VALUE: &str = "tok-8f3a91c7e2";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder_with(source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs/vm")
        .join(source);
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-pthread"])
        .arg(source)
        .args(["-o", "program"])
        .current_dir(folder.path())
        .status()
        .expect("gcc can be started");
    assert!(built.success());
    folder
}

/// Changes the tables of mapped files: each entry by itself.
fn edit_files(recording: &Path, mut edit: impl FnMut(&mut serde_json::Value)) {
    let path = recording.join("0/files.json");
    let before = std::fs::read(&path).expect("a table of ours");
    let mut table: serde_json::Value = serde_json::from_slice(&before).expect("it is JSON");
    for entry in table.as_array_mut().expect("a list") {
        edit(entry);
    }
    std::fs::write(&path, table.to_string()).expect("a folder of ours");
}

fn is_named(entry: &serde_json::Value, name: &str) -> bool {
    entry["path"]
        .as_str()
        .is_some_and(|path| path.contains(name))
}

#[test]
fn what_other_packages_change_is_in_the_recording() {
    let folder = folder_with("racy_counter.c");
    let output = deadheat(folder.path(), &["record", "-o", "r", "--", "./program"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let recorded = output.stdout;
    let recording = folder.path().join("r");
    let mut small = 0;
    edit_files(&recording, |entry| {
        let size = entry["size"].as_u64().unwrap_or(u64::MAX);
        if size <= 1 << 20 {
            assert_eq!(entry["stored"], true, "{entry}");
            small += 1;
            // Whatever becomes of the original.
            if !is_named(entry, "program") {
                let gone = format!("{}.gone", entry["path"].as_str().unwrap_or_default());
                entry["path"] = gone.into();
            }
        }
    });
    assert!(small >= 3, "the program, the loader and its cache");
    let output = deadheat(folder.path(), &["replay", "r"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(output.stdout, recorded);
}

#[test]
fn a_changed_library_is_told_alike_by_every_command() {
    let folder = folder_with("racy_counter.c");
    let run = deadheat(
        folder.path(),
        &[
            "run",
            "--store",
            "s",
            "--quantum",
            "2000",
            "--k",
            "2",
            "--",
            "./program",
        ],
    );
    assert_eq!(run.status.code(), Some(66), "{}", text(&run.stderr));
    let recording = folder.path().join("s/1");
    assert!(
        recording.join("evidence.json").is_file(),
        "{}",
        text(&run.stdout)
    );
    let commands: [&[&str]; 9] = [
        &["replay", "s/1"],
        &["replay", "s/1", "--until", "1:100000"],
        &["replay", "s/1", "--diagnose"],
        &["replay", "s/1", "--evidence", "1"],
        &["replay", "s/1", "--race", "1", "--order", "swapped"],
        &["replay", "s/1", "--race", "1", "--gdb=-"],
        &["detect", "s/1"],
        &["classify", "s/1"],
        &["pack", "s/1"],
    ];
    let mut changed = false;
    edit_files(&recording, |entry| {
        if is_named(entry, "libc.so") {
            assert_eq!(entry["stored"], false, "it is large: {entry}");
            let hash = entry["hash"].as_str().unwrap_or_default().to_string();
            entry["hash"] = hash.chars().rev().collect::<String>().into();
            changed = true;
        }
    });
    assert!(changed);
    let tell = |why: &str| {
        for command in commands {
            let output = deadheat(folder.path(), command);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{why}, {command:?}: {said}");
            for words in [
                "libc.so",
                "has changed since the recording was made",
                "dpkg -S",
                "deadheat pack",
            ] {
                assert!(said.contains(words), "{why}, {command:?}: {said}");
            }
        }
    };
    tell("changed");
    edit_files(&recording, |entry| {
        if is_named(entry, "libc.so") {
            entry["path"] = "/usr/lib/no/such/libc.so.6".into();
        }
    });
    tell("gone");
}

/// Every place of a recording that holds these bytes.
fn places_with(recording: &Path, value: &str) -> Vec<String> {
    let holds = |bytes: &[u8]| {
        bytes
            .windows(value.len())
            .any(|window| window == value.as_bytes())
    };
    let mut found = Vec::new();
    let mut folders = vec![recording.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of ours") {
            let path = entry.expect("a folder of ours").path();
            if path.is_dir() {
                folders.push(path);
            } else if holds(&std::fs::read(&path).expect("a file of ours")) {
                found.push(path.display().to_string());
            }
        }
    }
    let opened = Recording::open(recording).expect("a recording");
    for process in opened.processes() {
        let place = Place::of(recording)
            .join(process.to_string())
            .join("inputs");
        let mut inputs = InputReader::open(&place).expect("a stream");
        while !inputs.at_end().expect("a stream") {
            let effect = inputs.next_effect().expect("a stream");
            if effect.writes.iter().any(|(_, bytes)| holds(bytes)) {
                found.push(format!("{effect}"));
            }
        }
    }
    found
}

fn record(folder: &Path, how: &[&str]) -> (PathBuf, Vec<u8>) {
    let recording = folder.join("r");
    let _ = std::fs::remove_dir_all(&recording);
    let mut arguments = vec!["record", "-o", "r", "--"];
    arguments.extend(how);
    let output = deadheat(folder, &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    (recording, output.stdout)
}

#[test]
fn a_variable_that_nobody_used_can_be_left_out() {
    let folder = folder_with("asks_environment.c");
    let folder = folder.path();
    let environ: &[&str] = &["cat", "/proc/self/environ"];
    for how in [
        &["./program", "ignore"],
        &["./program", "print"],
        &["./program", "ignore", "child"] as &[&str],
        &["./program", "print", "child"],
        &["sh", "-c", "./program ignore; echo done"],
        environ,
    ] {
        let (recording, recorded) = record(folder, how);
        assert!(!places_with(&recording, VALUE).is_empty());
        let output = deadheat(folder, &["pack", "r"]);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for words in [
            "look like secrets: ",
            "API_TOKEN",
            "variables of the program's environment",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let output = deadheat(folder, &["pack", "r", "--redact", "API_TOKEN"]);
        let said = text(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{how:?}: {}",
            text(&output.stderr)
        );
        assert!(said.contains("without values: API_TOKEN"), "{said}");
        assert!(!said.contains(VALUE));
        assert_eq!(
            places_with(&recording, VALUE),
            Vec::<String>::new(),
            "{how:?}"
        );
        for _ in 0..2 {
            let output = deadheat(folder, &["replay", "r"]);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{how:?}: {}",
                text(&output.stderr)
            );
            let filler = "x".repeat(VALUE.len());
            let expected = text(&recorded).replace(VALUE, &filler);
            assert_eq!(text(&output.stdout), expected, "{how:?}");
        }
        let output = deadheat(folder, &["dump", "r"]);
        assert!(text(&output.stdout).contains("API_TOKEN (without its value)"));
        // Nothing else was touched.
        let manifest = std::fs::read_to_string(recording.join("manifest.json"));
        assert!(
            manifest
                .expect("a manifest")
                .contains("HARMLESS=harmless value")
        );
    }
}

#[test]
fn a_variable_that_was_used_is_not_left_out_silently() {
    let folder = folder_with("asks_environment.c");
    let folder = folder.path();
    std::fs::write(folder.join("notes"), format!("my token: {VALUE}\n")).expect("a folder of ours");
    let copied = format!("OTHER={VALUE}");
    for (how, why) in [
        (
            &["./program", "decide"] as &[&str],
            "the program used the value",
        ),
        (
            &["./program", "decide", "child"],
            "the program used the value",
        ),
        (&["cat", "notes"], "what process 0 got from read"),
        (
            &["./program", "ignore", "", VALUE],
            "the program's arguments",
        ),
        (
            &["env", &copied, "./program", "ignore"],
            "the program's arguments",
        ),
    ] {
        let (recording, recorded) = record(folder, how);
        let before = std::fs::read(recording.join("manifest.json")).expect("a manifest");
        let output = deadheat(folder, &["pack", "r", "--redact", "API_TOKEN"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{how:?}: {said}");
        for words in [why, "API_TOKEN", "nothing was changed"] {
            assert!(said.contains(words), "{how:?}, {words}: {said}");
        }
        let after = std::fs::read(recording.join("manifest.json")).expect("a manifest");
        assert_eq!(before, after);
        assert!(!recording.join("0/schedule.new").exists());
        let output = deadheat(folder, &["replay", "r"]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{how:?}: {}",
            text(&output.stderr)
        );
        assert_eq!(output.stdout, recorded);
    }
    let output = deadheat(folder, &["pack", "r", "--redact", "NO_SUCH_NAME"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no environment variable `NO_SUCH_NAME`"));
}

#[test]
fn an_exported_reproduction_can_be_without_variables() {
    let folder = folder_with("racy_counter.c");
    let folder = folder.path();
    let run = deadheat(
        folder,
        &[
            "run",
            "--store",
            "s",
            "--quantum",
            "2000",
            "--k",
            "2",
            "--",
            "./program",
        ],
    );
    assert_eq!(run.status.code(), Some(66), "{}", text(&run.stderr));
    let export = [
        "export",
        "1",
        "out",
        "--recording",
        "s/1",
        "--redact",
        "API_TOKEN",
    ];
    let output = deadheat(folder, &export);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("without values: API_TOKEN"), "{said}");
    assert_eq!(
        places_with(&folder.join("out/recording"), VALUE),
        Vec::<String>::new()
    );
    let again = Command::new(folder.join("out/reproduce")).output();
    let again = again.expect("the reproduction can be started");
    assert_eq!(again.status.code(), Some(66), "{}", text(&again.stderr));
    // The store's own recording keeps it.
    assert!(!places_with(&folder.join("s/1"), VALUE).is_empty());
}
