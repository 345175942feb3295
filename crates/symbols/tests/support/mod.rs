//! Compiling test programs and stopping them where a test wants to look.
#![allow(dead_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use symbols::Registers;
use tempfile::TempDir;

/// A folder with compiled programs, gone at the end of the test.
pub struct Workshop {
    pub folder: TempDir,
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Workshop {
    pub fn new() -> Workshop {
        Workshop {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles `program` (its ending says with what; `CC` and `CXX` name
    /// other compilers) to `output`.
    pub fn compile(&self, program: &str, output: &str, flags: &[&str]) -> PathBuf {
        let compiler = match Path::new(program).extension().and_then(|end| end.to_str()) {
            Some("c") => std::env::var("CC").unwrap_or("gcc".into()),
            Some("cpp") => std::env::var("CXX").unwrap_or("g++".into()),
            Some("rs") => "rustc".into(),
            Some("go") => return self.build_go(program, output, flags),
            other => panic!("no compiler for {other:?}"),
        };
        let target = self.path(output);
        let mut command = Command::new(compiler);
        command
            .current_dir(self.folder.path())
            .args(flags)
            .arg(source(program))
            .arg("-o")
            .arg(&target);
        run(&mut command);
        target
    }
}

impl Workshop {
    fn build_go(&self, program: &str, output: &str, flags: &[&str]) -> PathBuf {
        let target = self.path(output);
        run(Command::new("go")
            .env("GOCACHE", self.path("go-cache"))
            .env("GO111MODULE", "off")
            .arg("build")
            .args(flags)
            .arg("-o")
            .args([&target, &source(program)]));
        target
    }
}

/// Moves debug info to `debug` and leaves a stripped program with a
/// `.gnu_debuglink` to it.
pub fn split_debug(program: &Path, debug: &Path) {
    run(Command::new("objcopy")
        .arg("--only-keep-debug")
        .args([program, debug]));
    run(Command::new("strip").arg(program));
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(debug);
    run(Command::new("objcopy").arg(link).arg(program));
}

/// The line of `program` that holds `text`, counted from 1.
pub fn line_of(program: &str, text: &str) -> u32 {
    let lines = std::fs::read_to_string(source(program)).unwrap();
    let found: Vec<u32> = lines
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.contains(text))
        .map(|(_, number)| number)
        .collect();
    assert_eq!(found.len(), 1, "`{text}` is once in {program}");
    found[0]
}

/// A child under ptrace, killed when dropped.
pub struct Traced {
    child: Child,
    memory: File,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    Signal(i32),
    Ended,
}

impl Traced {
    /// Starts a program and stops it before its first instruction.
    pub fn start(program: &Path) -> Traced {
        let mut command = Command::new(program);
        command.stdout(Stdio::null());
        // A Go program keeps to the traced thread then.
        command.envs([("GOMAXPROCS", "1"), ("GODEBUG", "asyncpreemptoff=1")]);
        command.env("GOGC", "off");
        // SAFETY: ptrace(TRACEME) is a bare system call, allowed between fork
        // and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let child = command.spawn().unwrap();
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", child.id()))
            .unwrap();
        let mut traced = Traced { child, memory };
        assert_eq!(traced.wait(), Stop::Signal(libc::SIGTRAP));
        traced
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ptrace(&self, request: libc::c_uint, data: usize) {
        // SAFETY: requests used here take a number or a pointer to a live
        // structure of the right type as data.
        let result = unsafe { libc::ptrace(request, self.child.id() as libc::pid_t, 0, data) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    fn wait(&mut self) -> Stop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let pid = unsafe { libc::waitpid(self.child.id() as libc::pid_t, &mut status, 0) };
        assert!(pid > 0);
        if libc::WIFSTOPPED(status) {
            Stop::Signal(libc::WSTOPSIG(status))
        } else {
            Stop::Ended
        }
    }

    pub fn step(&mut self, signal: i32) -> Stop {
        self.ptrace(libc::PTRACE_SINGLESTEP, signal as usize);
        self.wait()
    }

    pub fn cont(&mut self, signal: i32) -> Stop {
        self.ptrace(libc::PTRACE_CONT, signal as usize);
        self.wait()
    }

    pub fn raw_registers(&self) -> libc::user_regs_struct {
        // SAFETY: the structure is plain integers.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETREGS, &raw mut regs as usize);
        regs
    }

    pub fn registers(&self) -> Registers {
        Registers::from(&self.raw_registers())
    }

    pub fn read(&self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, address).ok()?;
        Some(u64::from_le_bytes(word))
    }

    /// Runs to an address by a breakpoint and takes it away again.
    pub fn run_to(&mut self, address: u64) {
        let mut old = [0];
        self.memory.read_exact_at(&mut old, address).unwrap();
        self.memory.write_all_at(&[0xcc], address).unwrap();
        assert_eq!(self.cont(0), Stop::Signal(libc::SIGTRAP));
        self.memory.write_all_at(&old, address).unwrap();
        let mut regs = self.raw_registers();
        assert_eq!(regs.rip, address + 1);
        regs.rip = address;
        self.ptrace(libc::PTRACE_SETREGS, &raw const regs as usize);
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
