// Whose child a clone is, and how its end is told: CLONE_PARENT from a child and
// from a vfork child, other exit signals than SIGCHLD and none, and who waits
// for whom.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int chld, usr1;

static void count(int signal) {
    if (signal == SIGCHLD) chld++;
    else usr1++;
}

static pid_t make(unsigned long flags) {
    fflush(stdout);
    return syscall(SYS_clone, flags, 0, 0, 0, 0);
}

static void all_ends(const char *who) {
    int status, ends[8], n = 0;
    while (wait4(-1, &status, __WALL, NULL) > 0) ends[n++] = status;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (ends[j] < ends[i]) { int end = ends[i]; ends[i] = ends[j]; ends[j] = end; }
    printf("%s:", who);
    for (int i = 0; i < n; i++) printf(" %d", WEXITSTATUS(ends[i]));
    printf(" errno %d\n", errno);
}

int main(void) {
    signal(SIGCHLD, count);
    signal(SIGUSR1, count);
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t top = getpid();

    // A sibling, made by a child: the parent waits for both.
    if (make(SIGCHLD) == 0) {
        pid_t sibling = make(CLONE_PARENT | SIGCHLD);
        if (sibling == 0) _exit(getppid() == top ? 21 : 22);
        int errors = wait4(sibling, NULL, 0, NULL) == -1 && errno == ECHILD;
        _exit(errors ? 31 : 32);
    }
    all_ends("sibling");

    // The same from a vfork child, through memory that is shared.
    volatile pid_t sibling = 0;
    pid_t child = vfork();
    if (child == 0) {
        sibling = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
        if (sibling == 0) _exit(23);
        _exit(33);
    }
    printf("vfork child and its sibling: %d\n", child > 0 && sibling > 0 && child != sibling);
    all_ends("vforked");

    // No signal at the end: a plain wait does not see it.
    chld = usr1 = 0;
    if ((child = make(0)) == 0) _exit(41);
    int status = 0;
    int plain = waitpid(child, &status, 0);
    printf("silent: plain wait %d errno %d", plain, errno);
    int found = waitpid(child, &status, __WCLONE);
    printf(", __WCLONE %d exit %d, signals %d %d\n", found == child, WEXITSTATUS(status), chld, usr1);

    // Another signal.
    if ((child = make(SIGUSR1)) == 0) _exit(42);
    found = waitpid(child, &status, __WALL);
    printf("told by SIGUSR1: %d exit %d, signals %d %d\n", found == child, WEXITSTATUS(status), chld, usr1);

    // A grandchild is killed whose parent is gone.
    if ((child = make(SIGCHLD)) == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            shared[0] = getpid();
            for (;;) pause();
        }
        _exit(43);
    }
    waitpid(child, &status, 0);
    while (*(volatile int *)shared == 0) usleep(1000);
    printf("grandchild killed: %d\n", kill(shared[0], SIGKILL));
    while (kill(shared[0], 0) == 0) usleep(1000);
    printf("gone\n");
    return 0;
}
