#include "two.h"
#include <signal.h>
static int data;
static volatile sig_atomic_t seen;
static void handle(int number) {
    (void)number;
    seen = data;
}
static void *wait_for_it(void *x) {
    while (!seen)
        usleep(100);
    return x;
}
int main(void) {
    pthread_t thread;
    signal(SIGUSR1, handle);
    pthread_create(&thread, 0, wait_for_it, 0);
    data = 5;
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, 0);
    printf("%d\n", data);
}
