//! The subcommands over the store, run as a user runs them, on reports that
//! `--json=FILE` could have written.

#[path = "../../report/tests/support/schema.rs"]
mod schema;

use schema::Schema;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MIXED: &str = include_str!("../../report/tests/golden/mixed.json");

struct Desk(tempfile::TempDir);

impl Desk {
    /// A folder with one report in it and an empty store.
    fn new() -> Self {
        let desk = Desk(tempfile::tempdir().unwrap());
        fs::write(desk.path().join("mixed.json"), MIXED).unwrap();
        desk
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, line: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(line.split(' '))
            .current_dir(self.path())
            .env("USER", "ada")
            .env_remove("DEADHEAT_STORE")
            .env_remove("DEADHEAT_AUTHOR")
            .output()
            .unwrap()
    }

    /// Runs a line that must exit with `code` and returns what it printed.
    fn expect(&self, line: &str, code: i32) -> String {
        let output = self.run(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(code),
            "deadheat {line}\n{out}\n{err}"
        );
        out + &err
    }
}

#[test]
fn a_run_is_kept_listed_shown_and_explained() {
    let desk = Desk::new();
    let text = desk.expect("report mixed.json --keep", 66);
    assert!(text.contains("data race #2: output differs"), "{text}");
    assert!(!text.contains('\x1b'), "no colour into a pipe: {text}");
    assert!(
        desk.expect("list", 0)
            .contains("1 spec violated, 1 output differs")
    );
    let list: Value = serde_json::from_str(&desk.expect("list --json", 0)).unwrap();
    assert_eq!(list[0]["races"]["output-differs"], 1);
    assert!(
        desk.expect("report --color always", 0)
            .contains("\x1b[1;31m")
    );
    let shown: Value = serde_json::from_str(&desk.expect("show 2 --json", 0)).unwrap();
    assert_eq!(shown["verdict"], "output-differs");
    let fingerprint = shown["fingerprint"].as_str().unwrap();
    let text = desk.expect(&format!("show {fingerprint}"), 0);
    assert!(text.contains("history:\n  run    1"), "{text}");
    assert!(desk.expect("explain 2", 0).contains("That is a data race."));
    let again: Value = serde_json::from_str(&desk.expect("report --json", 0)).unwrap();
    assert_eq!(again["run"], 1);
}

