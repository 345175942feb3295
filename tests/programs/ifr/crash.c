// RACE counter
// Dies of a signal: the races are told all the same.
#include <pthread.h>
#include <stdlib.h>
long counter;
static __attribute__((noinline)) void add(void) { counter++; }
static void *work(void *p) { for (int i = 0; i < 2000000; i++) add(); return p; }
int main(void) {
    pthread_t t;
    pthread_create(&t, 0, work, 0);
    work(0);
    pthread_join(t, 0);
    abort();
}
