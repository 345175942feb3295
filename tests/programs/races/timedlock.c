#include "two.h"
#include <time.h>
long counter;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *worker(void *arg) {
    for (int i = 0; i < 50; i++) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 5;
        if (pthread_mutex_timedlock(&lock, &limit) == 0) {
            counter++;
            pthread_mutex_unlock(&lock);
        }
    }
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
