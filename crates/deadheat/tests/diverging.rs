//! A replay that diverges names what differs.
//!
//! Recordings are damaged in known places, with right checksums around it: the
//! check of a register, of a vector register, of a page in the middle and at
//! the end, a byte of what the program read, what a system call returned, the
//! length of a slice. `replay` must name the place, and `--diagnose` what runs
//! there.

use folder::Place;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use vm::record::stream::{StreamReader, StreamWriter};

fn deadheat(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", "120"])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A recording of `long_walk.c`.
fn recorded() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/vm/long_walk.c");
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-pthread"])
        .arg(source)
        .args(["-o", "long_walk"])
        .current_dir(folder.path())
        .status()
        .expect("gcc can be started");
    assert!(built.success());
    std::fs::write(folder.path().join("line"), "a line of input").expect("a folder of ours");
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["record", "-o", "whole", "--", "./long_walk"])
        .current_dir(folder.path())
        .stdin(std::fs::File::open(folder.path().join("line")).expect("a file of ours"))
        .output()
        .expect("deadheat can be started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let whole = folder.path().join("whole");
    (folder, whole)
}

fn place(path: &Path) -> Place {
    let folder = path.parent().expect("a file of ours");
    Place::of(folder).join(path.file_name().expect("a file of ours"))
}

fn contents(path: &Path) -> Vec<u8> {
    let mut stream = StreamReader::open(&place(path)).expect("a stream of ours");
    let mut bytes = Vec::new();
    while !stream.at_end().expect("a stream of ours") {
        bytes.push(stream.byte().expect("a stream of ours"));
    }
    bytes
}

/// A copy of the recording with another stream in it.
fn damaged(whole: &Path, stream: &str, bytes: &[u8]) -> PathBuf {
    let damaged = whole.with_file_name("damaged");
    let _ = std::fs::remove_dir_all(&damaged);
    let copied = Command::new("cp")
        .arg("-r")
        .args([whole, &damaged])
        .status()
        .expect("cp can be started");
    assert!(copied.success());
    let path = damaged.join(stream);
    std::fs::remove_file(&path).expect("a file of ours");
    let mut writer = StreamWriter::create(&place(&path)).expect("a folder of ours");
    writer.buffer().extend_from_slice(bytes);
    writer.finish().expect("a folder of ours");
    damaged
}

/// Reads numbers of seven bits a byte.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn number(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes[self.at];
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    fn skip(&mut self, count: usize) -> Range<usize> {
        self.at += count;
        self.at - count..self.at
    }
}

/// Where things are in the bytes of a schedule.
#[derive(Default)]
struct Schedule {
    slices: Vec<SliceAt>,
    checkpoints: Vec<CheckpointAt>,
}

struct SliceAt {
    thread: u64,
    /// Instructions of the thread when it ends.
    moment: u64,
    instructions: u64,
    /// Where the number of instructions is.
    length_at: usize,
    hash: Range<usize>,
    marks: Range<usize>,
}

struct CheckpointAt {
    tick: u64,
    /// Thread, and where its hash and the marks of its vector registers are.
    threads: Vec<(u64, Range<usize>, Range<usize>)>,
    /// Address, and where the hash is.
    pages: Vec<(u64, Range<usize>)>,
}

