//! The programs of `tests/programs/objects`: what their races are on, how they
//! are told apart, and that their fingerprints stay.
//!
//! A line that takes part in a race carries `// RACE name`: the line of the call
//! that chose the object, where the access is in a helper. `// ON name: object`
//! says what the race is on; ` from function` follows for heap memory. Every name
//! must be seen under some seed, each with just this object, and nothing else
//! may be. `// CAUSES n`: no run has more causes, and one has so many.
//! `// ANYTHING` leaves out the names. `// LIBRARY file.c` is built as a shared
//! library.
//!
//! Each program is built twice: as it is, and in another folder with lines put
//! before it. What is told apart by lines, callers and object has one
//! fingerprint in all runs of both, and nothing else has it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Schedules tried until every race of a program has been seen.
const SEEDS: u64 = 8;

/// Lines put before the second build.
const MOVED: u64 = 23;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/objects")
}

struct Source {
    path: PathBuf,
    /// Names by line; lines of a library are told apart by file.
    lines: BTreeMap<(String, u64), BTreeSet<String>>,
    objects: BTreeMap<String, String>,
    causes: Option<usize>,
    anything: bool,
    library: Option<PathBuf>,
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().expect("a file has a name");
    name.to_string_lossy().into_owned()
}

fn read(path: &Path) -> Source {
    let text = std::fs::read_to_string(path).expect("the program can be read");
    let said = |what: &str| -> Vec<String> {
        let prefix = format!("// {what}");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        lines.map(|rest| rest.trim().to_string()).collect()
    };
    let library = said("LIBRARY").pop().map(|name| programs().join(name));
    let mut lines: BTreeMap<(String, u64), BTreeSet<String>> = BTreeMap::new();
    for file in [Some(path), library.as_deref()].into_iter().flatten() {
        let text = std::fs::read_to_string(file).expect("the source can be read");
        for (number, line) in (1..).zip(text.lines()) {
            for name in line.split("RACE ").skip(1) {
                let name = name.split_whitespace().next().expect("`RACE name`");
                let names = lines.entry((file_name(file), number)).or_default();
                names.insert(name.to_string());
            }
        }
    }
    Source {
        lines,
        objects: said("ON ")
            .iter()
            .map(|rest| rest.split_once(": ").expect("`ON name: object`"))
            .map(|(name, object)| (name.to_string(), object.to_string()))
            .collect(),
        causes: said("CAUSES")
            .pop()
            .map(|number| number.parse().expect("a number")),
        anything: !said("ANYTHING").is_empty(),
        library,
        path: path.to_path_buf(),
    }
}

