#include "two.h"
int ready, value;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void *producer(void *arg) {
    pthread_mutex_lock(&lock);
    value = 42;
    ready = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return arg;
}
static void *consumer(void *arg) {
    pthread_mutex_lock(&lock);
    while (!ready)
        pthread_cond_wait(&changed, &lock);
    int seen = value;
    pthread_mutex_unlock(&lock);
    printf("%d\n", seen);
    return arg;
}
int main(void) {
    run(consumer, producer);
    return 0;
}
