// Runs functions as threads and waits for them.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*body)(void *);

static inline void run_with(body a, void *x, body b, void *y) {
    pthread_t one, two;
    pthread_create(&one, 0, a, x);
    pthread_create(&two, 0, b, y);
    pthread_join(one, 0);
    pthread_join(two, 0);
}

static inline void run(body a, body b) { run_with(a, 0, b, 0); }
