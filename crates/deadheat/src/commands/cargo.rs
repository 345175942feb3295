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

pub fn run(arguments: &Arguments) -> Result<i32, Failure> {
    monitored_build::need("clang-22", "clang-22")?;
    monitored_build::need("ld.lld-22", "lld-22")?;
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
    for given in env::var("CARGO_ENCODED_RUSTFLAGS")
        .map(|flags| flags.split('\u{1f}').map(String::from).collect())
        .unwrap_or_else(|_| {
            env::var("RUSTFLAGS")
                .unwrap_or_default()
                .split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        })
    {
        flags.push(given);
    }
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
