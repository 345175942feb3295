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
    let mut arguments = vec![
        command,
        level,
        "-g",
        "-w",
        path.to_str().unwrap(),
        "-o",
        "prog",
        "-pthread",
    ];
    let flags = text.lines().find_map(|line| line.strip_prefix("// FLAGS "));
    arguments.extend(flags.unwrap_or_default().split_whitespace());
    build(&arguments, &folder);
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
            assert_eq!(second.site.function.as_deref(), Some("add"));
            assert_eq!(second.site.line, Some(6));
            assert!(second.stack.len() >= 2);
            true
        })
    });
    assert!(found, "no race in {TRIES} runs");
    assert_eq!(run(&program, "exitcode=0").status.code(), Some(0));
    assert_eq!(run(&program, "off=1").status.code(), Some(0));
    let wrong = run(&program, "sampel=3");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("sampel=3"));
    for settings in ["sample=101", "budget=101", "cap=", "signal=65", "json="] {
        assert_eq!(run(&program, settings).status.code(), Some(2), "{settings}");
    }
    // The races are told once, and why there is no file.
    let found = (0..TRIES).any(|_| {
        let output = run(&program, "json=nowhere/report.json");
        let text = said(&output);
        let found = text.contains("data race #1");
        assert_eq!(output.status.code(), Some(if found { 66 } else { 0 }));
        assert!(text.contains("cannot write nowhere/report.json"), "{text}");
        assert!(!text.contains("addr2line"), "{text}");
        found
    });
    assert!(found, "no race in {TRIES} runs");
    for settings in [
        "sample=50",
        "cap=10",
        "budget=5",
        "sample=10,cap=10,stats=1",
    ] {
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
    // As Meson links, and with the arguments in a file: the run-time is the
    // program's, and a library has none.
    for defined in ["-Wl,--no-undefined", "-Wl,-z,defs"] {
        fs::write(
            folder.join("arguments"),
            format!("-shared {defined} lib.o\n-o 'libt.so'\n"),
        )
        .unwrap();
        build(&["cc", "@arguments"], &folder);
        let found = (0..TRIES).any(|_| said(&run(&folder.join("prog"), "")).contains("(shared)"));
        assert!(found, "{defined}");
    }
}

/// Nothing in them needs a monitor, but they went through the pass: no gates.
#[test]
fn objects_without_accesses_are_no_plain_objects() {
    let folder = scratch("no-accesses");
    fs::write(
        folder.join("version.c"),
        "int version(void) { return 3; }\n",
    )
    .unwrap();
    fs::write(
        folder.join("main.c"),
        "int version(void); int main(void) { return version() != 3; }\n",
    )
    .unwrap();
    let has_gate = |compiler: &[&str]| {
        let compiled = Command::new(compiler[0])
            .args(&compiler[1..])
            .args(["-O2", "-c", "version.c", "-o", "version.o"])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", said(&compiled));
        build(&["cc", "main.c", "version.o", "-o", "prog"], &folder);
        assert!(run(&folder.join("prog"), "").status.success());
        let program = fs::read(folder.join("prog")).unwrap();
        let gate = b"__wrap_version";
        program.windows(gate.len()).any(|bytes| bytes == gate)
    };
    assert!(!has_gate(&[env!("CARGO_BIN_EXE_deadheat"), "cc"]));
    assert!(has_gate(&["gcc"]));
}

/// Threads that mostly rest have time to wait with their monitors, but not all of
/// them inside one lock: such a program took 25 times as long.
#[test]
fn waiting_under_one_lock_is_bounded() {
    let folder = scratch("contended");
    let source = programs().join("contended.c");
    let source = source.to_str().unwrap();
    let arguments = ["cc", "-O1", source, "-o", "prog", "-pthread"];
    build(&arguments, &folder);
    // The best of some: other work on the machine only makes it longer.
    let best = |settings: &str| {
        let once = |_| {
            let begun = std::time::Instant::now();
            assert!(run(&folder.join("prog"), settings).status.success());
            begun.elapsed()
        };
        (0..5).map(once).min().unwrap()
    };
    let (waiting, not_waiting) = (best(""), best("sample=99"));
    assert!(
        waiting < 8 * not_waiting,
        "{waiting:?}, without waiting {not_waiting:?}"
    );
}

