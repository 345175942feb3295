//! Recordings that a signal from outside has ended (a time-out's SIGTERM, Ctrl-C):
//! explored executions end of it as well. A server that would wait for ever is no
//! hang, what it does at its end is compared, and its classification comes to an end.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

/// Two workers count, racing; the main thread waits as `WAIT` says.
const SERVER: &str = r#"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
int last, served;
volatile sig_atomic_t stop;
sem_t ready;
static void asked(int signal) { stop = 1; }
static void *work(void *number) {
    last = (int)(long)number;
    served++;
    sem_post(&ready);
    for (;;) pause();
    return 0;
}
int main(int count, char **words) {
    pthread_t one, two;
    char mode = count > 1 ? words[1][0] : 'p';
    sem_init(&ready, 0, 0);
    if (mode == 'h' || mode == 'v') signal(SIGTERM, asked);
    pthread_create(&one, 0, work, (void *)1);
    pthread_create(&two, 0, work, (void *)2);
    sem_wait(&ready);
    sem_wait(&ready);
    puts("ready");
    fflush(stdout);
    if (mode == 't') {
        /* A timer goes on without requests. */
        int timer = timerfd_create(CLOCK_MONOTONIC, 0);
        struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } };
        timerfd_settime(timer, 0, &often, 0);
        for (;;) { long times; read(timer, &times, 8); }
    }
    if (mode == 's') while (!stop) ;
    while (!stop) poll(0, 0, -1);
    if (mode == 'v') printf("last %d\n", last);
    puts("bye");
    return 0;
}
"#;

fn build(folder: &Path) {
    std::fs::write(folder.join("server.c"), SERVER).unwrap();
    let built = Command::new("gcc")
        .args(["-g", "-O1", "-w", "-pthread", "-o", "server", "server.c"])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(built.success());
}

/// The report on a server that was ended by SIGTERM once it was ready.
fn classified(folder: &Path, mode: &str) -> Value {
    let recording = format!("recording-{mode}");
    let mut child = Command::new(DEADHEAT)
        .args(["record", "--quantum", "300", "-o", &recording, "--"])
        .args(["./server", mode])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    child.wait().unwrap();
    let report = Command::new(DEADHEAT)
        .args(["classify", "--json", "--no-store", "--k", "2"])
        .args(["--schedules", "2", "--pre-schedules", "0"])
        .args(["--post-schedules", "0", &recording])
        .current_dir(folder)
        .output()
        .unwrap();
    serde_json::from_slice(&report.stdout)
        .unwrap_or_else(|error| panic!("server {mode}: {error}: {report:?}"))
}

fn verdicts(report: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let races = report["races"].as_array().unwrap();
    let mut verdicts: Vec<(String, String)> = races
        .iter()
        .map(|race| (word(&race["place"]["description"]), word(&race["verdict"])))
        .collect();
    verdicts.sort();
    verdicts
}

#[test]
fn a_server_that_waits_is_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    // It waits, spins, its timer goes on; it dies of the signal or handles it.
    for mode in ["p", "s", "t", "h"] {
        let report = classified(folder.path(), mode);
        let found = verdicts(&report);
        assert!(!found.is_empty(), "server {mode}: {report}");
        for (what, verdict) in &found {
            assert_eq!(
                verdict, "k-witness-harmless",
                "server {mode}, {what}: {report:#}"
            );
        }
        assert!(report["cut_short"].is_null(), "server {mode}: {report:#}");
    }
}

#[test]
fn what_it_does_when_it_is_asked_to_end_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let report = classified(folder.path(), "v");
    let found = verdicts(&report);
    assert!(
        found.contains(&("last".into(), "output-differs".into())),
        "{report:#}"
    );
}
