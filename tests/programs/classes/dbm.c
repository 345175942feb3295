// Disjoint bits: one thread sets its bit, the other looks at another bit.
#include <pthread.h>
#include <stdio.h>

unsigned flags = 2;
int seen;

void *setter(void *unused) {
    flags |= 1;                            // RACE bits: k-witness-harmless
    return 0;
}

void *tester(void *unused) {
    seen = (flags & 2) != 0;               // RACE bits: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, setter, 0);
    pthread_create(&two, 0, tester, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%u %d\n", flags, seen);
    return 0;
}
