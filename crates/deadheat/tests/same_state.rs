//! Random racy programs: "the same state" must mean the same future, and no
//! order that crashes may be called harmless.
//!
//! A program has two or three threads, each a few statements that share
//! variables, blocks of the heap, mappings, descriptors (pipe, event counter,
//! timer, file, epoll set), futexes, condition variables, semaphores, signals
//! and time. Of each program is asked:
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

/// One statement of a thread. Whatever may wait has a time-out or does not block.
fn statement(random: &mut Random) -> String {
    match random.below(5) {
        0 | 1 => of_memory(random),
        2 => of_blocks(random),
        3 => of_descriptors(random),
        _ => of_waits_and_signals(random),
    }
}

/// Variables, pointers, indices, divisors.
fn of_memory(random: &mut Random) -> String {
    let small = random.below(5);
    match random.below(20) {
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
        11 => format!("flag = {};", small % 2),
        12 => "if (flag) count = 0;".into(),
        13 => "printf(\"%ld\\n\", count);".into(),
        14 => "low = count; high = count;".into(),
        15 => "assert(low <= high);".into(),
        16 => "{ pthread_mutex_lock(&lock); count += 2; pthread_mutex_unlock(&lock); }".into(),
        // What the stack held before, and what the flags say.
        17 => "{ volatile int old[8]; sink += old[3] & 1; }".into(),
        18 => "sink += __builtin_ia32_rdtsc() >> 12 & 1;".into(),
        _ => format!("for (volatile int i = 0; i < {}; i++);", 40 * small),
    }
}

/// The heap and mappings.
fn of_blocks(random: &mut Random) -> String {
    let small = random.below(5);
    match random.below(12) {
        0 => "{ char *own = block; block = 0; free(own); }".into(),
        1 => "if (block) block[0] = 1;".into(),
        2 => "{ char *new = malloc(24); new[0] = 2; block = new; }".into(),
        3 => format!("{{ char *new = malloc({}); free(new); }}", 16 << small),
        4 => format!("other = malloc({});", 24 << small),
        5 => "{ char *own = other; other = block; block = own; }".into(),
        6 => "block = realloc(block, 24 + 100 * flag);".into(),
        7 => "{ long *new = malloc(24); sink += new[1] & 1; free(new); }".into(),
        8 => "area = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);"
            .into(),
        9 => "{ char *own = area; area = 0; if (own) munmap(own, 4096); }".into(),
        10 => "if (area) area[8]++;".into(),
        _ => "if (area) mprotect(area, 4096, flag ? PROT_READ : PROT_READ | PROT_WRITE);".into(),
    }
}

/// Pipes, event counters, timers, files, and their numbers.
fn of_descriptors(random: &mut Random) -> String {
    let small = random.below(5);
    match random.below(22) {
        0 => "if (write(ends[1], &count, 1) != 1) abort();".into(),
        1 => "read(ends[0], &flag, 1);".into(),
        2 => "{ char c; if (read(ends[0], &c, 1) == 1) sink += c; }".into(),
        3 => "{ long one = count + 1; write(event, &one, 8); }".into(),
        4 => "read(event, &count, 8);".into(),
        5 => "{ long all; if (read(event, &all, 8) == 8) sink += all; }".into(),
        6 => "extra = dup(ends[1]);".into(),
        7 => "{ close(extra); extra = -1; }".into(),
        8 => "write(extra, \"x\", 1);".into(),
        9 => "write(file, &count, sizeof count);".into(),
        10 => "lseek(file, flag, SEEK_SET);".into(),
        11 => "read(file, &high, sizeof high);".into(),
        12 => "ftruncate(file, count);".into(),
        13 => "fcntl(event, F_SETFD, flag);".into(),
        14 => format!("set_timer({});", 500 << small),
        15 => "set_timer(count);".into(),
        16 => "{ long times; if (read(timer, &times, 8) == 8) sink += times; }".into(),
        17 => "epoll_ctl(set, EPOLL_CTL_ADD, event, &(struct epoll_event){ EPOLLIN });".into(),
        18 => "epoll_ctl(set, EPOLL_CTL_DEL, event, 0);".into(),
        19 => "{ struct epoll_event got; sink += epoll_wait(set, &got, 1, 0); }".into(),
        20 => {
            "{ struct pollfd asked = { ends[0], POLLIN }; sink += poll(&asked, 1, flag); }".into()
        }
        _ => "prctl(PR_SET_NAME, flag ? \"one\" : \"two\");".into(),
    }
}

