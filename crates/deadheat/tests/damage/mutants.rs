//! Recordings, stores and reports that say something else than what was
//! written, in right form and with right checksums, in the hands of every
//! command that reads them.
//!
//! A mutant is a copy of a sample (`corpus`) with one to three changes: entries
//! of its streams (`streams`), values of its JSON (`texts`), rows of its
//! database, bytes of a program that it has a copy of. Each goes through two
//! commands. Whatever they make of it, they
//!
//! - end in time, by themselves, and leave no process behind;
//! - end with a documented exit code: 0 or the program's own, 66, 2, 70, and
//!   a sentence beside the last two; never with a panic;
//! - take less than 300 MB;
//! - write nothing outside of the mutant and what they were told to write;
//! - show no control characters, and JSON where JSON was asked for.
//!
//! DEADHEAT_MUTANTS is how many (default 40), DEADHEAT_FIRST_MUTANT the number
//! of the first. A mutant depends on its number and the samples. One that fails
//! is kept, and printed with the commands that show it.

use crate::corpus::{self, Kind, Sample};
use crate::random::Random;
use crate::texts::Hostile;
use crate::watched::{self, MOST, Watched};
use crate::{change, copy_folder, streams};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A second or two on a quiet machine.
const LIMIT: Duration = Duration::from_secs(90);

