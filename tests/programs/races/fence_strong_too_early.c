// MISSED at stripped: a check of a flag looks like an acquire load there.
// The strongest fence is an instruction, and it comes too early all the same.
#include "two.h"
#include <stdatomic.h>
int payload;
atomic_int ready;
static void *writer(void *arg) {
    payload = 5; // RACE payload
    atomic_store(&ready, 1);
    return arg;
}
static void *reader(void *arg) {
    int seen = 0;
    while (!seen) {
        sched_yield();
        atomic_thread_fence(memory_order_seq_cst);
        seen = atomic_load_explicit(&ready, memory_order_relaxed);
    }
    payload++; // RACE payload
    return arg;
}
int main(void) {
    run(reader, writer);
    printf("%d\n", payload);
    return 0;
}
