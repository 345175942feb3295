// Relaxed changes go on with the release sequence; a neighbour in the same word
// is an object of its own.
#include "two.h"
#include <stdatomic.h>
int payload, other;
atomic_int stage;
static struct {
    _Atomic unsigned char published, beside;
} flags;
static void *writer(void *arg) {
    other = 5;
    atomic_store_explicit(&stage, 1, memory_order_release);
    atomic_fetch_add_explicit(&stage, 1, memory_order_relaxed);
    payload = 6;
    atomic_store_explicit(&flags.published, 1, memory_order_release);
    atomic_store_explicit(&flags.beside, 1, memory_order_relaxed);
    return arg;
}
static void *reader(void *arg) {
    while (!atomic_load_explicit(&flags.beside, memory_order_relaxed))
        sched_yield();
    while (!atomic_load_explicit(&flags.published, memory_order_acquire))
        sched_yield();
    while (atomic_load_explicit(&stage, memory_order_acquire) != 2)
        sched_yield();
    printf("%d %d\n", other, payload);
    return arg;
}
int main(void) {
    run(reader, writer);
    return 0;
}
