//! A command under watch: how it ended, what it said, how much memory it took,
//! whether it left anything behind.
//!
//! The peak is that of the largest process: the command itself or one that it
//! waited for. All of them are killed when one takes far too much, or when the
//! time is over.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The most that a command may take of memory, in kilobytes: 300 MB.
pub const MOST: u64 = 300_000;

/// Nobody else on this machine suffers when a command takes all it can get.
const FAR_TOO_MUCH: u64 = 4 * MOST;

/// The longest file that a command may write: what shows an output without end.
const LONGEST_FILE: u64 = 512 << 20;

pub struct Watched {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// In kilobytes.
    pub peak: u64,
    /// It did not end in time.
    pub late: bool,
    /// A process of it was there after its end.
    pub left_behind: bool,
}

impl Watched {
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs a command with this standard input.
#[expect(clippy::zombie_processes, reason = "`reap` waits for it")]
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Watched {
    let file = || tempfile::tempfile().expect("a temporary file");
    let (mut stdin, stdout, stderr) = (file(), file(), file());
    stdin.write_all(input).expect("a temporary file");
    stdin.seek(SeekFrom::Start(0)).expect("a temporary file");
    let clone = |file: &File| file.try_clone().expect("a descriptor");
    command
        .stdin(stdin)
        .stdout(clone(&stdout))
        .stderr(clone(&stderr))
        .process_group(0);
    // SAFETY: the closure only makes a system call.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit {
                rlim_cur: LONGEST_FILE,
                rlim_max: LONGEST_FILE,
            };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let before = Instant::now();
    let child = command.spawn().expect("the command can be started");
    let pid = child.id() as i32;
    let (mut late, mut largest) = (false, 0);
    let mut pause = Duration::from_millis(1);
    let (status, peak) = loop {
        if let Some(ended) = reap(pid) {
            break ended;
        }
        if before.elapsed() > Duration::from_millis(300) {
            pause = Duration::from_millis(20);
            largest = sizes_of_group(pid).into_iter().fold(largest, u64::max);
        }
        late = before.elapsed() > limit;
        if late || largest > FAR_TOO_MUCH {
            // SAFETY: the group is the child's own, and it was not waited for.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        std::thread::sleep(pause);
    };
    Watched {
        status,
        stdout: contents(stdout),
        stderr: contents(stderr),
        peak: peak.max(largest),
        late,
        left_behind: !is_over(pid),
    }
}

/// How a child ended and the most it and its children took, if it has ended.
fn reap(pid: i32) -> Option<(ExitStatus, u64)> {
    let mut status = 0;
    // SAFETY: plain data, and both pointers are valid.
    let (got, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let got = libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage);
        (got, usage)
    };
    (got == pid).then(|| (ExitStatus::from_raw(status), usage.ru_maxrss as u64))
}

/// The sizes, in kilobytes, of the processes of a group that are running now.
fn sizes_of_group(group: i32) -> Vec<u64> {
    let size = |path: &Path| -> Option<u64> {
        let text = std::fs::read_to_string(path.join("stat")).ok()?;
        // The name is in brackets and may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let of_group = fields.get(2)?.parse::<i32>().ok()? == group;
        // Dead ones wait for whoever adopted them.
        let is_dead = ["Z", "X"].contains(fields.first()?);
        let pages: u64 = fields.get(21)?.parse().ok()?;
        (of_group && !is_dead).then_some(pages * 4)
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| size(&entry.path()))
        .collect()
}

/// Nothing of a group is left; a moment is granted, then it is killed.
fn is_over(group: i32) -> bool {
    for _ in 0..100 {
        // SAFETY: asks whether the group is there.
        let is_gone = unsafe { libc::kill(-group, 0) } != 0;
        if is_gone || sizes_of_group(group).is_empty() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: the group was made for the command.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    false
}

/// The beginning of what was written.
fn contents(mut file: File) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a temporary file");
    file.take(16 << 20)
        .read_to_end(&mut bytes)
        .expect("a temporary file");
    bytes
}
