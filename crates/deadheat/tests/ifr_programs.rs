//! Programs built by `deadheat cc` and `c++`: what their first line promises
//! (`// RACE variable` or `// SILENT`) is what the monitors say, at every level
//! of optimisation; and the ways a program can be built and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/ifr")
}

fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("ifr-programs")
        .join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn build(arguments: &[&str], folder: &Path) {
    let result = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        result.status.success(),
        "deadheat {}:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&result.stderr)
    );
}

fn run(program: &Path, settings: &str) -> Output {
    Command::new(program)
        .env("DEADHEAT_IFR", settings)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Races can be missed by a run; what is certain to overlap is found at once,
/// the rest within these tries.
const TRIES: usize = 20;

fn keeps_its_promise(source: &str, level: &str) {
    let path = programs().join(source);
    let text = fs::read_to_string(&path).unwrap();
    let promise = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("// ");
    let folder = scratch(&format!("{source}{level}"));
    let command = if source.ends_with("pp") { "c++" } else { "cc" };
    build(
        &[
            command,
            level,
            "-g",
            "-w",
            path.to_str().unwrap(),
            "-o",
            "prog",
            "-pthread",
        ],
        &folder,
    );
    let program = folder.join("prog");
    if promise == "SILENT" {
        for _ in 0..3 {
            let output = run(&program, "");
            assert!(
                output.status.success(),
                "{source} {level}: {}\n{}",
                output.status,
                said(&output)
            );
            assert!(
                !said(&output).contains("data race"),
                "{source} {level}:\n{}",
                said(&output)
            );
        }
        return;
    }
    let variable = promise
        .strip_prefix("RACE ")
        .expect("RACE or SILENT in the first line");
    for _ in 0..TRIES {
        let output = run(&program, "");
        let text = said(&output);
        if text.contains("data race") {
            assert!(
                variable == "?" || text.contains(&format!("({variable}")),
                "{source} {level}:\n{text}"
            );
            assert!(!output.status.success());
            return;
        }
    }
    panic!("{source} {level}: the race on {variable} was not found in {TRIES} runs");
}

fn sources() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(programs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn programs_keep_their_promises_optimised() {
    for source in sources() {
        keeps_its_promise(&source, "-O2");
    }
}

#[test]
fn programs_keep_their_promises_unoptimised() {
    for source in sources() {
        keeps_its_promise(&source, "-O0");
    }
}

#[test]
fn exit_codes_json_and_settings() {
    let folder = scratch("settings");
    let source = programs().join("counter.c");
    build(
        &[
            "cc",
            "-O1",
            "-g",
            source.to_str().unwrap(),
            "-o",
            "prog",
            "-pthread",
        ],
        &folder,
    );
    let program = folder.join("prog");
    let json = folder.join("report.json");
    let found = (0..TRIES).any(|_| {
        let output = run(&program, &format!("json={}", json.display()));
        let report: race::Report =
            serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!(report.tool, "ifr");
        assert_eq!(output.status.code() == Some(66), !report.races.is_empty());
        report.races.first().is_some_and(|race| {
            let [first, second] = &race.accesses;
            assert_eq!(first.site.function.as_deref(), Some("add"));
            assert_eq!(first.site.line, Some(6));
            assert!(first.stack.len() >= 2);
            assert_eq!(
                race.place.as_ref().map(|place| place.description.as_str()),
                Some("counter")
            );
            // What the other side did last may have been overwritten by then.
            second.site.line == Some(6) && !second.stack.is_empty()
        })
    });
    assert!(found, "no race in {TRIES} runs");
    assert_eq!(run(&program, "exitcode=0").status.code(), Some(0));
    assert_eq!(run(&program, "off=1").status.code(), Some(0));
    let wrong = run(&program, "sampel=3");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("sampel=3"));
    for settings in ["sample=50", "cap=10", "sample=10,cap=10,stats=1"] {
        let output = run(&program, settings);
        assert!(
            matches!(output.status.code(), Some(0 | 66)),
            "{settings}: {}",
            said(&output)
        );
    }
}

#[test]
fn shared_libraries_and_separate_objects() {
    let folder = scratch("library");
    fs::write(
        folder.join("lib.c"),
        "long shared; void touch(void) { shared++; }\n",
    )
    .unwrap();
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\nvoid touch(void);\nstatic void *w(void *p) { for (int i = 0; i < 1000000; i++) touch(); return p; }\nint main(void) { pthread_t t; pthread_create(&t, 0, w, 0); w(0); pthread_join(t, 0); return 0; }\n",
    )
    .unwrap();
    build(
        &["cc", "-O2", "-g", "-fPIC", "-c", "lib.c", "-o", "lib.o"],
        &folder,
    );
    build(&["cc", "-shared", "lib.o", "-o", "libt.so"], &folder);
    build(
        &[
            "cc",
            "-O2",
            "-g",
            "main.c",
            "-L.",
            "-lt",
            "-Wl,-rpath,$ORIGIN",
            "-o",
            "prog",
            "-pthread",
        ],
        &folder,
    );
    let found = (0..TRIES).any(|_| said(&run(&folder.join("prog"), "")).contains("(shared)"));
    assert!(found, "the race in the library was not found");
}

