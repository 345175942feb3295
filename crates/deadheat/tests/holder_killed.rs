//! `kill -9` of the holder of `deadheat sample`, at random moments, while
//! programs run that check their own results (`tests/programs/sample/checked.c`).
//!
//! What may happen to a program is said in docs/sample.md: nothing, or it dies
//! of SIGTRAP. It never computes anything wrong, and no breakpoint stays.
//!
//! The table of docs/sample.md is printed by
//! `cargo test --release -p deadheat --test holder_killed -- --ignored --nocapture`.
//! `DEADHEAT_KILLS` is the number of kills of each kind of program at each
//! rate, `DEADHEAT_KILLED` another deadheat to compare with.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const KINDS: [&str; 4] = ["sum", "locks", "pipeline", "vectors"];
const AT_THE_DEFAULT: [&str; 0] = [];
const FAST: [&str; 2] = ["--rate", "2000"];
/// The sampler has found code to sample after this long; the rate that it aims
/// at is reached about a second later.
const EARLIEST: u64 = 60;
const LATEST: u64 = 1500;
/// A program that has lost something has time to notice.
const AFTERWARDS: Duration = Duration::from_millis(60);
/// Percent of the programs that may die of SIGTRAP. It was 4 at the default, 7 at
/// 2,000 samples a second; 25 and 29 when the front end was told after the kernel
/// had let go.
const MOST_TRAPPED: u32 = 15;
const PATIENCE: Duration = Duration::from_secs(20);

fn deadheat() -> PathBuf {
    std::env::var_os("DEADHEAT_KILLED")
        .map_or_else(|| env!("CARGO_BIN_EXE_deadheat").into(), PathBuf::from)
}

fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("holder_killed");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(format!("checked-{}", std::process::id()));
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/sample/checked.c");
    let built = Command::new("gcc")
        .args(["-g", "-O2", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(built.success());
    program
}

/// What became of a program whose holder was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unharmed,
    /// Died of SIGTRAP: a thread ran into a breakpoint that nobody held.
    Trapped,
    /// Computed something else, died of anything else, or hangs.
    Wrong,
    /// A breakpoint stayed in the text.
    Stray,
}

#[derive(Debug, Default)]
struct Tally {
    kills: u32,
    trapped: u32,
    wrong: u32,
    stray: u32,
}

impl Tally {
    fn add(&mut self, fate: Fate) {
        self.kills += 1;
        match fate {
            Fate::Unharmed => {}
            Fate::Trapped => self.trapped += 1,
            Fate::Wrong => self.wrong += 1,
            Fate::Stray => self.stray += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} | {} | {} | {}",
            self.kills, self.wrong, self.stray, self.trapped
        )
    }
}

/// A process of ours that must be gone at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The text of the program and its libraries, as it is in memory.
fn text_of(pid: u32) -> Option<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut text = Vec::new();
    for line in maps
        .lines()
        .filter(|line| line.contains("r-xp") && line.contains('/'))
    {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).ok()?;
        text.extend(bytes);
    }
    (!text.is_empty()).then_some(text)
}

fn is_held(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("TracerPid:\t0"))
}

/// Whether it was done in time.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to a process that this test has started.
    unsafe { libc::kill(pid, signal) };
}

/// Samples a program, kills the holder after `moment`, and looks what became
/// of the program.
fn kill_once(program: &Path, kind: &str, options: &[&str], moment: Duration) -> Fate {
    let target = Command::new(program)
        .arg(kind)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut target = Running(target);
    let pid = target.0.id();
    let mut said = String::new();
    let output = target.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    let before = text_of(pid).unwrap();
    let front = Command::new(deadheat())
        .args(["sample", "-q"])
        .args(options)
        .args(["--pid", &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let front = Running(front);
    assert!(wait_until(|| is_held(pid)), "sampling does not begin");
    std::thread::sleep(moment);
    let children = format!("/proc/{0}/task/{0}/children", front.0.id());
    let holder = fs::read_to_string(children).unwrap();
    signal(holder.trim().parse().unwrap(), libc::SIGKILL);
    assert!(wait_until(|| !is_held(pid)), "the holder does not die");
    std::thread::sleep(AFTERWARDS);
    let stray = text_of(pid).is_some_and(|text| text != before);
    signal(pid as i32, libc::SIGTERM);
    let mut status = None;
    wait_until(|| {
        status = target.0.try_wait().unwrap();
        status.is_some()
    });
    let Some(status) = status else {
        eprintln!("{kind} {options:?}: does not end");
        return Fate::Wrong;
    };
    match status.signal() {
        Some(libc::SIGTRAP) => Fate::Trapped,
        _ if !status.success() => {
            eprintln!("{kind} {options:?}: {status}");
            Fate::Wrong
        }
        _ if stray => Fate::Stray,
        _ => Fate::Unharmed,
    }
}

/// Kills at moments spread over the first second and a half, in an order that
/// the number of the kill decides.
fn moment(number: u32) -> Duration {
    let spread = u64::from(number.wrapping_mul(2_654_435_769)) % (LATEST - EARLIEST);
    Duration::from_millis(EARLIEST + spread) + Duration::from_micros(u64::from(number) * 37 % 1000)
}

fn kill_many(kills: u32, options: &[&str]) -> Vec<(&'static str, Tally)> {
    let program = build();
    let mut tallies: Vec<(&str, Tally)> = KINDS
        .map(|kind| (kind, Tally::default()))
        .into_iter()
        .collect();
    for number in 0..kills {
        for (place, (kind, tally)) in tallies.iter_mut().enumerate() {
            let moment = moment(number * KINDS.len() as u32 + place as u32);
            tally.add(kill_once(&program, kind, options, moment));
        }
    }
    let _ = fs::remove_file(program);
    tallies
}

fn assert_right(tallies: &[(&str, Tally)]) {
    for (kind, tally) in tallies {
        assert_eq!(tally.wrong, 0, "{kind}: {tallies:?}");
        assert_eq!(tally.stray, 0, "{kind}: {tallies:?}");
    }
}

#[test]
fn nothing_is_computed_wrong_and_nothing_stays() {
    assert_right(&kill_many(1, &FAST));
}

#[test]
#[ignore = "ten minutes; make test-all"]
fn hundreds_of_kills() {
    let kills = std::env::var("DEADHEAT_KILLS")
        .ok()
        .and_then(|kills| kills.parse().ok())
        .unwrap_or(50);
    println!("| rate | program | kills | wrong result | breakpoint left | dead of SIGTRAP |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut all = Vec::new();
    for (rate, options) in [("default", &AT_THE_DEFAULT[..]), ("2,000/s", &FAST)] {
        let tallies = kill_many(kills, options);
        for (kind, tally) in &tallies {
            println!("| {rate} | {kind} | {tally} |");
        }
        let of = |part: fn(&Tally) -> u32| tallies.iter().map(|(_, tally)| part(tally)).sum();
        let (trapped, killed): (u32, u32) = (of(|tally| tally.trapped), of(|tally| tally.kills));
        assert!(
            trapped * 100 <= killed * MOST_TRAPPED,
            "{rate}: {tallies:?}"
        );
        all.extend(tallies);
    }
    assert_right(&all);
}
