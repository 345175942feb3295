// Readers say when they are between two looks; the writer waits for that.
#include <stdatomic.h>
#include "two.h"
struct config {
    int a, b;
};
static _Atomic(struct config *) current;
static atomic_ulong quiet;
static atomic_int ended;
static void *reader(void *x) {
    int wrong = 0;
    for (int i = 0; i < 60; i++) {
        struct config *now = atomic_load_explicit(&current, memory_order_acquire);
        wrong += now->a != now->b;
        atomic_fetch_add_explicit(&quiet, 1, memory_order_release);
    }
    atomic_store_explicit(&ended, 1, memory_order_release);
    printf("%d\n", wrong);
    return x;
}
static void *writer(void *x) {
    for (int i = 1; i < 20; i++) {
        struct config *next = malloc(sizeof *next);
        next->a = next->b = i;
        struct config *old = atomic_exchange_explicit(&current, next, memory_order_acq_rel);
        unsigned long seen = atomic_load_explicit(&quiet, memory_order_acquire);
        while (atomic_load_explicit(&quiet, memory_order_acquire) < seen + 2 &&
               !atomic_load_explicit(&ended, memory_order_acquire))
            usleep(10);
        free(old);
    }
    return x;
}
int main(void) {
    struct config *first = calloc(1, sizeof *first);
    atomic_store(&current, first);
    run(reader, writer);
    free(atomic_load(&current));
}
