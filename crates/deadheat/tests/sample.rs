//! Runs the programs of `tests/programs/sample` under `deadheat sample` and
//! compares with the expectation in their source.
//!
//! A program says `// EXPECT: silent` or `// EXPECT: race …`. With `tag=T` a
//! race must be reported between two lines marked `// RACE T` (one, with
//! `unknown`); `function=F` asks for functions whose names contain F,
//! `label=L` for a label, `not=L` for its absence. Further lines:
//! `// ARGS:` (how long it runs), `// OPTIONS:` of `deadheat sample`,
//! `// CFLAGS:`. Every program must print `ok`: it was not harmed.
//!
//! A failing case prints the command that shows it again. Sampling is a
//! matter of luck, so a missed race is tried again twice, a false one never.
//!
//! The long proofs run with `--ignored` (`make test-all`).

use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// One session at a time: the debug registers of a CPU belong to the first that
/// asks for them.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deadheat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deadheat"));
    command.env("DEADHEAT_STORE", scratch("store"));
    command
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/sample")
}

/// What a program's source says about itself.
struct Case {
    name: String,
    source: PathBuf,
    expect: Vec<String>,
    arguments: Vec<String>,
    options: Vec<String>,
    flags: Vec<String>,
    /// Line number to tag.
    tags: HashMap<u64, String>,
}

impl Case {
    fn read(name: &str) -> Case {
        let source = ["c", "go"]
            .map(|extension| programs().join(format!("{name}.{extension}")))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("there is no program {name}"));
        let text = fs::read_to_string(&source).unwrap();
        let directive = |word: &str| -> Vec<String> {
            text.lines()
                .filter_map(|line| line.strip_prefix(word))
                .flat_map(|rest| rest.split_whitespace().map(String::from))
                .collect()
        };
        let tags = text
            .lines()
            .zip(1..)
            .filter_map(|(line, number)| {
                let (_, tag) = line.split_once("// RACE ")?;
                Some((number, tag.trim().to_string()))
            })
            .collect();
        Case {
            name: name.into(),
            source,
            expect: directive("// EXPECT:"),
            arguments: directive("// ARGS:"),
            options: directive("// OPTIONS:"),
            flags: directive("// CFLAGS:"),
            tags,
        }
    }

    /// Compiles the program; `copy` keeps tests that run it at the same time
    /// apart.
    fn build(&self, copy: &str) -> PathBuf {
        let program = scratch(&format!("{}-{copy}", self.name));
        let mut compiler = match self.source.extension().is_some_and(|ext| ext == "go") {
            true => Command::new("go"),
            false => Command::new("gcc"),
        };
        match compiler.get_program() == "go" {
            true => compiler
                .env("GOCACHE", scratch("go-cache"))
                .args(["build", "-o"]),
            false => compiler.args(["-g", "-O2", "-pthread", "-o"]),
        };
        let built = compiler
            .arg(&program)
            .arg(&self.source)
            .args(&self.flags)
            .status()
            .unwrap();
        assert!(built.success(), "{} does not compile", self.name);
        program
    }

    /// Runs once, for `seconds` if given: the report, and what went wrong
    /// with the program, if anything.
    fn run(&self, program: &Path, seconds: Option<&str>) -> (Value, Option<String>) {
        let report = program.with_extension("json");
        let mut command = deadheat();
        command
            .current_dir(programs())
            .arg("sample")
            .arg(format!("--json={}", report.display()))
            .args(&self.options)
            .arg("--")
            .arg(program);
        match seconds {
            Some(seconds) => command.arg(seconds),
            None => command.args(&self.arguments),
        };
        let shown = format!("{command:?}");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let wrong = (!text.contains("ok")).then(|| {
            format!(
                "the program did not end well under\n  {shown}\n{}",
                String::from_utf8_lossy(&output.stderr)
            )
        });
        let report = fs::read_to_string(&report)
            .unwrap_or_else(|error| panic!("no report of\n  {shown}: {error}\n{wrong:?}"));
        (serde_json::from_str(&report).unwrap(), wrong)
    }

    fn asks(&self, word: &str) -> Option<&str> {
        self.expect
            .iter()
            .find_map(|part| part.strip_prefix(word)?.strip_prefix('='))
    }

    fn is_expected(&self, race: &Value) -> bool {
        let accesses = race["accesses"].as_array().unwrap();
        let has_label = |label: &str| {
            race["labels"]
                .as_array()
                .is_some_and(|labels| labels.iter().any(|found| found == label))
        };
        let unseen = |access: &Value| access["kind"] == "unknown";
        let may_be_unseen = self.expect.iter().any(|part| part == "unknown");
        let tagged = self.asks("tag").is_none_or(|tag| {
            let of_tag = |line: &Value| {
                line.as_u64()
                    .and_then(|line| self.tags.get(&line))
                    .is_some_and(|found| found == tag)
            };
            accesses.iter().all(|access| {
                let frames = access["stack"].as_array().cloned().unwrap_or_default();
                (may_be_unseen && unseen(access))
                    || of_tag(&access["line"])
                    // An access by the kernel or the C library counts for the
                    // line that asked for it.
                    || frames.iter().take(4).any(|frame| of_tag(&frame["line"]))
            })
        });
        let function = self.asks("function").is_none_or(|part| {
            accesses.iter().all(|access| {
                access["function"]
                    .as_str()
                    .is_some_and(|name| name.contains(part))
            })
        });
        let stacks = accesses.iter().all(|access| {
            unseen(access)
                || access["stack"]
                    .as_array()
                    .is_some_and(|frames| frames.len() > 1)
        });
        tagged
            && function
            && stacks
            && self.asks("label").is_none_or(has_label)
            && self.asks("not").is_none_or(|label| !has_label(label))
    }

    /// A race may escape sampling twice; what is silent must be so at once.
    fn check_tries(&self, run: impl Fn() -> Value) {
        let tries = if self.expect[0] == "silent" { 1 } else { 3 };
        let mut last = String::new();
        for _ in 0..tries {
            match self.check(&run()) {
                Ok(()) => return,
                Err(text) => last = text,
            }
        }
        panic!("{last}");
    }

    fn check(&self, report: &Value) -> Result<(), String> {
        let races = report["races"].as_array().unwrap();
        let show = || serde_json::to_string_pretty(races).unwrap();
        if self.expect[0] == "silent" {
            return match races.is_empty() {
                true => Ok(()),
                false => Err(format!("{}: a race where none is: {}", self.name, show())),
            };
        }
        match races.iter().any(|race| self.is_expected(race)) {
            true => Ok(()),
            false => Err(format!("{}: missed; found instead: {}", self.name, show())),
        }
    }
}

