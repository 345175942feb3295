// Two operations on one line, and an order that belongs to the other call.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
static atomic_flag held = ATOMIC_FLAG_INIT;
static int word, by_flag, by_word;
static void take(void) { while (__sync_lock_test_and_set(&word, 1)) while (__atomic_load_n(&word, __ATOMIC_RELAXED)) sched_yield(); }
static void *worker(void *unused) {
    for (int i = 0; i < 100; i++) {
        while (atomic_flag_test_and_set_explicit(&held, memory_order_acquire)) sched_yield(); by_flag++; atomic_flag_clear_explicit(&held, memory_order_release);
        take();
        by_word++;
        __sync_lock_release(&word);
    }
    return unused;
}
int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, worker, 0);
    pthread_create(&two, 0, worker, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d %d\n", by_flag, by_word);
}
