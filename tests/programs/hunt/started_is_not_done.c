// The main thread waits until the other has begun, and means until it is done.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_int started;
static int result;

static void *compute(void *unused) {
    (void)unused;
    atomic_store(&started, 1);
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += i;
    result = sum;  // DECIDES
    work(100);
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, compute, 0);
    while (!atomic_load(&started))
        ;
    work(300);
    int seen = result;  // DECIDES
    pthread_join(thread, 0);
    return seen != 45;
}
