#include "two.h"
#include <signal.h>
// What is written before a signal is sent is seen by its handler.
static int data;
static volatile sig_atomic_t seen;
static void handle(int number) {
    (void)number;
    seen = data;
}
int main(void) {
    signal(SIGUSR1, handle);
    data = 5;
    raise(SIGUSR1);
    printf("%d\n", (int)seen);
}
