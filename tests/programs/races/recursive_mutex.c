#include "two.h"
long counter;
pthread_mutex_t lock;
static void deeper(int depth) {
    pthread_mutex_lock(&lock);
    counter++;
    if (depth > 0)
        deeper(depth - 1);
    counter++;
    pthread_mutex_unlock(&lock);
}
static void *worker(void *arg) {
    for (int i = 0; i < 50; i++)
        deeper(3);
    return arg;
}
int main(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
    run(worker, worker);
    printf("%ld\n", counter);
    pthread_mutex_destroy(&lock);
    return 0;
}
