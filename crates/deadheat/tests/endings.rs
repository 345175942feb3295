//! Every run ends: signals at any moment in any phase, budgets, and output that
//! cannot be written.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/programs/ends");

/// What is promised from the signal to the end.
const PROMISED: Duration = Duration::from_secs(2);

/// The programs, and recordings of two of them. Built once.
struct Stock {
    folder: tempfile::TempDir,
}

impl Stock {
    fn get() -> &'static Stock {
        static STOCK: OnceLock<Stock> = OnceLock::new();
        STOCK.get_or_init(|| {
            let stock = Stock {
                folder: tempfile::tempdir().unwrap(),
            };
            for entry in fs::read_dir(SOURCES).unwrap() {
                let source = entry.unwrap().path();
                let name = source.file_stem().unwrap().to_str().unwrap();
                let built = Command::new("gcc")
                    .args(["-g", "-O1", "-pthread", "-o"])
                    .args([&stock.path(name), &source])
                    .status();
                assert!(built.unwrap().success(), "{name}");
            }
            for name in ["many", "long"] {
                let recorded = stock
                    .deadheat(&["record", "--quantum", "2000", "-o"])
                    .arg(format!("{name}.rec"))
                    .arg("--")
                    .arg(stock.path(name))
                    .stdout(Stdio::null())
                    .status();
                assert!(recorded.unwrap().success());
            }
            let mut server = stock.start_server();
            std::thread::sleep(Duration::from_millis(300));
            send(&server, libc::SIGTERM, false);
            server.wait().unwrap();
            let pairs = "many.c:7 many.c:7\nmany.c:9 many.c:9\n";
            fs::write(stock.path("pairs.txt"), pairs).unwrap();
            stock
        })
    }

    fn start_server(&self) -> Child {
        let mut server = self
            .deadheat(&["record", "-o", "server.rec", "--"])
            .arg(self.path("server"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn deadheat(&self, words: &[&str]) -> Command {
        let mut command = Command::new(DEADHEAT);
        command
            .args(words)
            .current_dir(self.folder.path())
            .env_remove("DEADHEAT_STORE");
        command
    }
}

/// To the process, or to its whole group as the keyboard does.
fn send(child: &Child, signal: i32, to_group: bool) {
    let pid = child.id() as i32;
    // SAFETY: our own child, not yet waited for; it leads a group of its own
    // where the group is meant.
    unsafe { libc::kill(if to_group { -pid } else { pid }, signal) };
}

/// A command line, in a folder of its own. `@many`, `@server` and `@long` are
/// copies of the recordings, `%name` a program, and moments are chosen below `span`.
struct Case {
    words: &'static str,
    span: Duration,
    /// Prints JSON whatever happens.
    reports: bool,
}

const fn case(words: &'static str, milliseconds: u64) -> Case {
    Case {
        words,
        span: Duration::from_millis(milliseconds),
        reports: true,
    }
}

const CASES: [Case; 16] = [
    case("run --no-store --json -- %spinning", 600),
    case("run --no-store --json -- %server", 600),
    case("run --no-store --json -- %blocked", 600),
    case("run --no-store --json -- %ignoring", 600),
    case("run --no-store --json -- %handling", 600),
    case("run --no-store --json -- %many", 3_000),
    case("run --store store --json -- %many", 3_000),
    case("run --no-store --json --schedules 5 -- %many", 4_000),
    case("classify @many --json --no-store", 3_000),
    case("classify @server --json --no-store", 3_000),
    case("detect @many --json --no-store", 400),
    case(
        "import pairs.txt --no-store --json --then-classify -- %many",
        3_000,
    ),
    case(
        "import pairs.txt --no-store --json --then-classify --recording @many",
        2_000,
    ),
    case("hunt --json --time 20 --store store -- %many", 3_000),
    case("whatif @many --json --add-lock many.c:7-9", 3_000),
    Case {
        reports: false,
        ..case("replay @long", 100)
    },
];

/// A small generator: moments are the same in each run of the test, as far as a
/// clock allows.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit.max(1)
    }
}

struct Ended {
    line: String,
    status: ExitStatus,
    took: Duration,
    out: String,
    err: String,
    left: Vec<String>,
    strays: Vec<String>,
}

