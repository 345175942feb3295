// Threads take one of 64 locks for each small step.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static struct {
    pthread_mutex_t lock;
    long value;
} buckets[64];
static void *work(void *seed) {
    unsigned long state = (unsigned long)seed * 7919 + 1;
    for (int i = 0; i < 1000000; i++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        int index = state >> 58;
        pthread_mutex_lock(&buckets[index].lock);
        for (int k = 0; k < 20; k++)
            buckets[index].value += k;
        pthread_mutex_unlock(&buckets[index].lock);
    }
    return 0;
}
int main(int count, char **arguments) {
    long threads = count > 1 ? atoi(arguments[1]) : 2;
    pthread_t all[128];
    for (int i = 0; i < 64; i++)
        pthread_mutex_init(&buckets[i].lock, 0);
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], 0, work, (void *)i);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    printf("%ld\n", buckets[0].value);
}
