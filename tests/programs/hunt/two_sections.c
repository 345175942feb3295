// Every access is under the lock, but the test and the act are not together:
// there is no data race.
// HUNT fails: exit 1
#include "work.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int items = 1;

static int count(void) {
    pthread_mutex_lock(&lock);
    int number = items;  // DECIDES
    pthread_mutex_unlock(&lock);
    return number;
}

static void take(void) {
    pthread_mutex_lock(&lock);
    items--;  // DECIDES
    pthread_mutex_unlock(&lock);
}

static void *consumer(void *unused) {
    (void)unused;
    work(200);
    if (count() > 0)
        take();
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, consumer, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    return items < 0;
}
