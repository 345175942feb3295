#include "two.h"
#include <time.h>
int items;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void *producer(void *arg) {
    for (int i = 0; i < 5; i++) {
        usleep(1000);
        pthread_mutex_lock(&lock);
        items++;
        pthread_mutex_unlock(&lock);
        pthread_cond_broadcast(&changed);
    }
    return arg;
}
static void *consumer(void *arg) {
    int taken = 0;
    pthread_mutex_lock(&lock);
    while (taken < 5) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_nsec += 500000;
        if (limit.tv_nsec >= 1000000000) {
            limit.tv_nsec -= 1000000000;
            limit.tv_sec++;
        }
        pthread_cond_timedwait(&changed, &lock, &limit);
        while (items > 0) {
            items--;
            taken++;
        }
    }
    pthread_mutex_unlock(&lock);
    printf("%d\n", taken);
    return arg;
}
int main(void) {
    run(consumer, producer);
    return 0;
}
