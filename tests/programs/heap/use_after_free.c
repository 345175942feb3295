// A reader may come after the block was freed.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct node {
    long key;
    long value;
};

struct node *shared;
long sum;

void *reader(void *unused) {
    sum = shared->value;            // RACE value: spec-violated memory-error use-after-free
    return 0;
}

int main(void) {
    pthread_t thread;
    shared = malloc(sizeof *shared);
    shared->key = 1;
    shared->value = 2;
    pthread_create(&thread, 0, reader, 0);
    free(shared);                   // RACE value: spec-violated memory-error use-after-free
    pthread_join(thread, 0);
    return 0;
}
