// MISSED at stripped: a check of a flag looks like an acquire load there.
// A fence before a relaxed load gives that load nothing: only loads before an
// acquire fence are completed by it.
#include "two.h"
#include <stdatomic.h>
int payload;
atomic_int ready;
static void *writer(void *arg) {
    payload = 5; // RACE payload
    atomic_store_explicit(&ready, 1, memory_order_release);
    return arg;
}
static void *reader(void *arg) {
    int seen = 0;
    while (!seen) {
        sched_yield();
        atomic_thread_fence(memory_order_acquire);
        seen = atomic_load_explicit(&ready, memory_order_relaxed);
    }
    printf("%d\n", payload); // RACE payload
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
