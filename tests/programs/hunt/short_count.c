// A meeting point that counts without care: one arrival is lost, and all wait
// for it for ever.
// HUNT fails: hang
#include "work.h"
#include <pthread.h>
#include <sched.h>

static volatile int arrived;

static void *traveller(void *unused) {
    (void)unused;
    work(200);
    int before = arrived;   // DECIDES
    arrived = before + 1;   // DECIDES
    while (arrived < 2)     // DECIDES
        sched_yield();
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, traveller, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