/// A header is compiled and not linked, whatever it is called.
#[test]
fn headers_are_compiled_for_later() {
    let folder = scratch("headers");
    fs::write(folder.join("all.h"), "#define FIVE 5\n").unwrap();
    fs::write(folder.join("a.c"), "int main(void) { return FIVE - 5; }\n").unwrap();
    build(&["cc", "all.h", "-o", "all.pch"], &folder);
    build(&["cc", "-x", "c-header", "all.h", "-o", "all.pch"], &folder);
    build(
        &["cc", "-include-pch", "all.pch", "a.c", "-o", "prog"],
        &folder,
    );
    assert!(run(&folder.join("prog"), "").status.success());
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
    for option in ["-m32", "--target=aarch64-linux-gnu"] {
        let other = Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(["cc", option, "-c", "a.c"])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert_eq!(other.status.code(), Some(2));
        let text = said(&other);
        assert!(text.contains(option) && text.contains("x86-64"), "{text}");
    }
}

/// Pass, run-time and objects must be of one build; anything else would start no
/// monitors without a word.
#[test]
fn what_does_not_fit_together_is_refused() {
    let folder = scratch("misfit");
    fs::write(
        folder.join("a.c"),
        "int cell; int main(void) { return cell; }\n",
    )
    .unwrap();
    let pass = Path::new(env!("CARGO_BIN_EXE_deadheat")).with_file_name("libifr_pass.so");
    let refused = Command::new("clang-22")
        .arg(format!("-fpass-plugin={}", pass.display()))
        .args(["-c", "a.c", "-o", "a.o"])
        .env("DEADHEAT_IFR_BUILD", "0123456789abcdef")
        .current_dir(&folder)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(70), "{}", said(&refused));
    assert!(said(&refused).contains("are of different builds"));

    build(&["cc", "-O1", "-c", "a.c", "-o", "a.o"], &folder);
    let symbols = Command::new("nm")
        .args(["-u", "a.o"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let name = symbols
        .split_whitespace()
        .find(|name| name.starts_with("__deadheat_ifr_tls_"))
        .unwrap();
    let older = format!("{name}={}0", &name[..name.len() - 16]);
    let renamed = Command::new("objcopy")
        .args(["--redefine-sym", &older, "a.o"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(renamed.success());
    let linked = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["cc", "a.o", "-o", "a"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(!linked.status.success());
    assert!(
        said(&linked).contains("rebuild_all_objects_with_one_deadheat"),
        "{}",
        said(&linked)
    );
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
        .args(["-O2", "-fPIC", "-c", "lock.c", "-o", "lock.o"])
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
    // In a shared library, whose other half has monitors.
    fs::write(
        folder.join("half.c"),
        "void take(void); void give(void); void with(void (*)(void));\n\
         static long total, other;\n\
         static void work(void) { other++; }\n\
         void step(void) { take(); total++; give(); with(work); }\n\
         long sum(void) { return total + other; }\n",
    )
    .unwrap();
    fs::write(
        folder.join("user.c"),
        "#include <pthread.h>\n#include <stdio.h>\n\
         void step(void); long sum(void);\n\
         static void *run(void *unused) { for (int i = 0; i < 200000; i++) step(); return unused; }\n\
         int main(void) {\n\
             pthread_t one, two;\n\
             pthread_create(&one, 0, run, 0); pthread_create(&two, 0, run, 0);\n\
             pthread_join(one, 0); pthread_join(two, 0);\n\
             printf(\"%ld\\n\", sum());\n\
             return 0;\n\
         }\n",
    )
    .unwrap();
    // Options that a link does not use are no reason to warn.
    let arguments = [
        "cc", "-Werror", "-DX", "-fPIC", "-O1", "-c", "half.c", "-o", "half.o",
    ];
    build(&arguments, &folder);
    let arguments = [
        "cc",
        "-Werror",
        "-DX",
        "-fvisibility=hidden",
        "-shared",
        "half.o",
        "-L.",
        "-llock",
        "-o",
        "libhalf.so",
    ];
    build(&arguments, &folder);
    let arguments = [
        "cc",
        "-O1",
        "user.c",
        "-L.",
        "-lhalf",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "user",
        "-pthread",
    ];
    build(&arguments, &folder);
    for _ in 0..5 {
        let output = run(&folder.join("user"), "");
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "800000\n");
    }
}

/// How many monitors a run started, by its own statistics.
fn started(program: &Path, settings: &str) -> u64 {
    let output = run(program, &format!("stats=1,exitcode=0,{settings}"));
    let text = said(&output);
    text.lines()
        .find_map(|line| line.strip_suffix(" monitors started"))
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no statistics:\n{text}"))
}

/// Cap, sampling and budget each start fewer monitors, and none of them stops
/// watching: a thread that never releases is refilled.
#[test]
fn settings_start_fewer_monitors() {
    let folder = scratch("fewer");
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\n#include <stdio.h>\n\
         enum { N = 1 << 16 };\n\
         long cells[2][N];\n\
         static void *w(void *p) { long *c = p; unsigned x = 1; for (int i = 0; i < 20000000; i++) { x = x * 1664525 + 1013904223; c[x >> 16] += i; } return p; }\n\
         int main(void) { pthread_t t; pthread_create(&t, 0, w, cells[1]); w(cells[0]); pthread_join(t, 0); printf(\"%ld\\n\", cells[0][1]); return 0; }\n",
    )
    .unwrap();
    build(&["cc", "-O1", "main.c", "-o", "prog", "-pthread"], &folder);
    let program = folder.join("prog");
    let full = started(&program, "");
    assert!(full > 100_000, "{full}");
    let capped = started(&program, "cap=2");
    assert!(capped > 4 && capped < full / 10, "{capped} of {full}");
    let sampled = started(&program, "sample=1");
    assert!(sampled < full, "{sampled} of {full}");
    let bound = started(&program, "budget=1");
    assert!(bound > 0 && bound < full, "{bound} of {full}");
    assert_eq!(started(&program, "off=1"), 0);
}

#[test]
fn a_signal_asks_for_what_was_found_so_far() {
    use std::io::{BufRead, BufReader, Read};
    let folder = scratch("demand");
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\n#include <stdio.h>\n\
         long counter;\n\
         static __attribute__((noinline)) void add(void) { counter++; }\n\
         static void *w(void *p) { for (int i = 0; i < 2000000; i++) add(); return p; }\n\
         int main(void) { pthread_t t; pthread_create(&t, 0, w, 0); w(0); pthread_join(t, 0);\n\
         puts(\"ready\"); fflush(stdout); getchar(); puts(\"went on\"); return 0; }\n",
    )
    .unwrap();
    build(
        &["cc", "-O1", "-g", "main.c", "-o", "prog", "-pthread"],
        &folder,
    );
    let found = (0..TRIES).any(|_| {
        let mut child = Command::new(folder.join("prog"))
            .env("DEADHEAT_IFR", "signal=12")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let asked = Command::new("kill")
            .args(["-12", &child.id().to_string()])
            .status()
            .unwrap();
        assert!(asked.success());
        // Without a race nothing is printed; the end closes the stream.
        drop(child.stdin.take());
        let mut text = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "went on\n", "{text}");
        let status = child.wait().unwrap();
        let told = text.matches("data race #1").count();
        assert!(told == 0 || told == 2, "asked for, and at the end:\n{text}");
        assert_eq!(status.code(), Some(if told == 2 { 66 } else { 0 }));
        told == 2
    });
    assert!(found, "no race in {TRIES} runs");
}

/// Without LLVM 22 the message names the package.
#[test]
fn missing_llvm_is_named() {
    let folder = scratch("no-llvm");
    let tools = folder.join("tools");
    let _ = fs::remove_dir_all(&tools);
    fs::create_dir_all(&tools).unwrap();
    let refused = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(arguments)
            .env("PATH", &tools)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(70), "{}", said(&output));
        said(&output)
    };
    assert!(refused(&["cc", "a.c"]).contains("install the package clang-22"));
    assert!(refused(&["c++", "a.cc"]).contains("install the package clang-22"));
    std::os::unix::fs::symlink("/usr/bin/clang-22", tools.join("clang-22")).unwrap();
    assert!(refused(&["cargo", "build"]).contains("install the package lld-22"));
    std::os::unix::fs::symlink("/usr/bin/ld.lld-22", tools.join("ld.lld-22")).unwrap();
    assert!(refused(&["cargo", "build"]).contains("cargo is not installed"));
    // A toolchain of another LLVM.
    for (name, text) in [
        ("cargo", "#!/bin/sh\nexit 0\n"),
        ("rustc", "#!/bin/sh\necho 'LLVM version: 23.1.0'\n"),
    ] {
        let path = tools.join(name);
        fs::write(&path, text).unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, all).unwrap();
    }
    assert!(refused(&["cargo", "build"]).contains("LLVM 23.1.0"));
}

/// Parts of the pass can be left out; the races are found all the same, and an
/// unknown part is refused.
#[test]
fn parts_can_be_left_out() {
    let folder = scratch("without");
    let source = programs().join("counter.c");
    let compile = |without: &str| {
        Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(["cc", "-O2", "-g"])
            .arg(&source)
            .args(["-o", "prog", "-pthread"])
            .env("DEADHEAT_IFR_WITHOUT", without)
            .current_dir(&folder)
            .output()
            .unwrap()
    };
    for part in ["summaries", "library", "ranges", "escape", "adaptive"] {
        let built = compile(part);
        assert!(built.status.success(), "{part}: {}", said(&built));
        let found = (0..TRIES).any(|_| said(&run(&folder.join("prog"), "")).contains("(counter)"));
        assert!(found, "without {part}");
    }
    let refused = compile("sumaries");
    assert!(!refused.status.success());
    assert!(said(&refused).contains("sumaries"), "{}", said(&refused));
}

/// Link-time optimisation, position-independent code, thread-local storage and
/// every level: the program does its work and its race is found.
#[test]
fn every_way_to_compile() {
    let folder = scratch("ways");
    fs::write(
        folder.join("main.cpp"),
        "#include <atomic>\n#include <cstdio>\n#include <stdexcept>\n#include <thread>\n\
         long shared; thread_local long mine; std::atomic<long> counted;\n\
         [[gnu::noinline]] static void touch(int i) { shared += i; mine++; if (i % 500000 == 499999) throw std::runtime_error(\"x\"); }\n\
         static void work() { for (int i = 0; i < 5000000; i++) try { touch(i); } catch (const std::exception &) { counted += mine; mine = 0; } }\n\
         int main() { std::thread t(work); work(); t.join(); std::printf(\"%ld\\n\", counted.load()); return 0; }\n",
    )
    .unwrap();
    for flags in [
        "-O0",
        "-O1 -fPIC",
        "-O2 -flto",
        "-O2 -flto=thin",
        "-O3 -fno-pie -no-pie",
        "-Os -fPIE -pie",
    ] {
        let mut arguments = vec!["c++", "-g", "main.cpp", "-o", "prog", "-pthread"];
        arguments.extend(flags.split(' '));
        build(&arguments, &folder);
        let found = (0..TRIES).any(|_| {
            let output = run(&folder.join("prog"), "");
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "10000000\n",
                "{flags}"
            );
            said(&output).contains("(shared)")
        });
        assert!(found, "{flags}");
    }
}

