// Fences behind names: a macro, a function, as the Linux kernel calls them.
#include "two.h"
#define write_barrier() __atomic_thread_fence(__ATOMIC_RELEASE)
static inline void read_barrier(void) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}
int payload, ready;
static void *writer(void *arg) {
    payload = 5;
    write_barrier();
    __atomic_store_n(&ready, 1, __ATOMIC_RELAXED);
    return arg;
}
static void *reader(void *arg) {
    while (!__atomic_load_n(&ready, __ATOMIC_RELAXED))
        sched_yield();
    read_barrier();
    printf("%d\n", payload);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
