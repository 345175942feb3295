// Atomics of every width, compare and swap, a spin lock, sixteen bytes.
// identity: output as natively
// flags: -mcx16
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic unsigned char small;
static _Atomic unsigned short medium;
static _Atomic unsigned word;
static _Atomic unsigned long wide;
static atomic_flag spin = ATOMIC_FLAG_INIT;
static long guarded;
static __int128 pair;

static void *work(void *argument) {
    (void)argument;
    for (int i = 0; i < 500; i++) {
        atomic_fetch_add(&small, 1);
        atomic_fetch_xor(&medium, i);
        atomic_fetch_sub(&word, 3);
        unsigned long old = atomic_load(&wide);
        while (!atomic_compare_exchange_weak(&wide, &old, old * 1 + 7))
            ;
        while (atomic_flag_test_and_set(&spin))
            sched_yield();
        guarded++;
        atomic_flag_clear(&spin);
        __int128 seen = pair;
        for (;;) {
            __int128 now = __sync_val_compare_and_swap(&pair, seen, seen + 1);
            if (now == seen)
                break;
            seen = now;
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%u %u %u %lu %ld %ld\n", small, medium, word, wide, guarded, (long)pair);
    return 0;
}
