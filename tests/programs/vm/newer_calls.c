// Calls that newer kernels have: children by descriptor, close_range, cachestat,
// fchmodat2, openat2, questions about descriptors; and old ones with arguments
// that are refused.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void show(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static long clone_process(unsigned long flags, void *parent, void *child) {
    return syscall(SYS_clone, flags, NULL, parent, child, NULL);
}

static void children(void) {
    int fd = -1, lines[2];
    pipe(lines);
    pid_t pid = clone_process(CLONE_PIDFD | SIGCHLD, &fd, NULL);
    if (pid == 0) {
        char byte;
        close(lines[1]);
        read(lines[0], &byte, 1);
        _exit(7);
    }
    printf("child: %d, descriptor: %d, closes on exec: %d\n", pid > 0, fd > 2, fcntl(fd, F_GETFD));
    struct pollfd ready = {fd, POLLIN};
    show("lives", poll(&ready, 1, 0));
    close(lines[1]);
    show("ends", poll(&ready, 1, -1));
    siginfo_t info = {0};
    show("waited for", waitid(P_PIDFD, fd, &info, WEXITED));
    printf("%d %d %d\n", info.si_pid == pid, info.si_code, info.si_status);
    show("twice", waitid(P_PIDFD, fd, &info, WEXITED));
    show("signal", syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
    close(fd);
    close(lines[0]);

    pid = clone_process(CLONE_PIDFD | SIGCHLD, &fd, NULL);
    if (pid == 0) {
        pause();
        _exit(0);
    }
    show("killed", syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0));
    show("waited for", waitid(P_PIDFD, fd, &info, WEXITED));
    printf("%d %d\n", info.si_code, info.si_status);
    close(fd);
    int also;
    show("two answers in one place", clone_process(CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, &also, NULL));
    show("bad address", clone_process(CLONE_PIDFD | SIGCHLD, (void *)8, NULL));
}

static void descriptors(void) {
    int first = dup(0);
    for (int i = 0; i < 20; i++)
        dup(0);
    show("closed", close_range(first + 3, first + 5, 0));
    show("lowest", dup(0) - first);
    show("and next", dup(0) - first);
    show("behind", dup(0) - first);
    show("wrong way round", close_range(9, 8, 0));
    show("rest", close_range(first, ~0U, 0));
    printf("%d\n", fcntl(first, F_GETFD));
    int one = memfd_create("one", 0), same = dup(one), other = memfd_create("other", 0);
    show("same", fcntl(one, 1027, same));
    show("not the same", fcntl(one, 1027, other));
    show("none", fcntl(one, 1027, 999));
    // As many as there may be, twice over.
    struct rlimit limit = {3000, 3000};
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int round = 0; round < 2; round++) {
        int count = 0;
        while (dup(one) >= 0)
            count++;
        printf("%d %s\n", count, strerrorname_np(errno));
        close_range(other + 1, ~0U, 0);
    }
}

static void files(void) {
    char name[] = "newer_calls_XXXXXX";
    int fd = mkstemp(name);
    char page[8192] = "some text";
    write(fd, page, sizeof page);
    uint64_t range[2] = {0, 8192}, state[5];
    show("cachestat", syscall(451, fd, range, state, 0));
    printf("%lu pages\n", state[0]);
    show("no descriptor", syscall(451, 999, range, state, 0));
    show("unknown flag", syscall(451, fd, range, state, 1));
    show("fchmodat2", syscall(452, AT_FDCWD, name, 0640, 0));
    struct stat facts;
    stat(name, &facts);
    printf("%o\n", facts.st_mode);
    show("unknown flag", syscall(452, AT_FDCWD, name, 0640, 1));
    show("created", fcntl(fd, 1028));
    uint64_t how[4] = {O_RDONLY, 0, 0, 0};
    show("openat2", close(syscall(SYS_openat2, AT_FDCWD, name, how, 24)));
    show("longer", close(syscall(SYS_openat2, AT_FDCWD, name, how, 32)));
    how[3] = 1;
    show("something new", syscall(SYS_openat2, AT_FDCWD, name, how, 32));
    show("short", syscall(SYS_openat2, AT_FDCWD, name, how, 16));
    how[1] = 0600;
    show("mode of nothing", syscall(SYS_openat2, AT_FDCWD, name, how, 24));
    how[0] = O_RDONLY | O_CREAT;
    how[1] = 010000;
    show("no mode", syscall(SYS_openat2, AT_FDCWD, name, how, 24));
    how[0] = ~0UL;
    show("no flags", syscall(SYS_openat2, AT_FDCWD, name, how, 24));
    int path = open(name, O_PATH);
    show("only a path", (long)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, path, 0));
    show("readahead", readahead(path, 0, 4096));
    unlink(name);
}

static void no_op(int signal) {}

// What is ignored but blocked can be waited for.
static void ignored_and_awaited(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    signal(SIGUSR2, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid_t child = fork();
    if (child == 0) {
        kill(getppid(), SIGUSR2);
        _exit(0);
    }
    siginfo_t info;
    struct timespec time = {10, 0};
    show("awaited", sigtimedwait(&set, &info, &time) == SIGUSR2);
    printf("from the child: %d\n", info.si_pid == child);
    waitpid(child, NULL, 0);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    children();
    descriptors();
    files();

    int pipes[2], pair[2];
    pipe(pipes);
    struct iovec part = {"x", 1};
    show("a place in a pipe", pwritev(pipes[0], &part, 1, 0));
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char name[32];
    socklen_t length = -1;
    show("less than no room", getpeername(pair[0], (struct sockaddr *)name, &length));
    show("name too long", sendto(pair[0], "x", 1, 0, (struct sockaddr *)name, -1));
    show("an unknown kind of pair", socketpair(AF_INET, 75, 0, pair));
    show("no local pair", socketpair(AF_INET, SOCK_STREAM, 0, pair));
    show("no such protocol", socketpair(AF_INET, SOCK_DGRAM, 6, pair));
    show("filled", write(pipes[1], "some text", 9));
    show("into itself", splice(pipes[0], NULL, pipes[1], NULL, 5, 0));
    show("copied into itself", tee(pipes[0], pipes[1], 5, 0));
    int appends = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND, 0600);
    show("appended", splice(pipes[0], NULL, appends, NULL, 5, 0));
    show("from the wrong end", splice(pipes[1], NULL, appends, NULL, 5, 0));
    show("no pipe", vmsplice(appends, &part, 1, 0));
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec never = {0};
    show("unknown flag", timerfd_settime(timer, 4, &never, NULL));
    struct sigaction action = {.sa_handler = no_op, .sa_flags = SA_RESETHAND | SA_RESTART | SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigaction(SIGUSR1, NULL, &action);
    printf("default: %d, restarts: %d, told: %d\n", action.sa_handler == SIG_DFL,
           (action.sa_flags & SA_RESTART) != 0, (action.sa_flags & SA_SIGINFO) != 0);
    ignored_and_awaited();
    int receiver = socket(AF_INET, SOCK_DGRAM, 0);
    show("no error waits", recv(receiver, name, sizeof name, MSG_ERRQUEUE));
    struct timespec second = {1, 0};
    show("own time", syscall(SYS_clock_nanosleep, CLOCK_THREAD_CPUTIME_ID, 0, &second, NULL));
    return 0;
}