#[test]
fn every_form_is_written_in_one_go() {
    let desk = Desk::new();
    desk.expect(
        "report mixed.json --no-store --json=a.json --sarif a.sarif --junit a.xml --html a.html",
        0,
    );
    for file in ["a.json", "a.sarif"] {
        let text = fs::read_to_string(desk.path().join(file)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap();
    }
    assert!(
        fs::read_to_string(desk.path().join("a.xml"))
            .unwrap()
            .starts_with("<?xml")
    );
    assert!(
        fs::read_to_string(desk.path().join("a.html"))
            .unwrap()
            .starts_with("<!DOCTYPE html>")
    );
    assert!(!desk.path().join(".deadheat").exists());
}

#[test]
fn exit_codes_follow_the_options() {
    let desk = Desk::new();
    desk.expect("report mixed.json --no-store", 0);
    desk.expect("report mixed.json --no-store --fail-on any", 66);
    desk.expect("report mixed.json --no-store --fail-on any --exitcode 9", 9);
    desk.expect("report mixed.json --keep --fail-on never", 0);
    desk.expect("report nowhere.json", 2);
    desk.expect("report 77", 2);
    desk.expect("explain 99", 2);
    desk.expect("report mixed.json --fail-on sometimes", 2);
    desk.expect("report mixed.json --sarif /no/such/folder/x", 2);
}

#[test]
fn a_mark_outlives_its_run_and_an_accepted_race_fails_nothing() {
    let desk = Desk::new();
    desk.expect("report mixed.json --keep", 66);
    desk.expect("mark 1 accepted", 2);
    for race in 1..=4 {
        desk.expect(&format!("mark {race} accepted --reason advisory"), 0);
    }
    let text = desk.expect("report mixed.json --keep", 0);
    assert!(text.contains("marked:   accepted by ada on"), "{text}");
    desk.expect("mark 1 none", 0);
    desk.expect("report mixed.json --keep", 66);
    let text = desk.expect("show 1", 0);
    assert!(text.contains("ada marked it accepted: advisory"), "{text}");
}

#[test]
fn a_baseline_fails_only_what_is_new_or_worse() {
    let desk = Desk::new();
    desk.expect("report mixed.json --keep", 66);
    let text = desk.expect("report --baseline base.json", 2);
    assert!(
        text.contains("deadheat baseline update base.json"),
        "{text}"
    );
    desk.expect("baseline update base.json", 0);
    desk.expect("report --baseline base.json", 0);
    let worse = MIXED.replace("\"k-witness-harmless\"", "\"state-change\"");
    fs::write(desk.path().join("worse.json"), worse).unwrap();
    let text = desk.expect("report worse.json --baseline base.json", 66);
    assert!(text.contains("known, with a less bad verdict"), "{text}");
    desk.expect("report worse.json --keep", 66);
    let text = desk.expect("compare 1 2", 0);
    assert!(text.contains("changed for the worse: 1"), "{text}");
    assert!(text.contains("unchanged: 3"), "{text}");
    desk.expect("baseline update base.json", 0);
    desk.expect("report worse.json --baseline base.json", 0);
}

#[test]
fn suppressions_end_complain_and_can_be_generated() {
    let desk = Desk::new();
    let write = |text: &str| fs::write(desk.path().join("team.supp"), text).unwrap();
    write("race:^add$\nwrong\n");
    let text = desk.expect("report mixed.json --keep --suppressions team.supp", 2);
    assert!(text.contains("team.supp:2:"), "{text}");
    assert!(
        !desk.path().join(".deadheat/deadheat.sqlite").exists(),
        "nothing was started"
    );
    write("# advisory\nrace:^add$\nrace:nobody\n");
    let text = desk.expect("report mixed.json --no-store --suppressions team.supp", 0);
    assert!(text.contains("(1 suppressed)"), "{text}");
    assert!(
        text.contains("suppressions that matched nothing:\n  - team.supp:3 race:nobody"),
        "{text}"
    );
    for syntax in ["tsan", "valgrind"] {
        let line = format!("report mixed.json --no-store --gen-suppressions={syntax}");
        let text = desk.expect(&line, 0);
        write(&text[text.find("# data race").unwrap()..]);
        let text = desk.expect(
            "report mixed.json --no-store --fail-on any --suppressions team.supp",
            0,
        );
        assert!(
            text.contains("no data races found in ./prog --fast (4 suppressed)"),
            "{text}"
        );
    }
}

#[test]
fn the_doctor_answers() {
    let desk = Desk::new();
    let text = desk.expect(&format!("doctor {}", env!("CARGO_BIN_EXE_deadheat")), 0);
    assert!(text.contains("binary\n  ok"), "{text}");
    let list: Value = serde_json::from_str(&desk.expect("doctor --json", 0)).unwrap();
    let remedied = |one: &Value| (one["state"] == "ok") != one.get("remedy").is_some();
    assert!(list.as_array().unwrap().iter().all(remedied), "{list}");
    assert!(
        desk.expect("doctor mixed.json", 70)
            .contains("not a program")
    );
    desk.expect("doctor nowhere", 2);
}

#[test]
fn gc_keeps_the_history() {
    let desk = Desk::new();
    for _ in 0..3 {
        desk.expect("report mixed.json --keep", 66);
    }
    assert!(
        desk.expect("gc --keep 1 --dry-run", 0)
            .contains("would drop")
    );
    desk.expect("report 1", 0);
    assert!(
        desk.expect("gc --keep 1", 0)
            .contains("the details of 2 runs")
    );
    assert!(desk.expect("report 1", 2).contains("deadheat gc"));
    let text = desk.expect("show 2", 0);
    assert!(text.contains("run    1"), "{text}");
}

#[test]
fn completions_and_manual_pages_know_every_subcommand() {
    let desk = Desk::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = desk.expect(&format!("completions {shell}"), 0);
        assert!(
            text.contains("baseline") && text.contains("fail-on"),
            "{shell}"
        );
    }
    desk.expect("man pages", 0);
    for name in ["deadheat.1", "deadheat-report.1", "deadheat-doctor.1"] {
        let page = fs::read_to_string(desk.path().join("pages").join(name)).unwrap();
        assert!(page.contains(".TH"), "{name}");
    }
}

/// Compiles a program of the repository into the desk's folder.
fn compile(desk: &Desk, source: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(source);
    let status = Command::new("gcc")
        .args(["-g", "-pthread", "-o", "prog"])
        .arg(source)
        .current_dir(desk.path())
        .status()
        .unwrap();
    assert!(status.success());
}

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");

