// ORDERS harmful
// NOT-LABEL disjoint-bits
// Paper 002, figure 1: two writers of different bits of one word lose each
// other's updates.
#include <pthread.h>
#include <stdio.h>

static struct {
    unsigned status : 4, received : 28;
} state;

static void *report(void *unused) {
    for (int i = 0; i < 100; i++) state.status = i & 15; // RACE
    return unused;
}

static void *receive(void *unused) {
    for (int i = 0; i < 100; i++) state.received++; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, report, NULL);
    pthread_create(&two, NULL, receive, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%u %u\n", state.status, state.received);
    return 0;
}
