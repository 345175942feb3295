//! Folders from elsewhere: what lies in a recording, a store or under a name
//! in debug info may be a link, a pipe or a device. No command follows it out
//! of the folder, waits for it, reads it without end or writes through it.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Seconds that any command may take here.
const LIMIT: &str = "60";

fn deadheat(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--signal=KILL", LIMIT])
        .arg(env!("CARGO_BIN_EXE_deadheat"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("deadheat can be started")
}

fn sentence(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ended by itself, with a documented code, and not by a panic.
fn check(output: &Output, what: &str) -> i32 {
    let text = sentence(output);
    assert_eq!(output.status.signal(), None, "{what}: {text}");
    let code = output.status.code().unwrap_or(-1);
    assert!(
        [0, 2, 66, 70].contains(&code),
        "{what}: exit {code}: {text}"
    );
    assert!(!text.contains("panicked"), "{what}: {text}");
    code
}

fn build(source: &str, to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/programs/vm")
        .join(source);
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(to)
        .status()
        .expect("gcc can be started");
    assert!(built.success());
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp")
        .arg("-r")
        .args([from, to])
        .status()
        .expect("cp can be started");
    assert!(copied.success());
}

fn pipe(path: &Path) {
    let made = Command::new("mkfifo")
        .arg(path)
        .status()
        .expect("mkfifo can be started");
    assert!(made.success());
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of ours") {
            let path = entry.expect("a folder of ours").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}

/// What can stand where a file or folder should be.
const KINDS: [&str; 4] = ["link", "pipe", "zero", "folder"];

/// Puts something else in the place of `path`; `outside` is what links lead to.
fn plant(kind: &str, path: &Path, outside: &Path) {
    if path.is_dir() {
        std::fs::remove_dir_all(path).expect("a folder of ours");
    } else {
        let _ = std::fs::remove_file(path);
    }
    match kind {
        "link" => symlink(outside, path).expect("a folder of ours"),
        "zero" => symlink("/dev/zero", path).expect("a folder of ours"),
        "pipe" => pipe(path),
        _ => std::fs::create_dir(path).expect("a folder of ours"),
    }
}

#[test]
fn nothing_in_a_recording_leads_out_of_it() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    build("racy_counter.c", &folder.join("program"));
    let recorded = deadheat(
        folder,
        &[
            "record",
            "--quantum",
            "500",
            "-o",
            "whole",
            "--",
            "./program",
        ],
    );
    assert!(recorded.status.success(), "{}", sentence(&recorded));
    let whole = folder.join("whole");
    let classified = deadheat(folder, &["classify", "whole"]);
    check(&classified, "classify");
    assert!(whole.join("explored.jsonl").is_file());
    let theirs = folder.join("theirs");
    let hostile = folder.join("hostile");
    for file in files_below(&whole) {
        let name = file.strip_prefix(&whole).expect("a file of it");
        for kind in KINDS {
            copy(&whole, &hostile);
            // What a link leads to could be taken for the file.
            std::fs::copy(&file, &theirs).expect("a folder of ours");
            plant(kind, &hostile.join(name), &theirs);
            for command in ["replay", "dump", "pack", "detect"] {
                let output = deadheat(folder, &[command, "hostile"]);
                let what = format!("{command}, {} a {kind}", name.display());
                let code = check(&output, &what);
                let needed = match (command, name.to_str().unwrap_or_default()) {
                    (_, "manifest.json") => true,
                    ("replay" | "detect", name) => {
                        (name.contains('/') && name != "0/process.json") || name == "processor.json"
                    }
                    ("dump", "0/files.json" | "0/schedule" | "0/inputs") => true,
                    ("pack", "0/files.json") => true,
                    _ => false,
                };
                assert_eq!(
                    needed,
                    code == 2,
                    "{what}: exit {code}: {}",
                    sentence(&output)
                );
                if needed && kind != "folder" {
                    assert!(
                        sentence(&output).contains(" it is a "),
                        "{what}: {}",
                        sentence(&output)
                    );
                }
            }
            assert_eq!(
                std::fs::read(&theirs).expect("a file of ours"),
                std::fs::read(&file).expect("a file of ours"),
                "{} a {kind}: written through",
                name.display()
            );
        }
    }
}

/// Where a command makes a file of its own, something waits for it.
#[test]
fn nothing_is_written_through_a_link() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    build("racy_counter.c", &folder.join("program"));
    let recorded = deadheat(
        folder,
        &[
            "record",
            "--quantum",
            "500",
            "-o",
            "whole",
            "--",
            "./program",
        ],
    );
    assert!(recorded.status.success(), "{}", sentence(&recorded));
    let outside = folder.join("outside");
    std::fs::create_dir(&outside).expect("a folder of ours");
    std::fs::write(outside.join("theirs"), "theirs").expect("a folder of ours");
    let hostile = folder.join("hostile");
    let untouched = |what: &str| {
        assert_eq!(files_below(&outside), [outside.join("theirs")], "{what}");
        let text = std::fs::read(outside.join("theirs")).expect("a file of ours");
        assert_eq!(text, b"theirs", "{what}");
    };
    let hash = files_below(&folder.join("whole/files")).remove(0);
    let hash = hash.file_name().and_then(|name| name.to_str());
    let hash = format!("files/{}", hash.expect("a hash"));
    let tables = std::fs::read_to_string(folder.join("whole/0/files.json")).expect("a table");
    let classify: &[&[&str]] = &[
        &["classify", "hostile", "--k", "1"],
        &["classify", "hostile", "--k", "1", "--input", "program"],
    ];
    let cases: [(&str, &[&[&str]]); 6] = [
        ("files", &[&["pack", "hostile"]]),
        (&hash, &[&["pack", "hostile"]]),
        ("0/files.json", &[&["pack", "hostile"]]),
        ("evidence.json", &classify[..1]),
        ("explored.jsonl", &classify[..1]),
        ("inputs", &classify[1..]),
    ];
    for (name, commands) in cases {
        let targets = [outside.clone(), outside.join("theirs"), outside.join("new")];
        for (target, command) in targets
            .iter()
            .flat_map(|target| commands.iter().map(move |command| (target, command)))
        {
            copy(&folder.join("whole"), &hostile);
            let path = hostile.join(name);
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir_all(&path);
            symlink(target, &path).expect("a folder of ours");
            // Everything is to be copied anew.
            if name != "0/files.json" {
                let tables = tables.replace("\"stored\": true", "\"stored\": false");
                std::fs::write(hostile.join("0/files.json"), tables).expect("a file of ours");
            }
            let what = format!("{} with {name} -> {}", command.join(" "), target.display());
            check(&deadheat(folder, command), &what);
            untouched(&what);
        }
    }
    // A name made of parts, where a hash should be.
    copy(&folder.join("whole"), &hostile);
    let hash = hash.trim_start_matches("files/");
    let changed = tables.replace(hash, "../../outside/theirs");
    assert_ne!(tables, changed);
    std::fs::write(hostile.join("0/files.json"), changed).expect("a file of ours");
    for command in ["pack", "replay", "dump"] {
        let output = deadheat(folder, &[command, "hostile"]);
        assert_eq!(check(&output, command), 2);
        untouched(command);
    }
}

#[test]
fn an_export_takes_no_link_along() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    build("racy_counter.c", &folder.join("program"));
    let recorded = deadheat(
        folder,
        &[
            "record",
            "--quantum",
            "500",
            "-o",
            "whole",
            "--",
            "./program",
        ],
    );
    assert!(recorded.status.success(), "{}", sentence(&recorded));
    check(&deadheat(folder, &["classify", "whole"]), "classify");
    let evidence = folder.join("whole/evidence.json");
    assert!(evidence.is_file());
    std::fs::write(folder.join("theirs"), "theirs").expect("a folder of ours");
    let plain = deadheat(folder, &["export", "1", "plain", "--recording", "whole"]);
    assert_eq!(check(&plain, "export"), 0, "{}", sentence(&plain));
    let shown = Command::new(folder.join("plain/reproduce"))
        .output()
        .expect("the script can be started");
    assert_eq!(shown.status.code(), Some(66), "{}", sentence(&shown));
    for (number, kind) in KINDS[..3].iter().enumerate() {
        let path = folder.join("whole/more");
        plant(kind, &path, &folder.join("theirs"));
        let to = format!("export{number}");
        let output = deadheat(folder, &["export", "1", &to, "--recording", "whole"]);
        assert_eq!(check(&output, kind), 70, "{}", sentence(&output));
        assert!(
            sentence(&output).contains("whole/more: it is a "),
            "{}",
            sentence(&output)
        );
    }
}

