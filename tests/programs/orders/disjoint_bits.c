// ORDERS no-state-change
// LABEL disjoint-bits
// Paper 000, table 2: disjoint bit manipulation. One thread changes its bit,
// the other looks at another one.
#include <pthread.h>
#include <stdio.h>

static volatile unsigned flags = 1;

static int is_open(void) {
    return flags & 1; // RACE
}

static void *look(void *unused) {
    long seen = 0;
    for (int i = 0; i < 200; i++) seen += is_open();
    return seen == 200 ? unused : NULL;
}

static void *toggle(void *unused) {
    for (int i = 0; i < 200; i++) flags ^= 2; // RACE
    return unused;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, look, NULL);
    pthread_create(&two, NULL, toggle, NULL);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%u\n", flags);
    return 0;
}