#[test]
fn the_report_of_a_real_run_keeps_the_published_schema() {
    let desk = Desk::new();
    compile(&desk, "examples/tally.c");
    desk.expect("run --json=run.json --quantum 2000 -- ./prog", 66);
    let text = fs::read_to_string(desk.path().join("run.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let schema = Schema::new(SCHEMA, true);
    assert_eq!(schema.errors(&report), Vec::<String>::new());
    let race = &report["races"][0];
    // What the page and the SARIF log are drawn from is really there.
    assert!(
        race["orders"]
            .as_array()
            .is_some_and(|orders| orders.len() == 2)
    );
    assert!(race["replay"][0].is_string() && race["accesses"][1]["stack"][0].is_object());
}

#[test]
fn lock_problems_reach_every_form() {
    let desk = Desk::new();
    let source = desk.path().join("inversion.c");
    fs::write(
        &source,
        "#include <pthread.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static void *one(void *x) {
    pthread_mutex_lock(&a); pthread_mutex_lock(&b);
    pthread_mutex_unlock(&b); pthread_mutex_unlock(&a);
    return x;
}
static void *two(void *x) {
    pthread_mutex_lock(&b); pthread_mutex_lock(&a);
    pthread_mutex_unlock(&a); pthread_mutex_unlock(&b);
    return x;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, one, 0); pthread_join(t, 0);
    pthread_create(&t, 0, two, 0); pthread_join(t, 0);
    return 0;
}
",
    )
    .unwrap();
    compile(&desk, source.to_str().unwrap());
    let text = desk.expect(
        "run --json=r.json --sarif r.sarif --junit r.xml --html r.html -- ./prog",
        0,
    );
    assert!(text.contains("lock order inversion"), "{text}");
    let read = |name: &str| fs::read_to_string(desk.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("r.json")).unwrap();
    assert_eq!(
        Schema::new(SCHEMA, true).errors(&report),
        Vec::<String>::new()
    );
    let log: Value = serde_json::from_str(&read("r.sarif")).unwrap();
    let result = &log["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "lock-order-inversion");
    let index = result["ruleIndex"].as_u64().unwrap() as usize;
    let rule = &log["runs"][0]["tool"]["driver"]["rules"][index];
    assert_eq!(rule["id"], "lock-order-inversion");
    let place = &result["locations"][0]["physicalLocation"];
    assert!(
        place["artifactLocation"]["uri"]
            .as_str()
            .unwrap()
            .ends_with("inversion.c")
    );
    assert!(
        result["codeFlows"][0]["threadFlows"]
            .as_array()
            .unwrap()
            .len()
            >= 2
    );
    let xml = read("r.xml");
    assert!(
        xml.contains("classname=\"deadheat.lock-order-inversion\""),
        "{xml}"
    );
    assert!(xml.contains("tests=\"1\" failures=\"0\""), "{xml}");
    let page = read("r.html");
    assert!(page.contains("order inversion") || page.contains("order-inversion"));
}

#[test]
fn what_is_no_recording_and_no_report_is_said_to_be_none() {
    let desk = Desk::new();
    let text = desk.expect("replay mixed.json", 2);
    assert!(
        text.contains("mixed.json is not a recording (it is a file"),
        "{text}"
    );
    let text = desk.expect("replay nowhere", 2);
    assert!(
        text.contains("nowhere is not a recording (there is no such folder"),
        "{text}"
    );
    let cut = "<?xml version=\"1.0\"?>\n<valgrindoutput>\n<error>\n<kind>Race</kind>\n";
    for (text, line) in [
        (cut.to_string(), "line 3: `<error>` is not closed"),
        (
            cut.replace("<?xml version=\"1.0\"?>\n", ""),
            "line 2: `<error>` is not closed",
        ),
        ("<valgrind\n".into(), "line 1: a tag that does not end"),
        (
            "<html></html>".into(),
            "line 1: XML, but no report of Valgrind's",
        ),
        (
            "a.c:1 b.c:2\nprog+0xzz b.c:3".into(),
            "line 2: `prog+0xzz` is no site",
        ),
    ] {
        fs::write(desk.path().join("log"), text).unwrap();
        let said = desk.expect("import log", 2);
        assert!(said.contains(line), "{line}\n{said}");
    }
}

/// Ctrl-C goes to the recorded program and to deadheat alike.
#[test]
fn a_program_that_is_interrupted_is_reported_all_the_same() {
    const RACY: &str = "\
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static int shared;
static void *work(void *unused) { shared++; return unused; }
int main(void) {
    pthread_t one, other;
    pthread_create(&one, 0, work, 0);
    pthread_create(&other, 0, work, 0);
    pthread_join(one, 0);
    pthread_join(other, 0);
    puts(\"ready\");
    fflush(stdout);
    for (;;)
        pause();
}
";
    let desk = Desk::new();
    let (source, program) = (desk.path().join("racy.c"), desk.path().join("racy"));
    fs::write(&source, RACY).unwrap();
    let built = Command::new("gcc")
        .args(["-g", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_deadheat"));
    command
        .args(["run", "--no-store", "--no-classify", "--"])
        .arg(&program)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    // SAFETY: one system call. What a shell starts in the background ignores
    // the keyboard, and so would the program.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // SAFETY: the group was made for this child.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGINT) };
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("data race #1"), "{said}");
}

#[test]
fn a_run_that_is_not_kept_leaves_nothing_behind() {
    let desk = Desk::new();
    let folder = desk.path().join("temporary");
    fs::create_dir(&folder).unwrap();
    let left = || fs::read_dir(&folder).unwrap().count();
    let start = |line: &str| {
        Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(["run", "--no-store", "--", "sh", "-c", line])
            .env("TMPDIR", &folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    assert!(start("echo done").wait().unwrap().success());
    assert_eq!(left(), 0, "after a normal end");
    let mut endless = start("while :; do :; done");
    let until = |wanted: usize, what: &str| {
        let begun = std::time::Instant::now();
        while left() != wanted {
            assert!(begun.elapsed().as_secs() < 30, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    until(1, "no folder for the recording");
    endless.kill().unwrap();
    endless.wait().unwrap();
    until(0, "the folder stays after kill -9");
}
