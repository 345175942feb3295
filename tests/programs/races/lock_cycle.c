// LOCKS lock-order-inversion
// Three threads, three locks, each pair in one order only.
#include <pthread.h>
#include <sched.h>
static pthread_mutex_t locks[3] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int next;
static void *eat(void *argument) {
    int self = (int)(long)argument;
    for (int mine = 0; !mine; sched_yield()) {
        pthread_mutex_lock(&turn);
        mine = next == self;
        pthread_mutex_unlock(&turn);
    }
    pthread_mutex_lock(&locks[self]);
    pthread_mutex_lock(&locks[(self + 1) % 3]);
    pthread_mutex_unlock(&locks[(self + 1) % 3]);
    pthread_mutex_unlock(&locks[self]);
    pthread_mutex_lock(&turn);
    next++;
    pthread_mutex_unlock(&turn);
    return 0;
}
int main(void) {
    pthread_t threads[3];
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, eat, (void *)i);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
}
