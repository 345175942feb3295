// Handlers, masks, pending sets, queued values, one-shot and nested handlers.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int depth, deepest, count, budget = 2;
static volatile int order[16], values[16];

static void nested(int sig) {
    depth++;
    if (depth > deepest) deepest = depth;
    if (depth < 3 && budget-- > 0) raise(sig);
    depth--;
}

static void queued(int sig, siginfo_t *info, void *context) {
    (void)context;
    order[count] = sig;
    values[count++] = info->si_value.sival_int;
}

static void set(int sig, void (*plain)(int), void (*full)(int, siginfo_t *, void *), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    if (full) { action.sa_sigaction = full; flags |= SA_SIGINFO; } else action.sa_handler = plain;
    action.sa_flags = flags;
    sigaction(sig, &action, NULL);
}

int main(void) {
    set(SIGUSR1, nested, NULL, 0);
    raise(SIGUSR1);
    printf("deferred: depth %d\n", deepest);
    deepest = 0, budget = 2;
    set(SIGUSR1, nested, NULL, SA_NODEFER);
    raise(SIGUSR1);
    printf("nodefer: depth %d\n", deepest);

    set(SIGUSR2, nested, NULL, SA_RESETHAND | SA_NODEFER);
    deepest = 0; depth = 5;
    raise(SIGUSR2);
    depth = 0;
    struct sigaction now;
    sigaction(SIGUSR2, NULL, &now);
    printf("reset: %d\n", now.sa_handler == SIG_DFL);

    set(SIGRTMIN, NULL, queued, 0);
    set(SIGRTMIN + 1, NULL, queued, 0);
    set(SIGUSR1, NULL, queued, 0);
    sigset_t all, old, pending;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    for (int i = 0; i < 3; i++) {
        sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 10 + i});
        sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
        sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 100 + i});
    }
    sigpending(&pending);
    printf("pending: %d %d %d\n", sigismember(&pending, SIGRTMIN), sigismember(&pending, SIGUSR1),
           sigismember(&pending, SIGUSR2));
    sigprocmask(SIG_SETMASK, &old, NULL);
    // Frames are pushed in order of number, so the last one runs first.
    for (int i = 0; i < count; i++) printf("got %d value %d\n", order[i], values[i]);

    signal(SIGUSR1, SIG_IGN);
    raise(SIGUSR1);
    sigset_t wait;
    sigemptyset(&wait);
    sigaddset(&wait, SIGTERM);
    sigprocmask(SIG_BLOCK, &wait, NULL);
    kill(getpid(), SIGTERM);
    siginfo_t info;
    int got = sigwaitinfo(&wait, &info);
    printf("waited for %d from self %d code %d\n", got, info.si_pid == getpid(), info.si_code);
    struct timespec timeout = {0, 1000000};
    got = sigtimedwait(&wait, &info, &timeout);
    printf("timed out: %d\n", got);
    sigprocmask(SIG_UNBLOCK, &wait, NULL);
    fflush(stdout);
    raise(SIGTERM);
    printf("not reached\n");
    return 1;
}
