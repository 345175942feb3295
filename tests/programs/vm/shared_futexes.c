// Futexes that processes share: how many a wake wakes and which, bits, requeueing,
// waiters that were killed or stop, time-outs, signals, and addresses without memory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAITERS 4

static struct shared {
    int futex, other;
    int waiting, awake, order[16];
} *shared;

static long futex(int *word, int operation, unsigned value, void *timeout, int *word2, unsigned value3) {
    return syscall(SYS_futex, word, operation, value, timeout, word2, value3);
}

static void show(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void rest(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

// State of a process: asleep is 'S'.
static void until_asleep(pid_t pid) {
    char path[64], line[512];
    for (int i = 0; i < 5000; i++) {
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "r");
        int length = file ? fread(line, 1, sizeof line - 1, file) : 0;
        line[length] = 0;
        if (file)
            fclose(file);
        char *name_ends = strrchr(line, ')');
        if (name_ends && name_ends[2] == 'S')
            return;
        rest(1);
    }
}

static pid_t waiter(int number, unsigned bits) {
    int before = shared->waiting;
    pid_t pid = fork();
    if (pid == 0) {
        __atomic_add_fetch(&shared->waiting, 1, __ATOMIC_SEQ_CST);
        long result = futex(&shared->futex, FUTEX_WAIT_BITSET, 0, NULL, NULL, bits);
        int place = __atomic_fetch_add(&shared->awake, 1, __ATOMIC_SEQ_CST);
        shared->order[place % 16] = result == 0 ? number : -1;
        _exit(0);
    }
    while (__atomic_load_n(&shared->waiting, __ATOMIC_SEQ_CST) == before)
        rest(1);
    rest(50);
    until_asleep(pid);
    return pid;
}

static void until_awake(int count) {
    for (int i = 0; i < 5000 && __atomic_load_n(&shared->awake, __ATOMIC_SEQ_CST) < count; i++)
        rest(1);
    rest(50);
    printf("awake: %d\n", shared->awake);
}

static void end(pid_t *pids, int count) {
    for (int i = 0; i < count; i++)
        waitpid(pids[i], NULL, 0);
    memset(shared, 0, sizeof *shared);
}

// One that stops does not hold up those it shares memory with.
static void stopped(void) {
    pid_t pid = fork();
    if (pid == 0) {
        kill(getpid(), SIGSTOP);
        __atomic_store_n(&shared->awake, 1, __ATOMIC_SEQ_CST);
        futex(&shared->awake, FUTEX_WAKE, 1, NULL, NULL, 0);
        _exit(3);
    }
    int status;
    printf("stops: %d ", waitpid(pid, &status, WUNTRACED) == pid);
    printf("%d %d, awake %d\n", WIFSTOPPED(status), WSTOPSIG(status), shared->awake);
    kill(pid, SIGCONT);
    printf("goes on: %d ", waitpid(pid, &status, WCONTINUED) == pid);
    while (!WIFEXITED(status))
        waitpid(pid, &status, 0);
    printf("%d, awake %d\n", WEXITSTATUS(status), shared->awake);
    memset(shared, 0, sizeof *shared);
}

static void no_op(int signal) {}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[16];

    show("nobody", futex(&shared->futex, FUTEX_WAKE, 10, NULL, NULL, 0));
    for (int i = 0; i < WAITERS; i++)
        pids[i] = waiter(i, FUTEX_BITSET_MATCH_ANY);
    show("one", futex(&shared->futex, FUTEX_WAKE, 1, NULL, NULL, 0));
    until_awake(1);
    show("two", futex(&shared->futex, FUTEX_WAKE, 2, NULL, NULL, 0));
    until_awake(3);
    show("the rest", futex(&shared->futex, FUTEX_WAKE, 100, NULL, NULL, 0));
    until_awake(4);
    printf("first %d, last %d\n", shared->order[0], shared->order[3]);
    end(pids, WAITERS);

    for (int i = 0; i < WAITERS; i++)
        pids[i] = waiter(i, 1 << i % 2);
    show("no bits", futex(&shared->futex, FUTEX_WAKE_BITSET, 1, NULL, NULL, 0));
    show("other bits", futex(&shared->futex, FUTEX_WAKE_BITSET, 10, NULL, NULL, 4));
    show("second bit", futex(&shared->futex, FUTEX_WAKE_BITSET, 10, NULL, NULL, 2));
    until_awake(2);
    show("any", futex(&shared->futex, FUTEX_WAKE, 10, NULL, NULL, 0));
    end(pids, WAITERS);

    for (int i = 0; i < WAITERS; i++)
        pids[i] = waiter(i, FUTEX_BITSET_MATCH_ANY);
    show("changed", futex(&shared->futex, FUTEX_CMP_REQUEUE, 1, (void *)2, &shared->other, 5));
    show("less than none", futex(&shared->futex, FUTEX_CMP_REQUEUE, -1, (void *)2, &shared->other, 0));
    show("moved less than none", futex(&shared->futex, FUTEX_CMP_REQUEUE, 1, (void *)-1L, &shared->other, 0));
    show("one and two moved", futex(&shared->futex, FUTEX_CMP_REQUEUE, 1, (void *)2, &shared->other, 0));
    until_awake(1);
    show("left", futex(&shared->futex, FUTEX_WAKE, 10, NULL, NULL, 0));
    until_awake(2);
    show("moved", futex(&shared->other, FUTEX_WAKE, 10, NULL, NULL, 0));
    until_awake(4);
    end(pids, WAITERS);

    // Who was killed is woken no more.
    for (int i = 0; i < 3; i++)
        pids[i] = waiter(i, FUTEX_BITSET_MATCH_ANY);
    kill(pids[0], SIGKILL);
    waitpid(pids[0], NULL, 0);
    show("one of those who live", futex(&shared->futex, FUTEX_WAKE, 1, NULL, NULL, 0));
    until_awake(1);
    show("the other", futex(&shared->futex, FUTEX_WAKE, 10, NULL, NULL, 0));
    end(pids + 1, 2);

    stopped();

    // Two mappings of a file.
    char name[] = "shared_futexes_XXXXXX";
    int fd = mkstemp(name);
    ftruncate(fd, 8192);
    int *first = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
    int *second = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pids[0] = fork();
    if (pids[0] == 0)
        _exit(futex(first + 5, FUTEX_WAIT, 0, NULL, NULL, 0) == 0 ? 0 : 1);
    rest(50);
    until_asleep(pids[0]);
    show("another address", futex(second + 1024 + 5, FUTEX_WAKE, 10, NULL, NULL, 0));
    int status;
    waitpid(pids[0], &status, 0);
    printf("status %d\n", status);

    struct timespec soon = {0, 20000000};
    show("time", futex(&shared->futex, FUTEX_WAIT, 0, &soon, NULL, 0));
    show("value", futex(&shared->futex, FUTEX_WAIT, 1, &soon, NULL, 0));
    struct sigaction action = {.sa_handler = no_op};
    sigaction(SIGALRM, &action, NULL);
    alarm(1);
    show("signal", futex(&shared->futex, FUTEX_WAIT, 0, NULL, NULL, 0));
    show("woken for nobody", futex(&shared->futex, FUTEX_WAKE, 10, NULL, NULL, 0));

    int *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show("forbidden", futex(none, FUTEX_WAKE, 1, NULL, NULL, 0));
    munmap(none, 4096);
    show("not mapped", futex(none, FUTEX_WAKE, 1, NULL, NULL, 0));
    show("not mapped, private", futex(none, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0));
    ftruncate(fd, 0);
    show("behind the end", futex(first, FUTEX_WAKE, 1, NULL, NULL, 0));
    show("odd", futex((int *)((char *)shared + 1), FUTEX_WAKE, 1, NULL, NULL, 0));
    unlink(name);
    return 0;
}