#[test]
fn a_library_with_a_lock_of_its_own_is_no_reason_for_a_report() {
    let folder = scratch("foreign");
    fs::write(
        folder.join("lock.c"),
        "#include <stdatomic.h>\n#include <sched.h>\nstatic atomic_int l;\nvoid my_lock(void) { int e = 0; while (!atomic_compare_exchange_weak(&l, &e, 1)) { e = 0; sched_yield(); } }\nvoid my_unlock(void) { atomic_exchange(&l, 0); }\nvoid with_lock(void (*f)(void *), void *p) { my_lock(); f(p); my_unlock(); }\n",
    )
    .unwrap();
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\nvoid my_lock(void); void my_unlock(void); void with_lock(void (*f)(void *), void *p);\nlong a, b;\nstatic void back(void *p) { *(long *)p += 2; }\nstatic void *w(void *x) { for (int i = 0; i < 200000; i++) { my_lock(); a++; my_unlock(); with_lock(back, &b); } return x; }\nint main(void) { pthread_t t; pthread_create(&t, 0, w, 0); w(0); pthread_join(t, 0); return 0; }\n",
    )
    .unwrap();
    let plain = |name: &str| {
        let done = Command::new("clang-22")
            .args(["-O2", "-shared", "-fPIC", "lock.c", "-o", name])
            .current_dir(&folder)
            .status()
            .unwrap();
        assert!(done.success());
    };
    plain("libmylock.so");
    build(
        &[
            "cc",
            "-O2",
            "-g",
            "main.c",
            "-L.",
            "-lmylock",
            "-Wl,-rpath,$ORIGIN",
            "-o",
            "prog",
            "-pthread",
        ],
        &folder,
    );
    let json = folder.join("report.json");
    for _ in 0..3 {
        let output = run(&folder.join("prog"), &format!("json={}", json.display()));
        assert!(!said(&output).contains("data race"), "{}", said(&output));
    }
    let text = fs::read_to_string(json).unwrap();
    assert!(
        text.contains("libmylock.so") && text.contains("libc.so.6"),
        "modules are named:\n{text}"
    );
}

#[test]
fn what_cannot_work_is_said() {
    let folder = scratch("refused");
    fs::write(folder.join("a.c"), "int main(void) { return 0; }\n").unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["cc", "-static", "a.c", "-o", "a"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("-static"));
    let missing = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["cc", "a.c", "-o", "a"])
        .env("DEADHEAT_IFR_PASS", "nowhere.so")
        .current_dir(&folder)
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(said(&missing).contains("nowhere.so"));
}

/// A lock made of atomics, in an object without monitors: the program is
/// correct, and only that object knows why.
#[test]
fn plain_objects_that_synchronise_by_themselves_make_no_false_report() {
    let folder = scratch("plain-objects");
    fs::write(
        folder.join("lock.c"),
        "static int word;\n\
         void take(void) { while (__atomic_exchange_n(&word, 1, __ATOMIC_ACQUIRE)) ; }\n\
         void give(void) { __atomic_store_n(&word, 0, __ATOMIC_RELEASE); }\n\
         void with(void (*work)(void)) { take(); work(); give(); }\n",
    )
    .unwrap();
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\n#include <stdio.h>\n\
         void take(void); void give(void); void with(void (*)(void));\n\
         static long total, other;\n\
         static void work(void) { other++; }\n\
         static void *run(void *unused) {\n\
             void (*volatile t)(void) = take;\n\
             for (int i = 0; i < 200000; i++) { t(); total++; give(); with(work); }\n\
             return unused;\n\
         }\n\
         int main(void) {\n\
             pthread_t one, two;\n\
             pthread_create(&one, 0, run, 0); pthread_create(&two, 0, run, 0);\n\
             pthread_join(one, 0); pthread_join(two, 0);\n\
             printf(\"%ld %ld\\n\", total, other);\n\
             return 0;\n\
         }\n",
    )
    .unwrap();
    let compiled = Command::new("gcc")
        .args(["-O2", "-c", "lock.c", "-o", "lock.o"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(compiled.success());
    // Left by an earlier run, or not there; ar would add to it.
    let _ = fs::remove_file(folder.join("liblock.a"));
    let archived = Command::new("ar")
        .args(["rcs", "liblock.a", "lock.o"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(archived.success());
    for (name, link) in [("object", "lock.o"), ("archive", "-llock")] {
        let arguments = [
            "cc", "-O1", "-g", "main.c", "-L.", link, "-o", name, "-pthread",
        ];
        build(&arguments, &folder);
        for _ in 0..5 {
            let output = run(&folder.join(name), "");
            assert!(output.status.success(), "{name}: {}", said(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout), "400000 400000\n");
        }
    }
}
