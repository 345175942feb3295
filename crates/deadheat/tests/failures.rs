//! Runs that fail by themselves (`tests/programs/failures`) are findings, and what
//! a report offers for replay can be replayed.
//!
//! The first line of a program says what is expected: `CRASH at FILE:LINE`,
//! `ABORT`, `DEADLOCK` or `HANG at PLACE`, or `WELL` of the correct ones. Each runs
//! under some schedules; no failure may be told of a correct program.

use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/failures")
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn build(&self, source: &Path) -> String {
        let name = source.file_stem().unwrap().to_str().unwrap().to_string();
        let built = Command::new("gcc")
            .args(["-g", "-O0", "-pthread", "-o"])
            .arg(self.folder.path().join(&name))
            .arg(source)
            .status();
        assert!(built.unwrap().success(), "{name}");
        format!("./{name}")
    }

    fn built(&self, name: &str) -> String {
        self.build(&sources().join(format!("{name}.c")))
    }

    fn deadheat(&self, words: &[&str]) -> Output {
        Command::new(DEADHEAT)
            .args(words)
            .current_dir(self.folder.path())
            .env_remove("DEADHEAT_STORE")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The report of a run, and its exit code.
    fn run(&self, options: &[&str], command: &[&str]) -> (Value, i32) {
        let words = [&["run", "--json=report.json"], options, &["--"], command].concat();
        let output = self.deadheat(&words);
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        let text = std::fs::read(self.folder.path().join("report.json"));
        let text = text.unwrap_or_else(|_| panic!("deadheat {}: {said}", words.join(" ")));
        (serde_json::from_slice(&text).unwrap(), code.unwrap())
    }

    /// Runs a command that a report offers; what it exits with.
    fn shows_again(&self, command: &str) -> (i32, String) {
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[0], "deadheat", "{command}");
        let output = self.deadheat(&words[1..]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        // A replay dies as the program did.
        let died = output.status.signal().map(|signal| 128 + signal);
        (output.status.code().or(died).unwrap_or(-1), said)
    }
}

fn failures(report: &Value) -> Vec<Value> {
    report["failures"].as_array().cloned().unwrap_or_default()
}

/// What a report says of the program itself is what its first line says.
fn check(source: &Path) {
    let text = std::fs::read_to_string(source).unwrap();
    let first = text.lines().next().unwrap().to_string();
    let bench = Bench::new();
    let program = bench.build(source);
    let (report, code) = bench.run(&["--schedules", "6", "--no-classify"], &[&program]);
    let told = failures(&report);
    let name = source.display();
    if first.ends_with("WELL") {
        assert_eq!(told, Vec::<Value>::new(), "{name}");
        assert_eq!(code, 0, "{name}");
        return;
    }
    assert_eq!(code, 66, "{name}");
    assert_eq!(told.len(), 1, "{name}: {told:#?}");
    let told = &told[0];
    let words: Vec<&str> = first
        .trim_start_matches("// ")
        .split([' ', ':', ','])
        .collect();
    assert_eq!(told["kind"], words[0].to_lowercase(), "{name}: {told:#}");
    let at = told["at"].to_string();
    assert_eq!(words[1], "at");
    let lines: Vec<&str> = first
        .split(' ')
        .filter(|word| word.contains(".c:"))
        .collect();
    for line in &lines {
        let line = line.trim_end_matches([',', ':']);
        assert!(at.contains(line), "{name}: {line} in {at}");
    }
    if lines.is_empty() {
        assert!(at.contains(words[2]), "{name}: {at}");
    }
    assert!(!told["stacks"][0]["stack"].as_array().unwrap().is_empty());
    for command in told["replay"].as_array().unwrap() {
        let (code, said) = bench.shows_again(command.as_str().unwrap());
        assert!(
            ![2, 70, 66, -1].contains(&code),
            "{command}: {code}\n{said}"
        );
        if command.as_str().unwrap().contains("--until") {
            assert!(
                code == 0 && said.contains("#0"),
                "{command}: {code}\n{said}"
            );
        }
    }
    assert!(!told["replay"].as_array().unwrap().is_empty());
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(&sources().join(concat!(stringify!($name), ".c"))); })*

        #[test]
        fn every_program_is_run() {
            let names: BTreeSet<&str> = [$(stringify!($name)),*, "until_told"].into();
            let files: BTreeSet<String> = std::fs::read_dir(sources()).unwrap()
                .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string())
                .collect();
            assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), names);
        }
    };
}

