// The last writer wins, and nobody looks (paper 003, figure 8).
#include <pthread.h>
#include <stdio.h>

int shared;

void *one(void *unused) {
    shared = 1;                            // RACE shared: k-witness-harmless
    printf("10\n");
    return 0;
}

void *other(void *unused) {
    shared = 2;                            // RACE shared: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t first, second;
    pthread_create(&first, 0, one, 0);
    pthread_create(&second, 0, other, 0);
    pthread_join(first, 0);
    pthread_join(second, 0);
    return 0;
}
