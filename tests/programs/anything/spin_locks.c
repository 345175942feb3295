// Eight threads on a ticket lock without pause, a flag waited for in a loop,
// and a lock with sched_yield: none may burn whole quanta.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
static atomic_uint ticket, serving, taken;
static volatile int go;
static long a, b;
static void *work(void *argument) {
    while (!go)
        ;
    for (int i = 0; i < 300; i++) {
        unsigned mine = atomic_fetch_add(&ticket, 1);
        while (atomic_load_explicit(&serving, memory_order_acquire) != mine)
            ;
        a++;
        atomic_store_explicit(&serving, mine + 1, memory_order_release);
        while (atomic_exchange(&taken, 1))
            sched_yield();
        b++;
        atomic_store(&taken, 0);
    }
    return argument;
}
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    go = 1;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld\n", a, b);
    return 0;
}
