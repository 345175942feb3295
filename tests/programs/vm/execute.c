// exec, vfork, posix_spawn, and what survives them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static void handler(int sig) { (void)sig; }

static int report(int argc, char **argv) {
    struct sigaction usr1, usr2;
    sigset_t mask;
    sigaction(SIGUSR1, NULL, &usr1);
    sigaction(SIGUSR2, NULL, &usr2);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    printf("%s: argc %d, env %s, usr1 ignored %d, usr2 default %d, hup blocked %d, self %d\n", argv[1], argc,
           getenv("GREETING") ? getenv("GREETING") : "none", usr1.sa_handler == SIG_IGN,
           usr2.sa_handler == SIG_DFL, sigismember(&mask, SIGHUP), argc > 2 && atoi(argv[2]) == getpid());
    return 40 + argc;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) return report(argc, argv);
    setenv("GREETING", "hello", 1);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, handler);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGHUP);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    int status;

    pid_t pid = fork();
    if (pid == 0) {
        char self[20];
        snprintf(self, sizeof self, "%d", getpid());
        execl(argv[0], argv[0], "forked", self, (char *)NULL);
        _exit(99);
    }
    waitpid(pid, &status, 0);
    printf("forked: %d\n", WEXITSTATUS(status));

    volatile int shared = 0;
    pid = vfork();
    if (pid == 0) {
        execl(argv[0], argv[0], "vforked", (char *)NULL);
        _exit(99);
    }
    waitpid(pid, &status, 0);
    printf("vforked: %d\n", WEXITSTATUS(status));

    pid = vfork();
    if (pid == 0) {
        shared = 17;
        _exit(3);
    }
    waitpid(pid, &status, 0);
    printf("vfork shares: %d %d\n", shared, WEXITSTATUS(status));

    char *arguments[] = {argv[0], "spawned", NULL};
    int spawned = posix_spawn(&pid, argv[0], NULL, NULL, arguments, environ);
    waitpid(pid, &status, 0);
    printf("spawn: %d\n", spawned);
    printf("spawned: %d\n", WEXITSTATUS(status));
    printf("spawn of nothing: %d\n", posix_spawn(&pid, "/nonexistent", NULL, NULL, arguments, environ) == ENOENT);

    errno = 0;
    execl("/nonexistent", "x", (char *)NULL);
    printf("exec of nothing: %d\n", errno == ENOENT);
    errno = 0;
    execl("/etc/passwd", "x", (char *)NULL);
    printf("exec of data: %d\n", errno == EACCES);

    char *empty[] = {NULL};
    char *last[] = {argv[0], "replaced", NULL};
    execve(argv[0], last, empty);
    return 98;
}
