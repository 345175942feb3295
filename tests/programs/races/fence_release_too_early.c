// MISSED at stripped: a check of a flag looks like an acquire load there.
// What is written behind a release fence is not published by it.
#include "two.h"
#include <stdatomic.h>
int early, late;
atomic_int ready;
static void *writer(void *arg) {
    early = 5;
    atomic_thread_fence(memory_order_release);
    late = 6; // RACE late
    atomic_store_explicit(&ready, 1, memory_order_relaxed);
    return arg;
}
static void *reader(void *arg) {
    while (!atomic_load_explicit(&ready, memory_order_relaxed))
        sched_yield();
    atomic_thread_fence(memory_order_acquire);
    printf("%d\n", early);
    printf("%d\n", late); // RACE late
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
