//! Good recordings, a store and a report, of programs that use what recordings
//! have files and entries for.

use crate::{build, copy_folder};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// What a sample is, which decides who reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Recording,
    Store,
    Report,
}

/// A folder of something good, with a name to show.
pub struct Sample {
    pub name: &'static str,
    pub kind: Kind,
    pub folder: PathBuf,
    /// What the recorded program dies of.
    pub signal: Option<i32>,
}

/// Programs that are recorded, and what they have: threads, process trees,
/// shared memory, signals, sockets, pipes, descriptors, timers, an exec.
const PROGRAMS: [&str; 10] = [
    "vm/racy_counter.c",
    "vm/fork_and_wait.c",
    "vm/shared_maps.c",
    "vm/signal_basics.c",
    "vm/thread_signals.c",
    "vm/sockets.c",
    "vm/pipes.c",
    "vm/descriptors.c",
    "vm/timers.c",
    "vm/execute.c",
];

/// Programs with races of which there is evidence.
const RACY: [&str; 2] = ["classes/output_counter.c", "classes/crash_null.c"];

/// Runs deadheat in `folder`; what it printed. The environment is recorded, so it
/// is the same everywhere.
fn made(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/home/of/a/test")
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    let own = code.is_none_or(|code| ![2, 70, 101, 124, 137].contains(&code));
    assert!(own, "deadheat {}: {code:?}: {text}", arguments.join(" "));
    output.stdout
}

/// How a good recording replays.
fn replayed(recording: &Path) -> ExitStatus {
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .arg("replay")
        .arg(recording)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !text.contains("deadheat: "),
        "{}: {text}",
        recording.display()
    );
    output.status
}

fn stem(source: &str) -> &str {
    let name = source.rsplit('/').next().unwrap_or(source);
    name.trim_end_matches(".c")
}

/// Makes all samples in `folder`.
pub fn make(folder: &Path) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut add = |name: &'static str, kind: Kind, made: &str| {
        let folder = folder.join(made);
        let signal = (kind == Kind::Recording).then(|| replayed(&folder));
        samples.push(Sample {
            name,
            kind,
            signal: signal.and_then(|status| status.signal()),
            folder,
        });
    };
    for source in PROGRAMS {
        let name = stem(source);
        build(source, &folder.join(name), &[]);
        let (program, recording) = (format!("./{name}"), format!("of_{name}"));
        let record = [
            "record",
            "--quantum",
            "500",
            "-o",
            &recording,
            "--",
            &program,
        ];
        made(folder, &record);
        add(source, Kind::Recording, &recording);
    }
    for source in RACY {
        let name = stem(source);
        build(source, &folder.join(name), &[]);
        let program = format!("./{name}");
        let options = ["--quantum", "500", "--k", "2", "--store", "store", "--"];
        made(
            folder,
            &[&["run"], &options as &[&str], &[&program]].concat(),
        );
    }
    // What the store's recordings are called depends on nothing else.
    copy_folder(&folder.join("store/1"), &folder.join("packed"));
    made(folder, &["pack", "packed"]);
    add(
        "a packed recording with evidence",
        Kind::Recording,
        "packed",
    );
    copy_folder(&folder.join("store/2"), &folder.join("crashed"));
    add("a recording with evidence", Kind::Recording, "crashed");
    let export = ["export", "1", "exported", "--recording", "packed"];
    made(folder, &export);
    add("exported evidence", Kind::Recording, "exported/recording");

    let store = ["--store", "store"];
    let in_store = |arguments: &[&str]| made(folder, &[arguments, &store].concat());
    in_store(&["mark", "1", "harmless", "--run", "1", "--reason", "a test"]);
    in_store(&["show", "1", "--run", "2"]);
    std::fs::create_dir(folder.join("report")).expect("a folder of ours");
    let json = "--json=report/report.json";
    in_store(&["report", "1", json]);
    in_store(&["baseline", "update", "report/baseline", "1"]);
    add("a store", Kind::Store, "store");
    add("a report", Kind::Report, "report");
    samples
}