/// Futexes, condition variables, signals, time.
fn of_waits_and_signals(random: &mut Random) -> String {
    let small = random.below(5);
    match random.below(20) {
        0 => format!("wait_for_word({}, {});", small % 2, 1000 << small),
        1 => "{ word = 1; syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1); }".into(),
        2 => "word = 0;".into(),
        3 => format!("wait_for_condition({});", 1000 << small),
        4 => "pthread_cond_signal(&condition);".into(),
        5 => "{ pthread_mutex_lock(&lock); flag = 1; pthread_cond_broadcast(&condition); \
              pthread_mutex_unlock(&lock); }"
            .into(),
        6 => "sem_post(&posts);".into(),
        7 => "if (sem_trywait(&posts) == 0) sink++;".into(),
        8 => "{ int value; sem_getvalue(&posts, &value); sink += value; }".into(),
        9 => "raise(SIGUSR1);".into(),
        10 => "kill(getpid(), SIGUSR1);".into(),
        11 => "mask(flag ? SIG_BLOCK : SIG_UNBLOCK);".into(),
        12 => "mask(SIG_UNBLOCK);".into(),
        13 => "{ sigset_t waiting; sigpending(&waiting); \
               sink += sigismember(&waiting, SIGUSR1); }"
            .into(),
        14 => "signal(SIGUSR1, flag ? SIG_IGN : handler);".into(),
        15 => "setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 1 + flag } }, 0);".into(),
        16 => format!("usleep({small});"),
        17 => "sched_yield();".into(),
        18 => "{ struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now); \
               sink += now.tv_nsec >> 10 & 1; }"
            .into(),
        _ => "seen++;".into(),
    }
}

/// What every program begins with.
const PROLOGUE: &str = r#"#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>
int z = 1, *p = &z, table[4], divisor = 1, flag, word, seen;
int ends[2], event, timer, file, set, extra = -1;
unsigned at;
long count, low, high, sink;
char *block, *other, *area;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
sem_t posts;
static void handler(int number) { seen++; }
static void mask(int how) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(how, &one, 0);
}
static void set_timer(long nanoseconds) {
    struct itimerspec when = { { 0, 0 }, { 0, nanoseconds & 0xfffff } };
    timerfd_settime(timer, 0, &when, 0);
}
static void wait_for_word(int value, long nanoseconds) {
    struct timespec time = { 0, nanoseconds };
    sink += syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &time);
}
static void wait_for_condition(long nanoseconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += nanoseconds;
    pthread_mutex_lock(&lock);
    if (!flag) sink += pthread_cond_timedwait(&condition, &lock, &until) != 0;
    pthread_mutex_unlock(&lock);
}
"#;

/// What every program ends with: all that can be seen of its state.
const EPILOGUE: &str = r#"    char name[16] = "", rest[64];
    long events = 0;
    prctl(PR_GET_NAME, name);
    read(event, &events, 8);
    long length = read(ends[0], rest, sizeof rest);
    printf("%ld %ld %d %d %d %d\n", count, sink, table[0], flag, word, seen);
    printf("%s %ld %ld %ld\n", name, events, length, (long)lseek(file, 0, SEEK_CUR));
    return 0;
}
"#;