fn run_case(name: &str) {
    let _turn = turn();
    let case = Case::read(name);
    let program = case.build("case");
    case.check_tries(|| {
        let (report, harmed) = case.run(&program, None);
        assert_eq!(harmed, None, "{name}");
        report
    });
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            run_case(stringify!($name));
        })*
    };
}

cases! {
    hot_counter,
    hot_counter_locked,
    many_threads,
    silent_store,
    read_syscall,
    shared_memory,
    alias_mapping,
    statistics,
    reference_count,
    flag_bits,
    flag_writers,
    special_variable,
    copied_buffer,
    unaligned,
    atomics,
    queue,
    barrier,
    by_pointer,
    own_traps,
    children,
    libraries,
    seccomp,
}

/// A process of ours that must be gone at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str, copy: &str, seconds: u32) -> Running {
    let program = Case::read(name).build(copy);
    let child = Command::new(program)
        .arg(seconds.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    Running(child)
}

/// Executable mappings of files as they are in a process's memory.
fn text_of(pid: u32) -> Vec<(String, Vec<u8>)> {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    maps.lines()
        .filter(|line| line.contains("r-xp") && line.contains('/'))
        .map(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let start = u64::from_str_radix(start, 16).unwrap();
            let end = u64::from_str_radix(end, 16).unwrap();
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            (line.to_string(), bytes)
        })
        .collect()
}

fn is_held(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("TracerPid:\t0"))
}

fn assert_healthy(process: &mut Running) {
    let ended = process.0.try_wait().unwrap();
    assert!(ended.is_none(), "the target died: {ended:?}");
    assert!(!is_held(process.0.id()), "the target is still held");
}

fn attach_and_detach(copy: &str, times: u32) {
    let _turn = turn();
    let mut target = start("queue", copy, 3600);
    let before = text_of(target.0.id());
    for _ in 0..times {
        let output = deadheat()
            .args(["sample", "--rate", "1000", "--duration", "150ms", "--pid"])
            .arg(target.0.id().to_string())
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_healthy(&mut target);
    }
    assert!(before == text_of(target.0.id()), "the text has changed");
}