programs! {
    null asserts both_ways in_order spins naps unheard works_long by_the_clock gives_up death_test
    early_use
}

/// A program that waits for a signal is left to wait, and its end by that is its
/// own.
#[test]
fn who_waits_for_a_signal_is_left_to_wait() {
    let bench = Bench::new();
    let program = bench.built("until_told");
    let mut child = Command::new(DEADHEAT)
        .args(["run", "--no-classify", "--json=report.json", "--", &program])
        .current_dir(bench.folder.path())
        .env_remove("DEADHEAT_STORE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Long enough for it to have been looked at.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(child.try_wait().unwrap().is_none(), "it was ended");
    // SAFETY: our own child, not yet reaped.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    child.wait().unwrap();
    let report = std::fs::read(bench.folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(failures(&report), Vec::<Value>::new());
}

/// Behind a shell, `timeout` and `make` the process that failed is told; the
/// deadlock that `timeout` ends is one all the same.
#[test]
fn failures_of_processes_behind_others() {
    let bench = Bench::new();
    let null = bench.built("null");
    let both_ways = bench.built("both_ways");
    std::fs::write(
        bench.folder.path().join("Makefile"),
        format!("all:\n\t{null}\n"),
    )
    .unwrap();
    let shell = format!("{null}; exit 3");
    let waiting = format!("timeout 2 {both_ways}; exit $?");
    let cases: [(&[&str], &str); 4] = [
        (&["sh", "-c", &shell], "crash"),
        (&["timeout", "20", &null], "crash"),
        (&["make", "-s"], "crash"),
        (&["sh", "-c", &waiting], "deadlock"),
    ];
    for (command, kind) in cases {
        // The first seed in which the locks meet is another one everywhere.
        let (report, code) = (0..8)
            .map(|seed: i32| {
                let seed = seed.to_string();
                let policy = ["--quantum", "500", "--schedule", "random", "--seed", &seed];
                bench.run(&[&["--no-classify"][..], &policy[..]].concat(), command)
            })
            .find(|(report, _)| !failures(report).is_empty())
            .unwrap_or_else(|| panic!("{command:?} never failed"));
        assert_eq!(code, 66, "{command:?}");
        let told = failures(&report);
        assert_eq!(told[0]["kind"], kind, "{command:?}: {told:#?}");
        for command in told[0]["replay"].as_array().unwrap() {
            let (code, said) = bench.shows_again(command.as_str().unwrap());
            assert!(![2, 70, -1].contains(&code), "{command}: {code}\n{said}");
        }
    }
}

/// A run that fails without a race is searched around, whatever else is wanted.
#[test]
fn a_failure_without_a_race_is_searched_around() {
    let bench = Bench::new();
    let program = bench.built("null");
    for options in [&["--no-classify"][..], &[], &["--schedules", "2"]] {
        let (report, code) = bench.run(options, &[&program]);
        assert_eq!(code, 66);
        let told = failures(&report);
        let around = told[0]["around"].as_str().unwrap();
        assert!(around.contains("8 other schedules"), "{around}");
        assert!(around.contains("SIGSEGV in 8"), "{around}");
    }
    let (_, code) = bench.run(&["--fail-on", "never"], &[&program]);
    assert_eq!(code, 128 + libc::SIGSEGV);
}

/// Commands for `deadheat replay` in a text, as they are.
fn commands_in(text: &str, ends: &[char]) -> BTreeSet<String> {
    text.match_indices("deadheat replay ")
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(ends).unwrap_or(rest.len());
            rest[..end].trim().to_string()
        })
        .collect()
}

