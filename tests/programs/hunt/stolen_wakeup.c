// Two consumers and `if` where `while` belongs: what one was woken for the
// other has taken. No data race.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int stock;
static int below;

static void *consumer(void *unused) {
    (void)unused;
    work(100);
    pthread_mutex_lock(&lock);
    if (stock == 0)                          // DECIDES
        pthread_cond_wait(&filled, &lock);   // DECIDES
    stock--;                                 // DECIDES
    if (stock < 0)                           // DECIDES
        below = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

static void *producer(void *unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) {
        work(200);
        pthread_mutex_lock(&lock);
        stock++;  // DECIDES
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int main(void) {
    pthread_t threads[3];
    pthread_create(&threads[0], 0, consumer, 0);
    pthread_create(&threads[1], 0, producer, 0);
    pthread_create(&threads[2], 0, consumer, 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    return below;
}
