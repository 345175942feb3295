//! `cargo deadheat` (the vm) and `deadheat cargo` (monitors) on a small
//! workspace, with the stable toolchain and without a network.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A copy of the workspace, so that nothing is built in the sources.
fn workspace(name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/cargo");
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Left by an earlier run of this test, or not there.
    let _ = std::fs::remove_dir_all(&to);
    copy(&from, &to);
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A command of the user: none of the settings of the cargo that runs this
/// test, and our programs first in the PATH.
fn command(program: &str, folder: &Path) -> Command {
    let ours = Path::new(env!("CARGO_BIN_EXE_deadheat")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(ours.to_path_buf()).chain(std::env::split_paths(&path)),
    );
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = ["CARGO", "RUST", "DEADHEAT"];
        if ours.iter().any(|start| text.starts_with(start))
            && text != "CARGO_HOME"
            && !text.starts_with("RUSTUP")
        {
            command.env_remove(&name);
        }
    }
    command
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env("CARGO_NET_OFFLINE", "true");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn tests_of_a_workspace_end_in_one_report() {
    let folder = workspace("cargo-vm");
    let output = command("cargo", &folder)
        .args(["deadheat", "--json=races.json", "test", "--lib"])
        .output()
        .unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(66), "{text}");
    assert_eq!(
        text.matches("test result: ok. 1 passed").count(),
        2,
        "{text}"
    );
    assert_eq!(text.matches("data race #1").count(), 1, "{text}");
    assert!(!text.contains("data race #2"), "{text}");
    let json = std::fs::read_to_string(folder.join("races.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["recordings"].as_array().unwrap().len(), 2);
    assert_eq!(report["program"][1], "test");
    for access in report["races"][0]["accesses"].as_array().unwrap() {
        assert_eq!(access["line"], 18, "{access}");
        assert!(
            access["file"]
                .as_str()
                .unwrap()
                .ends_with("counter/src/lib.rs"),
            "{access}"
        );
    }
    // The recordings are in the store and replay.
    let replay = report["recordings"][0].as_str().unwrap();
    let output = command("deadheat", &folder)
        .args(["replay", replay])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(said(&output).contains("two_threads_count ... ok"));
}

#[test]
fn a_clean_program_runs_with_its_arguments_and_its_exit_code() {
    let folder = workspace("cargo-vm-run");
    let run = |words: &[&str]| {
        let output = command("cargo", &folder)
            .args(["deadheat", "--no-store", "run", "-p", "quiet"])
            .args(words)
            .output()
            .unwrap();
        (output.status.code(), said(&output))
    };
    let (code, text) = run(&["--", "5"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\n5\n") || text.starts_with("5\n"), "{text}");
    assert!(text.contains("no data races found"), "{text}");
    assert!(!folder.join(".deadheat").exists());
    // What cargo refuses is cargo's to say, with cargo's code.
    let (code, text) = run(&["--bin", "nobody"]);
    assert_eq!(code, Some(101), "{text}");
    assert!(!text.contains("data races"), "{text}");
}

#[test]
fn monitors_in_rust_with_the_stable_toolchain() {
    let folder = workspace("cargo-ifr");
    let report = folder.join("races.json");
    let run = |package: &str| {
        let output = command("deadheat", &folder)
            .args(["cargo", "test", "--lib", "-p", package])
            .env("DEADHEAT_IFR", format!("json={}", report.display()))
            .output()
            .unwrap();
        (output.status, said(&output))
    };
    let (status, text) = run("quiet");
    assert!(status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    assert!(!text.contains("data race"), "{text}");
    // A run can miss the race: the two threads must come near each other.
    let found = (0..20).any(|_| {
        let (status, text) = run("counter");
        assert!(text.contains("1 passed"), "{text}");
        let found = text.contains("data race");
        assert_eq!(found, !status.success(), "{text}");
        found
    });
    assert!(found, "the race was not found in 20 runs");
    let json = std::fs::read_to_string(&report).unwrap();
    assert!(json.contains("counter/src/lib.rs"), "{json}");
    // Cargo's default target folder is left alone.
    assert!(folder.join("target/deadheat").is_dir());
    assert!(!folder.join("target/debug").exists());
}

/// Flags of the project's own configuration are still used; those of the
/// environment hide them, as with plain cargo.
#[test]
fn flags_of_the_project_stay() {
    let folder = workspace("cargo-ifr-flags");
    std::fs::create_dir_all(folder.join(".cargo")).unwrap();
    let fail = |configuration: &str, environment: Option<&str>| {
        std::fs::write(folder.join(".cargo/config.toml"), configuration).unwrap();
        let mut build = command("deadheat", &folder);
        build.args(["cargo", "build", "-p", "quiet"]);
        if let Some(flags) = environment {
            build.env("RUSTFLAGS", flags);
        }
        said(&build.output().unwrap()).contains("no-such-option")
    };
    const TARGET: &str = "[target.x86_64-unknown-linux-gnu]";
    assert!(fail("[build]\nrustflags = [\"-Zno-such-option\"]\n", None));
    assert!(fail(
        &format!("{TARGET}\nrustflags = \"-Zno-such-option\"\n"),
        None
    ));
    assert!(!fail(
        "[build]\nrustflags = [\"-Zno-such-option\"]\n",
        Some("-Cdebug-assertions=no")
    ));
}

/// A release build is optimised and inlined, and its race is found too.
#[test]
fn monitors_in_a_release_build() {
    let folder = workspace("cargo-ifr-release");
    let run = |package: &str| {
        let output = command("deadheat", &folder)
            .args(["cargo", "test", "--release", "--lib", "-p", package])
            .output()
            .unwrap();
        (output.status, said(&output))
    };
    let (status, text) = run("quiet");
    assert!(status.success() && text.contains("1 passed"), "{text}");
    assert!(!text.contains("data race"), "{text}");
    let found = (0..20).any(|_| {
        let (status, text) = run("counter");
        assert!(text.contains("1 passed"), "{text}");
        let found = text.contains("data race");
        assert_eq!(found, !status.success(), "{text}");
        assert!(!found || text.contains("lib.rs:18"), "{text}");
        found
    });
    assert!(found, "the race was not found in 20 runs");
    assert!(
        folder
            .join("target/deadheat/x86_64-unknown-linux-gnu/release")
            .is_dir()
    );
}
