//! System calls under record and replay: every program of
//! `tests/programs/vm` prints what its calls return; recorded, replayed and
//! native output must be the same.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm")
}

fn compile(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    let source = programs().join(format!("{name}.c"));
    let status = Command::new("gcc")
        .args(["-O1", "-g", "-w", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .expect("gcc runs (apt-get install gcc)");
    assert!(status.success(), "{} does not compile", source.display());
    program
}

fn run<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Output {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn deadheat() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_deadheat"))
}

/// Records with a seed and replays; both must look like the native run.
fn identical(program: &Path, folder: &Path, seed: u32, quantum: u32) {
    let native = run(program, &[""; 0]);
    let recording = folder.join(format!("recording-{seed}"));
    let (seed_text, quantum_text) = (seed.to_string(), quantum.to_string());
    let recorded = run(
        deadheat(),
        &[
            OsStr::new("record"),
            OsStr::new("--seed"),
            OsStr::new(&seed_text),
            OsStr::new("--quantum"),
            OsStr::new(&quantum_text),
            OsStr::new("-o"),
            recording.as_os_str(),
            OsStr::new("--"),
            program.as_os_str(),
        ],
    );
    let again = format!(
        "deadheat record --seed {seed} --quantum {quantum} -o {} -- {}",
        recording.display(),
        program.display()
    );
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        text(&native),
        text(&recorded),
        "native and recorded: {again}\n{}",
        String::from_utf8_lossy(&recorded.stderr)
    );
    assert_eq!(native.status, recorded.status, "{again}");
    let replayed = run(deadheat(), &[OsStr::new("replay"), recording.as_os_str()]);
    assert_eq!(
        text(&recorded),
        text(&replayed),
        "recorded and replayed: {again}\n{}",
        String::from_utf8_lossy(&replayed.stderr)
    );
    assert_eq!(recorded.status, replayed.status, "{again}");
}

fn check(name: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(name, folder.path());
    for (seed, quantum) in [(1, 200_000), (2, 3_000), (3, 500)] {
        identical(&program, folder.path(), seed, quantum);
    }
}

#[test]
fn files() {
    check("files");
}

#[test]
fn pipes() {
    check("pipes");
}

#[test]
fn events() {
    check("events");
}

#[test]
fn sockets() {
    check("sockets");
}

#[test]
fn descriptors() {
    check("descriptors");
}

#[test]
fn shared_maps() {
    check("shared_maps");
}

#[test]
fn signal_descriptor() {
    check("signal_descriptor");
}

#[test]
fn resource_limits() {
    check("resource_limits");
}

#[test]
fn robust_processes() {
    check("robust_processes");
}

#[test]
fn memory_calls() {
    check("memory_calls");
}

#[test]
fn vdso() {
    check("vdso");
}

#[test]
fn pointers_to_vm() {
    check("pointers_to_vm");
}

#[test]
fn message_notify() {
    check("message_notify");
}

#[test]
fn memory_locks() {
    check("memory_locks");
}

#[test]
fn scheduling_calls() {
    check("scheduling_calls");
}

#[test]
fn processor_clocks() {
    check("processor_clocks");
}

#[test]
fn pipe_signals() {
    check("pipe_signals");
}

#[test]
fn forged_frames() {
    check("forged_frames");
}

#[test]
fn alignment_flag() {
    check("alignment_flag");
}

/// Calls that one thread makes while another starts and joins one thread. It was
/// 15,000 to 22,000 when a call weighed as much as an instruction.
const MOST_CALLS: u64 = 500;

#[test]
fn who_only_makes_calls_gets_no_more_time_than_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile("calls_only", folder.path());
    for schedule in ["round-robin", "random", "pct", "sequencer"] {
        let output = run(
            deadheat(),
            &[
                OsStr::new("exec"),
                OsStr::new("--schedule"),
                OsStr::new(schedule),
                OsStr::new("--"),
                program.as_os_str(),
            ],
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |place: usize| -> u64 {
            let word = text.split_whitespace().nth(place);
            word.and_then(|word| word.parse().ok())
                .unwrap_or_else(|| panic!("{schedule}: {output:?}"))
        };
        let (calls, threads) = (number(0), number(3));
        assert!(calls <= threads * MOST_CALLS, "{schedule}: {text}");
    }
}

#[test]
fn sealed_files() {
    check("sealed_files");
}

#[test]
fn record_locks() {
    check("record_locks");
}

#[test]
fn timer_storm() {
    check("timer_storm");
}

#[test]
fn shared_futexes() {
    check("shared_futexes");
}

#[test]
fn fault_codes() {
    check("fault_codes");
}

#[test]
fn newer_calls() {
    check("newer_calls");
}
