//! Programs about signals and processes, each run natively, recorded and
//! replayed: output and end must be the same three times.
//!
//! The programs are in `tests/programs/vm`. A failure prints the commands
//! that show it.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm")
}

/// A directory for one test's files, made anew.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    let status = Command::new("gcc")
        .args(["-O1", "-w", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join(format!("{name}.c")))
        .status()
        .expect("gcc is needed: scripts/need gcc");
    assert!(status.success(), "gcc failed on {name}.c");
    program
}

fn deadheat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program can be started")
}

fn end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        _ => "unknown".into(),
    }
}

fn same(what: &str, one: &Output, other: &Output) {
    let text = |output: &Output| {
        format!(
            "{}--- standard error\n{}--- {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            end(output.status)
        )
    };
    assert_eq!(text(one), text(other), "{what}");
}

/// Native, recorded and replayed runs of a command agree.
fn check_command(name: &str, command: &[&str], folder: &Path) {
    let native = run(Command::new(command[0])
        .args(&command[1..])
        .current_dir(folder));
    for seed in ["0", "7"] {
        let recording = folder.join(format!("recording-{seed}"));
        let recorded = run(deadheat()
            .current_dir(folder)
            .args(["record", "--seed", seed, "-o"])
            .arg(&recording)
            .arg("--")
            .args(command));
        let shown = recording.display();
        let how = format!("{name}: deadheat record --seed {seed} -o {shown} -- {command:?}");
        same(&how, &native, &recorded);
        let replayed = run(deadheat().arg("replay").arg(&recording));
        same(
            &format!("{name}: deadheat replay {shown}"),
            &recorded,
            &replayed,
        );
    }
}

fn check(name: &str) {
    let folder = folder(name);
    let program = compile(name, &folder);
    check_command(name, &[program.to_str().unwrap()], &folder);
}

macro_rules! programs {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )* };
}

programs! {
    signal_basics
    fault_repair
    alternate_stack
    timers
    thread_signals
    vector_state
    fork_and_wait
    execute
}
