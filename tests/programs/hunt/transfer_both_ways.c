// Two accounts are locked in the order of the arguments.
// HUNT fails: deadlock
#include "work.h"
#include <pthread.h>

struct account {
    pthread_mutex_t lock;
    int balance;
};

static struct account a = {PTHREAD_MUTEX_INITIALIZER, 10};
static struct account b = {PTHREAD_MUTEX_INITIALIZER, 10};

static void transfer(struct account *from, struct account *to) {
    pthread_mutex_lock(&from->lock);
    pthread_mutex_lock(&to->lock);  // DECIDES
    from->balance--;
    to->balance++;
    pthread_mutex_unlock(&to->lock);
    pthread_mutex_unlock(&from->lock);
}

static void *there(void *unused) {
    (void)unused;
    work(200);
    transfer(&a, &b);
    return 0;
}

static void *back(void *unused) {
    (void)unused;
    work(200);
    transfer(&b, &a);
    return 0;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], 0, there, 0);
    pthread_create(&threads[1], 0, back, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return 0;
}
