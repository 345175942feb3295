#include "two.h"
#include <stdatomic.h>
int payload[4];
atomic_int ready;
static void *writer(void *arg) {
    for (int i = 0; i < 4; i++)
        payload[i] = i + 1;
    atomic_store_explicit(&ready, 1, memory_order_release);
    return arg;
}
static void *reader(void *arg) {
    while (!atomic_load_explicit(&ready, memory_order_acquire))
        sched_yield();
    printf("%d\n", payload[3]);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
