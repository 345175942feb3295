//! Compiles `runtime/` into the static archive that instrumented programs link:
//! a crate of its own without the standard library, always optimised, always
//! `panic=abort`, whatever profile this workspace is built with.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    println!("cargo::rerun-if-changed=runtime");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let archive = out.join("deadheat_ifr.o");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
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
        .arg("-o")
        .arg(&archive)
        .arg(Path::new("runtime").join("lib.rs"))
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!("cargo::error=the monitor run-time did not compile");
        exit(1);
    }
}