fn kill_front_end(copy: &str, times: u32) {
    let _turn = turn();
    let mut target = start("queue", copy, 3600);
    let before = text_of(target.0.id());
    for round in 0..times {
        let mut front = deadheat()
            .args(["sample", "--rate", "1000", "--pid"])
            .arg(target.0.id().to_string())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(120 + u64::from(round % 10) * 40));
        front.kill().unwrap();
        front.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while is_held(target.0.id()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_healthy(&mut target);
    }
    assert!(before == text_of(target.0.id()), "the text has changed");
}

#[test]
fn attaching_leaves_no_trace() {
    attach_and_detach("attach", 5);
}

#[test]
fn killing_the_front_end_does_not_matter() {
    kill_front_end("kill", 5);
}

/// Fewer open files than threads: less is watched, which the report says, and
/// nothing is harmed.
#[test]
fn a_limit_of_open_files_does_not_matter() {
    let _turn = turn();
    let program = Case::read("many_threads").build("files");
    let report = program.with_extension("json");
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 60 && exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(["sample", "--unprivileged"])
        .arg(format!("--json={}", report.display()))
        .arg("--")
        .arg(&program)
        .arg("3")
        .env("DEADHEAT_STORE", scratch("store"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{told}");
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let not_checked = report["not_checked"].to_string();
    assert!(not_checked.contains("open files"), "{not_checked}");
}

#[test]
fn refusals_are_sentences_with_an_exit_code() {
    let _turn = turn();
    let refused = |arguments: &[&str]| {
        let output = deadheat().arg("sample").args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, text) = refused(&["--pid", "999999999"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("there is no process 999999999"), "{text}");
    let (code, text) = refused(&["--", "./no-such-program"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cannot run `./no-such-program`"), "{text}");
    let target = start("hot_counter", "held", 60);
    let pid = target.0.id().to_string();
    let first = Running(
        deadheat()
            .args(["sample", "--pid", &pid])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_held(target.0.id()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (code, text) = refused(&["--pid", &pid]);
    drop(first);
    assert_eq!(code, Some(70), "{text}");
    assert!(text.contains("already held by process"), "{text}");
}

/// What comes first are catches that are no races: their core files do not
/// count, and do not stay.
#[test]
fn a_core_file_is_written_at_a_catch() {
    let _turn = turn();
    let program = Case::read("by_pointer").build("core");
    let folder = scratch("cores");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let report = scratch("core.json");
    deadheat()
        .args(["sample", "--rate", "300"])
        .arg(format!("--core={}", folder.display()))
        .arg(format!("--json={}", report.display()))
        .arg("--")
        .arg(program)
        .arg("5")
        .output()
        .unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let races = report["races"].to_string();
    let path = races
        .split_once("at the catch: ")
        .and_then(|(_, rest)| rest.split('"').next())
        .unwrap_or_else(|| panic!("no core file in {races}"));
    let core = fs::read(path).unwrap();
    assert_eq!(&core[..4], b"\x7fELF");
    assert_eq!(core[16], 4, "not a core file");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "core files left");
    fs::remove_dir_all(folder).unwrap();
}

/// The one process that nobody cleans up after is the holder, so the front end
/// does. A thread that runs into a breakpoint in the instant between may die,
/// so the target is given several chances to be seen alive.
#[test]
fn killing_the_holder_is_cleaned_up_after() {
    let _turn = turn();
    for _ in 0..10 {
        let mut target = start("queue", "holder", 3600);
        let before = text_of(target.0.id());
        let front = deadheat()
            .args(["sample", "--rate", "100", "--pid"])
            .arg(target.0.id().to_string())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let children = format!("/proc/{0}/task/{0}/children", front.id());
        let holder: i32 = fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // SAFETY: a signal to the holder, a child of the front end we started.
        unsafe { libc::kill(holder, libc::SIGKILL) };
        let output = front.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(70), "{text}");
        assert!(text.contains("the holder process was killed"), "{text}");
        if target.0.try_wait().unwrap().is_none() {
            assert_healthy(&mut target);
            assert!(before == text_of(target.0.id()), "the text has changed");
            return;
        }
    }
    panic!("the target died every time");
}

/// Some megabytes that compress neither very well nor very badly.
fn data_file() -> PathBuf {
    let path = scratch("data");
    let mut state = 1u64;
    let mut bytes = Vec::new();
    while bytes.len() < 12 << 20 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let word = (state >> 40) as u32;
        bytes.extend_from_slice(&word.to_le_bytes());
        bytes.extend(std::iter::repeat_n(
            b'a' + (word % 26) as u8,
            (word % 13) as usize,
        ));
    }
    fs::write(&path, bytes).unwrap();
    path
}

/// Compresses under sampling and compares what comes out of decompression.
fn compress(command: &[&str], decompress: &[&str]) {
    let data = data_file();
    let packed = scratch(&format!("packed-{}", command[0]));
    let status = deadheat()
        .args(["sample", "-q", "--rate", "1000", "--exitcode", "0", "--"])
        .args(command)
        .arg(&data)
        .stdout(fs::File::create(&packed).unwrap())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{command:?} under sampling: {status}");
    let output = Command::new(decompress[0])
        .args(&decompress[1..])
        .arg(&packed)
        .output()
        .unwrap();
    assert!(output.status.success(), "{decompress:?}");
    assert!(
        output.stdout == fs::read(&data).unwrap(),
        "{command:?}: other data"
    );
}

#[test]
#[ignore = "real programs; make test-all"]
fn compressors_work_under_a_thousand_samples_a_second() {
    let _turn = turn();
    compress(&["pigz", "-p2", "-c"], &["gzip", "-dcf"]);
    compress(&["xz", "-T2", "-1", "-c"], &["xz", "-dcf", "--format=xz"]);
    compress(&["pbzip2", "-p2", "-c"], &["bzip2", "-dcf"]);
}

fn sample_for(pid: u32, duration: &str) {
    let output = deadheat()
        .args(["sample", "-q", "--rate", "1000", "--exitcode", "0"])
        .args(["--duration", duration, "--pid"])
        .arg(pid.to_string())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "real programs; make test-all"]
fn redis_answers_under_a_thousand_samples_a_second() {
    let _turn = turn();
    let port = "17371";
    let server = Command::new("redis-server")
        .args(["--port", port, "--save", ""])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Running(server);
    std::thread::sleep(Duration::from_secs(1));
    let load = Command::new("redis-benchmark")
        .args([
            "-p", port, "-n", "100000", "-c", "20", "-P", "8", "-e", "-q",
        ])
        .args(["-t", "set,get,incr,lpush,lpop,sadd"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sample_for(server.0.id(), "20s");
    let output = load.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.to_lowercase().contains("error"), "{text}");
    let counted = Command::new("redis-cli")
        .args(["-p", port, "get", "counter:__rand_int__"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "100000");
    assert_healthy(&mut server);
}

#[test]
#[ignore = "real programs; make test-all"]
fn memcached_answers_under_a_thousand_samples_a_second() {
    let _turn = turn();
    use std::io::{BufRead, BufReader, Write};
    let port = 17372;
    let server = Command::new("memcached")
        .args(["-u", "root", "-l", "127.0.0.1", "-t", "4", "-p"])
        .arg(port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = Running(server);
    std::thread::sleep(Duration::from_secs(1));
    let end = Instant::now() + Duration::from_secs(15);
    let clients: Vec<_> = (0..6)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                let mut answers = BufReader::new(stream.try_clone().unwrap());
                let mut line = move || {
                    let mut line = String::new();
                    answers.read_line(&mut line).unwrap();
                    line.trim_end().to_string()
                };
                let mut round = 0u64;
                while Instant::now() < end {
                    let value = format!("value-{client}-{round}");
                    let key = format!("key-{client}-{}", round % 100);
                    write!(stream, "set {key} 0 0 {}\r\n{value}\r\n", value.len()).unwrap();
                    assert_eq!(line(), "STORED");
                    write!(stream, "get {key}\r\n").unwrap();
                    assert!(line().starts_with("VALUE"));
                    assert_eq!(line(), value);
                    assert_eq!(line(), "END");
                    round += 1;
                }
                round
            })
        })
        .collect();
    sample_for(server.0.id(), "12s");
    for client in clients {
        assert!(client.join().expect("a wrong answer") > 0);
    }
    assert_healthy(&mut server);
}

/// A Go program that runs already is sampled and let go.
fn go_attached(name: &str, copy: &str) {
    let _turn = turn();
    let case = Case::read(name);
    let program = case.build(copy);
    case.check_tries(|| attach_to_go(&program));
}

fn attach_to_go(program: &Path) -> Value {
    let child = Command::new(program)
        .arg("8")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = text_of(child.id());
    let report = program.with_extension("json");
    let output = deadheat()
        .args(["sample", "--rate", "500", "--duration", "4", "--pid"])
        .arg(child.id().to_string())
        .arg(format!("--json={}", report.display()))
        .output()
        .unwrap();
    assert!(!is_held(child.id()), "the target is still held");
    let same = before == text_of(child.id());
    let said = child.wait_with_output().unwrap();
    assert!(
        said.status.success() && String::from_utf8_lossy(&said.stdout).contains("ok"),
        "{said:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(same, "the text has changed");
    serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap()
}

#[test]
#[ignore = "Go programs; make test-all"]
fn go_programs_are_sampled_unharmed() {
    run_case("go_counter");
    run_case("go_locked");
    go_attached("go_counter", "attached");
    go_attached("go_locked", "attached");
}

#[test]
#[ignore = "two minutes; make test-all"]
fn once_a_second() {
    run_case("once_a_second");
}

#[test]
#[ignore = "long; make test-all"]
fn two_hundred_attachments() {
    attach_and_detach("attach-200", 200);
}

#[test]
#[ignore = "long; make test-all"]
fn fifty_killed_front_ends() {
    kill_front_end("kill-50", 50);
}

#[test]
#[ignore = "long; make test-all"]
fn twins_stay_silent_for_minutes() {
    let _turn = turn();
    for name in [
        "hot_counter_locked",
        "atomics",
        "queue",
        "barrier",
        "go_locked",
    ] {
        let case = Case::read(name);
        let program = case.build("long");
        let (report, harmed) = case.run(&program, Some("150"));
        assert_eq!(harmed, None);
        case.check(&report).unwrap();
    }
}

/// The sampled race of `then_classify`, made to happen under the vm; none if
/// sampling was out of luck.
fn classified(command: &mut Command, report: &Path) -> Option<Value> {
    let _ = fs::remove_file(report);
    let output = command.output().unwrap();
    if command.get_args().any(|argument| argument == "--pid") {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("a second copy of process") || said.contains("no data races found"),
            "{said}"
        );
    }
    let text = fs::read_to_string(report).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("no report of {command:?}: {error}\n{said}")
    });
    let report: Value = serde_json::from_str(&text).unwrap();
    let race = report["races"].as_array().unwrap().first()?.clone();
    // A moment is the vm's; the sampler has none.
    assert!(race["accesses"][0]["moment"].is_string(), "{report:#}");
    assert_ne!(race["verdict"], "unclassified", "{report:#}");
    let steered = race["evidence"].as_array().unwrap().iter().any(|one| {
        one["text"]
            .as_str()
            .is_some_and(|text| text.contains("was held until another"))
    });
    assert!(steered, "it happens by itself: {report:#}");
    assert_eq!(report["tool"], "collide");
    Some(race)
}

#[test]
fn what_sampling_caught_is_made_to_happen_under_the_vm_and_classified() {
    let _turn = turn();
    let program = Case::read("then_classify").build("then");
    let report = program.with_extension("json");
    let sample = || {
        let mut command = deadheat();
        command.args(["sample", "--rate", "400", "--then-classify"]);
        command.arg(format!("--json={}", report.display()));
        command
    };
    let launched =
        (0..3).find_map(|_| classified(sample().arg("--").arg(&program).arg("5"), &report));
    assert!(launched.is_some(), "sampling caught nothing, three times");

    // A running process is started once more, as it was started.
    let attached = (0..3).find_map(|_| {
        let mut child = Command::new(&program)
            .arg("8")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let found = classified(sample().args(["--duration", "6", "--pid", &pid]), &report);
        let _ = child.kill();
        let _ = child.wait();
        found
    });
    assert!(attached.is_some(), "sampling caught nothing, three times");

    // Unless its program is no longer there.
    let gone = program.with_extension("gone");
    fs::copy(&program, &gone).unwrap();
    let mut child = Command::new(&gone)
        .arg("8")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    fs::remove_file(&gone).unwrap();
    let pid = child.id().to_string();
    let output = sample().args(["--pid", &pid]).output().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("deleted or replaced since"), "{said}");
}

