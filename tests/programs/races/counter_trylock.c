#include "two.h"
long counter;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *worker(void *arg) {
    for (int i = 0; i < 200; i++) {
        while (pthread_mutex_trylock(&lock) != 0)
            sched_yield();
        counter++;
        pthread_mutex_unlock(&lock);
    }
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
