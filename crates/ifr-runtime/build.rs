//! Compiles `runtime/` into the object file that instrumented programs link:
//! a crate of its own without the standard library, always optimised, always
//! `panic=abort`, whatever profile this workspace is built with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

#[path = "fingerprint.rs"]
mod fingerprint;

fn main() {
    println!("cargo::rerun-if-changed=runtime");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let object = out.join("deadheat_ifr.o");
    let fingerprint = fingerprint::fingerprint();
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=fingerprint.rs");
    println!("cargo::rustc-env=DEADHEAT_IFR_FINGERPRINT={fingerprint}");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .env("DEADHEAT_IFR_FINGERPRINT", &fingerprint)
        .args([
            "--crate-name",
            "deadheat_ifr",
            "--crate-type",
            "staticlib",
            "--emit",
            "obj",
        ])
        .args([
            "--edition",
            "2024",
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Cdebuginfo=1",
        ])
        .args([
            "-Ccodegen-units=1",
            "-Crelocation-model=pic",
            "-Cforce-frame-pointers=yes",
        ])
        .args([
            "-Coverflow-checks=off",
            "-Cforce-unwind-tables=yes",
            "-Cembed-bitcode=no",
        ])
        .arg("--remap-path-prefix=runtime=deadheat/ifr-runtime")
        .arg("-o")
        .arg(&object)
        .arg(Path::new("runtime").join("lib.rs"))
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!("cargo::error=the monitor run-time did not compile");
        exit(1);
    }
    // The program's own functions of these names win, and the one symbol of
    // the language that a Rust program defines too stays inside.
    let names = interposed();
    let mut weaken = Command::new("objcopy");
    weaken.args(["--wildcard", "--localize-symbol", "*rust_begin_unwind"]);
    for name in &names {
        weaken.args(["--weaken-symbol", name]);
    }
    if !weaken
        .arg(&object)
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("cargo::error=objcopy did not run; install the package binutils");
        exit(1);
    }
    let mut list = String::from("{\n  __deadheat_ifr_*;\n");
    for name in &names {
        list.push_str(&format!("  {name};\n"));
    }
    list.push_str("};\n");
    if let Err(error) = fs::write(out.join("deadheat_ifr.list"), list) {
        println!("cargo::error=cannot write the dynamic list: {error}");
        exit(1);
    }
}

/// Where the source lists functions that the run-time stands before.
const LISTS: [&str; 5] = [
    "releasing! {",
    "asking! {",
    "joining! {",
    "detaching! {",
    "replacing! {",
];

/// Names of the functions that the run-time stands before, from its source:
/// the entries of the lists and what is marked `no_mangle` beside them.
fn interposed() -> Vec<String> {
    let source = fs::read_to_string("runtime/interpose.rs").unwrap_or_default();
    let mut names = Vec::new();
    let mut in_list = false;
    let mut marked = false;
    for line in source.lines() {
        if LISTS.iter().any(|list| line.starts_with(list)) {
            in_list = true;
        } else if in_list && line.starts_with('}') {
            in_list = false;
        } else if in_list {
            names.extend(
                line.trim()
                    .split('(')
                    .next()
                    .filter(|name| !name.is_empty())
                    .map(String::from),
            );
        }
        if marked && let Some(rest) = line.trim().split("fn ").nth(1) {
            names.extend(
                rest.split('(')
                    .next()
                    .filter(|name| !name.starts_with('$'))
                    .map(String::from),
            );
        }
        marked = line.trim() == "#[unsafe(no_mangle)]";
    }
    names
}