/// Every command of every form of report, of programs that race in the first
/// process, in another one, and in other schedules only.
#[test]
fn every_replay_command_replays() {
    let races = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/races");
    let bench = Bench::new();
    let tally = bench.build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tally.c"));
    let null = bench.built("null");
    let both = races.join("../hunt/checked_twice.c");
    let checked = bench.build(&both);
    let behind = format!("{tally}; exit 0");
    let cases: [(&[&str], &[&str]); 5] = [
        (&["--k", "4"], &[&tally]),
        (&["--k", "4", "--schedules", "3"], &[&checked]),
        (&["--k", "4"], &["sh", "-c", &behind]),
        (&["--no-classify", "--schedules", "2"], &[&null]),
        (&["--no-classify"], &["sh", "-c", &behind]),
    ];
    for (options, command) in cases {
        let forms = [
            "--sarif",
            "report.sarif",
            "--junit",
            "report.xml",
            "--html",
            "report.html",
        ];
        let words = [
            &["run", "--json=report.json"][..],
            &forms[..],
            options,
            &["--"][..],
            command,
        ]
        .concat();
        let output = bench.deadheat(&words);
        let mut commands = commands_in(&String::from_utf8_lossy(&output.stderr), &['\n']);
        for (form, ends) in [
            ("report.json", &['"'][..]),
            ("report.sarif", &['"', '`']),
            ("report.xml", &['\n', '<', '&']),
            ("report.html", &['"', '<']),
        ] {
            let text = std::fs::read_to_string(bench.folder.path().join(form)).unwrap();
            let found = commands_in(&text, ends);
            assert!(!found.is_empty(), "{command:?}: {form}");
            commands.extend(found);
        }
        let report = std::fs::read(bench.folder.path().join("report.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        for race in report["races"].as_array().unwrap() {
            let replay = race["replay"].as_array().unwrap();
            assert!(!replay.is_empty(), "{command:?}: {race:#}");
        }
        for command in &commands {
            let (code, said) = bench.shows_again(command);
            assert!(![2, 70, -1].contains(&code), "{command}: {code}\n{said}");
            if command.contains("--evidence") {
                assert_eq!(code, 66, "{command}\n{said}");
            }
        }
    }
}

/// Without a recording there is nothing to replay, and the report says so.
#[test]
fn without_a_store_no_command_is_offered() {
    let bench = Bench::new();
    let tally = bench.build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tally.c"));
    let (report, code) = bench.run(&["--no-store", "--k", "2"], &[&tally]);
    assert_eq!(code, 66);
    assert!(
        !report.to_string().contains("deadheat replay"),
        "{report:#}"
    );
    assert!(
        report["not_checked"]
            .to_string()
            .contains("no recording was kept")
    );
}

/// A race behind a shell gets its verdict like any other.
#[test]
fn races_of_other_processes_are_classified() {
    let bench = Bench::new();
    let tally = bench.build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tally.c"));
    std::fs::write(
        bench.folder.path().join("Makefile"),
        format!("all:\n\t{tally}\n"),
    )
    .unwrap();
    let behind = format!("{tally}; true");
    let cases: [&[&str]; 3] = [
        &["sh", "-c", &behind],
        &["timeout", "60", &tally],
        &["make", "-s"],
    ];
    for command in cases {
        let (report, code) = bench.run(&["--k", "4"], command);
        assert_eq!(code, 66, "{command:?}");
        let race = &report["races"][0];
        assert_eq!(race["verdict"], "output-differs", "{command:?}: {race:#}");
        assert!(
            race["process"].as_u64().is_some_and(|number| number > 0),
            "{command:?}"
        );
    }
}

/// What a hunt finds is a failure in the stored report, and the races that a run has
/// found are played the other way round before anything else.
#[test]
fn a_hunt_shares_what_it_knows() {
    let bench = Bench::new();
    let source = sources().join("../hunt/early_use.c");
    let program = bench.build(&source);
    let (report, _) = bench.run(&["--no-classify", "--schedules", "2"], &[&program]);
    assert!(!report["races"].as_array().unwrap().is_empty());
    let output = bench.deadheat(&[
        "hunt", "--json", "--time", "120", "--jobs", "1", "--", &program,
    ]);
    assert_eq!(output.status.code(), Some(66));
    let said = String::from_utf8_lossy(&output.stdout);
    let hunt: Value = serde_json::from_str(&said).unwrap();
    assert!(
        said.contains("a race of the first run in the other order"),
        "{hunt:#}"
    );
    let output = bench.deadheat(&["report", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = failures(&report);
    assert_eq!(told.len(), 1, "{told:#?}");
    for command in told[0]["replay"].as_array().unwrap() {
        let (code, said) = bench.shows_again(command.as_str().unwrap());
        assert!(![2, 70, -1].contains(&code), "{command}: {code}\n{said}");
    }
}
