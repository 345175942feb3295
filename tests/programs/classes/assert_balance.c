// Two updates without a lock: one is lost, and an assertion sees it. That is
// decided by who reads before the other writes; once both have read, the order
// of the writes changes nothing.
#include <assert.h>
#include <pthread.h>

int balance = 10;

void *pay(void *unused) {
    int now = balance;                     // RACE balance: spec-violated assert
    balance = now + 5;                     // RACE balance: spec-violated assert RACE update: k-witness-harmless
    return 0;
}

int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, pay, 0);
    pthread_create(&two, 0, pay, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    assert(balance == 20);
    return 0;
}
