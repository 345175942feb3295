// Threads take one of 64 locks for each small step.
//
//     locks [THREADS [STEPS [ROUNDS]]]: STEPS accesses under each lock
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static struct {
    pthread_mutex_t lock;
    long values[8];
} buckets[64];
static long threads = 2, steps = 20, rounds = 1000000;
static void *work(void *seed) {
    unsigned long state = (unsigned long)seed * 7919 + 1;
    for (long i = 0; i < rounds / threads; i++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        int index = state >> 58;
        pthread_mutex_lock(&buckets[index].lock);
        for (long k = 0; k < steps; k++)
            buckets[index].values[k & 7] += k;
        pthread_mutex_unlock(&buckets[index].lock);
    }
    return 0;
}
int main(int count, char **arguments) {
    if (count > 1)
        threads = atol(arguments[1]);
    if (count > 2)
        steps = atol(arguments[2]);
    if (count > 3)
        rounds = atol(arguments[3]);
    pthread_t all[128];
    for (int i = 0; i < 64; i++)
        pthread_mutex_init(&buckets[i].lock, 0);
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], 0, work, (void *)i);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    printf("%ld\n", buckets[0].values[1]);
}
