// A lock made of an exchange and a plain store.
#include "two.h"
volatile int held;
long counter;
static void *worker(void *arg) {
    for (int i = 0; i < 100; i++) {
        while (__sync_lock_test_and_set(&held, 1))
            while (held)
                sched_yield();
        counter++;
        __sync_lock_release(&held);
    }
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
