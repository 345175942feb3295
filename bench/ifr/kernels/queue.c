// A bounded queue with mutex and condition variables, items of work between
// (the shape of ferret's pipeline).
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
enum { CAPACITY = 64, ITEMS = 60000, SIZE = 256 };
struct item { int data[SIZE]; };
static struct item *ring[CAPACITY];
static int head, tail, count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;
static void put(struct item *i) {
    pthread_mutex_lock(&lock);
    while (count == CAPACITY) pthread_cond_wait(&emptied, &lock);
    ring[tail++ % CAPACITY] = i; count++;
    pthread_cond_signal(&filled);
    pthread_mutex_unlock(&lock);
}
static struct item *get(void) {
    pthread_mutex_lock(&lock);
    while (!count) pthread_cond_wait(&filled, &lock);
    struct item *i = ring[head++ % CAPACITY]; count--;
    pthread_cond_signal(&emptied);
    pthread_mutex_unlock(&lock);
    return i;
}
static void *producer(void *x) {
    for (int n = 0; n < ITEMS; n++) {
        struct item *i = malloc(sizeof *i);
        unsigned s = n;
        for (int k = 0; k < SIZE; k++) { s = s * 1103515245 + 12345; i->data[k] = s >> 16; }
        put(i);
    }
    return x;
}
int main(void) {
    pthread_t t; long sum = 0;
    pthread_create(&t, 0, producer, 0);
    for (int n = 0; n < ITEMS; n++) {
        struct item *i = get();
        int best = 0;
        for (int k = 0; k < SIZE; k++) if (i->data[k] > i->data[best]) best = k;
        sum += i->data[best];
        free(i);
    }
    pthread_join(t, 0);
    printf("%ld\n", sum);
}
