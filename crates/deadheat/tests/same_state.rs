//! Random racy programs: "the same state" must mean the same future, and no
//! order that crashes may be called harmless.
//!
//! A program has two or three threads, each a few statements that share a
//! pointer, an index, a divisor, a block of the heap, a flag, counters and a
//! pipe, some under a lock. Of each program is asked:
//!
//! - orders that have left the same state are run on from there, and must do the
//!   same (`--audit`);
//! - a race that is called harmless ends the same in both orders where
//!   `replay --order` plays them.
//!
//! `DEADHEAT_SAME_STATE_PROGRAMS` sets the number of programs (a small cut
//! without it), `DEADHEAT_SAME_STATE_SEED` the first seed. A failure keeps the
//! source and says the command that shows it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const FEW: u64 = 4;

/// Words that begin a sentence of the audit.
const PARTED: &str = "left the same state, and then";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One statement of a thread.
fn statement(random: &mut Random) -> String {
    let small = random.below(5);
    match random.below(22) {
        0 => "p = &z;".into(),
        1 => "p = 0;".into(),
        2 => "if (p) sink += *p;".into(),
        3 => "sink += *p;".into(),
        4 => format!("at = {};", [0, 1, 3, 1 << 24][random.below(4) as usize]),
        5 => "if (at < 4) table[at]++;".into(),
        6 => "table[at] = 1;".into(),
        7 => "count++;".into(),
        8 => format!("if (count > {small}) sink++;"),
        9 => format!("divisor = {};", small % 2),
        10 => "if (divisor) sink += 100 / divisor;".into(),
        11 => "{ char *own = block; block = 0; free(own); }".into(),
        12 => "if (block) block[0] = 1;".into(),
        13 => "{ char *new = malloc(24); new[0] = 2; block = new; }".into(),
        14 => format!("flag = {};", small % 2),
        15 => "if (flag) count = 0;".into(),
        16 => "printf(\"%ld\\n\", count);".into(),
        17 => "low = count; high = count;".into(),
        18 => "assert(low <= high);".into(),
        19 => "if (write(ends[1], &count, 1) != 1) abort();".into(),
        20 => "{ pthread_mutex_lock(&lock); count += 2; pthread_mutex_unlock(&lock); }".into(),
        _ => format!("for (volatile int i = 0; i < {}; i++);", 40 * small),
    }
}

fn source(seed: u64) -> String {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let threads = 2 + random.below(2);
    let mut text = String::from(
        "#include <assert.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         #include <unistd.h>\n\
         int z = 1, *p = &z, table[4], divisor = 1, flag, ends[2];\n\
         unsigned at;\nlong count, low, high, sink;\nchar *block;\n\
         pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;\n",
    );
    for thread in 0..threads {
        let _ = writeln!(text, "static void *thread_{thread}(void *unused) {{");
        for _ in 0..2 + random.below(5) {
            let _ = writeln!(text, "    {}", statement(&mut random));
        }
        text.push_str("    return unused;\n}\n");
    }
    text.push_str("int main(void) {\n    pthread_t t[3];\n    if (pipe(ends)) return 1;\n");
    text.push_str("    block = malloc(24);\n");
    for thread in 0..threads {
        let _ = writeln!(
            text,
            "    pthread_create(&t[{thread}], 0, thread_{thread}, 0);"
        );
    }
    for thread in 0..threads {
        let _ = writeln!(text, "    pthread_join(t[{thread}], 0);");
    }
    text.push_str("    printf(\"%ld %ld %d %d\\n\", count, sink, table[0], flag);\n");
    text.push_str("    return 0;\n}\n");
    text
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .expect("it can be started")
}

/// What went wrong, with a command that shows it.
struct Wrong(String);

#[derive(Default)]
struct Tally {
    races: u64,
    harmless: u64,
    same: u64,
    verdicts: BTreeMap<String, u64>,
}

fn deadheat(folder: &Path, words: &[&str]) -> Output {
    output(
        Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(words)
            .current_dir(folder),
    )
}

fn try_program(seed: u64, folder: &Path, tally: &mut Tally) -> Result<(), Wrong> {
    let code = folder.join("program.c");
    std::fs::write(&code, source(seed)).expect("the folder can be written");
    let compiled = output(
        Command::new("gcc")
            .args(["-g", "-O1", "-w", "-pthread", "-o", "program", "program.c"])
            .current_dir(folder),
    );
    assert!(compiled.status.success(), "{compiled:?}");
    // The slices are short, so that the threads meet.
    let words = format!(
        "run --audit --k 4 --pre-schedules 1 --post-schedules 0 --seed {seed} --quantum 60 \
         --store store --json -- ./program"
    );
    let ran = deadheat(folder, &words.split(' ').collect::<Vec<_>>());
    let shown = format!("cd {} && deadheat {words}", folder.display());
    let text = String::from_utf8_lossy(&ran.stdout);
    // The program prints as well; the report is the object.
    let report: Value = text
        .find("{\n  \"schema\"")
        .or_else(|| text.find("{\"schema\""))
        .and_then(|begin| serde_json::from_str(&text[begin..]).ok())
        .ok_or_else(|| Wrong(format!("no report: {shown}\n{ran:?}")))?;
    if text.contains(PARTED) {
        return Err(Wrong(shown));
    }
    let recording = report["recordings"][0].as_str().unwrap_or_default();
    for race in report["races"].as_array().into_iter().flatten() {
        let verdict = race["verdict"].as_str().unwrap_or_default();
        *tally.verdicts.entry(verdict.to_string()).or_default() += 1;
        tally.races += 1;
        tally.same += u64::from(race["states"] == "no-state-change");
        if verdict != "k-witness-harmless" || race["occurrences"].as_array().is_none() {
            continue;
        }
        tally.harmless += 1;
        let id = race["id"].to_string();
        let ends = ["recorded", "swapped"].map(|order| {
            deadheat(
                folder,
                &["replay", recording, "--race", &id, "--order", order],
            )
        });
        let [recorded, swapped] = ends;
        // A race that was met under another schedule only cannot be played so.
        if recorded.status.code() == Some(2) && swapped.status.code() == Some(2) {
            continue;
        }
        let says = |out: &Output| (out.status.code(), out.stdout.clone());
        if says(&recorded) != says(&swapped) {
            return Err(Wrong(format!(
                "{shown}\ndeadheat replay {recording} --race {id} --order swapped\n\
                 race {id} is called harmless, and its orders end with {:?} and {:?}:\n{}{}",
                recorded.status.code(),
                swapped.status.code(),
                String::from_utf8_lossy(&recorded.stderr),
                String::from_utf8_lossy(&swapped.stderr),
            )));
        }
    }
    Ok(())
}

#[test]
fn the_same_state_has_the_same_future() {
    let (first, count) = (
        number("DEADHEAT_SAME_STATE_SEED", 1),
        number("DEADHEAT_SAME_STATE_PROGRAMS", FEW),
    );
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("same-state");
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    for seed in first..first + count {
        let folder = root.join(seed.to_string());
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        match try_program(seed, &folder, &mut tally) {
            Ok(()) => drop(std::fs::remove_dir_all(&folder)),
            Err(Wrong(what)) => wrong.push(format!("seed {seed}: {what}")),
        }
    }
    println!(
        "corpus: {count} random racy programs from seed {first}: {} races, {} with equal states, {} \
         harmless, {} wrong",
        tally.races,
        tally.same,
        tally.harmless,
        wrong.len()
    );
    println!("{:?}", tally.verdicts);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(tally.races > 0, "no program raced");
}
