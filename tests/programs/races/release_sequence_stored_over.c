// MISSED at stripped: a check of a flag looks like an acquire load there.
// A relaxed store ends the release sequence, also one by the same thread: since
// C++20 only changes by one atomic operation go on with it.
#include "two.h"
#include <stdatomic.h>
int payload;
atomic_int stage;
static void *writer(void *arg) {
    payload = 5; // RACE payload
    atomic_store_explicit(&stage, 1, memory_order_release);
    atomic_store_explicit(&stage, 2, memory_order_relaxed);
    return arg;
}
static void *reader(void *arg) {
    while (atomic_load_explicit(&stage, memory_order_acquire) != 2)
        sched_yield();
    printf("%d\n", payload); // RACE payload
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
