// One producer, one consumer, acquire and release on the indices.
#include "two.h"
#include <stdatomic.h>
enum { SIZE = 8 };
int slots[SIZE];
atomic_uint head, tail;
static void *producer(void *arg) {
    for (int i = 0; i < 100;) {
        unsigned t = atomic_load_explicit(&tail, memory_order_relaxed);
        if (t - atomic_load_explicit(&head, memory_order_acquire) < SIZE) {
            slots[t % SIZE] = i++;
            atomic_store_explicit(&tail, t + 1, memory_order_release);
        } else {
            sched_yield();
        }
    }
    return arg;
}
static void *consumer(void *arg) {
    long sum = 0;
    for (int i = 0; i < 100;) {
        unsigned h = atomic_load_explicit(&head, memory_order_relaxed);
        if (h != atomic_load_explicit(&tail, memory_order_acquire)) {
            sum += slots[h % SIZE];
            atomic_store_explicit(&head, h + 1, memory_order_release);
            i++;
        } else {
            sched_yield();
        }
    }
    printf("%ld\n", sum);
    return arg;
}
int main(void) {
    run(producer, consumer);
    return 0;
}
