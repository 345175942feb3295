#include "two.h"
_Thread_local long counter;
long *leaked;
pthread_barrier_t meet;
static void *owner(void *arg) {
    leaked = &counter;
    pthread_barrier_wait(&meet);
    counter = 5; // RACE counter
    pthread_barrier_wait(&meet);
    return arg;
}
static void *stranger(void *arg) {
    pthread_barrier_wait(&meet);
    *leaked = 6; // RACE counter
    pthread_barrier_wait(&meet);
    return arg;
}
int main(void) {
    pthread_barrier_init(&meet, 0, 2);
    run(owner, stranger);
    puts("done");
    return 0;
}
