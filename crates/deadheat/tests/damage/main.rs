//! Damaged input never makes deadheat fall over.
//!
//! Recordings with one file cut, changed, extended or removed go through
//! `replay`, `dump`, `pack` and `detect`; streams are also changed inside, with
//! right checksums around it; executables with changed headers go through
//! `record`. Whatever comes of it, deadheat ends with a documented exit code
//! and a sentence, never with a panic, and damage to a stream is always noticed.
//!
//! The changes come from a seed. DEADHEAT_DAMAGE_ROUNDS sets how many there are
//! for each file (default 3). `mutants` has the ones that no checksum shows.

mod corpus;
mod mutants;
mod random;
mod streams;
mod texts;
mod watched;

use folder::Place;
use random::Random;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn rounds() -> u64 {
    std::env::var("DEADHEAT_DAMAGE_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(3)
}

/// Seconds a command may take: a changed program may run for ever.
const LIMIT: &str = "120";

fn deadheat(arguments: &[&str], last: &Path, folder: &Path) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", LIMIT])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .arg(last)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started")
}

fn sentence(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Changes bytes in one of several ways; says how.
fn change(bytes: &mut Vec<u8>, random: &mut Random) -> String {
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => {
            bytes.truncate(at);
            format!("cut to {at} bytes")
        }
        1 if !bytes.is_empty() => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        2 => {
            let more: Vec<u8> = (0..1 + random.below(64))
                .map(|_| random.next() as u8)
                .collect();
            bytes.extend_from_slice(&more);
            format!("{} bytes appended", more.len())
        }
        3 => {
            let end = (at + 1 + random.below(32)).min(bytes.len());
            for byte in &mut bytes[at..end] {
                *byte = random.next() as u8;
            }
            format!("bytes {at}..{end} overwritten")
        }
        4 => {
            let end = (at + 1 + random.below(32)).min(bytes.len());
            bytes.drain(at..end);
            format!("bytes {at}..{end} removed")
        }
        _ => {
            let value = *[0u8, 0xff, 0x7f, 0x80].get(random.below(4)).unwrap_or(&0);
            let end = (at + 8).min(bytes.len());
            bytes[at..end].fill(value);
            format!("bytes {at}..{end} set to {value:#x}")
        }
    }
}

/// Builds a program of tests/programs.
fn build(source: &str, to: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs")
        .join(source);
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(to)
        .status()
        .expect("gcc can be started");
    assert!(built.success());
}

/// Records a program; returns the recording and its files.
fn recording(folder: &Path, source: &str) -> (PathBuf, Vec<PathBuf>) {
    let program = folder.join("program");
    build(source, &program, &[]);
    let recording = folder.join("recording");
    let output = deadheat(
        &["record", "--quantum", "500", "-o", "recording", "--"],
        &program,
        folder,
    );
    assert!(output.status.success(), "{}", sentence(&output));
    let mut files = Vec::new();
    let mut folders = vec![recording.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of ours") {
            let path = entry.expect("a folder of ours").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(&recording).unwrap_or(&path).to_path_buf());
            }
        }
    }
    files.sort();
    (recording, files)
}

fn copy_folder(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp")
        .arg("-r")
        .arg(from)
        .arg(to)
        .status()
        .expect("cp can be started");
    assert!(copied.success());
}

/// Runs every reader of recordings on `damaged`; returns the codes.
fn read_all(damaged: &Path, folder: &Path, what: &str) -> Vec<i32> {
    ["replay", "dump", "detect", "pack"]
        .iter()
        .map(|command| {
            let output = deadheat(&[command], damaged, folder);
            let text = sentence(&output);
            let code = output.status.code().unwrap_or_else(|| {
                panic!("{command}, {what}: {} ({text})", output.status);
            });
            assert!(
                [0, 2, 66, 70].contains(&code) && !text.contains("panicked"),
                "{command}, {what}: exit {code}: {text}"
            );
            assert!(
                code == 0 || code == 66 || text.contains("deadheat: "),
                "{command}, {what}: exit {code} without a word: {text}"
            );
            code
        })
        .collect()
}

#[test]
fn damaged_recordings_are_told_in_a_sentence() {
    let mut count = 0;
    for source in ["vm/racy_counter.c", "vm/fork_and_wait.c"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (whole, files) = recording(folder.path(), source);
        let codes = read_all(&whole, folder.path(), "whole");
        assert_eq!(codes[0], 0);
        let damaged = folder.path().join("damaged");
        for (number, file) in files.iter().enumerate() {
            for round in 0..rounds() {
                let mut random = Random(round * 1000 + number as u64);
                copy_folder(&whole, &damaged);
                let path = damaged.join(file);
                let before = std::fs::read(&path).expect("a file of ours");
                let mut bytes = before.clone();
                let how = change(&mut bytes, &mut random);
                if bytes == before {
                    continue;
                }
                std::fs::write(&path, &bytes).expect("a file of ours");
                let what = format!("{source}: {} {how}", file.display());
                let codes = read_all(&damaged, folder.path(), &what);
                count += 1;
                let is_stream = file.ends_with("schedule") || file.ends_with("inputs");
                if is_stream {
                    assert!(codes[0] != 0, "{what}: replayed as if nothing had happened");
                }
            }
            copy_folder(&whole, &damaged);
            std::fs::remove_file(damaged.join(file)).expect("a file of ours");
            let what = format!("{source}: {} removed", file.display());
            read_all(&damaged, folder.path(), &what);
        }
    }
    println!("corpus: {count} damaged recordings");
}

