// A request counter is checked in one place and used in another: the other
// order runs over the end of the table (paper 003, figure 6).
#include <pthread.h>
#include <stdio.h>

#define SLOTS 4
long id = SLOTS - 1;
long *table[SLOTS + 1];
long first_slot;

void *count(void *unused) {
    id = SLOTS;                            // RACE id: spec-violated crash
    return 0;
}

void *store(void *unused) {
    long *slot = table[id];                // RACE id: spec-violated crash
    *slot = 1;
    return 0;
}

int main(void) {
    pthread_t one, two;
    for (int i = 0; i < SLOTS; i++)
        table[i] = &first_slot;
    pthread_create(&two, 0, store, 0);
    pthread_create(&one, 0, count, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("stored\n");
    return 0;
}