fn number_in(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What a command may write besides what it reads.
const WRITTEN: &str = "written";

/// How a command is called, and what may be said of its output.
struct Reader {
    words: &'static str,
    shows: Shows,
}

/// What a command writes on standard output.
#[derive(PartialEq, Eq)]
enum Shows {
    Text,
    Json,
    /// What the program of the recording wrote, whatever it is.
    Program,
    /// The protocol of gdb.
    Packets,
}

const fn reader(words: &'static str, shows: Shows) -> Reader {
    Reader { words, shows }
}

/// `IT` is the mutant.
const READERS: [Reader; 18] = [
    reader("replay IT", Shows::Program),
    reader("replay IT", Shows::Program),
    reader("replay IT --until 1:300", Shows::Program),
    reader("replay IT --until 2:200", Shows::Program),
    reader("replay IT --process 1", Shows::Program),
    reader("replay IT --evidence 1", Shows::Text),
    reader("replay IT --diagnose", Shows::Text),
    reader("replay IT --gdb=-", Shows::Packets),
    reader("dump IT", Shows::Text),
    reader("dump IT --bytes", Shows::Text),
    reader("detect IT --no-store", Shows::Text),
    reader("detect IT --no-store --json", Shows::Json),
    reader(
        "detect IT --store written --sarif written/s --junit written/j --html written/h",
        Shows::Text,
    ),
    reader("classify IT --no-store --k 1 --budget 3", Shows::Text),
    reader("pack IT", Shows::Text),
    reader("pack IT --redact HOME", Shows::Text),
    reader("export 1 written/exported --recording IT", Shows::Text),
    reader(
        "export 1 written/exported --recording IT --redact HOME",
        Shows::Text,
    ),
];

const STORE_READERS: [Reader; 16] = [
    reader("list --store IT", Shows::Text),
    reader("list --store IT --json", Shows::Json),
    reader("show 1 --store IT", Shows::Text),
    reader("show 1 --run 1 --store IT --json", Shows::Json),
    reader("explain 1 --store IT", Shows::Text),
    reader("compare 1 2 --store IT", Shows::Text),
    reader("compare 1 2 --store IT --json", Shows::Json),
    reader("report --store IT", Shows::Text),
    reader("report 1 --store IT --json", Shows::Json),
    reader(
        "report 1 --store IT --sarif written/s --junit written/j --html written/h",
        Shows::Text,
    ),
    reader("report 1 --store IT --gen-suppressions", Shows::Text),
    reader("mark 1 bug --reason x --run 1 --store IT", Shows::Text),
    reader("baseline update written/baseline 1 --store IT", Shows::Text),
    reader("gc --keep 1 --store IT", Shows::Text),
    reader("export 1 written/exported --store IT", Shows::Text),
    reader("classify IT/1 --store IT --k 1 --budget 3", Shows::Text),
];

const REPORT_READERS: [Reader; 9] = [
    reader("report IT/report.json --no-store", Shows::Text),
    reader("report IT/report.json --no-store --json", Shows::Json),
    reader(
        "report IT/report.json --no-store --sarif written/s --junit written/j --html written/h",
        Shows::Text,
    ),
    reader(
        "report IT/report.json --no-store --gen-suppressions=valgrind",
        Shows::Text,
    ),
    reader(
        "report IT/report.json --baseline IT/baseline --keep --store written",
        Shows::Text,
    ),
    reader("show 1 --run IT/report.json", Shows::Text),
    reader("explain 1 --run IT/report.json", Shows::Text),
    reader("compare IT/report.json IT/report.json", Shows::Text),
    reader("baseline update IT/baseline IT/report.json", Shows::Text),
];

/// What gdb might ask: the registers, memory at zero, a way back, a way on.
fn packets() -> Vec<u8> {
    let packet = |text: &str| {
        let sum = text.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
        format!("+${text}#{sum:02x}")
    };
    let asked = [
        "qSupported:multiprocess+",
        "?",
        "qfThreadInfo",
        "g",
        "m0,10",
        "s",
        "c",
        "bc",
        "k",
    ];
    asked.map(packet).concat().into_bytes()
}

/// Where one mutant after the other lies: a folder of its own, with all that a
/// command could reach from there.
struct Ground {
    folder: PathBuf,
    hostile: Hostile,
}

impl Ground {
    fn new(folder: PathBuf) -> Ground {
        for name in ["outside", "home", "tmp", "work"] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder of ours");
        }
        std::fs::write(folder.join("outside/theirs"), "theirs").expect("a folder of ours");
        let hostile = Hostile::new(&folder.join("outside"));
        Ground { folder, hostile }
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// Makes a mutant of `sample`; says how.
    fn plant(&self, sample: &Sample, samples: &[Sample], random: &mut Random) -> String {
        let _ = std::fs::remove_dir_all(self.work());
        std::fs::create_dir(self.work()).expect("a folder of ours");
        let it = self.work().join("it");
        copy_folder(&sample.folder, &it);
        let same: Vec<&Sample> = samples
            .iter()
            .filter(|other| other.kind == sample.kind)
            .collect();
        let mut said = BTreeMap::new();
        for _ in 0..1 + usize::from(random.one_in(4)) {
            let mut files = files_of(&it);
            // There are many other files, but streams decide most.
            let streams: Vec<PathBuf> = files
                .iter()
                .filter(|file| is_stream(file))
                .cloned()
                .collect();
            files.extend_from_slice(&[streams.clone(), streams].concat());
            let file = random.of(&files).clone();
            // What is no stream or JSON any more is not changed as one again.
            if said.contains_key(&file) {
                continue;
            }
            let donor = random.of(&same).folder.join(&file);
            let donor = match donor.is_file() {
                true => donor,
                false => sample.folder.join(&file),
            };
            let how = self.change_file(&it, &file, &donor, random);
            said.insert(file, how);
        }
        let said = said
            .iter()
            .map(|(file, how)| format!("{}: {how}", file.display()));
        said.collect::<Vec<_>>().join("; ")
    }

    fn change_file(&self, it: &Path, file: &Path, donor: &Path, random: &mut Random) -> String {
        let path = it.join(file);
        let name = file.file_name().and_then(|name| name.to_str());
        match name.unwrap_or("") {
            "schedule" => streams::change_schedule(&path, donor, random),
            "inputs" => streams::change_inputs(&path, donor, random),
            "deadheat.sqlite" => self.change_database(&path, random),
            name if name.contains(".json") => self.hostile.change_file(&path, donor, random),
            _ if file
                .parent()
                .is_some_and(|folder| folder.ends_with("files")) =>
            {
                change_copy(it, file, random)
            }
            _ => {
                let mut bytes = std::fs::read(&path).expect("a file of ours");
                let how = change(&mut bytes, random);
                std::fs::write(&path, bytes).expect("a file of ours");
                how
            }
        }
    }

    /// One row of one table says something else, or bytes of the file do.
    fn change_database(&self, path: &Path, random: &mut Random) -> String {
        if random.one_in(5) {
            let mut bytes = std::fs::read(path).expect("a file of ours");
            let how = change(&mut bytes, random);
            std::fs::write(path, bytes).expect("a file of ours");
            return how;
        }
        const CELLS: [(&str, &str); 14] = [
            ("recordings", "program"),
            ("recordings", "started"),
            ("recordings", "id"),
            ("runs", "started"),
            ("runs", "tool"),
            ("runs", "program"),
            ("runs", "exit_deadheat"),
            ("runs", "counts"),
            ("runs", "report"),
            ("sightings", "fingerprint"),
            ("sightings", "verdict"),
            ("sightings", "race"),
            ("sightings", "body"),
            ("marks", "reason"),
        ];
        let (table, column) = *random.of(&CELLS);
        let database = rusqlite::Connection::open(path).expect("a database of ours");
        let get = format!("SELECT {column} FROM {table}");
        let was = database.query_row(&get, [], |row| row.get(0));
        let was: rusqlite::types::Value = was.expect("the table has a row");
        let (now, how) = self.changed_cell(was, column == "body", random);
        let set = format!("UPDATE {table} SET {column} = ?1");
        // A constraint may forbid it.
        let done = database.execute(&set, [now]);
        format!("{table}.{column} {how} ({done:?})")
    }

    fn changed_cell(
        &self,
        was: rusqlite::types::Value,
        is_body: bool,
        random: &mut Random,
    ) -> (rusqlite::types::Value, String) {
        use rusqlite::types::Value;
        match was {
            Value::Blob(mut bytes) if is_body && random.below(4) > 0 => {
                let text = lz4_flex::decompress_size_prepended(&bytes).expect("a body of ours");
                let text = String::from_utf8_lossy(&text);
                let (text, how) = self.hostile.change_text(&text, random);
                bytes = lz4_flex::compress_prepend_size(text.as_bytes());
                (Value::Blob(bytes), how)
            }
            Value::Blob(mut bytes) => {
                let how = change(&mut bytes, random);
                (Value::Blob(bytes), how)
            }
            Value::Text(text) if text.starts_with(['[', '{']) && random.below(4) > 0 => {
                let (text, how) = self.hostile.change_text(&text, random);
                (Value::Text(text), how)
            }
            Value::Text(_) => {
                let text = self.hostile.name(random);
                (Value::Text(text), "another text".to_string())
            }
            Value::Integer(number) => {
                let now = crate::random::extreme(random, number as u64) as i64;
                (Value::Integer(now), format!("= {now}"))
            }
            other => (other, "as it was".to_string()),
        }
    }

    /// Runs a command on the mutant; what is wrong with how it went.
    fn read(&self, reader: &Reader, signal: Option<i32>) -> Option<String> {
        let _ = std::fs::remove_dir_all(self.work().join(WRITTEN));
        std::fs::create_dir(self.work().join(WRITTEN)).expect("a folder of ours");
        let before = self.outside();
        let mut command = Command::new(env!("CARGO_BIN_EXE_deadheat"));
        command
            .args(arguments(reader))
            .current_dir(self.work())
            .env("HOME", self.folder.join("home"))
            .env("TMPDIR", self.folder.join("tmp"))
            .env_remove("DEADHEAT_STORE");
        let input = match reader.shows {
            Shows::Packets => packets(),
            _ => Vec::new(),
        };
        let ended = watched::run(&mut command, &input, LIMIT);
        complaint(reader, &ended, signal).or_else(|| {
            let after = self.outside();
            let all = before.iter().chain(&after);
            let changed: Vec<_> = all
                .filter(|(path, bytes)| {
                    before.get(*path) != Some(*bytes) || !after.contains_key(*path)
                })
                .map(|(path, _)| path.display().to_string())
                .collect();
            (!changed.is_empty()).then(|| format!("it changed {}", changed.join(", ")))
        })
    }

    /// All that no command may touch, and what is in it.
    fn outside(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all: Vec<PathBuf> = ["outside", "home", "tmp"]
            .iter()
            .flat_map(|name| {
                files_of(&self.folder.join(name))
                    .into_iter()
                    .map(move |file| Path::new(name).join(file))
            })
            .collect();
        let beside = std::fs::read_dir(self.work()).expect("a folder of ours");
        let beside = beside.flatten().map(|entry| entry.file_name());
        all.extend(
            beside
                .filter(|name| name != "it" && name != WRITTEN)
                .map(|name| Path::new("work").join(name)),
        );
        all.into_iter()
            .map(|file| {
                (
                    file.clone(),
                    std::fs::read(self.folder.join(file)).unwrap_or_default(),
                )
            })
            .collect()
    }
}

fn arguments(reader: &Reader) -> Vec<String> {
    let words = reader.words.split(' ');
    words.map(|word| word.replace("IT", "it")).collect()
}

/// What is wrong with how a command ended and with what it showed; `signal` is
/// what the program dies of.
fn complaint(reader: &Reader, ended: &Watched, signal: Option<i32>) -> Option<String> {
    let errors = ended.errors();
    let short: String = errors.chars().take(600).collect();
    let says = |what: String| Some(format!("{what}: {short}"));
    if ended.late {
        return says(format!("not over after {} s", LIMIT.as_secs()));
    }
    if ended.peak > MOST {
        return says(format!("it took {} MB", ended.peak / 1000));
    }
    if errors.contains("panicked at") {
        return says("a panic".to_string());
    }
    if ended.left_behind {
        return says("a process of it was left".to_string());
    }
    // A replay ends as the program did. What it dies of is in the recording and
    // is checked: any other signal was deadheat's.
    let of_program = reader.shows == Shows::Program;
    let is_documented = match ended.status.code() {
        Some(0 | 2 | 66 | 70) => true,
        Some(_) => {
            of_program || reader.words.starts_with("detect") || reader.words.starts_with("classify")
        }
        None => of_program && ended.status.signal() == signal,
    };
    if !is_documented {
        return says(format!("it ended with {}", ended.status));
    }
    let must_speak = matches!(ended.status.code(), Some(2 | 70)) && !of_program;
    // What was asked for may be the bad news.
    let has_spoken = errors.contains("deadheat: ") || !ended.stdout.is_empty();
    if must_speak && !has_spoken {
        return says(format!("{} without a word", ended.status));
    }
    let shown: &[&[u8]] = match reader.shows {
        Shows::Program | Shows::Packets => &[&ended.stderr],
        Shows::Text | Shows::Json => &[&ended.stdout, &ended.stderr],
    };
    // The program's own errors are shown as its output is.
    let shown = if of_program { &[] } else { shown };
    for bytes in shown {
        if let Some(what) = steers_a_terminal(bytes) {
            return Some(format!("it shows {what}"));
        }
    }
    let has_json = matches!(ended.status.code(), Some(0 | 66));
    if reader.shows == Shows::Json && has_json {
        let parsed = serde_json::from_slice::<serde_json::Value>(&ended.stdout);
        if let Err(error) = parsed {
            return says(format!("no JSON: {error}"));
        }
    }
    None
}

/// The first thing in a text that a terminal may take for a command.
fn steers_a_terminal(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let is_bad = |c: char| {
        (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
    };
    let at = text.find(is_bad)?;
    let around: String = text[at..].chars().take(40).collect();
    Some(around.escape_debug().to_string())
}

/// Bytes of a file that the recording has a copy of, under its new hash.
fn change_copy(it: &Path, file: &Path, random: &mut Random) -> String {
    let mut bytes = std::fs::read(it.join(file)).expect("a file of ours");
    let how = match random.one_in(2) {
        // Headers decide more than code does.
        true => {
            let mut start = bytes[..bytes.len().min(1024)].to_vec();
            let rest = bytes.split_off(start.len());
            let how = change(&mut start, random);
            bytes = [start, rest].concat();
            how
        }
        false => change(&mut bytes, random),
    };
    std::fs::remove_file(it.join(file)).expect("a file of ours");
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
    let folder = file.parent().unwrap_or(Path::new(""));
    std::fs::write(it.join(folder).join(&hash), &bytes).expect("a folder of ours");
    let was = file.file_name().and_then(|name| name.to_str());
    let recording = it.join(folder.parent().unwrap_or(Path::new("")));
    for table in files_of(&recording) {
        if !table.ends_with("files.json") {
            continue;
        }
        let text = std::fs::read(recording.join(&table)).expect("a file of ours");
        // It may have been changed already.
        let mut entries: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        for entry in entries.as_array_mut().into_iter().flatten() {
            if entry["hash"].as_str() == was {
                entry["hash"] = hash.clone().into();
                entry["size"] = bytes.len().into();
            }
        }
        std::fs::write(recording.join(&table), entries.to_string()).expect("a file of ours");
    }
    format!("{how}, now {hash}")
}

fn is_stream(file: &Path) -> bool {
    file.ends_with("schedule") || file.ends_with("inputs")
}

/// All files in a folder, in order.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in std::fs::read_dir(folder.join(&below)).into_iter().flatten() {
            let name = below.join(entry.expect("a folder of ours").file_name());
            match folder.join(&name).is_dir() {
                true => folders.push(name),
                false => files.push(name),
            }
        }
    }
    files.sort();
    files
}

