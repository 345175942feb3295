//! A long `rep` is preempted, and stopped at, between its parts.

use std::path::Path;
use std::process::{Command, Stdio};

fn deadheat(arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {} {text} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The value of a register as `replay --until` shows it.
fn register(shown: &str, name: &str) -> u64 {
    let mut words = shown.split_whitespace();
    words.find(|word| *word == name);
    let value = words.next().unwrap_or_default();
    u64::from_str_radix(value, 16).unwrap_or_else(|_| panic!("{name} in {shown}"))
}

#[test]
fn a_long_repeat_can_be_seen_half_way() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm/half_way.c");
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-pthread", "-o", "half_way"])
        .arg(source)
        .current_dir(folder)
        .status()
        .expect("gcc can be started");
    assert!(built.success());
    let record = "record --schedule round-robin --quantum 50 -o r -- ./half_way";
    let arguments: Vec<&str> = record.split(' ').collect();
    let said = deadheat(&arguments, folder);
    assert_eq!(said, "half way, 1 at the end\n");
    assert_eq!(deadheat(&["replay", "r"], folder), said);
    // At the ends of the second thread's slices: one that lies in the middle
    // of the instruction, and the part after it.
    let dump = deadheat(&["dump", "r"], folder);
    let mut count = 0;
    let ends: Vec<u64> = dump
        .lines()
        .filter_map(|line| line.trim().strip_prefix("thread 2 runs "))
        .map(|rest| {
            count += rest
                .split(' ')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .expect("a count");
            count
        })
        .collect();
    let at = |count: u64| {
        let until = format!("2:{count}");
        deadheat(&["replay", "r", "--until", &until], folder)
    };
    let between = ends.iter().find(|end| {
        let shown = at(**end);
        (65_536..16 << 20).contains(&register(&shown, "rcx")) && shown.contains("half_way.c:13")
    });
    let end = *between.expect("a slice ends within the instruction");
    let (one, two) = (at(end), at(end + 1));
    assert_eq!(register(&one, "rip"), register(&two, "rip"));
    assert_eq!(register(&one, "rcx") - register(&two, "rcx"), 65_536);
    assert_eq!(register(&two, "rdi") - register(&one, "rdi"), 65_536);
}
