// Two threads take turns by the clock: one writes, a millisecond later the
// other reads, and both pass a lock before and behind. In a run without
// disturbance the lock orders all of it; held at the write for a few
// milliseconds, as the sampler does, the writer is met by the reader.
// EXPECT: race tag=turn
// ARGS: 6
// OPTIONS: --rate 400
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int passes;
static long value;
static double until;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void pass(void) {
    pthread_mutex_lock(&lock);
    passes++;
    pthread_mutex_unlock(&lock);
}

static void sleep_to(double when) {
    double left = when - now();
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
}

static void *writer(void *start) {
    for (double turn = *(double *)start; turn < until; turn += 0.02) {
        sleep_to(turn);
        pass();
        value += 1; // RACE turn
        pass();
    }
    return NULL;
}

static void *reader(void *start) {
    long sum = 0;
    for (double turn = *(double *)start + 0.001; turn < until; turn += 0.02) {
        sleep_to(turn);
        pass();
        sum += value; // RACE turn
        pass();
    }
    return (void *)sum;
}

int main(int count, char **arguments) {
    double start = now() + 0.05;
    until = start + (count > 1 ? atof(arguments[1]) : 4);
    pthread_t one, other;
    pthread_create(&one, NULL, writer, &start);
    pthread_create(&other, NULL, reader, &start);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    printf("ok\n");
    return 0;
}