/// One mutant through two commands; what is wrong, and how it was made.
fn one(ground: &Ground, samples: &[Sample], number: u64) -> Vec<String> {
    let mut random = Random(number);
    let sample = random.of(samples);
    let how = ground.plant(sample, samples, &mut random);
    let readers: &[Reader] = match sample.kind {
        Kind::Recording => &READERS,
        Kind::Store => &STORE_READERS,
        Kind::Report => &REPORT_READERS,
    };
    let mut wrong = Vec::new();
    for _ in 0..2 {
        let reader = random.of(readers);
        // Some commands write into what they read.
        let was = ground.folder.join("was");
        copy_folder(&ground.work().join("it"), &was);
        if let Some(what) = ground.read(reader, sample.signal) {
            let kept = ground.folder.join(format!("failed-{number}"));
            copy_folder(&was, &kept);
            wrong.push(format!(
                "mutant {number} of {} ({how}): {what}\n  to see it: {} {}\n  to make it again: DEADHEAT_FIRST_MUTANT={number} DEADHEAT_MUTANTS=1 cargo test --release -p deadheat --test damage mutants -- --nocapture",
                sample.name,
                env!("CARGO_BIN_EXE_deadheat"),
                reader.words.replace("IT", &kept.display().to_string()),
            ));
        }
    }
    wrong
}

