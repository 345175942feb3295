// SILENT
// What a thread did is handed on by its join: to the thread that joins, to those
// it creates or unlocks a mutex for, and with the memory and the stacks that are
// used again.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { ROUNDS = 300, CELLS = 40 };
static long shared, handed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, robust;
static sem_t done;
static pthread_key_t key;
static int stop;

static __attribute__((noinline)) long sum(long *cells) {
    long all = 0;
    for (int i = 0; i < CELLS; i++)
        all += cells[i];
    return all;
}
static __attribute__((noinline)) void fill(long *cells, long with) {
    for (int i = 0; i < CELLS; i++)
        cells[i] = with + i;
}
static void last(void *block) { // runs when the thread has nearly ended
    fill(block, 3);
    free(block);
}
static void *work(void *x) {
    long here[CELLS];
    long *block = malloc(sizeof here);
    fill(here, 1);
    fill(block, sum(here));
    shared += block[1];
    long *other = malloc(sizeof here);
    fill(other, 2);
    pthread_setspecific(key, other);
    return block;
}
// Uses memory and stacks that others gave up.
static void *churn(void *x) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        long *block = malloc(CELLS * sizeof *block);
        fill(block, 5);
        free(block);
        pthread_mutex_lock(&lock);
        handed++;
        pthread_mutex_unlock(&lock);
    }
    return x;
}
static void *alone(void *x) {
    long here[CELLS];
    fill(here, 7);
    *(long *)x += sum(here);
    sem_post(&done);
    return 0;
}
static int shared_by_robust;
static void *dies(void *x) {
    pthread_mutex_lock(&robust);
    shared_by_robust++;
    return x; // the mutex is given up by the end
}
static long own;
static void *after(void *x) {
    pthread_mutex_lock(&lock);
    own += shared;
    pthread_mutex_unlock(&lock);
    return x;
}

int main(void) {
    pthread_t busy[2], t;
    sem_init(&done, 0, 0);
    pthread_key_create(&key, last);
    pthread_create(&busy[0], 0, churn, 0);
    pthread_create(&busy[1], 0, churn, 0);
    long total = 0, counted = 0;
    for (int i = 0; i < ROUNDS; i++) {
        void *result;
        pthread_create(&t, 0, work, 0);
        if (i % 3 == 0)
            pthread_join(t, &result);
        else if (i % 3 == 1)
            while (pthread_tryjoin_np(t, &result) == EBUSY)
                usleep(20);
        else {
            struct timespec until = {0, 0};
            while (pthread_timedjoin_np(t, &result, &until) == ETIMEDOUT)
                usleep(20);
        }
        long *block = result;
        total += sum(block);
        fill(block, 0);
        free(block);
        shared++;
        pthread_create(&t, 0, after, 0); // `shared` is handed on
        pthread_join(t, 0);
        long local = 0;
        pthread_create(&t, 0, alone, &local);
        pthread_detach(t);
        sem_wait(&done);
        counted += local;
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    for (int i = 0; i < 50; i++) {
        pthread_create(&t, 0, dies, 0);
        usleep(100);
        if (pthread_mutex_lock(&robust) == EOWNERDEAD)
            pthread_mutex_consistent(&robust);
        shared_by_robust++;
        pthread_mutex_unlock(&robust);
        pthread_join(t, 0);
        if (pthread_mutex_lock(&robust) == EOWNERDEAD)
            pthread_mutex_consistent(&robust);
        pthread_mutex_unlock(&robust);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(busy[0], 0);
    pthread_join(busy[1], 0);
    printf("%ld %ld %ld %d\n", total, shared, counted, shared_by_robust);
    return 0;
}