/// Starts the case, sends the signal after `delay`, and looks at what became of
/// it; none if it ended before.
fn interrupt(case: &Case, delay: Duration, signal: i32, to_group: bool) -> Option<Ended> {
    let stock = Stock::get();
    let desk = tempfile::tempdir().unwrap();
    let temporary = desk.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    fs::copy(stock.path("pairs.txt"), desk.path().join("pairs.txt")).unwrap();
    let mut command = Command::new(DEADHEAT);
    for word in case.words.split(' ') {
        if let Some(name) = word.strip_prefix('%') {
            command.arg(stock.path(name));
        } else if let Some(name) = word.strip_prefix('@') {
            let name = format!("{name}.rec");
            let copied = Command::new("cp")
                .arg("-r")
                .args([stock.path(&name), desk.path().join(&name)])
                .status();
            assert!(copied.unwrap().success());
            command.arg(name);
        } else {
            command.arg(word);
        }
    }
    let [out, err] = ["out", "err"].map(|name| desk.path().join(name));
    // SAFETY: one system call. Whoever runs the tests may ignore the keyboard.
    let mut child = unsafe {
        command
            .current_dir(desk.path())
            .env("TMPDIR", &temporary)
            .env_remove("DEADHEAT_STORE")
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::setsid();
                Ok(())
            })
            .spawn()
            .unwrap()
    };
    std::thread::sleep(delay);
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    let begun = Instant::now();
    send(&child, signal, to_group);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > 5 * PROMISED {
            send(&child, libc::SIGKILL, true);
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = begun.elapsed();
    let to = if to_group { "its group" } else { "it" };
    Some(Ended {
        line: format!(
            "deadheat {}: signal {signal} to {to} after {} ms",
            case.words,
            delay.as_millis()
        ),
        status,
        took,
        left: soon_empty(|| {
            let entries = fs::read_dir(&temporary).unwrap();
            let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
            entries
                .map(|entry| name(entry).to_string_lossy().into_owned())
                .collect()
        }),
        strays: soon_empty(|| processes_with(&temporary)),
        out: fs::read_to_string(out).unwrap(),
        err: fs::read_to_string(err).unwrap(),
    })
}

/// What is still listed after a moment: who removes the rest may need one.
fn soon_empty(list: impl Fn() -> Vec<String>) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let found = list();
        if found.is_empty() || begun.elapsed() > Duration::from_secs(2) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that were started with this TMPDIR and run.
fn processes_with(temporary: &Path) -> Vec<String> {
    let wanted = format!("TMPDIR={}", temporary.display()).into_bytes();
    let has = |folder: &Path| {
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == wanted)
    };
    let entries = fs::read_dir("/proc").unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    let stray = folders.filter(|folder| has(folder));
    stray.map(|folder| folder.display().to_string()).collect()
}

impl Ended {
    /// What is not as promised.
    fn complaints(&self, case: &Case, signal: i32) -> Vec<String> {
        let mut complaints = Vec::new();
        if self.took > PROMISED {
            complaints.push(format!("took {} ms", self.took.as_millis()));
        }
        // Before the first instruction of `main` the kernel ends the process.
        let at_once = self.status.signal() == Some(signal) && self.out.is_empty();
        if at_once {
            return complaints;
        }
        if self.status.code() != Some(128 + signal) {
            complaints.push(format!("ended with {}", self.status));
        }
        if !self.left.is_empty() {
            complaints.push(format!("left in TMPDIR: {:?}", self.left));
        }
        if !self.strays.is_empty() {
            complaints.push(format!("still running: {:?}", self.strays));
        }
        if case.reports {
            // What the program has printed comes before the report.
            let begin = self.out.find('{').unwrap_or(self.out.len());
            match serde_json::from_str::<Value>(&self.out[begin..]) {
                Err(error) => complaints.push(format!("no JSON: {error}\n{}", self.out)),
                Ok(report) => complaints.extend(left_unsaid(case, &report)),
            }
        }
        complaints
    }
}

