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
    group_signals
    execute
    vfork_leaves
    kin
    background_terminal
    told_by_signal
    mapped_again
    without_a_name
    removed_meanwhile
    own_memory
    counter_closed
}

/// What the vm does not do fails with the errno of docs/guests.md, and a
/// sentence names it, once.
#[test]
fn what_is_refused_is_said() {
    let folder = folder("refused");
    let program = compile("refused", &folder);
    let recording = folder.join("recording");
    let recorded = run(deadheat()
        .args(["record", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    let refused = [
        ("ptrace", "EPERM", "system call ptrace"),
        ("seccomp", "EINVAL", "system call seccomp"),
        ("PR_SET_SECCOMP", "EINVAL", "prctl with PR_SET_SECCOMP"),
        ("unshare", "EPERM", "unshare with a namespace of its own"),
        ("setns", "EPERM", "system call setns"),
        (
            "clone with a namespace",
            "EPERM",
            "clone with a namespace of its own",
        ),
        (
            "clone with memory",
            "ENOSYS",
            "clone with CLONE_VM, and without CLONE_THREAD or CLONE_VFORK,",
        ),
        ("perf_event_open", "EACCES", "system call perf_event_open"),
        ("io_uring_setup", "ENOSYS", "system call io_uring_setup"),
        ("userfaultfd", "ENOSYS", "system call userfaultfd"),
        ("bpf", "EPERM", "system call bpf"),
        ("process_vm_readv", "EPERM", "system call process_vm_readv"),
    ];
    let mut expected = String::new();
    for _ in 0..2 {
        for (call, errno, _) in refused {
            expected += &format!("{call}: {errno}\n");
        }
    }
    expected += "unshare of files: done\nPR_GET_SECCOMP: done\nhandlers without memory: EINVAL\n";
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), expected);
    let said: String = refused
        .iter()
        .map(|(_, errno, what)| {
            format!(
                "deadheat: {what} is refused here; the program is told so ({errno}). \
                 docs/guests.md lists what is\n"
            )
        })
        .collect();
    assert_eq!(String::from_utf8_lossy(&recorded.stderr), said);
    let replayed = run(deadheat().arg("replay").arg(&recording));
    assert_eq!(String::from_utf8_lossy(&replayed.stdout), expected);
    assert_eq!(String::from_utf8_lossy(&replayed.stderr), "");
}

/// A program whose owner it would run as natively: the user is told that it
/// runs as the same user. Root makes one; others have one installed.
#[test]
fn a_setuid_bit_without_effect_is_said() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const NOBODY: u32 = 65534;
    let folder = folder("setuid");
    let own = std::fs::metadata(&folder).unwrap().uid();
    let (program, owner) = if own == 0 {
        let program = folder.join("true");
        std::fs::copy("/bin/true", &program).unwrap();
        std::os::unix::fs::chown(&program, Some(NOBODY), None).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        (program, NOBODY)
    } else {
        (PathBuf::from("/usr/bin/passwd"), 0)
    };
    // By a shell, which executes it, and by itself.
    let script = format!("{} --help > /dev/null; true", program.display());
    let direct = run(deadheat()
        .args(["record", "-o"])
        .arg(folder.join("direct"))
        .arg("--")
        .arg(&program)
        .arg("--help"));
    let mut by_shell = deadheat();
    by_shell.args(["record", "-o"]).arg(folder.join("shell"));
    let by_shell = run(by_shell.args(["--", "bash", "-c", &script]));
    let sentence = format!(
        "deadheat: {} has the setuid bit, which has no effect here: it runs as user {own}, not {owner}\n",
        program.canonicalize().unwrap().display()
    );
    for recorded in [direct, by_shell] {
        let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
        assert_eq!(said.matches(&sentence).count(), 1, "{said}");
    }
    let replayed = run(deadheat().arg("replay").arg(folder.join("direct")));
    let said = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(!said.contains("setuid"), "{said}");
}

