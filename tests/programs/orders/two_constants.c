// ORDERS state-change no-state-change
// NOT-LABEL statistics-counter
// Two threads store numbers, the later one the larger: nothing is counted.
#include <pthread.h>
#include <stdio.h>

static volatile int phase;

static void *begin(void *unused) {
    phase = 1; // RACE
    return unused;
}

static void *finish(void *unused) {
    phase = 2; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, begin, NULL);
    pthread_create(&two, NULL, finish, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%d\n", phase);
    return 0;
}
