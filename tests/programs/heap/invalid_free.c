// A cursor moves into the block while its owner frees through it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *cursor;

void *advance(void *unused) {
    cursor = cursor + 16;           // RACE cursor: spec-violated memory-error invalid-free
    return 0;
}

int main(void) {
    pthread_t thread;
    cursor = malloc(256);
    pthread_create(&thread, 0, advance, 0);
    free(cursor);                   // RACE cursor: spec-violated memory-error invalid-free
    pthread_join(thread, 0);
    return 0;
}