/// Runs of each annotated program.
const RUNS: usize = 5;

/// The annotated programs shared with detection, every `step`th of the correct and
/// of the racy ones in C and C++:
/// what is correct stays silent. How many of the racy ones are reported is
/// counted; tiny programs seldom overlap in time. Gives the correct, the racy and
/// the reported.
fn annotated_suite(step: usize) -> (usize, usize, usize) {
    let folder = scratch("annotated");
    let suite = programs().join("../races");
    let mut sources: Vec<PathBuf> = fs::read_dir(&suite)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "c" || end == "cpp")
        })
        .collect();
    sources.sort();
    let is_racy = |source: &PathBuf| fs::read_to_string(source).unwrap().contains("RACE ");
    let (racy, correct): (Vec<PathBuf>, Vec<PathBuf>) = sources.into_iter().partition(is_racy);
    let sources = racy
        .iter()
        .step_by(step)
        .chain(correct.iter().step_by(step));
    let (mut silent, mut racy, mut found) = (0, 0, 0);
    let mut missed = Vec::new();
    for source in sources {
        let text = fs::read_to_string(source).unwrap();
        let is_c = source.extension().is_some_and(|end| end == "c");
        let mut command = Command::new(env!("CARGO_BIN_EXE_deadheat"));
        command.args([
            if is_c { "cc" } else { "c++" },
            "-O1",
            "-g",
            "-w",
            "-pthread",
        ]);
        if !is_c {
            command.arg("-std=c++17");
        }
        let flags = text
            .lines()
            .find_map(|line| line.strip_prefix("// flags: "));
        command.args(flags.unwrap_or_default().split_whitespace());
        command
            .arg(source)
            .args(["-o", "prog"])
            .current_dir(&folder);
        let built = command.output().unwrap();
        if !built.status.success() && text.contains("-fopenmp") {
            // clang has its own OpenMP library, which need not be there.
            continue;
        }
        assert!(
            built.status.success(),
            "{}:\n{}",
            source.display(),
            said(&built)
        );
        let is_racy = text.contains("RACE ");
        let json = folder.join("report.json");
        let mut seen = false;
        for _ in 0..RUNS {
            let _ = fs::remove_file(&json);
            let output = Command::new("timeout")
                .args(["60", "./prog"])
                .current_dir(&folder)
                .env("DEADHEAT_IFR", format!("json={}", json.display()))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert!(
                is_racy || !said(&output).contains("data race"),
                "{} is correct:\n{}",
                source.display(),
                said(&output)
            );
            let Ok(report) = fs::read_to_string(&json) else {
                continue;
            };
            let report: race::Report = serde_json::from_str(&report).unwrap();
            seen |= !report.races.is_empty();
        }
        silent += usize::from(!is_racy);
        racy += usize::from(is_racy);
        found += usize::from(is_racy && seen);
        if is_racy && !seen {
            missed.push(source.file_stem().unwrap_or_default().to_string_lossy());
        }
    }
    println!(
        "corpus: {silent} correct programs silent; {found} of {racy} racy ones reported in {RUNS} runs"
    );
    println!("corpus: not reported: {}", missed.join(" "));
    (silent, racy, found)
}

