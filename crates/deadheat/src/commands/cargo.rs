//! `deadheat cargo build|run|test …`: monitors in Rust programs with the stable
//! toolchain. Crates are compiled to LLVM bitcode (`linker-plugin-lto`) and the
//! pass runs inside lld when the program is linked.
//!
//! The precompiled standard library stays without monitors; the pass counts a
//! release before every call into it and when its callbacks return.

use super::Failure;
use crate::monitored_build::{self, Kit};
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "\
Examples:
  deadheat cargo test                      every test, with monitors
  deadheat cargo run --release -- arg
  cargo deadheat test                      without monitors, in the vm (see there)"
)]
pub struct Arguments {
    /// Arguments for cargo: build, run, test and their options
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<OsString>,
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(ToString::to_string);
    text.filter(|text| !text.contains('\u{1f}')).ok_or_else(|| {
        Failure::usage(format!(
            "{} cannot be passed to cargo, whose flags are text",
            path.display()
        ))
    })
}

/// As cargo reads them: they hide those of its configuration.
fn flags_of_environment() -> Option<Vec<String>> {
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        return Some(flags.split('\u{1f}').map(String::from).collect());
    }
    let flags = env::var("RUSTFLAGS").ok()?;
    Some(flags.split_whitespace().map(String::from).collect())
}

/// `rustflags` of the `config.toml` files that hold here: those of the target, or
/// else those of all. cargo does not join them with flags of the environment, so
/// they go there. None if cargo does not say.
fn flags_of_configuration() -> Vec<String> {
    let said = Command::new("cargo")
        .args(["-Zunstable-options", "config", "get", "--format", "json"])
        // The stable cargo has the command, but not for everybody.
        .env("RUSTC_BOOTSTRAP", "1")
        .output();
    let configuration: serde_json::Value = said
        .ok()
        .and_then(|said| serde_json::from_slice(&said.stdout).ok())
        .unwrap_or_default();
    let of_target = flags_at(&configuration["target"][TARGET]["rustflags"]);
    if of_target.is_empty() {
        return flags_at(&configuration["build"]["rustflags"]);
    }
    of_target
}

/// A list of flags, or a text with spaces between them.
fn flags_at(value: &serde_json::Value) -> Vec<String> {
    if let Some(text) = value.as_str() {
        return text.split_whitespace().map(String::from).collect();
    }
    let list = value.as_array().into_iter().flatten();
    list.filter_map(|flag| flag.as_str().map(String::from))
        .collect()
}

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    monitored_build::need("clang-22", "clang-22")?;
    monitored_build::need("ld.lld-22", "lld-22")?;
    if !monitored_build::installed("cargo") {
        return Err(Failure::own(
            "cargo is not installed, or not in a folder of PATH; rustup.rs says how to install it",
        ));
    }
    monitored_build::need_rustc_of_llvm_22()?;
    let kit = Kit::find()?;
    let mut flags: Vec<String> = [
        "-Clinker-plugin-lto",
        "-Clinker=clang-22",
        "-Clink-arg=-fuse-ld=lld",
        "-Cforce-frame-pointers=yes",
        "-Cdebuginfo=1",
        "-Clink-arg=-Wl,-z,now",
        // At level 0, that of unoptimised builds, the linker runs no pass.
        "-Clink-arg=-Wl,--lto-O2",
    ]
    .map(String::from)
    .to_vec();
    flags.push(format!(
        "-Clink-arg=-Wl,--load-pass-plugin={}",
        text(&kit.pass)?
    ));
    flags.push(format!("-Clink-arg={}", text(&kit.object)?));
    flags.push(format!(
        "-Clink-arg=-Wl,--dynamic-list={}",
        text(&kit.list)?
    ));
    // What the user set stays, after ours.
    flags.extend(flags_of_environment().unwrap_or_else(flags_of_configuration));
    let mut command = kit.command(OsStr::new("cargo"));
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    command.env_remove("RUSTFLAGS");
    // Without debug info in the profile cargo strips what the flags ask for.
    if env::var_os("CARGO_PROFILE_RELEASE_DEBUG").is_none() {
        command.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    }
    // With a target named, build scripts and macros are built without monitors.
    if env::var_os("CARGO_BUILD_TARGET").is_none() {
        command.env("CARGO_BUILD_TARGET", TARGET);
    }
    if env::var_os("CARGO_TARGET_DIR").is_none() {
        command.env("CARGO_TARGET_DIR", "target/deadheat");
    }
    command.args(&arguments.arguments);
    monitored_build::run(command)
}
