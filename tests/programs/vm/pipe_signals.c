// SIGPIPE from a process that sends it, and from a pipe that nobody reads.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t seen, from;
static void handler(int sig, siginfo_t *info, void *context) {
    seen++;
    from = info->si_pid;
}

static void broken(const char *who) {
    int ends[2];
    pipe(ends);
    close(ends[0]);
    int result = write(ends[1], "x", 1);
    printf("%s: %d %s, signals %d, from itself %d\n", who, result, strerrorname_np(errno), seen,
           from == getpid());
    close(ends[1]);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGPIPE, &action, NULL);
    broken("a pipe");
    int ready[2];
    pipe(ready);
    pid_t child = fork();
    if (child == 0) {
        sigset_t blocked, old;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGPIPE);
        sigprocmask(SIG_BLOCK, &blocked, &old);
        seen = 0;
        write(ready[1], "r", 1);
        while (!seen)
            sigsuspend(&old);
        printf("child: signals %d, from its parent %d\n", seen, from == getppid());
        broken("child's pipe");
        sigprocmask(SIG_SETMASK, &old, NULL);
        _exit(0);
    }
    char byte;
    read(ready[0], &byte, 1);
    kill(child, SIGPIPE);
    waitpid(child, NULL, 0);

    child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        write(ready[1], "r", 1);
        pause();
        _exit(0);
    }
    read(ready[0], &byte, 1);
    kill(child, SIGPIPE);
    int status;
    waitpid(child, &status, 0);
    printf("killed by it: %d\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);

    child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_IGN);
        kill(getppid(), SIGPIPE);
        write(ready[1], "r", 1);
        _exit(0);
    }
    read(ready[0], &byte, 1);
    waitpid(child, &status, 0);
    while (seen < 2)
        usleep(1000);
    printf("parent: signals %d\n", seen);
    return 0;
}