#[test]
fn annotated_programs() {
    let (silent, racy, _) = annotated_suite(9);
    assert!(silent > 3 && racy > 3);
}

#[test]
#[ignore = "every program of the suite; make test-all runs it"]
fn all_annotated_programs() {
    let (silent, racy, found) = annotated_suite(1);
    assert!(
        silent > 40 && racy > 20 && found * 2 > racy,
        "{silent} {racy} {found}"
    );
}

/// A function of some ten thousand lines, with branches, loops, calls and locks:
/// its work is right and its race is found.
#[test]
fn a_huge_function() {
    let folder = scratch("huge");
    let mut text = String::from(
        "#include <pthread.h>\n#include <stdio.h>\nlong cells[4096], racy;\nlong other(long);\nstatic pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;\nstatic void *big(void *p) {\n long x = (long)p & 1, *mine = cells + 2048 * x;\n",
    );
    for at in 0..6000 {
        let cell = at * 7 % 2000;
        let line = match at % 12 {
            0 => format!(
                "if (x & {at}) mine[{cell}] += x; else x ^= mine[{}];",
                cell / 2
            ),
            1 => format!(
                "for (long i = 0; i < {}; i++) mine[{cell} + i] = x;",
                at % 5
            ),
            2 => "x = other(x);".to_string(),
            3 if at % 240 == 3 => {
                "pthread_mutex_lock(&lock); x += mine[1]; pthread_mutex_unlock(&lock);".to_string()
            }
            4 if at % 480 == 4 => {
                "for (int i = 0; i < 20000; i++) racy = racy * 3 + i;".to_string()
            }
            _ => format!("mine[{cell}] = x + mine[{}] * {at};", cell / 3),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(
        " return (void *)x; }\nstatic void *rounds(void *p) { void *x; for (int i = 0; i < 20; i++) x = big(p); return x; }\nint main(void) { pthread_t t; void *r; pthread_create(&t, 0, rounds, (void *)3); void *m = rounds((void *)2); pthread_join(t, &r); printf(\"%ld %ld\\n\", (long)r, (long)m); return 0; }\n",
    );
    fs::write(folder.join("main.c"), text).unwrap();
    fs::write(
        folder.join("other.c"),
        "long other(long x) { return x * 3 + 1; }\n",
    )
    .unwrap();
    let plain = Command::new("clang-22")
        .args(["-O1", "-w", "main.c", "other.c", "-o", "plain", "-pthread"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(plain.success());
    let sources = ["cc", "-O1", "-g", "-w", "main.c", "other.c"];
    build(
        &[&sources[..], &["-o", "prog", "-pthread"]].concat(),
        &folder,
    );
    let wanted = run(&folder.join("plain"), "").stdout;
    let found = (0..TRIES).any(|_| {
        let output = run(&folder.join("prog"), "");
        assert_eq!(output.stdout, wanted);
        assert_eq!(
            said(&output).contains("data race"),
            said(&output).contains("(racy)")
        );
        said(&output).contains("(racy)")
    });
    assert!(found, "no race in {TRIES} runs");
}

/// A thread that never releases keeps its sites: both accesses of a race on the
/// first of many locations are named, however many monitors came after it.
#[test]
fn sites_are_kept_as_long_as_their_monitors() {
    let folder = scratch("kept");
    fs::write(
        folder.join("main.c"),
        "#include <pthread.h>\n#include <stdatomic.h>\n#include <stdlib.h>\n\
         enum { N = 20000 };\n\
         long first; static long *cells; static atomic_int turn;\n\
         static __attribute__((noinline)) void early(void) { first = 1; }\n\
         static __attribute__((noinline)) void late(void) { first = 2; }\n\
         static __attribute__((noinline)) void touch(unsigned n) { cells[n] += n; }\n\
         static void *one(void *p) {\n\
             early(); unsigned x = 1;\n\
             for (int i = 0; i < N; i++) { x = x * 1664525 + 1013904223; touch(x % N); }\n\
             atomic_store_explicit(&turn, 1, memory_order_relaxed);\n\
             while (atomic_load_explicit(&turn, memory_order_relaxed) != 2) ;\n\
             return p;\n\
         }\n\
         int main(void) {\n\
             pthread_t t; cells = calloc(N, sizeof *cells);\n\
             pthread_create(&t, 0, one, 0);\n\
             while (atomic_load_explicit(&turn, memory_order_relaxed) != 1) ;\n\
             late();\n\
             atomic_store_explicit(&turn, 2, memory_order_relaxed);\n\
             pthread_join(t, 0);\n\
             return 0;\n\
         }\n",
    )
    .unwrap();
    build(
        &["cc", "-O1", "-g", "main.c", "-o", "prog", "-pthread"],
        &folder,
    );
    let json = folder.join("report.json");
    let output = run(&folder.join("prog"), &format!("json={}", json.display()));
    let report: race::Report = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report.races.len(), 1, "{}", said(&output));
    let functions: Vec<_> = report.races[0]
        .accesses
        .iter()
        .map(|access| access.site.function.clone().unwrap_or_default())
        .collect();
    assert_eq!(functions, ["late", "early"], "{}", said(&output));
    assert!(
        report.races[0].accesses[1].stack.len() >= 2,
        "{}",
        said(&output)
    );
}
