//! An access may be a system call: then what it leaves in the kernel is a part of
//! the state that both orders are compared by, although registers and memory are
//! the same.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

/// One thread hands the racy variable to the kernel, the other one writes to it.
fn program(setup: &str, call: &str, written: u32) -> String {
    format!(
        r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
long shared[2];
int ends[2];
static void *caller(void *unused) {{
    {call};
    return unused;
}}
static void *writer(void *unused) {{
    *(int *)shared = {written};
    return unused;
}}
int main(void) {{
    pthread_t one, two;
    {setup};
    pthread_create(&one, 0, caller, 0);
    pthread_create(&two, 0, writer, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}}
"#
    )
}

/// The states of the race on `shared`, and what differs.
fn states(folder: &Path, source: &str) -> (String, Vec<String>) {
    std::fs::write(folder.join("program.c"), source).unwrap();
    let built = Command::new("gcc")
        .args(["-g", "-O1", "-w", "-pthread", "-o", "program", "program.c"])
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(built.success());
    let report = Command::new(DEADHEAT)
        .args(["run", "--no-store", "--json", "--k", "0", "--", "./program"])
        .current_dir(folder)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout)
        .unwrap_or_else(|error| panic!("{error}: {report:?}\n{source}"));
    let races = report["races"].as_array().unwrap();
    let race = races
        .iter()
        .find(|race| {
            let place = race["place"]["description"].as_str();
            place.is_some_and(|place| place.starts_with("shared"))
        })
        .unwrap_or_else(|| panic!("no race on `shared`: {report:#}\n{source}"));
    let kinds = race["differences"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|difference| format!("{} {}", difference["kind"], difference["what"]))
        .collect();
    (race["states"].as_str().unwrap_or_default().into(), kinds)
}

/// What is set up before, the call that reads `shared`, and the part of the
/// kernel's state that has its value afterwards.
const CALLS: &[(&str, &str, &str)] = &[
    ("pipe(ends)", "write(ends[1], shared, 4)", "descriptors"),
    (
        "socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)",
        "write(ends[1], shared, 4)",
        "descriptors",
    ),
    (
        "ends[1] = eventfd(0, 0)",
        "write(ends[1], shared, 8)",
        "descriptors",
    ),
    (
        "ends[1] = memfd_create(\"file\", 0)",
        "write(ends[1], shared, 4)",
        "written",
    ),
    ("", "write(2, shared, 4)", "output written"),
];

#[test]
fn what_the_kernel_has_taken_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    for (setup, call, part) in CALLS {
        let (states, kinds) = states(folder.path(), &program(setup, call, 7));
        assert_eq!(states, "state-change", "{call}: {kinds:?}");
        assert!(
            kinds
                .iter()
                .any(|kind| kind.starts_with("\"kernel\"") && kind.contains(part)),
            "{call}: {kinds:?}"
        );
        // The same value as before: nothing to tell the orders apart by.
        let (states, kinds) = self::states(folder.path(), &program(setup, call, 0));
        assert_eq!(states, "no-state-change", "{call}: {kinds:?}");
    }
}
