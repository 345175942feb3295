// Whoever is last frees; both may think they are.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

char *block;
int released;

void *release(void *unused) {
    if (!released) {                // RACE released: spec-violated memory-error double-free
        released = 1;               // RACE released: spec-violated memory-error double-free // RACE both: any
        free(block);
    }
    return 0;
}

int main(void) {
    pthread_t one, two;
    block = malloc(100);
    pthread_create(&one, 0, release, 0);
    pthread_create(&two, 0, release, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    puts("done");
    return 0;
}
