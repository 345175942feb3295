// Waits until somebody sends it SIGTERM. WELL
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t told;

static void on_signal(int number)
{
    told = number;
}

int main(void)
{
    signal(SIGTERM, on_signal);
    puts("waiting");
    fflush(stdout);
    while (!told) { }
    puts("told");
    return 0;
}
