//! The annotated programs of `tests/programs/classes`: what `deadheat classify`
//! says each race can do must be what its source says, whatever the seed.
//!
//! A line that takes part in a race carries `// RACE name: verdict` or
//! `// RACE name: verdict consequence` (or `consequence|consequence`). A race
//! whose lines share a name must get that answer under every seed; of several
//! names the one that is on just these lines is meant, or the one that is called like
//! the variable. Every name must be seen under some seed; other races are not allowed. A verdict with evidence must be seen again
//! when its evidence is replayed, and exported evidence must show it as well.
//!
//! `make test` tries each program under one of two seeds; the ignored test all
//! under ten.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Verdict and consequence by the name of a race.
type Answers = BTreeMap<String, (String, Option<String>)>;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/classes")
}

/// Names by line, and what is expected of each.
fn expectations(source: &Path) -> (BTreeMap<u64, BTreeSet<String>>, Answers) {
    let text = std::fs::read_to_string(source).expect("the program can be read");
    let (mut lines, mut answers) = (BTreeMap::new(), Answers::new());
    for (number, line) in (1..).zip(text.lines()) {
        for note in line.split("RACE ").skip(1) {
            let (name, rest) = note.split_once(':').expect("`RACE name: verdict`");
            let mut words = rest.split_whitespace();
            let verdict = words.next().expect("a verdict").to_string();
            let consequence = words.next().map(str::to_string);
            let names: &mut BTreeSet<String> = lines.entry(number).or_default();
            names.insert(name.to_string());
            answers.insert(name.to_string(), (verdict, consequence));
        }
    }
    assert!(!answers.is_empty(), "{} says nothing", source.display());
    (lines, answers)
}

fn deadheat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .output()
        .expect("deadheat runs")
}

