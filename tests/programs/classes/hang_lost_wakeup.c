// The flag is looked at outside the lock: the signal may come before the wait.
#include <pthread.h>
#include <stdio.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
int ready;

void *waiter(void *unused) {
    if (!ready) {                          // RACE ready: spec-violated hang
        pthread_mutex_lock(&lock);
        pthread_cond_wait(&wake, &lock);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

void *sender(void *unused) {
    ready = 1;                             // RACE ready: spec-violated hang
    pthread_cond_signal(&wake);
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&two, 0, sender, 0);
    pthread_create(&one, 0, waiter, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("done\n");
    return 0;
}