#[test]
fn a_store_from_elsewhere_leads_nowhere() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    build("racy_counter.c", &folder.join("program"));
    check(&deadheat(folder, &["run", "--", "./program"]), "run");
    let whole = folder.join("whole");
    std::fs::rename(folder.join(".deadheat"), &whole).expect("a folder of ours");
    let theirs = folder.join("theirs");
    for suffix in ["", "-wal", "-journal", "-shm"] {
        for kind in KINDS {
            copy(&whole, &folder.join(".deadheat"));
            let name = format!("deadheat.sqlite{suffix}");
            std::fs::write(&theirs, "theirs").expect("a folder of ours");
            plant(kind, &folder.join(".deadheat").join(&name), &theirs);
            let commands: [&[&str]; 4] = [
                &["list"],
                &["show", "1"],
                &["gc", "--keep", "0"],
                &["run", "--", "./program"],
            ];
            for command in commands {
                let what = format!("{} with {name} a {kind}", command.join(" "));
                let output = deadheat(folder, command);
                let code = check(&output, &what);
                assert!(
                    [2, 70].contains(&code),
                    "{what}: exit {code}: {}",
                    sentence(&output)
                );
                assert!(
                    sentence(&output).contains(&name),
                    "{what}: {}",
                    sentence(&output)
                );
            }
            assert_eq!(std::fs::read(&theirs).expect("a file of ours"), b"theirs");
        }
    }
    // A recording's folder in it is a link: `gc` takes the link away.
    copy(&whole, &folder.join(".deadheat"));
    let outside = folder.join("outside");
    std::fs::create_dir(&outside).expect("a folder of ours");
    std::fs::write(outside.join("theirs"), "theirs").expect("a folder of ours");
    plant("link", &folder.join(".deadheat/1"), &outside);
    check(&deadheat(folder, &["gc", "--keep", "0"]), "gc");
    assert!(outside.join("theirs").is_file());
    assert!(!folder.join(".deadheat/1").exists());
}

