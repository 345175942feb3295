// A thousand threads alive at once; a baton goes from each to the next.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#define N 1000
static sem_t baton[N + 1];
static pthread_barrier_t all;
static long sum;
static void *work(void *argument) {
    long me = (long)argument;
    pthread_barrier_wait(&all);
    for (int round = 0; round < 3; round++) {
        sem_wait(&baton[me]);
        sum = sum * 31 + me;
        sem_post(&baton[me == N - 1 && round < 2 ? 0 : me + 1]);
    }
    return (void *)(me * 2);
}
int main(void) {
    static pthread_t threads[N];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&all, NULL, N + 1);
    for (int i = 0; i <= N; i++)
        sem_init(&baton[i], 0, 0);
    for (long i = 0; i < N; i++)
        if (pthread_create(&threads[i], &attributes, work, (void *)i))
            return 1;
    pthread_barrier_wait(&all);
    sem_post(&baton[0]);
    sem_wait(&baton[N]);
    long results = 0;
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(threads[i], &result);
        results += (long)result;
    }
    printf("sum %ld, results %ld\n", sum, results);
    return 0;
}
