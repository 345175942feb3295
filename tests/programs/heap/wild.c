// An offset that may be stale leads into memory the allocator keeps.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *base;
long offset = 0;

void *user(void *unused) {
    base[offset] = 1;               // RACE offset: spec-violated memory-error wild-access
    return 0;
}

void *mover(void *unused) {
    offset = 60000;                 // RACE offset: spec-violated memory-error wild-access
    return 0;
}

int main(void) {
    pthread_t one, two;
    base = malloc(1000);
    pthread_create(&one, 0, user, 0);
    pthread_create(&two, 0, mover, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
