//! From a system call's number to its handler.

use super::names::syscall_name;
use super::{Call, Halt, Outcome};
use crate::machine::Vm;

/// Not among libc's constants.
const IO_PGETEVENTS: i64 = 333;
const CACHESTAT: i64 = 451;
const FCHMODAT2: i64 = 452;

impl Vm {
    pub(super) fn dispatch(&mut self, call: &mut Call) -> Outcome {
        let [a, b, c, d, ..] = call.arguments;
        let number = call.number as i64;
        match number {
            libc::SYS_read => self.sys_read(call),
            libc::SYS_write => self.sys_write(call),
            libc::SYS_pread64 => self.sys_pread(call),
            libc::SYS_pwrite64 => self.sys_pwrite(call),
            libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => self.sys_readv(call),
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => self.sys_writev(call),
            libc::SYS_lseek => self.sys_lseek(a as i32, b, c),
            libc::SYS_open => self.sys_open(call),
            libc::SYS_creat => self.sys_creat(call),
            libc::SYS_openat => self.sys_openat(call),
            libc::SYS_openat2 => self.sys_openat2(call),
            libc::SYS_close => {
                self.kernel.fds.close(a as i32)?;
                Ok(0)
            }
            libc::SYS_close_range => self.sys_close_range(a, b, c),
            libc::SYS_dup => self.kernel.fds.duplicate(a as i32, 0, false),
            libc::SYS_dup2 => self.sys_dup2(a as i32, b as i32, None),
            libc::SYS_dup3 => self.sys_dup2(a as i32, b as i32, Some(c as i32)),
            libc::SYS_fcntl => self.sys_fcntl(call),
            libc::SYS_flock => self.sys_flock(call),
            libc::SYS_ioctl => self.sys_ioctl(call),
            libc::SYS_stat | libc::SYS_lstat | libc::SYS_fstat | libc::SYS_newfstatat => {
                self.sys_stat(call)
            }
            libc::SYS_statx => self.sys_statx(call),
            libc::SYS_readlink | libc::SYS_readlinkat => self.sys_readlink(call),
            libc::SYS_getdents | libc::SYS_getdents64 => self.sys_getdents(call),
            libc::SYS_getcwd => self.sys_getcwd(a, b),
            libc::SYS_fchdir => self.sys_fchdir(a as i32),
            libc::SYS_utimensat => self.sys_utimensat(call),
            libc::SYS_symlink | libc::SYS_symlinkat => self.sys_symlink(call),
            // One path, nothing comes back.
            libc::SYS_access
            | libc::SYS_chdir
            | libc::SYS_mkdir
            | libc::SYS_rmdir
            | libc::SYS_unlink
            | libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_lchown
            | libc::SYS_truncate
            | libc::SYS_mknod
            | libc::SYS_utime
            | libc::SYS_utimes
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_removexattr
            | libc::SYS_lremovexattr
            | libc::SYS_chroot => self.path_call(call, None, 0, None),
            libc::SYS_statfs => self.path_call(call, None, 0, Some((b, 120))),
            libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_mkdirat
            | libc::SYS_unlinkat
            | libc::SYS_fchmodat
            | FCHMODAT2
            | libc::SYS_fchownat
            | libc::SYS_mknodat
            | libc::SYS_futimesat => self.path_call(call, Some(0), 1, None),
            libc::SYS_rename | libc::SYS_link => self.two_path_call(call, (None, 0), (None, 1)),
            libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
                self.two_path_call(call, (Some(0), 1), (Some(2), 3))
            }
            libc::SYS_getxattr
            | libc::SYS_lgetxattr
            | libc::SYS_listxattr
            | libc::SYS_llistxattr
            | libc::SYS_fgetxattr
            | libc::SYS_flistxattr => self.sys_get_attribute(call),
            // One descriptor, nothing comes back.
            libc::SYS_fchmod
            | libc::SYS_fchown
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_syncfs
            | libc::SYS_sync_file_range
            | libc::SYS_fsetxattr
            | libc::SYS_fremovexattr => self.descriptor_call(call, libc::EINVAL, None),
            libc::SYS_readahead => self.descriptor_call(call, libc::EINVAL, None),
            libc::SYS_fadvise64 => self.descriptor_call(call, libc::ESPIPE, None),
            CACHESTAT => self.descriptor_call(call, libc::EOPNOTSUPP, Some((c, 40))),
            libc::SYS_ftruncate => self.sys_ftruncate(call),
            libc::SYS_fallocate => self.sys_fallocate(call),
            libc::SYS_fstatfs => self.descriptor_call(call, libc::ENOSYS, Some((b, 120))),
            libc::SYS_sync => self.host_call(number, call.arguments),
            libc::SYS_umask => self.host_call(number, call.arguments),
            libc::SYS_memfd_create => self.sys_memfd_create(call),
            libc::SYS_inotify_init => self.sys_inotify_init(0),
            libc::SYS_inotify_init1 => self.sys_inotify_init(a as i32),
            libc::SYS_inotify_add_watch => self.sys_inotify_add_watch(call),
            libc::SYS_inotify_rm_watch => self.descriptor_call(call, libc::EINVAL, None),
            libc::SYS_sendfile => self.sys_sendfile(call),
            libc::SYS_copy_file_range => self.sys_copy_file_range(call),
            libc::SYS_splice => self.sys_splice(call),
            libc::SYS_tee => self.sys_tee(call),
            libc::SYS_vmsplice => self.sys_vmsplice(call),

            libc::SYS_pipe => self.sys_pipe(a, 0),
            libc::SYS_pipe2 => self.sys_pipe(a, b as i32),
            libc::SYS_eventfd => self.sys_eventfd(a, 0),
            libc::SYS_eventfd2 => self.sys_eventfd(a, b as i32),
            libc::SYS_timerfd_create => self.sys_timerfd_create(a, b as i32),
            libc::SYS_timerfd_settime => self.sys_timerfd_settime(call),
            libc::SYS_timerfd_gettime => self.sys_timerfd_gettime(a, b),
            libc::SYS_signalfd => self.sys_signalfd(call, 0),
            libc::SYS_signalfd4 => self.sys_signalfd(call, d as i32),
            libc::SYS_poll => self.sys_poll(call, c),
            libc::SYS_ppoll => self.sys_ppoll(call),
            libc::SYS_select => self.sys_select(call),
            libc::SYS_pselect6 => self.sys_pselect(call),
            libc::SYS_epoll_create if a as i32 <= 0 => Err(Halt::Errno(libc::EINVAL)),
            libc::SYS_epoll_create => self.sys_epoll_create(0),
            libc::SYS_epoll_create1 => self.sys_epoll_create(a as i32),
            libc::SYS_epoll_ctl => self.sys_epoll_ctl(call),
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait => self.sys_epoll_wait(call),
            libc::SYS_epoll_pwait2 => self.sys_epoll_pwait2(call),

            libc::SYS_socket => self.sys_socket(a, b, c),
            libc::SYS_socketpair => self.sys_socketpair(call),
            libc::SYS_bind | libc::SYS_listen | libc::SYS_setsockopt => self.sys_socket_set(call),
            libc::SYS_getsockopt => self.sys_getsockopt(call),
            libc::SYS_getsockname | libc::SYS_getpeername => self.sys_socket_name(call),
            libc::SYS_shutdown => self.sys_shutdown(a as i32, b),
            libc::SYS_connect => self.sys_connect(call),
            libc::SYS_accept => self.sys_accept(call, 0),
            libc::SYS_accept4 => self.sys_accept(call, d as i32),
            libc::SYS_sendto => self.sys_sendto(call),
            libc::SYS_sendmsg => self.sys_sendmsg(call),
            libc::SYS_sendmmsg => self.sys_sendmmsg(call),
            libc::SYS_recvfrom => self.sys_recvfrom(call),
            libc::SYS_recvmsg => self.sys_recvmsg(call),
            libc::SYS_recvmmsg => self.sys_recvmmsg(call),

            libc::SYS_mmap => self.sys_mmap(call),
            libc::SYS_munmap => self.sys_munmap(a, b),
            libc::SYS_mprotect => self.sys_mprotect(a, b, c),
            libc::SYS_mremap => self.sys_mremap(call),
            libc::SYS_brk => self.sys_brk(a),
            libc::SYS_madvise => self.sys_madvise(a, b, c),
            libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => self.sys_mlock(call),
            libc::SYS_mlockall => self.sys_mlockall(a),
            libc::SYS_munlockall => self.sys_munlockall(),
            libc::SYS_msync => self.sys_msync(a, b, c),
            libc::SYS_mincore => self.sys_mincore(a, b, c),

            libc::SYS_futex => self.sys_futex(call),
            libc::SYS_clone => self.sys_clone(call),
            libc::SYS_exit => self.sys_exit(a),
            libc::SYS_exit_group => self.sys_exit_group(a),
            libc::SYS_sched_yield => Err(Halt::Yield(0)),
            libc::SYS_nanosleep => self.sys_nanosleep(call, a, b),
            libc::SYS_clock_nanosleep => self.sys_clock_nanosleep(call),
            libc::SYS_clock_gettime => self.sys_clock_gettime(a, b),
            libc::SYS_clock_getres => self.sys_clock_getres(a, b),
            libc::SYS_clock_settime => self.sys_clock_settime(a),
            libc::SYS_settimeofday => self.sys_settimeofday(call),
            libc::SYS_adjtimex => self.sys_adjtimex(a),
            libc::SYS_clock_adjtime if a as i32 == libc::CLOCK_REALTIME => self.sys_adjtimex(b),
            libc::SYS_clock_adjtime => Err(Halt::Errno(libc::EOPNOTSUPP)),
            libc::SYS_gettimeofday => self.sys_gettimeofday(a, b),
            libc::SYS_time => self.sys_time(a),
            libc::SYS_rt_sigaction => self.sys_rt_sigaction(call),
            libc::SYS_rt_sigprocmask => self.sys_rt_sigprocmask(call),
            libc::SYS_rt_sigreturn => self.sys_rt_sigreturn(),
            libc::SYS_rt_sigpending => self.sys_rt_sigpending(a),
            libc::SYS_rt_sigsuspend => self.sys_rt_sigsuspend(call),
            libc::SYS_rt_sigtimedwait => self.sys_rt_sigtimedwait(call),
            libc::SYS_rt_sigqueueinfo => self.sys_rt_sigqueueinfo(call, false),
            libc::SYS_rt_tgsigqueueinfo => self.sys_rt_sigqueueinfo(call, true),
            libc::SYS_sigaltstack => self.sys_sigaltstack(a, b),
            libc::SYS_pause => self.sys_pause(),
            libc::SYS_kill => self.sys_kill(call),
            libc::SYS_tkill => self.sys_tkill(call),
            libc::SYS_tgkill => self.sys_tgkill(call),

            libc::SYS_alarm => self.sys_alarm(a),
            libc::SYS_getitimer => self.sys_getitimer(a, b),
            libc::SYS_setitimer => self.sys_setitimer(a, b, c),
            libc::SYS_timer_create => self.sys_timer_create(a, b, c),
            libc::SYS_timer_settime => self.sys_timer_settime(call),
            libc::SYS_timer_gettime => self.sys_timer_gettime(a, b),
            libc::SYS_timer_getoverrun => self.sys_timer_getoverrun(a),
            libc::SYS_timer_delete => self.sys_timer_delete(a),
            libc::SYS_fork => self.sys_fork(call),
            libc::SYS_vfork => self.sys_vfork(call),
            libc::SYS_execve => self.sys_execve(call),
            libc::SYS_execveat => self.sys_execveat(call),
            libc::SYS_wait4 => self.sys_wait4(call),
            libc::SYS_waitid => self.sys_waitid(call),
            libc::SYS_getppid
            | libc::SYS_getpgid
            | libc::SYS_getpgrp
            | libc::SYS_getsid
            | libc::SYS_setpgid
            | libc::SYS_setsid => self.host_call(call.number as i64, call.arguments),
            libc::SYS_arch_prctl => self.sys_arch_prctl(a, b),
            libc::SYS_prctl => self.sys_prctl(call),
            libc::SYS_getrandom => self.sys_getrandom(call),
            libc::SYS_set_tid_address => self.sys_set_tid_address(a),
            libc::SYS_set_robust_list => self.sys_set_robust_list(a),
            libc::SYS_get_robust_list => self.sys_get_robust_list(a as i32, b, c),
            libc::SYS_gettid => Ok(i64::from(self.current_tid())),
            libc::SYS_getpid => Ok(i64::from(self.kernel.process.pid)),
            libc::SYS_getuid => Ok(i64::from(self.identity()?[0])),
            libc::SYS_geteuid => Ok(i64::from(self.identity()?[1])),
            libc::SYS_getgid => Ok(i64::from(self.identity()?[2])),
            libc::SYS_getegid => Ok(i64::from(self.identity()?[3])),
            libc::SYS_getresuid | libc::SYS_getresgid => self.sys_getres(call),
            libc::SYS_getgroups => self.sys_getgroups(call),
            libc::SYS_capget => self.sys_capget(call),
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid | libc::SYS_setfsuid => {
                self.sys_set_user(call)
            }
            libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
            | libc::SYS_capset => self.sys_set_identity(call),
            libc::SYS_getpriority
            | libc::SYS_setpriority
            | libc::SYS_ioprio_get
            | libc::SYS_ioprio_set => self.host_call(number, call.arguments),
            libc::SYS_uname => self.sys_uname(a),
            libc::SYS_sysinfo => self.sys_sysinfo(a),
            libc::SYS_getrlimit => self.sys_prlimit(0, a, 0, b),
            libc::SYS_setrlimit => self.sys_prlimit(0, a, b, 0),
            libc::SYS_prlimit64 => self.sys_prlimit(a, b, c, d),
            libc::SYS_getrusage => self.sys_getrusage(a, b),
            libc::SYS_times => self.sys_times(a),
            libc::SYS_personality => self.sys_personality(a),
            libc::SYS_sched_getaffinity => self.sys_sched_getaffinity(a, b, c),
            libc::SYS_sched_setaffinity => self.sys_sched_setaffinity(call),
            libc::SYS_sched_getscheduler
            | libc::SYS_sched_setscheduler
            | libc::SYS_sched_getparam
            | libc::SYS_sched_setparam
            | libc::SYS_sched_getattr
            | libc::SYS_sched_setattr
            | libc::SYS_sched_rr_get_interval => self.sys_sched(call),
            libc::SYS_sched_get_priority_max => self.sys_sched_priority(a, true),
            libc::SYS_sched_get_priority_min => self.sys_sched_priority(a, false),
            libc::SYS_getcpu => self.sys_getcpu(a, b),
            libc::SYS_membarrier => self.sys_membarrier(a),

            libc::SYS_shmget | libc::SYS_semget | libc::SYS_msgget => {
                self.host_call(number, call.arguments)
            }
            libc::SYS_shmat => self.sys_shmat(call),
            libc::SYS_shmdt => self.sys_shmdt(a),
            libc::SYS_shmctl => self.sys_shmctl(call),
            libc::SYS_semop | libc::SYS_semtimedop => self.sys_semop(call),
            libc::SYS_semctl => self.sys_semctl(call),
            libc::SYS_msgsnd => self.sys_msgsnd(call),
            libc::SYS_msgrcv => self.sys_msgrcv(call),
            libc::SYS_msgctl => self.sys_msgctl(call),
            libc::SYS_mq_open => self.sys_mq_open(call),
            libc::SYS_mq_unlink => self.host_call(number, call.arguments),
            libc::SYS_mq_timedsend | libc::SYS_mq_timedreceive => self.sys_mq_transfer(call),
            libc::SYS_mq_getsetattr => self.sys_mq_getsetattr(call),
            libc::SYS_mq_notify => self.sys_mq_notify(call),
            libc::SYS_pidfd_open => self.open_host_object(
                number,
                call.arguments,
                super::fd::Kind::Other,
                b as i32 & libc::O_NONBLOCK,
                true,
            ),
            libc::SYS_pidfd_send_signal => self.sys_pidfd_send_signal(call),

            // Refused in a way that makes programs and libraries do without.
            libc::SYS_rseq
            | libc::SYS_clone3
            | libc::SYS_io_uring_enter
            | libc::SYS_io_uring_register
            | libc::SYS_io_setup
            | libc::SYS_io_destroy
            | libc::SYS_io_submit
            | libc::SYS_io_cancel
            | libc::SYS_io_getevents
            | IO_PGETEVENTS
            | libc::SYS_mbind
            | libc::SYS_set_mempolicy
            | libc::SYS_get_mempolicy
            | libc::SYS_move_pages
            | libc::SYS_migrate_pages
            | libc::SYS_kcmp
            | libc::SYS_pidfd_getfd
            | libc::SYS_set_mempolicy_home_node
            | libc::SYS_process_mrelease
            | libc::SYS_name_to_handle_at
            | libc::SYS_open_by_handle_at
            | libc::SYS_keyctl
            | libc::SYS_add_key
            | libc::SYS_request_key
            | libc::SYS_memfd_secret
            | libc::SYS_landlock_create_ruleset
            | libc::SYS_fanotify_init
            | libc::SYS_futex_waitv
            | libc::SYS_process_madvise
            | libc::SYS_pkey_alloc => Err(Halt::Errno(libc::ENOSYS)),
            // What a program seldom asks for in vain: it is said.
            libc::SYS_io_uring_setup | libc::SYS_userfaultfd | libc::SYS_modify_ldt => {
                self.refuse_call(call.number, libc::ENOSYS)
            }
            libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
                self.sys_process_memory(call)
            }
            libc::SYS_unshare => self.sys_unshare(a),
            libc::SYS_ptrace
            | libc::SYS_mount
            | libc::SYS_umount2
            | libc::SYS_pivot_root
            | libc::SYS_setns
            | libc::SYS_syslog
            | libc::SYS_sethostname
            | libc::SYS_setdomainname
            | libc::SYS_swapon
            | libc::SYS_swapoff
            | libc::SYS_reboot
            | libc::SYS_acct
            | libc::SYS_quotactl
            | libc::SYS_iopl
            | libc::SYS_ioperm
            | libc::SYS_init_module
            | libc::SYS_finit_module
            | libc::SYS_delete_module
            | libc::SYS_kexec_load
            | libc::SYS_vhangup
            | libc::SYS_bpf => self.refuse_call(call.number, libc::EPERM),
            libc::SYS_perf_event_open => self.refuse_call(call.number, libc::EACCES),
            // A question about seccomp is not yet a filter.
            libc::SYS_seccomp if a as u32 > libc::SECCOMP_SET_MODE_FILTER => {
                Err(Halt::Errno(libc::EINVAL))
            }
            libc::SYS_seccomp => self.refuse_call(call.number, libc::EINVAL),
            _ => self.unsupported(call.number),
        }
    }

    /// Says something the first time.
    pub(crate) fn say_once(&mut self, what: String) {
        if !self.kernel.said.contains(&what) {
            self.say(&what);
            self.kernel.said.insert(what);
        }
    }

    pub(super) fn refuse_call(&mut self, number: u64, errno: i32) -> Outcome {
        let name = syscall_name(number).unwrap_or("unknown");
        self.refuse(&format!("system call {name}"), errno)
    }

    /// Fails with `errno`, and says once that this is deadheat's doing.
    pub(super) fn refuse(&mut self, what: &str, errno: i32) -> Outcome {
        let name = match errno {
            libc::EPERM => "EPERM",
            libc::EACCES => "EACCES",
            libc::ENOSYS => "ENOSYS",
            _ => "EINVAL",
        };
        self.say_once(format!(
            "{what} is refused here; the program is told so ({name}). docs/guests.md lists what is"
        ));
        Err(Halt::Errno(errno))
    }

    /// Says that the vm does not have it.
    fn unsupported(&mut self, number: u64) -> Outcome {
        let name = syscall_name(number).unwrap_or("unknown");
        self.say_once(format!(
            "system call {name} ({number}) is not supported; the program is told so (ENOSYS)"
        ));
        Err(Halt::Errno(libc::ENOSYS))
    }
}
