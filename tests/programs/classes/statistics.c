// A counter that is never shown: the state changes, nothing else does.
#include <pthread.h>
#include <stdio.h>

long hits;

void *serve(void *unused) {
    for (int i = 0; i < 30; i++)
        hits++;                            // RACE hits: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, serve, 0);
    pthread_create(&two, 0, serve, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("served\n");
    return 0;
}
