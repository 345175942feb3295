//! No name, path or output of a program or recording steers a terminal.
//!
//! A program whose file name, arguments, environment, threads and source files
//! hold escape sequences, line breaks and characters that turn the direction of
//! writing goes through every command that shows anything of it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const EVIL: &str = "e\x1b[31mvil\u{202e}\x07\n\u{9b}2J";

fn deadheat(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .env(EVIL, EVIL)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started")
}

/// What steers a terminal, as far as this program could have put it there.
fn must_be_plain(what: &str, bytes: &[u8]) {
    let text = String::from_utf8(bytes.to_vec())
        .unwrap_or_else(|_| panic!("{what}: {}", bytes.escape_ascii()));
    let bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!text.contains(bad), "{what}: {}", text.escape_debug());
}

fn built(folder: &Path) {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm/says_escapes.c");
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-w", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(folder.join(EVIL))
        .status()
        .expect("gcc can be started");
    assert!(built.success());
}

#[test]
fn no_command_shows_what_steers_a_terminal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    built(folder);
    let program = format!("./{EVIL}");
    let run = deadheat(
        folder,
        &[
            "run",
            "--store",
            "s",
            "--quantum",
            "50",
            "--k",
            "2",
            "--",
            &program,
            EVIL,
        ],
    );
    assert_eq!(run.status.code(), Some(66), "{}", run.stderr.escape_ascii());
    must_be_plain("run", &run.stdout);
    must_be_plain("run's errors", &run.stderr);
    let shown =
        String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(shown.contains("\\x1b[31m"), "the names are shown: {shown}");

    let second = deadheat(
        folder,
        &[
            "run",
            "--store",
            "s",
            "--quantum",
            "70",
            "--k",
            "0",
            "--",
            &program,
            EVIL,
        ],
    );
    must_be_plain("a second run", &[second.stdout, second.stderr].concat());
    let missing = format!("{EVIL}/missing");
    let evil_name = format!("--redact={EVIL}no");
    let commands: Vec<Vec<&str>> = vec![
        vec!["list", "--store", "s"],
        vec!["show", "1", "--store", "s"],
        vec!["explain", "1", "--store", "s"],
        vec!["compare", "1", "2", "--store", "s"],
        vec!["report", "--store", "s"],
        vec!["report", "--store", "s", "--gen-suppressions"],
        vec!["detect", "s/1", "--gen-suppressions=valgrind"],
        vec!["detect", "s/1"],
        vec!["classify", "s/1", "--k", "2"],
        vec!["dump", "s/1"],
        vec!["dump", "s/1", "--bytes"],
        vec!["pack", "s/1"],
        vec!["pack", "s/1", &evil_name],
        vec!["replay", "s/1"],
        vec!["replay", "s/1", "--until", "2:200"],
        vec!["replay", "s/1", "--diagnose"],
        vec!["replay", "s/1", "--evidence", "1"],
        vec!["replay", &missing],
        vec!["replay", "s/1", "--process", "7"],
        vec!["export", "1", EVIL, "--store", "s"],
        vec!["record", "--", &missing],
        vec!["exec", "--", EVIL],
        vec!["hunt", "--runs", "4", "--store", "h", "--", &program],
        vec!["doctor", &program],
    ];
    for command in commands {
        let output = deadheat(folder, &command);
        must_be_plain(&format!("{command:?}"), &output.stdout);
        must_be_plain(&format!("{command:?}, errors"), &output.stderr);
        assert_ne!(output.status.code(), Some(101), "{command:?}");
    }

    // A manifest and a report that say other things than the vm wrote.
    let manifest = folder.join("s/1/manifest.json");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    let evil = serde_json::to_string(EVIL).expect("a string");
    let changed = text
        .replace("\"schedule\": \"random\"", &format!("\"schedule\": {evil}"))
        .replace(
            "\"made_by\": \"deadheat ",
            &format!("\"made_by\": {}", &evil[..evil.len() - 1]),
        );
    assert_ne!(text, changed);
    std::fs::write(&manifest, changed).expect("a folder of ours");
    for command in [
        &["dump", "s/1"] as &[&str],
        &["replay", "s/1"],
        &["detect", "s/1"],
    ] {
        let output = deadheat(folder, command);
        must_be_plain(
            &format!("{command:?}"),
            &[output.stdout, output.stderr].concat(),
        );
    }
}

