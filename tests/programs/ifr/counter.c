// RACE counter
// An unprotected counter.
#include <pthread.h>
#include <stdio.h>
long counter;
static __attribute__((noinline)) void add(void) { counter++; }
static void *work(void *p) { for (int i = 0; i < 2000000; i++) add(); return p; }
int main(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%d\n", counter > 0);
    return 0;
}
