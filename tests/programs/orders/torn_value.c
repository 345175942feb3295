// ORDERS harmful
// A value in two words is written in two steps; a reader between them sees
// half of each.
#include <pthread.h>
#include <stdio.h>

static volatile struct {
    long seconds;
    long nanoseconds;
} now;

static void *clock_thread(void *unused) {
    for (long i = 1; i < 200; i++) {
        now.seconds = i; // RACE
        now.nanoseconds = i; // RACE
    }
    return unused;
}

static void *reader(void *unused) {
    long torn = 0;
    for (int i = 0; i < 200; i++) {
        long seconds = now.seconds; // RACE
        long nanoseconds = now.nanoseconds; // RACE
        torn += seconds ^ nanoseconds;
    }
    return (void *)torn;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, clock_thread, NULL);
    pthread_create(&two, NULL, reader, NULL);
    void *torn;
    pthread_join(one, NULL);
    pthread_join(two, &torn);
    printf("%ld\n", (long)torn);
    return 0;
}
