// A correct hand-over through an atomic flag that the reader spins on: the
// writer held at its write keeps the reader spinning, and patience must end.
// CANDIDATE: write read
// UNSTEERED: never
// STEERED: never
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static int value;
static atomic_int ready;

static void *writer(void *nothing) {
    value = 42; // RACE write
    atomic_store(&ready, 1);
    return nothing;
}

static void *reader(void *nothing) {
    while (!atomic_load(&ready))
        ;
    printf("value %d\n", value); // RACE read
    return nothing;
}

int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, writer, NULL);
    pthread_create(&other, NULL, reader, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
