// Both branches load, one of them atomically: optimised, they share one
// instruction, which carries the line of neither.
#include <pthread.h>
#include <stdio.h>
static long words[4];
static void __attribute__((noinline)) use(int what, long *word, int first) {
    volatile long seen;
    if (what == 0) {
        __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
    } else if (what == 1) {
        if (first)
            seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        else
            __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    } else if (what == 2) {
        if (first)
            seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
        else
            seen = *word;
    }
    (void)seen;
}
static void *worker(void *unused) {
    for (int i = 0; i < 3; i++)
        use(i, &words[i], 0);
    return unused;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, worker, 0);
    for (int i = 0; i < 3; i++)
        use(i, &words[i], 1);
    pthread_join(thread, 0);
    printf("%ld\n", words[0]);
}
