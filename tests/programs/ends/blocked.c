// Threads that wait for one another for ever.
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int shared;

static void *wait(void *unused) {
    shared++;
    pthread_mutex_lock(&lock);
    return unused;
}

int main(void) {
    pthread_t one, other;
    pthread_mutex_lock(&lock);
    pthread_create(&one, 0, wait, 0);
    pthread_create(&other, 0, wait, 0);
    pthread_join(one, 0);
    return 0;
}
