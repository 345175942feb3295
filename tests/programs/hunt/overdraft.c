// Two withdrawals test the balance and take from it; each alone is allowed.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

static int balance = 100;
static int paid;

static void *withdraw(void *amount) {
    int wanted = *(int *)amount;
    work(200);
    if (balance >= wanted) {          // DECIDES
        int rest = balance - wanted;  // DECIDES
        balance = rest;               // DECIDES
        __atomic_fetch_add(&paid, wanted, __ATOMIC_RELAXED);
    }
    work(200);
    return 0;
}

int main(void) {
    int amounts[2] = {70, 60};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, withdraw, &amounts[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return paid > 100;
}