/// A text that gdb is told in digits. A star and a letter stand for more of the
/// digit before them.
fn in_letters(told: &str) -> String {
    let mut digits: Vec<u8> = Vec::new();
    let mut told = told.bytes();
    while let Some(byte) = told.next() {
        match (byte, digits.last().copied()) {
            (b'*', Some(last)) => {
                let more = told.next().unwrap_or(29).saturating_sub(29);
                digits.resize(digits.len() + usize::from(more), last);
            }
            _ => digits.push(byte),
        }
    }
    let pairs = String::from_utf8_lossy(&digits).into_owned();
    let byte = |at: usize| u8::from_str_radix(pairs.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len() / 2).map(byte).collect();
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// What gdb is told of threads is shown by gdb.
#[test]
fn gdb_is_told_names_without_what_steers_a_terminal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    built(folder);
    let program = format!("./{EVIL}");
    let recorded = deadheat(folder, &["record", "-o", "r", "--", &program, "a", "b"]);
    assert!(recorded.status.success());
    let packet = |text: &str| {
        let sum = text.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
        format!("+${text}#{sum:02x}")
    };
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let moment = format!("qRcmd,{}", hex("moment"));
    let asked = [
        "qSupported:multiprocess+",
        "?",
        "qThreadExtraInfo,1",
        &moment,
        "k",
    ]
    .map(packet);
    std::fs::write(folder.join("asked"), asked.concat()).expect("a folder of ours");
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_deadheat")])
        .args(["replay", "r", "--gdb=-"])
        .current_dir(folder)
        .stdin(std::fs::File::open(folder.join("asked")).expect("a file of ours"))
        .output()
        .expect("deadheat can be started");
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = answers
        .split(['$', '#'])
        .map(|word| in_letters(word.trim_start_matches('O')));
    let shown: Vec<String> = words.filter(|word| word.contains("[31mv")).collect();
    assert_eq!(shown.len(), 2, "{answers}");
    for word in shown {
        must_be_plain("what gdb is told", word.as_bytes());
    }
}

/// What a CI system reads is in form, whatever the names are, and none of it
/// steers the terminal that shows it.
#[test]
fn reports_for_machines_are_in_form() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    built(folder);
    let program = format!("./{EVIL}");
    let files = ["--sarif=s", "--junit=x", "--html=h", "--json=j"];
    let options = ["run", "--no-store", "--quantum", "50", "--k", "2"];
    let run = deadheat(
        folder,
        &[&options as &[&str], &files, &["--", &program, EVIL]].concat(),
    );
    assert_eq!(run.status.code(), Some(66), "{}", run.stderr.escape_ascii());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a report");
    for name in ["j", "s"] {
        let report: serde_json::Value = serde_json::from_str(&read(name)).expect("JSON");
        assert!(
            report.to_string().contains("vil"),
            "{name}: the names are there"
        );
    }
    // JSON escapes what steers; XML and HTML have no such characters at all.
    for name in ["j", "s", "x", "h"] {
        let text = read(name);
        let bad = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!text.contains(bad), "{name}");
    }
    let parsed = Command::new("python3")
        .args([
            "-c",
            "import sys, xml.dom.minidom as m; print(m.parse(sys.argv[1]).documentElement.tagName)",
        ])
        .arg(folder.join("x"))
        .output()
        .expect("python3 can be started");
    assert_eq!(
        parsed.stdout,
        b"testsuites\n",
        "{}",
        parsed.stderr.escape_ascii()
    );
}

/// Runs `deadheat` with its output on a terminal; what it shows.
fn on_a_terminal(folder: &Path, command: &str) -> Vec<u8> {
    let command = format!("{} {command}", env!("CARGO_BIN_EXE_deadheat"));
    let output = Command::new("timeout")
        .args([
            "--signal=KILL",
            "60",
            "script",
            "-qec",
            &command,
            "/dev/null",
        ])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("script (bsdutils) can be started");
    output.stdout
}

#[test]
fn a_replay_shows_the_output_as_it_was_but_not_on_a_terminal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    built(folder);
    let program = format!("./{EVIL}");
    let recorded = deadheat(folder, &["record", "-o", "r", "--", &program, "a", "b"]);
    assert!(recorded.status.success());
    let written = b"out\x1b[1mput\xe2\x80\xae\xff\n";
    assert_eq!(recorded.stdout, written);
    let replayed = deadheat(folder, &["replay", "r"]);
    assert_eq!(replayed.stdout, written);
    let shown = on_a_terminal(folder, "replay r");
    assert_eq!(
        String::from_utf8_lossy(&shown).trim_end(),
        "out\\x1b[1mput\\u{202e}\\xff"
    );
    let raw = on_a_terminal(folder, "replay r --raw");
    assert_eq!(raw.trim_ascii_end(), written.trim_ascii_end());
    // The name was one of a file all the time.
    assert!(
        folder
            .join(std::ffi::OsStr::from_bytes(EVIL.as_bytes()))
            .is_file()
    );
}
