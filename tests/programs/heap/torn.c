// LABELS pair: torn-read
// A value of sixteen bytes is stored in two pieces.
#include <pthread.h>
#include <stdio.h>

struct pair {
    long low, high;
};

struct pair shared;
struct pair value = {1, 1};
struct pair copy;

void *writer(void *unused) {
    shared = value;                 // RACE pair: output-differs output
    return 0;
}

void *reader(void *unused) {
    copy = shared;                  // RACE pair: output-differs output
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, writer, 0);
    pthread_create(&two, 0, reader, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%ld %ld\n", copy.low, copy.high);
    return 0;
}
