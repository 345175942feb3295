//! `record --guard`: blocks are larger by what was asked for, whoever allocates and
//! however the allocator came into the program, and the replay does the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const C: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int room(void) {
    char *first = malloc(24), *second = calloc(3, 8), *third = malloc(24);
    long one = second - first, other = third - second;
    return (int)(one < other ? one : other);
}
int main(void) {
    printf("%d\n", room());
    fflush(stdout);
    int status = 0;
    if (fork() == 0)
        _exit(room());
    wait(&status);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
"#;

const CPP: &str = r#"
#include <cstdio>
struct node { long value, next; };
int main() {
    char *first = (char *)new node, *second = (char *)new node[1];
    std::printf("%ld\n", (long)(second - first));
}
"#;

const RUST: &str = r#"
fn main() {
    let (first, second) = (Box::new([0u64; 3]), Box::new([0u64; 3]));
    println!("{}", second.as_ptr() as isize - first.as_ptr() as isize);
}
"#;

fn build(compiler: &[&str], source: &str, name: &str, folder: &Path) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, source).expect("the source is written");
    let program = file.with_extension("program");
    let built = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg("-o")
        .args([&program, &file])
        .output()
        .expect("the compiler runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{name}: {said}");
    program
}

fn deadheat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .output()
        .expect("deadheat runs")
}

/// What the program says of its blocks, which its replay says as well.
fn distances(program: &Path, more: &[&str]) -> Vec<i64> {
    let at = program.with_extension("recording");
    let _ = std::fs::remove_dir_all(&at);
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    let mut arguments = vec!["record", "-o", &at];
    arguments.extend(more);
    arguments.extend(["--", &program]);
    let recorded = deadheat(&arguments);
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert_eq!(recorded.status.code(), Some(0), "{program}: {said}");
    let replayed = deadheat(&["replay", &at]);
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert_eq!(replayed.status.code(), Some(0), "{program}: {said}");
    assert_eq!(recorded.stdout, replayed.stdout, "{program}");
    let numbers = String::from_utf8_lossy(&recorded.stdout).into_owned();
    numbers
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect()
}

#[test]
fn blocks_are_larger_in_programs_of_all_kinds() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guard");
    std::fs::create_dir_all(&folder).expect("a folder");
    let programs = [
        build(&["gcc", "-g", "-O0"], C, "dynamic.c", &folder),
        build(&["gcc", "-g", "-O0", "-static"], C, "static.c", &folder),
        build(&["g++", "-g", "-O0"], CPP, "operators.cpp", &folder),
        build(&["rustc", "-g"], RUST, "boxes.rs", &folder),
    ];
    for program in &programs {
        let plain = distances(program, &[]);
        let guarded = distances(program, &["--guard=128"]);
        let at = program.display();
        assert!(
            plain.iter().all(|distance| *distance < 128),
            "{at}: {plain:?}"
        );
        assert!(
            guarded.iter().all(|distance| *distance >= 128),
            "{at}: {guarded:?}"
        );
        assert_eq!(plain.len(), guarded.len(), "{at}");
    }
}
