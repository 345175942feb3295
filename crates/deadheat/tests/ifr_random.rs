//! Random multi-threaded programs: every race that the monitors report must be
//! one.
//!
//! A program is a few rounds that all its threads run in the same order, each
//! round one way of sharing: correct ones (locks, flags, fences, barriers,
//! semaphores, conditions, pipes, reference counts, blocks that change hands,
//! bytes side by side, …) and racy ones. The generator knows which variables
//! are safe, so a report about anything else than a variable called `racy_…`
//! fails at once; a report about a racy one must be confirmed by clang's
//! ThreadSanitizer on the same program.
//!
//! Programs are compiled by the batch and run one after another in one process
//! per batch, each with threads of its own: so memory, thread numbers and stacks
//! are used again by the next, which a report must survive as well.
//!
//! `DEADHEAT_IFR_PROGRAMS` sets the number of programs (a small cut without
//! it), `DEADHEAT_IFR_SEED` the first seed, `DEADHEAT_IFR_JOBS` how many batches
//! are looked at together. A failure keeps the source and says the command that
//! repeats it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Programs in one source file and process.
const BATCH: usize = 40;
/// Seconds after which a batch is taken to hang.
const PATIENCE: &str = "300";
const DEFAULT_PROGRAMS: usize = 80;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// Statements that access the structure `v` in some way; `write` allows it to
/// change.
fn operations(random: &mut Random, v: &str, write: bool) -> String {
    let mut code = String::new();
    for _ in 0..1 + random.below(4) {
        let field = random.pick(&["a", "b", "c", "d[1]", "d[5]", "e", "f", "g"]);
        let statement = match (write, random.below(if write { 14 } else { 7 })) {
            (_, 0) => format!("sink += {v}.{field};"),
            (_, 1) => format!("if (r() & 1) sink += {v}.{field}; else sink -= {v}.a;"),
            (_, 2) => format!("for (int i = 0; i < 5; i++) sink += {v}.{field} * i;"),
            (_, 3) => format!("sink += look(&{v});"),
            (_, 4) => format!("{{ struct shared copy = {v}; sink += copy.c; }}"),
            (_, 5) => format!("sink += by_value({v});"),
            (_, 6) => format!("for (int i = 0; i < 8; i++) sink += {v}.d[i];"),
            (_, 7) => format!("{v}.{field} = sink;"),
            (_, 8) => format!("{v}.{field}++;"),
            (_, 9) => format!("if (r() & 1) {v}.{field} = 1; else {v}.{field} = 2;"),
            (_, 10) => format!("for (int i = 0; i < 6; i++) {v}.{field} += i;"),
            (_, 11) => format!("change(&{v}, {});", random.below(4)),
            (_, 12) => format!("memset({v}.d, 7, sizeof {v}.d);"),
            _ => format!("for (int i = 0; i < 8; i++) {v}.d[i] = i;"),
        };
        code.push_str("        ");
        code.push_str(&statement);
        code.push('\n');
    }
    code
}

/// One round: its globals, what each thread does, and set-up before them.
struct Round {
    globals: String,
    body: String,
    set_up: String,
}