#[test]
fn mutants_with_right_checksums_are_told_in_a_sentence() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let samples = corpus::make(folder.path());
    let (first, count) = (
        number_in("DEADHEAT_FIRST_MUTANT", 1),
        number_in("DEADHEAT_MUTANTS", 40),
    );
    let next = AtomicU64::new(first);
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let worker = |job: usize| {
            let ground = Ground::new(folder.path().join(format!("ground{job}")));
            let (samples, next) = (&samples, &next);
            scope.spawn(move || {
                let mut wrong = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= first + count {
                        return wrong;
                    }
                    for what in one(&ground, samples, number) {
                        println!("FAILED {what}");
                        wrong.push(what);
                    }
                }
            })
        };
        let workers: Vec<_> = (0..jobs).map(worker).collect();
        let done = workers.into_iter().map(|worker| worker.join());
        done.flat_map(|wrong| wrong.expect("no thread panics"))
            .collect()
    });
    println!(
        "corpus: {count} mutants from number {first} of {} samples, 2 commands each: {} failures",
        samples.len(),
        wrong.len()
    );
    if !wrong.is_empty() {
        let kept = folder.keep();
        panic!(
            "{} failures, kept in {}:\n{}",
            wrong.len(),
            kept.display(),
            wrong.join("\n")
        );
    }
}
