// INVARIANT account->held + account->free == account->total
// Under the lock the sum is wrong for a moment; without it, for good.
#include <pthread.h>
#include <stdlib.h>

struct account {
    int held, free, total;
};

struct account *account;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *move(void *unused) {
    pthread_mutex_lock(&lock);
    account->held += 10;            // RACE held: spec-violated invariant invariant-violated
    account->free -= 10;
    pthread_mutex_unlock(&lock);
    return 0;
}

void *top_up(void *unused) {
    account->held += 5;             // RACE held: spec-violated invariant invariant-violated
    __atomic_add_fetch(&account->total, 5, __ATOMIC_SEQ_CST);
    return 0;
}

int main(void) {
    pthread_t one, two;
    account = calloc(1, sizeof *account);
    account->free = account->total = 100;
    pthread_create(&one, 0, move, 0);
    pthread_create(&two, 0, top_up, 0);
    pthread_join(one, 0);
    pthread_join(two, 0);
    return 0;
}
