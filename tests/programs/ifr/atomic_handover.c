// SILENT
// Plain accesses of a variable that is atomic elsewhere, ordered by it or by a
// lock; and a volatile look at it, as in code older than atomics.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
struct box { long references, value; };
static struct box *_Atomic handed;
static volatile int held;
static long guarded;
static void lock(void) {
    while (__sync_lock_test_and_set(&held, 1))
        while (held) sched_yield();
}
static void *use(void *p) {
    for (int i = 0; i < 2000; i++) {
        struct box *box;
        while (!(box = __atomic_exchange_n((struct box **)&handed, 0, __ATOMIC_ACQUIRE))) sched_yield();
        __atomic_fetch_add(&box->references, 1, __ATOMIC_RELAXED);
        if (__atomic_sub_fetch(&box->references, 2, __ATOMIC_ACQ_REL) == 0) free(box);
        lock();
        guarded++;
        __sync_lock_release(&held);
    }
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, use, 0);
    for (int i = 0; i < 2000; i++) {
        struct box *box = malloc(sizeof *box);
        box->references = 1;
        box->value = i;
        while (__atomic_load_n((struct box **)&handed, __ATOMIC_RELAXED)) sched_yield();
        __atomic_store_n((struct box **)&handed, box, __ATOMIC_RELEASE);
        lock();
        guarded++;
        __sync_lock_release(&held);
    }
    pthread_join(t, 0);
    printf("%ld\n", guarded);
    return 0;
}
