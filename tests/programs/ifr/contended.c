// SILENT
// Twenty threads at one lock: each that waits with a monitor would stop all others.
#include <pthread.h>
#include <stdio.h>
enum { THREADS = 10, MESSAGES = 600 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int full;
static long value, sum;
static void *produce(void *p) {
    for (int i = 0; i < MESSAGES; i++) {
        pthread_mutex_lock(&lock);
        while (full) pthread_cond_wait(&changed, &lock);
        full = 1; value = i;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return p;
}
static void *consume(void *p) {
    for (int i = 0; i < MESSAGES; i++) {
        pthread_mutex_lock(&lock);
        while (!full) pthread_cond_wait(&changed, &lock);
        full = 0; sum += value;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return p;
}
int main(void) {
    pthread_t t[2 * THREADS];
    for (int i = 0; i < 2 * THREADS; i++) pthread_create(&t[i], 0, i % 2 ? produce : consume, 0);
    for (int i = 0; i < 2 * THREADS; i++) pthread_join(t[i], 0);
    printf("%ld\n", sum);
    return 0;
}