/// Builds the program, with so many lines before it; none if there is no
/// compiler for it.
fn build(source: &Source, level: &str, folder: &Path, moved: u64) -> Option<PathBuf> {
    std::fs::create_dir_all(folder).expect("a folder for the program");
    let name = file_name(&source.path);
    let copy = |path: &Path| -> PathBuf {
        let text = std::fs::read_to_string(path).expect("the source can be read");
        let to = folder.join(file_name(path));
        let before = "\n".repeat(moved as usize);
        std::fs::write(&to, before + &text).expect("the copy can be written");
        to
    };
    let here = copy(&source.path);
    let program = folder.join(here.file_stem().expect("a name"));
    let (compiler, flags): (_, &[&str]) = match name.rsplit('.').next() {
        Some("c") => ("gcc", &["-g", "-pthread"]),
        Some("cpp") => ("g++", &["-g", "-pthread", "-std=c++17"]),
        _ => ("rustc", &["--edition", "2024", "-g", "-A", "warnings"]),
    };
    if Command::new(compiler).arg("--version").output().is_err() {
        return None;
    }
    let run = |command: &mut Command| {
        let output = command.output().expect("the compiler runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
    };
    let mut command = Command::new(compiler);
    match compiler {
        "rustc" => command.args(flags).arg(format!("-Copt-level={level}")),
        _ => command.args(flags).arg(format!("-O{level}")),
    };
    command.arg(&here).arg("-o").arg(&program);
    if let Some(library) = &source.library {
        let object = folder.join("libshared.so");
        run(Command::new("gcc")
            .args(["-g", "-shared", "-fPIC"])
            .arg(format!("-O{level}"))
            .arg(copy(library))
            .arg("-o")
            .arg(&object));
        command.arg(&object);
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    run(&mut command);
    Some(program)
}

fn report(program: &Path, seed: u64) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args([
            "run",
            "--no-store",
            "--json=/dev/fd/2",
            "--color=never",
            "--k",
            "0",
        ])
        .args(["--seed", &seed.to_string(), "--quantum", "300", "--"])
        .arg(program)
        .output()
        .expect("deadheat runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let mut values = serde_json::Deserializer::from_str(&text).into_iter();
    match values.next() {
        Some(Ok(report)) => report,
        _ => panic!("no report ({}): {text}", output.status),
    }
}

/// Where an access is: file and line, by the original source.
type Place = (String, u64);

fn place(site: &Value, moved: u64) -> Option<Place> {
    let file = Path::new(site["file"].as_str()?).file_name()?.to_str()?;
    let line = site["line"].as_u64()?;
    // Libraries of the language have not moved.
    let moved = if line > moved { moved } else { 0 };
    Some((file.to_string(), line - moved))
}

/// All that a race is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    sites: Vec<Option<Place>>,
    roles: Vec<Option<Place>>,
    functions: Vec<String>,
    object: String,
}

fn known(race: &Value, moved: u64) -> Known {
    let mut sides: Vec<_> = [0, 1]
        .map(|side| {
            let access = &race["accesses"][side];
            let role = match &access["caller"] {
                Value::Null => access,
                caller => caller,
            };
            let free = if access["kind"] == "free" {
                " free"
            } else {
                ""
            };
            let function = format!("{}{free}", access["function"]);
            (place(access, moved), place(role, moved), function)
        })
        .into();
    sides.sort();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let object = &race["object"];
    let separator = if object["whole"] == "heap block" && !object["part"].is_null() {
        " "
    } else {
        ""
    };
    let mut name = format!(
        "{}{separator}{}",
        text(&object["whole"]),
        text(&object["part"])
    );
    if let Some(function) = object["allocated"]["function"].as_str() {
        let function = function.split('(').next().unwrap_or(function);
        name = format!("{name} from {function}");
    }
    Known {
        sites: sides.iter().map(|side| side.0.clone()).collect(),
        roles: sides.iter().map(|side| side.1.clone()).collect(),
        functions: sides.iter().map(|side| side.2.clone()).collect(),
        object: name,
    }
}

/// The name that the source gives to a race.
fn named(source: &Source, known: &Known) -> Result<String, String> {
    let names = |place: &Option<Place>| {
        let place = place.as_ref()?;
        source.lines.get(place).cloned()
    };
    let all: Vec<BTreeSet<String>> = known
        .roles
        .iter()
        .map(|role| names(role).unwrap_or_default())
        .collect();
    let fits = |name: &&String| {
        all.iter().all(|names| names.contains(*name))
            && source.objects.get(*name) == Some(&known.object)
    };
    let found = all[0].iter().find(fits).cloned();
    found.ok_or_else(|| format!("reported, but not in the source: {known:?}"))
}

fn judge(source: &Source, level: &str) -> Result<(), String> {
    let stem = file_name(&source.path);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("objects")
        .join(format!("{stem}_{level}"));
    let mut fingerprints: BTreeMap<Known, String> = BTreeMap::new();
    let mut missing: BTreeSet<&String> = match source.anything {
        true => BTreeSet::new(),
        false => source.objects.keys().collect(),
    };
    let mut most_causes = 0;
    for (build_folder, moved) in [("as-is", 0), ("moved/elsewhere", MOVED)] {
        let Some(program) = build(source, level, &folder.join(build_folder), moved) else {
            return Ok(());
        };
        let shown = |what: String| {
            format!(
                "{what}\n    deadheat run --quantum 300 -- {}",
                program.display()
            )
        };
        let mut left = match source.anything {
            true => BTreeSet::new(),
            false => source.objects.keys().collect::<BTreeSet<&String>>(),
        };
        for seed in 0..SEEDS {
            let report = report(&program, seed);
            for race in report["races"].as_array().into_iter().flatten() {
                let known = known(race, moved);
                if !source.anything {
                    let name = named(source, &known).map_err(&shown)?;
                    left.remove(&name);
                    missing.remove(&name);
                }
                let fingerprint = race["fingerprint"].as_str().unwrap_or_default();
                let before = fingerprints
                    .entry(known.clone())
                    .or_insert_with(|| fingerprint.to_string());
                if before != fingerprint {
                    return Err(shown(format!(
                        "{fingerprint} and {before} are one: {known:?}"
                    )));
                }
            }
            let causes = report["causes"].as_array().map_or(0, Vec::len);
            if source.causes.is_some_and(|most| causes > most) {
                return Err(shown(format!("{causes} causes: {:#}", report["causes"])));
            }
            most_causes = most_causes.max(causes);
            if left.is_empty() && Some(most_causes) >= source.causes {
                break;
            }
        }
    }
    let different: BTreeSet<&String> = fingerprints.values().collect();
    if different.len() != fingerprints.len() {
        return Err(format!(
            "races that are told apart have one fingerprint: {fingerprints:#?}"
        ));
    }
    if !missing.is_empty() {
        return Err(format!(
            "{missing:?} were not seen; seen: {fingerprints:#?}"
        ));
    }
    match source.causes {
        Some(causes) if causes != most_causes => Err(format!("{most_causes} causes, not {causes}")),
        _ => Ok(()),
    }
}

#[test]
fn races_are_on_what_the_source_says_and_keep_their_fingerprints() {
    let all = std::env::var_os("DEADHEAT_TEST_ALL").is_some();
    let only = std::env::var("DEADHEAT_TEST_ONLY").ok();
    let mut sources: Vec<PathBuf> = std::fs::read_dir(programs())
        .expect("the programs are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .filter(|path| {
            let name = path.to_string_lossy();
            only.as_ref()
                .is_none_or(|only| name.contains(only.as_str()))
        })
        .collect();
    sources.sort();
    assert!(!sources.is_empty(), "no program");
    let mut failures = Vec::new();
    for path in &sources {
        let source = read(path);
        let levels = if all { &["0", "1", "2"][..] } else { &["0"] };
        for level in levels {
            // An optimiser moves accesses to other lines.
            let source = Source {
                anything: source.anything || *level != "0",
                ..read(path)
            };
            if let Err(problem) = judge(&source, level) {
                failures.push(format!("{} (-O{level}): {problem}", source.path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What races on heap memory are called, where a global pointer leads there
/// (`tests/programs/named`): every name in a line `// NAMES` must be given.
#[test]
fn elements_are_named_by_the_pointer_to_them() {
    let folder = programs().join("../named");
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the programs are there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("the source can be read");
        for level in ["0", "2"] {
            let stem = file_name(&path);
            let folder =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("named/{stem}-{level}"));
            let Some(program) = build(&read(&path), level, &folder, 0) else {
                continue;
            };
            let report = report(&program, 0);
            let races = report["races"].as_array().into_iter().flatten();
            let given: BTreeSet<&str> = races
                .flat_map(|race| race["object"]["names"].as_array().into_iter().flatten())
                .filter_map(Value::as_str)
                .collect();
            for name in text
                .lines()
                .filter_map(|line| line.strip_prefix("// NAMES "))
            {
                if !given.contains(name) {
                    failures.push(format!("{stem} -O{level}: no {name} in {given:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
