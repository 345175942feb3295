// RACE counted
// One thread counts by an atomic addition, the other looks without one.
#include <pthread.h>
#include <stdio.h>
static long counted, seen;
static __attribute__((noinline)) long look(void) { return counted; }
static void *count(void *p) {
    for (int i = 0; i < 2000000; i++) __atomic_fetch_add(&counted, 1, __ATOMIC_SEQ_CST);
    return p;
}
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, count, 0);
    for (int i = 0; i < 2000000; i++) seen += look() & 1;
    pthread_join(t, 0);
    printf("%d\n", seen >= 0);
    return 0;
}