/// A report must say by what it was ended and, if something is left, how to go
/// on.
fn left_unsaid(case: &Case, report: &Value) -> Option<String> {
    if case.words.starts_with("hunt") || case.words.starts_with("whatif") {
        return None;
    }
    let cut_short = &report["cut_short"];
    let is_left = cut_short["left"]
        .as_array()
        .is_some_and(|left| !left.is_empty());
    let by = cut_short["by"].as_str().unwrap_or_default();
    let fits = by.starts_with("SIG") && (!is_left || cut_short["go_on"].is_string());
    (!fits).then(|| format!("what is left is not told: {cut_short}"))
}

/// Signals at random moments. Early ones are likelier: there the phases are
/// short.
fn storm(rounds: u64, seed: u64) {
    let mut random = Random(seed);
    let (mut met, mut longest) = (0, Duration::ZERO);
    let mut complaints = Vec::new();
    for number in 0..rounds {
        let case = &CASES[number as usize % CASES.len()];
        let part = random.below(1000) * random.below(1000);
        let delay = case.span.mul_f64(part as f64 / 1e6);
        let signal = [libc::SIGINT, libc::SIGTERM][random.below(2) as usize];
        let to_group = random.below(2) == 0;
        let Some(ended) = interrupt(case, delay, signal, to_group) else {
            continue;
        };
        met += 1;
        longest = longest.max(ended.took);
        for complaint in ended.complaints(case, signal) {
            complaints.push(format!("{}: {complaint}\n{}", ended.line, ended.err));
        }
    }
    println!(
        "corpus: {met} signals at random moments of {} commands, the slowest end after {} ms",
        CASES.len(),
        longest.as_millis()
    );
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_signal_ends_every_command_with_what_is_known() {
    storm(CASES.len() as u64 * 5 / 2, 1);
}

/// Some minutes.
#[test]
#[ignore = "hundreds of signals: make test-all"]
fn hundreds_of_signals_end_every_command() {
    storm(CASES.len() as u64 * 40, 2);
}

/// A host signal may come while translated code runs: on the guest's stack, with
/// the guest's thread-local storage.
#[test]
fn a_signal_at_any_moment_of_a_replay_ends_it() {
    let case = Case {
        reports: false,
        ..case("replay @long", 0)
    };
    let mut complaints = Vec::new();
    for milliseconds in 0..40 {
        let delay = Duration::from_millis(2 * milliseconds);
        if let Some(ended) = interrupt(&case, delay, libc::SIGTERM, milliseconds % 2 == 0) {
            for complaint in ended.complaints(&case, libc::SIGTERM) {
                complaints.push(format!("{}: {complaint}\n{}", ended.line, ended.err));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_signal_that_asks_for_nothing_leaves_no_trace_in_a_replay() {
    let stock = Stock::get();
    // SAFETY: one system call. Nothing of deadheat's or the program's asks for this
    // signal; until it is handled it would end the process.
    let mut replay = unsafe {
        stock
            .deadheat(&["replay", "long.rec"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .pre_exec(|| {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                Ok(())
            })
            .spawn()
            .unwrap()
    };
    let status = loop {
        if let Some(status) = replay.try_wait().unwrap() {
            break status;
        }
        send(&replay, libc::SIGXFSZ, true);
        std::thread::sleep(Duration::from_millis(1));
    };
    let said = std::io::read_to_string(replay.stderr.take().unwrap()).unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn a_program_that_handles_the_signal_ends_as_it_wants() {
    let stock = Stock::get();
    for (words, code) in [("record -o handled.rec --", 7), ("run --no-store --", 130)] {
        let words: Vec<&str> = words.split(' ').collect();
        let mut child = stock
            .deadheat(&words)
            .arg(stock.path("handling"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        send(&child, libc::SIGINT, false);
        assert_eq!(lines.next().unwrap().unwrap(), "asked by 2", "{words:?}");
        assert_eq!(child.wait().unwrap().code(), Some(code), "{words:?}");
    }
}

/// Its recording is whole, and its other process is gone as well.
#[test]
fn a_recorded_program_that_ignores_the_signal_is_ended() {
    let stock = Stock::get();
    let mut child = stock
        .deadheat(&["record", "-o", "ignored.rec", "--"])
        .arg(stock.path("ignoring"))
        .env("TMPDIR", "/tmp/of-one-that-ignores")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let begun = Instant::now();
    // As `timeout` does: once to the process, once to its group.
    send(&child, libc::SIGTERM, false);
    send(&child, libc::SIGTERM, false);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(begun.elapsed() < PROMISED, "{:?}", begun.elapsed());
    let strays = soon_empty(|| processes_with(Path::new("/tmp/of-one-that-ignores")));
    assert!(strays.is_empty(), "{strays:?}");
    let replayed = stock.deadheat(&["replay", "ignored.rec"]).output().unwrap();
    assert_eq!(
        replayed.status.signal(),
        Some(libc::SIGKILL),
        "{replayed:?}"
    );
}

/// A server whose timer goes on: no execution of it ends by itself.
#[test]
fn a_server_with_a_timer_is_classified() {
    let stock = Stock::get();
    let begun = Instant::now();
    let output = stock
        .deadheat(&["classify", "server.rec", "--json", "--no-store"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(66), "{report:#}");
    assert!(report["cut_short"].is_null(), "{report:#}");
    assert!(
        begun.elapsed() < Duration::from_secs(120),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_budget_holds_in_every_phase() {
    let stock = Stock::get();
    let server = stock.path("server");
    let server = server.to_str().unwrap();
    let many = stock.path("many");
    let many = many.to_str().unwrap();
    let cases: [&[&str]; 4] = [
        &["run", "--budget", "1", "--no-store", "--json", "--", server],
        &[
            "run",
            "--budget",
            "1",
            "--no-store",
            "--json",
            "--schedules",
            "100",
            "--",
            many,
        ],
        &[
            "classify",
            "many.rec",
            "--budget",
            "1",
            "--k",
            "100000",
            "--schedules",
            "1000",
            "--json",
            "--no-store",
        ],
        &[
            "import",
            "pairs.txt",
            "--budget",
            "1",
            "--json",
            "--no-store",
            "--schedules",
            "1000",
            "--",
            server,
        ],
    ];
    for words in cases {
        let begun = Instant::now();
        let output = stock.deadheat(words).output().unwrap();
        let took = begun.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        assert_eq!(report["cut_short"]["by"], "budget", "{words:?}: {report:#}");
        assert!(
            report["cut_short"]["left"][0].is_string(),
            "{words:?}: {report:#}"
        );
        assert!(
            took < Duration::from_secs(1) + 2 * PROMISED,
            "{words:?}: {took:?}"
        );
    }
}

/// What was cut off is looked at again, and the answer is the same as without a
/// break.
#[test]
fn a_classification_goes_on_where_it_was_ended() {
    let stock = Stock::get();
    let copy = |name: &str| {
        let copied = Command::new("cp")
            .arg("-r")
            .args([stock.path("many.rec"), stock.path(name)])
            .status();
        assert!(copied.unwrap().success());
    };
    let verdicts = |name: &str, seconds: Option<&str>| -> Vec<(String, String)> {
        let mut words = vec!["classify", name, "--json", "--no-store"];
        if let Some(seconds) = seconds {
            words.extend(["--budget", seconds]);
        }
        let output = stock.deadheat(&words).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let word = |race: &Value, key: &str| race[key].as_str().unwrap().to_string();
        let races = report["races"].as_array().unwrap().iter();
        let mut all: Vec<_> = races
            .map(|race| (word(race, "fingerprint"), word(race, "verdict")))
            .collect();
        all.sort();
        all
    };
    copy("whole.rec");
    copy("parts.rec");
    let whole = verdicts("whole.rec", None);
    for _ in 0..3 {
        // Whatever is said before the end is what is said in the end.
        for (fingerprint, verdict) in verdicts("parts.rec", Some("1")) {
            let known = whole.iter().find(|(other, _)| *other == fingerprint);
            let undecided = ["unclassified", "state-change"].contains(&verdict.as_str());
            assert!(
                undecided || known.is_some_and(|(_, other)| *other == verdict),
                "{verdict} against {known:?}"
            );
        }
    }
    assert_eq!(verdicts("parts.rec", None), whole);
}

/// Lines that print something, with a recording and a store at hand.
const PRINTING: [&str; 16] = [
    "--help",
    "--version",
    "list --store full",
    "show --store full 1",
    "report --store full",
    "report --store full --json",
    "compare --store full 1 1",
    "gc --store full",
    "dump many.rec",
    "detect many.rec --no-store",
    "replay many.rec --until 1:100",
    "replay many.rec",
    "replay many.rec --race 1 --order swapped",
    "completions bash",
    "doctor",
    "hunt --time 0.1 --store full -- true",
];

fn with_store() -> &'static Stock {
    static STORED: OnceLock<()> = OnceLock::new();
    let stock = Stock::get();
    STORED.get_or_init(|| {
        let kept = stock
            .deadheat(&["detect", "many.rec", "--store", "full"])
            .output();
        assert_eq!(kept.unwrap().status.code(), Some(66));
    });
    stock
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

#[test]
fn a_full_device_is_said_and_ends_with_70() {
    let stock = with_store();
    for line in PRINTING {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = stock.deadheat(&words).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{line}: {said}");
        assert!(said.contains("deadheat: cannot"), "{line}: {said}");
    }
    // Nobody can be told, but it is no crash.
    for line in [
        "run --no-store -- true",
        "run --no-store -- ./missing",
        "list --bad",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = stock.deadheat(&words).stderr(full()).output().unwrap();
        assert!(
            [2, 70].contains(&ended.status.code().unwrap()),
            "{line}: {ended:?}"
        );
    }
}

#[test]
fn a_closed_stream_is_said_and_ends_with_70() {
    let stock = with_store();
    for line in PRINTING {
        let script = format!("exec {DEADHEAT} {line} >&-");
        let ended = Command::new("sh")
            .args(["-c", &script])
            .current_dir(stock.folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{line}: {said}");
        assert!(said.contains("deadheat: cannot"), "{line}: {said}");
    }
}

/// What is run gets the streams as they are, a closed one as a closed one.
#[test]
fn a_closed_stream_is_closed_for_the_program() {
    let run = |under: &str, closed: &str| {
        let script = format!("exec {under} /bin/echo heard {closed}");
        let ended = Command::new("sh")
            .args(["-c", &script])
            .current_dir(Stock::get().folder.path())
            .output()
            .unwrap();
        ended.status.code()
    };
    for closed in [">&-", "2>&-", "<&-", "<&- >&-"] {
        let natively = run("", closed);
        for under in ["exec --", "record -o closed.rec --", "sample --no-store --"] {
            let _ = fs::remove_dir_all(Stock::get().path("closed.rec"));
            let under = format!("{DEADHEAT} {under}");
            let says_itself = under.contains("sample") && closed.contains("2>");
            if !says_itself {
                assert_eq!(run(&under, closed), natively, "{under} {closed}");
            }
        }
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let stock = with_store();
    for line in PRINTING {
        let words: Vec<&str> = line.split(' ').collect();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = stock.deadheat(&words).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            [0, 66].contains(&ended.status.code().unwrap()),
            "{line}: {said}"
        );
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
}

#[test]
fn files_and_stores_that_cannot_be_written_are_named() {
    let stock = with_store();
    for option in [
        "--json=/dev/full",
        "--sarif=/dev/full",
        "--junit=/dev/full",
        "--html=/dev/full",
    ] {
        let words = ["detect", "many.rec", "--no-store", option];
        let ended = stock.deadheat(&words).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{option}: {said}");
        assert!(said.contains("cannot write /dev/full"), "{option}: {said}");
    }
    // A file is where the store's folder would be.
    fs::write(stock.path("a-file"), "").unwrap();
    for line in [
        "detect many.rec --store a-file/store",
        "run --store a-file/store -- true",
        "hunt --time 0.1 --store a-file/store -- false",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ended = stock.deadheat(&words).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(70), "{line}: {said}");
        assert!(said.contains("a-file/store"), "{line}: {said}");
    }
    // No byte more fits on the disk.
    let script = format!("ulimit -f 0; exec {DEADHEAT} run --store limited -- true");
    let ended = Command::new("sh")
        .args(["-c", &script])
        .current_dir(stock.folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{said}");
    assert!(said.contains("deadheat: "), "{said}");
}
