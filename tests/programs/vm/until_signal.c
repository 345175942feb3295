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
    printf("got %d while computing\n", got);
    got = 0;
    while (!got) pause();
    printf("got %d while waiting\n", got);
    return 9;
}
