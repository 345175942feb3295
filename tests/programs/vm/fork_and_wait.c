// Children: exit codes, order of waiting, death by signal, SIGCHLD, memory of
// one's own.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int children;
static void child(int sig) { (void)sig; children++; }

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int value = 1;
    pid_t pid = fork();
    if (pid == 0) {
        value = 2;
        printf("child: value %d, parent is parent %d\n", value, getppid() > 1);
        exit(7);
    }
    int status;
    printf("waited: %d\n", waitpid(pid, &status, 0) == pid);
    printf("status: %d %d, value %d\n", WIFEXITED(status), WEXITSTATUS(status), value);

    pid = fork();
    if (pid == 0) {
        for (;;) pause();
    }
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    printf("killed: %d %d\n", WIFSIGNALED(status), WTERMSIG(status));

    pid = fork();
    if (pid == 0) abort();
    waitpid(pid, &status, 0);
    printf("aborted: %d %d\n", WIFSIGNALED(status), WTERMSIG(status));

    pid = fork();
    if (pid == 0) *(volatile int *)0 = 1;
    waitpid(pid, &status, 0);
    printf("crashed: %d %d\n", WIFSIGNALED(status), WTERMSIG(status));

    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = child;
    action.sa_flags = SA_RESTART;
    sigaction(SIGCHLD, &action, NULL);
    for (int i = 0; i < 4; i++) {
        if (fork() == 0) {
            // A grandchild each.
            if (fork() == 0) _exit(i);
            wait(&status);
            _exit(10 + WEXITSTATUS(status));
        }
    }
    int sum = 0, waits = 0;
    while (wait(&status) > 0) {
        sum += WEXITSTATUS(status);
        waits++;
    }
    printf("four: %d waits, sum %d, errno %d, SIGCHLD %d\n", waits, sum, errno == ECHILD, children > 0);

    siginfo_t info;
    memset(&info, 0, sizeof info);
    pid = fork();
    if (pid == 0) _exit(3);
    int result = waitid(P_PID, pid, &info, WEXITED);
    printf("waitid: %d %d %d %d\n", result, info.si_pid == pid, info.si_code == CLD_EXITED, info.si_status);

    signal(SIGCHLD, SIG_DFL);
    pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(5);
    }
    waitpid(pid, &status, WUNTRACED);
    printf("stopped: %d %d\n", WIFSTOPPED(status), WSTOPSIG(status));
    kill(pid, SIGCONT);
    waitpid(pid, &status, 0);
    printf("continued: %d %d\n", WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
