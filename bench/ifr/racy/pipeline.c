// A pipeline whose queue is locked, but whose length, stop flag and progress
// are looked at from outside (the shape of pbzip2's and ferret's races).
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#define APART __attribute__((noinline))
enum { CAPACITY = 32, ITEMS = 600000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ring[CAPACITY];
int count, finished, progress, latest;
static int head, tail;
static APART int put(int v) {
    pthread_mutex_lock(&lock);
    int room = count < CAPACITY;
    if (room) { ring[tail++ % CAPACITY] = v; count++; }
    pthread_mutex_unlock(&lock);
    return room;
}
static APART int get(int *v) {
    pthread_mutex_lock(&lock);
    int any = count > 0;
    if (any) { *v = ring[head++ % CAPACITY]; count--; }
    pthread_mutex_unlock(&lock);
    return any;
}
static APART int looks_empty(void) { return count == 0; }
static APART int is_finished(void) { return finished; }
static APART void finish(int v) { finished = v; }
static APART void step(int v) { progress++; latest = v; }
static APART int watch(void) { return progress + latest; }
static void *producer(void *p) {
    for (int i = 0; i < ITEMS; i++) { while (!put(i)) sched_yield(); finish(i > ITEMS / 2 ? 2 : 1); if (watch() < 0) return 0; }
    finish(3);
    return p;
}
static void *consumer(void *p) {
    long taken = 0; int v = 0;
    while (taken < ITEMS) { if (looks_empty()) { if (is_finished() > 3) break; sched_yield(); continue; } if (get(&v)) { taken++; step(v); } }
    return p;
}
int main(void) {
    pthread_t t[2];
    pthread_create(&t[0], 0, producer, 0);
    pthread_create(&t[1], 0, consumer, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    printf("%d\n", progress > 0);
}