fn place(path: &Path) -> Place {
    let folder = path.parent().expect("a file of ours");
    Place::of(folder).join(path.file_name().expect("a file of ours"))
}

#[test]
fn streams_that_say_something_else_are_told_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (whole, _) = recording(folder.path(), "vm/racy_counter.c");
    let damaged = folder.path().join("damaged");
    for stream in ["0/schedule", "0/inputs"] {
        let before = streams::contents(&whole.join(stream));
        for round in 0..5 * rounds() {
            let mut random = Random(0xdead + round);
            let mut bytes = before.clone();
            let how = change(&mut bytes, &mut random);
            copy_folder(&whole, &damaged);
            streams::write_contents(&damaged.join(stream), &bytes);
            read_all(&damaged, folder.path(), &format!("inside {stream}: {how}"));
        }
    }
}

#[test]
fn a_newer_format_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (whole, _) = recording(folder.path(), "vm/racy_counter.c");
    let newer = folder.path().join("newer");
    let check = |what: &str| {
        for command in ["replay", "dump", "detect", "pack"] {
            if command == "pack" && what != "manifest.json" {
                continue;
            }
            let output = deadheat(&[command], &newer, folder.path());
            let text = sentence(&output);
            assert_eq!(output.status.code(), Some(2), "{command}, {what}: {text}");
            assert_eq!(text.lines().count(), 1, "{command}, {what}: {text}");
            for words in [what, "format 99", "record again"] {
                assert!(text.contains(words), "{command}, {what}: {text}");
            }
        }
    };
    copy_folder(&whole, &newer);
    let manifest = newer.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).expect("a file of ours");
    let (found, changed) = (
        format!("\"format\": {}", vm::record::FORMAT),
        "\"format\": 99",
    );
    assert!(text.contains(&found));
    std::fs::write(&manifest, text.replace(&found, changed)).expect("a file of ours");
    check("manifest.json");
    for stream in ["schedule", "inputs"] {
        copy_folder(&whole, &newer);
        let path = newer.join("0").join(stream);
        let mut bytes = std::fs::read(&path).expect("a file of ours");
        bytes[6..8].copy_from_slice(&99u16.to_le_bytes());
        std::fs::write(&path, bytes).expect("a file of ours");
        check(stream);
    }
}

#[test]
fn garbage_executables_are_told_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plain = folder.path().join("plain");
    let fixed = folder.path().join("fixed");
    build("vm/racy_counter.c", &plain, &[]);
    build("vm/racy_counter.c", &fixed, &["-static"]);
    let mutant = folder.path().join("mutant");
    for (source, name) in [(&plain, "dynamic"), (&fixed, "static")] {
        let before = std::fs::read(source).expect("a file of ours");
        for round in 0..10 * rounds() {
            let mut random = Random(0xe1f + round);
            let mut bytes = before.clone();
            // The header and the program headers, sometimes the file's length.
            let headers = 64 + 56 * 13;
            let how = match random.below(8) {
                0 => {
                    let length = random.below(bytes.len());
                    bytes.truncate(length);
                    format!("cut to {length} bytes")
                }
                1 => {
                    bytes = (0..random.below(4096))
                        .map(|_| random.next() as u8)
                        .collect();
                    bytes.splice(0..bytes.len().min(4), *b"\x7fELF");
                    "garbage".to_string()
                }
                _ => {
                    let mut said = Vec::new();
                    for _ in 0..1 + random.below(3) {
                        let at = random.below(headers);
                        let value = match random.below(3) {
                            0 => bytes[at] ^ (1 << random.below(8)),
                            1 => 0xff,
                            _ => random.next() as u8,
                        };
                        bytes[at] = value;
                        said.push(format!("byte {at} = {value:#x}"));
                    }
                    said.join(", ")
                }
            };
            std::fs::write(&mutant, bytes).expect("a folder of ours");
            std::fs::set_permissions(&mutant, std::fs::Permissions::from_mode(0o755))
                .expect("a file of ours");
            let _ = std::fs::remove_dir_all(folder.path().join("r"));
            let output = deadheat(&["record", "-o", "r", "--"], &mutant, folder.path());
            let text = sentence(&output);
            let code = output.status.code();
            assert!(
                code != Some(101) && !text.contains("panicked"),
                "{name}, {how}: {text}"
            );
            // The program's own death, or timeout's, are no failure of ours.
            assert!(
                code.is_some() || output.status.signal().is_some(),
                "{name}, {how}"
            );
            if let Some(code @ (2 | 70)) = code {
                assert!(
                    text.contains("deadheat: "),
                    "{name}, {how}: exit {code} without a word"
                );
            }
        }
    }
}
