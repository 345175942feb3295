// A bounded queue with two condition variables; a timed wait that times out.
// identity: output as natively
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { SIZE = 4, ITEMS = 300 };
static int queue[SIZE], head, count, taken[2];
static long sum;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;

static void *produce(void *argument) {
    for (int i = 0; i < ITEMS; i++) {
        pthread_mutex_lock(&lock);
        while (count == SIZE)
            pthread_cond_wait(&not_full, &lock);
        queue[(head + count++) % SIZE] = (int)(long)argument * 1000 + i;
        pthread_cond_signal(&not_empty);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void *consume(void *argument) {
    for (int i = 0; i < ITEMS; i++) {
        pthread_mutex_lock(&lock);
        while (count == 0)
            pthread_cond_wait(&not_empty, &lock);
        sum += queue[head];
        head = (head + 1) % SIZE;
        count--;
        taken[(long)argument]++;
        pthread_cond_broadcast(&not_full);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, produce, (void *)i);
        pthread_create(&threads[2 + i], NULL, consume, (void *)i);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 1000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    int late = pthread_cond_timedwait(&not_empty, &lock, &soon) == ETIMEDOUT;
    pthread_mutex_unlock(&lock);
    printf("sum %ld, taken %d and %d, late %d\n", sum, taken[0], taken[1], late);
    return 0;
}
