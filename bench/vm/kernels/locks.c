// Threads that take one of a few locks for each small piece of work.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 16 };
static struct { pthread_mutex_t lock; long value; char pad[80]; } bucket[BUCKETS];
static long rounds;

static void *work(void *seed) {
    unsigned long state = (unsigned long)seed * 2654435761u + 1;
    for (long i = 0; i < rounds; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int b = state >> 60;
        pthread_mutex_lock(&bucket[b].lock);
        bucket[b].value += state >> 40 & 7;
        pthread_mutex_unlock(&bucket[b].lock);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    rounds = (argc > 2 ? atol(argv[2]) : 8000000) / threads;
    pthread_t thread[64];
    for (int i = 0; i < BUCKETS; i++) pthread_mutex_init(&bucket[i].lock, NULL);
    for (long i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    long sum = 0;
    for (int i = 0; i < BUCKETS; i++) sum += bucket[i].value;
    printf("%ld\n", sum);
    return 0;
}
