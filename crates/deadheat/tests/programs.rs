//! Programs people have, recorded and replayed and compared with native.
//!
//! `tests/programs/anything/*.cases` lists them in stanzas of fields, one
//! program each; further lines of a field are indented by two:
//!
//! - `name`, `kind` (what the program is an example of);
//! - `needs`: Debian packages. A program whose packages are missing is left
//!   out of a test of the fast cut, and a failure of the whole;
//! - `prepare`: shell commands that make what it needs, run before the native
//!   run and again before the recorded one, in an empty folder;
//! - `run`: the command. It is put behind `deadheat record -o DIR --`, or, if
//!   the line has `$UNDER`, that stands there;
//! - `load`: shell commands run natively beside it (the clients of a server).
//!   What they print is compared too; they end the server;
//! - `files`: files it leaves behind, compared as well;
//! - `compare`: a sed script for what may differ between two native runs, or
//!   `exit` to compare nothing but the exit status with the native run;
//! - `fast: yes`: part of the cut that `make test` runs;
//! - `identity: yes`: part of the corpus of many recordings (below), `identity:
//!   cut`: and of its cut that `make test` runs;
//! - `fails`: it does not work yet, and why. It is run all the same, and must
//!   fail: what begins to work has to be said.
//!
//! The recorded run must print and leave what the native one did and end like
//! it. Then everything it had is deleted and the recording replayed: same
//! output to the last byte on both streams, same exit, and every check of the
//! replay itself (registers at each switch, all memory at the end).
//!
//!     cargo test --release -p deadheat --test programs -- redis
//!
//! DEADHEAT_TEST_ALL=1 runs all of them, DEADHEAT_PROGRAMS_TABLE=FILE writes
//! the table that docs/results/programs.md holds.
//!
//! A divergence may come once in hundreds of recordings. So the programs that
//! say `identity` are recorded many times, each time with another seed and
//! schedule, every other time on a machine kept busy, and each recording is
//! replayed twice: ten recordings of the cut, and with
//! DEADHEAT_IDENTITY_RECORDINGS=N so many of all of them, and nothing else is
//! done. A replay that diverges is told apart from one that did not end in time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

/// No run here takes as long as this on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Of each recording of the corpus of many recordings.
const REPLAYS: usize = 2;

/// Each recording of that corpus has another seed, and the next of these.
const SCHEDULES: [&str; 5] = [
    "",
    "--schedule pct",
    "--quantum 20000",
    "--schedule round-robin --quantum 50000",
    "--schedule sequencer",
];

/// Of each program in the cut of that corpus.
const CUT_RECORDINGS: usize = 10;

