// Four races at four places, and an end of its own.
#include <pthread.h>
#include <stdio.h>

static int sum, product, parity, last;

static __attribute__((noinline)) void add(int value) { sum += value; }
static __attribute__((noinline)) void multiply(int value) { product *= value; }
static __attribute__((noinline)) void flip(int value) { parity ^= value; }
static __attribute__((noinline)) void keep(int value) { last = value; }

static void *work(void *unused) {
    for (int i = 0; i < 3000; i++) {
        add(i);
        multiply(i);
        flip(i);
        keep(i);
    }
    return unused;
}

int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    printf("%d %d %d %d\n", sum, product, parity, last);
    return 0;
}