/// Where sampling is when the signal comes: it begins, it learns which code
/// runs, it has found races.
const MOMENTS: [u64; 3] = [0, 150, 2_000];

/// `deadheat sample` that gets `signal` after `milliseconds`: its exit code and
/// its report.
fn interrupted(words: &[&str], signal: i32, milliseconds: u64) -> (Option<i32>, Value) {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = deadheat();
    command
        .args(["sample", "--json", "--rate", "400"])
        .args(words)
        .env("TMPDIR", temporary.path());
    let shown = format!("{command:?}, signal {signal} after {milliseconds} ms");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    // From here on the signal asks for the report.
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let held = status.lines().find(|line| line.starts_with("SigCgt:"));
        let mask = held.and_then(|line| u64::from_str_radix(line[7..].trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 != 0)
    };
    assert!(wait_until(listens), "{shown}");
    std::thread::sleep(Duration::from_millis(milliseconds));
    // SAFETY: a signal to our own child, which has not been waited for.
    unsafe { libc::kill(pid as i32, signal) };
    let begun = Instant::now();
    let ended = wait_until(|| child.try_wait().unwrap().is_some());
    assert!(ended && begun.elapsed() < Duration::from_secs(2), "{shown}");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{shown}");
    let text = String::from_utf8_lossy(&output.stdout);
    let report = &text[text.find('{').unwrap_or_else(|| panic!("{shown}: {said}"))..];
    let report = serde_json::Deserializer::from_str(report)
        .into_iter::<Value>()
        .next();
    (output.status.code(), report.unwrap().unwrap())
}

fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn a_signal_ends_sampling_with_the_report_and_its_exit_code() {
    let _turn = turn();
    let mut target = start("then_classify", "signal", 3600);
    let pid = target.0.id().to_string();
    let before = text_of(target.0.id());
    let mut caught = 0;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        for moment in MOMENTS {
            for rest in [&["--duration", "600"][..], &["--then-classify"], &[]] {
                let words: Vec<&str> = rest.iter().copied().chain(["--pid", &pid]).collect();
                let (code, report) = interrupted(&words, signal, moment);
                assert_eq!(code, Some(128 + signal), "{words:?}: {report:#}");
                let cut_short = &report["cut_short"];
                let name = ["SIGINT", "SIGTERM"][usize::from(signal == libc::SIGTERM)];
                assert_eq!(cut_short["by"], name, "{report:#}");
                let left = cut_short["left"].to_string();
                assert!(left.contains("sampling: it was ended after"), "{left}");
                let go_on = cut_short["go_on"].as_str().unwrap();
                assert!(go_on.contains(&format!("--pid {pid}")), "{go_on}");
                let races = report["races"].as_array().unwrap().len();
                caught += races;
                // The second run does not begin.
                let classifies = races > 0 && words[0] == "--then-classify";
                assert_eq!(left.contains("can do"), classifies, "{left}");
                assert_healthy(&mut target);
            }
        }
    }
    assert!(caught > 0, "no report of what was known by then");
    assert_eq!(before, text_of(target.0.id()), "breakpoints were left");
}

