#include "two.h"
#include <semaphore.h>
static int value;
static sem_t done;
static void *work(void *x) {
    pthread_detach(pthread_self());
    value = 3;
    sem_post(&done);
    return x;
}
int main(void) {
    pthread_t thread;
    sem_init(&done, 0, 0);
    pthread_create(&thread, 0, work, 0);
    sem_wait(&done);
    printf("%d\n", value);
}
