// Ad hoc synchronisation: a loop that reads a flag.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int data;
volatile int flag;

void *producer(void *unused) {
    data = 42;                             // RACE data: single-ordering
    flag = 1;                              // RACE flag: k-witness-harmless
    return 0;
}

void *consumer(void *unused) {
    while (!flag) {}                       // RACE flag: k-witness-harmless
    data++;                                // RACE data: single-ordering
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&two, 0, consumer, 0);
    pthread_create(&one, 0, producer, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("%d\n", data);
    return 0;
}
