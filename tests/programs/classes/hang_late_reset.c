// A flag is cleared by one thread and set by another: cleared last, the
// waiter loops for ever. The nap makes that rare, so that recorded runs end.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

volatile int done;

void *clearer(void *unused) {
    done = 0;                              // RACE done: spec-violated hang
    return 0;
}

void *setter(void *unused) {
    usleep(1000);
    done = 1;                              // RACE done: spec-violated hang
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, clearer, 0);
    pthread_create(&two, 0, setter, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    while (!done) {}
    printf("done\n");
    return 0;
}
