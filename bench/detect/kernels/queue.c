// Producers and consumers on one bounded queue of blocks.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { ROOM = 16, ITEMS = 200000, BLOCK = 512 };
static char *slots[ROOM];
static int used, put_at, take_at, taken, threads;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long sum;
static void *produce(void *unused) {
    for (int i = 0; i < ITEMS / (threads / 2); i++) {
        char *block = malloc(BLOCK);
        memset(block, i, BLOCK);
        pthread_mutex_lock(&lock);
        while (used == ROOM)
            pthread_cond_wait(&changed, &lock);
        slots[put_at++ % ROOM] = block;
        used++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}
static void *consume(void *unused) {
    long mine = 0;
    for (int i = 0; i < ITEMS / (threads / 2); i++) {
        pthread_mutex_lock(&lock);
        while (!used)
            pthread_cond_wait(&changed, &lock);
        char *block = slots[take_at++ % ROOM];
        used--;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        for (int k = 0; k < BLOCK; k++)
            mine += block[k];
        free(block);
    }
    pthread_mutex_lock(&lock);
    sum += mine;
    taken++;
    pthread_mutex_unlock(&lock);
    return unused;
}
int main(int count, char **arguments) {
    threads = count > 1 ? atoi(arguments[1]) : 2;
    pthread_t all[128];
    for (int i = 0; i < threads; i++)
        pthread_create(&all[i], 0, i % 2 ? consume : produce, 0);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    printf("%ld\n", sum);
}