#[test]
fn a_program_that_was_started_goes_on_when_a_signal_ends_sampling() {
    let _turn = turn();
    let program = Case::read("then_classify").build("goes-on");
    let program = program.to_str().unwrap();
    for moment in &MOMENTS[..2] {
        // Its output ends when the program does.
        let (code, report) = interrupted(&["--", program, "2"], libc::SIGTERM, *moment);
        assert_eq!(code, Some(143), "{report:#}");
        assert_eq!(report["cut_short"]["by"], "SIGTERM", "{report:#}");
    }
}

#[test]
fn a_report_of_sampling_can_be_imported() {
    let _turn = turn();
    let program = Case::read("then_classify").build("import");
    let report = program.with_extension("imported");
    let caught = (0..3).any(|_| {
        let output = deadheat()
            .args(["sample", "--rate", "400"])
            .arg(format!("--json={}", report.display()))
            .arg("--")
            .args([program.to_str().unwrap(), "4"])
            .output()
            .unwrap();
        output.status.code() == Some(66)
    });
    assert!(caught, "sampling caught nothing, three times");
    let output = deadheat()
        .args(["import", "--json"])
        .arg(&report)
        .args(["--then-classify", "--"])
        .args([program.to_str().unwrap(), "1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let begin = text.find('{').unwrap_or_else(|| panic!("{said}"));
    let imported: Value = serde_json::from_str(&text[begin..]).unwrap();
    assert_eq!(imported["tool"], "import:deadheat");
    assert_ne!(
        imported["races"][0]["verdict"], "unclassified",
        "{imported:#}"
    );
    fs::write(&report, "{ \"schema\": 1 }").unwrap();
    let output = deadheat().arg("import").arg(&report).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