fn schedule(bytes: &[u8]) -> Schedule {
    let mut cursor = Cursor { bytes, at: 0 };
    let mut schedule = Schedule::default();
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    let mut tick = 0;
    while cursor.at < bytes.len() {
        cursor.at += 1;
        match bytes[cursor.at - 1] {
            0 => {
                let thread = cursor.number();
                let length_at = cursor.at;
                let instructions = cursor.number();
                tick += instructions;
                let count = counts.entry(thread).or_default();
                *count += instructions;
                schedule.slices.push(SliceAt {
                    thread,
                    moment: *count,
                    instructions,
                    length_at,
                    hash: cursor.skip(4),
                    marks: cursor.skip(10),
                });
            }
            1 => {
                cursor.number();
            }
            2 => {
                cursor.number();
                let length = cursor.number() as usize;
                cursor.skip(length);
            }
            3 | 4 => {
                cursor.number();
                cursor.skip(8);
            }
            5 => {}
            6 => {
                let threads = cursor.number();
                let threads = (0..threads)
                    .map(|_| {
                        let thread = cursor.number();
                        let hash = cursor.skip(4);
                        cursor.skip(10);
                        (thread, hash, cursor.skip(25))
                    })
                    .collect();
                let mut page = 0;
                let pages = cursor.number();
                let pages = (0..pages)
                    .map(|_| {
                        page += cursor.number();
                        (page * 4096, cursor.skip(4))
                    })
                    .collect();
                schedule.checkpoints.push(CheckpointAt {
                    tick,
                    threads,
                    pages,
                });
            }
            other => panic!("step {other} at {}", cursor.at - 1),
        }
    }
    schedule
}

