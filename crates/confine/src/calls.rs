//! The system calls that a confined process may make.
//!
//! The list is what the vm and the analyses on top of it need after everything is
//! opened: memory, time, files that are open or opened for reading, pipes and
//! pairs of sockets, copies of the process and waiting for them. What changes
//! files, starts programs, reaches other processes or the network, or gives
//! rights, is not on it. Arguments are checked where they make the difference; the
//! kernel takes most of them as 32 bits, so only those are compared.

use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Whatever their arguments.
const FREE: &[i64] = &[
    // Memory of the process itself.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    // Files that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_getdents64,
    // What there is to read.
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    // Between the processes of an analysis.
    libc::SYS_pipe,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_futex,
    // Signals of this process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // The end of the time in which a report is made.
    libc::SYS_setitimer,
    libc::SYS_restart_syscall,
    // Time and facts.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_times,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getpgrp,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Bits of `open` that change something: anything but O_RDONLY, O_CREAT, O_TRUNC,
/// O_APPEND and the inner bit of O_TMPFILE.
const CHANGING: u64 =
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64 | 0x40_0000;

/// What the C library's `fork` asks for besides the signal of the child's end.
const FORK: u64 =
    (libc::CLONE_CHILD_CLEARTID | libc::CLONE_CHILD_SETTID | libc::CLONE_PARENT_SETTID) as u64;

/// Commands of `fcntl`: copies, flags and locks of descriptors that are open.
const FCNTL: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// Questions to terminals and descriptors. `TIOCSTI` would type for the user.
const IOCTL: &[u64] = &[
    libc::TCGETS,
    0x802c_542a, // TCGETS2
    libc::TIOCGWINSZ,
    libc::FIONREAD,
    libc::FIONBIO,
    libc::FIOCLEX,
    libc::FIONCLEX,
    0xc060_6610, // PAGEMAP_SCAN: which pages of its own memory are there
];

const PRCTL: &[i32] = &[
    libc::PR_SET_PDEATHSIG,
    libc::PR_GET_PDEATHSIG,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
];

/// Kinds of a pair of sockets that can only talk to one another: a datagram could
/// be sent to anybody.
const CONNECTED: [i32; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
const KIND_OF_SOCKET: u64 = 0xf;

/// One argument of 32 bits.
fn argument(index: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, is, value)
}

/// One of 64 bits.
fn wide(index: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, is, value)
}

/// Every argument with this index that is allowed.
fn one_of(
    index: u8,
    values: impl IntoIterator<Item = u64>,
) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |value| SeccompRule::new(vec![argument(index, SeccompCmpOp::Eq, value)?]);
    values.into_iter().map(rule).collect()
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    use SeccompCmpOp::{Eq, Ge, Le, MaskedEq, Ne};
    let when = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        FREE.iter().map(|number| (*number, Vec::new())).collect();
    rules.insert(
        libc::SYS_open,
        vec![when(vec![argument(1, MaskedEq(CHANGING), 0)?])?],
    );
    rules.insert(
        libc::SYS_openat,
        vec![when(vec![argument(2, MaskedEq(CHANGING), 0)?])?],
    );
    rules.insert(
        libc::SYS_clone,
        vec![when(vec![wide(0, MaskedEq(!FORK), libc::SIGCHLD as u64)?])?],
    );
    rules.insert(libc::SYS_fork, Vec::new());
    let mut fcntl = one_of(1, FCNTL.iter().map(|command| *command as u64))?;
    // O_ASYNC would make the kernel send signals.
    fcntl.push(when(vec![
        argument(1, Eq, libc::F_SETFL as u64)?,
        argument(2, MaskedEq(libc::O_ASYNC as u64), 0)?,
    ])?);
    rules.insert(libc::SYS_fcntl, fcntl);
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTL.iter().copied())?);
    rules.insert(
        libc::SYS_prctl,
        one_of(0, PRCTL.iter().map(|option| *option as u64))?,
    );
    // ARCH_SET_GS to ARCH_GET_GS.
    rules.insert(
        libc::SYS_arch_prctl,
        vec![when(vec![
            argument(0, Ge, 0x1001)?,
            argument(0, Le, 0x1004)?,
        ])?],
    );
    rules.insert(libc::SYS_prlimit64, vec![when(vec![argument(0, Eq, 0)?])?]);
    // Its own copies. Landlock keeps others from being meant; groups are not.
    rules.insert(
        libc::SYS_kill,
        vec![when(vec![
            argument(0, Ne, 0)?,
            argument(0, Le, i32::MAX as u64)?,
            argument(1, Eq, libc::SIGKILL as u64)?,
        ])?],
    );
    // `raise`: how a replay ends of the signal that the recorded run ended of.
    rules.insert(libc::SYS_tgkill, Vec::new());
    // Without an address.
    rules.insert(libc::SYS_sendto, vec![when(vec![wide(4, Eq, 0)?])?]);
    // The sockets there are have no use for one.
    rules.insert(libc::SYS_sendmsg, Vec::new());
    let pairs: Result<Vec<SeccompRule>, BackendError> = CONNECTED
        .iter()
        .map(|kind| {
            when(vec![
                argument(0, Eq, libc::AF_UNIX as u64)?,
                argument(1, MaskedEq(KIND_OF_SOCKET), *kind as u64)?,
            ])
        })
        .collect();
    rules.insert(libc::SYS_socketpair, pairs?);
    Ok(rules)
}

/// The filter: what is not on the list raises SIGSYS and is not done.
pub(crate) fn filter() -> Result<BpfProgram, Error> {
    let filter = SeccompFilter::new(
        rules().map_err(Error::Backend)?,
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    )
    .map_err(Error::Backend)?;
    filter.try_into().map_err(Error::Backend)
}
