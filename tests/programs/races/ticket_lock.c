#include "two.h"
#include <stdatomic.h>
atomic_uint next, serving;
long counter;
static void *worker(void *arg) {
    for (int i = 0; i < 100; i++) {
        unsigned mine = atomic_fetch_add(&next, 1);
        while (atomic_load_explicit(&serving, memory_order_acquire) != mine)
            sched_yield();
        counter++;
        atomic_store_explicit(&serving, mine + 1, memory_order_release);
    }
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
