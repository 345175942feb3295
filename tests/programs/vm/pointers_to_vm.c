// System calls that are given addresses at which nothing can be: where the vm has its
// context, its code cache and its own program. As natively, where nothing is there.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <net/if.h>
#include <unistd.h>

static void show(const char *name, long result) {
    printf("%s: %s\n", name, result < 0 ? strerrorname_np(errno) : "ok");
}
#define SHOW(call, ...) show(#call, syscall(SYS_##call, ##__VA_ARGS__))

static void *exits(void *where) {
    // The kernel looks at the list when the thread ends, and clears a word.
    syscall(SYS_set_robust_list, where, 24);
    syscall(SYS_set_tid_address, where);
    return where;
}

static void all(unsigned long where, int fd, int tty, int queue, int set, int *pair, int *ends,
                int epoll) {
    char *bad = (char *)where, byte = 'x';
    struct timespec now = {0}, soon = {0, 1000};
    SHOW(read, fd, bad, 100L);
    SHOW(pread64, fd, bad, 100L, 0L);
    struct iovec one = {bad, 10}, over = {(void *)(where - 100), 200};
    SHOW(readv, fd, &one, 1L);
    SHOW(readv, fd, bad, 1L);
    SHOW(preadv, fd, &over, 1L, 0L);
    SHOW(write, ends[1], bad, 10L);
    SHOW(writev, ends[1], &one, 1L);
    SHOW(sendto, pair[0], bad, 10L, 0L, 0L, 0L);
    SHOW(recvfrom, pair[1], bad, 10L, MSG_DONTWAIT | MSG_PEEK, 0L, 0L);
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
    SHOW(recvmsg, pair[1], &message, MSG_DONTWAIT | MSG_PEEK);
    SHOW(recvmsg, pair[1], bad, MSG_DONTWAIT);
    SHOW(sendmsg, pair[0], &message, 0L);
    SHOW(msgsnd, queue, bad, 10L, IPC_NOWAIT);
    SHOW(msgrcv, queue, bad, 10L, 0L, IPC_NOWAIT | 020000);
    SHOW(msgctl, queue, IPC_STAT, bad);
    SHOW(semctl, set, 0L, GETALL, bad);
    SHOW(semctl, set, 0L, IPC_STAT, bad);
    SHOW(semop, set, bad, 1L);
    SHOW(getsockopt, pair[0], SOL_SOCKET, SO_TYPE, bad, bad);
    SHOW(getsockname, pair[0], bad, bad);
    SHOW(uname, bad);
    SHOW(sysinfo, bad);
    SHOW(clock_gettime, CLOCK_MONOTONIC, bad);
    SHOW(clock_getres, CLOCK_MONOTONIC, bad);
    SHOW(gettimeofday, bad, 0L);
    SHOW(nanosleep, bad, 0L);
    SHOW(nanosleep, &soon, bad);
    SHOW(futex, bad, FUTEX_WAIT, 0L, &now, 0L, 0L);
    SHOW(futex, bad, FUTEX_WAIT_PRIVATE, 0L, &now, 0L, 0L);
    SHOW(futex, bad, FUTEX_WAKE_OP_PRIVATE, 1L, 1L, bad, 0L);
    SHOW(futex, bad, FUTEX_LOCK_PI, 0L, &now, 0L, 0L);
    SHOW(futex, bad, FUTEX_CMP_REQUEUE_PRIVATE, 1L, 1L, bad, 0L);
    SHOW(getrusage, RUSAGE_SELF, bad);
    SHOW(times, bad);
    SHOW(pipe2, bad, 0L);
    SHOW(socketpair, AF_UNIX, SOCK_STREAM, 0L, bad);
    SHOW(sigaltstack, bad, 0L);
    SHOW(sigaltstack, 0L, bad);
    SHOW(rt_sigaction, SIGUSR1, bad, 0L, 8L);
    SHOW(rt_sigaction, SIGUSR1, 0L, bad, 8L);
    SHOW(rt_sigprocmask, SIG_BLOCK, bad, 0L, 8L);
    SHOW(rt_sigprocmask, SIG_BLOCK, 0L, bad, 8L);
    SHOW(rt_sigpending, bad, 8L);
    SHOW(getitimer, ITIMER_REAL, bad);
    SHOW(epoll_wait, epoll, bad, 1L, 0L);
    SHOW(poll, bad, 1L, 0L);
    SHOW(ppoll, bad, 1L, &now, 0L, 8L);
    SHOW(select, 1L, bad, 0L, 0L, 0L);
    SHOW(getrandom, bad, 8L, 0L);
    SHOW(readlink, "/proc/self/exe", bad, 100L);
    SHOW(getcwd, bad, 100L);
    SHOW(fstat, fd, bad);
    SHOW(statx, fd, "", AT_EMPTY_PATH, 0xfff, bad);
    SHOW(fstatfs, fd, bad);
    SHOW(openat, AT_FDCWD, bad, O_RDONLY);
    SHOW(ioctl, ends[0], FIONREAD, bad);
    SHOW(ioctl, pair[0], FIONREAD, bad);
    SHOW(ioctl, tty, SIOCGIFCONF, bad);
    struct ifconf names = {.ifc_len = 1000, .ifc_buf = bad};
    SHOW(ioctl, tty, SIOCGIFCONF, &names);
    SHOW(prctl, PR_GET_NAME, bad);
    SHOW(prctl, PR_SET_NAME, bad);
    SHOW(prctl, PR_GET_PDEATHSIG, bad);
    SHOW(sched_getaffinity, 0L, 8L, bad);
    SHOW(sched_getparam, 0L, bad);
    SHOW(getcpu, bad, 0L, 0L);
    SHOW(getresuid, bad, bad, bad);
    SHOW(capget, bad, bad);
    SHOW(get_robust_list, 0L, bad, bad);
    SHOW(prlimit64, 0L, RLIMIT_NOFILE, 0L, bad);
    SHOW(prlimit64, 0L, RLIMIT_NOFILE, bad, 0L);
    SHOW(sendfile, pair[0], fd, bad, 1L);
    SHOW(arch_prctl, 0x1003L, bad);
    SHOW(mincore, bad, 4096L, &byte);
    SHOW(mprotect, where & -4096L, 4096L, PROT_READ | PROT_WRITE);
    SHOW(madvise, where & -4096L, 4096L, MADV_DONTNEED);
    SHOW(mremap, where & -4096L, 4096L, 8192L, MREMAP_MAYMOVE);
    SHOW(munmap, where & -4096L, 4096L);
    SHOW(msync, where & -4096L, 4096L, MS_SYNC);
    SHOW(mlock, where & -4096L, 4096L);
    SHOW(vmsplice, ends[1], &one, 1L, 0L);
    SHOW(wait4, -1L, bad, WNOHANG, 0L);
    SHOW(timer_create, CLOCK_REALTIME, bad, bad);
    SHOW(execve, bad, 0L, 0L);
    SHOW(execve, "/bin/true", bad, 0L);
    fflush(stdout);
    pthread_t thread;
    pthread_create(&thread, NULL, exits, bad);
    // It cannot be joined: nobody clears its word. It ends all the same.
    pthread_detach(thread);
    for (int i = 0; i < 20; i++)
        sched_yield();
    pid_t child = fork();
    if (!child) {
        SHOW(wait4, -1L, bad, 0L, 0L);
        _exit(0);
    }
    show("wait4", syscall(SYS_wait4, child, bad, 0L, 0L));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    char name[] = "/tmp/dh-pointers-XXXXXX";
    int fd = mkstemp(name), pair[2], ends[2], epoll = epoll_create1(0);
    unlink(name);
    if (write(fd, name, sizeof name) < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || pipe(ends))
        return 1;
    struct epoll_event event = {EPOLLOUT};
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event);
    int queue = msgget(IPC_PRIVATE, 0600), set = semget(IPC_PRIVATE, 2, 0600);
    struct {
        long kind;
        char text[10];
    } letter = {1, "letter"};
    int sockets = socket(AF_INET, SOCK_DGRAM, 0);
    unsigned long places[] = {0x600001000010, 0x600001200100, 0x600005000000, 0x540000001000,
                              0x7ffffffff000 - 4096};
    for (int i = 0; i < 4; i++) {
        lseek(fd, 0, SEEK_SET);
        if (send(pair[0], "text", 4, 0) < 0 || msgsnd(queue, &letter, 10, IPC_NOWAIT))
            return 1;
        printf("at %#lx\n", places[i]);
        all(places[i], fd, sockets, queue, set, pair, ends, epoll);
    }
    msgctl(queue, IPC_RMID, NULL);
    semctl(set, 0, IPC_RMID);
    return 0;
}
