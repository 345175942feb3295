#include "two.h"
int cells[2];
pthread_barrier_t meet;
static void *worker(void *arg) {
    long me = (long)arg;
    int sum = 0;
    for (int round = 0; round < 20; round++) {
        cells[me] = round; // RACE cells
        pthread_barrier_wait(&meet);
        sum += cells[1 - me]; // RACE cells
    }
    return (void *)(long)sum;
}
int main(void) {
    pthread_barrier_init(&meet, 0, 2);
    run_with(worker, (void *)0, worker, (void *)1);
    puts("done");
    return 0;
}
