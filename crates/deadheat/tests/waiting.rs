//! Threads that wait without sleeping give way: what they execute is little more
//! than where they call `sched_yield`, however they wait and however the
//! program was compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");
const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/programs/vm/waiting_loops.c"
);

/// Kinds of `waiting_loops.c`, beside `yielding`.
const KINDS: [&str; 16] = [
    "plain",
    "plain-counting",
    "plain-with-limit",
    "atomics",
    "atomics-counting",
    "pausing",
    "calling",
    "backing-off",
    "napping",
    "then-futex",
    "ticket-lock",
    "mcs-lock",
    "exchange-lock",
    "compare-lock",
    "trying-lock",
    "sequence-lock",
];

fn build(folder: &Path, optimisation: &str) -> PathBuf {
    let program = folder.join(optimisation);
    let built = Command::new("gcc")
        .args(["-g", optimisation, "-pthread", "-o"])
        .args([&program, Path::new(SOURCE)])
        .status();
    assert!(built.unwrap().success());
    program
}

/// Instructions of all threads while `threads` of them wait for one another
/// `rounds` times.
fn executed(folder: &Path, program: &Path, kind: &str, threads: u32, rounds: u32) -> u64 {
    let recording = folder.join(format!("{kind}-{threads}"));
    let deadheat = |words: &[&str]| {
        let mut command = Command::new(DEADHEAT);
        command
            .args(words)
            .arg(&recording)
            .env_remove("DEADHEAT_STORE");
        command
    };
    let recorded = deadheat(&["record", "-o"])
        .arg("--")
        .arg(program)
        .args([kind, &threads.to_string(), &rounds.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(recorded.unwrap().success(), "{kind}");
    let dump = deadheat(&["dump"]).output().unwrap();
    assert!(dump.status.success(), "{kind}");
    let dump = String::from_utf8(dump.stdout).unwrap();
    std::fs::remove_dir_all(&recording).unwrap();
    dump.lines()
        .filter_map(|line| line.trim().split_once(" runs "))
        .filter_map(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
fn who_only_waits_does_not_use_up_its_turns() {
    let folder = tempfile::tempdir().unwrap();
    for optimisation in ["-O0", "-O2"] {
        let program = build(folder.path(), optimisation);
        for threads in [2, 4] {
            let executed = |kind| executed(folder.path(), &program, kind, threads, 100);
            let yielding = executed("yielding");
            for kind in KINDS {
                let waiting = executed(kind);
                assert!(
                    waiting < 2 * yielding,
                    "{kind}, {optimisation}, {threads} threads: {waiting} instructions, \
                     {yielding} where they yield"
                );
            }
        }
    }
}
