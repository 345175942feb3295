//! Whoever runs the program of a recording is confined while it runs.
//!
//! What a confined process can do is tried in `crates/confine/tests/walls.rs`;
//! here the kernel is asked which processes of a command are, while they execute
//! the guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A command here takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that has used so much processor time, in hundredths of a second,
/// and has a code cache runs the guest; before, it sets the vm up.
const RUNS: u64 = 20;

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

fn deadheat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deadheat"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A recording of a program that computes for a while.
fn recording(folder: &Path) -> PathBuf {
    let program = folder.join("long_way");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm/long_way.c");
    let compiled = Command::new("gcc")
        .args(["-g", "-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .expect("gcc is needed: scripts/need gcc");
    assert!(compiled.success());
    let recording = folder.join("recording");
    let recorded = deadheat()
        .args(["record", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .status()
        .expect("deadheat can be started");
    assert!(recorded.success());
    recording
}

/// What the kernel says about a process.
struct Status {
    seccomp: bool,
    no_new_privileges: bool,
}

fn status(pid: u32) -> Option<Status> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let is = |name: &str, value: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .is_some_and(|rest| rest.trim() == value)
    };
    Some(Status {
        seccomp: is("Seccomp:", "2"),
        no_new_privileges: is("NoNewPrivs:", "1"),
    })
}

/// This process and all below it.
fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
        next += 1;
    }
    all
}

/// Processor time in hundredths of a second.
fn time(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    fields
        .get(11)
        .and_then(|field| field.parse().ok())
        .unwrap_or(0)
}

/// The process has mapped the code cache.
fn has_vm(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .any(|line| line.starts_with("6000") && line.contains("rwxp"))
}

/// Runs the command and watches its processes. How many ran the guest; each of
/// them must have been confined by then.
fn watch(command: &mut Command) -> usize {
    let mut child = command.spawn().expect("deadheat can be started");
    let begun = Instant::now();
    let mut seen: BTreeMap<u32, bool> = BTreeMap::new();
    while child.try_wait().expect("our child").is_none() {
        assert!(begun.elapsed() < PATIENCE, "{command:?} does not end");
        for pid in tree(child.id()) {
            if seen.contains_key(&pid) || time(pid) < RUNS || !has_vm(pid) {
                continue;
            }
            if let Some(status) = status(pid) {
                let confined = status.seccomp && status.no_new_privileges;
                assert!(confined, "{command:?}: process {pid} is not confined");
                seen.insert(pid, confined);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    seen.len()
}

#[test]
fn whoever_runs_a_recorded_program_is_confined() {
    let folder = folder("confined");
    let recording = recording(&folder);
    let commands: &[&[&str]] = &[&["replay"], &["detect"], &["classify", "--k", "2"]];
    for words in commands {
        let (subcommand, options) = words.split_first().expect("a word");
        let mut command = deadheat();
        command.arg(subcommand).arg(&recording).args(options);
        command.stderr(Stdio::null());
        assert!(watch(&mut command) > 0, "{words:?}: nobody ran the program");
    }
}

#[test]
fn a_program_that_is_recorded_keeps_its_rights() {
    let folder = folder("not-confined");
    let made = folder.join("made");
    let recorded = deadheat()
        .args(["record", "-o"])
        .arg(folder.join("recording"))
        .args(["--", "mkdir"])
        .arg(&made)
        .status()
        .expect("deadheat can be started");
    assert!(recorded.success());
    assert!(made.is_dir());
}