/// How long a program of the set may run that does not hang, at the very
/// most: they take milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Records the program; false if it did not end (what its races do happened in
/// the recorded run itself).
fn record(program: &str, at: &str, seed: u64, quantum: &str) -> bool {
    let _ = std::fs::remove_dir_all(at);
    let mut child = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["record", "-o", at, "--seed", &seed.to_string()])
        .args(["--quantum", quantum, "--", program])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("deadheat runs");
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
        {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// The report of one seed; the recording stays at `at`.
fn classify(program: &Path, at: &Path, seed: u64) -> Result<serde_json::Value, String> {
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    let seed_text = seed.to_string();
    // Short slices and long ones: other primaries.
    let quantum = if seed.is_multiple_of(2) {
        "2000"
    } else {
        "150"
    };
    // What can happen after a run that ended is asked: of one that hung
    // another is made.
    if !(0..5).any(|more| record(&program, &at, seed + 100 * more, quantum)) {
        return Err("no recorded run ended".into());
    }
    let output = deadheat(&[
        "classify",
        "--no-store",
        "--json",
        "--explore-seed",
        &seed_text,
        &at,
    ]);
    serde_json::from_slice(&output.stdout).map_err(|error| {
        format!(
            "no report: {error}; {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// The line of the call that chose the object, where the access is in a helper.
fn line_of(access: &serde_json::Value, source: &Path) -> Option<u64> {
    let caller = &access["caller"];
    if let (Some(file), Some(line)) = (caller["file"].as_str(), caller["line"].as_u64())
        && Path::new(file).file_name() == source.file_name()
    {
        return Some(line);
    }
    access["stack"].as_array()?.iter().find_map(|frame| {
        let path = Path::new(frame["file"].as_str()?);
        (path.file_name() == source.file_name())
            .then(|| frame["line"].as_u64())
            .flatten()
    })
}

/// What is wrong with the answers of one seed; the names that were seen.
fn judge(source: &Path, program: &Path, at: &Path, seed: u64) -> Result<BTreeSet<String>, String> {
    let (lines, answers) = expectations(source);
    let report = classify(program, at, seed)?;
    let mut seen = BTreeSet::new();
    for race in report["races"].as_array().into_iter().flatten() {
        let pair = [0, 1].map(|side| line_of(&race["accesses"][side], source));
        let names = |line: Option<u64>| line.and_then(|line| lines.get(&line)).cloned();
        let (one, other) = (
            names(pair[0]).unwrap_or_default(),
            names(pair[1]).unwrap_or_default(),
        );
        let mut common: Vec<&String> = one.intersection(&other).collect();
        let own: BTreeSet<u64> = pair.iter().flatten().copied().collect();
        let just_these = |name: &&String| {
            let marked = lines.iter().filter(|(_, names)| names.contains(*name));
            marked.map(|(line, _)| *line).collect::<BTreeSet<u64>>() == own
        };
        if common.iter().any(just_these) {
            common.retain(just_these);
        }
        // Two variables on one line.
        let is_object = |name: &&String| race["object"]["whole"] == name.as_str();
        if common.iter().any(is_object) {
            common.retain(is_object);
        }
        if common.is_empty() {
            return Err(format!("lines {pair:?} were reported"));
        }
        let right = |name: &&&String| {
            let (verdict, consequence) = &answers[**name];
            let seen = race["consequence"].as_str();
            race["verdict"] == verdict.as_str()
                && match consequence {
                    Some(any) => seen.is_some_and(|seen| any.split('|').any(|one| one == seen)),
                    None => seen.is_none(),
                }
        };
        let Some(name) = common.iter().find(right) else {
            return Err(format!(
                "{common:?} at lines {pair:?}: {} {} instead of {:?}: {}\n      {}",
                race["verdict"],
                race["consequence"],
                answers.get(common[0]),
                race["explanation"],
                race["evidence"]
            ));
        };
        let verdict = &answers[*name].0;
        let has_evidence = ["spec-violated", "output-differs"].contains(&verdict.as_str());
        if has_evidence {
            replay_evidence(race, at)?;
        } else if race["explanation"].as_str().is_none_or(str::is_empty) {
            return Err(format!("{name} is not explained"));
        }
        seen.insert(name.to_string());
    }
    Ok(seen)
}

/// The evidence of a race shows the same thing again, each time.
fn replay_evidence(race: &serde_json::Value, at: &Path) -> Result<(), String> {
    let number = race["replay"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|command| command.as_str()?.split_once("--evidence "))
        .map(|(_, number)| number.to_string())
        .next()
        .ok_or("there is no evidence to replay")?;
    let mut texts = BTreeSet::new();
    for _ in 0..2 {
        let output = deadheat(&["replay", &at.to_string_lossy(), "--evidence", &number]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() != Some(66) {
            return Err(format!("evidence {number} is not seen again: {text}"));
        }
        texts.insert(text);
    }
    if texts.len() == 1 {
        Ok(())
    } else {
        Err(format!(
            "evidence {number} is not the same twice: {texts:?}"
        ))
    }
}

fn build(source: &Path, folder: &Path) -> PathBuf {
    let stem = source.file_stem().unwrap_or_default();
    let program = folder.join(stem);
    let compiled = Command::new("gcc")
        .args(["-g", "-O0", "-pthread", "-o"])
        .args([&program, source])
        .output()
        .expect("gcc runs");
    assert!(
        compiled.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

/// `seeds_of` says which seeds the program with this number is tried under;
/// `thorough` asks that every race is met under one of them.
fn check(name: &str, thorough: bool, seeds_of: impl Fn(u64) -> Range<u64> + Sync) {
    let only = std::env::var("DEADHEAT_TEST_ONLY").ok();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("classes-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .filter(|path| {
            only.as_ref()
                .is_none_or(|only| path.to_string_lossy().contains(only.as_str()))
        })
        .collect();
    sources.sort();
    assert!(!sources.is_empty(), "no program was found");
    let next = AtomicUsize::new(0);
    let runs = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(source) = sources.get(number) else {
                        break;
                    };
                    let program = build(source, &folder);
                    let at = program.with_extension("recording");
                    let mut problems = Vec::new();
                    let mut seen = BTreeSet::new();
                    for seed in seeds_of(number as u64) {
                        runs.fetch_add(1, Ordering::Relaxed);
                        match judge(source, &program, &at, seed) {
                            Ok(names) => seen.extend(names),
                            Err(problem) => problems.push(format!("seed {seed}: {problem}")),
                        }
                    }
                    let (_, answers) = expectations(source);
                    let missing: Vec<_> = answers
                        .keys()
                        .filter(|name| !seen.contains(*name))
                        .collect();
                    // A few seeds need not meet every race.
                    if problems.is_empty() && !missing.is_empty() && thorough {
                        problems.push(format!("{missing:?} were never reported"));
                    }
                    if !problems.is_empty()
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(format!(
                            "{}:\n    {}\n    deadheat run -- {}",
                            source.display(),
                            problems.join("\n    "),
                            program.display()
                        ));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no test thread panicked");
    println!(
        "corpus: {} programs, {} runs under seeds of their own; {} programs with a wrong answer",
        sources.len(),
        runs.into_inner(),
        failures.len()
    );
    assert!(
        failures.is_empty(),
        "{} of {} programs failed:\n{}",
        failures.len(),
        sources.len(),
        failures.join("\n")
    );
}

/// A lock that the detector is told to forget makes false reports; exploration
/// sees that they have one order (paper 003, section 6.2).
#[test]
fn a_forgotten_lock_ends_as_single_ordering() {
    const SOURCE: &str = r#"
        #include <pthread.h>
        #include <semaphore.h>
        #include <stdio.h>
        sem_t filled;
        int data;
        void *producer(void *unused) { data = 42; sem_post(&filled); return 0; }
        void *consumer(void *unused) { sem_wait(&filled); data++; return 0; }
        int main(void) {
            pthread_t one, two;
            sem_init(&filled, 0, 0);
            pthread_create(&one, 0, producer, 0);
            pthread_create(&two, 0, consumer, 0);
            pthread_join(one, 0);
            pthread_join(two, 0);
            printf("%d\n", data);
            return 0;
        }
    "#;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("classes-forgotten");
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let source = folder.join("forgotten.c");
    std::fs::write(&source, SOURCE).expect("the folder can be written");
    let program = build(&source, &folder);
    let at = folder.join("recording");
    let _ = std::fs::remove_dir_all(&at);
    let (program, at) = (program.to_string_lossy(), at.to_string_lossy());
    deadheat(&["record", "-o", &at, "--", &program]);
    let races = |more: &[&str]| {
        let output = deadheat(&[&["classify", "--no-store", "--json", &at], more].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        report["races"].as_array().cloned().unwrap_or_default()
    };
    assert!(races(&[]).is_empty(), "the semaphore orders the accesses");
    let false_reports = races(&["--forget-sync", "sem_post", "--forget-sync", "sem_wait"]);
    assert!(!false_reports.is_empty(), "nothing orders them any more");
    for race in false_reports {
        assert_eq!(race["verdict"], "single-ordering", "{race:#}");
    }
}

/// An exported reproduction needs nothing but itself.
#[test]
fn exported_evidence_shows_it_again() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("classes-exported");
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let program = build(&programs().join("crash_null.c"), &folder);
    let (at, to) = (folder.join("recording"), folder.join("export"));
    let _ = std::fs::remove_dir_all(&to);
    let report = classify(&program, &at, 0).expect("a report");
    assert_eq!(report["races"][0]["verdict"], "spec-violated");
    let exported = deadheat(&[
        "export",
        "1",
        &to.to_string_lossy(),
        "--recording",
        &at.to_string_lossy(),
    ]);
    assert!(
        exported.status.success(),
        "{}",
        String::from_utf8_lossy(&exported.stderr)
    );
    std::fs::remove_dir_all(&at).expect("the recording can be removed");
    std::fs::remove_file(&program).expect("the program can be removed");
    let again = Command::new(to.join("reproduce"))
        .output()
        .expect("the script runs");
    let text = String::from_utf8_lossy(&again.stdout);
    assert_eq!(again.status.code(), Some(66), "{text}");
    assert!(text.contains("SIGSEGV"), "{text}");
}

/// Writes and builds a program, and records one run of it.
fn recorded(name: &str, source: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("classes-{name}"));
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let file = folder.join(format!("{name}.c"));
    std::fs::write(&file, source).expect("the folder can be written");
    let program = build(&file, &folder);
    let at = folder.join("recording");
    let ended = record(&program.to_string_lossy(), &at.to_string_lossy(), 0, "2000");
    assert!(ended, "{name} does not end");
    (program, at)
}

fn races_of(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = deadheat(arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    report["races"].as_array().cloned().unwrap_or_default()
}

/// What the reader does with a raced flag was decided before the race, by a
/// thread that comes too late in the recorded run.
const DECIDED_BEFORE: &str = r#"
    #include <assert.h>
    #include <pthread.h>
    #include <stdio.h>
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int strict, flag;
    void *reader(void *unused) {
        pthread_mutex_lock(&lock);
        int checks = strict;
        pthread_mutex_unlock(&lock);
        int seen = flag;
        if (checks) assert(!seen);
        return 0;
    }
    void *writer(void *unused) { flag = 1; return 0; }
    void *judge(void *unused) {
        pthread_mutex_lock(&lock);
        strict = 1;
        pthread_mutex_unlock(&lock);
        return 0;
    }
    int main(void) {
        pthread_t one, two, three;
        pthread_create(&one, 0, reader, 0);
        pthread_create(&two, 0, writer, 0);
        pthread_create(&three, 0, judge, 0);
        pthread_join(one, 0);
        pthread_join(two, 0);
        pthread_join(three, 0);
        printf("done\n");
        return 0;
    }
"#;

#[test]
fn another_schedule_up_to_the_race_shows_what_the_recorded_one_cannot() {
    let (_, at) = recorded("decided_before", DECIDED_BEFORE);
    let at = at.to_string_lossy();
    let with = |number: &str| {
        let races = races_of(&[
            "classify",
            "--no-store",
            "--json",
            "--pre-schedules",
            number,
            &at,
        ]);
        assert_eq!(races.len(), 1, "{races:#?}");
        races[0].clone()
    };
    assert_eq!(with("0")["verdict"], "k-witness-harmless");
    let race = with("8");
    assert_eq!(race["verdict"], "spec-violated", "{race:#}");
    assert_eq!(race["consequence"], "assert");
    replay_evidence(&race, Path::new(&*at)).unwrap_or_else(|problem| panic!("{problem}"));
}

/// The second race is there only if the other thread comes first.
const HIDDEN: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    int done, sum;
    void *one(void *unused) { done = 1; sum += 1; return 0; }
    void *other(void *unused) { if (!done) sum += 10; return 0; }
    int main(void) {
        pthread_t first, second;
        pthread_create(&first, 0, one, 0);
        pthread_create(&second, 0, other, 0);
        pthread_join(first, 0);
        pthread_join(second, 0);
        printf("ended\n");
        return 0;
    }
"#;

#[test]
fn races_met_on_the_way_are_classified_as_well() {
    let (_, at) = recorded("hidden", HIDDEN);
    let at = at.to_string_lossy();
    let with = |before: &str, after: &str| {
        races_of(&[
            "classify",
            "--no-store",
            "--json",
            "--pre-schedules",
            before,
            "--post-schedules",
            after,
            &at,
        ])
    };
    assert_eq!(with("0", "0").len(), 1);
    // Under another schedule, and after the first race was swapped.
    for (before, after) in [("8", "0"), ("0", "1")] {
        let races = with(before, after);
        assert!(races.len() > 1, "{before} {after}: {races:#?}");
        for race in races {
            assert_eq!(race["verdict"], "k-witness-harmless", "{race:#}");
        }
    }
}

/// Harmful with one argument only (paper 003, figure 6).
const BY_ARGUMENT: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <string.h>
    #define SLOTS 4
    int use_table, id = SLOTS - 1;
    long *slots[SLOTS + 1], storage, table[64];
    void *count(void *unused) { id = SLOTS; return 0; }
    void *update(void *unused) {
        int now = id;
        if (use_table) table[now] = 1; else *slots[now] = 1;
        return 0;
    }
    int main(int count_of, char **words) {
        pthread_t one, two;
        use_table = count_of < 2 || strcmp(words[1], "--no-hash table");
        for (int i = 0; i < SLOTS; i++) slots[i] = &storage;
        pthread_create(&two, 0, update, 0);
        pthread_create(&one, 0, count, 0);
        pthread_join(one, 0);
        pthread_join(two, 0);
        printf("stored\n");
        return 0;
    }
"#;

#[test]
fn another_argument_vector_shows_what_the_first_cannot() {
    let (program, at) = recorded("by_argument", BY_ARGUMENT);
    let _ = std::fs::remove_dir_all(&at);
    let inputs = program.with_file_name("inputs.args");
    std::fs::write(&inputs, "# the other table\n'--no-hash table'\n").expect("a file");
    let (program, inputs) = (program.to_string_lossy(), inputs.to_string_lossy());
    let with = |more: &[&str]| {
        let _ = std::fs::remove_dir_all(&at);
        let at = at.to_string_lossy();
        let json = program.to_string() + ".json";
        let options = ["run", "--no-store", "--output", &at];
        let file = format!("--json={json}");
        let all = [&options, more, &[&file, "--", &program]].concat();
        deadheat(&all);
        let text = std::fs::read(&json).expect("a report");
        let report: serde_json::Value = serde_json::from_slice(&text).expect("a report");
        report["races"][0].clone()
    };
    assert_eq!(with(&[])["verdict"], "k-witness-harmless");
    let race = with(&["--input", &inputs]);
    assert_eq!(race["verdict"], "spec-violated", "{race:#}");
    assert_eq!(race["consequence"], "crash");
    // The same from a recording of the first run: the other run is recorded
    // once and found again.
    let _ = std::fs::remove_dir_all(&at);
    assert!(record(&program, &at.to_string_lossy(), 0, "2000"));
    let at = at.to_string_lossy();
    for _ in 0..2 {
        let races = races_of(&["classify", "--no-store", "--json", "--input", &inputs, &at]);
        assert_eq!(races[0]["verdict"], "spec-violated", "{races:#?}");
        let kept = std::fs::read_dir(Path::new(&*at).join("inputs"));
        assert_eq!(kept.expect("a folder of inputs").count(), 1);
    }
}

/// gdb stands at the race point of a piece of evidence and runs into the very
/// crash.
#[test]
fn evidence_in_gdb_comes_to_the_same_crash() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("classes-gdb");
    std::fs::create_dir_all(&folder).expect("a folder for the program");
    let program = build(&programs().join("index_overflow.c"), &folder);
    let at = folder.join("recording");
    let report = classify(&program, &at, 0).expect("a report");
    assert_eq!(report["races"][0]["consequence"], "crash");
    let target = format!(
        "target remote | {} replay {} --evidence 1 --gdb=-",
        env!("CARGO_BIN_EXE_deadheat"),
        at.display()
    );
    let output = Command::new("gdb")
        .args(["-q", "-nx", "-batch", "-ex", "set confirm off"])
        .args(["-ex", "set debuginfod enabled off", "-ex", &target])
        .args(["-ex", "print id", "-ex", "continue"])
        .args(["-ex", "backtrace", "-ex", "print slot"])
        .args(["-ex", "reverse-stepi", "-ex", "print id"])
        .arg(&program)
        .output()
        .expect("gdb is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut rest: &str = &text;
    for piece in ["= 3", "SIGSEGV", "store (", "= (long *) 0x0", "= 4"] {
        let at = rest.find(piece);
        let at = at.unwrap_or_else(|| panic!("`{piece}` is missing or out of order in:\n{text}"));
        rest = &rest[at + piece.len()..];
    }
}

#[test]
fn every_race_gets_the_answer_its_source_says() {
    check("cut", false, |number| number % 2..number % 2 + 1);
}

#[test]
#[ignore = "ten seeds of every program; part of `make test-all`"]
fn every_race_gets_the_same_answer_under_ten_seeds() {
    check("ten", true, |_| 0..10);
}
