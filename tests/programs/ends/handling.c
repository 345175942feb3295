// Ends by itself when it is asked to, and says so.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void handler(int signal) { asked = signal; }

int main(void) {
    signal(SIGINT, handler);
    signal(SIGTERM, handler);
    puts("ready");
    fflush(stdout);
    while (!asked)
        usleep(1000);
    printf("asked by %d\n", (int)asked);
    return 7;
}
