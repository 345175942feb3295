// Computes until SIGTERM comes from outside, then waits for another one.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t got;
static void handler(int sig) { got = sig; }

int main(int argc, char **argv) {
    (void)argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) signal(SIGTERM, handler);
    printf("start\n");
    volatile double x = 1;
    while (!got) x = x * 1.0001 + 0.5;
    // The next one comes when the line is read: it must not be lost between a
    // look and the waiting.
    int first = got;
    sigset_t term, none;
    sigemptyset(&none);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    got = 0;
    printf("got %d while computing\n", first);
    while (!got) sigsuspend(&none);
    printf("got %d while waiting\n", got);
    return 9;
}
