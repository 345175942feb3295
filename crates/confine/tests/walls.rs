//! Each test forks, confines the child and lets it try what hostile code would,
//! by raw system calls: it must die of SIGSYS, or get an error, and nothing may
//! have happened.

use confine::{Reads, confine};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How a confined child ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Killed(i32),
    /// The errno that the call gave, 0 for success.
    Said(i32),
}

/// A child that could not be confined says this.
const NOT_CONFINED: i32 = 255;

fn try_confined(reads: &Reads, work: impl FnOnce() -> i64) -> End {
    // What was refused last is one word for all children.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    confine::share_refusals();
    // SAFETY: the child leaves by `_exit`; what it runs allocates at most in
    // this thread, whose locks are free.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        confine::answer_to_parent();
        let code = match confine(reads) {
            Ok(()) if work() >= 0 => 0,
            Ok(()) => std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(254),
            Err(_) => NOT_CONFINED,
        };
        // SAFETY: ends the child without this process's exit handlers.
        unsafe { libc::_exit(code) }
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: our own child; plain out-parameter.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    match libc::WIFSIGNALED(status) {
        true => End::Killed(libc::WTERMSIG(status)),
        false => End::Said(libc::WEXITSTATUS(status)),
    }
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero in it")
}

fn call(number: i64, arguments: [u64; 5]) -> i64 {
    let [a, b, c, d, e] = arguments;
    // SAFETY: what hostile code would do; pointers are to memory of the test.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

#[test]
fn what_changes_anything_is_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let victim = folder.path().join("victim");
    std::fs::write(&victim, "as it was").expect("it can be written");
    let made = folder.path().join("made");
    let (victim_name, made_name) = (c(&victim), c(&made));
    let (old, new) = (victim_name.as_ptr() as u64, made_name.as_ptr() as u64);
    let here = libc::AT_FDCWD as u64;
    let (write, create) = (libc::O_RDWR as u64, (libc::O_WRONLY | libc::O_CREAT) as u64);
    let own = u64::from(std::process::id());
    let tiocsti = libc::TIOCSTI;
    let calls: &[(&str, i64, [u64; 5])] = &[
        ("open to write", libc::SYS_open, [old, write, 0, 0, 0]),
        (
            "openat to write",
            libc::SYS_openat,
            [here, old, write, 0, 0],
        ),
        (
            "openat to make",
            libc::SYS_openat,
            [here, new, create, 0o600, 0],
        ),
        (
            "openat to truncate",
            libc::SYS_openat,
            [here, old, libc::O_TRUNC as u64, 0, 0],
        ),
        ("openat2", libc::SYS_openat2, [here, old, 0, 24, 0]),
        ("creat", libc::SYS_creat, [new, 0o600, 0, 0, 0]),
        ("mkdir", libc::SYS_mkdir, [new, 0o700, 0, 0, 0]),
        ("mkdirat", libc::SYS_mkdirat, [here, new, 0o700, 0, 0]),
        ("mknod", libc::SYS_mknod, [new, 0o100600, 0, 0, 0]),
        ("unlink", libc::SYS_unlink, [old, 0, 0, 0, 0]),
        ("unlinkat", libc::SYS_unlinkat, [here, old, 0, 0, 0]),
        ("rename", libc::SYS_rename, [old, new, 0, 0, 0]),
        ("renameat2", libc::SYS_renameat2, [here, old, here, new, 0]),
        ("link", libc::SYS_link, [old, new, 0, 0, 0]),
        ("symlink", libc::SYS_symlink, [old, new, 0, 0, 0]),
        ("chmod", libc::SYS_chmod, [old, 0o777, 0, 0, 0]),
        ("truncate", libc::SYS_truncate, [old, 0, 0, 0, 0]),
        ("setxattr", libc::SYS_setxattr, [old, old, old, 1, 0]),
        ("utimensat", libc::SYS_utimensat, [here, old, 0, 0, 0]),
        ("execve", libc::SYS_execve, [old, 0, 0, 0, 0]),
        ("execveat", libc::SYS_execveat, [here, old, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [16, own, 0, 0, 0]),
        (
            "process_vm_writev",
            libc::SYS_process_vm_writev,
            [own, 0, 0, 0, 0],
        ),
        ("pidfd_open", libc::SYS_pidfd_open, [own, 0, 0, 0, 0]),
        ("kill a group", libc::SYS_kill, [0, 9, 0, 0, 0]),
        ("kill all", libc::SYS_kill, [u64::MAX, 9, 0, 0, 0]),
        ("stop", libc::SYS_kill, [own, 19, 0, 0, 0]),
        (
            "rt_sigqueueinfo",
            libc::SYS_rt_sigqueueinfo,
            [own, 10, 0, 0, 0],
        ),
        ("socket", libc::SYS_socket, [2, 1, 0, 0, 0]),
        ("socket unix", libc::SYS_socket, [1, 2, 0, 0, 0]),
        ("connect", libc::SYS_connect, [0, old, 16, 0, 0]),
        ("bind", libc::SYS_bind, [0, old, 16, 0, 0]),
        ("datagram pair", libc::SYS_socketpair, [1, 2, 0, old, 0]),
        ("sendto an address", libc::SYS_sendto, [1, old, 1, 0, old]),
        ("TIOCSTI", libc::SYS_ioctl, [0, tiocsti, old, 0, 0]),
        ("F_SETOWN", libc::SYS_fcntl, [0, 8, own, 0, 0]),
        (
            "O_ASYNC",
            libc::SYS_fcntl,
            [0, 4, libc::O_ASYNC as u64, 0, 0],
        ),
        ("prctl seccomp", libc::SYS_prctl, [22, 1, 0, 0, 0]),
        ("prlimit of another", libc::SYS_prlimit64, [own, 7, 0, 0, 0]),
        ("namespace", libc::SYS_clone, [0x1000_0000 | 17, 0, 0, 0, 0]),
        ("sibling", libc::SYS_clone, [0x8000 | 17, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, [0, 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [old, old, 0, 0, 0]),
        ("chroot", libc::SYS_chroot, [old, 0, 0, 0, 0]),
        ("setuid", libc::SYS_setuid, [0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, [0, 0, 0, 0, 0]),
        ("io_uring", libc::SYS_io_uring_setup, [1, old, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
        (
            "perf_event_open",
            libc::SYS_perf_event_open,
            [old, 0, 0, 0, 0],
        ),
        ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0, 0]),
        ("shmget", libc::SYS_shmget, [0, 4096, 0o1600, 0, 0]),
        ("mq_open", libc::SYS_mq_open, [old, 0x42, 0o600, 0, 0]),
        (
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            [here, old, 0, 0, 0],
        ),
        ("32-bit numbers", 0x4000_0000 | 83, [new, 0o700, 0, 0, 0]),
        ("unknown", 1_000_000, [0; 5]),
    ];
    let before = std::fs::metadata(&victim).expect("it is there");
    for (what, number, arguments) in calls {
        let end = try_confined(&Reads::Anything, || call(*number, *arguments));
        assert_eq!(end, End::Killed(libc::SIGSYS), "{what}");
    }
    // The others took their turns between.
    assert!(confine::refused().is_some());
    assert!(!made.exists());
    let after = std::fs::metadata(&victim).expect("it is still there");
    assert_eq!(std::fs::read(&victim).expect("readable"), b"as it was");
    assert_eq!(before.permissions(), after.permissions());
}

#[test]
fn what_a_replay_needs_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "text").expect("it can be written");
    let reads = Reads::These(vec![folder.path().to_path_buf()]);
    let end = try_confined(&reads, || {
        let read = std::fs::read(&file).is_ok_and(|bytes| bytes == b"text");
        // SAFETY: a fork whose child leaves at once, and waiting for it.
        let forked = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(7)
            }
            let mut status = 0;
            libc::waitpid(pid, &mut status, 0) == pid && libc::WEXITSTATUS(status) == 7
        };
        let paired = std::os::unix::net::UnixStream::pair().is_ok();
        if read && forked && paired { 0 } else { -1 }
    });
    assert_eq!(end, End::Said(0));
}

