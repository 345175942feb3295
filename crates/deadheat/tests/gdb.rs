//! A stock gdb, driven by scripts, on replays and on both orders of a race.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Two threads add to one total without a lock; one of them also fills a
/// vector register with a pattern.
const SOURCE: &str = r#"#include <pthread.h>
#include <stdio.h>
volatile long total;
volatile long last;
static void fill(void) {
    static const int pattern[4] = {11, 22, 33, 44};
    __asm__ volatile("movdqu %0, %%xmm7" : : "m"(pattern) : "xmm7");
    last = 1;
}
static void *work(void *step) {
    for (int i = 0; i < 50; i++) total += (long)step;
    return step;
}
int main(void) {
    pthread_t one, two;
    fill();
    pthread_create(&one, 0, work, (void *)3);
    pthread_create(&two, 0, work, (void *)5);
    pthread_join(one, 0);
    pthread_join(two, 0);
    last = 2;
    printf("%ld\n", total);
    return 0;
}
"#;

/// The child works in memory of its own.
const FORKS: &str = r#"#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int shared = 1;
static int child(int by) {
    for (int i = 0; i < 4; i++) shared += by;
    return shared;
}
int main(void) {
    if (fork() == 0) return child(10);
    int status;
    wait(&status);
    printf("%d %d\n", shared, WEXITSTATUS(status));
    return 0;
}
"#;

