#include "two.h"
int shared, cleaned;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static void tidy(void *arg) {
    shared++;
    cleaned = 1;
    pthread_mutex_unlock(&lock);
}
static void *waiter(void *arg) {
    pthread_mutex_lock(&lock);
    pthread_cleanup_push(tidy, 0);
    shared++;
    pthread_cond_wait(&never, &lock);
    pthread_cleanup_pop(1);
    return arg;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, waiter, 0);
    usleep(1000);
    pthread_cancel(thread);
    pthread_mutex_lock(&lock);
    shared++;
    pthread_mutex_unlock(&lock);
    pthread_join(thread, 0);
    printf("%d\n", cleaned);
    return 0;
}
