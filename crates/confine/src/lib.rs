//! Takes from a process that is about to run code of a recording every right it
//! does not need.
//!
//! A recording comes from anybody: its program, replayed, runs in the address
//! space of the vm. The vm checks every store (`vm/src/translate/stores.rs`), so
//! that code cannot leave it. Should there be a hole, this is the second wall: a
//! process that is confined can compute, read what it is given, write to what was
//! open before, and nothing else, whoever is in control of it.
//!
//! - No new privileges (`PR_SET_NO_NEW_PRIVS`), no core file.
//! - Landlock, where the kernel has it: no file is written, made, removed or
//!   executed, files are read as far as `Reads` says, no TCP connection, no signal
//!   to processes outside, none of their memory.
//! - A seccomp filter (`calls.rs`): system calls that are not on the list, or not
//!   with these arguments, are not made. The process dies of SIGSYS.
//!
//! All three are inherited by forks and cannot be taken back: a process confines
//! itself once, before its first copy. The crates `landlock` and `seccompiler` do
//! the work: both are their kernel interface and no more, kept by those who use
//! it (the Landlock project, rust-vmm), without dependencies that run code.
//!
//! Without Landlock, files can be read that the user may read, and processes of
//! the user can be killed. A kernel without seccomp is refused.
//!
//! Not prevented: use of processor time and memory, and what is written to the
//! standard streams of deadheat.

mod calls;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The newest interface of Landlock that is made use of: what an older kernel
/// lacks of it is left out.
const LANDLOCK: ABI = ABI::V6;

/// The exit code of a process that says itself what it was refused.
const FAILURE: u64 = 70;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot confine the process that runs the recorded program: {0} (Linux with seccomp is needed; `deadheat doctor` tells)"
    )]
    Filter(#[from] seccompiler::Error),
    #[error(
        "cannot confine the process that runs the recorded program: Landlock refuses the rules: {0}"
    )]
    Files(#[from] landlock::RulesetError),
}

/// What may be read from now on.
#[derive(Debug, Clone)]
pub enum Reads {
    /// These files, and what is in these folders.
    These(Vec<PathBuf>),
    /// Whatever the user may read.
    Anything,
}

/// What the kernel has of what is made use of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Support {
    pub seccomp: bool,
    /// The version of Landlock's interface; 0 if there is none.
    pub landlock: u32,
}

impl Support {
    /// From this version on, other processes cannot be sent signals.
    pub const WITH_SIGNALS: u32 = LANDLOCK as u32;
}

static CONFINED: AtomicBool = AtomicBool::new(false);
/// Somebody waits for this process and will say why it died.
static ANSWERS: AtomicBool = AtomicBool::new(false);
/// The system call that was refused last, plus one: shared with the processes
/// forked since `share_refusals`.
static REFUSED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// This process, or one that it was forked from, is confined.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// Confines this process, which must have one thread, for good.
pub fn confine(reads: &Reads) -> Result<(), Error> {
    let filter = calls::filter()?;
    // SAFETY: a limit of this process; no preconditions.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
    }
    give_up_files();
    forbid_files(reads)?;
    tell_refusals();
    // Sets no_new_privs as well.
    seccompiler::apply_filter(&filter)?;
    CONFINED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Files that are open for writing lead nowhere from now on. A fork has them from
/// its parent, who goes on using them. The standard streams stay, and what is open
/// for appending (a journal), and what has no name (memory).
fn give_up_files() {
    /// Standard input, output and error.
    const STREAMS: i32 = 2;
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| *number > STREAMS && is_writable_file(*number))
        .collect();
    for number in numbers {
        // SAFETY: opens and replaces descriptors of this process. The number stays
        // taken, so whoever has it closes it as before.
        unsafe {
            let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            libc::dup3(nowhere, number, libc::O_CLOEXEC);
            libc::close(nowhere);
        }
    }
}

fn is_writable_file(number: i32) -> bool {
    // SAFETY: a zeroed stat is filled in; fails for a number that is not open.
    unsafe {
        let flags = libc::fcntl(number, libc::F_GETFL);
        let mut facts: libc::stat = std::mem::zeroed();
        flags >= 0
            && flags & libc::O_PATH == 0
            && flags & libc::O_ACCMODE != libc::O_RDONLY
            && flags & libc::O_APPEND == 0
            && libc::fstat(number, &mut facts) == 0
            && facts.st_mode & libc::S_IFMT == libc::S_IFREG
            && facts.st_nlink > 0
    }
}

