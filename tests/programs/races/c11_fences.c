#include "two.h"
#include <stdatomic.h>
int payload;
atomic_int ready;
static void *writer(void *arg) {
    payload = 5;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&ready, 1, memory_order_relaxed);
    return arg;
}
static void *reader(void *arg) {
    while (!atomic_load_explicit(&ready, memory_order_relaxed))
        sched_yield();
    atomic_thread_fence(memory_order_acquire);
    printf("%d\n", payload);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