fn round(random: &mut Random, id: &str, threads: usize) -> Round {
    let mut globals = String::new();
    let mut body = String::new();
    let mut set_up = String::new();
    let safe = format!("safe_{id}");
    let racy = format!("racy_{id}");
    let times = 1 + random.below(30);
    let others = threads - 1;
    macro_rules! all {
        ($target:ident, $($part:tt)*) => { let _ = writeln!($target, $($part)*); };
    }
    match random.below(22) {
        0 | 1 => {
            all!(
                globals,
                "static struct shared {safe}; static pthread_mutex_t m_{id} = PTHREAD_MUTEX_INITIALIZER;"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ pthread_mutex_lock(&m_{id});\n{}        pthread_mutex_unlock(&m_{id}); }}",
                operations(random, &safe, true)
            );
        }
        2..=4 => {
            all!(globals, "struct shared {racy};");
            let ops = operations(random, &racy, true);
            let more = operations(random, &racy, false);
            all!(
                body,
                "for (int n = 0; n < {}; n++) {{\n{ops}        if (n % 64 == 63) sched_yield();\n        if (t == 0) {{ {more} }} }}",
                times * 40
            );
        }
        5 => {
            all!(
                globals,
                "static struct shared {safe}; static atomic_int flag_{id};"
            );
            all!(
                body,
                "if (t == 0) {{\n{}        atomic_store_explicit(&flag_{id}, 1, memory_order_release); }} else {{ while (!atomic_load_explicit(&flag_{id}, memory_order_acquire)) sched_yield();\n{} }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        6 => {
            all!(
                globals,
                "static struct shared {safe}; static atomic_int flag_{id};"
            );
            all!(
                body,
                "if (t == 0) {{\n{}        atomic_thread_fence(memory_order_release); atomic_store_explicit(&flag_{id}, 1, memory_order_relaxed); }} else {{ while (!atomic_load_explicit(&flag_{id}, memory_order_acquire)) sched_yield();\n{} }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        7 => {
            all!(
                globals,
                "static struct shared {safe}; static pthread_barrier_t b_{id};"
            );
            all!(set_up, "pthread_barrier_init(&b_{id}, 0, {threads});");
            let (first, second) = (random.below(threads), random.below(threads));
            all!(
                body,
                "if (t == {first}) {{\n{} }} pthread_barrier_wait(&b_{id}); if (t == {second}) {{\n{} }} pthread_barrier_wait(&b_{id});\n{}",
                operations(random, &safe, true),
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        8 => {
            all!(globals, "static struct shared {safe}; static sem_t s_{id};");
            all!(set_up, "sem_init(&s_{id}, 0, 0);");
            all!(
                body,
                "if (t == 0) {{\n{}        for (int i = 0; i < {others}; i++) sem_post(&s_{id}); }} else {{ sem_wait(&s_{id});\n{} }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        9 => {
            all!(
                globals,
                "static struct shared {safe}; static int ready_{id}; static pthread_mutex_t m_{id} = PTHREAD_MUTEX_INITIALIZER; static pthread_cond_t c_{id} = PTHREAD_COND_INITIALIZER;"
            );
            all!(
                body,
                "if (t == 0) {{\n{}        pthread_mutex_lock(&m_{id}); ready_{id} = 1; pthread_cond_broadcast(&c_{id}); pthread_mutex_unlock(&m_{id}); }} else {{ pthread_mutex_lock(&m_{id}); while (!ready_{id}) pthread_cond_wait(&c_{id}, &m_{id}); pthread_mutex_unlock(&m_{id});\n{} }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        10 => {
            all!(
                globals,
                "static struct shared {safe}; static pthread_rwlock_t w_{id} = PTHREAD_RWLOCK_INITIALIZER;"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) if ((n + t) % 4 == 0) {{ pthread_rwlock_wrlock(&w_{id});\n{}        pthread_rwlock_unlock(&w_{id}); }} else {{ pthread_rwlock_rdlock(&w_{id});\n{}        pthread_rwlock_unlock(&w_{id}); }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        11 => {
            let kind = random.pick(&["int", "long", "char", "short", "double"]);
            let step = 1 + random.below(3);
            all!(globals, "static {kind} {safe}[{threads} * 300 + 7];");
            all!(
                body,
                "for (int n = 0; n < {times}; n++) for (int i = t * 300; i < t * 300 + 300; i += {step}) {safe}[i] += n;"
            );
        }
        12 => {
            all!(globals, "long {racy}[400];");
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ for (int i = t * 10; i < 200 + t * 10; i++) {racy}[i] += n; if (n % 4 == 3) sched_yield(); }}"
            );
        }
        13 => {
            all!(
                globals,
                "static struct shared {safe}; static int p_{id}[2];"
            );
            all!(set_up, "if (pipe(p_{id})) abort();");
            all!(
                body,
                "if (t == 0) {{ char c = 1;\n{}        for (int i = 0; i < {others}; i++) if (write(p_{id}[1], &c, 1) != 1) abort(); }} else {{ char c; if (read(p_{id}[0], &c, 1) != 1) abort();\n{} }}",
                operations(random, &safe, true),
                operations(random, &safe, false)
            );
        }
        14 => {
            all!(globals, "static _Atomic(struct shared *) slot_{id};");
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ struct shared *mine = calloc(1, sizeof *mine);\n{}        mine = atomic_exchange_explicit(&slot_{id}, mine, memory_order_acq_rel); if (mine) {{\n{}        free(mine); }} if (n % 4 == 0) {{ char *again = malloc(16 + n % 64); memset(again, n, 16); sink += again[3]; free(again); }} }}",
                operations(random, "(*mine)", true),
                operations(random, "(*mine)", true)
            );
        }
        15 => {
            all!(
                globals,
                "static struct shared {safe}; static atomic_int lock_{id};"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ int no = 0; while (!atomic_compare_exchange_weak_explicit(&lock_{id}, &no, 1, memory_order_acquire, memory_order_relaxed)) {{ no = 0; sched_yield(); }}\n{}        atomic_store_explicit(&lock_{id}, 0, memory_order_release); }}",
                operations(random, &safe, true)
            );
        }
        16 => {
            all!(
                globals,
                "static struct shared *obj_{id}; static atomic_int count_{id} = {threads};"
            );
            all!(set_up, "obj_{id} = calloc(1, sizeof *obj_{id});");
            all!(
                body,
                "{{ struct shared *o = obj_{id};\n{}        if (atomic_fetch_sub_explicit(&count_{id}, 1, memory_order_release) == 1) {{ atomic_thread_fence(memory_order_acquire);\n{}        free(o); }} }}",
                operations(random, "(*o)", false),
                operations(random, "(*o)", true)
            );
        }
        17 => {
            all!(
                globals,
                "static struct shared {safe}; static pthread_once_t once_{id} = PTHREAD_ONCE_INIT; static void init_{id}(void) {{ int t = 0; (void)t;\n{} }}",
                operations(random, &safe, true)
            );
            all!(
                body,
                "pthread_once(&once_{id}, init_{id});\n{}",
                operations(random, &safe, false)
            );
        }
        18 => {
            all!(
                globals,
                "static struct {{ unsigned char c[{threads}]; short s[{threads}]; }} {safe};"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ {safe}.c[t]++; {safe}.s[t] = {safe}.c[t]; }}"
            );
        }
        19 => {
            // Each thread has a field of every structure.
            let kind = random.pick(&["int", "char", "short", "long"]);
            let pad = 1 + random.below(9);
            all!(
                globals,
                "static struct {{ {kind} own[{threads}]; char pad[{pad}]; }} {safe}[120];"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) for (int i = 0; i < 120; i++) {safe}[i].own[t] += n + i;"
            );
        }
        20 => {
            all!(
                globals,
                "struct {{ int one; char pad[20]; long two; }} {racy}[90];"
            );
            all!(
                body,
                "for (int n = 0; n < {times}; n++) {{ for (int i = 0; i < 90; i++) {racy}[i].one = n; long sum = 0; for (int i = 0; i < 90; i++) sum += {racy}[i].two; sink += sum; if (n % 4 == 3) sched_yield(); }}"
            );
        }
        _ => {
            all!(
                globals,
                "static void *child_{id}(void *p) {{ struct shared *v = p;\n{}        return 0; }}",
                operations(random, "(*v)", true)
            );
            all!(
                body,
                "{{ struct shared local = {{ 0 }}; pthread_t c;\n{}        if (pthread_create(&c, 0, child_{id}, &local)) abort(); pthread_join(c, 0);\n{} }}",
                operations(random, "local", true),
                operations(random, "local", true)
            );
        }
    }
    Round {
        globals,
        body,
        set_up,
    }
}

