// Two processes that ignore what asks them to end, one in a session of its own.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    if (fork() == 0)
        setsid();
    else {
        puts("ready");
        fflush(stdout);
    }
    for (;;)
        sleep(1);
}
