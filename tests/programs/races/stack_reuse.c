// Detached threads one after the other get the same stack: no race.
#include "two.h"
#include <semaphore.h>
sem_t done;
static void *worker(void *arg) {
    volatile int numbers[256];
    for (int i = 0; i < 256; i++)
        numbers[i] = i;
    long sum = numbers[17];
    sem_post(&done);
    return (void *)sum;
}
int main(void) {
    sem_init(&done, 0, 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, worker, 0);
        pthread_detach(thread);
        if (i % 2)
            usleep(200);
    }
    for (int i = 0; i < 20; i++)
        sem_wait(&done);
    puts("done");
    return 0;
}