const HEAD: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct shared { int a; long b; char c; short d[8]; int e; unsigned char f; double g; };
static __thread long sink;
static __thread unsigned seed = 1;
static unsigned r(void) { seed = seed * 1103515245 + 12345; return seed >> 16; }
static __attribute__((noinline)) long look(const struct shared *s) { return s->a + s->e; }
static __attribute__((noinline)) long by_value(struct shared s) { return s.b + s.f; }
static __attribute__((noinline)) void change(struct shared *s, int how) {
    switch (how) { case 0: s->a = 3; break; case 1: s->b++; s->c = 1; break; case 2: if (s->e) s->e = 0; break; default: s->f ^= 1; }
}
"#;

fn batch(seed: u64, programs: usize) -> String {
    let mut text = String::from(HEAD);
    let mut table = String::new();
    for program in 0..programs {
        let mut random = Random(seed.wrapping_add(program as u64).wrapping_mul(0x9e37_79b9) + 1);
        for _ in 0..3 {
            random.below(2);
        }
        let threads = 2 + random.below(2);
        let rounds: Vec<Round> = (0..1 + random.below(4))
            .map(|index| round(&mut random, &format!("{program}_{index}"), threads))
            .collect();
        for round in &rounds {
            text.push_str(&round.globals);
        }
        let _ = writeln!(
            text,
            "static void *thread_{program}(void *arg) {{ long t = (long)arg; (void)t; seed = t + 1;"
        );
        for round in &rounds {
            let _ = writeln!(text, "    {}", round.body);
        }
        let _ = writeln!(
            text,
            "    return (void *)(sink & 1); }}\nstatic void run_{program}(void) {{ pthread_t h[{threads}];"
        );
        for round in &rounds {
            text.push_str(&round.set_up);
        }
        let _ = writeln!(
            text,
            "    for (long i = 1; i < {threads}; i++) if (pthread_create(&h[i], 0, thread_{program}, (void *)i)) abort();\n    thread_{program}(0);\n    for (int i = 1; i < {threads}; i++) pthread_join(h[i], 0); }}"
        );
        let _ = write!(table, "run_{program}, ");
    }
    let _ = writeln!(
        text,
        "static void (*const all[])(void) = {{ {table} }};\nint main(int n, char **v) {{ if (n > 1) all[atoi(v[1])](); else for (unsigned i = 0; i < sizeof all / sizeof *all; i++) all[i](); return 0; }}"
    );
    text
}

