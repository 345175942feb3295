#include "two.h"
long balance, log_entries;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *worker(void *arg) {
    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&lock);
        balance++;
        pthread_mutex_unlock(&lock);
        log_entries++; // RACE log
    }
    return arg;
}
int main(void) {
    run(worker, worker);
    printf("%ld %d\n", balance, log_entries > 0);
    return 0;
}