fn forbid_files(reads: &Reads) -> Result<(), landlock::RulesetError> {
    let everything = [PathBuf::from("/")];
    let paths = match reads {
        Reads::These(paths) => paths.as_slice(),
        Reads::Anything => everything.as_slice(),
    };
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    for path in paths {
        // What is not there cannot be read either.
        let Ok(opened) = PathFd::new(path) else {
            continue;
        };
        let access: BitFlags<AccessFs> = match path.is_dir() {
            true => AccessFs::ReadFile | AccessFs::ReadDir,
            false => AccessFs::ReadFile.into(),
        };
        rules = rules.add_rule(PathBeneath::new(opened, access))?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// What this kernel has.
pub fn support() -> Support {
    // SAFETY: both calls only ask: Landlock for its version, seccomp for whether
    // it knows an action.
    unsafe {
        let version = libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            1, /* LANDLOCK_CREATE_RULESET_VERSION */
        );
        let action = libc::SECCOMP_RET_TRAP;
        let known = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        );
        Support {
            seccomp: known == 0,
            landlock: u32::try_from(version).unwrap_or(0),
        }
    }
}

/// Processes forked from now on tell this one which system call they were
/// refused.
pub fn share_refusals() {
    if !REFUSED.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: a fresh mapping, touching nothing that exists.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicU32>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page != libc::MAP_FAILED {
        REFUSED.store(page.cast(), Ordering::Relaxed);
    }
}

/// This process was forked by one that waits for it: if it dies of a refused
/// call, that one says so.
pub fn answer_to_parent() {
    ANSWERS.store(true, Ordering::Relaxed);
}

/// The system call that a process forked from this one was refused, if any.
pub fn refused() -> Option<u32> {
    let word = REFUSED.load(Ordering::Relaxed);
    if word.is_null() {
        return None;
    }
    // SAFETY: a word of the page that `share_refusals` mapped and nobody unmaps.
    unsafe { (*word).load(Ordering::Relaxed).checked_sub(1) }
}

/// Why a process that died of SIGSYS did.
pub fn sentence(call: Option<u32>) -> String {
    let mut text = String::from("the recording tried ");
    // Writing to a string does not fail.
    let _ = match call {
        Some(number) => write!(text, "system call {number}"),
        None => write!(text, "a system call"),
    };
    text.push_str(AFTER_NUMBER);
    text
}

const BEFORE_NUMBER: &str = "deadheat: the recording tried system call ";
const AFTER_NUMBER: &str = ", which a replay may not make: it was not made and the process \
     was ended (docs/guests.md, \"What a recording may do\")";

/// A refused call is told before the process ends. Code that is in control of the
/// process may prevent that, not the refusal.
fn tell_refusals() {
    // SAFETY: a zeroed action is valid; the handler has SA_SIGINFO's signature.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_refusal as *const () as usize;
        action.sa_flags =
            libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
    }
}

/// Uses no thread-local storage: FS may be the guest's.
extern "C" fn on_refusal(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// Where the kernel puts `si_syscall`.
    const CALL: usize = 24;
    // SAFETY: a siginfo_t has 128 bytes; the word was mapped before this process
    // was confined.
    let number = unsafe {
        let number = info.cast::<u8>().add(CALL).cast::<u32>().read_unaligned();
        let word = REFUSED.load(Ordering::Relaxed);
        if !word.is_null() {
            (*word).store(number.wrapping_add(1), Ordering::Relaxed);
        }
        number
    };
    if !ANSWERS.load(Ordering::Relaxed) {
        say(BEFORE_NUMBER.as_bytes());
        let mut digits = [0; 10];
        say(decimal(number, &mut digits));
        say(AFTER_NUMBER.as_bytes());
        say(b"\n");
        raw(libc::SYS_exit_group, [FAILURE, 0, 0]);
    }
    // The action is the default one again: a call that is refused is the end.
    raw(libc::SYS_execve, [0; 3]);
}

fn say(text: &[u8]) {
    raw(
        libc::SYS_write,
        [2, text.as_ptr() as u64, text.len() as u64],
    );
}

fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// A system call without errno.
fn raw(number: i64, arguments: [u64; 3]) -> i64 {
    let result: i64;
    // SAFETY: only called with the three calls above, on memory of this process;
    // rcx and r11 are clobbered by the instruction.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}
