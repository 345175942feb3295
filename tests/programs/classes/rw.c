// Redundant writes: everybody writes what is there already (paper 003,
// figure 14 b).
#include <pthread.h>
#include <stdio.h>

int mode;

void *worker(void *unused) {
    mode = 3;                              // RACE mode: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, worker, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    printf("mode %d\n", mode);
    return 0;
}