struct Scene {
    folder: tempfile::TempDir,
    program: PathBuf,
    recording: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        Scene::of(SOURCE)
    }

    fn of(text: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("sum.c");
        let program = folder.path().join("sum");
        let recording = folder.path().join("recording");
        std::fs::write(&source, text).unwrap();
        let built = Command::new("gcc")
            .args(["-g", "-O0", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        assert!(built.unwrap().success());
        let recorded = Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(["record", "--quantum", "300", "-o"])
            .arg(&recording)
            .arg("--")
            .arg(&program)
            .output()
            .unwrap();
        assert!(recorded.status.success());
        Scene {
            folder,
            program,
            recording,
        }
    }

    /// gdb's answers to `commands` on `deadheat replay OPTIONS --gdb=-`.
    fn piped(&self, options: &str, commands: &[&str]) -> String {
        let target = format!(
            "target remote | {} replay {} {options} --gdb=-",
            env!("CARGO_BIN_EXE_deadheat"),
            self.recording.display()
        );
        self.gdb(&target, commands)
    }

    fn gdb(&self, target: &str, commands: &[&str]) -> String {
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-ex", "set confirm off"])
            .args(["-ex", "set pagination off", "-ex", "set width 0"])
            .args(["-ex", "set debuginfod enabled off", "-ex", target]);
        for command in commands {
            gdb.args(["-ex", command]);
        }
        let output = gdb.arg(&self.program).output().expect("gdb is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text + &String::from_utf8_lossy(&output.stderr)
    }
}

#[track_caller]
fn contains(text: &str, wanted: &[&str]) {
    let mut rest = text;
    for piece in wanted {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => panic!("`{piece}` is missing or out of order in:\n{text}"),
        }
    }
}

#[test]
fn a_forked_process_can_be_travelled_as_well() {
    let scene = Scene::of(FORKS);
    let text = scene.piped(
        "--process 1",
        &[
            "break child",
            "continue",
            "backtrace",
            "watch shared",
            "continue",
            "continue",
            "print shared",
            "reverse-continue",
            "print shared",
            "delete",
            "tbreak sum.c:7",
            "continue",
            "print shared",
        ],
    );
    contains(
        &text,
        &[
            "child (by=10)",
            "main () at",
            "New value = 11",
            "New value = 21",
            "$1 = 21",
            "$2 = 11",
            "$3 = 41",
        ],
    );
    let race = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .arg("replay")
        .arg(&scene.recording)
        .args(["--process", "1", "--race", "1"])
        .output()
        .unwrap();
    assert_eq!(race.status.code(), Some(2));
}

#[test]
fn breakpoints_watchpoints_and_the_way_back() {
    let scene = Scene::new();
    let text = scene.piped(
        "",
        &[
            "break sum.c:20",
            "continue",
            "print total",
            "watch last",
            "reverse-continue",
            "backtrace",
            "print $xmm7.v4_int32",
            "stepi",
            "print last",
            "reverse-stepi",
            "print last",
            "delete",
            "break work",
            "continue",
            "info threads",
            "next",
            "reverse-next",
            "delete",
            "reverse-continue",
            "monitor moment",
            "continue",
            "monitor end",
        ],
    );
    contains(
        &text,
        &[
            "Breakpoint 1, main",
            "Hardware watchpoint 2: last",
            // The last write before line 20 is the one in `fill`.
            "New value = 0",
            "#0",
            "fill",
            "#1",
            "main",
            "{11, 22, 33, 44}",
            "= 1",
            "= 0",
            "hit Breakpoint 3, work",
            "Thread 1.2",
            "No more reverse-execution history",
            "No more reverse-execution history",
        ],
    );
    // What `monitor` answers comes on gdb's other stream.
    contains(&text, &["instruction 0 of", "now at 1:"]);
}

#[test]
fn both_orders_of_a_race_differ_after_it() {
    let scene = Scene::new();
    let values = |order: &str| -> String {
        let text = scene.piped(
            &format!("--race 1 --instance 1 --order {order}"),
            &[
                "monitor race",
                "break sum.c:22",
                "continue",
                "print total",
                "monitor race first",
                "maintenance flush register-cache",
                "print total",
                "monitor race point",
                "maintenance flush register-cache",
                "info registers rip",
            ],
        );
        contains(&text, &["Breakpoint 1, main", "$1 = "]);
        contains(&text, &["race 1:", "now at"]);
        let value = text.split("$1 = ").nth(1).unwrap();
        value.lines().next().unwrap().to_string()
    };
    assert_ne!(values("recorded"), values("swapped"));
}

#[test]
fn read_only_unless_allowed_and_then_a_copy() {
    let scene = Scene::new();
    let commands = [
        "break sum.c:21",
        "continue",
        "set var total = 1000",
        "print total",
        "break sum.c:22",
        "continue",
        "print total",
        "delete",
        "watch total",
        "reverse-continue",
        "reverse-continue",
        "print total",
    ];
    let text = scene.piped("", &commands);
    contains(&text, &["Cannot access memory"]);
    let text = scene.piped("--allow-write", &commands);
    contains(&text, &["$1 = 1000", "Breakpoint 2, main", "$2 = 1000"]);
    assert!(
        !text.contains("$3 = 1000"),
        "what lies before the change is as it was:\n{text}"
    );
}

/// A server on a socket, ended when dropped.
struct Server(Child);

impl Server {
    fn start(scene: &Scene, socket: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .arg("replay")
            .arg(&scene.recording)
            .arg(format!("--gdb={}", socket.display()))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("waiting for gdb"), "{line}");
        Server(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn gdb_may_detach_and_attach_again() {
    let scene = Scene::new();
    let socket = scene.folder.path().join("socket");
    let mut server = Server::start(&scene, &socket);
    let target = format!("target remote {}", socket.display());
    let first = scene.gdb(&target, &["break sum.c:21", "continue", "detach"]);
    contains(&first, &["Breakpoint 1, main", "detached"]);
    // The place is kept, the breakpoints are not.
    let second = scene.gdb(
        &target,
        &["frame", "continue", "monitor quit", "disconnect"],
    );
    contains(&second, &["main", "sum.c:21", "No more reverse-execution"]);
    assert!(!second.contains("Breakpoint 1,"), "{second}");
    assert!(server.0.wait().unwrap().success(), "`monitor quit` ends it");
}

/// A return address is written by a call, which is no plain store.
#[test]
fn a_watchpoint_sees_what_a_call_pushes() {
    let scene = Scene::new();
    let text = scene.piped(
        "",
        &[
            "break fill",
            "continue",
            "watch -location *(long *)($rbp + 8)",
            "disable 1",
            "reverse-continue",
            "x/i $pc",
            "backtrace",
        ],
    );
    contains(
        &text,
        &[
            "Breakpoint 1, fill",
            "Hardware watchpoint 2",
            "Old value",
            "call",
            "#0",
            "main",
        ],
    );
}