/// `replay` must end with 70 and say all of this.
fn must_say(recording: &Path, words: &[String]) {
    let folder = recording.parent().expect("a folder of ours");
    let output = deadheat(folder, &["replay", "damaged"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(70), "{said}");
    for words in words {
        assert!(said.contains(words.as_str()), "{words}: {said}");
    }
}

/// `--diagnose` must end with 70 and say all of this.
fn diagnosis(recording: &Path, words: &[&str]) -> String {
    let folder = recording.parent().expect("a folder of ours");
    let output = deadheat(folder, &["replay", "damaged", "--diagnose"]);
    let said = text(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(70),
        "{said}{}",
        text(&output.stderr)
    );
    for words in words {
        assert!(said.contains(words), "{words}: {said}");
    }
    said
}

#[test]
fn the_place_of_a_difference_is_named() {
    let (folder, whole) = recorded();
    let bytes = contents(&whole.join("0/schedule"));
    let schedule = schedule(&bytes);
    assert!(schedule.checkpoints.len() >= 3, "the program is too short");

    let output = deadheat(folder.path(), &["replay", "whole", "--diagnose"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("5 of 5 replays agree"));

    // A register of a thread that walks, in the middle.
    let walks = |slice: &&SliceAt| slice.thread == 2;
    let slices: Vec<&SliceAt> = schedule.slices.iter().filter(walks).collect();
    let slice = slices[slices.len() / 2];
    for (register, byte, bits) in [("rcx", 9, 0x03), ("rsp", 7, 0x50), ("flags", 1, 0x01)] {
        let mut changed = bytes.clone();
        changed[slice.hash.start] ^= 1;
        changed[slice.marks.start + byte] ^= bits;
        let recording = damaged(&whole, "0/schedule", &changed);
        must_say(
            &recording,
            &[
                format!(" at 2:{}", slice.moment),
                format!("of thread 2, {register} differs"),
            ],
        );
    }
    diagnosis(
        &whole.with_file_name("damaged"),
        &[
            "5 of 5 replays diverge",
            "it is repeatable",
            "flags differs",
            "What thread 2 ran in this interval",
            "walk",
            "long_walk.c:",
        ],
    );

    // A page that is only looked at in the middle, and one at the end.
    let middle = &schedule.checkpoints[1];
    let last = schedule.checkpoints.last().expect("there are some");
    let before = &schedule.checkpoints[schedule.checkpoints.len() - 2];
    for (checkpoint, since) in [(middle, schedule.checkpoints[0].tick), (last, before.tick)] {
        let (address, hash) = &checkpoint.pages[checkpoint.pages.len() / 2];
        let mut changed = bytes.clone();
        changed[hash.start + 2] ^= 0x10;
        let recording = damaged(&whole, "0/schedule", &changed);
        must_say(
            &recording,
            &[
                format!("between instruction {since} and {} of all", checkpoint.tick),
                format!("one page of memory differs: {address:#x} ("),
            ],
        );
    }
    let tables: Vec<&(u64, Range<usize>)> = middle.pages.iter().collect();
    let (address, hash) = tables[tables.len() / 4];
    let mut changed = bytes.clone();
    changed[hash.start] ^= 1;
    let recording = damaged(&whole, "0/schedule", &changed);
    diagnosis(
        &recording,
        &[
            &format!("{address:#x}"),
            &format!("Who writes to page {address:#x}"),
            "walk",
            "long_walk.c:",
            "Replays do not differ from one another",
            "deadheat pack",
        ],
    );

    // A vector register.
    let (thread, hash, vector) = &middle.threads[0];
    let mut changed = bytes.clone();
    changed[hash.start] ^= 1;
    // Eight x87 registers come first: zmm3 is the twelfth of them all.
    changed[vector.start + 5] ^= 0x20;
    let recording = damaged(&whole, "0/schedule", &changed);
    must_say(&recording, &[format!("of thread {thread}, zmm3 differs")]);

    // A slice that is one instruction longer than it was, or shorter.
    let long = |slice: &&&SliceAt| slice.instructions > 100;
    let slice = slices.iter().find(long).expect("there are long ones");
    let mut changed = bytes.clone();
    changed[slice.length_at] ^= 1;
    let moved = slice.moment - slice.instructions + (slice.instructions ^ 1);
    let recording = damaged(&whole, "0/schedule", &changed);
    must_say(
        &recording,
        &[format!(" at 2:{moved}"), "thread 2".to_string()],
    );
}

#[test]
fn other_input_shows_where_it_went() {
    let (_folder, whole) = recorded();
    let bytes = contents(&whole.join("0/inputs"));
    let line = b"a line of input";
    let at = bytes
        .windows(line.len())
        .position(|window| window == line)
        .expect("the input is in the recording");
    let mut changed = bytes.clone();
    changed[at + 3] ^= 2;
    let recording = damaged(&whole, "0/inputs", &changed);
    must_say(
        &recording,
        &["one page of memory differs".into(), "long_walk".into()],
    );
    diagnosis(
        &recording,
        &["Who writes to page", "a system call", "1 time"],
    );

    // What read returned, and so what the program has in hand.
    let shorter = [
        &bytes[..at - 1],
        &[line.len() as u8 - 1],
        &line[..line.len() - 1],
        &bytes[at + line.len()..],
    ]
    .concat();
    // Before the bytes and their length: the result, the number of writes and
    // the distance of the address, of which the result is first.
    let result = (0..at)
        .rev()
        .find(|index| shorter[*index] == 2 * line.len() as u8)
        .expect("the result is there");
    let mut changed = shorter;
    changed[result] = 2 * (line.len() as u8 - 1);
    let recording = damaged(&whole, "0/inputs", &changed);
    must_say(&recording, &["thread 1".into(), " at 1:".into()]);
}

#[test]
fn a_process_of_a_tree_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = deadheat(
        folder.path(),
        &[
            "record",
            "-o",
            "whole",
            "--",
            "/bin/sh",
            "-c",
            "/bin/true; echo done",
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let whole = folder.path().join("whole");
    let bytes = contents(&whole.join("1/schedule"));
    let schedule = schedule(&bytes);
    let last = schedule.checkpoints.last().expect("there is an end");
    let (address, hash) = &last.pages[0];
    let mut changed = bytes.clone();
    changed[hash.start] ^= 1;
    let recording = damaged(&whole, "1/schedule", &changed);
    must_say(
        &recording,
        &["process 1: ".into(), format!("differs: {address:#x}")],
    );
    diagnosis(
        &recording,
        &[
            "process 1: 5 of 5 replays diverge",
            &format!("{address:#x}"),
        ],
    );
    let output = deadheat(
        folder.path(),
        &["replay", "damaged", "--diagnose", "--process", "0"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}
