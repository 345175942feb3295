// The first user of `pthread_once` has prepared the table before it; the
// second, late one reads it behind its own call, which then waits for nothing
// but orders the two. Had the late one been first, nothing would.
// CANDIDATE: prepare look
// UNSTEERED: never
// STEERED: happens
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static long table[8];
static int ready;

static void announce(void) { ready = 1; }

static void *early(void *nothing) {
    table[3] = 7; // RACE prepare
    pthread_once(&once, announce);
    return nothing;
}

static void *late(void *nothing) {
    struct timespec while_ = {1, 500000000};
    nanosleep(&while_, NULL);
    pthread_once(&once, announce);
    long seen = table[3]; // RACE look
    printf("%d %ld\n", ready, seen);
    return nothing;
}

int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, early, NULL);
    pthread_create(&other, NULL, late, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
