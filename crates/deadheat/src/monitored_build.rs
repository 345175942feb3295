//! What `deadheat cc`, `c++` and `cargo` share: where the pass is, the
//! run-time's files, and LLVM 22's tools.

use crate::commands::Failure;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the pass plugin, when it is not beside deadheat.
const PASS_VARIABLE: &str = "DEADHEAT_IFR_PASS";
/// Tells the pass which deadheat shall name the races of the program.
const TOOL_VARIABLE: &str = "DEADHEAT_IFR_TOOL";
const PASS_FILE: &str = "libifr_pass.so";

/// The files an instrumented build needs.
pub struct Kit {
    pub pass: PathBuf,
    pub object: PathBuf,
    pub list: PathBuf,
    tool: PathBuf,
}

impl Kit {
    /// Finds or makes them.
    pub fn find() -> Result<Kit, Failure> {
        let tool = env::current_exe()
            .map_err(|error| Failure::own(format!("cannot find my own executable: {error}")))?;
        let pass = find_pass(&tool)?;
        let folder = cache_folder();
        fs::create_dir_all(&folder).map_err(|error| {
            Failure::own(format!(
                "cannot make {}: {error}; set XDG_CACHE_HOME to a folder that can be written",
                folder.display()
            ))
        })?;
        let stamp = stamp(ifr_runtime::OBJECT);
        let object = folder.join(format!("ifr-{stamp:016x}.o"));
        let list = folder.join(format!("ifr-{stamp:016x}.list"));
        keep(&object, ifr_runtime::OBJECT)?;
        keep(&list, ifr_runtime::DYNAMIC_LIST.as_bytes())?;
        Ok(Kit {
            pass,
            object,
            list,
            tool,
        })
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        self.object.parent().unwrap_or(Path::new("."))
    }

    /// A command that runs the tool of LLVM 22 with this kit's environment.
    pub fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        command.env(TOOL_VARIABLE, &self.tool);
        command.env(ifr_runtime::BUILD_VARIABLE, ifr_runtime::FINGERPRINT);
        command
    }

    /// What the linker of an executable is given besides.
    pub fn link_arguments(&self) -> Vec<OsString> {
        let mut list = OsString::from("-Wl,--dynamic-list=");
        list.push(&self.list);
        vec![
            self.object.clone().into_os_string(),
            list,
            "-Wl,-z,now".into(),
            "-ldl".into(),
            "-lpthread".into(),
        ]
    }
}

fn find_pass(tool: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(PASS_VARIABLE) {
        let path = PathBuf::from(&named);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Failure::usage(format!(
                "{PASS_VARIABLE} names {}, which is no file",
                path.display()
            )))
        };
    }
    let beside = tool.parent().unwrap_or(Path::new("."));
    let places = [
        beside.join(PASS_FILE),
        beside.join("../lib/deadheat").join(PASS_FILE),
    ];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        Failure::own(format!(
            "the monitor pass {PASS_FILE} is neither beside deadheat nor in ../lib/deadheat; build it with `cargo build --release -p ifr-pass` (needs the packages llvm-22-dev, clang-22 and lld-22) or name it in {PASS_VARIABLE}"
        ))
    })
}

fn cache_folder() -> PathBuf {
    env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("deadheat")
}

/// FNV-1a: another build of the run-time gets another file.
fn stamp(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Writes the file if it is not there, never leaving half of it to a compiler
/// that runs beside us.
fn keep(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if fs::metadata(path).is_ok_and(|known| known.len() == bytes.len() as u64) {
        return Ok(());
    }
    let mut half = path.as_os_str().to_owned();
    half.push(format!(".{}", std::process::id()));
    fs::write(&half, bytes)
        .and_then(|()| fs::rename(&half, path))
        .map_err(|error| Failure::own(format!("cannot write {}: {error}", path.display())))
}

/// Whether a program of this name can be run.
pub fn installed(name: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

/// Runs a command in place of this process's own work; its exit code.
pub fn run(mut command: Command) -> Result<i32, Failure> {
    use std::os::unix::process::ExitStatusExt;
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .map_err(|error| Failure::own(format!("cannot run {name}: {error}")))?;
    Ok(status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(race::exit_code::FAILURE))
}

/// Refuses a rustc whose bitcode LLVM 22 may not be able to read. One that cannot
/// be asked is cargo's to complain about.
pub fn need_rustc_of_llvm_22() -> Result<(), Failure> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = match Command::new(&rustc).arg("-vV").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => return Ok(()),
    };
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "));
    match version {
        Some(version) if version.split('.').next() != Some("22") => Err(Failure::own(format!(
            "{} makes code with LLVM {version}; the monitors need a toolchain with LLVM 22, as Rust 1.95 is (rustup default 1.95)",
            rustc.to_string_lossy()
        ))),
        _ => Ok(()),
    }
}

/// Refuses with the packages to install when a tool of LLVM 22 is missing.
pub fn need(name: &str, package: &str) -> Result<(), Failure> {
    if installed(name) {
        Ok(())
    } else {
        Err(Failure::own(format!(
            "{name} is not installed; the monitors need LLVM 22 exactly: install the package {package}"
        )))
    }
}
