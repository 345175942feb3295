#include "two.h"
#include <semaphore.h>
int box;
sem_t full, empty;
static void *producer(void *arg) {
    for (int i = 0; i < 50; i++) {
        sem_wait(&empty);
        box = i;
        sem_post(&full);
    }
    return arg;
}
static void *consumer(void *arg) {
    long sum = 0;
    for (int i = 0; i < 50; i++) {
        sem_wait(&full);
        sum += box;
        sem_post(&empty);
    }
    printf("%ld\n", sum);
    return arg;
}
int main(void) {
    sem_init(&full, 0, 0);
    sem_init(&empty, 0, 1);
    run(producer, consumer);
    sem_destroy(&full);
    sem_destroy(&empty);
    return 0;
}
