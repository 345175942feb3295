// INVARIANT @write slots[0].used <= len(slots[0].items)
// An element of an array of structures, looked at after every write.
#include <pthread.h>

struct slot {
    int items[4];
    int used;
} slots[2] = {{{0}, 3}, {{0}, 0}};

void *add(void *unused) {
    if (slots[0].used < 4)          // RACE used: spec-violated invariant invariant-violated
        slots[0].used++;            // RACE used: spec-violated invariant invariant-violated
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, add, 0);
    pthread_create(&two, 0, add, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
