#include "two.h"
#include <semaphore.h>
int box;
sem_t permits;
static void *worker(void *arg) {
    for (int i = 0; i < 50; i++) {
        sem_wait(&permits);
        box++; // RACE box
        sched_yield();
        sem_post(&permits);
    }
    return arg;
}
int main(void) {
    sem_init(&permits, 0, 2);
    run(worker, worker);
    printf("%d\n", box);
    return 0;
}
