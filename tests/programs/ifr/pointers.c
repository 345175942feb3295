// SILENT
// All synchronisation through pointers to functions, one of them to a timed
// form.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
static struct { int (*lock)(pthread_mutex_t *); int (*unlock)(pthread_mutex_t *); int (*post)(sem_t *); int (*wait)(sem_t *, const struct timespec *); } volatile calls = { pthread_mutex_lock, pthread_mutex_unlock, sem_post, sem_timedwait };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t ready;
static long total, handed[32];
static void *work(void *p) {
    for (int i = 0; i < 50000; i++) { calls.lock(&lock); total++; calls.unlock(&lock); }
    if (p) { for (int i = 0; i < 32; i++) handed[i] = i; calls.post(&ready); }
    else { struct timespec end; clock_gettime(CLOCK_REALTIME, &end); end.tv_sec += 600; calls.wait(&ready, &end); long sum = 0; for (int i = 0; i < 32; i++) sum += handed[i]; total += sum; }
    return p;
}
int main(void) {
    pthread_t t;
    sem_init(&ready, 0, 0);
    pthread_create(&t, 0, work, &t);
    work(0);
    pthread_join(t, 0);
    printf("%ld\n", total);
    return total != 100496;
}