fn source(seed: u64) -> String {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let threads = 2 + random.below(2);
    let mut text = PROLOGUE.to_string();
    for thread in 0..threads {
        let _ = writeln!(text, "static void *thread_{thread}(void *unused) {{");
        for _ in 0..2 + random.below(6) {
            let _ = writeln!(text, "    {}", statement(&mut random));
        }
        text.push_str("    return unused;\n}\n");
    }
    text.push_str(
        "int main(void) {\n    pthread_t t[3];\n    if (pipe2(ends, O_NONBLOCK)) return 1;\n    \
         event = eventfd(0, EFD_NONBLOCK);\n    \
         timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);\n    \
         file = memfd_create(\"file\", 0);\n    set = epoll_create1(0);\n    \
         sem_init(&posts, 0, 0);\n    signal(SIGUSR1, handler);\n    \
         signal(SIGALRM, handler);\n    block = malloc(24);\n",
    );
    for thread in 0..threads {
        let _ = writeln!(
            text,
            "    pthread_create(&t[{thread}], 0, thread_{thread}, 0);"
        );
    }
    for thread in 0..threads {
        let _ = writeln!(text, "    pthread_join(t[{thread}], 0);");
    }
    text.push_str(EPILOGUE);
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
    /// Harmless ones of which something differs that is another race's doing.
    elsewhere: u64,
    /// Pairs that left equal states and were run on.
    equal: u64,
    verdicts: BTreeMap<String, u64>,
}

/// Of how many occurrences a piece of evidence says that both orders left the same
/// state.
fn equal_states(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(" occurrences both orders leave the same state")?;
    let (_, numbers) = before.rsplit_once("; in ")?;
    numbers.split_once(" of ")?.0.parse().ok()
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
    let record = format!("record --seed {seed} --quantum 60 -o recording -- ./program");
    let classify = "classify --audit --k 4 --schedules 1 --pre-schedules 0 --post-schedules 0 \
                    --json=report.json recording";
    let run = |words: &str| deadheat(folder, &words.split_whitespace().collect::<Vec<_>>());
    let shown = format!(
        "cd {} && deadheat {record} && deadheat {classify}",
        folder.display()
    );
    let (recorded, classified) = (run(&record), run(classify));
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap_or_default();
    let report: Value = serde_json::from_str(&text)
        .map_err(|_| Wrong(format!("no report: {shown}\n{recorded:?}\n{classified:?}")))?;
    if text.contains(PARTED) {
        return Err(Wrong(shown));
    }
    for race in report["races"].as_array().into_iter().flatten() {
        let verdict = race["verdict"].as_str().unwrap_or_default();
        *tally.verdicts.entry(verdict.to_string()).or_default() += 1;
        tally.races += 1;
        tally.same += u64::from(race["states"] == "no-state-change");
        tally.equal += race["evidence"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|evidence| equal_states(evidence["text"].as_str()?))
            .sum::<u64>();
        if verdict != "k-witness-harmless" || race["occurrences"].as_array().is_none() {
            continue;
        }
        tally.harmless += 1;
        let told = race["explanation"].as_str().unwrap_or_default();
        // What it prints of the time, and what another race does in the other order,
        // is no doing of this one: only how it ends is compared.
        let differs_elsewhere = told.contains("were left out") || told.contains("another race");
        if told.contains("another race") {
            tally.elsewhere += 1;
            continue;
        }
        let id = race["id"].to_string();
        let ends = ["recorded", "swapped"].map(|order| {
            deadheat(
                folder,
                &[
                    "replay",
                    "recording",
                    "--report",
                    "report.json",
                    "--race",
                    &id,
                    "--order",
                    order,
                ],
            )
        });
        let [recorded, swapped] = ends;
        // A race that was met under another schedule only cannot be played so.
        if recorded.status.code() == Some(2) && swapped.status.code() == Some(2) {
            continue;
        }
        let says = |out: &Output| {
            let written = (!differs_elsewhere).then(|| out.stdout.clone());
            (out.status.code(), written)
        };
        if says(&recorded) != says(&swapped) {
            return Err(Wrong(format!(
                "{shown} && deadheat replay recording --report report.json --race {id} --order \
                 swapped\n\
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
         pairs run on from equal states, {} harmless, {} wrong",
        tally.races,
        tally.same,
        tally.equal,
        tally.harmless,
        wrong.len()
    );
    println!("{:?}, {} differ elsewhere", tally.verdicts, tally.elsewhere);
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(tally.races > 0, "no program raced");
}
