// Atomic operations and plain accesses on one line, the plain ones by the only
// thread that has the lock of them.
#include "two.h"
#include <stdatomic.h>
#include <stdlib.h>
struct counts { long plain; atomic_int taken; int ready; };
static struct counts *counts;
static void *count(void *arg) {
    for (int i = 0; i < 100; i++) { while (atomic_exchange_explicit(&counts->taken, 1, memory_order_acquire)) sched_yield(); counts->plain += 1; atomic_store_explicit(&counts->taken, 0, memory_order_release); }
    __atomic_store_n(&counts->ready, 1, __ATOMIC_RELEASE); while (!__atomic_load_n(&counts->ready, __ATOMIC_ACQUIRE)) sched_yield();
    return arg;
}
int main(void) {
    counts = calloc(1, sizeof *counts);
    run(count, count);
    printf("%ld\n", counts->plain);
    return 0;
}