#[test]
fn shells() {
    let folder = folder("shells");
    for (name, script) in [
        (
            "pipelines",
            "for i in 1 2 3; do echo $i | cat; done; seq 1 1000 | tail -1; yes | head -2",
        ),
        (
            "subshells",
            "(echo a; echo b) | sort -r; x=$(echo hi | tr h j); echo $x; false || echo no; exit 3",
        ),
        (
            "positions",
            "exec 3>out; echo one >&3; (echo two >&3); echo three >&3; exec 3>&-; cat out",
        ),
        (
            "children",
            "sleep 100 & kill $!; wait $!; echo $?; trap 'echo trapped' USR1; kill -USR1 $$; echo end",
        ),
    ] {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        check_command(name, &["bash", "-c", script], &folder);
    }
}

/// Records `until_signal` and sends it these signals, one after the other,
/// each when the program has said the line that goes with it.
fn record_with_signals(folder: &Path, handled: bool, signals: &[(&str, &str)]) -> Output {
    use std::io::{BufRead, BufReader};
    let program = compile("until_signal", folder);
    let mut command = deadheat();
    command.args(["record", "-o"]).arg(folder.join("recording"));
    command.arg("--").arg(program);
    if handled {
        command.arg("handled");
    }
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("deadheat can be started");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stdout = Vec::new();
    for (line, signal) in signals {
        for said in lines.by_ref() {
            let said = said.unwrap();
            stdout.extend_from_slice(said.as_bytes());
            stdout.push(b'\n');
            if said == *line {
                break;
            }
        }
        let pid = child.id().to_string();
        let sent = Command::new("kill").args([signal, pid.as_str()]).status();
        assert!(sent.unwrap().success());
    }
    for said in lines {
        stdout.extend_from_slice(said.unwrap().as_bytes());
        stdout.push(b'\n');
    }
    Output {
        status: child.wait().unwrap(),
        stdout,
        stderr: Vec::new(),
    }
}

#[test]
fn a_signal_from_outside_ends_the_guest_and_replays() {
    let folder = folder("outside_fatal");
    let recorded = record_with_signals(&folder, false, &[("start", "-INT")]);
    assert_eq!(end(recorded.status), "signal 2");
    let replayed = run(deadheat().arg("replay").arg(folder.join("recording")));
    same("deadheat replay", &recorded, &replayed);
}

#[test]
fn signals_from_outside_reach_the_guests_handler() {
    let folder = folder("outside_handled");
    let signals = [("start", "-TERM"), ("got 15 while computing", "-TERM")];
    let recorded = record_with_signals(&folder, true, &signals);
    assert_eq!(end(recorded.status), "exit code 9");
    let replayed = run(deadheat().arg("replay").arg(folder.join("recording")));
    same("deadheat replay", &recorded, &replayed);
}

#[test]
fn a_killed_recording_replays_up_to_there() {
    let folder = folder("outside_killed");
    let signals = [("start", "-TERM"), ("got 15 while computing", "-KILL")];
    let recorded = record_with_signals(&folder, true, &signals);
    assert_eq!(end(recorded.status), "signal 9");
    let replayed = run(deadheat().arg("replay").arg(folder.join("recording")));
    assert_eq!(end(replayed.status), "exit code 70");
    let said = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(said.contains("the recording ends here"), "{said}");
    assert!(recorded.stdout.starts_with(&replayed.stdout));
}

#[test]
fn one_process_of_a_tree_replays_alone_and_damage_does_not_hang() {
    let folder = folder("tree");
    let recording = folder.join("recording");
    let script = "echo first; (echo second); (exec cat /dev/null); echo last";
    let recorded = run(deadheat()
        .args(["record", "-o"])
        .arg(&recording)
        .args(["--", "bash", "-c", script]));
    assert_eq!(end(recorded.status), "exit code 0");
    let alone = run(deadheat()
        .arg("replay")
        .arg(&recording)
        .args(["--process", "1"]));
    assert_eq!(String::from_utf8_lossy(&alone.stdout), "second\n");
    assert_eq!(end(alone.status), "exit code 0");
    // A child whose inputs are another one's cannot replay.
    std::fs::copy(recording.join("2/inputs"), recording.join("1/inputs")).unwrap();
    let damaged = run(deadheat().arg("replay").arg(&recording));
    assert_eq!(end(damaged.status), "exit code 70");
    let said = String::from_utf8_lossy(&damaged.stderr).into_owned();
    assert!(said.contains("process 1"), "{said}");
}
