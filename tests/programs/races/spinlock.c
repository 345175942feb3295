#include "two.h"
long counter;
pthread_spinlock_t lock;
static void *worker(void *arg) {
    for (int i = 0; i < 200; i++) {
        pthread_spin_lock(&lock);
        counter++;
        pthread_spin_unlock(&lock);
    }
    return arg;
}
int main(void) {
    pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
    run(worker, worker);
    printf("%ld\n", counter);
    return 0;
}