/// What every `prepare`, `run` and `load` may use.
const PRELUDE: &str = r#"
await() { i=0; until "$@" >/dev/null 2>&1; do i=$((i+1)); [ $i -lt 1200 ] || return 1; sleep 0.05; done; }
text() { cat "$SOURCES"/crates/vm/src/*.rs "$SOURCES"/crates/vm/src/kernel/*.rs; }
"#;

/// One stanza.
struct Case {
    fields: BTreeMap<String, String>,
}

impl Case {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn name(&self) -> &str {
        self.field("name")
    }
}

/// How one run of a program went.
struct Run {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    load: Vec<u8>,
    files: Vec<u8>,
    seconds: f64,
}

/// A line of the table.
struct Row {
    name: String,
    kind: String,
    command: String,
    result: Result<Figures, String>,
    excuse: String,
}

struct Figures {
    native: f64,
    recorded: f64,
    replayed: f64,
    bytes: u64,
    processes: usize,
}

/// Where the Rust toolchain lies, for programs that do not see our HOME.
fn toolchain() -> Vec<(&'static str, PathBuf)> {
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    [("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo")]
        .into_iter()
        .filter(|(name, _)| std::env::var_os(name).is_none())
        .map(|(name, folder)| (name, home.join(folder)))
        .filter(|(_, path)| path.exists())
        .collect()
}

/// What the vm itself says to the user of a recording is not the program's.
fn without_notices(bytes: &[u8]) -> Vec<u8> {
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"deadheat: "))
        .collect::<Vec<_>>()
        .concat()
}

fn sources() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize().unwrap_or(path)
}

fn read_cases() -> Vec<Case> {
    let folder = sources().join("tests/programs/anything");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the cases are in the repository")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|one| one == "cases"))
        .collect();
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("the cases can be read");
        for stanza in text.split("\n\n") {
            let mut fields: BTreeMap<String, String> = BTreeMap::new();
            let mut last = String::new();
            for line in stanza.lines().filter(|line| !line.starts_with('#')) {
                if let Some(more) = line.strip_prefix("  ") {
                    let field = fields.entry(last.clone()).or_default();
                    field.push('\n');
                    field.push_str(more);
                } else if let Some((name, value)) = line.split_once(':') {
                    last = name.to_string();
                    fields.insert(last.clone(), value.trim().to_string());
                }
            }
            if fields.contains_key("name") {
                cases.push(Case { fields });
            }
        }
    }
    cases
}

fn missing_packages(case: &Case) -> Vec<String> {
    case.field("needs")
        .split_whitespace()
        .filter(|package| {
            let status = Command::new("dpkg-query")
                .args(["-W", "-f", "${Status}", package])
                .output();
            !status.is_ok_and(|output| output.stdout.ends_with(b"ok installed"))
        })
        .map(str::to_string)
        .collect()
}

/// A port of loopback that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_or(21000, |address| address.port())
}

/// The place one case works in.
struct Place<'a> {
    case: &'a Case,
    folder: PathBuf,
    /// A port nobody uses, for servers.
    port: u16,
}

impl Place<'_> {
    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn recording(&self) -> PathBuf {
        self.folder.join("recording")
    }

    fn shell(&self, script: &str, under: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("{PRELUDE}\n{script}")])
            .current_dir(self.work())
            .env("SOURCES", sources())
            .env("UNDER", under)
            .env("PORT", self.port.to_string())
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .env("HOME", self.work())
            .envs(toolchain())
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    fn prepare(&self) -> Result<(), String> {
        let _ = std::fs::remove_dir_all(self.work());
        std::fs::create_dir_all(self.work()).map_err(|error| error.to_string())?;
        let script = format!("set -e\n{}", self.case.field("prepare"));
        let output = self
            .shell(&script, "")
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "prepare failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }

    fn script(&self, under: &str) -> String {
        let run = self.case.field("run");
        if run.contains("$UNDER") {
            run.to_string()
        } else {
            format!("exec {under} {run}")
        }
    }

    /// Runs the command (and its load) once, in a fresh folder.
    fn run(&self, under: &str, label: &str) -> Result<Run, String> {
        self.prepare()?;
        let load = self.case.field("load");
        let before = Instant::now();
        let mut program = Running::start(self.shell(&self.script(under), under), |what| {
            self.folder.join(format!("{label}.{what}"))
        })?;
        let mut load_output = Vec::new();
        if !load.is_empty() {
            let mut client = Running::start(self.shell(load, under), |what| {
                self.folder.join(format!("{label}.load.{what}"))
            })?;
            let status = client.wait(PATIENCE)?;
            load_output = client.output("stdout");
            if !status.success() {
                program.kill();
                return Err(format!(
                    "{label}: the load ends with {status}: {}",
                    tail(&client.output("stderr"))
                ));
            }
        }
        let status = program.wait(PATIENCE)?;
        let mut files = Vec::new();
        for name in self.case.field("files").split_whitespace() {
            files.extend(name.as_bytes());
            match std::fs::read(self.work().join(name)) {
                Ok(bytes) => files.extend(bytes),
                Err(error) => return Err(format!("{label}: {name}: {error}")),
            }
        }
        Ok(Run {
            status,
            stdout: program.output("stdout"),
            stderr: program.output("stderr"),
            load: load_output,
            files,
            seconds: before.elapsed().as_secs_f64(),
        })
    }

    fn replay(&self) -> Result<Run, String> {
        // Nothing the program had is needed any more.
        let _ = std::fs::remove_dir_all(self.work());
        std::fs::create_dir_all(self.work()).map_err(|error| error.to_string())?;
        let before = Instant::now();
        let mut command = Command::new(DEADHEAT);
        command
            .arg("replay")
            .arg(self.recording())
            .current_dir(self.work())
            .process_group(0)
            .stdin(Stdio::null());
        let mut program =
            Running::start(command, |what| self.folder.join(format!("replayed.{what}")))?;
        let status = program.wait(PATIENCE)?;
        Ok(Run {
            status,
            stdout: program.output("stdout"),
            stderr: program.output("stderr"),
            load: Vec::new(),
            files: Vec::new(),
            seconds: before.elapsed().as_secs_f64(),
        })
    }

    /// What may differ between two native runs is taken out.
    fn normalised(&self, bytes: &[u8]) -> Vec<u8> {
        let script = self.case.field("compare");
        if script.is_empty() {
            return bytes.to_vec();
        }
        let input = self.folder.join("normalise");
        let done = std::fs::write(&input, bytes).and_then(|()| {
            Command::new("sed")
                .args(["-E", script])
                .arg(&input)
                .env("LC_ALL", "C")
                .output()
        });
        done.map_or_else(
            |error| error.to_string().into_bytes(),
            |output| output.stdout,
        )
    }

    fn check(&self) -> Result<Figures, String> {
        let native = self.run("env", "native")?;
        let _ = std::fs::remove_dir_all(self.recording());
        let under = format!("{DEADHEAT} record -o {} --", self.recording().display());
        let recorded = self.run(&under, "recorded")?;
        let complaint = || {
            let said = tail(&recorded.stderr);
            if said.is_empty() {
                String::new()
            } else {
                format!("; it says: {said}")
            }
        };
        if native.status != recorded.status {
            return Err(format!(
                "recorded: {}, natively {}{}",
                describe(recorded.status),
                describe(native.status),
                complaint()
            ));
        }
        if self.case.field("compare") != "exit" {
            for (what, one, other) in [
                ("standard output", &native.stdout, &recorded.stdout),
                ("what the clients print", &native.load, &recorded.load),
                ("a file it leaves", &native.files, &recorded.files),
            ] {
                let (one, other) = (self.normalised(one), self.normalised(other));
                if one != other {
                    return Err(format!(
                        "recorded: {what} differs from native ({}){}",
                        difference(&one, &other),
                        complaint()
                    ));
                }
            }
        }
        let replayed = self.replay()?;
        self.compare(&recorded, &replayed)?;
        Ok(Figures {
            native: native.seconds,
            recorded: recorded.seconds,
            replayed: replayed.seconds,
            bytes: size_of_folder(&self.recording()),
            processes: std::fs::read_dir(self.recording()).map_or(0, |entries| {
                entries
                    .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                    .filter(|name| name.parse::<u32>().is_ok())
                    .count()
            }),
        })
    }

    /// A replay gives what the recorded run gave.
    fn compare(&self, recorded: &Run, replayed: &Run) -> Result<(), String> {
        if replayed.status != recorded.status {
            return Err(format!(
                "replayed: {}, recorded {}; it says: {}",
                describe(replayed.status),
                describe(recorded.status),
                tail(&replayed.stderr)
            ));
        }
        // With the program inside other commands, their output is mixed in.
        if !self.case.field("run").contains("$UNDER") {
            for (what, one, other) in [
                ("standard output", &recorded.stdout, &replayed.stdout),
                ("standard error", &recorded.stderr, &replayed.stderr),
            ] {
                let (one, other) = (without_notices(one), without_notices(other));
                if one != other {
                    return Err(format!(
                        "replayed: {what} differs from recorded ({})",
                        difference(&one, &other)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Records many times, each time under another schedule, and replays each
    /// recording twice.
    fn check_often(&self, recordings: usize) -> Tally {
        let mut tally = Tally::default();
        let native = match self.run("env", "native") {
            Ok(native) => native,
            Err(message) => {
                tally.unknown.push(format!("natively: {message}"));
                return tally;
            }
        };
        for number in 0..recordings {
            let busy = number % 2 == 1;
            let _load = busy.then(Busy::start);
            let options = format!("--seed {number} {}", SCHEDULES[number % SCHEDULES.len()]);
            let _ = std::fs::remove_dir_all(self.recording());
            let under = format!(
                "{DEADHEAT} record {options} -o {} --",
                self.recording().display()
            );
            let what = format!(
                "recording {number} ({}, machine {})",
                options.trim(),
                if busy { "busy" } else { "idle" }
            );
            let recorded = match self.run(&under, "recorded") {
                Ok(run) if run.status == native.status => run,
                Ok(run) => {
                    tally.unknown.push(format!(
                        "{what}: {}, natively {}; it says: {}",
                        describe(run.status),
                        describe(native.status),
                        tail(&run.stderr)
                    ));
                    continue;
                }
                Err(message) => {
                    tally.unknown.push(format!("{what}: {message}"));
                    continue;
                }
            };
            let kept = self.folder.join(format!("diverged-{number}"));
            let before = tally.diverged.len();
            for replay in 1..=REPLAYS {
                let what = format!("{what}, replay {replay}");
                match self
                    .replay()
                    .map(|replayed| self.compare(&recorded, &replayed))
                {
                    Ok(Ok(())) => tally.alike += 1,
                    Ok(Err(message)) => tally.diverged.push(Divergence {
                        how: format!("{what}: {message}"),
                        kept: kept.clone(),
                    }),
                    Err(message) => tally.unknown.push(format!("{what}: {message}")),
                }
            }
            if tally.diverged.len() > before
                && let Err(error) = std::fs::rename(self.recording(), &kept)
            {
                tally.unknown.push(format!("{}: {error}", kept.display()));
            }
        }
        tally
    }
}

/// What became of the replays of a program.
#[derive(Default)]
struct Tally {
    alike: usize,
    diverged: Vec<Divergence>,
    /// What was not recorded as it runs natively, or not replayed in time: it
    /// says nothing about identity, and is a failure as well.
    unknown: Vec<String>,
}

/// A replay that gave something else than the recording.
struct Divergence {
    how: String,
    kept: PathBuf,
}

impl Tally {
    fn not_tried(why: String) -> Tally {
        Tally {
            unknown: vec![why],
            ..Tally::default()
        }
    }
}

/// Keeps every processor busy as long as it lives.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let spin = || {
            Command::new("sh")
                .args(["-c", "ulimit -t 600; while :; do :; done"])
                .spawn()
        };
        Busy((0..2 * processors).filter_map(|_| spin().ok()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A command under way, with its output in files.
struct Running {
    child: Child,
    streams: BTreeMap<&'static str, PathBuf>,
    ended: bool,
}

impl Running {
    fn start(mut command: Command, path: impl Fn(&str) -> PathBuf) -> Result<Running, String> {
        let mut streams = BTreeMap::new();
        let mut open = |what: &'static str| -> Result<File, String> {
            let path = path(what);
            let file = File::create(&path).map_err(|error| error.to_string())?;
            streams.insert(what, path);
            Ok(file)
        };
        command.stdout(open("stdout")?).stderr(open("stderr")?);
        let child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Running {
            child,
            streams,
            ended: false,
        })
    }

    fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let before = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                self.ended = true;
                return Ok(status);
            }
            if before.elapsed() > limit {
                self.kill();
                return Err(format!(
                    "not finished after {} s; standard error: {}",
                    limit.as_secs(),
                    tail(&self.output("stderr"))
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        // SAFETY: the group is the child's own, made when it was started, and
        // it has not been waited for.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
        self.ended = true;
    }

    fn output(&self, what: &str) -> Vec<u8> {
        self.streams
            .get(what)
            .and_then(|path| std::fs::read(path).ok())
            .unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("killed by signal {signal}"),
        _ => status.to_string(),
    }
}

/// The end of a text, on one line.
fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(4)..].join(" | ");
    let start = last.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
    last[start..].to_string()
}

/// Where two texts part.
fn difference(one: &[u8], other: &[u8]) -> String {
    let (one, other) = (String::from_utf8_lossy(one), String::from_utf8_lossy(other));
    let shorten = |line: &str| line.chars().take(160).collect::<String>();
    let mut lines = other.lines();
    for (number, line) in one.lines().enumerate() {
        let there = lines.next();
        if there != Some(line) {
            return format!(
                "line {}: `{}` became `{}`",
                number + 1,
                shorten(line),
                shorten(there.unwrap_or("the end"))
            );
        }
    }
    format!("{} bytes became {}", one.len(), other.len())
}

fn size_of_folder(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size_of_folder(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let all = std::env::var_os("DEADHEAT_TEST_ALL").is_some();
    let jobs: usize = std::env::var("DEADHEAT_PROGRAMS_JOBS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2);
    let root = std::env::temp_dir().join(format!("deadheat-programs-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a temporary folder can be made");
    let chosen = |field: &str, values: &[&str]| -> Vec<Case> {
        let is_wanted = |case: &Case| {
            wanted.is_empty() || wanted.iter().any(|wanted| case.name().contains(wanted))
        };
        read_cases()
            .into_iter()
            .filter(|case| is_wanted(case))
            .filter(|case| values.is_empty() || values.contains(&case.field(field)))
            .collect()
    };
    let recordings: Option<usize> = std::env::var("DEADHEAT_IDENTITY_RECORDINGS")
        .ok()
        .and_then(|text| text.parse().ok());
    let code = if let Some(recordings) = recordings {
        let cases = chosen("identity", &["yes", "cut"]);
        often(&cases, recordings, &root, true)
    } else if all || !wanted.is_empty() {
        once(&chosen("fast", &[]), jobs, &root, all)
    } else {
        match once(&chosen("fast", &["yes"]), jobs, &root, all) {
            ExitCode::SUCCESS => often(&chosen("identity", &["cut"]), CUT_RECORDINGS, &root, false),
            failure => failure,
        }
    };
    if code == ExitCode::SUCCESS {
        let _ = std::fs::remove_dir_all(&root);
    }
    code
}

/// Many recordings of each program, one program after the other.
fn often(cases: &[Case], recordings: usize, root: &Path, all: bool) -> ExitCode {
    let (mut alike, mut diverged, mut unknown) = (0, 0, 0);
    let (mut tried, mut lazy) = (0, 0);
    let mut failed = Vec::new();
    for case in cases {
        let missing = missing_packages(case);
        if !missing.is_empty() && !all {
            println!("{}: left out, needs {}", case.name(), missing.join(" "));
            continue;
        }
        tried += 1;
        lazy += usize::from(is_lazily_bound(case));
        let place = Place {
            case,
            folder: root.join(format!("often-{}", case.name())),
            port: free_port(),
        };
        let before = Instant::now();
        let tally = match (missing.is_empty(), std::fs::create_dir_all(&place.folder)) {
            (true, Ok(())) => place.check_often(recordings),
            (true, Err(error)) => Tally::not_tried(error.to_string()),
            (false, _) => Tally::not_tried(format!("packages missing: {}", missing.join(" "))),
        };
        for Divergence { how, kept } in &tally.diverged {
            println!(
                "DIVERGED {}: {how}; to see it: {DEADHEAT} replay --diagnose {}",
                case.name(),
                kept.display()
            );
        }
        for message in &tally.unknown {
            println!("FAILED {}: {message}", case.name());
        }
        println!(
            "{}: {} replays of {recordings} recordings alike ({:.1} s)",
            case.name(),
            tally.alike,
            before.elapsed().as_secs_f64()
        );
        alike += tally.alike;
        diverged += tally.diverged.len();
        unknown += tally.unknown.len();
        if tally.diverged.is_empty() && tally.unknown.is_empty() {
            let _ = std::fs::remove_dir_all(&place.folder);
        } else {
            failed.push(case.name());
        }
    }
    println!(
        "corpus: {tried} programs ({lazy} of them lazily bound), {recordings} recordings each under {} schedules, \
         every other one on a busy machine: {alike} replays alike, {diverged} diverged, \
         {unknown} recordings or replays failed otherwise{}{}",
        SCHEDULES.len(),
        if failed.is_empty() { "" } else { ": " },
        failed.join(" ")
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("what they left is in {}", root.display());
        ExitCode::FAILURE
    }
}

/// The program that a case names first has its functions looked up at their
/// first call.
fn is_lazily_bound(case: &Case) -> bool {
    let script = "readelf -dlW \"$(readlink -f \"$(command -v \"$0\")\")\"";
    let name = case.field("run").split_whitespace().next().unwrap_or("");
    let output = Command::new("sh").args(["-c", script, name]).output();
    output.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.contains("(JMPREL)") && !text.contains("BIND_NOW") && !text.contains(" NOW")
    })
}

/// Each program natively, recorded and replayed.
fn once(cases: &[Case], jobs: usize, root: &Path, all: bool) -> ExitCode {
    let next = Mutex::new(0..cases.len());
    let rows = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.lock().expect("no thread panics").next();
                    let Some(index) = index else { return };
                    let row = one(&cases[index], root, all);
                    if let Some(row) = row {
                        rows.lock().expect("no thread panics").insert(index, row);
                    }
                }
            });
        }
    });
    let rows: Vec<Row> = rows
        .into_inner()
        .expect("no thread panics")
        .into_values()
        .collect();
    let (mut wrong, mut known) = (0, 0);
    for row in &rows {
        match (&row.result, row.excuse.is_empty()) {
            (Err(_), false) => known += 1,
            (Err(_), true) | (Ok(_), false) => wrong += 1,
            (Ok(_), true) => {}
        }
    }
    println!(
        "corpus: {} programs: {} as natively and replayed, {known} known not to work, {wrong} wrong",
        rows.len(),
        rows.len() - known - wrong
    );
    if let Some(path) = std::env::var_os("DEADHEAT_PROGRAMS_TABLE")
        && let Err(error) = std::fs::write(&path, table(&rows))
    {
        eprintln!("{}: {error}", Path::new(&path).display());
        return ExitCode::FAILURE;
    }
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        println!("what they left is in {}", root.display());
        ExitCode::FAILURE
    }
}

/// One case; None if it is left out.
fn one(case: &Case, root: &Path, all: bool) -> Option<Row> {
    let missing = missing_packages(case);
    if !missing.is_empty() && !all {
        println!("{}: left out, needs {}", case.name(), missing.join(" "));
        return None;
    }
    let place = Place {
        case,
        folder: root.join(case.name()),
        port: free_port(),
    };
    let result = if missing.is_empty() {
        std::fs::create_dir_all(&place.folder)
            .map_err(|error| error.to_string())
            .and_then(|()| place.check())
    } else {
        Err(format!("packages missing: {}", missing.join(" ")))
    };
    let excuse = case.field("fails").to_string();
    match (&result, excuse.is_empty()) {
        (Ok(figures), true) => {
            println!(
                "{}: ok (native {:.2} s, recorded {:.2} s, replayed {:.2} s)",
                case.name(),
                figures.native,
                figures.recorded,
                figures.replayed
            );
            let _ = std::fs::remove_dir_all(&place.folder);
        }
        (Ok(_), false) => println!("FAILED {}: works, but is said to fail", case.name()),
        (Err(message), false) => println!("{}: fails as known ({message})", case.name()),
        (Err(message), true) => println!(
            "FAILED {}: {message}\n  to see it: cargo test --release -p deadheat --test programs -- {}\n  or by hand: cd {} && {}",
            case.name(),
            case.name(),
            place.work().display(),
            place
                .script(&format!(
                    "{DEADHEAT} record -o {} --",
                    place.recording().display()
                ))
                .replace("$UNDER", &format!("{DEADHEAT} record -o DIR --"))
        ),
    }
    Some(Row {
        name: case.name().to_string(),
        kind: case.field("kind").to_string(),
        command: case.field("run").replace('\n', " "),
        result,
        excuse,
    })
}

fn table(rows: &[Row]) -> String {
    let good = rows.iter().filter(|row| row.result.is_ok()).count();
    let mut text = format!(
        "# Programs recorded, replayed and compared with native\n\n\
         Each program of `tests/programs/anything` is run natively, recorded and replayed. The\n\
         recorded run has to print and leave behind what the native one did and end like it; then\n\
         its files are deleted and the replay has to give the same bytes on both streams and the\n\
         same exit, with the replay's own checks of registers and memory. Made by `make test-all`;\n\
         one program again: `cargo test --release -p deadheat --test programs -- NAME`.\n\n\
         {good} of {} work. Times are wall time in seconds with two programs running at once; a\n\
         server's times are those of its clients. Recording: size on disk, files that may change\n\
         included.\n\n\
         | program | kind | command | result | native | recorded | replayed | processes | recording |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        rows.len()
    );
    for row in rows {
        let mut command: String = row.command.chars().take(60).collect();
        if command.len() < row.command.len() {
            command.push('…');
        }
        let command = command.replace('|', "\\|");
        let _ = match &row.result {
            Ok(figures) => writeln!(
                text,
                "| {} | {} | `{command}` | same | {:.2} | {:.2} | {:.2} | {} | {} |",
                row.name,
                row.kind,
                figures.native,
                figures.recorded,
                figures.replayed,
                figures.processes,
                human(figures.bytes)
            ),
            Err(message) => writeln!(
                text,
                "| {} | {} | `{command}` | fails: {} | | | | | |",
                row.name,
                row.kind,
                if row.excuse.is_empty() {
                    message.replace(['|', '\n'], " ")
                } else {
                    row.excuse.clone()
                }
            ),
        };
    }
    text
}

fn human(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
