#include "two.h"
int *list;
pthread_barrier_t meet;
static void *reader(void *arg) {
    int *mine = list;
    pthread_barrier_wait(&meet);
    return (void *)(long)mine[1]; // RACE list
}
static void *grower(void *arg) {
    int *old = list;
    pthread_barrier_wait(&meet);
    usleep(1000);
    int *fresh = realloc(old, 1 << 20); // RACE list
    fresh[0] = 1;
    return fresh;
}
int main(void) {
    list = calloc(4, sizeof *list);
    pthread_barrier_init(&meet, 0, 2);
    run(reader, grower);
    puts("done");
    return 0;
}
