// ORDERS state-change
// LABEL approximate-computation
// Paper 000, table 2: approximate computation, the paper's largest group of
// wrong alarms. Strictly the state changes; the counter decides nothing.
#include <pthread.h>
#include <stdio.h>

static volatile long hits;

static void *work(void *unused) {
    for (int i = 0; i < 300; i++) hits++; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, work, NULL);
    pthread_create(&two, NULL, work, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("about %ld\n", hits);
    return 0;
}
