// ORDERS no-state-change
// Paper 000, table 2: user constructed synchronisation. The race on the flag
// is what orders the rest; both orders of it leave the same.
#include <pthread.h>
#include <stdio.h>

static volatile int ready;
static int value;

static void *produce(void *unused) {
    value = 7;
    ready = 1; // RACE
    return unused;
}

static void *consume(void *unused) {
    while (!ready) // RACE
        ;
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&two, NULL, consume, NULL);
    pthread_create(&one, NULL, produce, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%d\n", value);
    return 0;
}
