// LEVELS 0 1 2
// The same in a frame: the store lands in another local array, or before the
// first element.
#include <pthread.h>
#include <stdio.h>

int used = 3;
int first = 2;

void *setter(void *unused) {
    volatile int other[64];
    volatile int own[32];
    other[0] = 0;
    own[0] = 0;
    own[used] = 1;                  // RACE used: spec-violated memory-error out-of-bounds
    return 0;
}

void *getter(void *unused) {
    volatile char around[64];
    volatile char name[24];
    volatile char beyond[64];
    around[63] = beyond[0] = name[0] = 1;
    return name[first] ? &used : 0; // RACE first: spec-violated memory-error out-of-bounds
}

void *mover(void *unused) {
    used = 40;                      // RACE used: spec-violated memory-error out-of-bounds
    first = -8;                     // RACE first: spec-violated memory-error out-of-bounds
    return 0;
}

int main(void) {
    pthread_t threads[3];
    pthread_create(&threads[0], 0, setter, 0);
    pthread_create(&threads[1], 0, getter, 0);
    pthread_create(&threads[2], 0, mover, 0);
    for (int index = 0; index < 3; index++)
        pthread_join(threads[index], 0);
    puts("done");
    return 0;
}