fn compile(program: &str, arguments: &[&str], source: &Path, output: &Path) {
    let result = Command::new(program)
        .args(arguments)
        .args(["-g", "-w", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(output)
        .output()
        .unwrap_or_else(|error| {
            panic!("{program}: {error}; install clang-22 and libclang-rt-22-dev")
        });
    assert!(
        result.status.success(),
        "{program} on {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&result.stderr)
    );
}

/// Runs a batch, or one program of it.
fn run(program: &Path, index: Option<usize>, setting: (&str, &str)) -> Output {
    Command::new("timeout")
        .arg(PATIENCE)
        .arg(program)
        .args(index.map(|index| index.to_string()))
        .env(setting.0, setting.1)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A variable without the way into it.
fn variable(path: &str) -> String {
    path.split(['.', '[', '+']).next().unwrap_or("").to_string()
}

/// Which program of its batch a variable belongs to.
fn program_of(variable: &str) -> Option<usize> {
    variable.split('_').nth(1)?.parse().ok()
}

/// Variables named by the monitors' reports; `?` for memory without a name.
fn reported(program: &Path, json: &Path) -> (BTreeSet<String>, String) {
    let _ = fs::remove_file(json);
    let setting = format!("json={}", json.display());
    let result = run(program, None, ("DEADHEAT_IFR", setting.as_str()));
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(
        matches!(result.status.code(), Some(0 | 66)),
        "{} ended with {}:\n{said}",
        program.display(),
        result.status
    );
    let report: race::Report = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let names = report
        .races
        .iter()
        .map(|race| match &race.place {
            Some(place) => variable(&place.description),
            None => "?".to_string(),
        })
        .collect();
    (names, said)
}

/// Variables that ThreadSanitizer calls racy in one run.
fn confirmed(program: &Path, index: Option<usize>) -> BTreeSet<String> {
    let setting = ("TSAN_OPTIONS", "exitcode=0:history_size=4");
    let result = run(program, index, setting);
    String::from_utf8_lossy(&result.stderr)
        .lines()
        .filter_map(|line| line.split("Location is global '").nth(1))
        .filter_map(|rest| rest.split('\'').next())
        .map(variable)
        .collect()
}

/// Looks at one batch; how many programs had reports, on how many variables.
fn look_at(seed: u64, count: usize, level: &str, folder: &Path) -> (usize, usize) {
    let file = |kind: &str| folder.join(format!("batch-{seed}.{kind}"));
    let (source, ours, theirs, json) = (file("c"), file("ifr"), file("tsan"), file("json"));
    fs::write(&source, batch(seed, count)).unwrap();
    compile(
        env!("CARGO_BIN_EXE_deadheat"),
        &["cc", level],
        &source,
        &ours,
    );
    let (names, said) = reported(&ours, &json);
    let repeat = format!(
        "repeat with: deadheat cc {level} -g -pthread {} -o prog && ./prog\n{said}",
        source.display()
    );
    for name in &names {
        assert!(
            name.starts_with("racy_"),
            "a false report, on {name}\n{repeat}"
        );
    }
    let programs: BTreeSet<_> = names.iter().filter_map(|name| program_of(name)).collect();
    let variables = names.len();
    if !names.is_empty() {
        // Not optimised: an access that this level keeps (`x += 0`) must not be
        // gone from the build that confirms it.
        compile("clang-22", &["-fsanitize=thread", "-O0"], &source, &theirs);
        let mut missing = names;
        for name in confirmed(&theirs, None) {
            missing.remove(&name);
        }
        // What one run does not show, another schedule may.
        for _ in 0..30 {
            let Some(index) = missing.first().and_then(|name| program_of(name)) else {
                break;
            };
            for name in confirmed(&theirs, Some(index)) {
                missing.remove(&name);
            }
        }
        assert!(
            missing.is_empty(),
            "ThreadSanitizer does not confirm {missing:?}\n{repeat}"
        );
    }
    for file in [&source, &ours, &theirs, &json] {
        let _ = fs::remove_file(file);
    }
    (programs.len(), variables)
}

#[test]
fn every_report_on_random_programs_is_confirmed() {
    let number = |name: &str, default: usize| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let programs = number("DEADHEAT_IFR_PROGRAMS", DEFAULT_PROGRAMS);
    let first = number("DEADHEAT_IFR_SEED", 1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = number("DEADHEAT_IFR_JOBS", cores).max(1);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ifr-random");
    fs::create_dir_all(&folder).unwrap();
    let next = AtomicUsize::new(0);
    let (racy, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let done = next.fetch_add(BATCH, Ordering::Relaxed);
                    if done >= programs {
                        break;
                    }
                    let level = ["-O2", "-O1", "-O3", "-O0", "-Os"][(first + done) / BATCH % 5];
                    let count = BATCH.min(programs - done);
                    let (with, variables) = look_at((first + done) as u64, count, level, &folder);
                    seen.fetch_add(with, Ordering::Relaxed);
                    racy.fetch_add(variables, Ordering::Relaxed);
                }
            });
        }
    });
    let (seen, racy) = (seen.into_inner(), racy.into_inner());
    println!(
        "corpus: {programs} programs from seed {first}, {seen} with reports, {racy} racy variables, all confirmed"
    );
    assert!(seen > 0 || programs < 20, "no race was found at all");
}
