// Plain, recursive and error-checking mutexes, and trylock under contention.
// identity: output as natively
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static long sums[3];
static int errors;

static void *work(void *argument) {
    long by = (long)argument;
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&plain);
        sums[0] += by;
        pthread_mutex_unlock(&plain);
        pthread_mutex_lock(&recursive);
        pthread_mutex_lock(&recursive);
        sums[1] += by;
        pthread_mutex_unlock(&recursive);
        pthread_mutex_unlock(&recursive);
        while (pthread_mutex_trylock(&checking) == EBUSY)
            ;
        sums[2] += by;
        if (pthread_mutex_lock(&checking) == EDEADLK)
            errors++;
        pthread_mutex_unlock(&checking);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld %ld, %d deadlocks refused\n", sums[0], sums[1], sums[2], errors);
    return 0;
}
