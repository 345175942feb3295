// Threads count in neighbouring words of one cache line.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static volatile long counts[128];
static void *work(void *number) {
    for (int i = 0; i < 60000000; i++)
        counts[(long)number]++;
    return 0;
}
int main(int count, char **arguments) {
    long threads = count > 1 ? atoi(arguments[1]) : 2;
    pthread_t all[128];
    for (long i = 0; i < threads; i++)
        pthread_create(&all[i], 0, work, (void *)i);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    printf("%ld\n", counts[0]);
}
