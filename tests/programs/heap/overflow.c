// The length and the index are read apart: the last item may lie behind the
// block.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int *items;
int used = 7;

void *adder(void *unused) {
    items[used] = 5;                // RACE used: spec-violated memory-error heap-overflow
    return 0;
}

void *other(void *unused) {
    used = 8;                       // RACE used: spec-violated memory-error heap-overflow
    return 0;
}

int main(void) {
    pthread_t one, two;
    items = malloc(8 * sizeof *items);
    pthread_create(&one, 0, adder, 0);
    pthread_create(&two, 0, other, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
