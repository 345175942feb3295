// ORDERS harmful
// A deposit is lost when both threads read the balance before either writes.
#include <pthread.h>
#include <stdio.h>

static volatile long balance;

static void *deposit(void *amount) {
    for (int i = 0; i < 300; i++) balance += (long)amount; // RACE
    return NULL;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, deposit, (void *)5);
    pthread_create(&two, NULL, deposit, (void *)7);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("%ld\n", balance);
    return 0;
}
