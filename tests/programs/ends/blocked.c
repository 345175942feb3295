// Threads that wait for what nobody does, unless a signal tells somebody.
#include <pthread.h>
#include <signal.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int shared;

static void on_signal(int number) {
    (void)number;
}

static void *wait(void *unused) {
    shared++;
    pthread_mutex_lock(&lock);
    for (;;)
        pthread_cond_wait(&told, &lock);
    return unused;
}

int main(void) {
    pthread_t one, other;
    // With a handler nobody can say that it will never end.
    signal(SIGUSR1, on_signal);
    pthread_create(&one, 0, wait, 0);
    pthread_create(&other, 0, wait, 0);
    pthread_join(one, 0);
    return 0;
}
