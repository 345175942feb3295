// INVARIANT balance >= 0
// A check and a withdrawal that another one may come between.
#include <pthread.h>
#include <stdio.h>

int balance = 100;

void *withdraw(void *unused) {
    if (balance >= 80)              // RACE balance: spec-violated invariant invariant-violated
        balance -= 80;              // RACE balance: spec-violated invariant invariant-violated
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, withdraw, 0);
    pthread_create(&two, 0, withdraw, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
