// Ad hoc synchronisation: a flag tested by `if`.
#include <pthread.h>
#include <stdio.h>

int data;
volatile int flag;
int copy;

void *producer(void *unused) {
    data = 42;                             // RACE data: single-ordering
    flag = 1;                              // RACE flag: k-witness-harmless
    return 0;
}

void *consumer(void *unused) {
    if (flag)                              // RACE flag: k-witness-harmless
        copy = data;                       // RACE data: single-ordering
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, producer, 0);
    pthread_create(&two, 0, consumer, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    printf("done\n");
    return 0;
}
