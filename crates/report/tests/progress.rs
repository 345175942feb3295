//! Progress on a real terminal, and silence everywhere else.

use report::{Progress, Unit};
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

const PHASE: &str = "DEADHEAT_TEST_PHASE";

/// The body of the processes of the tests below, which start this test again
/// with the variable set; without it there is nothing to do.
#[test]
fn phase_process() {
    if std::env::var_os(PHASE).is_none() {
        return;
    }
    let progress = Progress::new("sorting", Unit::Steps("cards"), Some(52));
    if let Some(counter) = progress.counter() {
        counter.store(13, std::sync::atomic::Ordering::Relaxed);
    }
    std::thread::sleep(Duration::from_millis(1300));
}

fn phase(stderr: Stdio) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "phase_process", "--nocapture"])
        .env(PHASE, "1")
        .env("TERM", "xterm")
        .stdout(Stdio::null())
        .stderr(stderr);
    command
}

/// A terminal: the side of the program and the side of the screen.
fn terminal() -> (OwnedFd, File) {
    let (mut screen, mut program) = (0, 0);
    // SAFETY: plain out-parameters; name, settings and size may be null.
    let made = unsafe {
        libc::openpty(
            &mut screen,
            &mut program,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    assert_eq!(made, 0);
    // SAFETY: both descriptors were just made and belong to nobody else.
    unsafe { (OwnedFd::from_raw_fd(program), File::from_raw_fd(screen)) }
}

#[test]
fn a_terminal_sees_how_far_a_phase_is_and_keeps_nothing_of_it() {
    let (program, mut screen) = terminal();
    let mut command = phase(program.into());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut seen = Vec::new();
    // The screen's side fails with EIO when the last program has gone.
    let _ = screen.read_to_end(&mut seen);
    assert!(child.wait().unwrap().success());
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("sorting: 13 of 52 cards, "), "{seen:?}");
    assert!(seen.trim_end().ends_with("\r\x1b[K"), "{seen:?}");
}

#[test]
fn a_log_sees_nothing() {
    let output = phase(Stdio::piped()).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
