#include "two.h"
int *block;
pthread_barrier_t meet;
static void *user(void *arg) {
    pthread_barrier_wait(&meet);
    int seen = block[3]; // RACE block
    return (void *)(long)seen;
}
static void *freer(void *arg) {
    pthread_barrier_wait(&meet);
    usleep(1000);
    free(block); // RACE block
    return arg;
}
int main(void) {
    block = calloc(16, sizeof *block);
    pthread_barrier_init(&meet, 0, 2);
    run(user, freer);
    puts("done");
    return 0;
}
