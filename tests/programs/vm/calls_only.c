// identity: output depends on the schedule
// One thread does nothing but make system calls, another starts and joins
// threads. The first must not get nearly all of the time: a slice is a number
// of instructions, and calls take the host much longer than instructions do.
// Prints how many calls the first made.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define THREADS 200

static atomic_int stop;
static long calls;

static void *caller(void *argument) {
    while (!stop) {
        getppid();
        calls++;
    }
    return argument;
}

static void *nothing(void *argument) { return argument; }

int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, caller, NULL);
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&other, NULL, nothing, NULL);
        pthread_join(other, NULL);
    }
    stop = 1;
    pthread_join(one, NULL);
    printf("%ld calls beside %d threads\n", calls, THREADS);
    return 0;
}
