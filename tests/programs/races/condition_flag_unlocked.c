// MISSED at stripped: a check of a flag looks like an acquire load there.
#include "two.h"
int ready;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void *setter(void *arg) {
    usleep(2000);
    ready = 1; // RACE ready
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    return arg;
}
static void *waiter(void *arg) {
    pthread_mutex_lock(&lock);
    while (!ready) // RACE ready
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return arg;
}
int main(void) {
    run(waiter, setter);
    puts("done");
    return 0;
}