#[test]
fn what_was_open_for_writing_is_not_any_more() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let mut open = std::fs::File::create(&store).expect("it can be made");
    open.write_all(b"as it was").expect("it can be written");
    let journal_path = folder.path().join("journal");
    let journal = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&journal_path)
        .expect("it can be made");
    let (store_number, journal_number) = (open.as_raw_fd() as u64, journal.as_raw_fd() as u64);
    let text = b"more".as_ptr() as u64;
    let end = try_confined(&Reads::Anything, || {
        call(libc::SYS_pwrite64, [store_number, text, 4, 0, 0])
    });
    assert_eq!(end, End::Said(libc::EBADF));
    let end = try_confined(&Reads::Anything, || {
        call(libc::SYS_write, [journal_number, text, 4, 0, 0])
    });
    assert_eq!(end, End::Said(0));
    assert_eq!(std::fs::read(&store).expect("readable"), b"as it was");
    assert_eq!(std::fs::read(&journal_path).expect("readable"), b"more");
    // The process that forked has it as before.
    open.write_all(b", and more").expect("it is still open");
}

#[test]
fn a_copy_is_confined_like_its_parent() {
    let end = try_confined(&Reads::Anything, || {
        // SAFETY: the child makes one call and leaves.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::mkdir(c"/tmp/never-made-by-a-copy".as_ptr(), 0o700);
                libc::_exit(0)
            }
            let mut status = 0;
            libc::waitpid(pid, &mut status, 0);
            match libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS {
                true => 0,
                false => -1,
            }
        }
    });
    assert_eq!(end, End::Said(0));
}

#[test]
fn with_landlock_nothing_else_is_read_and_nobody_else_is_killed() {
    let support = confine::support();
    assert!(support.seccomp);
    if support.landlock < confine::Support::WITH_SIGNALS {
        eprintln!("left out: this kernel has Landlock {}", support.landlock);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secret = tempfile::NamedTempFile::new().expect("a file");
    let name = c(secret.path());
    let reads = Reads::These(vec![folder.path().to_path_buf()]);
    let open = [libc::AT_FDCWD as u64, name.as_ptr() as u64, 0, 0, 0];
    let end = try_confined(&reads, || call(libc::SYS_openat, open));
    assert_eq!(end, End::Said(libc::EACCES));

    let mut bystander = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("sleep can be started");
    let pid = u64::from(bystander.id());
    for signal in [
        [libc::SYS_kill as u64, pid, 9, 0],
        [libc::SYS_tgkill as u64, pid, pid, 9],
    ] {
        let [number, a, b, last] = signal;
        let end = try_confined(&Reads::Anything, || call(number as i64, [a, b, last, 0, 0]));
        assert_eq!(end, End::Said(libc::EPERM));
    }
    assert!(bystander.try_wait().expect("our child").is_none());
    bystander.kill().expect("our child");
    bystander.wait().expect("our child");
    // Neither can its memory be read.
    let own = c(Path::new(&format!("/proc/{}/mem", std::process::id())));
    let open = [libc::AT_FDCWD as u64, own.as_ptr() as u64, 0, 0, 0];
    let end = try_confined(&Reads::Anything, || call(libc::SYS_openat, open));
    assert_eq!(end, End::Said(libc::EACCES));
}
