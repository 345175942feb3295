#include "two.h"
long counter;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *holder(void *arg) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 100; i++) {
        counter++; // RACE counter
        sched_yield();
    }
    pthread_mutex_unlock(&lock);
    return arg;
}
static void *hasty(void *arg) {
    for (int i = 0; i < 100; i++) {
        int failed = pthread_mutex_trylock(&lock);
        counter++; // RACE counter
        if (!failed)
            pthread_mutex_unlock(&lock);
        sched_yield();
    }
    return arg;
}
int main(void) {
    run(holder, hasty);
    printf("%ld\n", counter);
    return 0;
}
