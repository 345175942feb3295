// Whoever asks for the end does not take the lock: the request falls between
// the worker's look and its wait.
// HUNT fails: hang
#include "work.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int stop;

static void *worker(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stop)                         // DECIDES
        pthread_cond_wait(&wake, &lock);  // DECIDES
    pthread_mutex_unlock(&lock);
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, worker, 0);
    work(500);
    stop = 1;  // DECIDES
    pthread_cond_broadcast(&wake);
    pthread_join(thread, 0);
    return 0;
}
