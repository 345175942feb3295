//! Runs programs natively and under the vm, with a limit of time.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Outcome {
    pub output: Vec<u8>,
    pub errors: String,
    /// Exit code, or minus the signal; none if it did not end in time.
    pub status: Option<i32>,
}

/// Runs `command` with its output in files of `folder`.
pub fn run(mut command: Command, folder: &Path, limit: Duration) -> Outcome {
    let (output, errors) = (folder.join("output"), folder.join("errors"));
    let create = |path| std::fs::File::create(path).expect("the folder is ours");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(create(&output))
        .stderr(create(&errors))
        .spawn()
        .expect("the program can be started");
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(500);
    let status = loop {
        match child.try_wait().expect("the child is ours") {
            Some(status) => break status.code().or(status.signal().map(|signal| -signal)),
            None if Instant::now() > end => {
                child.kill().expect("the child is ours");
                let _ = child.wait();
                break None;
            }
            None => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    };
    Outcome {
        output: std::fs::read(&output).unwrap_or_default(),
        errors: String::from_utf8_lossy(&std::fs::read(&errors).unwrap_or_default()).into_owned(),
        status,
    }
}

/// The command line under test.
pub fn deadheat() -> Command {
    Command::new(env!("CARGO_BIN_EXE_deadheat"))
}
