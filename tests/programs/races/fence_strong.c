// The strongest fences, by three names, each where it belongs.
#include "two.h"
#include <stdatomic.h>
int payload, answer;
atomic_int ready;
int back;
static void *writer(void *arg) {
    payload = 5;
    __sync_synchronize();
    atomic_store_explicit(&ready, 1, memory_order_relaxed);
    while (!__atomic_load_n(&back, __ATOMIC_RELAXED))
        sched_yield();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    printf("%d\n", answer);
    return arg;
}
static void *reader(void *arg) {
    while (!atomic_load_explicit(&ready, memory_order_relaxed))
        sched_yield();
    atomic_thread_fence(memory_order_seq_cst);
    answer = payload + 1;
    __asm__ volatile("mfence" ::: "memory");
    __atomic_store_n(&back, 1, __ATOMIC_RELAXED);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