/// gdb takes a word that begins with a dash for an option, and waits for pipes.
#[test]
fn the_name_of_a_program_tells_gdb_nothing() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    build("racy_counter.c", &folder.join("program"));
    let recorded = deadheat(folder, &["record", "-o", "whole", "--", "./program"]);
    assert!(recorded.status.success(), "{}", sentence(&recorded));
    plant("pipe", &folder.join("pipe"), folder);
    std::fs::write(folder.join("typed"), "quit\n").expect("a folder of ours");
    let whole = std::fs::read_to_string(folder.join("whole/manifest.json")).expect("a manifest");
    for name in [
        "-ex=shell touch marker",
        "--eval-command=shell touch marker",
        "./pipe",
    ] {
        let (was, hostile) = (
            "\"program\": \"./program\"",
            format!("\"program\": \"{name}\""),
        );
        assert!(whole.contains(was));
        let manifest = folder.join("whole/manifest.json");
        std::fs::write(manifest, whole.replace(was, &hostile)).expect("a folder of ours");
        let command = format!("{} replay whole --gdb", env!("CARGO_BIN_EXE_deadheat"));
        let shown = Command::new("timeout")
            .args([
                "--signal=KILL",
                LIMIT,
                "script",
                "-qec",
                &command,
                "/dev/null",
            ])
            .current_dir(folder)
            .stdin(std::fs::File::open(folder.join("typed")).expect("a file of ours"))
            .output()
            .expect("script (bsdutils) can be started");
        let text = String::from_utf8_lossy(&shown.stdout);
        assert_eq!(shown.status.code(), Some(0), "{name}: {text}");
        assert!(text.contains("no race was asked for"), "{name}: {text}");
        assert!(!folder.join("marker").exists(), "{name}: {text}");
    }
}

/// Debug info says where the source is.
#[test]
fn a_source_file_is_a_regular_one() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    let program = "#include <pthread.h>\n\
        int shared;\n\
        static void *body(void *unused) { shared++; return unused; }\n\
        int main(void) { pthread_t one, two; pthread_create(&one, 0, body, 0);\n\
        pthread_create(&two, 0, body, 0); pthread_join(one, 0); pthread_join(two, 0); return 0; }\n";
    for kind in ["pipe", "zero", "folder"] {
        let named = folder.join(kind);
        plant(kind, &named, &named);
        let source = folder.join("source.c");
        let text = format!("#line 1 \"{}\"\n{program}", named.display());
        std::fs::write(&source, text).expect("a folder of ours");
        let built = Command::new("gcc")
            .args(["-O0", "-g", "-pthread", "-o"])
            .args([&folder.join("program"), &source])
            .status()
            .expect("gcc can be started");
        assert!(built.success());
        let output = deadheat(folder, &["run", "--no-store", "--", "./program"]);
        let code = check(&output, kind);
        assert_eq!(code, 66, "{kind}: {}", sentence(&output));
    }
}
