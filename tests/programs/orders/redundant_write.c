// ORDERS no-state-change
// Paper 000, table 2: redundant writes. Both threads store what is there.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile long owner;

static void *work(void *id) {
    for (int i = 0; i < 200; i++) owner = (long)id; // RACE
    return NULL;
}

int main(void) {
    pthread_t one, two;
    long id = getpid();
    owner = id;
    pthread_create(&one, NULL, work, (void *)id);
    pthread_create(&two, NULL, work, (void *)id);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%d\n", owner == id);
    return 0;
}
